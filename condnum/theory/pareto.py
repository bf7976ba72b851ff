r"""Which pairs of ratios (i) and (ii) of Eq. 15 are possible at all, and their Pareto front.

With `M = K_P^{-1/2} K_H K_P^{-1/2}` and :math:`x = κ(H_P)`,

.. math:: \max\bigl(κ(M)/x,\; x/κ(M)\bigr) \;\le\; κ(H_H) \;\le\; x\,κ(M), \qquad x \ge 1

for every invertible θ: the triangle inequality of Hilbert's metric `d(A, B) = log κ(A^{-1/2}BA^{-1/2})`
between K_P, K_H and `(θθᵀ)^{-1}`. The right-hand side is the theoretical limit, `rir_ceiling`;
`pareto_extractor` attains it for every x, so that the ray RIR = RIR_max from θ* on *is* the Pareto front.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import Array, ArrayLike
from condnum.errors import InvalidInputError
from condnum.numbers import short_repr
from condnum.theory.ceiling import (
    RirCeiling,
    exclusive_directions,
    pencil_decomposition,
    ridge_convention_ceiling,
    rir_ceiling,
)
from condnum.theory.covariances import CovarianceRange, like_task, task_ranges
from condnum.theory.extremes import gram, largest_bound, largest_pair
from condnum.theory.immunization import HessianSpectra, both_conventions, unit_scale
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol, hessian_spectrum

#: `pareto_immunizer` stays this far below (ii) = 1, so that round-off does not decide clause (b).
FRONT_MARGIN = 1e-3
#: ν on null(K_P) that are tried, beside gains of at most 1 on range(K_P).
_NULL_GAINS = (1.0, 1e-3)


@dataclass(frozen=True)
class FeasibleRegion:
    """The pairs (ii), (i) that some invertible θ has, and nothing beside them (compact convention)."""

    kappa_pretrain: float  # κ(K_P)
    kappa_harmful: float  # κ(K_H)
    kappa_pencil: float  # κ(M) = λ_max/λ_min of (K_H, K_P) on range(K_P)
    ceiling: RirCeiling
    mirrored: bool  # whether x/κ(M) ≤ κ(H_H) holds too: equal ranks, nothing of one task's own

    __repr__ = short_repr

    @classmethod
    def of(cls, P: CovarianceRange, H: CovarianceRange, ceiling: RirCeiling) -> Self:
        """Return the region of two tasks whose ceiling is known."""
        return cls(
            kappa_pretrain=float(P.values[0] / P.values[-1]),
            kappa_harmful=float(H.values[0] / H.values[-1]),
            kappa_pencil=ceiling.lambda_max / ceiling.lambda_min if ceiling.lambda_max else 1.0,
            ceiling=ceiling,
            mirrored=ceiling.rank_harmful == ceiling.rank_pretrain and not ceiling.harmful_only_dimension,
        )

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


def feasible_region(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    ridge: float | None = None,
    rtol: float | None = None,
) -> FeasibleRegion:
    """Return the region of possible pairs (ii), (i) for two tasks."""
    P, H = task_ranges(pretrain_covariance, harmful_covariance, ridge=ridge, rtol=rtol)
    return FeasibleRegion.of(P, H, replace(rir_ceiling(P, H, rtol=rtol), ridge=ridge))


def pareto_extractor(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    power: float,
) -> Array:
    """Return `θ_s = K_P^{-1/2}M^{s/2}`, of the Pareto front for s ≥ 0: `H_P = M^s`, `H_H = M^{1+s}`.

    A negative s, down to −1, leads along the lower border, where `κ(H_H) = κ(M)/κ(H_P)`.
    """
    if not math.isfinite(power):
        raise InvalidInputError(f"power must be finite, got {power}.")
    P, H = task_ranges(pretrain_covariance, harmful_covariance)
    if {P.rank, H.rank} != {P.dimension}:
        raise InvalidInputError(
            f"the covariances have ranks {P.rank} and {H.rank} in {P.dimension} dimensions: θ_s needs both "
            "to be invertible; drop the features that a task does not use, or add a ridge to both."
        )
    root, sigma, W = pencil_decomposition(P, H)
    theta = (root @ W) * sigma**power @ W.mT
    return like_task(pretrain_covariance)(theta)


def pareto_immunizer(
    pretrain_covariance: ArrayLike | CovarianceRange | None = None,
    harmful_covariance: ArrayLike | CovarianceRange | None = None,
    *,
    pretrain_features: ArrayLike | None = None,
    harmful_features: ArrayLike | None = None,
    pretrain_ratio: float | None = None,
) -> Array:
    r"""Return an immunizer with a given (ii) in closed form, for covariances of any rank.

    With :math:`R = \sqrt{γ_r}\,K_P^{+1/2} + νΠ`, Π the projector on null(K_P), every
    :math:`θθ^\top = RR^\top + ww^\top` has `κ(H_P) = 1 + wᵀK_Pw/γ_r`: the length of w sets (ii). Where the
    harmful task has nothing of its own in null(K_P), w is the top generalized eigenvector of `(K_H, K_P)`,
    and RIR is at its ceiling. Own directions leave RIR unbounded in the compact convention: w is the
    strongest one. The top eigenvector of `(K_H, K_P + ρI)` at ρ = t/D, by which a singular K_P allows at
    least half the largest σ₁(H_H) at σ₁(H_P) ≤ t, is tried as well, each with two ν. The θ that meets
    Definition 3.1 in most conventions, then with the largest RIR, is returned.

    Args:
        pretrain_covariance: `(D, D)`, `K_P`, or its range.
        harmful_covariance: `(D, D)`, `K_H`, or its range.
        pretrain_features: `(N_P, D)` inputs X_P in place of `K_P`.
        harmful_features: `(N_H, D)` inputs X_H in place of `K_H`.
        pretrain_ratio: The (ii) to reach, in (0, 1]; less where κ(H_H) would be beyond float64's ranks.
            Default 1 − 1e-3, or closer to 1 if the limit of RIR is below 1.002.

    Returns:
        `(D, D)` invertible, at unit scale, of the kind of `pretrain_covariance`; a tensor for ranges.

    Raises:
        InvalidInputError: Shapes differ, entries are non-finite, `pretrain_ratio` is not in (0, 1].
        RankError: A covariance is zero.

    Examples:
        The front of K_P = diag(100, 1), K_H = diag(2, 1) is (i) = 2500·(ii):

        >>> P, H = (CovarianceRange.of(torch.tensor([[a, 0.0], [0.0, 1.0]]).double()) for a in (100, 2))
        >>> [round(ratio, 9) for ratio in extractor_ratios(pareto_immunizer(P, H, pretrain_ratio=0.5), P, H)]
        [0.5, 1250.0]
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, pretrain_features, harmful_features)
    ceiling = rir_ceiling(P, H)
    region = FeasibleRegion.of(P, H, ceiling)
    if pretrain_ratio is None:
        pretrain_ratio = max(1 - FRONT_MARGIN, ceiling.value**-0.5)
    elif not 0 < pretrain_ratio <= 1:
        raise InvalidInputError(f"pretrain_ratio must lie in (0, 1], got {pretrain_ratio}.")
    thetas = pareto_candidates(P, H, region, pretrain_ratio)
    best = max(thetas, key=lambda theta: _merit(HessianSpectra.of(theta, P, H)))
    return like_task(pretrain_covariance, pretrain_features)(unit_scale(best))


def pareto_candidates(
    P: CovarianceRange, H: CovarianceRange, region: FeasibleRegion, pretrain_ratio: float
) -> list[Tensor]:
    """Return the θ of a wanted (ii) among which `pareto_immunizer` chooses: with w of either convention."""
    if region.ceiling.harmful_only_dimension:
        w, lift = _own_direction(P, H), None
    else:
        w, lift = _front_spike(P, H, region, pretrain_ratio)
    kappa = pretrain_ratio * region.kappa_pretrain
    gains = _NULL_GAINS if P.rank < P.dimension else (1.0,)
    thetas = [_spiked(P, w, gain, lift) for gain in gains]
    return thetas + [_spiked(P, _ridge_spike(P, H, kappa, gain), gain) for gain in gains]


@dataclass(frozen=True)
class RidgeLimits:
    """What no extractor with (ii) ≤ 1 exceeds in the ridge convention at unit scale."""

    harmful_ratio: float  # bound on (i); below 1 no extractor meets Definition 3.1
    rir: float  # bound on RIR where (i) ≥ 1 as well; nan where that is impossible


def ridge_limits(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    ridge: float = PUBLISHED_RIDGE,
    rtol: float | None = None,
) -> RidgeLimits:
    """Bound (i), and RIR, of `(D, D_hid ≥ D)` extractors with (ii) ≤ 1 in the ridge convention.

    For a singular K_P, (ii) ≤ x asks for σ₁(H_P) ≤ t = x(σ₁(K_P) + ε) − ε. The largest σ₁(H_H) of all θ with
    that and ‖θ‖_F² = D is that of a single direction, at most b(t) = min_ρ λ_max(K_H, K_P + ρI)(t + ρD) by
    duality, so (i) ≤ (b(t) + ε)/(ε κ_ε(K_H)), a bound for every set of ρ. Divided by x it is the least of
    lines in u = 1/(t + ε): its highest point where (i) may be 1 is an end, or where two lines cross.
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, rtol=rtol)
    ceiling = ridge_convention_ceiling(P, H, ridge=ridge)
    if P.rank == P.dimension:
        return RidgeLimits(ceiling, ceiling if ceiling >= 1 else math.nan)
    least = float(H.values[-1]) if H.rank == H.dimension else 0.0
    kappa = (float(H.values[0]) + ridge) / (least + ridge)
    _, energy, rotated = _rotated(P, H)
    grid = np.geomspace(1e-8, 1e2, 31) * float(P.values[0])
    scales = [(energy + rho).rsqrt() for rho in grid]
    value = np.array([largest_bound(scale[:, None] * rotated * scale)[0] for scale in scales])
    room = grid * P.dimension
    top, scale = float(P.values[0]), ridge * kappa
    harmful_ratio = min(ceiling, (float((value * (top + room)).min()) + ridge) / scale)
    if harmful_ratio < 1:
        return RidgeLimits(harmful_ratio, math.nan)
    least_top = max(0.0, float(((scale - ridge) / value - room).max()))  # t from which (i) may be 1
    slope = value * (room - ridge) + ridge
    ends = 1 / (top + ridge), 1 / (least_top + ridge)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = -np.subtract.outer(value, value) / np.subtract.outer(slope, slope)
    u = np.clip([*crossings[np.isfinite(crossings)], *ends], *ends)
    bound = float((value[:, None] + np.outer(slope, u)).min(axis=0).max()) * (top + ridge) / scale
    return RidgeLimits(harmful_ratio, min(ceiling, bound))


def immunizer_family(pretrain: CovarianceRange, powers: Sequence[float]) -> Tensor:
    """Return `K_P^{-s/2}`, which leads from I (s = 0) to θ* (s = 1), below the front except at its end."""
    s = torch.as_tensor(powers, dtype=pretrain.values.dtype, device=pretrain.values.device)[:, None]
    gains = (pretrain.values[0] / pretrain.values) ** (s / 2)
    inside = (pretrain.vectors * gains[:, None, :]) @ pretrain.vectors.mT
    return inside + gains[:, -1, None, None] * pretrain.null_projector


def extractor_ratios(
    theta: Tensor, pretrain: CovarianceRange, harmful: CovarianceRange
) -> tuple[float, float]:
    """Return (ii) and (i) of an invertible θ, over the ranks of K: no numerical rank is cut."""
    ratios = []
    for task in (pretrain, harmful):
        spectrum = hessian_spectrum(theta, task.factor)
        kappa = float(spectrum[0] / spectrum[-1]) if float(spectrum[-1]) > 0 else math.inf
        trusted = kappa < (task.dimension * 2.0**-52) ** -2
        ratios.append(kappa * float(task.values[-1] / task.values[0]) if trusted else math.nan)
    return ratios[0], ratios[1]


def _front_spike(
    P: CovarianceRange, H: CovarianceRange, region: FeasibleRegion, ratio: float
) -> tuple[Tensor, Tensor | None]:
    """Return the w that scales up the top of M, and what lifts its bottom where κ(M) is extreme."""
    most, lift = _largest_kappa(P.dimension), None
    if region.kappa_pencil > most:
        root, sigma, W = pencil_decomposition(P, H)
        gain = (float(sigma[0]) / math.sqrt(most) / sigma).clamp_min(1.0)
        top, lift = root @ W[:, 0], (root @ W) * (gain - 1) @ W.mT
    else:
        top = P.whitener @ largest_pair(gram(H.factor @ P.whitener))[1]
    # κ(H_P) from 1, where nothing is scaled up, to the wanted one or as far as κ(H_H) can be told.
    room = max(1.0, most / region.kappa_pencil)
    kappa = min(max(ratio * region.kappa_pretrain, 1.0), room)
    return math.sqrt(float(P.values[-1]) * (kappa - 1)) * top, lift


def _own_direction(P: CovarianceRange, H: CovarianceRange) -> Tensor:
    """Return as w the harmful task's strongest own direction, scaled up until κ(H_H) is ten times κ(K_H)."""
    energies, own = exclusive_directions(H, P.null_basis, rtol=max(P.tolerance, H.tolerance))
    wanted = min(10 * float(H.values[0] / H.values[-1]), _largest_kappa(P.dimension)) * float(H.values[0])
    return own[:, 0] * math.sqrt(wanted / float(energies[0]))


def _rotated(P: CovarianceRange, H: CovarianceRange) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvectors of K_P, null(K_P) last, its eigenvalues, and K_H in that basis."""
    Q = torch.cat([P.vectors, P.null_basis], dim=1)
    return Q, torch.cat([P.values, P.values.new_zeros(P.dimension - P.rank)]), gram(H.factor @ Q)


def _ridge_spike(P: CovarianceRange, H: CovarianceRange, kappa: float, null_gain: float) -> Tensor:
    """Return the w of the ridge convention, as long as κ(H_P) allows."""
    floor, D = float(P.values[-1]), P.dimension
    filled = float((floor / P.values).sum()) + null_gain**2 * (D - P.rank)
    Q, energy, rotated = _rotated(P, H)
    scale = (energy + kappa * floor / D).rsqrt()
    top = Q @ (scale * largest_pair(scale[:, None] * rotated * scale)[1])
    length, benign = (float(part.square().sum()) for part in (top, P.factor @ top))
    # w = √a·u: κ(H_P) = 1 + a·uᵀK_Pu/γ_r, and, for a singular K_P, σ₁(H_P) at ‖θ‖_F² = D, bound a.
    bounds = [1e3 * filled / length, (kappa - 1) * floor / benign if benign > 0 else math.inf]
    if P.rank < D:
        slope, spare = D * benign - kappa * floor * length, kappa * floor * filled - D * floor
        bounds.append(spare / slope if slope > 0 else math.inf if spare >= 0 else 0.0)
    return math.sqrt(max(min(bounds), 0.0)) * top


def _spiked(P: CovarianceRange, w: Tensor, null_gain: float, lift: Tensor | None = None) -> Tensor:
    """Return θ with `θθᵀ = γ_rK_P⁺ + ν²Π + wwᵀ`: `R(I + (√(1 + ‖y‖²) − 1)ŷŷᵀ)` with w = Ry, lifted."""
    scaled = (float(P.values[-1]) / P.values).sqrt()
    inside = P.power(-0.5) if lift is None else P.power(-0.5) + lift
    root = math.sqrt(float(P.values[-1])) * inside + null_gain * P.null_projector
    along = P.vectors.mT @ w
    y = P.vectors @ (along / scaled) + (w - P.vectors @ along) / null_gain
    square = float(y.square().sum())
    return root + torch.outer(w, y) / (math.sqrt(1 + square) + 1)


def _merit(spectra: HessianSpectra) -> tuple[float, ...]:
    """Rank candidates: Definition 3.1 in both conventions, then in compact, kept ranks, RIR.

    To six digits: gains on null(K_P) leave the compact RIR as it is, and round-off must not choose.
    """
    compact, ridged = both_conventions(spectra)
    sizes = [round(math.log(found.rir), 6) if found.rir > 0 else -math.inf for found in (compact, ridged)]
    return compact.success + ridged.success, compact.success, not compact.rank_changed, *sizes


def _largest_kappa(dimension: int) -> float:
    """Return the κ at which an eigenvalue still stands four times above the rank tolerance."""
    return 1 / (4 * default_rtol(dimension))
