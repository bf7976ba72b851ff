"""Cells of digit pairs: the tasks of a pair, and what is measured of θ."""

import numpy as np
import torch

from condnum.data import Digits
from condnum.methods import ImmunizationResult
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.studies.frame.cells import Cell, CellResult, cached
from condnum.studies.measure import spectral_cell
from condnum.theory.extremes import gram

#: What decides the tasks of a cell, beside the data.
_TASKS = ("pretrain", "harmful", "labels")

#: Rows of the supervised loss, balanced.
LOSS_ROWS = 1000


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
