r"""Gradient methods on a squared loss, in the eigenbasis of its Hessian: O(k) per step.

After t steps from zero weights, a method leaves the fraction :math:`q_t(σ_i)` of the error along the i-th
eigenvector of :math:`H = VΣV^\top`, and of the excess loss

.. math:: \frac{L_t - L^*}{L_0 - L^*} = \sum_i p_i\, q_t(σ_i)^2, \qquad p_i ∝ σ_i (v_i^\top w^*)^2 .

Each method here is a generator of its filters `q_t` `(B, k)`, of B candidates side by side. The three with
constant parameters have them as the textbook sets them for an assumed smallest eigenvalue μ `(B,)`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import FloatArray
from condnum.theory.task import Features

#: Filters below this are set to zero now and then: products of subnormal numbers are slow.
_NEGLIGIBLE, _FLUSH_INTERVAL = 1e-125, 16


@dataclass(frozen=True)
class Modes:
    """A squared loss in the eigenbasis of its Hessian."""

    sigma: FloatArray  # (k,) eigenvalues over σ₁, descending from 1, > 0
    energy: FloatArray  # (k,) p_i, over the best fit on raw features

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


def assumed_minima(sigma: FloatArray) -> FloatArray:
    """Return a grid of μ: `σ₁/10^{j/2}` down to `σ₁·10⁻⁷`, and σ_k itself, which is the textbook's."""
    grid = sigma[0] / 10 ** (np.arange(15) / 2)
    return np.append(grid[grid > sigma[-1] * (1 + 1e-12)], sigma[-1])


def _two_term(current: FloatArray, previous: FloatArray | float = 0.0) -> Iterator[FloatArray]:
    """Yield `q_{t+1} = a q_t + b q_{t−1}`, with `q_0 = q_{−1} = 1`."""
    q, before = np.ones_like(current), np.ones_like(current)
    for step in count(1):
        yield q
        q, before = current * q + previous * before, q
        if step % _FLUSH_INTERVAL == 0:
            q[np.abs(q) < _NEGLIGIBLE] = 0


def gradient_descent(sigma: FloatArray, mu: FloatArray) -> Iterator[FloatArray]:
    """Constant step `α = 2/(σ₁ + μ)`: `q_{t+1} = (1 − ασ)q_t`.

    Examples:
        >>> filters = gradient_descent(np.array([1.0, 0.5]), np.array([0.5]))
        >>> [next(filters).round(3).tolist() for _ in range(2)]
        [[[1.0, 1.0]], [[-0.333, 0.333]]]
    """
    return _two_term(1 - 2 / (sigma[0] + mu[:, None]) * sigma)


def heavy_ball(sigma: FloatArray, mu: FloatArray) -> Iterator[FloatArray]:
    """Polyak's momentum: `α = 4/(√σ₁ + √μ)²`, `β = ((√σ₁ − √μ)/(√σ₁ + √μ))²`."""
    top, low = np.sqrt(sigma[0]), np.sqrt(mu[:, None])
    beta = ((top - low) / (top + low)) ** 2
    return _two_term(1 + beta - 4 / (top + low) ** 2 * sigma, -beta)


def nesterov(sigma: FloatArray, mu: FloatArray) -> Iterator[FloatArray]:
    """Nesterov's method: `α = 4/(3σ₁ + μ)`, `β = (√(3κ+1) − 2)/(√(3κ+1) + 2)`, `κ = σ₁/μ`."""
    root = np.sqrt(3 * sigma[0] / mu[:, None] + 1)
    beta, shrink = (root - 2) / (root + 2), 1 - 4 / (3 * sigma[0] + mu[:, None]) * sigma
    return _two_term((1 + beta) * shrink, -beta * shrink)


def conjugate_gradients(modes: Modes) -> Iterator[FloatArray]:
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


def line_search(
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


def rate_steps(contraction: float, epsilon: float, *, constant: float = 1.0) -> float:
    """Return the steps after which `constant·contraction^{2t} ≤ ε`, the worst case over all targets."""
    if contraction <= 0:
        return 1.0
    if not contraction < 1:  # NaN, of a θ that keeps nothing, too
        return math.inf
    return float(max(1, math.ceil(math.log(epsilon / constant) / (2 * math.log(contraction)) - 1e-9)))


def worst_steps(method: str, kappa: float, epsilon: float) -> float:
    """Return what κ alone says of a method: steps to ε of the excess loss, the worst case over all targets.

    Kantorovich's bound for exact line search; for both methods with momentum the asymptotic rate.

    Examples:
        >>> worst_steps("gd", 3.0, 0.01), worst_steps("cg", 3.0, 0.01)
        (4.0, 3.0)
    """
    root = math.sqrt(kappa)
    slow, fast = (kappa - 1) / (kappa + 1), (root - 1) / (root + 1)
    rates = {"gd": slow, "line_search": slow, "momentum": fast, "cg": fast}
    rates["nesterov"] = 1 - 2 / math.sqrt(3 * kappa + 1)
    return rate_steps(rates[method], epsilon, constant=4.0 if method == "cg" else 1.0)
