"""Cells of digit pairs: the tasks of a pair, what is measured of θ, and many cells at once on a GPU."""

import dataclasses
import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from condnum.data import Digits
from condnum.machine import limit_threads, limited_threads
from condnum.methods import (
    DescentSettings,
    ImmunizationResult,
    get_method,
    immunize_batch,
)
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.studies.frame.cells import Cell, CellResult, cached
from condnum.studies.frame.executors import core_count
from condnum.studies.measure import ceilings, spectral_cell
from condnum.theory.extremes import gram

#: What decides the tasks of a cell, beside the data.
_TASKS = ("pretrain", "harmful", "labels")

#: Rows of the supervised loss, balanced.
LOSS_ROWS = 1000

_T = TypeVar("_T")
_R = TypeVar("_R")


def digit_problem(
    digits: Digits, pretrain: int, harmful: int, *, labels: str, device: str = "cpu"
) -> ImmunizationProblem:
    """Build the problem (p, h), once per process: covariances of two digits, logistic losses one-vs-rest."""
    count = min(digits.counts[pretrain], digits.counts[harmful])

    def task(digit: int, label: float) -> LinearTask:
        """Return a digit's covariance, from its first `count` images, and its loss on a sample."""
        own = np.flatnonzero(digits.labels == digit)[:count]
        X = torch.from_numpy(digits.pixels(own))
        if labels == "published":
            index = own[:LOSS_ROWS]
            targets = np.full(len(index), label)
        else:
            half = min(count, LOSS_ROWS // 2)
            rest = np.flatnonzero(digits.labels != digit)
            drawn = np.random.default_rng([digit, count]).choice(rest, size=half, replace=False)
            index, targets = np.concatenate([own[:half], drawn]), np.repeat([1.0, 0.0], half)
        K = gram(X)
        return LinearTask(
            K.to(device),
            targets=torch.as_tensor(targets)[:, None].to(device),
            loss="bce",
            loss_features=torch.from_numpy(digits.pixels(index)).to(device),
        )

    def shared(digit: int, label: float) -> LinearTask:
        key = ("task", digits, digit, count, labels, label, device)
        return cached(key, lambda: task(digit, label))

    # One-vs-rest is one task whichever side it is on; a digit alone has its side's label.
    return ImmunizationProblem(shared(pretrain, 0.0), shared(harmful, 1.0 if labels == "published" else 0.0))


def cell_problem(digits: Digits, cell: Cell, device: str) -> ImmunizationProblem:
    """Return the tasks of a cell."""
    return digit_problem(digits, **{name: cell[name] for name in _TASKS}, device=device)


def measure_cell(
    cell: Cell, problem: ImmunizationProblem, result: ImmunizationResult, bounds: dict[str, float]
) -> CellResult:
    """Measure what a method made of a cell."""
    row, arrays = spectral_cell(problem, result)
    own = {"pretrain_digit": cell["pretrain"], "harmful_digit": cell["harmful"]}
    return CellResult(row | own | bounds, arrays)


@dataclass
class DigitBatches:
    """The digit pairs' part of a `BatchExecutor`.

    The tasks stay on the CPU, where cells are measured too, one thread a core: cuSOLVER batches singular
    value decompositions up to 32×32 alone, and a cell needs three of D×D.
    """

    digits: Digits
    device: torch.device
    memory_bytes: int | None = None
    _pairs: dict[Any, tuple[ImmunizationProblem, dict[str, float]]] = field(default_factory=dict, init=False)

    def group(self, cell: Cell) -> Hashable | None:
        """Return method and settings, which the cells of a batch share; None for what knows no batches."""
        if not get_method(cell["method"]).batched:
            return None
        common = {name: cell[name] for name in ("method", "labels")}
        return json.dumps([common, cell.settings], sort_keys=True)

    def size(self, cells: Sequence[Cell]) -> int:
        """Return how many of these cells fit on the device, by the one that takes most."""
        problems, _ = self._of(cells)
        return batch_size(max(problems, key=problem_bytes), self.device, self.memory_bytes)

    def compute(self, cells: Sequence[Cell]) -> list[CellResult | Exception]:
        """Immunize cells together and measure each."""
        problems, bounds = self._of(cells)
        results = immunize_batch(
            problems,
            cells[0]["method"],
            seeds=[cell["seed"] for cell in cells],
            settings=_settings(cells[0]),
            device=self.device,
        )

        def measured(index: int) -> CellResult | Exception:
            result = dataclasses.replace(results[index], theta=results[index].theta.cpu())
            try:
                return measure_cell(cells[index], problems[index], result, bounds[index])
            except Exception as error:
                return error

        return _on_all_cores(measured, range(len(cells)))

    def _of(self, cells: Sequence[Cell]) -> tuple[list[ImmunizationProblem], list[dict[str, float]]]:
        """Return the tasks of cells, on the CPU, and their ceilings; kept for every method and seed."""

        def build(cell: Cell) -> tuple[ImmunizationProblem, dict[str, float]]:
            problem = cell_problem(self.digits, cell, "cpu")
            return problem, ceilings(problem)

        names = [tuple(cell[name] for name in _TASKS) for cell in cells]
        new = {name: cell for name, cell in zip(names, cells, strict=True) if name not in self._pairs}
        self._pairs |= dict(zip(new, _on_all_cores(build, list(new.values())), strict=True))
        found = [self._pairs[name] for name in names]
        return [problem for problem, _ in found], [bounds for _, bounds in found]


def _settings(cell: Cell) -> DescentSettings | None:
    """Return the settings of a cell's method; None for closed forms."""
    defaults: Any = get_method(cell["method"]).defaults
    return None if defaults is None else defaults.with_overrides(**cell.settings)


def _on_all_cores(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Apply a function to each item, one thread a core; torch and BLAS let go of the interpreter."""
    with (
        limited_threads(1),
        ThreadPoolExecutor(core_count(), initializer=limit_threads, initargs=(1,)) as pool,
    ):
        return list(pool.map(function, items))


def problem_bytes(problem: ImmunizationProblem) -> int:
    """Estimate the memory that one more problem takes in a batch."""
    D = problem.dimension
    # θ, its copy, gradient, two moments of Adam, two parts of it, a Hessian, and as many again for what lives
    # inside a step (IMMA's graph, norms); the basis of Lanczos.
    numbers = 16 * D**2 + 32 * D
    for task in (problem.pretrain, problem.harmful):
        rows = 0 if task.supervised_rows is None else len(task.supervised_rows)
        numbers += 2 * task.rank * D + rows * D
    r = problem.harmful.rank
    return 8 * (numbers + 4 * r**2 + r * D)  # the inverse of the harmful task's dual Gram matrix


def batch_size(problem: ImmunizationProblem, device: torch.device, memory_bytes: int | None = None) -> int:
    """Return how many problems like this one fit on a device at once."""
    if memory_bytes is None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        memory_bytes = int(0.8 * (free + reusable))  # the rest is for what the libraries allocate
    elif memory_bytes is None:
        memory_bytes = 2 * 2**30  # nobody says what is free: as a sweep's workers take
    return max(1, memory_bytes // problem_bytes(problem))
