r"""Notebook 1: gradient descent on a quadratic, and what the condition number does to it.

All of it is about :math:`L(w) = \tfrac12 (w - w^*)^\top H (w - w^*)` with
:math:`\sigma_1 \ge \dots \ge \sigma_D > 0` the spectrum of `H`, :math:`\kappa = \sigma_1/\sigma_D`
(Eq. 1) and the error :math:`e_t = w_t - w^*`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.probing import ProbeCurve, linear_probe
from condnum.probing.line_search import log_spaced_steps

StepRule = Literal["exact", "constant"]
SpectrumShape = Literal["geometric", "linear", "clusters", "outlier"]
StartKind = Literal["worst", "random"]

STEP_RULES: tuple[StepRule, ...] = ("exact", "constant")
SPECTRUM_SHAPES: tuple[SpectrumShape, ...] = ("geometric", "linear", "clusters", "outlier")
START_KINDS: tuple[StartKind, ...] = ("worst", "random")

#: Steps that the 2-D and the D-dimensional figure follow.
ZIGZAG_STEPS, SPECTRUM_STEPS = 40, 1000


def norm_bound(kappa: float, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""Right-hand side of Eq. 2, :math:`(1 - 1/\kappa)^t`, for :math:`\|e_t\|^2/\|e_0\|^2`.

    It holds for the constant step :math:`1/\sigma_1`, and for exact line search as well:
    :math:`\alpha\,g^\top g \le e^\top He` (Cauchy–Schwarz) gives
    :math:`\|e_+\|^2 \le \|e\|^2 - \alpha\, e^\top He \le (1 - 1/\kappa)\|e\|^2`.

    Examples:
        >>> norm_bound(2.0, np.arange(3)).tolist()
        [1.0, 0.5, 0.25]
    """
    return np.asarray((1 - 1 / _kappa(kappa)) ** steps, dtype=np.float64)


def kantorovich_bound(kappa: float, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""Kantorovich's bound :math:`((\kappa-1)/(\kappa+1))^{2t}` for :math:`e_t^\top He_t/e_0^\top He_0`.

    The energy :math:`e^\top He` is twice the excess loss. Exact line search attains the bound.

    Examples:
        >>> kantorovich_bound(3.0, np.arange(3)).tolist()
        [1.0, 0.25, 0.0625]
    """
    return np.asarray(((_kappa(kappa) - 1) / (kappa + 1)) ** (2 * steps), dtype=np.float64)


@dataclass(frozen=True)
class Zigzag:
    """Gradient descent in the plane, with the two bounds."""

    kappa: float  # κ = σ₁/σ₂, with σ₁ = 1
    angle: float  # degrees between the first gradient and the steep axis
    rule: StepRule
    step: int  # the step that the reader looks at
    path: NDArray[np.float64]  # (T + 1, 2) w_t − w* in the eigenbasis: steep, flat; ‖w_0 − w*‖ = 1
    norm_ratio: NDArray[np.float64]  # (T + 1,) Eq. 16
    energy_ratio: NDArray[np.float64]  # (T + 1,) excess loss over that at the start
    norm_bound: NDArray[np.float64]  # (T + 1,) Eq. 2
    energy_bound: NDArray[np.float64]  # (T + 1,) Kantorovich

    @property
    def contraction(self) -> float:
        """Energy after the first step over that before it; 0 when one step arrives."""
        return float(self.energy_ratio[1])


def zigzag(
    *,
    kappa: float = 10.0,
    angle: float = 45.0,
    rule: StepRule = "exact",
    step: int = 0,
    steps: int = ZIGZAG_STEPS,
) -> Zigzag:
    r"""Run gradient descent on the quadratic with `H = diag(1, 1/κ)` in the plane.

    The start is given by the direction of its gradient, :math:`He_0 \propto (\cos φ, \sin φ)`. Exact line
    search, :math:`α = g^\top g / g^\top Hg`, then contracts the energy in *every* step by
    :math:`(κ-1)^2 / ((κ + \tan^2φ)(κ + \cot^2φ))`: 0 at φ = 0° and 90°, and Kantorovich's
    :math:`((κ-1)/(κ+1))^2` at 45°.

    Args:
        kappa: κ ≥ 1.
        angle: φ in degrees, from 0 to 90.
        rule: `exact` line search, or `constant`: α = 1/σ₁, the step of Eq. 2.
        step: The step to mark, from 0 to `steps`.
        steps: Steps to run.

    Returns:
        Path, ratios and bounds, from step 0.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such rule.

    Examples:
        >>> run = zigzag(kappa=3.0, angle=45.0, steps=5)
        >>> np.round(run.energy_ratio[:3], 12).tolist()
        [1.0, 0.25, 0.0625]
    """
    if rule not in STEP_RULES:
        raise UnknownNameError("step rule", rule, STEP_RULES)
    if not 0 <= angle <= 90:
        raise InvalidInputError(f"angle must lie between 0 and 90 degrees, got {angle}.")
    if not 0 <= step <= steps:
        raise InvalidInputError(f"step must lie between 0 and steps = {steps}, got {step}.")
    sigma = np.array([1.0, 1 / _kappa(kappa)])
    phi = np.deg2rad(angle)
    gradient = np.array([np.cos(phi), np.sin(phi)])
    gradient[np.abs(gradient) < np.finfo(np.float64).eps] = 0  # cos 90° is 6e-17
    path = np.empty((steps + 1, 2))
    path[0] = gradient / sigma
    path[0] /= np.linalg.norm(path[0])
    for row in range(steps):
        g = sigma * path[row]
        curvature = g @ (sigma * g)
        alpha = 1.0 if rule == "constant" or curvature == 0 else (g @ g) / curvature
        path[row + 1] = (1 - alpha * sigma) * path[row]
    t = np.arange(steps + 1)
    energy = (path**2) @ sigma
    return Zigzag(
        kappa, angle, rule, step, path,
        norm_ratio=(path**2).sum(axis=1),
        energy_ratio=energy / energy[0],
        norm_bound=norm_bound(kappa, t),
        energy_bound=kantorovich_bound(kappa, t),
    )  # fmt: skip


def spectrum(shape: SpectrumShape, dimension: int, kappa: float) -> NDArray[np.float64]:
    """Return a descending spectrum from σ₁ = 1 down to σ_D = 1/κ.

    Args:
        shape: `geometric` or `linear` in between; `clusters`: one half at each end; `outlier`: all at 1
            but the last.
        dimension: D ≥ 2.
        kappa: κ ≥ 1.

    Returns:
        `(D,)`.

    Raises:
        InvalidInputError: D < 2 or κ < 1.
        UnknownNameError: No such shape.

    Examples:
        >>> spectrum("linear", 3, 2.0).tolist()
        [1.0, 0.75, 0.5]
        >>> spectrum("outlier", 3, 4.0).tolist()
        [1.0, 1.0, 0.25]
    """
    low, D = 1 / _kappa(kappa), dimension
    if D < 2:
        raise InvalidInputError(f"dimension must be at least 2, got {D}.")
    if shape == "geometric":
        return np.geomspace(1.0, low, D)
    if shape == "linear":
        return np.linspace(1.0, low, D)
    if shape == "clusters":
        return np.where(np.arange(D) < (D + 1) // 2, 1.0, low)
    if shape == "outlier":
        return np.where(np.arange(D) < D - 1, 1.0, low)
    raise UnknownNameError("shape of a spectrum", shape, SPECTRUM_SHAPES)


@dataclass(frozen=True)
class SpectrumDescent:
    """Exact line search in D dimensions, with the two bounds."""

    shape: SpectrumShape
    start: StartKind
    kappa: float
    sigma: NDArray[np.float64]  # (D,) descending
    curve: ProbeCurve  # norm ratio (Eq. 16) and excess loss at the recorded steps
    norm_bound: NDArray[np.float64]  # (T,) Eq. 2
    energy_bound: NDArray[np.float64]  # (T,) Kantorovich
    round_off: float  # (κ·eps)², the norm ratio at which a float64 gradient is noise


def spectrum_descent(
    *,
    shape: SpectrumShape = "geometric",
    dimension: int = 32,
    kappa: float = 100.0,
    start: StartKind = "random",
    steps: int = SPECTRUM_STEPS,
    seed: int = 0,
) -> SpectrumDescent:
    r"""Run `linear_probe` on the diagonal Hessian of a chosen spectrum.

    Examples:
        >>> run = spectrum_descent(kappa=3.0, start="worst", steps=2)
        >>> np.round(run.curve.excess_loss, 12).tolist()
        [1.0, 0.25, 0.0625]
    """
    sigma = spectrum(shape, dimension, kappa)
    if start == "worst":
        solution = np.zeros(dimension)
        solution[0], solution[-1] = 1 / sigma[0], 1 / sigma[-1]
    elif start == "random":
        solution = np.random.default_rng(seed).normal(size=dimension)
    else:
        raise UnknownNameError("start", start, START_KINDS)
    K = np.diag(sigma)
    record = log_spaced_steps(steps, 200)
    curve = linear_probe(np.eye(dimension), K, K @ solution, steps=steps, record=record)
    return SpectrumDescent(
        shape, start, kappa, sigma, curve,
        norm_bound=norm_bound(kappa, curve.steps),
        energy_bound=kantorovich_bound(kappa, curve.steps),
        round_off=float((kappa * np.finfo(np.float64).eps) ** 2),
    )  # fmt: skip


def _kappa(kappa: float) -> float:
    """Return κ, which is never below 1."""
    if not (kappa >= 1 and np.isfinite(kappa)):
        raise InvalidInputError(f"kappa must be at least 1 and finite, got {kappa}: it is σ₁/σ_D.")
    return float(kappa)
