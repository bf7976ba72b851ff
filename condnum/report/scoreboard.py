"""The scoreboard: published and obtained numbers side by side, a verdict each."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from condnum.report.deep import NET_RATIOS, in_percent, net_label
from condnum.report.experiments import ExperimentResult
from condnum.report.tables import RATIO_TITLES, number, spread, times
from condnum.studies.measure import TABLE_1, TABLE_2, Published

VerdictKind = Literal["agrees", "higher", "lower", "not finite"]

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


class Score(NamedTuple):
    """One number: published, obtained, and what that says."""

    published: str
    obtained: str
    verdict: NumberVerdict | None  # None: of other data, there is nothing to compare


@dataclass(frozen=True)
class Section:
    """One published table against one run, of deep nets against one backbone of it."""

    run: ExperimentResult
    results: pd.DataFrame  # of the cells
    summary: pd.DataFrame  # a row per method, in the measure of the published numbers
    data: str  # what was run on
    comparable: bool  # whether these are the paper's data
    backbone: str = ""

    @property
    def paper(self) -> Protocol:
        """What the paper did."""
        return PROTOCOLS[self.run.experiment.run]

    @property
    def published(self) -> dict[str, Published]:
        """The rows of the published table by method; those of nets stand in the summary."""
        if not self.backbone:
            return TABLE_1 if self.paper.title == "Table 1" else TABLE_2
        rows = self.summary[(self.summary["method"] != "initial") & self.summary["published_rir"].notna()]
        columns = [f"published_{name}" for name in Published._fields]
        rows = rows.set_index("method").reindex(columns=columns)
        return {str(name): Published(*row) for name, *row in rows.itertuples()}

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
        rows, steps, cells = self.summary.set_index("method"), {}, self.results
        if "steps" in cells:
            steps = cells.groupby("method")["steps"].max().to_dict()
        found = []
        for name, paper in sorted(self.published.items(), key=lambda item: -item[1].rir):
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
        if run.experiment.run not in PROTOCOLS:
            continue
        summary, finished = run.table("summary"), run.table("results")
        if summary is None or finished is None:
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
    """Say how many published numbers agree."""
    compared = [one for one in sections if one.comparable]
    scores = (score for one in compared for _, line, _ in one.lines for score in line)
    kinds = Counter[str](score.verdict.kind for score in scores if score.verdict)
    if not kinds:
        return ""
    numbers = ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common())
    return f"Of {kinds.total()} published numbers (RIR and its parts), {numbers}."


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
