"""The reproduction audit: from the release's protocol to the corrected one, a switch at a time."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch

from condnum.data import Digits, TaskPair
from condnum.experiments.released.audit_config import AuditConfig, Stage
from condnum.experiments.released.cell import compute_cell
from condnum.experiments.released.waterfall_tables import (
    REPORTED,
    landing_table,
    results_table,
    waterfall_table,
)
from condnum.files import write_tables
from condnum.sweep import (
    CellPlan,
    CellResult,
    ResultStore,
    SweepProgress,
    SweepReport,
    choose_executor,
    core_count,
    run_sweep,
)


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
