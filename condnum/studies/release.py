"""The reproduction audit: from the release's protocol to the corrected one, a switch at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError, check_integer
from condnum.studies.cells import Cell, CellResult
from condnum.studies.measure import cell_spectra, result_row
from condnum.studies.release_cells import AuditData, ProtocolSwitches, compute_cell
from condnum.studies.study import Count, Result, Study
from condnum.theory.immunization import immunization_from_spectra
from condnum.theory.spectra import Convention

#: Other values of the ε of the regularised solve that are shown beside the release's.
OTHER_RIDGES = (1e-6, 1e-2, 0.1)

#: Without a waterfall: epochs of the release on the house prices, those of the paper's Table 4.
LONG_EPOCHS = (1000,)

#: The floor of the release as a ridge ε = 1e-6, and the non-zero spectrum.
CONVENTIONS: tuple[Convention, ...] = ("ridge", "compact")

Kind = Literal["cumulative", "alone", "released", "ridge"]


@dataclass(frozen=True)
class Stage:
    """One setting of the switches in the study."""

    path: Kind  # in one waterfall; alone; the release at other epochs; with another ε of its solve
    start: int  # epochs of the release that it is compared with
    index: int  # place on its path, 0 for the release
    switch: str  # the switch that was turned last; "released" at the start; the ε
    switches: ProtocolSwitches
    ridge: float | None = None  # ε of the solve on the output side; None: the release's


def read_numbers(name: str, value: Any) -> tuple[int, ...]:
    """Read whole numbers from a text such as `10,100`, or take them as they are; a 0 alone is none."""
    try:
        given = [int(word) for word in value.split(",") if word.strip()] if isinstance(value, str) else value
    except ValueError:
        raise InvalidInputError(
            f"{name}='{value}' is no list of whole numbers; write it as 10 or 10,100."
        ) from None
    if tuple(given) != (0,):
        given = [check_integer(name, number, 1) for number in given]
    return tuple(dict.fromkeys(given))


Numbers: TypeAlias = Annotated[tuple[int, ...], read_numbers]


@dataclass(frozen=True)
class ReproductionAudit(Study, name="reproduction-audit", version="2"):
    """The authors' release turned into the corrected protocol, one choice at a time."""

    data: str = "house-prices"  # house-prices, embedded (diabetes), mnist:P-H or digits:P-H
    source: str = "auto"  # auto or a path
    seeds: Count = 5  # seeds 0 … seeds − 1
    epochs: Numbers = ()  # of the release, where a waterfall starts; empty: the data set's own
    ends: Numbers | None = None  # of the release alone; None: 1000 for house prices; 0 for none

    def check(self) -> None:
        """Fill in what belongs to the data."""
        table, house = self.tasks.pair is None, self.tasks.name == "house-prices"
        starts = ((10, 100) if table else (1,)) if self.epochs in ((), (0,)) else self.epochs
        ends = (LONG_EPOCHS if house else ()) if self.ends is None else self.ends
        object.__setattr__(self, "epochs", starts)
        object.__setattr__(self, "ends", () if ends == (0,) else ends)

    @property
    def tasks(self) -> AuditData:
        """Which data, and what is known of them before they are loaded."""
        return AuditData.parse(self.data, self.source)

    def load(self) -> TaskPair | Digits:
        """Load the data as the corrected protocol has them."""
        return self.tasks.load()

    def released(self, epochs: int) -> ProtocolSwitches:
        """Return the release's setting; switches that mean nothing on these data stand where they end."""
        switches = ProtocolSwitches(epochs=epochs)
        for name in set(asdict(switches)) - set(self.tasks.switches):
            switches = switches.turn(name)
        return switches

    def stages(self) -> Iterator[Stage]:
        """Yield every setting of the study; the same one may occur under several names."""
        for start in self.epochs:
            switches = released = self.released(start)
            yield Stage("cumulative", start, 0, "released", switches)
            for index, name in enumerate(self.tasks.switches, start=1):
                switches = switches.turn(name)
                yield Stage("cumulative", start, index, name, switches)
            for index, name in enumerate(self.tasks.switches, start=1):
                yield Stage("alone", start, index, name, released.turn(name))
            for index, ridge in enumerate(OTHER_RIDGES):
                yield Stage("ridge", start, index, f"ε = {ridge:g}", released, ridge)
        for epochs in self.ends or ():
            yield Stage("released", epochs, 0, "released", self.released(epochs))

    def cells(self, data: TaskPair | Digits) -> list[Cell]:
        """List every stage, seed by seed; a setting is one cell, whatever it is called."""
        tasks, cells = self.tasks, []
        for seed in range(self.seeds):
            for stage in self.stages():
                turned = [name for name in stage.switches.turned() if name in tasks.switches]
                names = {0: "released", 1: "".join(turned), len(tasks.switches): "corrected"}
                called = names.get(len(turned), f"{len(turned)} of {len(tasks.switches)} switches")
                ridges = tasks.ridges if stage.ridge is None else (stage.ridge, stage.ridge)
                if stage.switches.preconditioner_side == "input":
                    ridges = (0.0, 0.0)  # there is no such solve
                at = {"method": called, "data": tasks.label, "switches": asdict(stage.switches)}
                settings = asdict(tasks.settings(stage.switches, data))
                cells.append(Cell({**at, "ridges": ridges, "seed": seed}, settings))
        return cells

    def compute(self, data: TaskPair | Digits, cell: Cell) -> CellResult:
        """Train one extractor and keep its spectra."""
        return compute_cell(self.tasks, data, cell)

    def order(self, cell: Cell) -> int:
        """Put long cells first, so that no worker waits at the end."""
        return -int(cell.settings["steps"])

    def tables(self, data: TaskPair | Digits, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return a row per stage × seed × convention, the waterfalls, and the end beside the report."""
        found = {cell: CellResult(row, arrays) for cell, row, arrays in results}
        stages = [(stage, seed) for seed in range(self.seeds) for stage in self.stages()]
        cells = [
            (stage, seed, found[cell])
            for (stage, seed), cell in zip(stages, self.planned(data), strict=True)
            if cell in found
        ]
        table = results_table(data.name, cells)
        waterfall = waterfall_table(table)
        landing = landing_table(waterfall, table, REPORTED if data.name == "house-prices" else {})
        return {"results": table, "waterfall": waterfall, "landing": landing}

    def title(self, data: TaskPair | Digits) -> str:
        """Return the data set in one line, for figures."""
        if isinstance(data, TaskPair):
            return data.title()
        pretrain, harmful = self.tasks.pair or (0, 0)
        return (
            f"{data.label}, digit {pretrain} (D_P) and {harmful} (D_H): "
            f"{data.smaller_count(pretrain, harmful)} images each, SHA-256 {data.checksum[:8]}"
        )

    def facts(self, data: TaskPair | Digits) -> dict[str, str]:
        """Return what the run was made of."""
        described = self.tasks.registered.describe(["well", "ill", "supervised"])
        return super().facts(data) | {"corrected protocol": described}


#: RIR of the release on house prices as it is reported, by epochs: least and largest.
REPORTED: dict[int, tuple[float, float]] = {10: (1.6, 2.2), 100: (80.0, 115.0), 1000: (2000.0, 2800.0)}


#: What a cell tells beside its spectra.
_KEPT = ("rows_pretrain", "rows_harmful", "ridge_well", "ridge_ill", "updates", "seconds", "stop_reason")


def results_table(dataset: str, cells: Iterable[tuple[Stage, int, CellResult]]) -> pd.DataFrame:
    """Measure every cell in both conventions, θ as trained, on the tasks of its own setting."""
    rows: list[dict[str, Any]] = []
    for stage, seed, (row, arrays) in cells:
        place = {
            "dataset": dataset,
            "path": stage.path,
            "start_epochs": stage.start,
            "index": stage.index,
            "switch": stage.switch,
            "seed": seed,
        }
        for convention in CONVENTIONS:
            spectra = cell_spectra(row, arrays)
            measured = immunization_from_spectra(spectra, convention=convention, gauge="as_trained")
            rows.append(result_row(measured, np.nan, place) | {name: row[name] for name in _KEPT})
    return pd.DataFrame(rows).drop(columns=["gauge", "rir_ceiling", "rir_share", "loss_gap"])


def waterfall_table(results: pd.DataFrame) -> pd.DataFrame:
    r"""Average :math:`\log_{10}` RIR over seeds, with each stage's change.

    The change of a stage on the cumulative path is against the stage before, elsewhere against the
    release at the same epochs, seed by seed: every setting of a seed starts from the same θ₀.
    """
    logs = {
        key: np.log10(part.set_index("seed")["rir"])
        for key, part in results.groupby(["path", "start_epochs", "index", "convention"], sort=False)
    }
    rows = []
    keys = ["path", "start_epochs", "index", "switch", "convention"]
    for place, part in results.groupby(keys, sort=False):
        path, start, index, _, convention = place
        own = logs[path, start, index, convention]
        before = logs.get(("cumulative", start, index - 1 if path == "cumulative" else 0, convention))
        change = pd.Series(dtype=np.float64) if before is None else (own - before).dropna()
        rows.append(
            {
                "dataset": part["dataset"].iloc[0],
                **dict(zip(keys, place, strict=True)),
                "seeds": len(part),
                "rir": 10 ** own.mean(),
                "rir_min": part["rir"].min(),
                "rir_max": part["rir"].max(),
                "log10_rir": own.mean(),
                "log10_rir_std": own.std(ddof=1),
                "change": change.mean(),
                "change_std": change.std(ddof=1),
                "factor": 10 ** change.mean(),
                "immunized": int(part["success"].sum()),
                "updates": int(part["updates"].max()),
            }
        )
    return pd.DataFrame(rows)


def landing_table(
    waterfall: pd.DataFrame, results: pd.DataFrame, reported: Mapping[int, tuple[float, float]]
) -> pd.DataFrame:
    """Hold the release's end against what it is reported to print, in the floor convention."""
    ends = waterfall.query(
        "switch == 'released' and path in ['cumulative', 'released'] and convention == 'ridge'"
    )
    floor = results[(results["convention"] == "ridge") & (results["index"] == 0)]
    rows = []
    for end in ends.sort_values("start_epochs").drop_duplicates("start_epochs").to_dict("records"):
        epochs = end["start_epochs"]
        own = floor[(floor["path"] == end["path"]) & (floor["start_epochs"] == epochs)]["rir"]
        low, high = reported.get(int(epochs), (np.nan, np.nan))
        rows.append(
            {
                "epochs": epochs,
                "updates": end["updates"],
                "seeds": len(own),
                "rir_mean": own.mean(),
                "rir_min": own.min(),
                "rir_max": own.max(),
                "reported_min": low,
                "reported_max": high,
                "inside": int(own.between(low, high).sum()),
                "miss": own.mean() / float(np.clip(own.mean(), low, high)),
            }
        )
    return pd.DataFrame(rows)


# What each switch does in the release, what the corrected protocol does, and why it matters.


class SwitchText(NamedTuple):
    """One switch in words."""

    title: str
    released: str  # what the release does
    corrected: str  # what the corrected protocol does
    why: str  # why it can matter


#: By switch. House prices, MNIST and the embedded tables each use those that they have.
TEXTS: dict[str, SwitchText] = {
    "encoders": SwitchText(
        "label encoders",
        "one for each domain",
        "one for the union of both domains",
        "with two encoders one code can mean two categories, so the two K are not of the same features",
    ),
    "normalise": SwitchText(
        "standardisation",
        "before the rows are cut: mean and deviation of rows that are then left out",
        "mean and deviation of the rows that are used",
        "K is uncentred: a mean that is not removed adds a large direction of its own",
    ),
    "rows": SwitchText(
        "rows",
        "the first 200 of each task (the next 100 are its validation set)",
        "all rows of both tasks",
        "κ of some rows is that of a sample, not of the task",
    ),
    "labels": SwitchText(
        "labels of the loss",
        "the images of digit p alone, all with label 0",
        "digit p against as many images of the other digits",
        "a loss with one class has nothing to tell apart",
    ),
    "bias": SwitchText(
        "bias of the extractor",
        "the extractor has one, and its RIR counts it",
        "none, f(x) = xᵀθ as in the paper",
        "with a bias b the Gram matrix of the features is not θᵀKθ, and theorems about θᵀKθ do not apply",
    ),
    "preconditioner_side": SwitchText(
        "side of K⁻¹",
        "the output side of the weight's gradient, by a regularised solve",
        "the input side, where it cancels: K⁻¹∇<sub>θ</sub>R = 2θ∇<sub>H</sub> R",
        "Algorithm 1 has it on the input side; the other product exists only because in = out",
    ),
    "regularizer_dimension": SwitchText(
        "p and k of the regularizers",
        "the side of the image",
        "dimension and rank of H",
        "they weigh σ₁² and σ<sub>k</sub>² against ‖H‖²<sub>F</sub>",
    ),
    "kappa_floor": SwitchText(
        "smallest eigenvalue",
        "an absolute floor of 1e-6, k = D",
        "the smallest non-zero one, k = rank(H)",
        "at the floor R<sub>ill</sub> has no smallest eigenvector to push down: it only scales H up",
    ),
    "covariance": SwitchText(
        "covariance",
        "that of a mini-batch of 64 rows: rank ≤ 64",
        "that of all rows",
        "the spectrum of 64 rows is not the task's: it has other null directions in every step",
    ),
    "weights": SwitchText(
        "weights λ",
        "fixed numbers, loss weight 1",
        "balanced by the gradients' norms at step 0, with the registered ratio and loss weight",
        "fixed weights belong to one scale of K, that is to one number of rows",
    ),
    "step_size": SwitchText(
        "step size",
        "constant",
        "the registered one, with cosine decay",
        "Adam with a constant step does not settle",
    ),
    "epochs": SwitchText(
        "number of updates",
        "a fixed number of epochs",
        "the registered number of full-batch steps",
        "RIR goes on growing: a number says as much about the budget as about the method",
    ),
}

#: The authors' release, whose source the details below were read from.
RELEASE = (
    "https://github.com/amberyzheng/model-immunization-cond-num/tree/dc536a850c726e8b0647593f35871ee62dcd5187"
)

#: What else the rebuilt loop has in common with the release, and where it differs: the switch that a detail
#: belongs to ("" for all data), what, and how.
DETAILS: tuple[tuple[str, str, str], ...] = (
    (
        "normalise",
        "standardisation",
        "inputs and targets of each domain by its own mean and deviation over all its rows, as in the "
        "release; its deviation divides by N − 1 and it stores 32-bit numbers, here N and 64 bits",
    ),
    (
        "",
        "ε of the regularised solve (K + εI)⁻¹",
        "as in the release, in units of the mini-batch's XᵀX: 1 for R<sub>well</sub>; for R<sub>ill</sub> 1 "
        "on tables, 1e-7 on digits",
    ),
    (
        "",
        "what is preconditioned",
        "as in the release: the weight's gradient of each regularizer, with its own mini-batch; not its "
        "bias, not the loss",
    ),
    (
        "",
        "mini-batches",
        "as in the release: 64 rows, row i of one task with row i of the other, shuffled together each "
        "epoch, the last, smaller batch dropped. With all rows the tasks are of different lengths, which "
        "the release has for images only: there the shorter one repeats its batches",
    ),
    (
        "",
        "where RIR is measured",
        "as in the release: on the training rows of both tasks, features with their bias, raw inputs without",
    ),
    (
        "",
        "k of R<sub>ill</sub> at the floor",
        "D: the release takes the smallest eigenvalue of S + 1e-6·I above 1e-6, which round-off decides; "
        "here it is the floor itself, and its eigenvector's part of the gradient, as small, is left out",
    ),
    ("", "random numbers", "the release's distributions, but not its stream: seed 1 here is not its seed 1"),
)
