"""Digit-pair cells many at a time: one method's descents together on a GPU, then each measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch

from condnum.experiments.digit_cell import ceilings, cell_problem, measure_cell
from condnum.methods import (
    DescentSettings,
    ImmunizationResult,
    descends_in_batches,
    get_method,
    immunize_batch,
)
from condnum.methods.batched.memory import batch_size, problem_bytes
from condnum.problem import ImmunizationProblem
from condnum.sweep import CellPlan, CellResult, core_count
from condnum.threads import limit_threads, limited_threads

T = TypeVar("T")
R = TypeVar("R")

_COORDINATES = ("pretrain", "harmful", "labels", "loss_rows")
_Tasks: TypeAlias = tuple[Any, ...]


@dataclass
class DigitBatches:
    """The digit pairs' part of a `BatchExecutor`.

    The tasks stay on the CPU, where cells are measured too, one thread a core: cuSOLVER batches singular
    value decompositions up to 32×32 alone, and a cell needs three of D×D.
    """

    device: torch.device
    memory_bytes: int | None = None
    _problems: dict[_Tasks, ImmunizationProblem] = field(default_factory=dict, init=False)
    _ceilings: dict[_Tasks, dict[str, float]] = field(default_factory=dict, init=False)

    def group(self, plan: CellPlan) -> Hashable | None:
        """Return method and settings, which the cells of a batch share; None for what knows no batches."""
        method = plan.payload["method"]
        if not descends_in_batches(method, _settings(plan)):
            return None
        common = {name: plan.payload[name] for name in ("method", "labels", "loss_rows")}
        return json.dumps([common, plan.settings, plan.data_checksum], sort_keys=True)

    def size(self, plans: Sequence[CellPlan]) -> int:
        """Return how many of these cells fit on the device, by the one that takes most."""
        largest = max(self._of(plans), key=problem_bytes)
        return batch_size(largest, self.device, self.memory_bytes)

    def compute(self, plans: Sequence[CellPlan]) -> list[CellResult | Exception]:
        """Immunize cells together and measure each."""
        problems = self._of(plans)
        results = immunize_batch(
            problems,
            plans[0].payload["method"],
            seeds=[plan.payload["seed"] for plan in plans],
            settings=_settings(plans[0]),
            device=self.device,
        )

        def measured(
            item: tuple[CellPlan, ImmunizationProblem, ImmunizationResult],
        ) -> CellResult | Exception:
            plan, problem, result = item
            try:
                on_host = dataclasses.replace(result, theta=result.theta.cpu())
                return measure_cell(plan, problem, on_host, self._ceilings[_tasks(plan)])
            except Exception as error:
                return error

        new = {_tasks(plan): problem for plan, problem in zip(plans, problems, strict=True)}
        new = {tasks: problem for tasks, problem in new.items() if tasks not in self._ceilings}
        self._ceilings |= dict(zip(new, _on_all_cores(ceilings, list(new.values())), strict=True))
        return _on_all_cores(measured, list(zip(plans, problems, results, strict=True)))

    def _of(self, plans: Sequence[CellPlan]) -> list[ImmunizationProblem]:
        """Return the tasks of cells, on the CPU; kept, as every method and seed needs them."""
        new = {_tasks(plan): plan for plan in plans if _tasks(plan) not in self._problems}
        built = _on_all_cores(lambda plan: cell_problem(plan, "cpu"), list(new.values()))
        self._problems |= dict(zip(new, built, strict=True))
        return [self._problems[_tasks(plan)] for plan in plans]


def _tasks(plan: CellPlan) -> _Tasks:
    """Return what decides the tasks of a cell."""
    return (*(plan.payload[name] for name in _COORDINATES), plan.data_checksum)


def _settings(plan: CellPlan) -> DescentSettings | None:
    """Return the settings of a cell's method; None for closed forms."""
    defaults = getattr(get_method(plan.payload["method"]), "defaults", None)
    return None if defaults is None else defaults.with_overrides(**plan.settings)


def _on_all_cores(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Apply a function to each item, one thread a core; torch and BLAS let go of the interpreter."""
    with (
        limited_threads(1),
        ThreadPoolExecutor(core_count(), initializer=limit_threads, initargs=(1,)) as pool,
    ):
        return list(pool.map(function, items))
