"""Supervised losses of a batch of tasks: those of `condnum.losses`, with a leading dimension.

Tasks may have different numbers of rows: rows of zeros pad them, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from condnum.errors import InvalidInputError
from condnum.losses import LogisticLoss, SquaredLoss, SupervisedLoss
from condnum.methods.batched.padding import stack_padded


class LossBatch(Protocol):
    """Losses of the predictors `β = θω` of a batch that know their own derivatives."""

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean loss `(b,)` of each `β` `(b, D, m)`, differentiable by autograd."""

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β`, `(b, D, m)`."""


@dataclass(frozen=True)
class SquaredLossBatch:
    """Mean squared errors from sufficient statistics."""

    covariance: Tensor  # (b, D, D), XᵀX
    moment: Tensor  # (b, D, m), XᵀY
    energy: Tensor  # (b,), ‖Y‖²
    rows: Tensor  # (b,), N

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean squared errors `(b,)`."""
        product = self.covariance @ predictor
        return ((predictor * (product - 2 * self.moment)).sum(dim=(1, 2)) + self.energy) / self.rows

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `(2/N)(Kβ − XᵀY)`."""
        return (2 / self.rows)[:, None, None] * (self.covariance @ predictor - self.moment)


@dataclass(frozen=True)
class LogisticLossBatch:
    """Mean binary cross-entropies."""

    features: Tensor  # (b, N, D), padded
    targets: Tensor  # (b, N, m), padded
    rows: Tensor  # (b,), rows that are not padding

    @property
    def _entries(self) -> Tensor:
        """Number of labels of each task, `(b,)`."""
        return self.rows * self.targets.shape[2]

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean cross-entropies `(b,)`, in nats."""
        logits = self.features @ predictor
        own = torch.arange(logits.shape[1], device=logits.device) < self.rows[:, None]
        losses = (softplus(logits) - self.targets * logits) * own[:, :, None]  # a zero row has log 2
        return losses.sum(dim=(1, 2)) / self._entries

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `Xᵀ(sigmoid(Xβ) − Y)/N`, to which rows of zeros add nothing."""
        excess = torch.sigmoid(self.features @ predictor) - self.targets
        return self.features.mT @ excess / self._entries[:, None, None]


def stack_losses(losses: Sequence[SupervisedLoss | None], device: torch.device) -> LossBatch | None:
    """Stack the losses of a batch of tasks."""

    def numbers(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    if all(loss is None for loss in losses):
        return None
    squared = [loss for loss in losses if isinstance(loss, SquaredLoss)]
    logistic = [loss for loss in losses if isinstance(loss, LogisticLoss)]
    if len(squared) == len(losses):
        return SquaredLossBatch(
            stack_padded([loss.covariance for loss in squared], device),
            stack_padded([loss.moment for loss in squared], device),
            numbers([loss.energy for loss in squared]),
            numbers([loss.rows for loss in squared]),
        )
    if len(logistic) == len(losses):
        return LogisticLossBatch(
            stack_padded([loss.features for loss in logistic], device),
            stack_padded([loss.targets for loss in logistic], device),
            numbers([loss.features.shape[0] for loss in logistic]),
        )
    kinds = sorted({type(loss).__name__ for loss in losses})
    raise InvalidInputError(f"the tasks of a batch must have one kind of loss, got {', '.join(kinds)}.")
