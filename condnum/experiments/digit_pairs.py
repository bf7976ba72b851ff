"""The digit-pair experiment (Sec. 5.1, Table 2, Fig. 2): methods × seeds × 90 ordered pairs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Literal

import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import Digits, load_mnist_images, load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments.digit_cell import compute_cell
from condnum.experiments.digit_tables import cell_spectra, measured_rows, sensitivity_rows
from condnum.experiments.measure import MEASURES, RESULT_COLUMNS, settings_table, summary_table
from condnum.experiments.published import TABLE_2
from condnum.files import output_folder, write_csv
from condnum.methods import (
    DescentSettings,
    ImmaSettings,
    OptKappaSettings,
    get_method,
    method_names,
)
from condnum.sweep import CellPlan, DataReference, ResultStore, SweepProgress, choose_executor, run_sweep

#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "1"

#: The paper's four methods, the default of this experiment.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")

#: Settings by data set, one for all pairs and seeds.
SETTINGS: dict[str, dict[str, DescentSettings]] = {
    "mnist": {
        "ours": DescentSettings(
            learning_rate=3e-3, ratio=1.0, loss_weight=1e-3, steps=200, record_every=10**9
        ),
        "opt_kappa": OptKappaSettings(
            learning_rate=1e-3, ratio=0.1, steps=30, convention="ridge", record_every=10**9
        ),
        "imma": ImmaSettings(learning_rate=1e-3, steps=30, record_every=10**9),
        "r_ill_only": DescentSettings(learning_rate=1e-3, steps=30, record_every=10**9),
    },
    "digits-8x8": {
        "ours": DescentSettings(learning_rate=0.03, ratio=20.0, loss_weight=0.1, steps=300, record_every=30),
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
    methods: tuple[str, ...] = PAPER_METHODS
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

        Args:
            dataset: `mnist` or `digits`.
            data: `auto` or a folder.
            methods: Comma-separated names.
            seeds: How many.
            epochs: Full-batch steps, 0 for each method's own.
            pairs: Comma-separated `p-h`, empty for all 90.
            labels: `one_vs_rest` or `published`.
            jobs: Worker processes, 0 for one per core.
            scheduler: Address of a dask scheduler.
            device: `auto`, `cpu` or `cuda`.

        Returns:
            The validated configuration.

        Raises:
            CondnumError: A parameter is unknown or out of range.

        Examples:
            >>> DigitPairsConfig.from_parameters(
            ...     dataset="digits", data="auto", methods="ours", seeds=1, epochs=9, pairs="4-7,9-0",
            ...     labels="one_vs_rest", jobs=1, scheduler="").pairs
            ((4, 7), (9, 0))
        """
        names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
        chosen = tuple(_pair(word) for word in pairs.split(",") if word.strip())
        workers = jobs if jobs else torch.get_num_threads()
        return cls(
            dataset,  # type: ignore[arg-type]
            data,
            names or PAPER_METHODS,
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


def store_folder(out: str) -> Path:
    """Return where the store of a run with this `out` lies; a temporary folder for a run that keeps none."""
    return Path(out) / "cells" if out else Path(tempfile.mkdtemp(prefix="condnum-"))


@dataclass(frozen=True)
class DigitPairsRun:
    """The finished sweep and the tables made from it."""

    config: DigitPairsConfig
    digits: Digits
    table: pd.DataFrame  # a row per cell × measure
    sensitivity: pd.DataFrame  # compact convention at several rank tolerances
    failures: pd.DataFrame  # cell, error
    computed: int
    reused: int
    seconds: float

    @property
    def title(self) -> str:
        """The data set in one line, for figures."""
        return f"{self.digits.name}: {len(self.digits)} images, SHA-256 {self.digits.checksum[:8]}"

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
            loss_gap=("loss_gap", "max"),
            seconds=("seconds", "sum"),
        )
        table = summary_table(per_seed, TABLE_2 if self.config.dataset == "mnist" else {})
        pairs = len(self.table[["pretrain_digit", "harmful_digit"]].drop_duplicates())
        return table.assign(pairs=pairs)

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin = self.digits.provenance
        known = "known" if origin.known_checksum else "not known to this project"
        facts = {
            "data": f"{self.digits.name} ({origin.source}): {origin.description}",
            "SHA-256": f"{self.digits.checksum} ({known})",
            "images": f"{len(self.digits)}",
            "labels of the loss": f"{self.config.labels}, at most {self.config.loss_rows} rows",
            "seeds": ", ".join(map(str, range(self.config.seeds))),
            "cells": f"{self.computed} computed, {self.reused} from the store, {len(self.failures)} failed",
            "where": self.config.scheduler or f"{self.config.jobs} process(es), {self.config.device}",
            "seconds": f"{self.seconds:,.1f}",
            "eigh fall-backs": f"{int(self.table['eigh_fallbacks'].sum()) // len(MEASURES)}",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write results.csv, summary.csv, rtol_sensitivity.csv and, if any cell failed, failures.csv.

        Args:
            folder: Created if missing.

        Returns:
            The names of the files.

        Raises:
            OutputError: The folder cannot be written.
        """
        target = output_folder(folder)
        tables = {"results": self.table, "summary": self.summary, "rtol_sensitivity": self.sensitivity}
        if len(self.failures):
            tables["failures"] = self.failures
        for name, table in tables.items():
            write_csv(target / f"{name}.csv", table)
        return [f"{name}.csv" for name in tables]


def load(config: DigitPairsConfig) -> tuple[Digits, DataReference]:
    """Load the digits of a configuration.

    Args:
        config: Its `dataset` and `data`.

    Returns:
        The digits and the reference by which workers find them.

    Raises:
        DataNotFoundError: The files are missing; the message says what to put where.
        DataFormatError: They are damaged.
    """
    source = "embedded" if config.dataset == "digits" else config.data
    digits = load_small_digits() if config.dataset == "digits" else load_mnist_images(config.data)
    return digits, DataReference.of(digits, source)


def plans(config: DigitPairsConfig, reference: DataReference) -> list[CellPlan]:
    """List the cells, pair by pair, so that cells that share a covariance are neighbours.

    Args:
        config: Methods, seeds, pairs.
        reference: The data.

    Returns:
        A plan per pair × seed × method.
    """
    pairs = config.pairs or tuple(permutations(range(10), 2))
    cells = []
    for pretrain, harmful in pairs:
        for seed in range(config.seeds):
            for method in config.methods:
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


def run(
    config: DigitPairsConfig,
    folder: Path,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> DigitPairsRun:
    """Run the sweep, or what is left of it.

    Args:
        config: What to run.
        folder: The result store; a sweep that was stopped goes on from it.
        on_progress: Told at the start and after each cell.

    Returns:
        The tables.

    Raises:
        CondnumError: The data cannot be had, or the store is foreign, damaged or not writable.
    """
    digits, reference = load(config)
    cells = plans(config, reference)
    executor = choose_executor(config.jobs, config.scheduler or None, len(cells), threads=1)
    with ResultStore(folder) as store:
        report = run_sweep(cells, compute_cell, store, executor, on_progress=on_progress)
        stored = [found for plan in cells if (found := store.get(plan.key)) is not None]
    rows, sensitivity = [], []
    for row, arrays in stored:
        spectra = cell_spectra(row, arrays)
        rows += measured_rows(digits.name, row, spectra)
        sensitivity += sensitivity_rows(row, spectra)
    failures = [{"cell": failure.plan.label, "error": str(failure.error)} for failure in report.failures]
    columns = [*RESULT_COLUMNS, "pretrain_digit", "harmful_digit", "eigh_fallbacks"]
    return DigitPairsRun(
        config,
        digits,
        pd.DataFrame(rows, columns=columns),
        pd.DataFrame(sensitivity),
        pd.DataFrame(failures, columns=["cell", "error"]),
        report.computed,
        report.reused,
        report.seconds,
    )


def _pair(word: str) -> tuple[int, int]:
    """Read `p-h`."""
    digits = word.strip().split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"'{word.strip()}' is no pair of digits; write it as 4-7, several as 4-7,9-0."
        )
    return int(digits[0]), int(digits[1])
