"""The scoreboard: published and obtained numbers side by side, a verdict each, and claims to check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from condnum.report.deep_comparison import NET_RATIOS, in_percent, net_label
from condnum.report.results import Result
from condnum.report.tables import RATIOS, number, spread
from condnum.studies.measure import TABLE_1, TABLE_2, TABLE_3, Published, PublishedNet

VerdictKind = Literal["agrees", "higher", "lower", "not finite"]
Standing = Literal["holds", "in part", "does not hold"]

#: Standard deviations of the published number that count as agreement.
DEVIATIONS = 2.0

#: Share of the published number that counts as agreement in any case: published deviations over 3 or 5
#: seeds say nothing about another implementation.
SHARE = 0.2

#: How a number is judged, as every page states it.
AGREEMENT = (
    f"An obtained mean agrees if it lies within the larger of {DEVIATIONS:g} published standard deviations "
    f"and {100 * SHARE:g} % of the published mean; else it is “higher ×k” or “lower ×k”, k being their ratio."
)

#: Conventions in which a claim is checked, θ at unit scale.
CONVENTIONS = {"ridge": "ridge, ε = 1e-6", "compact": "compact"}

#: How a claim is judged, as every page states it.
CLAIM_RULE = (
    "A claim holds if it does so in every cell (method × seed, of the digits × pair) of both conventions; it "
    "does not hold if it fails in at least half of the cells of both; else it holds in part. θ at unit scale."
)

#: Settings of Table 3 in words.
NET_NAMES = {
    ("resnet18", "cars"): "ResNet18, ImageNet–Cars",
    ("vit", "cars"): "ViT, ImageNet–Cars",
    ("resnet18", "country211"): "ResNet18, ImageNet–Country211",
    ("vit", "country211"): "ViT, ImageNet–Country211",
}

#: Ordered pairs of two different digits.
PAIRS = 90

Row = Published | PublishedNet


@dataclass(frozen=True)
class Verdict:
    """What a comparison says, and why."""

    kind: VerdictKind
    text: str  # "higher ×26"
    reason: str  # the tolerance


@dataclass(frozen=True)
class Claim:
    """One statement of a published table."""

    text: str  # HTML
    answers: Mapping[str, str]  # by convention: what the run says
    standing: Standing


@dataclass(frozen=True)
class Protocol:
    """What the paper did, for one kind of run."""

    dataset: str  # whose results are comparable
    seeds: int
    budget: str  # of the immunization
    measure: str  # of the published numbers


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
    short: str  # for the contents
    run: Result
    data: str  # what was run on
    comparable: bool  # whether these are the paper's data
    columns: Mapping[str, str]  # HTML by column
    lines: tuple[Line, ...]
    differs: str  # in what the run as a whole is not the paper's; "" if in nothing
    claims: tuple[Claim, ...]

    @property
    def paper(self) -> Protocol:
        """What the paper did."""
        return PROTOCOLS[self.run.study]


_LINEAR = "κ with a floor of 1e-6 under the eigenvalues (ridge), θ as trained, whose scale moves (i) and (ii)"
_DIGITS = Protocol("mnist", 3, "30 epochs, in the release of batches of 64", _LINEAR)

#: By the word after `condnum run`.
PROTOCOLS = {
    "house-prices": Protocol(
        "house-prices",
        5,
        "100 epochs in Sec. 5.1, 1000 in Table 4, 10 in the release, which takes batches of 64",
        _LINEAR,
    ),
    "mnist": _DIGITS,
    "digits": _DIGITS,
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


def scoreboard(results: Sequence[Result]) -> list[Section]:
    """Set every published table beside the runs that belong to it, those on the paper's data first."""
    sections = list[Section]()
    for key, title, published, studies in (
        ("table-1", "Table 1, house prices, linear extractor", TABLE_1, ("house-prices",)),
        ("table-2", "Table 2, MNIST, linear extractor", TABLE_2, ("mnist", "digits")),
    ):
        for run in results:
            summary = run.table("summary") if run.study in studies else None
            if summary is not None:
                anchor = key if key not in (one.key for one in sections) else f"{key}-{run.name}"
                sections.append(_linear(anchor, title, published, run, summary))
    for run in results:
        summary = run.table("summary") if run.study == "deep" else None
        if summary is not None:
            sections += _nets(run, in_percent(summary))
    return sorted(sections, key=lambda section: not section.comparable)


def tally(sections: Iterable[Section]) -> str:
    """Say how many published numbers agree, and how many claims hold."""
    compared = [one for one in sections if one.comparable]
    scores = (score for one in compared for line in one.lines for score in line.scores.values())
    kinds = Counter[str](score.verdict.kind for score in scores if score.verdict)
    standings = Counter[str](claim.standing for one in compared for claim in one.claims)
    if not kinds:
        return ""
    words = {"agrees": "agree", "higher": "are higher", "lower": "are lower", "not finite": "are not finite"}
    held = {"holds": "hold", "in part": "hold in part", "does not hold": "do not hold"}
    told = [f"{kinds[kind]} {said}" for kind, said in words.items() if kinds[kind]]
    claimed = [f"{standings[name]} {said}" for name, said in held.items() if standings[name]]
    return (
        f"Of {kinds.total()} published numbers, of RIR and its parts, {', '.join(told)}. "
        f"Of {standings.total()} claims about the methods {', '.join(claimed)}."
    )


def _linear(
    key: str, title: str, published: Mapping[str, Published], run: Result, summary: pd.DataFrame
) -> Section:
    """Compare a linear table in the convention of the published numbers: ridge, θ as trained."""
    rows = summary[(summary["convention"] == "ridge") & (summary["gauge"] == "as_trained")]
    dataset = str(summary["dataset"].iloc[0])
    data = ", ".join(run.provenance.get("data", {})) or dataset
    short, same = f"{title.split(', ')[0]}: {data}", dataset == PROTOCOLS[run.study].dataset
    return _section(key, title, short, run, data, same, RATIOS, published, rows, run.table("results"))


def _nets(run: Result, summary: pd.DataFrame) -> list[Section]:
    """Compare Table 3: a section per backbone."""
    sections = list[Section]()
    cells = run.table("results")
    columns = NET_RATIOS | {"accuracy": "D<sub>P</sub> test acc. (%)"}
    for backbone, rows in summary[summary["convention"] == "compact"].groupby("backbone", sort=False):
        setting = _setting(str(backbone), rows)
        published = {name: row for name, row in TABLE_3[setting].items() if name != "initial"}
        data = f"{rows['pretrain_data'].iloc[0]} against {rows['harmful_data'].iloc[0]}"
        title = f"Table 3, {backbone} beside the published {NET_NAMES[setting]}"
        key, same = f"table-3-{run.name}-{len(sections) + 1}", bool(rows["published_same"].all())
        mine = None if cells is None else cells[cells["backbone"] == backbone]
        sections.append(
            _section(key, title, f"Table 3: {backbone}", run, data, same, columns, published, rows, mine)
        )
    return sections


def _setting(backbone: str, rows: pd.DataFrame) -> tuple[str, str]:
    """Return the column of Table 3 whose numbers a run's summary carries."""
    rir = rows.set_index("method")["published_rir"]
    for setting, table in TABLE_3.items():
        if all(math.isclose(table[name].rir, value) for name, value in rir.items() if name in table):
            return setting
    return ("vit" if "vit" in backbone.lower() else "resnet18", "cars")


def _section(
    key: str,
    title: str,
    short: str,
    run: Result,
    data: str,
    comparable: bool,
    columns: Mapping[str, str],
    published: Mapping[str, Row],
    summary: pd.DataFrame,  # a row per method, in the measure of the published numbers
    results: pd.DataFrame | None,
) -> Section:
    """Compare a table, method by method, ours first."""
    rows, linear = summary.set_index("method"), run.study != "deep"
    steps = {} if results is None or "steps" not in results else results.groupby("method")["steps"].max()
    lines = []
    for name, paper in reversed(list(published.items())):
        if name not in rows.index:
            continue
        scores = {}
        for column in columns:
            mean, deviation = (float(rows.at[name, f"{column}_{kind}"]) for kind in ("mean", "std"))
            known = getattr(paper, column), getattr(paper, f"{column}_std")
            verdict = compare(*known, mean) if comparable else None
            scores[column] = Score(spread(*known, 4), spread(mean, deviation), verdict)
        budget = []
        if name in steps:
            budget.append(f"{int(steps[name]):,} {'full-batch steps' if linear else 'steps'}")
            if comparable and linear and name in _CHOICES:
                budget.append(_CHOICES[name])
        lines.append(Line(net_label(name), scores, "; ".join(budget)))
    differs = differences(run, summary, data, comparable=comparable)
    found = () if results is None else tuple(claims(published, results))
    return Section(key, title, short, run, data, comparable, columns, tuple(lines), differs, found)


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
    if not math.isfinite(obtained):
        return Verdict("not finite", "not finite", "the obtained mean is not a finite number")
    allowed = max(SHARE * abs(published), 0.0 if math.isnan(deviation) else DEVIATIONS * deviation)
    if abs(obtained - published) <= allowed:
        return Verdict("agrees", "agrees", f"within ± {number(allowed)}")
    small, large = sorted((published, obtained))
    factor = number(float(f"{large / small:.3g}")) if small > 0 else "∞"
    kind: VerdictKind = "higher" if obtained > published else "lower"
    return Verdict(kind, f"{kind} ×{factor}", f"beyond ± {number(allowed)}")


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


def claims(published: Mapping[str, Row], results: pd.DataFrame) -> list[Claim]:
    """Check the order of the methods and Definition 3.1 as a published table has them."""
    unit = results[results["gauge"] == "unit"]
    parts = {name: part for name, part in unit.groupby("convention") if name in CONVENTIONS}
    rows = {name: row for name, row in published.items() if name in set(unit["method"])}
    found = []
    if len(rows) > 1:
        best = max(rows, key=lambda name: rows[name].rir)
        text = f"{net_label(best)} has the largest RIR of {len(rows)} methods"
        found.append(_claim(text, {name: _largest(best, part, rows) for name, part in parts.items()}))
    for method, row in rows.items():
        met = row.harmful_ratio > 1 and row.pretrain_ratio <= 1
        means = f"published (i) = {number(row.harmful_ratio)}, (ii) = {number(row.pretrain_ratio)}"
        text = f"{net_label(method)} {'meets' if met else 'misses'} (i) > 1 and (ii) ≤ 1 ({means})"
        counts = {}
        for name, part in parts.items():
            cells = part.loc[part["method"] == method, "success"].astype(bool)
            count = int((cells == met).sum())
            counts[name] = (count, len(cells), f"{count} of {len(cells)} cells")
        found.append(_claim(text, counts))
    return found


def _largest(best: str, cells: pd.DataFrame, names: Mapping[str, object]) -> tuple[int, int, str]:
    """Count the seeds in which a method's mean RIR is the largest; name the runner-up or the winner."""
    known = cells[cells["method"].isin(names)]
    means = known.groupby(["seed", "method"])["rir"].mean().unstack().dropna()
    count = int((means.idxmax(axis=1) == best).sum())
    overall = known.groupby("method")["rir"].mean()
    other = str(overall.drop(best).idxmax())
    words = f"RIR {number(overall[best])} against {number(overall[other])} ({net_label(other)})"
    return count, len(means), f"{count} of {len(means)} seed{'s'[: len(means) != 1]}: {words}"


def _claim(text: str, counts: Mapping[str, tuple[int, int, str]]) -> Claim:
    """Sum up how many cells of each convention agree with a claim."""
    shares = [count / total for count, total, _ in counts.values()]
    standing: Standing = "in part"
    if all(share == 1 for share in shares):
        standing = "holds"
    elif all(share <= 0.5 for share in shares):
        standing = "does not hold"
    return Claim(text, {name: words for name, (_, _, words) in counts.items()}, standing)
