r"""Losses of a probe for a whole grid of candidates at once, relative to start and optimum.

.. math:: e(W) = \frac{L(W) - L^*}{L_0 - L^*}, \qquad L_0 = L(0), \quad L^* = \inf_W L(W)

Weights are `(B, k, m)`: B candidates, k features, m outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError

Array = NDArray[np.float64]


class Objective(Protocol):
    """A loss on one feature space, with its start, its optimum and its curvature."""

    @property
    def outputs(self) -> int:
        """Number of outputs m."""

    @property
    def rows(self) -> int:
        """Number of rows N."""

    @property
    def start_loss(self) -> float:
        """`L₀ = L(0)`."""

    @property
    def optimum(self) -> float:
        """`L*`."""

    @property
    def smoothness(self) -> float:
        """A bound on the largest curvature of L."""

    def evaluate(self, weights: Array) -> tuple[Array, Array]:
        """Return relative excess loss `(B,)` and the gradient of L `(B, k, m)`."""

    def batch_gradient(self, weights: Array, index: NDArray[np.int64]) -> Array:
        """Return the gradient of the mean loss of some rows, `(B, k, m)`."""


def predict(features: Array, weights: Array) -> Array:
    """Return `FW` of all candidates by one matrix product.

    Examples:
        >>> predict(np.ones((4, 2)), np.ones((3, 2, 1))).shape
        (4, 3, 1)
    """
    B, k, m = weights.shape
    return (features @ weights.transpose(1, 0, 2).reshape(k, B * m)).reshape(-1, B, m)


def pull_back(features: Array, residual: Array) -> Array:
    """Return `Fᵀr` of all candidates: `(N, k)` and `(N, B, m)` give `(B, k, m)`."""
    N, B, m = residual.shape
    return (features.T @ residual.reshape(N, B * m)).reshape(-1, B, m).transpose(1, 0, 2)


@dataclass(frozen=True, eq=False)
class SquaredObjective:
    r"""Mean squared error `‖FW − Y‖²/N` through its Hessian: `L − L* = ⟨W − W*, H(W − W*)⟩`, `H = FᵀF/N`.

    The difference `W − W*` is formed first, so that a small excess loss has no cancellation.
    """

    features: Array  # (N, k)
    targets: Array  # (N, m)
    solution: Array  # (k, m), W*
    optimum: float  # L*

    def __post_init__(self) -> None:
        if not self.start_loss > self.optimum:
            raise InvalidInputError(
                "the targets have no part in the range of the features: no probe gets better than zero, so "
                "there is nothing to attack; check features and targets."
            )

    @property
    def outputs(self) -> int:
        """Number of outputs m."""
        return self.targets.shape[1]

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return len(self.targets)

    @cached_property
    def start_loss(self) -> float:
        """`‖Y‖²/N`."""
        return float((self.targets**2).sum()) / self.rows

    @cached_property
    def hessian(self) -> Array:
        """`FᵀF/N`, `(k, k)`; half of the Hessian of L."""
        return self.features.T @ self.features / self.rows

    @cached_property
    def smoothness(self) -> float:
        """`2σ₁(H)`."""
        return 2 * float(np.linalg.eigvalsh(self.hessian)[-1])

    def evaluate(self, weights: Array) -> tuple[Array, Array]:
        """Return relative excess loss `(B,)` and `2H(W − W*)` `(B, k, m)`."""
        error = weights - self.solution
        product = predict(self.hessian, error).transpose(1, 0, 2)
        return (error * product).sum(axis=(1, 2)) / (self.start_loss - self.optimum), 2 * product

    def batch_gradient(self, weights: Array, index: NDArray[np.int64]) -> Array:
        """Return `2Fᵀ(FW − Y)/n` of the rows `index`."""
        F = self.features[index]
        return 2 / len(index) * pull_back(F, predict(F, weights) - self.targets[index][:, None])


@dataclass(frozen=True, eq=False)
class LogisticObjective:
    """Mean cross-entropy in nats: logistic with one output for two classes, softmax for more."""

    features: Array  # (N, k)
    labels: NDArray[np.int64]  # (N,) in 0 … C − 1
    classes: int  # C
    optimum: float = 0.0  # L*, the infimum; 0 where the classes can be separated

    @property
    def outputs(self) -> int:
        """1 for two classes, C for more."""
        return 1 if self.classes == 2 else self.classes

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return len(self.labels)

    @property
    def start_loss(self) -> float:
        """`ln C`."""
        return float(np.log(self.classes))

    @cached_property
    def smoothness(self) -> float:
        """`σ₁(FᵀF/N)/4` for two classes, `/2` for more (Böhning 1992)."""
        F = self.features
        gram = F.T @ F if F.shape[1] <= F.shape[0] else F @ F.T
        return float(np.linalg.eigvalsh(gram)[-1]) / self.rows / (4 if self.classes == 2 else 2)

    def evaluate(self, weights: Array) -> tuple[Array, Array]:
        """Return relative excess loss `(B,)` and the gradient `(B, k, m)`."""
        loss, residual = cross_entropy(predict(self.features, weights), self.labels)
        excess = (loss - self.optimum) / (self.start_loss - self.optimum)
        return excess, pull_back(self.features, residual) / self.rows

    def batch_gradient(self, weights: Array, index: NDArray[np.int64]) -> Array:
        """Return the gradient of the mean loss of the rows `index`."""
        F = self.features[index]
        _, residual = cross_entropy(predict(F, weights), self.labels[index])
        return pull_back(F, residual) / len(index)


def cross_entropy(logits: Array, labels: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the mean cross-entropy of each candidate and its derivative by the logits, times N.

    Examples:
        >>> loss, residual = cross_entropy(np.zeros((2, 1, 1)), np.array([0, 1]))
        >>> round(float(loss[0]), 6), residual[:, 0, 0].tolist()
        (0.693147, [0.5, -0.5])
    """
    if logits.shape[2] == 1:
        signed = np.where(labels == 1, -1.0, 1.0)[:, None, None]
        margin = signed * logits
        tail = np.exp(-np.abs(margin))  # log(1 + e^m) = max(m, 0) + log1p(e^{−|m|})
        loss = np.maximum(margin, 0) + np.log1p(tail)
        share = np.where(margin >= 0, 1.0, tail) / (1 + tail)
        return loss.mean(axis=(0, 2)), signed * share
    shifted = logits - logits.max(axis=2, keepdims=True)
    exponential = np.exp(shifted)
    total = exponential.sum(axis=2, keepdims=True)
    at = np.arange(len(labels))
    loss = (np.log(total)[:, :, 0] - shifted[at, :, labels]).mean(axis=0)
    residual = exponential / total
    residual[at, :, labels] -= 1
    return loss, residual
