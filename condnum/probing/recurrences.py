"""Gradient methods on the squared loss as recurrences of `q_t(σ_i)` in the eigenbasis: O(k) a step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from condnum.arrays import FloatArray
from condnum.probing.attackers import Race
from condnum.probing.line_search import FLUSH_INTERVAL, exact_line_search
from condnum.probing.objectives import ProbeSpace, Spectrum

#: Multipliers below this are set to zero now and then: subnormal numbers are slow.
_NEGLIGIBLE = 1e-140

#: The largest number of steps that a prediction looks for.
_LONGEST = 2**50

Weights = Callable[[FloatArray], FloatArray]  # multipliers (B, r) -> weights (B, k, m)


@dataclass(frozen=True)
class TwoTerm:
    """Coefficients of `q_{t+1} = a q_t + b q_{t−1}`, with `q_0 = q_{−1} = 1`."""

    choice: str  # parameters in words
    current: FloatArray  # (r,) a(σ_i)
    previous: FloatArray  # (r,) b(σ_i)


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
    """Return the grid of μ: `σ₁/10^{j/2}` down to `σ₁·10⁻⁷`, and σ_r itself, which is the textbook's."""
    kappa = sigma[0] / sigma[-1]
    grid = [10 ** (j / 2) for j in range(15)]
    return [float(sigma[0] / k) for k in grid if k < kappa * (1 - 1e-12)] + [float(sigma[-1])]


def run_two_term(candidates: Sequence[TwoTerm], spectrum: Spectrum, race: Race, weights: Weights) -> None:
    """Run candidates side by side until the race ends."""
    a, b = (np.stack([getattr(c, name) for c in candidates]) for name in ("current", "previous"))
    q, before, step = np.ones_like(a), np.ones_like(a), 0
    while race.observe(step, (q * q) @ spectrum.shares, partial(weights, q)):
        q, before, step = a * q + b * before, q, step + 1
        if step % FLUSH_INTERVAL == 0:
            q[np.abs(q) < _NEGLIGIBLE] = 0


def run_line_search(spectrum: Spectrum, race: Race, weights: Weights) -> None:
    """Steepest descent with exact line search until the race ends."""
    sigma = (spectrum.sigma / spectrum.sigma[0])[None]
    q = np.ones_like(sigma)
    search = exact_line_search(sigma, spectrum.shares / sigma, np.zeros(1))
    for step, (c, factor, _) in enumerate(search):
        if not race.observe(step, (q * q) @ spectrum.shares, partial(weights, q)):
            return
        q = np.where(c > 0, q * factor, 0.0)


def run_conjugate_gradients(spectrum: Spectrum, race: Race, weights: Weights) -> None:
    """Conjugate gradients (Hestenes and Stiefel 1952); several outputs are one system with one step size."""
    sigma = spectrum.sigma / spectrum.sigma[0]
    distance = np.sqrt(spectrum.shares / sigma)  # |w*_i| up to a common factor
    e, step = distance.copy(), 0
    residual = sigma * e
    direction = residual.copy()
    q = np.ones_like(e)
    while race.observe(step, np.array([sigma @ (e * e)]), partial(weights, q[None])):
        energy = float(residual @ residual)
        curvature = float(direction @ (sigma * direction))
        if curvature > 0:
            length = energy / curvature
            e = e - length * direction
            residual = residual - length * sigma * direction
            direction = residual + float(residual @ residual) / energy * direction
        q = np.divide(e, distance, out=np.zeros_like(e), where=distance > 0)
        step += 1


def predicted_steps(candidate: TwoTerm, shares: FloatArray, epsilon: float) -> float:
    """Return the steps to ε from the full spectrum; momentum may dip below ε once before."""
    companion = np.zeros((len(shares), 2, 2))
    companion[:, 0, 0], companion[:, 0, 1], companion[:, 1, 0] = candidate.current, candidate.previous, 1

    def excess(step: int) -> float:
        return float(shares @ np.linalg.matrix_power(companion, step).sum(axis=2)[:, 0] ** 2)

    return first_step(excess, epsilon)


def first_step(excess: Callable[[int], float], epsilon: float) -> float:
    """Return the first step at which a falling excess loss is at most ε; `inf` beyond 2⁵⁰."""
    high = 1
    while excess(high) > epsilon:
        high *= 2
        if high > _LONGEST:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) <= epsilon else (middle, high)
    return float(high)


def rate_steps(contraction: float, epsilon: float, *, constant: float = 1.0) -> float:
    """Return the steps after which `constant·contraction^{2t} ≤ ε`, the worst case over all targets."""
    if contraction <= 0:
        return 1.0
    if contraction >= 1:
        return math.inf
    return float(max(1, math.ceil(math.log(epsilon / constant) / (2 * math.log(contraction)) - 1e-9)))


def multiplied(space: ProbeSpace) -> Callable[[FloatArray], FloatArray]:
    """Return the function from multipliers `(B, r)` to weights: `w_t = Σ (1 − q_i) (v_iᵀw*) v_i`."""
    V, solution = space.spectrum.right, space.solution

    def weights(multipliers: FloatArray) -> FloatArray:
        return V @ ((1 - multipliers)[:, :, None] * (V.T @ solution))

    return weights
