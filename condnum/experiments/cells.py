"""Cells: one method × one seed, computed once, kept in a folder, found again by a key.

The key hashes everything that the result depends on, so a cell of other data, settings or code is
never mistaken for the one asked for. A cell file is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import joblib
import numpy as np
import torch
from numpy.typing import NDArray

from condnum.files import atomic_write
from condnum.methods import DescentSettings, ImmunizationResult, Progress, immunize
from condnum.progress import report_event
from condnum.tasks import ImmunizationProblem

#: Part of every key: raise it when a change of code changes results.
CODE_VERSION = 1

#: Below this many steps in all, starting worker processes takes longer than they save.
PARALLEL_STEPS = 30_000


@dataclass(frozen=True)
class CellPlan:
    """What to compute."""

    method: str
    seed: int
    settings: DescentSettings | None  # None for closed forms
    data_key: str  # checksum and loader options of the data

    @property
    def key(self) -> str:
        """Hash of all that the result depends on."""
        settings = None if self.settings is None else asdict(self.settings)
        parts = [CODE_VERSION, self.method, self.seed, settings, self.data_key]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def filename(self) -> str:
        """Name of the cell's file, readable and unique."""
        return f"{self.method}-{self.seed}-{self.key}.npz"


@dataclass(frozen=True)
class Cell:
    """What was computed."""

    method: str
    seed: int
    theta: NDArray[np.float64]  # (D, D)
    history: dict[str, NDArray[np.float64]]  # column by name
    steps: int
    seconds: float
    stop_reason: str

    @classmethod
    def of(cls, result: ImmunizationResult) -> Cell:
        """Keep of a result what tables and figures need."""
        return cls(
            method=result.method,
            seed=result.seed,
            theta=result.theta.cpu().numpy(),
            history=result.history.columns,
            steps=result.steps,
            seconds=result.seconds,
            stop_reason=result.stop_reason,
        )

    def save(self, path: Path) -> None:
        """Write the cell atomically."""
        meta = {
            "method": self.method,
            "seed": self.seed,
            "steps": self.steps,
            "seconds": self.seconds,
            "stop_reason": self.stop_reason,
        }
        arrays: dict[str, Any] = {f"history.{name}": values for name, values in self.history.items()}
        arrays |= {"theta": self.theta, "meta": np.array(json.dumps(meta))}
        with atomic_write(path) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, **arrays)

    @classmethod
    def load(cls, path: Path) -> Cell | None:
        """Read a cell; None if the file is missing or damaged, so that it is computed again."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                meta = json.loads(str(stored["meta"]))
                history = {
                    name.removeprefix("history."): stored[name]
                    for name in stored.files
                    if name.startswith("history.")
                }
                return cls(theta=stored["theta"], history=history, **meta)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
            return None


def run_cells(
    problem: ImmunizationProblem,
    plans: list[CellPlan],
    folder: Path | None,
    *,
    jobs: int = 1,
    on_cell: Callable[[Cell, int, int], None] | None = None,
) -> list[Cell]:
    """Compute the planned cells, reusing finished ones.

    Args:
        problem: The two tasks.
        plans: Cells wanted.
        folder: Where cells are kept; None keeps none.
        jobs: Worker processes (one BLAS thread each); 1 computes here.
        on_cell: Told of each finished cell, with how many are done and how many there are.

    Returns:
        The cells, in the order of the plans.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    cells: dict[str, Cell] = {}
    for plan in plans:
        stored = Cell.load(folder / plan.filename) if folder is not None else None
        if stored is not None:
            cells[plan.key] = stored
    missing = [plan for plan in plans if plan.key not in cells]
    for plan, cell in _compute(problem, missing, jobs):
        if folder is not None:
            cell.save(folder / plan.filename)
        cells[plan.key] = cell
        report_event(stage=cell.method, seed=cell.seed, done=len(cells), total=len(plans))
        if on_cell is not None:
            on_cell(cell, len(cells), len(plans))
    return [cells[plan.key] for plan in plans]


def _compute(
    problem: ImmunizationProblem, plans: list[CellPlan], jobs: int
) -> Iterator[tuple[CellPlan, Cell]]:
    """Yield each cell as it is finished."""
    quick = [plan for plan in plans if plan.settings is None]
    slow = sorted((plan for plan in plans if plan.settings is not None), key=_cost, reverse=True)
    for plan in quick:
        yield plan, _cell(problem, plan)
    small = sum(map(_cost, slow)) < PARALLEL_STEPS
    if jobs == 1 or len(slow) < 2 or small or problem.device.type != "cpu":
        for plan in slow:
            yield _planned(problem, plan)
        return
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        run = joblib.Parallel(n_jobs=min(jobs, len(slow)), return_as="generator_unordered")
        yield from run(joblib.delayed(_planned)(problem, plan) for plan in slow)


def _cost(plan: CellPlan) -> int:
    """Return the number of steps: long cells start first, so that no worker waits at the end."""
    return 0 if plan.settings is None else plan.settings.steps


def _planned(problem: ImmunizationProblem, plan: CellPlan) -> tuple[CellPlan, Cell]:
    """Compute a cell on one thread, whoever computes it, so that a seed gives the same θ everywhere.

    Matrices of this size gain nothing from more threads, and a long descent amplifies the round-off
    in which differently threaded sums differ.

    Args:
        problem: The two tasks.
        plan: What to compute.

    Returns:
        The plan with its cell.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return plan, _cell(problem, plan)
    finally:
        torch.set_num_threads(threads)


def _cell(problem: ImmunizationProblem, plan: CellPlan) -> Cell:
    """Compute one cell."""
    if plan.settings is None:
        result = immunize(problem, plan.method, seed=plan.seed)
    else:
        result = immunize(problem, plan.method, seed=plan.seed, settings=plan.settings, callback=report_step)
    return Cell.of(result)


def report_step(progress: Progress) -> None:
    """Pass a recorded step on to whoever follows the run; a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)
