"""The scoreboard: published and obtained numbers side by side, a verdict each, and claims to check."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import pandas as pd

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.report.deep import NET_RATIOS, in_percent, net_label
from condnum.report.experiments import ExperimentResult
from condnum.report.tables import RATIO_TITLES, number, spread, times
from condnum.studies.run_verdicts import RunFolder, run_verdicts
from condnum.studies.stability import claim_stability, default_setting, published_claims

VerdictKind = Literal["agrees", "higher", "lower", "not finite"]
Standing = Literal["holds", "in part", "does not hold"]

#: Standard deviations of the published number that count as agreement.
DEVIATIONS = 2.0

#: Fraction of the published number that counts as agreement in any case: published deviations over 3 or 5
#: seeds say nothing about another implementation.
FRACTION = 0.2

#: How a number is judged, as the page states it.
AGREEMENT = (
    f"An obtained mean agrees if it lies within the larger of {DEVIATIONS:g} published standard deviations "
    f"and {100 * FRACTION:g} % of the published mean; otherwise "
    "it is “higher ×k” or “lower ×k”, where k is their ratio."
)

#: Ordered pairs of two different digits.
PAIRS = 90


class Protocol(NamedTuple):
    """What the paper did, for one kind of run."""

    title: str  # of its table
    dataset: str  # whose results are comparable
    seeds: int
    budget: str  # of the immunization
    measure: str  # of the published numbers

    @property
    def steps(self) -> str:
        """The budget in a few words."""
        return re.split(r"[,;]| in | over ", self.budget)[0]


_LINEAR = "κ with a floor of 1e-6 under the eigenvalues (ridge), θ as trained, whose scale moves (i) and (ii)"
_DIGITS = Protocol("Table 2", "mnist", 3, "30 epochs; the release uses batches of 64", _LINEAR)

#: By the word after `condnum run`.
PROTOCOLS = {
    "house-prices": Protocol(
        "Table 1",
        "house-prices",
        5,
        "100 epochs in Sec. 5.1, 1,000 in Table 4, 10 in the release, which uses batches of 64",
        _LINEAR,
    ),
    "mnist": _DIGITS,
    "digits": _DIGITS,
    "deep": Protocol(
        "Table 3",
        "imagenet",
        3,
        "2 or 3 epochs over ImageNet",
        "κ over groups of 100 images, convention not stated; compact here",
    ),
}


class NumberVerdict(NamedTuple):
    """What a comparison says, and why."""

    kind: VerdictKind
    text: str  # "higher ×26"
    reason: str  # the tolerance


class ClaimCheck(NamedTuple):
    """One statement of a published table."""

    text: str  # HTML
    stability: str  # in how many settings it stands, and where it flips
    standing: Standing


class Score(NamedTuple):
    """One number: published, obtained, and what that says."""

    published: str
    obtained: str
    verdict: NumberVerdict | None  # None: of other data, there is nothing to compare


@dataclass(frozen=True)
class Section:
    """One published table against one run, of deep nets against one backbone of it."""

    run: ExperimentResult
    finished: RunFolder
    summary: pd.DataFrame  # a row per method, in the measure of the published numbers
    data: str  # what was run on
    comparable: bool  # whether these are the paper's data
    backbone: str = ""

    @property
    def paper(self) -> Protocol:
        """What the paper did."""
        return PROTOCOLS[self.run.experiment.run]

    @property
    def title(self) -> str:
        """The published table, and what stands beside it."""
        return f"{self.paper.title}: {self.backbone or self.data}"

    @property
    def columns(self) -> Mapping[str, str]:
        """Headings, as HTML, by column; the first one is what the table is about."""
        titles = NET_RATIOS | {"accuracy": "D<sub>P</sub> test acc. (%)"} if self.backbone else RATIO_TITLES
        return {"rir": titles["rir"], **titles}

    @property
    def lines(self) -> list[tuple[str, list[Score], str]]:
        """Label, scores in the order of the columns, and steps of methods and of probes over raw inputs."""
        rows, steps, cells = self.summary.set_index("method"), {}, self.finished.results
        if "steps" in cells:
            steps = cells.groupby("method")["steps"].max().to_dict()
        found = []
        published = self.finished.published(self.backbone)
        for name, paper in sorted(published.items(), key=lambda item: -item[1].rir):
            if name not in rows.index:
                continue
            scores = []
            for column in self.columns:
                mean, deviation = (float(rows.at[name, f"{column}_{kind}"]) for kind in ("mean", "std"))
                known = getattr(paper, column), getattr(paper, f"{column}_std")
                verdict = compare_published(*known, mean) if self.comparable else None
                scores.append(Score(spread(*known, 4), spread(mean, deviation), verdict))
            said = [f"{int(steps[name]):,}"] if name in steps else []
            slowdowns = rows.filter(like="_slowdown").loc[name].dropna()  # of runs that measured them
            said += [f"{of.split('_')[0]} probe {times(value)}" for of, value in slowdowns.items()]
            found.append((net_label(name), scores, "; ".join(said)))
        return found

    @cached_property
    def claims(self) -> list[ClaimCheck]:
        """What the published table says of the methods."""
        return check_claims(self.finished, self.backbone)

    @property
    def differs(self) -> str:
        """In what the run as a whole is not the paper's, in one line; "" if in nothing."""
        said = differences(self.paper, self.summary, self.data, self.comparable)
        said += ["an older result than requested"] * self.run.older
        return "; ".join(said + ["a committed result, not of this run"] * (self.run.status == "committed"))


def differences(paper: Protocol, summary: pd.DataFrame, data: str, comparable: bool) -> list[str]:
    """Say in what data, pairs and seeds of a run are not the paper's."""
    seeds = int(summary["seeds"].max())
    pairs = int(summary["pairs"].iloc[0]) if "pairs" in summary else PAIRS
    said = {
        "data differ from the paper's: compare the order of the methods, not the numbers": not comparable,
        "the 10,000 test images; the paper uses the 60,000 training images": (
            comparable and "test images" in data
        ),
        f"{pairs} of the {PAIRS} ordered pairs of digits": pairs != PAIRS,
        f"seeds: {seeds} instead of {paper.seeds}": seeds != paper.seeds,
    }
    return [text for text, applies in said.items() if applies]


def scoreboard(results: Sequence[ExperimentResult]) -> list[Section]:
    """Set every published table beside the runs that belong to it, those on the paper's data first."""
    sections = list[Section]()
    for run in results:
        summary = run.table("summary") if run.experiment.run in PROTOCOLS else None
        if summary is None:
            continue
        try:
            finished = RunFolder.read(run.folder or "")
        except (DataNotFoundError, InvalidInputError):
            continue
        if run.experiment.run == "deep":
            compact = in_percent(summary[summary["convention"] == "compact"])
            for backbone, rows in compact.groupby("backbone", sort=False):
                data = f"{rows['pretrain_data'].iloc[0]} against {rows['harmful_data'].iloc[0]}"
                same = bool(rows["published_same"].all())
                sections.append(Section(run, finished, rows, data, same, str(backbone)))
            continue
        # The published numbers are in the ridge convention, θ as trained.
        rows = summary[(summary["convention"] == "ridge") & (summary["theta_scale"] == "as_trained")]
        dataset = str(summary["dataset"].iloc[0])
        data = ", ".join(run.provenance.get("data", {})) or dataset
        sections.append(Section(run, finished, rows, data, dataset == PROTOCOLS[run.experiment.run].dataset))
    return sorted(sections, key=lambda section: (not section.comparable, section.paper.title))


def tally(sections: Iterable[Section]) -> str:
    """Say how many published numbers agree, and how many claims hold."""
    compared = [one for one in sections if one.comparable]
    scores = (score for one in compared for _, line, _ in one.lines for score in line)
    kinds = Counter[str](score.verdict.kind for score in scores if score.verdict)
    standings = Counter[str](claim.standing for one in compared for claim in one.claims)
    if not kinds:
        return ""
    numbers = ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common())
    claims = ", ".join(f"{standing}: {count}" for standing, count in standings.most_common())
    return (
        f"Of {kinds.total()} published numbers (RIR and its parts), {numbers}. "
        f"Of {standings.total()} claims about the methods, {claims}."
    )


def compare_published(published: float, deviation: float, obtained: float) -> NumberVerdict:
    """Compare an obtained mean with a published one."""
    if not math.isfinite(obtained):
        return NumberVerdict("not finite", "not finite", "the obtained mean is not a finite number")
    allowed = max(FRACTION * abs(published), 0.0 if math.isnan(deviation) else DEVIATIONS * deviation)
    if abs(obtained - published) <= allowed:
        return NumberVerdict("agrees", "agrees", f"within ± {number(allowed)}")
    small, large = sorted((published, obtained))
    factor = number(float(f"{large / small:.3g}")) if small > 0 else "∞"
    kind: VerdictKind = "higher" if obtained > published else "lower"
    return NumberVerdict(kind, f"{kind} ×{factor}", f"beyond ± {number(allowed)}")


def check_claims(run: RunFolder, backbone: str = "") -> list[ClaimCheck]:
    """Check the order of the methods and Definition 3.1 as the published table has them."""
    table, _ = run_verdicts(run)
    table = table[table["cell"] == backbone] if backbone else table
    published, default = run.published(backbone), default_setting(table, run.kind)
    checked = list[ClaimCheck]()
    for claim in published_claims(published, table["method"].unique()):
        stability = claim_stability(table, claim, default)
        if stability is None:
            continue
        standing: Standing = "does not hold"
        if stability.default["stands"]:
            standing = "holds" if stability.flip is None else "in part"
        row, text = published[claim.method], claim.text.replace(claim.method, net_label(claim.method), 1)
        if claim.kind == "meets":
            text += f" (published (i) = {number(row.harmful_ratio)}, (ii) = {number(row.pretrain_ratio)})"
        checked.append(ClaimCheck(text, stability.sentence, standing))
    return checked
