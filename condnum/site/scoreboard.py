"""The scoreboard: published and obtained numbers side by side, a verdict each, and claims to check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from condnum.experiments.published import TABLE_1, TABLE_2, TABLE_3, Published, PublishedNet
from condnum.report.comparison import number
from condnum.report.deep_comparison import net_label
from condnum.site.claims import Claim, claims
from condnum.site.protocol import EMBEDDED_NOTE, NET_NAMES, PROTOCOLS, protocol
from condnum.site.result import Result
from condnum.site.verdict import Verdict, compare

#: Ordered pairs of two different digits.
PAIRS = 90

_COLUMNS = {"harmful_ratio": "(i) ↑", "pretrain_ratio": "(ii) ↓", "rir": "RIR ↑"}
_NET_COLUMNS = {**_COLUMNS, "rir": "RIR<sub>θ0</sub> ↑", "accuracy": "D<sub>P</sub> test acc. (%)"}

Row = Published | PublishedNet


@dataclass(frozen=True)
class Score:
    """One number: published, obtained, and what that says."""

    published: str
    obtained: str  # empty if it was not obtained
    verdict: Verdict


@dataclass(frozen=True)
class Section:
    """One published table against one run, or against none."""

    key: str  # anchor
    title: str
    short: str  # for the contents
    run: Result | None
    data: str  # what was run on; empty without a run
    columns: tuple[str, ...]  # HTML
    rows: tuple[tuple[str, tuple[Score, ...]], ...]  # method (HTML) and its scores
    protocol: tuple[str, ...]  # why numbers may differ
    claims: tuple[Claim, ...]


def scoreboard(results: Sequence[Result]) -> list[Section]:
    """Set every published table beside the runs that belong to it.

    Args:
        results: Of a reproduction.

    Returns:
        A section per table and run, of Table 3 per backbone; a table without a run is "not run".

    Raises:
        DataFormatError: A table of a run cannot be read.
    """
    sections = []
    for key, title, published, studies in (
        ("table-1", "Table 1, house prices, linear extractor", TABLE_1, ("house-prices",)),
        ("table-2", "Table 2, MNIST, linear extractor, 90 digit pairs", TABLE_2, ("mnist", "digits")),
    ):
        found = [result for result in results if result.study in studies]
        runs = [result for result in found if result.table("summary") is not None]
        for place, run in enumerate(runs):
            sections.append(_linear(key if place == 0 else f"{key}-{run.name}", title, published, run))
        if not runs:
            scores = {
                net_label(name): _unrun(row, _COLUMNS, _reason(found)) for name, row in published.items()
            }
            sections.append(_section(key, title, None, "", _COLUMNS, scores))
    return sections + _nets([result for result in results if result.study == "deep"])


def tally(sections: Sequence[Section]) -> str:
    """Say how many published numbers agree, and how many claims hold.

    Args:
        sections: Of `scoreboard`.

    Returns:
        Two sentences.
    """
    kinds: Counter[str] = Counter(
        score.verdict.kind for one in sections for _, scores in one.rows for score in scores
    )
    words = {
        "agrees": "agree",
        "higher": "are higher",
        "lower": "are lower",
        "not finite": "are not finite",
        "other data": "are of other data",
        "not run": "were not run",
    }
    told = [f"{kinds[kind]} {said}" for kind, said in words.items() if kinds[kind]]
    standings: Counter[str] = Counter(claim.standing for one in sections for claim in one.claims)
    text = f"Of {kinds.total()} published numbers {', '.join(told)}."
    if not standings:
        return text
    held = {"holds": "hold", "in part": "hold in part", "does not hold": "do not hold"}
    claimed = [f"{standings[name]} {said}" for name, said in held.items() if standings[name]]
    return f"{text} Of {standings.total()} claims about the methods {', '.join(claimed)}."


def _linear(key: str, title: str, published: Mapping[str, Published], run: Result) -> Section:
    """Compare a linear table in the convention of the published numbers: ridge, θ as trained."""
    summary = _table(run, "summary")
    rows = summary[(summary["convention"] == "ridge") & (summary["gauge"] == "as_trained")].set_index(
        "method"
    )
    data = str(summary["dataset"].iloc[0])
    pairs = int(summary["pairs"].iloc[0]) if "pairs" in summary else PAIRS
    other = ""
    if data != PROTOCOLS[run.study].dataset:
        other = EMBEDDED_NOTE
    elif pairs != PAIRS:
        other = f"only {pairs} of {PAIRS} pairs"
    scores = {net_label(name): _scores(row, rows, name, _COLUMNS, other) for name, row in published.items()}
    found = claims(published, _table(run, "results"))
    return _section(key, title, run, data, _COLUMNS, scores, protocol(run, rows), found)


def _nets(found: Sequence[Result]) -> list[Section]:
    """Compare Table 3: a section per backbone that ran, and one for the settings that did not."""
    sections: list[Section] = []
    done: set[tuple[str, str]] = set()
    for run in (result for result in found if result.table("summary") is not None):
        summary, cells = _table(run, "summary"), _table(run, "results")
        for backbone, part in summary[summary["convention"] == "compact"].groupby("backbone", sort=False):
            rows = part.set_index("method")
            same = bool(rows["published_same"].all())
            setting = _setting(str(backbone), rows)
            if same:
                done.add(setting)
            data = f"{rows['pretrain_data'].iloc[0]} against {rows['harmful_data'].iloc[0]}"
            scores = {
                net_label(name): _scores(row, rows, name, _NET_COLUMNS, "" if same else EMBEDDED_NOTE)
                for name, row in TABLE_3[setting].items()
                if name != "initial"
            }
            title = f"Table 3, {backbone} beside the published {NET_NAMES[setting]}"
            mine = claims(TABLE_3[setting], cells[cells["backbone"] == backbone])
            key = f"table-3-{run.name}-{len(sections) + 1}"
            sections.append(_section(key, title, run, data, _NET_COLUMNS, scores, protocol(run, rows), mine))
    missing = [setting for setting in TABLE_3 if setting not in done]
    return [*sections, _unrun_nets(missing, found)] if missing else sections


def _setting(backbone: str, rows: pd.DataFrame) -> tuple[str, str]:
    """Return the column of Table 3 whose numbers a run's summary carries."""
    for setting, table in TABLE_3.items():
        if all(math.isclose(table[m].rir, rows.loc[m, "published_rir"]) for m in rows.index if m in table):
            return setting
    return ("vit" if "vit" in backbone.lower() else "resnet18", "cars")


def _unrun_nets(settings: Sequence[tuple[str, str]], found: Sequence[Result]) -> Section:
    """List the RIR of the settings of Table 3 that nobody ran."""
    waiting = [result for result in found if result.folder is None]
    verdict = Verdict("not run", "not run", _reason(waiting) or "its images are not at hand")
    columns = {str(setting): f"RIR<sub>θ0</sub>, {NET_NAMES[setting]}" for setting in settings}
    rows = {
        net_label(method): tuple(Score(_pair(TABLE_3[s][method], "rir"), "", verdict) for s in settings)
        for method in TABLE_3[settings[0]]
        if method != "initial"
    }
    return _section("table-3", "Table 3, deep nets: published settings", None, "", columns, rows)


def _scores(
    row: Row, obtained: pd.DataFrame, method: str, columns: Mapping[str, str], other: str
) -> tuple[Score, ...]:
    """Compare every number of a row.

    Args:
        row: Published.
        obtained: A run's summary by method.
        method: Registry name.
        columns: Which numbers.
        other: Why they are not comparable; empty if they are.

    Returns:
        A score per column.
    """
    if method not in obtained.index:
        return _unrun(row, columns, "this method was not part of the run")
    scores = []
    for name in columns:
        factor = 100.0 if name == "accuracy" else 1.0
        mean, deviation = (factor * float(obtained.loc[method, f"{name}_{kind}"]) for kind in ("mean", "std"))
        verdict = (
            Verdict("other data", "other data", other)
            if other
            else compare(getattr(row, name), getattr(row, f"{name}_std"), mean)
        )
        scores.append(Score(_pair(row, name), _spread(mean, deviation, 2), verdict))
    return tuple(scores)


def _unrun(row: Row, columns: Mapping[str, str], reason: str) -> tuple[Score, ...]:
    """Return published numbers without obtained ones."""
    verdict = Verdict("not run", "not run", reason or "no run of this reproduction belongs to it")
    return tuple(Score(_pair(row, name), "", verdict) for name in columns)


def _reason(found: Sequence[Result]) -> str:
    """Say why experiments that were planned have no result."""
    return "; ".join(dict.fromkeys(result.record.error for result in found if result.record.error))


def _section(
    key: str,
    title: str,
    run: Result | None,
    data: str,
    columns: Mapping[str, str],
    scores: Mapping[str, tuple[Score, ...]],
    reasons: Sequence[str] = (),
    found: Sequence[Claim] = (),
) -> Section:
    """Put a section together."""
    rows = tuple(scores.items())
    place, _, rest = title.partition(", ")
    short = f"{place}: {rest.split(' beside ')[0] if run and run.study == 'deep' else data or 'not run'}"
    return Section(key, title, short, run, data, tuple(columns.values()), rows, tuple(reasons), tuple(found))


def _pair(row: Row, name: str) -> str:
    """Return a published number with its deviation."""
    return _spread(getattr(row, name), getattr(row, f"{name}_std"), 4)


def _spread(mean: float, deviation: float, digits: int) -> str:
    """Return `mean ± deviation`."""
    if math.isnan(deviation):
        return number(mean)
    spread = 0.0 if deviation < 1e-9 * abs(mean) else float(f"{deviation:.{digits}g}")
    return f"{number(mean)} ± {number(spread)}"


def _table(run: Result, name: str) -> pd.DataFrame:
    """Return a table that is known to exist, an empty one if it does not."""
    table = run.table(name)
    return pd.DataFrame(columns=["method", "gauge", "convention"]) if table is None else table
