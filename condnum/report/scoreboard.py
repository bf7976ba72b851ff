"""The scoreboard: published and obtained numbers side by side, a verdict each, and claims to check."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import pandas as pd

from condnum.errors import CondnumError
from condnum.report.deep_comparison import NET_RATIOS, in_percent, net_label
from condnum.report.results import ExperimentResult
from condnum.report.tables import RATIO_TITLES, number, spread
from condnum.studies.measure import TABLE_1, TABLE_2, Published
from condnum.studies.run_verdicts import FIXED, RunFolder, run_verdicts
from condnum.studies.stability import claim_stability, default_setting, published_claims

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
CLAIM_CONVENTIONS = {"ridge": "ridge, ε = 1e-6", "compact": "compact"}

#: How a claim is judged, as every page states it.
CLAIM_RULE = (
    "A claim holds if it does so in every cell (method × seed, of the digits × pair) of both conventions; it "
    "does not hold if it fails in at least half of the cells of both; else it holds in part. θ at unit scale."
)

#: Ordered pairs of two different digits.
PAIRS = 90


class Protocol(NamedTuple):
    """What the paper did, for one kind of run."""

    title: str  # of its table
    published: Mapping[str, Published]
    dataset: str  # whose results are comparable
    seeds: int
    budget: str  # of the immunization
    measure: str  # of the published numbers


_LINEAR = "κ with a floor of 1e-6 under the eigenvalues (ridge), θ as trained, whose scale moves (i) and (ii)"
_DIGITS = Protocol(
    "Table 2, MNIST, linear extractor",
    TABLE_2,
    "mnist",
    3,
    "30 epochs, in the release of batches of 64",
    _LINEAR,
)

#: By the word after `condnum run`.
PROTOCOLS = {
    "house-prices": Protocol(
        "Table 1, house prices, linear extractor",
        TABLE_1,
        "house-prices",
        5,
        "100 epochs in Sec. 5.1, 1000 in Table 4, 10 in the release, which takes batches of 64",
        _LINEAR,
    ),
    "mnist": _DIGITS,
    "digits": _DIGITS,
    "deep": Protocol(
        "Table 3",
        {},  # stands in the run's summary, by backbone
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


class NumberVerdict(NamedTuple):
    """What a comparison says, and why."""

    kind: VerdictKind
    text: str  # "higher ×26"
    reason: str  # the tolerance


class ClaimCheck(NamedTuple):
    """One statement of a published table."""

    text: str  # HTML
    answers: Mapping[str, str]  # by convention: what the run says
    standing: Standing
    stability: str  # in how many settings it stands, and where it flips


class Score(NamedTuple):
    """One number: published, obtained, and what that says."""

    published: str
    obtained: str
    verdict: NumberVerdict | None  # None: of other data, there is nothing to compare


class Line(NamedTuple):
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
    run: ExperimentResult
    data: str  # what was run on
    comparable: bool  # whether these are the paper's data
    columns: Mapping[str, str]  # HTML by column
    published: Mapping[str, Published]
    summary: pd.DataFrame  # a row per method, in the measure of the published numbers
    results: pd.DataFrame | None

    @property
    def paper(self) -> Protocol:
        """What the paper did."""
        return PROTOCOLS[self.run.study]

    @cached_property
    def lines(self) -> list[Line]:
        """The methods, ours first."""
        rows, steps, linear = self.summary.set_index("method"), {}, self.run.study != "deep"
        if self.results is not None and "steps" in self.results:
            steps = self.results.groupby("method")["steps"].max().to_dict()
        found = []
        for name, paper in reversed(list(self.published.items())):
            if name not in rows.index:
                continue
            scores = {}
            for column in self.columns:
                mean, deviation = (float(rows.at[name, f"{column}_{kind}"]) for kind in ("mean", "std"))
                known = getattr(paper, column), getattr(paper, f"{column}_std")
                verdict = compare_published(*known, mean) if self.comparable else None
                scores[column] = Score(spread(*known, 4), spread(mean, deviation), verdict)
            budget = []
            if name in steps:
                budget.append(f"{int(steps[name]):,} {'full-batch steps' if linear else 'steps'}")
                if self.comparable and linear and name in _CHOICES:
                    budget.append(_CHOICES[name])
            found.append(Line(net_label(name), scores, "; ".join(budget)))
        return found

    @cached_property
    def claims(self) -> list[ClaimCheck]:
        """What the published table says of the methods; empty where the run cannot be judged anew."""
        if self.results is None:
            return []
        backbone = str(self.results["backbone"].iloc[0]) if "backbone" in self.results else ""
        try:
            return check_claims(RunFolder.read(self.run.folder or ""), self.published, backbone)
        except CondnumError:
            return []

    @property
    def differs(self) -> str:
        """In what the run as a whole is not the paper's, in one line; "" if in nothing."""
        seeds = int(self.summary["seeds"].max())
        pairs = int(self.summary["pairs"].iloc[0]) if "pairs" in self.summary else PAIRS
        rows = self.run.parameters.get("rows")
        said = {
            "other data than the paper's: the numbers cannot be compared, the order of the methods can": (
                not self.comparable
            ),
            "the 10 000 test images, where the paper takes the 60 000 training images": (
                self.comparable and "test images" in self.data
            ),
            f"{pairs} of the {PAIRS} ordered pairs of digits": pairs != PAIRS,
            f"{seeds} seed{'s'[: seeds != 1]} instead of {self.paper.seeds}": seeds != self.paper.seeds,
            f"the first {rows} rows of each task": rows,
            "an older result than was asked for": self.run.older,
        }
        return "; ".join(text for text, applies in said.items() if applies)


def scoreboard(results: Sequence[ExperimentResult]) -> list[Section]:
    """Set every published table beside the runs that belong to it, those on the paper's data first."""
    sections = list[Section]()
    for run in results:
        summary = run.table("summary") if run.study in PROTOCOLS else None
        if summary is None:
            continue
        if run.study == "deep":
            sections += _nets(run, in_percent(summary))
            continue
        # The published numbers are in the ridge convention, θ as trained.
        rows = summary[(summary["convention"] == "ridge") & (summary["theta_scale"] == "as_trained")]
        paper, dataset = PROTOCOLS[run.study], str(summary["dataset"].iloc[0])
        data, table = ", ".join(run.provenance.get("data", {})) or dataset, paper.title.split(", ")[0]
        key = table.lower().replace(" ", "-")
        if key in (section.key for section in sections):
            key += f"-{run.name}"
        short, same, cells = f"{table}: {data}", dataset == paper.dataset, run.table("results")
        sections.append(
            Section(key, paper.title, short, run, data, same, RATIO_TITLES, paper.published, rows, cells)
        )
    return sorted(sections, key=lambda section: (not section.comparable, section.title[: len("Table 1")]))


def _nets(run: ExperimentResult, summary: pd.DataFrame) -> list[Section]:
    """Compare Table 3: a section per backbone."""
    sections = list[Section]()
    cells = run.table("results")
    columns = NET_RATIOS | {"accuracy": "D<sub>P</sub> test acc. (%)"}
    fields = [f"published_{name}" for name in Published._fields]
    for backbone, rows in summary[summary["convention"] == "compact"].groupby("backbone", sort=False):
        known = rows[rows["published_rir"].notna() & (rows["method"] != "initial")].iloc[::-1]
        published = {
            str(name): Published(*row) for name, *row in known.set_index("method")[fields].itertuples()
        }
        data = f"{rows['pretrain_data'].iloc[0]} against {rows['harmful_data'].iloc[0]}"
        net = "ViT" if "vit" in str(backbone).lower() else "ResNet18"
        title = f"Table 3, {backbone} beside the published {net}"
        key, same = f"table-3-{run.name}-{len(sections) + 1}", bool(rows["published_same"].all())
        mine = None if cells is None else cells[cells["backbone"] == backbone]
        sections.append(
            Section(key, title, f"Table 3: {backbone}", run, data, same, columns, published, rows, mine)
        )
    return sections


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


def compare_published(published: float, deviation: float, obtained: float) -> NumberVerdict:
    """Compare an obtained mean with a published one.

    Examples:
        >>> compare_published(356.2, 5.491, 9172.0).text, compare_published(356.2, 5.491, 300.0).text
        ('higher ×25.7', 'agrees')
        >>> compare_published(92.58, 4.492, 30.0)
        NumberVerdict(kind='lower', text='lower ×3.09', reason='beyond ± 18.52')
        >>> compare_published(1.0, 0.1, float("inf")).kind
        'not finite'
    """
    if not math.isfinite(obtained):
        return NumberVerdict("not finite", "not finite", "the obtained mean is not a finite number")
    allowed = max(SHARE * abs(published), 0.0 if math.isnan(deviation) else DEVIATIONS * deviation)
    if abs(obtained - published) <= allowed:
        return NumberVerdict("agrees", "agrees", f"within ± {number(allowed)}")
    small, large = sorted((published, obtained))
    factor = number(float(f"{large / small:.3g}")) if small > 0 else "∞"
    kind: VerdictKind = "higher" if obtained > published else "lower"
    return NumberVerdict(kind, f"{kind} ×{factor}", f"beyond ± {number(allowed)}")


def check_claims(run: RunFolder, published: Mapping[str, Published], backbone: str = "") -> list[ClaimCheck]:
    """Check the order of the methods and Definition 3.1 as a published table has them.

    A claim is judged in every setting for which the run holds enough; the counts are of the settings that
    differ from the run's own in convention and seed alone, with θ at unit scale.
    """
    table, _ = run_verdicts(run)
    table = table[table["cell"] == backbone] if backbone else table
    default, checked = default_setting(table, run.kind), list[ClaimCheck]()
    for claim in published_claims(published, table["method"].unique()):
        stability = claim_stability(table, claim, default)
        if stability is None:
            continue
        settings = stability.verdicts
        usual = {axis: FIXED[axis] for axis in ("rtol", "epsilon", "scale", "images", "draw")}
        own = settings[(settings[list(usual)] == list(usual.values())).all(axis=1)]
        counts = own.groupby("convention", sort=False)[["agree", "cells"]].sum()
        shares = counts["agree"] / counts["cells"]
        standing: Standing = "does not hold" if (shares <= 0.5).all() else "in part"
        if (shares == 1).all():
            standing = "holds"
        what = "seed" if claim.kind == "largest" else "cell"
        said = {
            str(at): f"{agree} of {cells} {what}{'s'[: cells != 1]}"
            for at, agree, cells in counts.itertuples()
        }
        row = published[claim.method]
        text = claim.text.replace(claim.method, net_label(claim.method), 1)
        if claim.kind == "meets":
            text += f" (published (i) = {number(row.harmful_ratio)}, (ii) = {number(row.pretrain_ratio)})"
        checked.append(ClaimCheck(text, said, standing, stability.sentence))
    return checked
