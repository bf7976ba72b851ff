"""The tasks of a digit pair, built once per process and shared by all cells that need them.

A digit's covariance depends on the digit and on the cut to the smaller class alone: 90 pairs need
55 different ones, not 180.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from condnum.data import Digits
from condnum.extremes import gram
from condnum.problem import ImmunizationProblem
from condnum.spectra import covariance_factor
from condnum.sweep import DataReference, cached
from condnum.tasks import LinearTask


def digit_problem(
    reference: DataReference,
    pretrain: int,
    harmful: int,
    *,
    loss_rows: int,
    labels: str,
    device: str = "cpu",
) -> ImmunizationProblem:
    """Build the problem (p, h): covariances of the two digits, logistic losses one-vs-rest."""
    digits = reference.load()
    count = min(digits.counts[pretrain], digits.counts[harmful])
    data = (reference.name, reference.checksum)
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
