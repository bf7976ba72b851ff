"""The infimum of the logistic loss, by Newton's method with conjugate gradients in whitened coordinates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from condnum.probing.attackers.objectives import Array, cross_entropy


@dataclass(frozen=True, eq=False)
class ConvexOptimum:
    """Optimum of a convex loss with the evidence that it is one."""

    loss: float  # L*, an upper bound that is `error` at most above the infimum, to second order
    error: float  # half the squared Newton decrement
    iterations: int
    converged: bool  # error ≤ tolerance·ln C
    logits: Array | None = field(default=None, repr=False)  # (N, m) at the optimum


def logistic_optimum(
    basis: Array,
    labels: NDArray[np.int64],
    classes: int,
    *,
    start: Array | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 60,
) -> ConvexOptimum:
    """Minimise the mean cross-entropy over all linear functions of the features.

    Where the classes can be separated the infimum 0 is not attained: the loss then falls by a factor with
    each iteration, and the search ends when it is `tolerance·ln C`, far below any ε in use.

    Examples:
        Three of four rows agree, so the best constant logit is ln 3.

        >>> found = logistic_optimum(np.ones((4, 1)), np.array([1, 1, 1, 0]), 2)
        >>> round(found.loss, 4), found.converged
        (0.5623, True)
    """
    N, r = basis.shape
    m = 1 if classes == 2 else classes
    W = np.zeros((r, m)) if start is None else basis.T @ start / N
    loss, residual = _losses(basis @ W, labels)
    error, iterations = np.inf, 0
    while iterations < max_iterations:
        iterations += 1
        gradient = basis.T @ residual / N
        direction = _newton_direction(basis, basis @ W, gradient)
        error = 0.5 * abs(float((gradient * direction).sum()))
        if error <= tolerance * np.log(classes) or loss <= tolerance * np.log(classes):
            break
        length = 1.0
        while length > 1e-8:
            trial, next_residual = _losses(basis @ (W + length * direction), labels)
            if trial <= loss - 1e-4 * length * 2 * error:
                break
            length /= 2
        else:
            break  # round-off: no descent is left
        W, loss, residual = W + length * direction, trial, next_residual
    converged = bool(min(error, loss) <= tolerance * np.log(classes))
    return ConvexOptimum(loss, error, iterations, converged, basis @ W)


def _losses(logits: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """Return the mean loss and its derivative by the logits `(N, m)`."""
    loss, residual = cross_entropy(logits[:, None, :], labels)
    return float(loss[0]), residual[:, 0, :]


def _newton_direction(basis: Array, logits: Array, gradient: Array) -> Array:
    """Solve `∇²L d = −g` by conjugate gradients, with a ridge of round-off size for flat directions."""
    N, (r, m) = len(basis), gradient.shape
    if m == 1:
        p = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        weight = p * (1 - p)
    else:
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)

    def product(vector: Array) -> Array:
        Z = basis @ vector.reshape(r, m)
        Z = weight * Z if m == 1 else p * (Z - (p * Z).sum(axis=1, keepdims=True))
        return (basis.T @ Z / N).ravel() + ridge * vector

    ridge = 1e-10
    operator = LinearOperator((r * m, r * m), matvec=product, dtype=np.float64)
    direction, _ = cg(operator, -gradient.ravel(), rtol=1e-2, maxiter=400)
    return direction.reshape(r, m)
