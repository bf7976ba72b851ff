"""The reproduction audit: from the release's protocol to the corrected one, a switch at a time."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError
from condnum.files import write_tables
from condnum.studies.cell import CellPlan, CellResult
from condnum.studies.executors import choose_executor, core_count
from condnum.studies.release_cells import SPECTRA, AuditData, ProtocolSwitches, compute_cell
from condnum.studies.store import ResultStore
from condnum.studies.sweep import SweepProgress, SweepReport, run_sweep
from condnum.theory.immunization import HessianSpectra, immunization_from_spectra
from condnum.theory.spectra import Convention

# What the reproduction audit runs: data, seeds, where the waterfalls start; and its stages.


#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "2"

#: Other values of the ε of the regularised solve that are shown beside the release's.
OTHER_RIDGES = (1e-6, 1e-2, 0.1)

#: Without a waterfall: epochs of the release on the house prices, those of the paper's Table 4.
LONG_EPOCHS = (1000,)

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


@dataclass(frozen=True)
class AuditConfig:
    """What to run."""

    data: AuditData
    seeds: int = 5  # seeds 0 … seeds − 1
    epochs: tuple[int, ...] = ()  # of the release, where a waterfall starts; empty: the data set's own
    ends: tuple[int, ...] = ()  # of the release alone

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        for name, values in (("seeds", (self.seeds,)), ("epochs", self.epochs), ("ends", self.ends)):
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise InvalidInputError(f"{name} must be an integer of at least 1, got {value!r}.")
        if not self.epochs:
            object.__setattr__(self, "epochs", self.data.default_epochs)

    @classmethod
    def from_parameters(cls, *, data: str, source: str, seeds: int, epochs: str, ends: str) -> AuditConfig:
        """Build a configuration from notebook parameters.

        Examples:
            >>> config = AuditConfig.from_parameters(
            ...     data="embedded", source="auto", seeds=2, epochs="", ends="")
            >>> config.epochs, config.ends
            ((10, 100), ())
        """
        chosen = AuditData.parse(data, source)
        starts, last = _numbers("epochs", epochs), _numbers("ends", ends)
        if not ends.strip() and chosen.name == "house-prices":
            last = LONG_EPOCHS
        return cls(chosen, seeds, starts, () if last == (0,) else last)

    def released(self, epochs: int) -> ProtocolSwitches:
        """Return the release's setting; switches that mean nothing on these data stand where they end."""
        switches = ProtocolSwitches.preset("released", epochs=epochs)
        for name in set(switches.as_payload()) - set(self.data.switches):
            switches = switches.turn(name)
        return switches

    def stages(self) -> Iterator[Stage]:
        """Yield every setting of the study; the same one may occur under several names."""
        for start in self.epochs:
            switches = self.released(start)
            yield Stage("cumulative", start, 0, "released", switches)
            for index, name in enumerate(self.data.switches, start=1):
                switches = switches.turn(name)
                yield Stage("cumulative", start, index, name, switches)
            for index, name in enumerate(self.data.switches, start=1):
                yield Stage("alone", start, index, name, self.released(start).turn(name))
            for index, ridge in enumerate(OTHER_RIDGES):
                yield Stage("ridge", start, index, f"ε = {ridge:g}", self.released(start), ridge)
        for epochs in self.ends:
            yield Stage("released", epochs, 0, "released", self.released(epochs))

    def _ridges(self, stage: Stage) -> tuple[float, float]:
        """Return ε of R_well and R_ill; zeros where there is no such solve."""
        if stage.switches.preconditioner_side == "input":
            return 0.0, 0.0
        return self.data.ridges if stage.ridge is None else (stage.ridge, stage.ridge)

    def _name(self, switches: ProtocolSwitches) -> str:
        """Return what progress calls a setting; the same for equal ones."""
        turned = [name for name in switches.turned() if name in self.data.switches]
        if len(turned) == len(self.data.switches):
            return "corrected"
        if len(turned) <= 1:
            return "".join(turned) or "released"
        return f"{len(turned)} of {len(self.data.switches)} switches"

    def plans(self, data: TaskPair | Digits) -> list[tuple[Stage, CellPlan]]:
        """List the cells, seed by seed."""
        reference = self.data.reference(data)
        listed = []
        for seed in range(self.seeds):
            for stage in self.stages():
                payload = {
                    "method": self._name(stage.switches),  # for the words of progress
                    "data": self.data.label,
                    "switches": stage.switches.as_payload(),
                    "ridges": self._ridges(stage),
                    "seed": seed,
                }
                settings = asdict(self.data.settings(stage.switches, data))
                plan = CellPlan(
                    "reproduction-audit", payload, settings, reference.checksum, CODE_VERSION, data=reference
                )
                listed.append((stage, plan))
        return listed


def load(config: AuditConfig) -> TaskPair | Digits:
    """Load the data of a configuration."""
    return config.data.load()


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Read a list of whole numbers."""
    try:
        return tuple(dict.fromkeys(int(word) for word in text.split(",") if word.strip()))
    except ValueError:
        raise InvalidInputError(
            f"{name}='{text}' is no list of whole numbers; write it as 10 or 10,100."
        ) from None


# From cells to tables: a row per stage × seed × convention, and the waterfalls over seeds.


#: The floor of the release as a ridge ε = 1e-6, and the non-zero spectrum.
CONVENTIONS: tuple[Convention, ...] = ("ridge", "compact")

RESULT_COLUMNS = [
    "dataset",
    "path",
    "start_epochs",
    "index",
    "switch",
    "seed",
    "convention",
    "harmful_ratio",
    "pretrain_ratio",
    "rir",
    "success",
    "rank_pretrain",
    "rank_harmful",
    "rows_pretrain",
    "rows_harmful",
    "ridge_well",
    "ridge_ill",
    "updates",
    "seconds",
    "stop_reason",
]

#: RIR of the release on house prices as it is reported, by epochs: least and largest.
REPORTED: dict[int, tuple[float, float]] = {10: (1.6, 2.2), 100: (80.0, 115.0), 1000: (2000.0, 2800.0)}


def results_table(dataset: str, cells: Iterable[tuple[Stage, int, CellResult]]) -> pd.DataFrame:
    """Measure every cell in both conventions, θ as trained, on the tasks of its own setting."""
    rows: list[dict[str, Any]] = []
    for stage, seed, (row, arrays) in cells:
        found = {name: torch.from_numpy(np.array(arrays[name])) for name in SPECTRA}
        dimension = int(str(row["dimension"]))
        spectra = HessianSpectra(**found, dimension_before=dimension, dimension_after=dimension)
        for convention in CONVENTIONS:
            measured = immunization_from_spectra(spectra, convention=convention, gauge="as_trained")
            rows.append(
                {
                    "dataset": dataset,
                    "path": stage.path,
                    "start_epochs": stage.start,
                    "index": stage.index,
                    "switch": stage.switch,
                    "seed": seed,
                    "convention": convention,
                    "harmful_ratio": measured.harmful_ratio,
                    "pretrain_ratio": measured.pretrain_ratio,
                    "rir": measured.rir,
                    "success": measured.success,
                    "rank_pretrain": measured.pretrain_after.rank,
                    "rank_harmful": measured.harmful_after.rank,
                }
                | {name: row[name] for name in RESULT_COLUMNS if name in row and name != "seed"}
            )
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


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
    for (path, start, index, switch, convention), part in results.groupby(keys, sort=False):
        own = logs[path, start, index, convention]
        before = ("cumulative", start, index - 1 if path == "cumulative" else 0, convention)
        change = (own - logs[before]).dropna() if before in logs else pd.Series(dtype=np.float64)
        rows.append(
            {
                "dataset": part["dataset"].iloc[0],
                "path": path,
                "start_epochs": start,
                "index": index,
                "switch": switch,
                "convention": convention,
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
    ends = waterfall[
        (waterfall["switch"] == "released")
        & waterfall["path"].isin(["cumulative", "released"])
        & (waterfall["convention"] == "ridge")
    ]
    rows = []
    for end in ends.sort_values("start_epochs").drop_duplicates("start_epochs").to_dict("records"):
        own = results[
            (results["path"] == end["path"])
            & (results["start_epochs"] == end["start_epochs"])
            & (results["index"] == 0)
            & (results["convention"] == "ridge")
        ]["rir"]
        low, high = reported.get(int(end["start_epochs"]), (np.nan, np.nan))
        rows.append(
            {
                "epochs": end["start_epochs"],
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


@dataclass(frozen=True)
class AuditRun:
    """The finished study, and the tables made from its cells."""

    config: AuditConfig
    data: TaskPair | Digits
    cells: list[tuple[Stage, int, CellResult]]  # stage, seed and result, without cells that failed
    sweep: SweepReport

    @property
    def title(self) -> str:
        """The data set in one line, for figures."""
        if isinstance(self.data, TaskPair):
            return self.data.title()
        pretrain, harmful = self.config.data.pair or (0, 0)
        return (
            f"{self.data.label}, digit {pretrain} (D_P) and {harmful} (D_H): "
            f"{self.data.smaller_count(pretrain, harmful)} images each, SHA-256 {self.data.checksum[:8]}"
        )

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row per stage × seed × convention."""
        return results_table(self.data.name, self.cells)

    @cached_property
    def waterfall(self) -> pd.DataFrame:
        """Mean, spread and change of log10 RIR, a row per stage × convention."""
        return waterfall_table(self.results)

    @cached_property
    def landing(self) -> pd.DataFrame:
        """The release's end beside what it is reported to print (house prices only)."""
        reported = REPORTED if self.data.name == "house-prices" else {}
        return landing_table(self.waterfall, self.results, reported)

    @property
    def failures(self) -> pd.DataFrame:
        """Cells that failed, with their errors."""
        return pd.DataFrame(self.sweep.failure_rows, columns=["cell", "error"])

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin = self.data.provenance
        known = "known" if origin.known_checksum else "not known to this project"
        facts = {
            "data": f"{self.title}. {origin.description}",
            "SHA-256": f"{self.data.checksum} ({known})",
            "seeds": ", ".join(map(str, range(self.config.seeds))),
            "cells": f"{self.sweep.computed} computed, {self.sweep.reused} from the store, "
            f"{len(self.sweep.failures)} failed",
            "corrected protocol": self.config.data.registered.describe(["well", "ill", "supervised"]),
            "peak memory": str(self.sweep.memory),
            "numerics": "float64, one thread a cell",
            "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write results.csv, waterfall.csv, landing.csv and, if any cell failed, failures.csv."""
        tables = {"results.csv": self.results, "waterfall.csv": self.waterfall, "landing.csv": self.landing}
        return write_tables(folder, tables | ({"failures.csv": self.failures} if len(self.failures) else {}))


def run(
    config: AuditConfig,
    *,
    folder: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> AuditRun:
    """Run the study, or what is left of it."""
    data = config.data.load()
    listed = config.plans(data)
    cells = sorted((plan for _, plan in listed), key=_length, reverse=True)
    # One thread each, whoever computes: a long descent amplifies the round-off in which differently
    # threaded sums differ.
    executor = choose_executor(core_count() if jobs is None else jobs, cells=len(cells), threads=1)
    kept = tempfile.TemporaryDirectory(prefix="condnum-") if folder is None else nullcontext(folder)
    with kept as place, ResultStore(place) as store:
        report = run_sweep(cells, compute_cell, store, executor, on_progress=on_progress)
        report.check()
        found = []
        for stage, plan in listed:
            stored = store.get(plan.key)
            if stored is not None:
                found.append((stage, int(plan.payload["seed"]), CellResult(stored.row, stored.arrays)))
    return AuditRun(config, data, found, report)


def _length(plan: CellPlan) -> int:
    """Return how many updates a cell takes; long ones go first, so that no worker waits at the end."""
    return int(plan.settings["steps"])


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
