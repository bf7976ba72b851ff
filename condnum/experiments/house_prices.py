"""The house-price experiment (Sec. 5.1, Table 1, Fig. 1), and the same on the embedded table."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import TaskPair, load_diabetes_tasks, load_house_prices
from condnum.experiments.extractor import Extractor
from condnum.experiments.house_cell import compute_cell
from condnum.experiments.house_config import HousePricesConfig
from condnum.experiments.measure import current_rir, settings_table
from condnum.experiments.pair_study import PairStudy
from condnum.experiments.published import TABLE_1, Published
from condnum.files import write_tables
from condnum.problem import ImmunizationProblem
from condnum.sweep import (
    CellPlan,
    CellResult,
    DataReference,
    ResultStore,
    SweepProgress,
    SweepReport,
    choose_executor,
    core_count,
    run_sweep,
)

#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "1"

#: Below this many steps in all, starting worker processes takes longer than they save.
PARALLEL_STEPS = 30_000


@dataclass(frozen=True)
class HousePricesRun(PairStudy):
    """The finished experiment; a cell that failed has no extractor."""

    config: HousePricesConfig
    sweep: SweepReport

    @property
    def published(self) -> Mapping[str, Published]:
        """Table 1, for house prices only."""
        return TABLE_1 if self.pair.name == "house-prices" else {}

    @property
    def failures(self) -> pd.DataFrame:
        """Cells that failed, with their errors."""
        return pd.DataFrame(self.sweep.failure_rows, columns=["cell", "error"])

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method was run, a row per method."""
        return settings_table(self.config.chosen_methods, self.config.settings)

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin = self.pair.provenance
        known = "known" if origin.known_checksum else "not known to this project"
        facts = {
            "data": f"{self.pair.label}: {origin.description}",
            "rows": f"{self.pair.rows_pretrain} (D_P), {self.pair.rows_harmful} (D_H)",
            "pre-training task": self.pair.pretrain_name,
            "harmful task": self.pair.harmful_name,
            "SHA-256": f"{self.pair.checksum} ({known})",
            "loader options": ", ".join(f"{k}={v}" for k, v in origin.options.items()) or "none",
            "seeds": ", ".join(map(str, range(self.config.seeds))),
            "cells": f"{self.sweep.computed} computed, {self.sweep.reused} from the store, "
            f"{len(self.sweep.failures)} failed",
            "device": str(self.problem.device),
            "peak memory": str(self.sweep.memory),
            "numerics": "float64",
            "versions": f"condnum {condnum_version()}, torch {torch.__version__}, "
            f"Python {platform.python_version()}",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write results.csv, summary.csv, curves.parquet and, if any cell failed, failures.csv."""
        failures = {"failures.csv": self.failures} if len(self.failures) else {}
        return super().save(folder) + write_tables(folder, failures)


def condnum_version() -> str:
    """Return the version of this package."""
    from condnum import __version__

    return __version__


def load(config: HousePricesConfig) -> TaskPair:
    """Load the data of a configuration."""
    if config.data == "embedded":
        pair = load_diabetes_tasks(features=config.features)
        return pair if config.rows is None else pair.head(config.rows)
    return load_house_prices(config.data, features=config.features, rows=config.rows)


def plans(config: HousePricesConfig, pair: TaskPair) -> list[CellPlan]:
    """List the cells of a run, seed by seed."""
    reference = DataReference.of(pair, config.data)
    common = {
        "features": config.features,
        "rows": config.rows,
        "device": str(resolve_device(config.device)),
    }
    cells = []
    for seed in range(config.seeds):
        for method in config.chosen_methods:
            settings = config.settings(method)
            payload = {"method": method, "seed": seed, **common}
            chosen = {} if settings is None else asdict(settings)
            cells.append(
                CellPlan("house-prices", payload, chosen, reference.checksum, CODE_VERSION, data=reference)
            )
    return cells


def run(
    config: HousePricesConfig,
    *,
    folder: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> HousePricesRun:
    """Run the experiment, or what is left of it."""
    pair = load(config)
    problem = ImmunizationProblem.from_pair(pair, device=resolve_device(config.device))
    cells = plans(config, pair)
    # One thread each, whoever computes: a long descent amplifies the round-off in which differently
    # threaded sums differ, and matrices of this size gain nothing from more.
    executor = choose_executor(_default_jobs(cells) if jobs is None else jobs, cells=len(cells), threads=1)

    def score(result: CellResult) -> float:
        """Return the RIR of a cell."""
        return current_rir(problem, Extractor.from_cell(*result))

    ordered = sorted(cells, key=_order)
    kept = tempfile.TemporaryDirectory() if folder is None else nullcontext(folder)
    with kept as place, ResultStore(place) as store:
        report = run_sweep(ordered, compute_cell, store, executor, on_progress=on_progress, score=score)
        stored = [found for plan in cells if (found := store.get(plan.key)) is not None]
    report.check()
    extractors = [Extractor.from_cell(row, arrays) for row, arrays in stored]
    return HousePricesRun(pair, problem, extractors, config, report)


def _steps(plan: CellPlan) -> int:
    """Return how long a cell is; 0 for closed forms."""
    return int(plan.settings.get("steps", 0))


def _order(plan: CellPlan) -> tuple[bool, int]:
    """Sort closed forms first, then long cells before short ones, so that no worker waits at the end."""
    return _steps(plan) > 0, -_steps(plan)


def _default_jobs(cells: list[CellPlan]) -> int:
    """Return how many workers are worth their start."""
    on_cpu = all(plan.payload["device"] == "cpu" for plan in cells)
    return core_count() if on_cpu and sum(map(_steps, cells)) >= PARALLEL_STEPS else 1
