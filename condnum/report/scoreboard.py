"""The scoreboard: published and obtained numbers side by side, a verdict each, and claims to check."""

from __future__ import annotations

import gzip
import html
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from condnum.errors import DataFormatError, InvalidInputError, require
from condnum.files import atomic_write
from condnum.report.deep_comparison import net_label
from condnum.report.notebook import RECORD, REPORT
from condnum.report.reproduce import ExperimentRecord
from condnum.report.tables import number
from condnum.studies.measure import TABLE_1, TABLE_2, TABLE_3, Published, PublishedNet

# What the published tables say about the order of the methods, checked on the cells of a run.


Standing = Literal["holds", "in part", "does not hold"]

#: Conventions in which a claim is checked, θ at unit scale.
CONVENTIONS = {"ridge": "ridge, ε = 1e-6", "compact": "compact"}

#: The rule in words, as every page states it.
RULE = (
    "A claim holds if it does so in every cell (method × seed, of the digits × pair) of both conventions; it "
    "does not hold if it fails in at least half of the cells of both; else it holds in part. θ at unit scale."
)


@dataclass(frozen=True)
class Claim:
    """One statement of a published table."""

    text: str  # HTML
    answers: Mapping[str, str]  # by convention: what the run says
    standing: Standing


def claims(published: Mapping[str, Published | PublishedNet], results: pd.DataFrame) -> list[Claim]:
    """Check the order of the methods and Definition 3.1 as a published table has them."""
    cells = results[results["gauge"] == "unit"]
    ran = set(cells["method"])
    rows = {name: row for name, row in published.items() if name in ran and name != "initial"}
    found = []
    if len(rows) > 1:
        best = max(rows, key=lambda name: rows[name].rir)
        text = f"{net_label(best)} has the largest RIR of {len(rows)} methods"
        found.append(_claim(text, {name: _largest(best, part, rows) for name, part in _parts(cells)}))
    for name, row in rows.items():
        met = row.harmful_ratio > 1 and row.pretrain_ratio <= 1
        means = f"published (i) = {number(row.harmful_ratio)}, (ii) = {number(row.pretrain_ratio)}"
        text = f"{net_label(name)} {'meets' if met else 'misses'} (i) > 1 and (ii) ≤ 1 ({means})"
        found.append(_claim(text, {key: _met(part, name, met) for key, part in _parts(cells)}))
    return found


def _parts(cells: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells of each convention that was measured."""
    parts = [(name, cells[cells["convention"] == name]) for name in CONVENTIONS]
    return [(name, part) for name, part in parts if len(part)]


def _largest(best: str, cells: pd.DataFrame, names: Mapping[str, object]) -> tuple[int, int, str]:
    """Count the seeds in which a method's mean RIR is the largest; name the runner-up or the winner."""
    known = cells[cells["method"].isin(names)]
    means = known.groupby(["seed", "method"])["rir"].mean().unstack().dropna()
    count = int((means.idxmax(axis=1) == best).sum())
    overall = known.groupby("method")["rir"].mean()
    other = str(overall.drop(best).idxmax())
    words = f"RIR {number(overall[best])} against {number(overall[other])} ({net_label(other)})"
    return count, len(means), f"{count} of {len(means)} seed{'s'[: len(means) != 1]}: {words}"


def _met(cells: pd.DataFrame, method: str, met: bool) -> tuple[int, int, str]:
    """Count the cells in which a method is immunized, or is not."""
    success = cells.loc[cells["method"] == method, "success"].astype(bool)
    count, total = int((success == met).sum()), len(success)
    return count, total, f"{count} of {total} cells"


def _claim(text: str, counts: Mapping[str, tuple[int, int, str]]) -> Claim:
    """Sum up the answers of the conventions."""
    shares = [count / total for count, total, _ in counts.values()]
    standing: Standing = "in part"
    if all(share == 1 for share in shares):
        standing = "holds"
    elif all(share <= 0.5 for share in shares):
        standing = "does not hold"
    return Claim(text, {name: words for name, (_, _, words) in counts.items()}, standing)


# One obtained number against a published one: agrees, higher, lower, and by what rule.


VerdictKind = Literal["agrees", "higher", "lower", "not finite"]

#: Standard deviations of the published number that count as agreement.
DEVIATIONS = 2.0

#: Share of the published number that counts as agreement in any case: published deviations over 3 or 5
#: seeds say nothing about another implementation.
SHARE = 0.2

#: The rule in words, as every page states it.
AGREEMENT = (
    f"An obtained mean agrees if it lies within the larger of {DEVIATIONS:g} published standard deviations "
    f"and {100 * SHARE:g} % of the published mean; else it is “higher ×k” or “lower ×k”, k being their ratio."
)


@dataclass(frozen=True)
class Verdict:
    """What a comparison says, and why."""

    kind: VerdictKind
    text: str  # "higher ×26"
    reason: str  # the tolerance


def tolerance(published: float, deviation: float) -> float:
    """Return how far an obtained mean may lie from a published one.

    Examples:
        >>> tolerance(100.0, 3.0), tolerance(100.0, 15.0), tolerance(-100.0, float("nan"))
        (20.0, 30.0, 20.0)
    """
    spread = 0.0 if math.isnan(deviation) else DEVIATIONS * deviation
    return max(spread, SHARE * abs(published))


def compare(published: float, deviation: float, obtained: float) -> Verdict:
    """Compare an obtained mean with a published one.

    Examples:
        >>> compare(356.2, 5.491, 9172.0).text, compare(356.2, 5.491, 300.0).text
        ('higher ×25.7', 'agrees')
        >>> compare(92.58, 4.492, 30.0)
        Verdict(kind='lower', text='lower ×3.09', reason='beyond ± 18.52')
        >>> compare(1.0, 0.1, float("inf")).kind
        'not finite'
    """
    allowed = tolerance(published, deviation)
    if not math.isfinite(obtained):
        return Verdict("not finite", "not finite", "the obtained mean is not a finite number")
    if abs(obtained - published) <= allowed:
        return Verdict("agrees", "agrees", f"within ± {number(allowed)}")
    reason = f"beyond ± {number(allowed)}"
    if obtained > published:
        return Verdict("higher", f"higher ×{_factor(obtained, published)}", reason)
    return Verdict("lower", f"lower ×{_factor(published, obtained)}", reason)


def _factor(large: float, small: float) -> str:
    """Return a ratio to three digits."""
    return number(float(f"{large / small:.3g}")) if small > 0 else "∞"


# One experiment of a reproduction as the site sees it: its record, and the files of its folder.


#: Names become file names and addresses.
_NAME = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")


@dataclass(frozen=True)
class Result:
    """An experiment, with its folder if there is one."""

    record: ExperimentRecord
    folder: Path | None  # of a finished run, perhaps an older one

    @property
    def name(self) -> str:
        """Of its page and its folder."""
        return self.record.name

    @property
    def page(self) -> str | None:
        """File name of its page; None without a result."""
        return None if self.folder is None else f"{self.name}.html"

    @property
    def study(self) -> str:
        """The word after `condnum run`: `house-prices`, `digits`, …; empty if the command has none."""
        words = shlex.split(self.record.command)
        return words[2] if words[1:2] == ["run"] and len(words) > 2 else ""

    @property
    def older(self) -> bool:
        """Whether the folder is of an earlier run than the one that was asked for."""
        return self.folder is not None and not self.record.ok

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What the run recorded; empty if it recorded nothing."""
        path = None if self.folder is None else self.folder / RECORD
        if path is None or not path.exists():
            return {}
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataFormatError(f"{path} is damaged ({error}); run the experiment again.") from error
        return dict(value)

    @property
    def parameters(self) -> dict[str, Any]:
        """What was asked of the run."""
        return dict(self.provenance.get("parameters", {}))

    def table(self, name: str) -> pd.DataFrame | None:
        """Read a table of the run."""
        if self.folder is None:
            return None
        for suffix in (".csv", ".csv.gz", ".parquet"):
            path = self.folder / f"{name}{suffix}"
            if path.exists():
                try:
                    if suffix == ".parquet":
                        require("pyarrow", "notebooks")
                        return pd.read_parquet(path)
                    return pd.read_csv(path)
                except (OSError, ValueError) as error:
                    raise DataFormatError(
                        f"{path} is damaged ({error}); run the experiment again."
                    ) from error
        return None


def read_result(record: ExperimentRecord, root: Path) -> Result:
    """Return an experiment with its folder."""
    if not _NAME.fullmatch(record.name):
        raise InvalidInputError(
            f"the experiment's name {record.name!r} must be small letters, digits, - and _: it names a page."
        )
    if record.folder is None:
        return Result(record, None)
    folder = (root / record.folder).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise InvalidInputError(
            f"the folder {record.folder!r} of {record.name} must lie inside {root}: its files are published."
        )
    return Result(record, folder if (folder / REPORT).is_file() else None)


# In which respects a run differs from what was published, said from the run's own record.


#: Settings of Table 3 in words.
NET_NAMES = {
    ("resnet18", "cars"): "ResNet18, ImageNet–Cars",
    ("vit", "cars"): "ViT, ImageNet–Cars",
    ("resnet18", "country211"): "ResNet18, ImageNet–Country211",
    ("vit", "country211"): "ViT, ImageNet–Country211",
}

#: Ordered pairs of two different digits.
PAIRS = 90


@dataclass(frozen=True)
class Protocol:
    """What the paper did, for one kind of run."""

    dataset: str  # whose results are comparable
    seeds: int
    budget: str  # of the immunization
    measure: str  # of the published numbers


_LINEAR = "κ with a floor of 1e-6 under the eigenvalues (ridge), θ as trained, whose scale moves (i) and (ii)"

#: By the word after `condnum run`.
PROTOCOLS = {
    "house-prices": Protocol(
        "house-prices",
        5,
        "100 epochs in Sec. 5.1, 1000 in Table 4, 10 in the release, which takes batches of 64",
        _LINEAR,
    ),
    "mnist": Protocol("mnist", 3, "30 epochs, in the release of batches of 64", _LINEAR),
    "digits": Protocol("mnist", 3, "30 epochs, in the release of batches of 64", _LINEAR),
    "deep": Protocol(
        "imagenet",
        3,
        "2 or 3 epochs over ImageNet",
        "κ over groups of 100 images, not stated how; here compact",
    ),
}

#: What a linear method does here and not in the paper, beside its budget.
_CHOICES = {
    "ours": "λ balanced at the first step, fixed in the paper",
    "opt_kappa": "λ balanced, on the floor of the release",
}


def differences(run: Result, summary: pd.DataFrame, data: str, *, comparable: bool) -> str:
    """Say in one line in what a run as a whole differs from the published."""
    paper, seeds, said = PROTOCOLS[run.study], int(summary["seeds"].max()), list[str]()
    if not comparable:
        said.append(
            "other data than the paper's: the numbers cannot be compared, the order of the methods can"
        )
    elif "test images" in data:
        said.append("the 10 000 test images, where the paper takes the 60 000 training images")
    pairs = int(summary["pairs"].iloc[0]) if "pairs" in summary else PAIRS
    if pairs != PAIRS:
        said.append(f"{pairs} of the {PAIRS} ordered pairs of digits")
    if seeds != paper.seeds:
        said.append(f"{seeds} seed{'s'[: seeds != 1]} instead of {paper.seeds}")
    if run.parameters.get("rows"):
        said.append(f"the first {run.parameters['rows']} rows of each task")
    if run.older:
        said.append("an older result than was asked for")
    return "; ".join(said)


def budgets(run: Result, results: pd.DataFrame, *, comparable: bool) -> Mapping[str, str]:
    """Say of each method how many steps it took, and what else it does not do as the paper."""
    if "steps" not in results:
        return {}
    how = "steps" if run.study == "deep" else "full-batch steps"
    choices = _CHOICES if comparable and run.study != "deep" else {}
    most = results.groupby("method", sort=False)["steps"].max()
    return {
        str(name): "; ".join(filter(None, (f"{int(steps):,} {how}", choices.get(str(name)))))
        for name, steps in most.items()
    }


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


# What made a result: parameters, seeds, data, versions, device, duration, revision, as rows for a page.


#: Tables above this many bytes are published compressed.
COMPRESSED = 300_000

#: Files above this many bytes, compressed, stay in the run's folder.
LARGEST = 1_000_000


@dataclass(frozen=True)
class PublishedFile:
    """A file of a run that the site holds."""

    name: str
    size: str  # for people


def run_facts(run: Result) -> list[tuple[str, str]]:
    """List what a run recorded of itself."""
    record = run.provenance
    device = record.get("device", {})
    platform = record.get("platform", {})
    seeds = record.get("seeds", [])
    facts = {
        "Started": _text(str(record.get("started_utc", "")).replace("T", " ").replace("+00:00", " UTC")),
        "Duration": duration(float(record.get("duration_seconds") or run.record.seconds)),
        "Seeds": _text(", ".join(map(str, seeds)) or run.parameters.get("seed", "none recorded")),
        "Data, SHA-256": "<br>".join(
            f"{_text(name)}: <code>{_text(value)}</code>" for name, value in record.get("data", {}).items()
        )
        or "none: nothing was loaded",
        "Code": revision_words(record.get("source")),
        "Device": _text(f"{device.get('name', 'not recorded')}, {device.get('device', '')}"),
        "Threads": _text(device.get("threads", "not recorded")),
        "System": _text(" ".join(map(str, platform.values())) or "not recorded"),
        "Versions": _text(", ".join(f"{name} {value}" for name, value in record.get("versions", {}).items())),
        "Parameters": _pairs(record.get("parameters", {})),
    }
    return list(facts.items())


def revision_words(source: Mapping[str, Any] | None) -> str:
    """Return a source revision as HTML.

    Examples:
        >>> revision_words({"revision": "0123456789abcdef", "dirty": True})
        'revision <code>0123456789ab</code>, with uncommitted changes'
    """
    if not source:
        return "no revision: not run from a git work tree"
    short = html.escape(str(source.get("revision", ""))[:12])
    return f"revision <code>{short}</code>" + (", with uncommitted changes" if source.get("dirty") else "")


def duration(seconds: float) -> str:
    """Return a duration for people.

    Examples:
        >>> [duration(value) for value in (7.25, 125.0, 7384.0)]
        ['7.2 s', '2 min 5 s', '2 h 3 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def publish_files(run: Result, target: Path) -> list[PublishedFile]:
    """Copy the executed notebook, the provenance and the tables of a run into the site.

    Large tables are compressed; what is larger than `LARGEST` even so is left in the run's folder. Of a
    CSV file that is compressed already, and of others, the bytes stay as they are.
    """
    if run.folder is None:
        return []
    target.mkdir(parents=True, exist_ok=True)
    tables = sorted(run.folder.glob("*.csv")) + sorted(run.folder.glob("*.csv.gz"))
    published = []
    for source in [run.folder / REPORT, run.folder / RECORD, *tables]:
        if not source.is_file() or source.is_symlink():
            continue
        content, name = source.read_bytes(), source.name
        if len(content) > COMPRESSED and source.suffix == ".csv":
            content, name = gzip.compress(content, mtime=0), f"{name}.gz"
        if len(content) > LARGEST and source.name != REPORT:
            continue
        with atomic_write(target / name) as temporary:
            temporary.write_bytes(content)
        published.append(PublishedFile(name, _size(len(content))))
    return published


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} B"


def _pairs(values: Mapping[str, Any]) -> str:
    """Return parameters as HTML, those that were left empty in one line."""
    given = {name: value for name, value in values.items() if value not in ("", None)}
    words = [f"<code>{_text(name)} = {_text(value)}</code>" for name, value in given.items()]
    return ", ".join(words) or "every one at its default"


def _text(value: Any) -> str:
    """Return anything as escaped text."""
    return html.escape(str(value))
