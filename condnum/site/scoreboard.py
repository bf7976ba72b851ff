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
from condnum.site.protocol import NET_NAMES, PROTOCOLS, Protocol, budgets, differences
from condnum.site.result import Result
from condnum.site.verdict import Verdict, compare

_COLUMNS = {"harmful_ratio": "(i) ↑", "pretrain_ratio": "(ii) ↓", "rir": "RIR ↑"}
_NET_COLUMNS = {**_COLUMNS, "rir": "RIR<sub>θ0</sub> ↑", "accuracy": "D<sub>P</sub> test acc. (%)"}

Row = Published | PublishedNet


@dataclass(frozen=True)
class Score:
    """One number: published, obtained, and what that says."""

    published: str
    obtained: str
    verdict: Verdict | None  # None: of other data, there is nothing to compare


@dataclass(frozen=True)
class Line:
    """One method of a table."""

    method: str  # HTML
    scores: Mapping[str, Score]  # by column; "rir" is what the table is about
    budget: str  # here, and what else is not as in the paper


@dataclass(frozen=True)
class Section:
    """One published table against one run."""

    key: str  # anchor
    title: str
    run: Result
    data: str  # what was run on
    comparable: bool  # whether these are the paper's data
    columns: Mapping[str, str]  # HTML by column
    lines: tuple[Line, ...]
    differs: str  # in what the run as a whole is not the paper's; "" if in nothing
    claims: tuple[Claim, ...]

    @property
    def short(self) -> str:
        """For the contents."""
        place, _, rest = self.title.partition(", ")
        return f"{place}: {rest.split(' beside ')[0] if self.run.study == 'deep' else self.data}"

    @property
    def paper(self) -> Protocol:
        """What the paper did."""
        return PROTOCOLS[self.run.study]


def scoreboard(results: Sequence[Result]) -> list[Section]:
    """Set every published table beside the runs that belong to it."""
    ran = [result for result in results if result.table("summary") is not None]
    sections = []
    for key, title, published, studies in (
        ("table-1", "Table 1, house prices, linear extractor", TABLE_1, ("house-prices",)),
        ("table-2", "Table 2, MNIST, linear extractor", TABLE_2, ("mnist", "digits")),
    ):
        runs = [result for result in ran if result.study in studies]
        for place, run in enumerate(runs):
            sections.append(_linear(key if place == 0 else f"{key}-{run.name}", title, published, run))
    for run in (result for result in ran if result.study == "deep"):
        sections += _nets(run)
    return sorted(sections, key=lambda section: not section.comparable)


def tally(sections: Sequence[Section]) -> str:
    """Say how many published numbers agree, and how many claims hold."""
    sections = [one for one in sections if one.comparable]
    kinds: Counter[str] = Counter(
        score.verdict.kind
        for one in sections
        for line in one.lines
        for score in line.scores.values()
        if score.verdict
    )
    if not kinds:
        return ""
    words = {
        "agrees": "agree",
        "higher": "are higher",
        "lower": "are lower",
        "not finite": "are not finite",
    }
    told = [f"{kinds[kind]} {said}" for kind, said in words.items() if kinds[kind]]
    standings: Counter[str] = Counter(claim.standing for one in sections for claim in one.claims)
    held = {"holds": "hold", "in part": "hold in part", "does not hold": "do not hold"}
    claimed = [f"{standings[name]} {said}" for name, said in held.items() if standings[name]]
    return (
        f"Of {kinds.total()} published numbers, of RIR and its parts, {', '.join(told)}. "
        f"Of {standings.total()} claims about the methods {', '.join(claimed)}."
    )


def _linear(key: str, title: str, published: Mapping[str, Published], run: Result) -> Section:
    """Compare a linear table in the convention of the published numbers: ridge, θ as trained."""
    summary = _table(run, "summary")
    rows = summary[(summary["convention"] == "ridge") & (summary["gauge"] == "as_trained")].set_index(
        "method"
    )
    dataset = str(summary["dataset"].iloc[0])
    data = ", ".join(run.provenance.get("data", {})) or dataset
    same = dataset == PROTOCOLS[run.study].dataset
    return _section(key, title, run, data, same, _COLUMNS, published, rows, _table(run, "results"))


def _nets(run: Result) -> list[Section]:
    """Compare Table 3: a section per backbone."""
    sections = list[Section]()
    summary, cells = _table(run, "summary"), _table(run, "results")
    for backbone, part in summary[summary["convention"] == "compact"].groupby("backbone", sort=False):
        rows = part.set_index("method")
        setting = _setting(str(backbone), rows)
        published = {name: row for name, row in TABLE_3[setting].items() if name != "initial"}
        data = f"{rows['pretrain_data'].iloc[0]} against {rows['harmful_data'].iloc[0]}"
        title = f"Table 3, {backbone} beside the published {NET_NAMES[setting]}"
        key, same = f"table-3-{run.name}-{len(sections) + 1}", bool(rows["published_same"].all())
        mine = cells[cells["backbone"] == backbone]
        sections.append(_section(key, title, run, data, same, _NET_COLUMNS, published, rows, mine))
    return sections


def _section(
    key: str,
    title: str,
    run: Result,
    data: str,
    comparable: bool,
    columns: Mapping[str, str],
    published: Mapping[str, Row],
    rows: pd.DataFrame,
    results: pd.DataFrame,
) -> Section:
    """Compare a table: rows of the run's summary by method, in the measure of the published numbers."""
    budget = budgets(run, results, comparable=comparable)
    lines = [
        Line(net_label(name), _scores(row, rows.loc[name], columns, comparable), budget.get(name, ""))
        for name, row in reversed(list(published.items()))  # ours first
        if name in rows.index
    ]
    differs = differences(run, rows, data, comparable=comparable)
    found = tuple(claims(published, results))
    return Section(key, title, run, data, comparable, columns, tuple(lines), differs, found)


def _setting(backbone: str, rows: pd.DataFrame) -> tuple[str, str]:
    """Return the column of Table 3 whose numbers a run's summary carries."""
    for setting, table in TABLE_3.items():
        if all(math.isclose(table[m].rir, rows.loc[m, "published_rir"]) for m in rows.index if m in table):
            return setting
    return ("vit" if "vit" in backbone.lower() else "resnet18", "cars")


def _scores(row: Row, obtained: pd.Series, columns: Mapping[str, str], comparable: bool) -> dict[str, Score]:
    """Compare every number of a row with the run's means and deviations."""
    scores = {}
    for name in columns:
        factor = 100.0 if name == "accuracy" else 1.0
        mean, deviation = (factor * float(obtained[f"{name}_{kind}"]) for kind in ("mean", "std"))
        verdict = compare(getattr(row, name), getattr(row, f"{name}_std"), mean) if comparable else None
        scores[name] = Score(_pair(row, name), _spread(mean, deviation, 2), verdict)
    return scores


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
