"""The digit-pair experiment (Sec. 5.1, Table 2, Fig. 2): methods × seeds × 90 ordered pairs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import Digits, load_mnist_images, load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.files import write_tables
from condnum.machine import PeakMemory
from condnum.methods import (
    NAMED_SETTINGS,
    DescentSettings,
    ImmaSettings,
    OptKappaSettings,
    get_method,
    method_names,
    uses_seed,
)
from condnum.studies.cell import CellPlan, CellResult, DataReference
from condnum.studies.digit_cells import RIDGES, DigitBatches, compute_cell, ridge_ceiling_column
from condnum.studies.executors import BatchExecutor, Executor, choose_executor
from condnum.studies.measure import (
    MEASURES,
    RESULT_COLUMNS,
    TABLE_2,
    result_row,
    settings_table,
    summary_table,
)
from condnum.studies.store import ResultStore
from condnum.studies.sweep import SweepProgress, run_sweep
from condnum.theory.immunization import HessianSpectra, Immunization, immunization_from_spectra
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol

# What the digit-pair experiment runs: its settings, one for all pairs and seeds, and a user's choices.


#: The paper's four methods.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")

#: What runs by default: those, and the closed forms that say how much is possible.
DEFAULT_METHODS = (*PAPER_METHODS, "optimal", "front")

#: Settings by data set, one for all pairs and seeds.
SETTINGS: dict[str, dict[str, DescentSettings]] = {
    "mnist": {
        "ours": NAMED_SETTINGS["mnist"],
        "opt_kappa": OptKappaSettings(
            learning_rate=1e-3, ratio=0.1, steps=30, convention="ridge", record_every=0
        ),
        "imma": ImmaSettings(learning_rate=1e-3, steps=30, record_every=0),
        "r_ill_only": DescentSettings(learning_rate=1e-3, steps=30, record_every=0),
    },
    "digits-8x8": {
        "ours": NAMED_SETTINGS["digits-8x8"],
        "opt_kappa": OptKappaSettings(
            learning_rate=0.005, ratio=0.1, steps=100, convention="ridge", record_every=10
        ),
        "imma": ImmaSettings(learning_rate=0.005, steps=100, record_every=10),
        "r_ill_only": DescentSettings(learning_rate=0.005, steps=100, record_every=10),
    },
}

DataName = Literal["mnist", "digits"]


@dataclass(frozen=True)
class DigitPairsConfig:
    """What to run."""

    dataset: DataName = "digits"  # mnist, or the embedded 8×8 digits
    data: str = "auto"  # for mnist: auto or a folder
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: int = 3  # seeds 0 … seeds − 1
    epochs: int | None = None  # full-batch steps; None: each method's own
    pairs: tuple[tuple[int, int], ...] = ()  # (pretrain, harmful); empty: all 90
    labels: Literal["one_vs_rest", "published"] = "one_vs_rest"
    loss_rows: int = 1000  # rows of the supervised loss's balanced sample
    jobs: int = 1  # worker processes
    scheduler: str = ""  # address of a dask scheduler, instead of `jobs`
    device: str = "cpu"  # where each cell is computed

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.dataset not in ("mnist", "digits"):
            raise UnknownNameError("digit data set", self.dataset, ["mnist", "digits"])
        if self.labels not in ("one_vs_rest", "published"):
            raise UnknownNameError("labels", self.labels, ["one_vs_rest", "published"])
        for method in self.methods:
            if method not in method_names():
                raise UnknownNameError("method", method, method_names())
        for name, least in (("seeds", 1), ("epochs", 1), ("loss_rows", 2), ("jobs", 1)):
            value = getattr(self, name)
            if value is None and name == "epochs":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
        if self.dataset == "mnist" and self.data == "embedded":
            raise InvalidInputError("MNIST is not embedded; the 8×8 digits are: condnum run digits.")
        if self.dataset == "digits" and self.data not in ("auto", "embedded"):
            raise InvalidInputError(
                f"data '{self.data}': the 8×8 digits are embedded and need no file; for MNIST: "
                "condnum run mnist."
            )
        for pretrain, harmful in self.pairs:
            if pretrain == harmful or not {pretrain, harmful} <= set(range(10)):
                raise InvalidInputError(
                    f"pair ({pretrain}, {harmful}) is none: give two different digits from 0 to 9."
                )

    @classmethod
    def from_parameters(
        cls,
        *,
        dataset: str,
        data: str,
        methods: str,
        seeds: int,
        epochs: int,
        pairs: str,
        labels: str,
        jobs: int,
        scheduler: str,
        device: str = "cpu",
    ) -> DigitPairsConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Examples:
            >>> DigitPairsConfig.from_parameters(
            ...     dataset="digits", data="auto", methods="ours", seeds=1, epochs=9, pairs="4-7,9-0",
            ...     labels="one_vs_rest", jobs=1, scheduler="").pairs
            ((4, 7), (9, 0))
        """
        names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
        chosen = tuple(read_pair(word) for word in pairs.split(",") if word.strip())
        workers = jobs if jobs else torch.get_num_threads()
        return cls(
            dataset,  # type: ignore[arg-type]
            data,
            names or DEFAULT_METHODS,
            seeds,
            epochs or None,
            chosen,
            labels,  # type: ignore[arg-type]
            jobs=workers,
            scheduler=scheduler,
            device=str(resolve_device(device)),
        )

    def with_controls(self) -> DigitPairsConfig:
        """Return the configuration with both controls added to its methods."""
        return replace(self, methods=tuple(dict.fromkeys((*self.methods, "identity", "initial"))))

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run; None for closed forms."""
        known = SETTINGS["mnist" if self.dataset == "mnist" else "digits-8x8"]
        base = known.get(method, getattr(get_method(method), "defaults", None))
        return base if base is None or self.epochs is None else base.with_overrides(steps=self.epochs)

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method is run, a row per method."""
        return settings_table(self.methods, self.settings)


def read_pair(word: str) -> tuple[int, int]:
    """Read a pair of digits.

    Examples:
        >>> read_pair("4-7")
        (4, 7)
    """
    digits = word.strip().split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"'{word.strip()}' is no pair of digits; write it as 4-7, several as 4-7,9-0."
        )
    return int(digits[0]), int(digits[1])


# From a stored digit-pair cell (scalars and spectra) to rows of the tables.


#: Relative rank tolerances at which the compact convention is repeated, beside the default D·eps.
RTOLS = (1e-15, 1e-10)

_COORDINATES = ("method", "seed", "pretrain_digit", "harmful_digit")


def cell_spectra(row: Mapping[str, Any], arrays: Mapping[str, Any]) -> HessianSpectra:
    """Return a cell's spectra as tensors, for θ as trained."""
    dimension = int(row["dimension"])
    return HessianSpectra(
        pretrain_before=torch.as_tensor(arrays["pretrain_before"]),
        pretrain_after=torch.as_tensor(arrays["pretrain_after"]),
        harmful_before=torch.as_tensor(arrays["harmful_before"]),
        harmful_after=torch.as_tensor(arrays["harmful_after"]),
        dimension_before=dimension,
        dimension_after=dimension,
    )


def measured_rows(dataset: str, row: Mapping[str, Any], spectra: HessianSpectra) -> list[dict[str, Any]]:
    """Measure one cell in every convention and gauge."""
    kept = (*_COORDINATES, "theta_condition", "steps", "seconds", "stop_reason", "eigh_fallbacks")
    facts = {name: row[name] for name in kept} | {
        "dataset": dataset,
        "pretrain_task": f"digit {row['pretrain_digit']}",
        "harmful_task": f"digit {row['harmful_digit']}",
    }
    rows = []
    for convention, gauge in MEASURES:
        scale = row["dimension"] / row["squared_norm"] if gauge == "unit" else 1.0
        measured = immunization_from_spectra(
            spectra.scaled(scale), convention=convention, gauge=gauge, loss_gap=row["loss_gap"]
        )
        ceiling = row["ceiling_compact" if convention == "compact" else ridge_ceiling_column(PUBLISHED_RIDGE)]
        rows.append(result_row(measured, np.nan if gauge == "as_trained" else ceiling, facts))
    return rows


def current_rir(result: CellResult) -> float:
    """Return the RIR that progress shows: ridge convention, θ at unit scale."""
    row: Mapping[str, Any] = result.row
    spectra = cell_spectra(*result).scaled(row["dimension"] / row["squared_norm"])
    return immunization_from_spectra(spectra, convention="ridge", gauge="unit").rir


def ridge_rows(row: Mapping[str, Any], spectra: HessianSpectra) -> list[dict[str, Any]]:
    """Measure one cell in the ridge convention at several ε, θ at unit scale."""
    unit = spectra.scaled(row["dimension"] / row["squared_norm"])
    rows = []
    for ridge in RIDGES:
        measured = immunization_from_spectra(
            unit, convention="ridge", gauge="unit", ridge=ridge, loss_gap=row["loss_gap"]
        )
        facts = {name: row[name] for name in _COORDINATES} | {"ridge": ridge}
        rows.append(result_row(measured, row[ridge_ceiling_column(ridge)], facts))
    return rows


def sensitivity_rows(row: Mapping[str, Any], spectra: HessianSpectra) -> list[dict[str, Any]]:
    """Measure one cell in the compact convention at several rank tolerances."""
    rows = []
    for rtol in (RTOLS[0], default_rtol(spectra.dimension_after), RTOLS[1]):
        measured: Immunization = immunization_from_spectra(
            spectra, convention="compact", gauge="unit", rtol=rtol, loss_gap=row["loss_gap"]
        )
        facts = {name: row[name] for name in _COORDINATES} | {"rtol": rtol}
        rows.append(result_row(measured, row["ceiling_compact"], facts))
    return rows


#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "3"


@dataclass(frozen=True)
class DigitPairsRun:
    """The finished sweep and the tables made from it."""

    config: DigitPairsConfig
    digits: Digits
    table: pd.DataFrame  # a row per cell × measure
    sensitivity: pd.DataFrame  # compact convention at several rank tolerances
    ridged: pd.DataFrame  # ridge convention at several ε
    failures: pd.DataFrame  # cell, error
    computed: int
    reused: int
    seconds: float
    memory: PeakMemory  # of this process and the workers
    note: str = ""  # what became of `jobs`, or of the batches

    @property
    def title(self) -> str:
        """The data set in one line, for figures."""
        return self.digits.title()

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean over pairs, then mean and spread over seeds, beside Table 2 (for MNIST only)."""
        keys = ["dataset", "method", "seed", "convention", "gauge"]
        per_seed = self.table.groupby(keys, sort=False, as_index=False).agg(
            harmful_ratio=("harmful_ratio", "mean"),
            pretrain_ratio=("pretrain_ratio", "mean"),
            rir=("rir", "mean"),
            success=("success", "mean"),
            rir_ceiling=("rir_ceiling", "mean"),
            rir_share=("rir_share", "mean"),
            loss_gap=("loss_gap", "max"),
            seconds=("seconds", "sum"),
        )
        table = summary_table(per_seed, TABLE_2 if self.config.dataset == "mnist" else {})
        pairs = len(self.table[["pretrain_digit", "harmful_digit"]].drop_duplicates())
        return table.assign(pairs=pairs)

    @cached_property
    def ridge_sweep(self) -> pd.DataFrame:
        """Geometric mean over the pairs of RIR and of its ceiling, against ε: `method, seed, ridge, rir`."""
        logs = self.ridged.assign(rir=np.log(self.ridged["rir"]), ceiling=np.log(self.ridged["rir_ceiling"]))
        means = logs.groupby(["method", "seed", "ridge"], sort=False, as_index=False)["rir"].mean()
        pairs = logs.drop_duplicates(["pretrain_digit", "harmful_digit", "ridge"])
        bounds = pairs.groupby("ridge", as_index=False)["ceiling"].mean().rename(columns={"ceiling": "rir"})
        table = pd.concat([bounds.assign(method="ceiling", seed=-1), means], ignore_index=True)
        return table.assign(rir=np.exp(table["rir"]))

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin = self.digits.provenance
        known = "known" if origin.known_checksum else "not known to this project"
        facts = {
            "data": f"{self.digits.label}: {origin.description}",
            "SHA-256": f"{self.digits.checksum} ({known})",
            "labels of the loss": f"{self.config.labels}, at most {self.config.loss_rows} rows",
            "seeds": ", ".join(map(str, range(self.config.seeds))),
            "cells": f"{self.computed} computed, {self.reused} from the store, {len(self.failures)} failed",
            "where": self.config.scheduler or self._place,
            **({"workers": self.note} if self.note else {}),
            "seconds": f"{self.seconds:,.1f}",
            "peak memory": str(self.memory),
            **({"peak device memory": self._device_memory} if self._on_gpu else {}),
            "eigh fall-backs": f"{int(self.table['eigh_fallbacks'].sum()) // len(MEASURES)}",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    @property
    def _place(self) -> str:
        """The device on which this machine computed."""
        if self._on_gpu:
            return f"{torch.cuda.get_device_name(self.config.device)} ({self.config.device})"
        return f"{self.config.jobs} process(es), {self.config.device}"

    @property
    def _on_gpu(self) -> bool:
        """Whether this machine's GPU computed."""
        return self.config.device.startswith("cuda") and not self.config.scheduler

    @property
    def _device_memory(self) -> str:
        """Peak of what torch's tensors took on the GPU, since this process began."""
        return f"{torch.cuda.max_memory_allocated(self.config.device) / 2**20:,.0f} MiB"

    def save(self, folder: str | Path) -> list[str]:
        """Write results.csv, summary.csv, both sensitivities and, if any cell failed, failures.csv."""
        tables = {
            "results.csv": self.table,
            "summary.csv": self.summary,
            "rtol_sensitivity.csv": self.sensitivity,
            "ridge_sensitivity.csv": self.ridged,
        }
        return write_tables(folder, tables | ({"failures.csv": self.failures} if len(self.failures) else {}))


def load(config: DigitPairsConfig) -> tuple[Digits, DataReference]:
    """Load the digits of a configuration."""
    source = "embedded" if config.dataset == "digits" else config.data
    digits = load_small_digits() if config.dataset == "digits" else load_mnist_images(config.data)
    for pretrain, harmful in config.pairs or permutations(range(10), 2):
        digits.smaller_count(pretrain, harmful)
    return digits, DataReference.of(digits, source)


def plans(config: DigitPairsConfig, reference: DataReference) -> list[CellPlan]:
    """List the cells, pair by pair, so that cells that share a covariance are neighbours."""
    pairs = config.pairs or tuple(permutations(range(10), 2))
    cells = []
    for pretrain, harmful in pairs:
        for seed in range(config.seeds):
            for method in config.methods:
                if seed and not uses_seed(method):
                    continue  # every seed has this θ
                settings = config.settings(method)
                payload = {
                    "method": method,
                    "seed": seed,
                    "pretrain": pretrain,
                    "harmful": harmful,
                    "labels": config.labels,
                    "loss_rows": config.loss_rows,
                    "device": config.device,
                }
                chosen = {} if settings is None else asdict(settings)
                cells.append(
                    CellPlan("digit-pairs", payload, chosen, reference.checksum, CODE_VERSION, data=reference)
                )
    return cells


def _default_executor(config: DigitPairsConfig, cells: int) -> Executor:
    """Return what the configuration asks for."""
    device = resolve_device(config.device)
    if device.type == "cuda" and not config.scheduler:
        return BatchExecutor(DigitBatches(device))
    return choose_executor(config.jobs, config.scheduler or None, cells, threads=1)


def run(
    config: DigitPairsConfig,
    folder: Path | None,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
    executor: Executor | None = None,
) -> DigitPairsRun:
    """Run the sweep, or what is left of it; this needs none of the extras.

    Examples:
        >>> config = DigitPairsConfig("mnist", "data", device="cuda")  # Table 2 on a GPU
        >>> run(config, Path("gpu/cells")).save("gpu")  # doctest: +SKIP
        ['results.csv', 'summary.csv', 'rtol_sensitivity.csv', 'ridge_sensitivity.csv']
    """
    digits, reference = load(config)
    cells = plans(config, reference)
    executor = _default_executor(config, len(cells)) if executor is None else executor
    kept = tempfile.TemporaryDirectory(prefix="condnum-") if folder is None else nullcontext(folder)
    with kept as place, ResultStore(place) as store:
        report = run_sweep(cells, compute_cell, store, executor, on_progress=on_progress, score=current_rir)
        stored = [found for plan in cells if (found := store.get(plan.key)) is not None]
    report.check()
    rows, sensitivity, ridged = [], [], []
    for row, arrays in stored:
        spectra = cell_spectra(row, arrays)
        rows += measured_rows(digits.name, row, spectra)
        sensitivity += sensitivity_rows(row, spectra)
        ridged += ridge_rows(row, spectra)
    columns = [*RESULT_COLUMNS, "pretrain_digit", "harmful_digit", "eigh_fallbacks"]
    return DigitPairsRun(
        config,
        digits,
        pd.DataFrame(rows, columns=columns),
        pd.DataFrame(sensitivity),
        pd.DataFrame(ridged),
        pd.DataFrame(report.failure_rows, columns=["cell", "error"]),
        report.computed,
        report.reused,
        report.seconds,
        report.memory,
        executor.note,
    )
