r"""Which pairs of ratios (i) and (ii) of Eq. 15 are possible at all, and their Pareto front.

With `θ = K_P^{-1/2}S` and `M = K_P^{-1/2} K_H K_P^{-1/2}` the two condition numbers are `κ(H_P) = κ(S)²`
and `κ(H_H) = κ(SᵀMS)`. What is possible follows: with :math:`x = κ(H_P)`,

.. math:: \max\bigl(κ(M)/x,\; x/κ(M)\bigr) \;\le\; κ(H_H) \;\le\; x\,κ(M), \qquad x \ge 1

for every invertible θ: the triangle inequality of Hilbert's metric `d(A, B) = log κ(A^{-1/2}BA^{-1/2})`
between K_P, K_H and `(θθᵀ)^{-1}`. The right-hand side is the ceiling of `condnum.ceiling`; `front_extractor`
attains it for every x, so that the ray RIR = RIR_max from θ* on *is* the Pareto front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import Array, ArrayLike, like
from condnum.ceiling import RirCeiling, rir_ceiling
from condnum.covariance_range import CovarianceRange
from condnum.errors import InvalidInputError
from condnum.pencil import pencil_decomposition, task_ranges
from condnum.spectra import hessian_spectrum


@dataclass(frozen=True)
class FeasibleRegion:
    """The pairs (ii), (i) that some invertible θ has, and nothing beside them (compact convention)."""

    kappa_pretrain: float  # κ(K_P)
    kappa_harmful: float  # κ(K_H)
    kappa_pencil: float  # κ(M) = λ_max/λ_min of (K_H, K_P) on range(K_P)
    ceiling: RirCeiling
    mirrored: bool  # whether x/κ(M) ≤ κ(H_H) holds too: equal ranks, nothing of one task's own

    @property
    def start(self) -> tuple[float, float]:
        """(ii) and (i) of θ*, where the front begins: `1/κ(K_P)` and `κ(M)/κ(K_H)`."""
        return 1 / self.kappa_pretrain, self.kappa_pencil / self.kappa_harmful

    def highest(self, pretrain_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest (i) that a (ii) allows, `RIR_max·(ii)`; infinite without a ceiling."""
        return self.ceiling.value * pretrain_ratio

    def lowest(self, pretrain_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the least (i) that a (ii) allows: `max(κ(M)/x, x/κ(M), 1)/κ(K_H)`, x = κ(H_P)."""
        x = pretrain_ratio * self.kappa_pretrain
        if self.ceiling.harmful_only_dimension:
            return np.full_like(x, 1 / self.kappa_harmful)
        mirror = x / self.kappa_pencil if self.mirrored else np.ones_like(x)
        return np.maximum(np.maximum(self.kappa_pencil / x, mirror), 1.0) / self.kappa_harmful

    def overshoot(self, ratios: ArrayLike) -> float:
        """Return by which share the worst of some points lies outside; at most round-off for real θ.

        Args:
            ratios: `(n, 2)` pairs (ii), (i); rows with NaN are left out.

        Returns:
            The largest of `(i)/highest − 1`, `lowest/(i) − 1` and `1/((ii)·κ(K_P)) − 1`; negative inside.

        Raises:
            InvalidInputError: Not pairs, or none of them is a number.
        """
        points = np.asarray(ratios, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != 2:
            raise InvalidInputError(f"ratios must be (n, 2) pairs (ii), (i), got shape {points.shape}.")
        x, y = points[np.isfinite(points).all(axis=1)].T
        if not len(x):
            raise InvalidInputError(f"none of the {len(points)} pairs is finite: there is nothing to check.")
        beyond = (y / self.highest(x), self.lowest(x) / y, 1 / (x * self.kappa_pretrain))
        return float(np.max(beyond)) - 1


def feasible_region(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    ridge: float | None = None,
    rtol: float | None = None,
) -> FeasibleRegion:
    """Return the region of possible pairs (ii), (i) for two tasks.

    Args:
        pretrain_covariance: `(D, D)`, `K_P`, or its range.
        harmful_covariance: `(D, D)`, `K_H`, or its range.
        ridge: ε > 0 replaces both by `K + εI`, for which the region is always bounded above.
        rtol: Relative rank tolerance; default `D·eps`.

    Returns:
        The region.

    Raises:
        InvalidInputError: Shapes differ, entries are non-finite, `ridge` is not positive.
        RankError: A covariance is zero, or the tasks share no direction.

    Examples:
        >>> region = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
        >>> [round(ratio, 12) for ratio in region.start], round(region.ceiling.value, 9)
        ([0.01, 25.0], 2500.0)
        >>> round(region.overshoot([[0.01, 50.0]]), 9)  # twice the (i) that (ii) = 0.01 allows
        1.0
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, ridge, rtol)
    ceiling = replace(rir_ceiling(P, H, rtol=rtol), ridge=ridge)
    return FeasibleRegion(
        kappa_pretrain=float(P.values[0] / P.values[-1]),
        kappa_harmful=float(H.values[0] / H.values[-1]),
        kappa_pencil=ceiling.lambda_max / ceiling.lambda_min,
        ceiling=ceiling,
        mirrored=ceiling.rank_harmful == ceiling.rank_pretrain and not ceiling.harmful_only_dimension,
    )


def front_extractor(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    power: float,
    *,
    ridge: float | None = None,
) -> Array:
    r"""Return a point of the Pareto front, :math:`θ_s = K_P^{-1/2}M^{s/2}`.

    Then `H_P = M^s` and `H_H = M^{1+s}`, so that `κ(H_P) = κ(M)^s` and RIR is at its ceiling for every
    s ≥ 0. θ* is s = 0; with growing s both ratios grow alike. A negative s, down to −1, leads along the
    lower border instead, where `κ(H_H) = κ(M)/κ(H_P)`.

    Args:
        pretrain_covariance: `(D, D)`, `K_P`, of full rank unless there is a ridge, or its range.
        harmful_covariance: `(D, D)`, `K_H`, likewise.
        power: s.
        ridge: ε > 0 replaces both by `K + εI`.

    Returns:
        `(D, D)`, of the kind of `pretrain_covariance`; a tensor for ranges.

    Raises:
        InvalidInputError: A covariance is singular, or s is not finite.

    Examples:
        >>> K_P, K_H = np.diag([100.0, 1.0]), np.diag([2.0, 1.0])  # M = diag(0.02, 1)
        >>> np.round(front_extractor(K_P, K_H, 1.0) @ np.diag([1.0, 10.0]), 9)
        array([[ 0.01414214,  0.        ],
               [ 0.        , 10.        ]])
    """
    if not math.isfinite(power):
        raise InvalidInputError(f"power must be finite, got {power}.")
    P, H = task_ranges(pretrain_covariance, harmful_covariance, ridge, None)
    if {P.rank, H.rank} != {P.dimension}:
        raise InvalidInputError(
            f"the covariances have ranks {P.rank} and {H.rank} in {P.dimension} dimensions: θ_s needs both "
            "to be invertible; drop the features that a task does not use, or give a ridge."
        )
    root, sigma, W = pencil_decomposition(P, H)
    theta = (root @ W) * sigma**power @ W.mT
    return theta if isinstance(pretrain_covariance, CovarianceRange) else like(pretrain_covariance)(theta)


def immunizer_family(pretrain: CovarianceRange, powers: Sequence[float]) -> Tensor:
    """Return `K_P^{-s/2}`, which leads from I (s = 0) to θ* (s = 1), below the front except at its end.

    Args:
        pretrain: Range of K_P; null(K_P) gains as much as the last direction of the range.
        powers: s, in any order.

    Returns:
        `(len(powers), D, D)`, each with a smallest gain of 1.
    """
    s = torch.as_tensor(powers, dtype=pretrain.values.dtype, device=pretrain.values.device)[:, None]
    gains = (pretrain.values[0] / pretrain.values) ** (s / 2)
    inside = (pretrain.vectors * gains[:, None, :]) @ pretrain.vectors.mT
    return inside + gains[:, -1, None, None] * pretrain.null_projector


def extractor_ratios(
    theta: Tensor, pretrain: CovarianceRange, harmful: CovarianceRange
) -> tuple[float, float]:
    """Return (ii) and (i) of an invertible θ, over the ranks of both tasks.

    No numerical rank is cut: for an invertible θ the ranks of `H(θ)` are those of K.

    Args:
        theta: `(D, D)`.
        pretrain: Range of `K_P`.
        harmful: Range of `K_H`.

    Returns:
        The two ratios; NaN where θ is singular to working precision, so that κ would be round-off.

    Examples:
        >>> def diagonal(*values):
        ...     return torch.diag(torch.tensor(values, dtype=torch.float64))
        >>> P, H = CovarianceRange.of(diagonal(100, 1)), CovarianceRange.of(diagonal(2, 1))
        >>> [round(r, 12) for r in extractor_ratios(diagonal(0.1, 1), P, H)]
        [0.01, 25.0]
    """
    ratios = []
    for task in (pretrain, harmful):
        spectrum = hessian_spectrum(theta, task.factor)
        kappa = float(spectrum[0] / spectrum[-1]) if float(spectrum[-1]) > 0 else math.inf
        trusted = kappa < (task.dimension * 2.0**-52) ** -2
        ratios.append(kappa * float(task.values[-1] / task.values[0]) if trusted else math.nan)
    return ratios[0], ratios[1]
