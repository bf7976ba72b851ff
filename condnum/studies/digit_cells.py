"""Cells of digit pairs: the tasks of a pair, what is measured of θ, and many cells at once on a GPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from condnum.data import Digits
from condnum.machine import limit_threads, limited_threads
from condnum.methods import (
    DescentSettings,
    ImmunizationResult,
    descends_in_batches,
    get_method,
    immunize_batch,
)
from condnum.methods.problem import ImmunizationProblem, LinearTask, batch_size, problem_bytes
from condnum.studies.cells import Cell, CellResult, cached
from condnum.studies.executors import core_count
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.theory.extremes import gram
from condnum.theory.spectra import PUBLISHED_RIDGE, CovarianceRange, covariance_factor, hessian_spectrum

#: What decides the tasks of a cell, beside the data.
TASKS = ("pretrain", "harmful", "labels", "loss_rows")


def digit_problem(
    digits: Digits,
    pretrain: int,
    harmful: int,
    *,
    loss_rows: int,
    labels: str,
    device: str = "cpu",
) -> ImmunizationProblem:
    """Build the problem (p, h): covariances of the two digits, logistic losses one-vs-rest.

    Tasks are built once a process and shared by all cells that need them.
    """
    count = min(digits.counts[pretrain], digits.counts[harmful])
    data = (digits.name, digits.checksum)
    tasks = [
        cached(
            ("task", *data, digit, count, loss_rows, labels, label, device),
            partial(_task, digits, digit, count, loss_rows, labels, label, device),
        )
        # One-vs-rest is one task whichever side it is on; a digit alone has its side's label.
        for digit, label in ((pretrain, 0.0), (harmful, 1.0 if labels == "published" else 0.0))
    ]
    return ImmunizationProblem(*tasks)


def _task(
    digits: Digits, digit: int, count: int, loss_rows: int, labels: str, label: float, device: str
) -> LinearTask:
    """Return a digit's covariance with its factor, from its first `count` images, and its loss."""
    X = torch.from_numpy(digits.pixels(np.flatnonzero(digits.labels == digit)[:count]))
    K = gram(X)
    rows, targets = _loss_rows(digits, digit, count, loss_rows, labels, label)
    return LinearTask(
        K.to(device),
        targets=targets.to(device),
        loss="bce",
        loss_features=rows.to(device),
        known_factor=covariance_factor(K).to(device),
    )


def _loss_rows(
    digits: Digits, digit: int, count: int, loss_rows: int, labels: str, label: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sample of the supervised loss, `(rows, D)` and `(rows, 1)`."""
    own = np.flatnonzero(digits.labels == digit)[:count]
    if labels == "published":
        index = own[:loss_rows]
        targets = np.full(len(index), label)
    else:
        half = min(count, loss_rows // 2)
        rest = np.flatnonzero(digits.labels != digit)
        drawn = np.random.default_rng([digit, count]).choice(rest, size=half, replace=False)
        index, targets = np.concatenate([own[:half], drawn]), np.repeat([1.0, 0.0], half)
    return torch.from_numpy(digits.pixels(index)), torch.as_tensor(targets)[:, None]


#: Values of ε, in units of K = XᵀX, at which the ridge convention is read.
RIDGES = (1e-9, PUBLISHED_RIDGE, 1e-3, 1.0, 1e3)


def cell_problem(digits: Digits, cell: Cell, device: str) -> ImmunizationProblem:
    """Return the tasks of a cell."""
    return digit_problem(digits, **{name: cell[name] for name in TASKS}, device=device)


def measure_cell(
    cell: Cell, problem: ImmunizationProblem, result: ImmunizationResult, bounds: dict[str, float]
) -> CellResult:
    """Measure what a method made of a cell: spectra, from which every convention can be read."""
    theta = result.theta
    sigma = torch.linalg.svdvals(theta)
    row: dict[str, Any] = {
        "method": cell["method"],
        "seed": cell["seed"],
        "pretrain_digit": cell["pretrain"],
        "harmful_digit": cell["harmful"],
        "dimension": problem.dimension,
        "squared_norm": float(theta.square().sum()),
        "theta_condition": float(sigma[0] / sigma[-1]),
        "loss_gap": problem.pretrain.loss_gap(theta),
        "steps": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        "eigh_fallbacks": result.counts.get("eigh_fallbacks", 0),
        **bounds,
    }
    arrays = {f"history.{name}": values for name, values in result.history.columns.items()}
    for name, task in (("pretrain", problem.pretrain), ("harmful", problem.harmful)):
        arrays[f"{name}_before"] = task.factor.square().sum(dim=1).cpu().numpy()  # rows are orthogonal
        arrays[f"{name}_after"] = hessian_spectrum(theta, task.factor).cpu().numpy()
    return CellResult(row, arrays)


def ceilings(problem: ImmunizationProblem) -> dict[str, float]:
    """Return the RIR ceilings of a pair in both conventions."""
    P, H = (CovarianceRange.of_factor(task.factor) for task in (problem.pretrain, problem.harmful))
    ridged = {ridge_ceiling_column(ridge): ridge_convention_ceiling(P, H, ridge=ridge) for ridge in RIDGES}
    return {"ceiling_compact": rir_ceiling(P, H).value, **ridged}


def ridge_ceiling_column(ridge: float) -> str:
    """Return the name of a stored ceiling of the ridge convention.

    Examples:
        >>> ridge_ceiling_column(1e-6)
        'ceiling_ridge_1e-06'
    """
    return f"ceiling_ridge_{ridge:g}"


T = TypeVar("T")
R = TypeVar("R")


@dataclass
class DigitBatches:
    """The digit pairs' part of a `BatchExecutor`.

    The tasks stay on the CPU, where cells are measured too, one thread a core: cuSOLVER batches singular
    value decompositions up to 32×32 alone, and a cell needs three of D×D.
    """

    digits: Digits
    device: torch.device
    memory_bytes: int | None = None
    _problems: dict[Any, ImmunizationProblem] = field(default_factory=dict, init=False)
    _ceilings: dict[Any, dict[str, float]] = field(default_factory=dict, init=False)

    def group(self, cell: Cell) -> Hashable | None:
        """Return method and settings, which the cells of a batch share; None for what knows no batches."""
        method = cell["method"]
        if not descends_in_batches(method, _settings(cell)):
            return None
        common = {name: cell[name] for name in ("method", "labels", "loss_rows")}
        return json.dumps([common, cell.settings], sort_keys=True)

    def size(self, cells: Sequence[Cell]) -> int:
        """Return how many of these cells fit on the device, by the one that takes most."""
        largest = max(self._of(cells), key=problem_bytes)
        return batch_size(largest, self.device, self.memory_bytes)

    def compute(self, cells: Sequence[Cell]) -> list[CellResult | Exception]:
        """Immunize cells together and measure each."""
        problems = self._of(cells)
        results = immunize_batch(
            problems,
            cells[0]["method"],
            seeds=[cell["seed"] for cell in cells],
            settings=_settings(cells[0]),
            device=self.device,
        )

        def measured(
            item: tuple[Cell, ImmunizationProblem, ImmunizationResult],
        ) -> CellResult | Exception:
            cell, problem, result = item
            try:
                on_host = dataclasses.replace(result, theta=result.theta.cpu())
                return measure_cell(cell, problem, on_host, self._ceilings[_tasks(cell)])
            except Exception as error:
                return error

        new = {_tasks(cell): problem for cell, problem in zip(cells, problems, strict=True)}
        new = {tasks: problem for tasks, problem in new.items() if tasks not in self._ceilings}
        self._ceilings |= dict(zip(new, _on_all_cores(ceilings, list(new.values())), strict=True))
        return _on_all_cores(measured, list(zip(cells, problems, results, strict=True)))

    def _of(self, cells: Sequence[Cell]) -> list[ImmunizationProblem]:
        """Return the tasks of cells, on the CPU; kept, as every method and seed needs them."""
        new = {_tasks(cell): cell for cell in cells if _tasks(cell) not in self._problems}
        built = _on_all_cores(lambda cell: cell_problem(self.digits, cell, "cpu"), list(new.values()))
        self._problems |= dict(zip(new, built, strict=True))
        return [self._problems[_tasks(cell)] for cell in cells]


def _tasks(cell: Cell) -> tuple[Any, ...]:
    """Return what decides the tasks of a cell."""
    return tuple(cell[name] for name in TASKS)


def _settings(cell: Cell) -> DescentSettings | None:
    """Return the settings of a cell's method; None for closed forms."""
    defaults = getattr(get_method(cell["method"]), "defaults", None)
    return None if defaults is None else defaults.with_overrides(**cell.settings)


def _on_all_cores(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Apply a function to each item, one thread a core; torch and BLAS let go of the interpreter."""
    with (
        limited_threads(1),
        ThreadPoolExecutor(core_count(), initializer=limit_threads, initargs=(1,)) as pool,
    ):
        return list(pool.map(function, items))
