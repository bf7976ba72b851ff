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
from condnum.theory.extremes import gram, largest_bound, largest_pair, largest_vectors
from condnum.theory.immunization import HessianSpectra, both_conventions, unit_scale
from condnum.theory.spectra import PUBLISHED_RIDGE, Convention, default_rtol, hessian_spectrum

#: `pareto_immunizer` stays this far below (ii) = 1, so that round-off does not decide clause (b).
FRONT_MARGIN = 1e-3


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
    convention: Convention = "compact",
    ridge: float = PUBLISHED_RIDGE,
) -> Array:
    r"""Return an immunizer with a given (ii) in closed form, for covariances of any rank.

    With :math:`R = \sqrt{γ_r}\,K_P^{+1/2} + νΠ`, Π the projector on null(K_P), every
    :math:`θθ^\top = RR^\top + ww^\top` has `κ(H_P) = 1 + wᵀK_Pw/γ_r`: the length of w sets (ii). Where the
    harmful task has nothing of its own in null(K_P), w is the top generalized eigenvector of `(K_H, K_P)`,
    and RIR is at its ceiling. Own directions leave RIR unbounded in the compact convention. In the ridge
    convention, ε → 0, the largest `σ₁(H_H)` of all θ with `σ₁(H_P) ≤ t` and `‖θ‖_F² = D` is that of a single
    direction,

    .. math:: \max\{w^\top K_Hw : w^\top K_Pw \le t,\; \|w\|^2 \le D\}
              = \min_{ρ \ge 0} λ_{\max}(K_H, K_P + ρI)\,(t + ρD)

    If that is at most `σ₁(K_H)`, no extractor meets (a) and (b) there. Several such w and ν are measured, and
    the θ that meets Definition 3.1 in most conventions, then with the largest RIR, is returned.

    Args:
        pretrain_covariance: `(D, D)`, `K_P`, or its range.
        harmful_covariance: `(D, D)`, `K_H`, or its range.
        pretrain_features: `(N_P, D)` inputs X_P in place of `K_P`.
        harmful_features: `(N_H, D)` inputs X_H in place of `K_H`.
        pretrain_ratio: The (ii) to reach, in (0, 1]; less where κ(H_H) would be beyond float64's ranks.
            Default 1 − 1e-3, or closer to 1 if the limit of RIR is below 1.002.
        convention: `ridge` leaves the front of a full-rank pair where Definition 3.1 asks for it there.
        ridge: ε of the ridge convention.

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
    # Gains on null(K_P), beside gains of at most 1 on range(K_P).
    gains = (1.0, 1e-1, 1e-2, 1e-3) if P.rank < P.dimension else (1.0,)
    ratios = [pretrain_ratio, pretrain_ratio / 3] if convention == "ridge" else [pretrain_ratio]
    if ceiling.harmful_only_dimension:
        front: list[tuple[Tensor, Tensor | None]] = [(_own_direction(P, H), None)]
    else:
        front = [_front_spike(P, H, region, x) for x in ratios]
    spikes = [(w, gain, lift) for gain in gains for w, lift in front]
    if convention == "ridge" or min(P.rank, H.rank) < P.dimension:
        tops, kappas = _ridge_tops(P, H, _ridge_grid(P)), [x * region.kappa_pretrain for x in ratios]
        spikes += [(_ridge_spike(P, H, x, gain, tops), gain, None) for gain in gains for x in kappas]
    if convention == "ridge" and P.rank < P.dimension:
        spikes += [spike for x in ratios for spike in _largest_spikes(P, H, x * float(P.values[0]))]
    thetas = [_spiked(P, *spike) for spike in spikes]
    best = thetas[0]
    if len(thetas) > 1:
        best = max(thetas, key=lambda theta: _merit(HessianSpectra.of(theta, P, H), convention, ridge))
    return like_task(pretrain_covariance, pretrain_features)(unit_scale(best))


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

    For a singular K_P, (ii) ≤ x asks for σ₁(H_P) ≤ t = x(σ₁(K_P) + ε) − ε, and by the duality of
    `pareto_immunizer` (i) ≤ (b(t) + ε)/(ε κ_ε(K_H)) with b(t) = min_ρ λ_max(K_H, K_P + ρI)(t + ρD), a bound
    for every set of ρ. Divided by x it is the least of lines in u = 1/(t + ε): its highest point where (i)
    may be 1 is an end, or where two lines cross.
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, rtol=rtol)
    ceiling = ridge_convention_ceiling(P, H, ridge=ridge)
    if P.rank == P.dimension:
        return RidgeLimits(ceiling, ceiling if ceiling >= 1 else math.nan)
    least = float(H.values[-1]) if H.rank == H.dimension else 0.0
    kappa = (float(H.values[0]) + ridge) / (least + ridge)
    _, energy, rotated = _rotated(P, H)
    scales = [(energy + rho).rsqrt() for rho in _ridge_grid(P)]
    value = np.array([largest_bound(scale[:, None] * rotated * scale)[0] for scale in scales])
    room = _ridge_grid(P) * P.dimension
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


#: The w, ν and lift `(D, D)`, if any, of `_spiked`.
_Spike = tuple[Tensor, float, Tensor | None]


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


def _ridge_tops(P: CovarianceRange, H: CovarianceRange, rho: NDArray[np.float64]) -> Tensor:
    """Return the top eigenvectors of `(K_H, K_P + ρI)` for several ρ, `(D, k)`."""
    Q, energy, rotated = _rotated(P, H)
    scales = (energy + torch.from_numpy(rho).to(energy)[:, None]).rsqrt()
    return Q @ (scales * largest_vectors(rotated, scales)).mT


def _ridge_grid(P: CovarianceRange) -> NDArray[np.float64]:
    """Return the ρ at which pencils are looked at."""
    return np.geomspace(1e-8, 1e2, 31) * float(P.values[0])


def _ridge_spike(
    P: CovarianceRange, H: CovarianceRange, kappa: float, null_gain: float, tops: Tensor
) -> Tensor:
    """Return the w of the ridge convention: the ρ and length with the largest (i) that κ(H_P) allows."""
    floor, D = float(P.values[-1]), P.dimension
    filled = float((floor / P.values).sum()) + null_gain**2 * (D - P.rank)
    length, benign, harmful = (F.square().sum(dim=0) for F in (tops, P.factor @ tops, H.factor @ tops))
    # w = √a·u: κ(H_P) = 1 + a·uᵀK_Pu/γ_r, and, for a singular K_P, σ₁(H_P) at ‖θ‖_F² = D, bound a.
    bounds = [1e3 * filled / length, torch.where(benign > 0, (kappa - 1) * floor / benign, math.inf)]
    if P.rank < D:
        slope, spare = D * benign - kappa * floor * length, kappa * floor * filled - D * floor
        bounds.append(torch.where(slope > 0, spare / slope, math.inf if spare >= 0 else 0.0))
    a = torch.stack(bounds).amin(dim=0).clamp_min(0)
    best = (a * harmful / (filled + a * length)).argmax()
    return a[best].sqrt() * tops[:, best]


def _largest_spikes(P: CovarianceRange, H: CovarianceRange, top: float) -> list[_Spike]:
    """Return spikes near the w of largest `wᵀK_Hw` with `wᵀK_Pw ≤ t`, `‖w‖² ≤ D`, where K_P is singular.

    The closer θ is to w alone, the larger is σ₁(H_H), and the smaller is the rest of H_P. Where two
    eigenvectors of a pencil tie, w is the combination of both that makes both bounds tight.
    """
    D = P.dimension

    def excess(u: Tensor, v: Tensor) -> float:
        return D * float((P.factor @ u) @ (P.factor @ v)) - top * float(u @ v)

    def vector(rho: float) -> Tensor:
        u = _ridge_tops(P, H, np.array([rho]))[:, 0]
        return u / torch.linalg.vector_norm(u)

    low, high = _ridge_grid(P)[[0, -1]]
    light, heavy = vector(low), vector(high)
    w = light if excess(light, light) > 0 else heavy
    if excess(light, light) <= 0 < excess(heavy, heavy):
        for _ in range(25):
            u = vector(middle := math.sqrt(low * high))
            if excess(u, u) > 0:
                high, heavy = middle, u
            else:
                low, light = middle, u
        square, linear, rest = excess(heavy, heavy), excess(heavy, light), excess(light, light)
        root = math.sqrt(linear**2 - square * rest)
        pairs = [light + (-linear + sign * root) / square * heavy for sign in (1, -1)]
        w = max(pairs, key=lambda u: float((H.factor @ u).square().sum() / u.square().sum()))
    energy, square = float((P.factor @ w).square().sum()), float(w.square().sum())
    w = w * math.sqrt(min(D / square, top / energy if energy > 0 else math.inf))
    spare = max(D - float(w.square().sum()), 0.0)
    found: list[_Spike] = []
    for left in (0.3, 0.1, 1e-2, 1e-3, 1e-4, 1e-6):
        # A floor of `left` of both bounds; null(K_P) takes what w leaves of ‖θ‖² = D.
        base = left / max(float((1 / P.values).sum()) / D, 1 / top)
        null = math.sqrt((spare + left * D) / (D - P.rank) / base * float(P.values[-1]))
        found.append((w * math.sqrt((1 - left) * float(P.values[-1]) / base), null, None))
    return found


def _spiked(P: CovarianceRange, w: Tensor, null_gain: float, lift: Tensor | None = None) -> Tensor:
    """Return θ with `θθᵀ = γ_rK_P⁺ + ν²Π + wwᵀ`: `R(I + (√(1 + ‖y‖²) − 1)ŷŷᵀ)` with w = Ry, lifted."""
    scaled = (float(P.values[-1]) / P.values).sqrt()
    inside = P.power(-0.5) if lift is None else P.power(-0.5) + lift
    root = math.sqrt(float(P.values[-1])) * inside + null_gain * P.null_projector
    along = P.vectors.mT @ w
    y = P.vectors @ (along / scaled) + (w - P.vectors @ along) / null_gain
    square = float(y.square().sum())
    return root + torch.outer(w, y) / (math.sqrt(1 + square) + 1)


def _merit(spectra: HessianSpectra, convention: Convention, ridge: float) -> tuple[float, ...]:
    """Rank candidates: Definition 3.1 in both conventions, kept ranks, RIR; the wanted convention decides.

    To six digits: gains on null(K_P) leave the compact RIR as it is, and round-off must not choose.
    """
    compact, ridged = both_conventions(spectra, ridge=ridge)
    sizes = [round(math.log(found.rir), 6) if found.rir > 0 else -math.inf for found in (compact, ridged)]
    if convention == "ridge":
        return ridged.success, sizes[1]
    return compact.success + ridged.success, compact.success, not compact.rank_changed, *sizes


def _largest_kappa(dimension: int) -> float:
    """Return the κ at which an eigenvalue still stands four times above the rank tolerance."""
    return 1 / (4 * default_rtol(dimension))
