"""The two tasks as a setting of the switches sees them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from condnum.data import Digits, TaskPair
from condnum.data.standardise import standardise
from condnum.experiments.digit_tasks import digit_problem
from condnum.experiments.released.data_sets import FIRST_ROWS, LOSS_ROWS, AuditData
from condnum.experiments.released.switches import ProtocolSwitches
from condnum.extremes import gram
from condnum.problem import ImmunizationProblem
from condnum.spectra import covariance_factor
from condnum.sweep import DataReference, cached
from condnum.tasks import LinearTask

#: Switches that decide the tasks.
TASK_SWITCHES = ("encoders", "normalise", "rows", "labels", "bias")


@dataclass(frozen=True)
class SwitchedTasks:
    """The tasks that are trained on, and the raw inputs that RIR compares with."""

    problem: ImmunizationProblem  # inputs (N, D), or (N, D + 1) with a constant column for the bias
    inputs: ImmunizationProblem  # (N, D), without it
    image_side: int | None  # of the images; None for tables

    @property
    def has_bias(self) -> bool:
        """Whether the inputs of the problem end with a constant column."""
        return self.problem.dimension > self.inputs.dimension


def switched_tasks(data: AuditData, reference: DataReference, switches: ProtocolSwitches) -> SwitchedTasks:
    """Build the tasks of a setting, once a process for all settings that share them."""
    key = tuple(getattr(switches, name) for name in TASK_SWITCHES)
    return cached(("released-tasks", data, reference, key), lambda: _build(data, reference, switches))


def with_constant_input(problem: ImmunizationProblem) -> ImmunizationProblem:
    """Append a constant input 1 to every row, so that a bias is one more row of θ.

    Examples:
        >>> problem = ImmunizationProblem.from_data([[2.0], [3.0]], [0.0, 1.0], [[1.0]])
        >>> with_constant_input(problem).pretrain.covariance
        tensor([[13.,  5.],
                [ 5.,  2.]], dtype=torch.float64)
    """
    return ImmunizationProblem(_with_constant(problem.pretrain), _with_constant(problem.harmful))


def first_rows(pair: TaskPair, *, standardise_again: bool) -> TaskPair:
    """Cut a pair to the first 200 rows of each task, as the release does.

    Examples:
        >>> from condnum.data import load_diabetes_tasks
        >>> first_rows(load_diabetes_tasks(), standardise_again=True).rows_harmful
        200
    """
    cut: dict[str, Any] = {}
    for name in ("X_P", "y_P", "X_H", "y_H"):
        kept = np.array(getattr(pair, name)[:FIRST_ROWS])
        cut[name] = standardise(kept) if standardise_again else kept
    return replace(pair, **cut)


def _build(data: AuditData, reference: DataReference, switches: ProtocolSwitches) -> SwitchedTasks:
    """Build the tasks of a setting."""
    if data.pair is None:
        inputs, side = _table_problem(data, reference, switches), None
    else:
        digits: Digits = reference.load()
        inputs, side = _digit_problem(reference, digits, data.pair, switches), int(digits.images.shape[1])
    if switches.bias == "without":
        return SwitchedTasks(inputs, inputs, side)
    return SwitchedTasks(with_constant_input(inputs), inputs, side)


def _table_problem(
    data: AuditData, reference: DataReference, switches: ProtocolSwitches
) -> ImmunizationProblem:
    """Return the problem of a table: encoders, standardisation and rows as the switches say."""
    options: dict[str, Any] = {"features": "published", "rows": None}
    if data.name == "house-prices":
        before = switches.normalise == "table"
        options |= {
            "encoders": switches.encoders,
            "normalise": "before_split" if before else "per_task",
        }
    pair: TaskPair = reference.load(**options)
    if switches.rows == "first":
        pair = first_rows(pair, standardise_again=switches.normalise == "kept")
    return ImmunizationProblem.from_pair(pair)


def _digit_problem(
    reference: DataReference, digits: Digits, pair: tuple[int, int], switches: ProtocolSwitches
) -> ImmunizationProblem:
    """Return the problem of a pair of digits, with rows for mini-batches."""
    problem = digit_problem(reference, *pair, loss_rows=LOSS_ROWS, labels=switches.labels)
    count = digits.smaller_count(*pair)
    tasks = []
    for digit, task in zip(pair, (problem.pretrain, problem.harmful), strict=True):
        X = torch.from_numpy(digits.pixels(np.flatnonzero(digits.labels == digit)[:count]))
        if switches.labels == "published":  # the loss is on the images of K themselves, all of one class
            label = float(digit == pair[1])
            targets = torch.full((count, 1), label, dtype=torch.float64)
            task = replace(task, targets=targets, loss_features=None)
        tasks.append(replace(task, features=X))
    return ImmunizationProblem(*tasks)


def _with_constant(task: LinearTask) -> LinearTask:
    """Return a task with a constant input appended."""
    assert task.features is not None  # tasks of this experiment always have rows
    X = _append_one(task.features)
    K = gram(X)
    loss_features = None if task.loss_features is None else _append_one(task.loss_features)
    return LinearTask(K, X, task.targets, task.loss, loss_features, covariance_factor(K))


def _append_one(X: Tensor) -> Tensor:
    """Return `[X, 1]`."""
    return torch.cat([X, X.new_ones(len(X), 1)], dim=1)
