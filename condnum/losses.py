"""Supervised losses of a linear predictor `β = θω`, each with its own derivative.

Everything that the squared loss needs is in `K = XᵀX`, `XᵀY` and `‖Y‖²`, so that a full-batch step
never touches the rows; the logistic loss needs the rows and keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus


class SupervisedLoss(Protocol):
    """A loss of the predictor `β = θω` (Eq. 4) that knows its own derivative."""

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean loss of `β`, differentiable by autograd."""

    def residual(self, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(L, ∂L/∂β)`; then `∇_θ L = (∂L/∂β)ωᵀ` and `∇_ω L = θᵀ(∂L/∂β)`."""


@dataclass(frozen=True)
class SquaredLoss:
    """Mean squared error from sufficient statistics: `L(β) = (βᵀKβ − 2βᵀXᵀY + ‖Y‖²)/N`."""

    covariance: Tensor  # (D, D), XᵀX
    moment: Tensor  # (D, m), XᵀY
    energy: float  # ‖Y‖²
    rows: int  # N

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean squared error of `β` `(D, m)`."""
        quadratic = (predictor * (self.covariance @ predictor - 2 * self.moment)).sum()
        return (quadratic + self.energy) / self.rows

    def residual(self, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(L, (2/N)(Kβ − XᵀY))`."""
        product = self.covariance @ predictor
        loss = ((predictor * (product - 2 * self.moment)).sum() + self.energy) / self.rows
        return loss, (2 / self.rows) * (product - self.moment)


@dataclass(frozen=True)
class LogisticLoss:
    """Mean binary cross-entropy of labels in [0, 1] with the logit `xᵀβ`."""

    features: Tensor  # (N, D)
    targets: Tensor  # (N, m)

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean cross-entropy of `β` `(D, m)`, in nats."""
        logits = self.features @ predictor
        return (softplus(logits) - self.targets * logits).mean()

    def residual(self, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(L, Xᵀ(sigmoid(Xβ) − Y)/N)`."""
        logits = self.features @ predictor
        loss = (softplus(logits) - self.targets * logits).mean()
        return loss, self.features.mT @ (torch.sigmoid(logits) - self.targets) / self.targets.numel()
