r"""Gradient methods on a squared loss, in the eigenbasis of its Hessian: O(k) per step.

After t steps from zero weights, a method leaves the fraction :math:`q_t(σ_i)` of the error along the i-th
eigenvector of :math:`H = VΣV^\top`, and of the excess loss

.. math:: \frac{L_t - L^*}{L_0 - L^*} = \sum_i p_i\, q_t(σ_i)^2, \qquad p_i ∝ σ_i (v_i^\top w^*)^2 .

Each method here is an iterator over its filters `q_t` `(B, k)`, of B candidates side by side.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import FloatArray
from condnum.theory.slowdown import descent_filter as descent_filter
from condnum.theory.slowdown import first_step as first_step
from condnum.theory.task import Features

#: Filters below this are set to zero now and then: products of subnormal numbers are slow.
_NEGLIGIBLE, _FLUSH_INTERVAL = 1e-125, 16


@dataclass(frozen=True)
class Modes:
    """A squared loss in the eigenbasis of its Hessian."""

    sigma: FloatArray  # (k,) eigenvalues over σ₁, descending from 1, > 0
    energy: FloatArray  # (k,) p_i; of `Modes.of`, over the best fit on raw features

    @classmethod
    def of(cls, seen: Features) -> "Modes":
        """Decompose the probe of Xθ; `energy` sums to the part of the best fit on X that is left."""
        best = float(seen.task.along.square().sum()) or 1.0
        energy = seen.along.square().sum(dim=1) / best
        relative = (seen.sigma[: seen.rank] / seen.sigma[0]).square()
        return cls(relative.cpu().numpy(), energy.cpu().numpy())

    @property
    def condition(self) -> float:
        """Compact κ of H; NaN where nothing is left."""
        return float(1 / self.sigma[-1]) if len(self.sigma) else math.nan

    @property
    def fit(self) -> float:
        """Fraction of the raw features' best fit that these features allow."""
        return float(self.energy.sum())


@dataclass(frozen=True)
class TwoTerm:
    """Coefficients of `q_{t+1} = a q_t + b q_{t−1}`, with `q_0 = q_{−1} = 1`."""

    choice: str  # parameters in words
    current: FloatArray  # (k,) a(σ_i)
    previous: FloatArray  # (k,) b(σ_i)


def gradient_descent(sigma: FloatArray, mu: float) -> TwoTerm:
    """Constant step `2/(σ₁ + μ)`: `q_{t+1} = (1 − ασ)q_t`."""
    step = 2 / (sigma[0] + mu)
    return TwoTerm(f"step {step * sigma[0]:.4g}/σ₁", 1 - step * sigma, np.zeros_like(sigma))


def heavy_ball(sigma: FloatArray, mu: float) -> TwoTerm:
    """Polyak's momentum: `α = 4/(√σ₁ + √μ)²`, `β = ((√σ₁ − √μ)/(√σ₁ + √μ))²`."""
    top, low = math.sqrt(sigma[0]), math.sqrt(mu)
    step, beta = 4 / (top + low) ** 2, ((top - low) / (top + low)) ** 2
    choice = f"step {step * sigma[0]:.4g}/σ₁, β = {beta:.4g}"
    return TwoTerm(choice, 1 + beta - step * sigma, np.full_like(sigma, -beta))


def nesterov(sigma: FloatArray, mu: float) -> TwoTerm:
    """Nesterov's method: `α = 4/(3σ₁ + μ)`, `β = (√(3κ+1) − 2)/(√(3κ+1) + 2)`, `κ = σ₁/μ`."""
    root = math.sqrt(3 * sigma[0] / mu + 1)
    step, beta = 4 / (3 * sigma[0] + mu), (root - 2) / (root + 2)
    shrink = 1 - step * sigma
    choice = f"step {step * sigma[0]:.4g}/σ₁, β = {beta:.4g}"
    return TwoTerm(choice, (1 + beta) * shrink, -beta * shrink)


def assumed_minima(sigma: FloatArray) -> list[float]:
    """Return the grid of μ: `σ₁/10^{j/2}` down to `σ₁·10⁻⁷`, and σ_k itself, which is the textbook's."""
    kappa = sigma[0] / sigma[-1]
    grid = [10 ** (j / 2) for j in range(15)]
    return [float(sigma[0] / k) for k in grid if k < kappa * (1 - 1e-12)] + [float(sigma[-1])]


def two_term_filters(candidates: Sequence[TwoTerm]) -> Iterator[FloatArray]:
    """Yield the filters `(B, k)` of candidates side by side."""
    a, b = (np.stack([getattr(c, name) for c in candidates]) for name in ("current", "previous"))
    q, before = np.ones_like(a), np.ones_like(a)
    for step in count(1):
        yield q
        q, before = a * q + b * before, q
        if step % _FLUSH_INTERVAL == 0:
            q[np.abs(q) < _NEGLIGIBLE] = 0


def line_search_filters(
    sigma: FloatArray, energy: FloatArray, floor: FloatArray | float = 0.0
) -> Iterator[tuple[FloatArray, NDArray[np.bool_]]]:
    """Yield the filters of steepest descent with exact line search, and which probes still move.

    `α = gᵀg/(gᵀHg)`, and `q ← (1 − ασ)q`. `sigma` and `energy` are `(B, k)`, padded with 0. A probe stops
    where `‖g‖² = Σ σ_i p_i q_i²` falls to its floor. The next step overwrites the arrays.
    """
    q, square, factor = (np.ones_like(sigma) for _ in range(3))
    steep, steeper = sigma * energy, sigma**2 * energy
    for step in count():
        np.square(q, out=square)
        slope, curvature = np.einsum("bk,bk->b", steep, square), np.einsum("bk,bk->b", steeper, square)
        moving = slope > floor
        alpha = np.divide(slope, curvature, out=np.zeros_like(slope), where=moving)
        yield q, moving
        np.multiply(sigma, alpha[:, None], out=factor)
        q *= np.subtract(1, factor, out=factor)
        if step % _FLUSH_INTERVAL == 0:
            q[np.abs(q) < _NEGLIGIBLE] = 0


def conjugate_gradient_filters(modes: Modes) -> Iterator[FloatArray]:
    """Yield `(1, k)` (Hestenes and Stiefel 1952); several outputs are one system with one step size."""
    sigma = modes.sigma
    distance = np.sqrt(modes.energy / sigma)  # |v_iᵀw*|
    error = distance.copy()
    residual = sigma * error
    direction = residual.copy()
    while True:
        yield np.divide(error, distance, out=np.zeros_like(error), where=distance > 0)[None]
        energy, curvature = float(residual @ residual), float(direction @ (sigma * direction))
        if curvature > 0:
            length = energy / curvature
            error = error - length * direction
            residual = residual - length * sigma * direction
            direction = residual + float(residual @ residual) / energy * direction


def descent_contraction(kappa: float) -> float:
    """Return `(κ − 1)/(κ + 1)`, by which gradient descent with the best constant step shrinks an error."""
    return (kappa - 1) / (kappa + 1)


def rate_steps(contraction: float, epsilon: float, *, constant: float = 1.0) -> float:
    """Return the steps after which `constant·contraction^{2t} ≤ ε`, the worst case over all targets."""
    if contraction <= 0:
        return 1.0
    if contraction >= 1:
        return math.inf
    return float(max(1, math.ceil(math.log(epsilon / constant) / (2 * math.log(contraction)) - 1e-9)))
