"""The digit-pair experiment (Sec. 5.1, Table 2, Fig. 2): methods × seeds × 90 ordered pairs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import Digits, load_mnist_images, load_small_digits
from condnum.experiments.digit_batch import DigitBatches
from condnum.experiments.digit_cell import compute_cell
from condnum.experiments.digit_config import DigitPairsConfig
from condnum.experiments.digit_tables import (
    cell_spectra,
    current_rir,
    measured_rows,
    ridge_rows,
    sensitivity_rows,
)
from condnum.experiments.measure import MEASURES, RESULT_COLUMNS, summary_table
from condnum.experiments.published import TABLE_2
from condnum.files import write_tables
from condnum.methods import uses_seed
from condnum.sweep import (
    BatchExecutor,
    CellPlan,
    DataReference,
    Executor,
    PeakMemory,
    ResultStore,
    SweepProgress,
    choose_executor,
    run_sweep,
)

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
