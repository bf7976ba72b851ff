"""The experiment on limits: how much immunization two tasks allow, and how much of it each method reaches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from condnum.ceiling import RirCeiling
from condnum.data import Digits, TaskPair
from condnum.experiments.limits_cell import compute_cell
from condnum.experiments.limits_config import LimitsConfig
from condnum.experiments.limits_plan import load, plans
from condnum.experiments.limits_tables import (
    Named,
    ceiling_table,
    direction_table,
    measured_table,
    null_space_table,
    overshoot_table,
    point_table,
    race_table,
    ridge_table,
    summary_of_limits,
)
from condnum.experiments.measure import RESULT_COLUMNS, settings_table
from condnum.files import write_tables
from condnum.pareto import FeasibleRegion
from condnum.sweep import (
    CellPlan,
    CellResult,
    ResultStore,
    SerialExecutor,
    SweepProgress,
    SweepReport,
    choose_executor,
    core_count,
    run_sweep,
)

TASKS = ["pretrain_task", "harmful_task"]


@dataclass(frozen=True)
class LimitsRun:
    """The finished experiment, and the tables made from its cells."""

    config: LimitsConfig
    data: TaskPair | Digits
    cells: dict[str, list[tuple[CellPlan, CellResult]]]  # by part: method, pair, race
    sweep: SweepReport
    seconds: float  # of sweep and race

    @property
    def title(self) -> str:
        """The data set in one line, for figures."""
        return self.data.title()

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Names of the tasks (D_P, D_H) of every pair that was computed."""
        return list(self.null_spaces[TASKS].itertuples(index=False, name=None))

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row per pair × method × seed × convention × gauge, as the other experiments have it."""
        return measured_table(self._named("method"), RESULT_COLUMNS)

    @cached_property
    def ridged(self) -> pd.DataFrame:
        """RIR and its share of the ceiling of every extractor on `K + εI`, against ε."""
        return ridge_table(self._named("method"), self.ceilings, self.config.ridge_shares)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The same at the ε of the configuration, averaged over seeds."""
        return summary_of_limits(self.ridged, self.config.ridge)

    @cached_property
    def ceilings(self) -> pd.DataFrame:
        """The ceiling of every pair against ε, and what the closed form attains of it."""
        return ceiling_table(self._named("pair"), self.config.ridge_shares)

    @cached_property
    def null_spaces(self) -> pd.DataFrame:
        """What each task has and the other lacks, a row per pair."""
        return null_space_table(self._named("pair"))

    @cached_property
    def points(self) -> pd.DataFrame:
        """Points of the (ii)/(i) plane: family, front, random and climbed extractors."""
        return point_table(self._named("pair"))

    @cached_property
    def directions(self) -> pd.DataFrame:
        """Generalised eigenvectors at both ends of each pencil, by input feature."""
        return direction_table(self._named("pair"), self.data.feature_names)

    @cached_property
    def race(self) -> pd.DataFrame:
        """The closed forms against Algorithm 1; empty if there was no race."""
        return race_table(self._named("race"))

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method was run, a row per method."""
        return settings_table(self.config.chosen_methods, self.config.settings)

    @property
    def failures(self) -> pd.DataFrame:
        """Cells that failed, with their errors."""
        return pd.DataFrame(self.sweep.failure_rows, columns=["cell", "error"])

    @property
    def overshoots(self) -> pd.DataFrame:
        """By which share the worst point of each kind lies outside its region; negative inside.

        Kinds are those of `points`, `methods` (every method and seed) and `race` (Algorithm 1 on K + εI).
        """
        frames = []
        for tasks in self.pairs:
            tried = {str(kind): part for kind, part in _of(self.points, tasks).groupby("kind", sort=False)}
            tried["methods"] = self.at_ridge(tasks)
            tried["race"] = _of(self.race, tasks) if len(self.race) else self.race
            names = {"dataset": self.data.name, **dict(zip(TASKS, tasks, strict=True))}
            frames.append(overshoot_table(tried, self.region(tasks), names))
        return pd.concat(frames, ignore_index=True)

    def region(self, tasks: tuple[str, str]) -> FeasibleRegion:
        """Return what is possible for a pair, at the ε of the configuration."""
        table = _of(self.ceilings, tasks)
        row = table[table["ridge_share"] == self.config.ridge].iloc[0]
        spaces = _of(self.null_spaces, tasks).iloc[0]
        rank = int(spaces["dimension"])  # of K + εI
        ceiling = RirCeiling(
            row["rir_ceiling"], row["lambda_max"], row["lambda_min"], rank, rank, 0, row["ridge"]
        )
        pretrain, harmful, pencil = (float(row[f"kappa_{of}"]) for of in ("pretrain", "harmful", "pencil"))
        return FeasibleRegion(pretrain, harmful, pencil, ceiling, mirrored=True)

    def of(self, table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
        """Return the rows of one pair."""
        return _of(table, tasks)

    def at_ridge(self, tasks: tuple[str, str]) -> pd.DataFrame:
        """Return the methods of one pair at the ε of the configuration."""
        table = _of(self.ridged, tasks)
        return table[table["ridge_share"] == self.config.ridge]

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin = self.data.provenance
        known = "known" if origin.known_checksum else "not known to this project"
        facts = {
            "data": f"{self.title}. {origin.description}",
            "SHA-256": f"{self.data.checksum} ({known})",
            "seeds": ", ".join(map(str, range(self.config.seeds))),
            "ε": f"{self.config.ridge:g} mean eigenvalues of K_P for front and directions",
            "cells": f"{self.sweep.computed} computed, {self.sweep.reused} from the store, "
            f"{len(self.failures)} failed",
            "seconds": f"{self.seconds:,.1f}",
            "peak memory": str(self.sweep.memory),
            "numerics": "float64",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write every table as CSV, and failures.csv if any cell failed."""
        names = (
            "results",
            "summary",
            "ridged",
            "ceilings",
            "null_spaces",
            "points",
            "overshoots",
            "directions",
        )
        tables = {name: getattr(self, name) for name in names}
        tables |= {name: table for name in ("race", "failures") if len(table := getattr(self, name))}
        return write_tables(folder, {f"{name}.csv": table for name, table in tables.items()})

    def _named(self, part: str) -> list[Named]:
        """Return the cells of a part with the names of their tasks."""
        return [(self._names(plan), result) for plan, result in self.cells[part]]

    def _names(self, plan: CellPlan) -> dict[str, str]:
        """Return what tables say of a cell's pair."""
        if isinstance(self.data, TaskPair):
            tasks = (self.data.pretrain_name, self.data.harmful_name)
        else:
            tasks = (f"digit {plan.payload['pretrain']}", f"digit {plan.payload['harmful']}")
        return {"dataset": self.data.name, "pretrain_task": tasks[0], "harmful_task": tasks[1]}


def _of(table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of one pair."""
    return table[(table["pretrain_task"] == tasks[0]) & (table["harmful_task"] == tasks[1])]


def run(
    config: LimitsConfig,
    *,
    folder: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> LimitsRun:
    """Run the experiment, or what is left of it."""
    data = load(config)
    every = plans(config, data)
    swept = [plan for plan in every if plan.payload["part"] != "race"]
    raced = [plan for plan in every if plan.payload["part"] == "race"]
    executor = choose_executor(core_count() if jobs is None else jobs, cells=len(swept), threads=1)
    kept = tempfile.TemporaryDirectory(prefix="condnum-") if folder is None else nullcontext(folder)
    with kept as place, ResultStore(place) as store:
        report = run_sweep(swept, compute_cell, store, executor, on_progress=on_progress)
        report.check()
        # By itself, in this process: nothing of ours competes for the cores while it is timed.
        last = run_sweep(raced, compute_cell, store, SerialExecutor(threads=1), on_progress=on_progress)
        cells: dict[str, list[tuple[CellPlan, CellResult]]] = {"method": [], "pair": [], "race": []}
        for plan in every:
            found = store.get(plan.key)
            if found is not None:
                cells[plan.payload["part"]].append((plan, CellResult(found.row, found.arrays)))
    report.failures.extend(last.failures)
    return LimitsRun(config, data, cells, report, report.seconds + last.seconds)
