r"""How much immunization is possible at all: limits, the Pareto front, and the closed forms that attain them.

For `K_P, K_H ≻ 0` and invertible `θ = K_P^{-1/2}S`, `κ(H_P) = κ(S)²` and `κ(H_H) = κ(SᵀMS) ≤ κ(S)²κ(M)` with
:math:`M = K_P^{-1/2} K_H K_P^{-1/2}`; equality at `θ* = K_P^{-1/2}`. κ(M) is that of one generalized
eigenproblem. With :math:`x = κ(H_P)`,

.. math:: \max\bigl(κ(M)/x,\; x/κ(M)\bigr) \;\le\; κ(H_H) \;\le\; x\,κ(M), \qquad x \ge 1

for every invertible θ: the triangle inequality of Hilbert's metric `d(A, B) = log κ(A^{-1/2}BA^{-1/2})`
between K_P, K_H and `(θθᵀ)^{-1}`. The right-hand side is the theoretical limit, `rir_limit`;
`pareto_extractor` attains it for every x, so that the ray RIR = RIR_max from θ* on *is* the Pareto front.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import Array, door
from condnum.errors import InvalidInputError
from condnum.numbers import short_repr
from condnum.theory.kappa import PUBLISHED_RIDGE, Seen, both_conventions, kappa, unit_scale
from condnum.theory.linalg import (
    EPS,
    gram,
    largest_bound,
    largest_pair,
    singular_triples,
    symmetric_part,
    triangle_ends,
)
from condnum.theory.task import (
    Task,
    as_task,
    graded_singular_values,
    graded_triangle,
    rank_tolerance,
    two_tasks,
)

#: Sine of a principal angle below which a direction lies in both subspaces.
ANGLE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class NullSpaces:
    """The null spaces of two covariances, and the energy of each task in the other's."""

    dimension: int  # D
    rank_benign: int  # rank(K_P)
    rank_harmful: int  # rank(K_H)
    harmful_only: int  # directions of null(K_P) that the harmful task excites; the limit's criterion
    harmful_energy: float  # tr(ΠK_H)/tr(K_H), Π the projector on null(K_P)
    intersection: int  # dim(null(K_P) ∩ range(K_H)), at most `harmful_only`
    intersection_energy: float  # fraction of tr(K_H) on that intersection
    benign_only: int  # directions of null(K_H) that the pre-training task excites
    benign_energy: float  # fraction of tr(K_P) on null(K_H)

    @property
    def common(self) -> int:
        """Dimension of null(K_P) ∩ null(K_H): features that neither task uses."""
        return self.dimension - self.rank_benign - self.harmful_only


@door
def null_spaces(
    benign: Any,
    harmful: Any,
) -> NullSpaces:
    """Compare null(K_P) with range(K_H), and null(K_H) with range(K_P).

    A direction that leans into null(K_P) without lying in it, as principal angles tell (Björck and Golub
    1973), is enough for an infinite limit: `harmful_only` counts it, the intersection does not.
    """
    P, H = two_tasks(benign, harmful)
    N_P, N_H = P.null_basis, H.null_basis
    # An orthonormal basis of null(K_P) ∩ range(K_H), range(K_H) = null(K_H)^⊥.
    _, sines, rows = singular_triples(N_H.mT @ N_P, whole=True)
    lying = N_P @ rows[(torch.nn.functional.pad(sines, (0, len(rows) - len(sines))) < ANGLE_TOLERANCE)].mT
    totals = float(H.values.sum()), float(P.values.sum())
    return NullSpaces(
        dimension=P.dimension,
        rank_benign=P.rank,
        rank_harmful=H.rank,
        harmful_only=len(exclusive_directions(H, P)[0]),
        harmful_energy=float((H.root @ N_P).square().sum()) / totals[0],
        intersection=lying.shape[1],
        intersection_energy=float((H.root @ lying).square().sum()) / totals[0],
        benign_only=len(exclusive_directions(P, H)[0]),
        benign_energy=float((P.root @ N_H).square().sum()) / totals[1],
    )


def exclusive_directions(task: Task, other: Task) -> tuple[Tensor, Tensor]:
    """Return what a task excites in the null space of the other one, beyond the round-off of that."""
    basis = other.null_basis
    if not basis.shape[1]:
        return basis.new_zeros(0), basis
    _, sigma, rows = singular_triples(task.root @ basis)
    noise = other.null_noise + other.rtol + task.rtol  # of the basis, of its rank, and of the rows
    kept = sigma > noise * task.sigma[0]
    return sigma[kept].square(), basis @ rows[kept].mT


def pencil_decomposition(benign: Task, harmful: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonalize the pencil `(K_H, K_P)` on range(K_P), through K_H's factor rather than K_H."""
    _, sigma, rows = singular_triples(harmful.root @ benign.whitener)
    return benign.inverse_root, sigma, benign.vectors @ rows.mT


@dataclass(frozen=True)
class RirLimit:
    """The largest RIR that any invertible θ can have, with the quantities behind it."""

    value: float  # RIR_max; infinite when the harmful task has directions of its own and rank > 1
    lambda_max: float  # largest generalized eigenvalue of (K_H, K_P) on range(K_P); 0: no shared direction
    lambda_min: float  # smallest non-zero one
    rank_benign: int  # rank(K_P)
    rank_harmful: int  # rank(K_H)
    harmful_only_dimension: int  # dimension of null(K_P) that the harmful task excites
    ridge: float | None  # ε added to both covariances, None for none


@door
def rir_limit(
    benign: Any,
    harmful: Any,
    *,
    ridge: float | None = None,
) -> RirLimit:
    r"""Largest possible RIR (compact convention) over all invertible linear extractors.

    .. math:: \mathrm{RIR}_{\max} = \frac{\lambda_{\max}(K_H, K_P)}{\lambda_{\min}(K_H, K_P)}
              \cdot \frac{\kappa(K_P)}{\kappa(K_H)}

    Rank-deficient covariances are restricted to range(K_P). If the harmful task excites a direction
    in null(K_P), θ can scale it freely and the limit is infinite (unless rank(K_H) = 1, where κ(H_H) is
    always 1). It is also infinite where the tasks share no direction. A θ that is not invertible can drop
    directions of either task, so different subspaces are compared; the bound does not hold for it.

    Args:
        benign: D_P as a `Task`, or `(D, D)` K_P.
        harmful: D_H as a `Task`, or `(D, D)` K_H.
        ridge: ε > 0 replaces both by `K + εI`, for which the limit is always finite.

    Returns:
        The theoretical limit and the generalized eigenvalues and ranks behind it.

    Raises:
        InvalidInputError: Shapes differ, entries are non-finite, `ridge` is not positive, λ_max overflows.
        RankError: A covariance is zero.

    Examples:
        >>> import numpy as np
        >>> round(rir_limit(np.diag([100.0, 1.0]), np.diag([2.0, 1.0])).value, 9)
        2500.0
        >>> rir_limit(np.diag([1.0, 0.0]), np.diag([2.0, 1.0])).value
        inf
    """
    return limit_of(*two_tasks(benign, harmful, ridge=ridge), ridge)


def limit_of(P: Task, H: Task, ridge: float | None = None) -> RirLimit:
    """Return `rir_limit` of two tasks, to which a ridge was added already."""
    # Squared singular values of K_H's root: the pencil's κ may reach κ(K_P)κ(K_H), beyond what
    # the eigenvalues of rootᵀK_H root keep.
    tolerance = rank_tolerance(P.dimension)
    top, low, _ = triangle_ends(graded_triangle(H.root @ P.whitener), tolerance)
    shared = top > max(P.null_noise, tolerance) * float(H.sigma[0] / P.sigma[0])
    harmful_only = len(exclusive_directions(H, P)[0])
    lambda_max, lambda_min = (top * top, low * low) if shared else (0.0, 0.0)
    if not math.isfinite(lambda_max):
        raise InvalidInputError(
            f"λ_max of (K_H, K_P) overflows float64, since their σ₁ are {float(H.values[0]):.3g} and "
            f"{float(P.values[0]):.3g}; divide the data of D_H, or multiply those of D_P."
        )
    ratio = P.kappa / H.kappa
    # A harmful task of rank 1 has κ(H_H) = 1 for every θ: nothing to scale up against.
    infinite = harmful_only > 0 and H.rank > 1
    value = math.inf if infinite else (lambda_max / lambda_min if shared else 1.0) * ratio
    return RirLimit(value, lambda_max, lambda_min, P.rank, H.rank, harmful_only, ridge)


@door
def ridge_convention_limit(
    benign: Any,
    harmful: Any,
    *,
    ridge: float = PUBLISHED_RIDGE,
    squared_norm: float | None = None,
) -> float:
    r"""Bound RIR in the `ridge` convention for `(D, D_hid ≥ D)` extractors with `s = ‖θ‖_F²`, by default D.

    For a unit vector v, `(vᵀH_Hv + ε)/(vᵀH_Pv + ε)` lies between the extreme eigenvalues λ of the pencil
    `(K_H + (ε/s)I, K_P + (ε/s)I)`, or between them and 1, so that :math:`RIR_ε ≤ \max(1, λ_{max})/\min(1,
    λ_{min})·κ_ε(K_P)/κ_ε(K_H)`. For a singular K_P, `σ_D(H_P) = 0`, and the lower end is 1.
    """
    if not 0 < ridge < math.inf:
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
    P, H = two_tasks(benign, harmful)
    floor = ridge / (P.dimension if squared_norm is None else squared_norm)
    # Each end of the pencil as a largest eigenvalue: those are accurate.
    smallest = min(1.0, 1 / _largest_ratio(P, H, floor)) if P.rank == P.dimension else 1.0
    kappa_P, kappa_H = (kappa(task.raw, "ridge", ridge=ridge).value for task in (P, H))
    return max(1.0, _largest_ratio(H, P, floor)) / smallest * (kappa_P / kappa_H)


def fraction_of_limit(rir: float, limit: float) -> float:
    """Return RIR over its limit, the fraction of what is possible that is reached; NaN without a limit."""
    return rir / limit if math.isfinite(limit) else math.nan


@door
def max_rir_immunizer(benign: Any, *, null_gain: float = 1.0) -> Array:
    """Closed-form immunizer `θ* = K_P^{-1/2}`: `κ(H_P(θ*)) = 1` and RIR at its theoretical limit.

    It depends on the benign task alone, and attains the limit for every harmful one.

    On null(K_P), where the limit is infinite if the harmful task lives there, θ* scales by
    `null_gain` times its largest gain on range(K_P): RIR then grows with `null_gain²`.

    Args:
        benign: D_P as a `Task`, or `(D, D)` K_P.
        null_gain: Gain on null(K_P) relative to `1/√γ_r`.

    Returns:
        `(D, D)` symmetric positive definite, at unit scale, of the caller's kind and dtype.

    Raises:
        InvalidInputError: Not a covariance, or `null_gain` is not positive.
        RankError: The covariance is zero.

    Examples:
        >>> import numpy as np
        >>> theta = max_rir_immunizer(np.diag([4.0, 1.0]))
        >>> np.round(theta / theta[1, 1], 12)
        array([[0.5, 0. ],
               [0. , 1. ]])
    """
    return max_rir(as_task(benign, "benign"), null_gain)


def max_rir(P: Task, null_gain: float = 1.0) -> Tensor:
    """Return `max_rir_immunizer` of a task."""
    if not 0 < null_gain < math.inf:
        raise InvalidInputError(f"null_gain must be positive and finite, got {null_gain}.")
    theta = P.inverse_root + null_gain * float(P.values[-1]) ** -0.5 * P.null_projector
    return unit_scale(symmetric_part(theta))


def _largest_ratio(above: Task, below: Task, floor: float) -> float:
    """Return the largest eigenvalue of (K_above + floor·I, K_below + floor·I), from the factors of both K."""
    return float(torch.linalg.eigvalsh(gram(above.ridged(floor).root @ below.ridged(floor).whitener))[-1])


@dataclass(frozen=True)
class PencilDirections:
    """Generalized eigenvectors of (K_H, K_P), by descending eigenvalue."""

    values: Tensor  # (r,) λ
    filters: Tensor  # (D, r) w, with wᵀK_Pw = 1: the weights of the feature xᵀw
    patterns: Tensor  # (D, r) K_Pw ∝ K_Hw: how the inputs vary with that feature


@door
def pencil_directions(benign: Any, harmful: Any) -> PencilDirections:
    """Return the generalized eigenvectors of `(K_H, K_P)` on range(K_P), in terms of the inputs.

    The *filter* w computes a feature; the *pattern* K_Pw tells what varies with it (Haufe et al., 2014).
    Their product `w_j (K_P w)_j` is an input's fraction of the feature's energy, in any units; the fractions
    sum to 1.
    """
    P, H = two_tasks(benign, harmful)
    root, sigma, W = pencil_decomposition(P, H)
    filters, patterns = root @ W, P.power(0.5) @ W
    largest = patterns.gather(0, patterns.abs().argmax(dim=0, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0)
    return PencilDirections(sigma.square(), filters * sign, patterns * sign)


#: `pareto_immunizer` stays this far below (ii) = 1, so that round-off does not decide clause (b).
FRONT_MARGIN = 1e-3
#: ν on null(K_P) that are tried, beside gains of at most 1 on range(K_P).
_NULL_GAINS = (1.0, 1e-3)


@dataclass(frozen=True)
class FeasibleRegion:
    """The pairs (ii), (i) that some invertible θ has, and nothing beside them (compact convention)."""

    kappa_benign: float  # κ(K_P)
    kappa_harmful: float  # κ(K_H)
    kappa_pencil: float  # κ(M) = λ_max/λ_min of (K_H, K_P) on range(K_P)
    limit: RirLimit
    mirrored: bool  # whether x/κ(M) ≤ κ(H_H) holds too: equal ranks, nothing of one task's own

    __repr__ = short_repr

    @classmethod
    def of(cls, P: Task, H: Task, limit: RirLimit) -> Self:
        """Return the region of two tasks whose limit is known."""
        return cls(
            kappa_benign=P.kappa,
            kappa_harmful=H.kappa,
            kappa_pencil=limit.lambda_max / limit.lambda_min if limit.lambda_max else 1.0,
            limit=limit,
            mirrored=limit.rank_harmful == limit.rank_benign and not limit.harmful_only_dimension,
        )

    @property
    def start(self) -> tuple[float, float]:
        """(ii) and (i) of θ*, where the front begins: `1/κ(K_P)` and `κ(M)/κ(K_H)`."""
        return 1 / self.kappa_benign, self.kappa_pencil / self.kappa_harmful

    def highest(self, benign_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest (i) that a (ii) allows, `RIR_max·(ii)`; infinite without a limit."""
        return self.limit.value * benign_ratio

    def lowest(self, benign_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the least (i) that a (ii) allows: `max(κ(M)/x, x/κ(M), 1)/κ(K_H)`, x = κ(H_P)."""
        x = benign_ratio * self.kappa_benign
        if self.limit.harmful_only_dimension:
            return np.full_like(x, 1 / self.kappa_harmful)
        mirror = x / self.kappa_pencil if self.mirrored else np.ones_like(x)
        return np.maximum(np.maximum(self.kappa_pencil / x, mirror), 1.0) / self.kappa_harmful


@door
def feasible_region(
    benign: Any,
    harmful: Any,
    *,
    ridge: float | None = None,
) -> FeasibleRegion:
    """Return the region of possible pairs (ii), (i) for two tasks."""
    P, H = two_tasks(benign, harmful, ridge=ridge)
    return FeasibleRegion.of(P, H, limit_of(P, H, ridge))


@door
def pareto_extractor(
    benign: Any,
    harmful: Any,
    power: float,
) -> Array:
    """Return `θ_s = K_P^{-1/2}M^{s/2}`, of the Pareto front for s ≥ 0: `H_P = M^s`, `H_H = M^{1+s}`.

    A negative s, down to −1, leads along the lower border, where `κ(H_H) = κ(M)/κ(H_P)`.
    """
    if not math.isfinite(power):
        raise InvalidInputError(f"power must be finite, got {power}.")
    P, H = two_tasks(benign, harmful)
    if {P.rank, H.rank} != {P.dimension}:
        raise InvalidInputError(
            f"the covariances have ranks {P.rank} and {H.rank} in {P.dimension} dimensions: θ_s needs both "
            "to be invertible; drop the features that a task does not use, or add a ridge to both."
        )
    root, sigma, W = pencil_decomposition(P, H)
    theta = (root @ W) * sigma**power @ W.mT
    return theta


@door
def pareto_immunizer(
    benign: Any,
    harmful: Any,
    *,
    benign_ratio: float | None = None,
) -> Array:
    r"""Return an immunizer with a given (ii) in closed form, for tasks of any rank.

    With :math:`R = \sqrt{γ_r}\,K_P^{+1/2} + νΠ`, Π the projector on null(K_P), every
    :math:`θθ^\top = RR^\top + ww^\top` has `κ(H_P) = 1 + wᵀK_Pw/γ_r`: the length of w sets (ii). Where the
    harmful task has nothing of its own in null(K_P), w is the top generalized eigenvector of `(K_H, K_P)`,
    and RIR is at its limit. Own directions leave RIR unbounded in the compact convention: w is the
    strongest one. The top eigenvector of `(K_H, K_P + ρI)` at ρ = t/D, by which a singular K_P allows at
    least half the largest σ₁(H_H) at σ₁(H_P) ≤ t, is tried as well, each with two ν. The θ that meets
    Definition 3.1 in most conventions, then with the largest RIR, is returned.

    Args:
        benign: D_P as a `Task`, or `(D, D)` K_P.
        harmful: D_H as a `Task`, or `(D, D)` K_H.
        benign_ratio: The (ii) to reach, in (0, 1]; less where κ(H_H) would be beyond float64's ranks.
            Default 1 − 1e-3, or closer to 1 if the limit of RIR is below 1.002.

    Returns:
        `(D, D)` invertible, at unit scale, of the caller's kind and dtype.

    Raises:
        InvalidInputError: Shapes differ, entries are non-finite, `benign_ratio` is not in (0, 1].
        RankError: A covariance is zero.

    Examples:
        The front of K_P = diag(100, 1), K_H = diag(2, 1) is (i) = 2500·(ii):

        >>> P, H = (Task.of_covariance(np.diag([a, 1.0])) for a in (100, 2))
        >>> [round(ratio, 9) for ratio in extractor_ratios(pareto(P, H, 0.5), P, H)]
        [0.5, 1250.0]
    """
    return pareto(*two_tasks(benign, harmful), benign_ratio)


def pareto(P: Task, H: Task, benign_ratio: float | None = None, *, limit: RirLimit | None = None) -> Tensor:
    """Return `pareto_immunizer` of two tasks, whose limit may be known."""
    limit = limit_of(P, H) if limit is None else limit
    region = FeasibleRegion.of(P, H, limit)
    if benign_ratio is None:
        benign_ratio = max(1 - FRONT_MARGIN, limit.value**-0.5)
    elif not 0 < benign_ratio <= 1:
        raise InvalidInputError(f"benign_ratio must lie in (0, 1], got {benign_ratio}.")
    thetas = pareto_candidates(P, H, region, benign_ratio)
    return unit_scale(max(thetas, key=lambda theta: _merit(Seen.of(theta, P, H, (None, None)))))


def pareto_candidates(P: Task, H: Task, region: FeasibleRegion, benign_ratio: float) -> list[Tensor]:
    """Return the θ of a wanted (ii) among which `pareto_immunizer` chooses: with w of either convention."""
    if region.limit.harmful_only_dimension:
        w, lift = _own_direction(P, H), None
    else:
        w, lift = _front_spike(P, H, region, benign_ratio)
    kappa = benign_ratio * region.kappa_benign
    gains = _NULL_GAINS if P.rank < P.dimension else (1.0,)
    thetas = [_spiked(P, w, gain, lift) for gain in gains]
    return thetas + [_spiked(P, _ridge_spike(P, H, kappa, gain), gain) for gain in gains]


@dataclass(frozen=True)
class RidgeLimits:
    """What no extractor with (ii) ≤ 1 exceeds in the ridge convention at unit scale."""

    harmful_ratio: float  # bound on (i); below 1 no extractor meets Definition 3.1
    rir: float  # bound on RIR where (i) ≥ 1 as well; nan where that is impossible


@door
def ridge_limits(
    benign: Any,
    harmful: Any,
    *,
    ridge: float = PUBLISHED_RIDGE,
) -> RidgeLimits:
    """Bound (i), and RIR, of `(D, D_hid ≥ D)` extractors with (ii) ≤ 1 in the ridge convention.

    For a singular K_P, (ii) ≤ x asks for σ₁(H_P) ≤ t = x(σ₁(K_P) + ε) − ε. The largest σ₁(H_H) of all θ with
    that and ‖θ‖_F² = D is that of a single direction, at most b(t) = min_ρ λ_max(K_H, K_P + ρI)(t + ρD) by
    duality, so (i) ≤ (b(t) + ε)/(ε κ_ε(K_H)), a bound for every set of ρ. Divided by x it is the least of
    lines in u = 1/(t + ε): its highest point where (i) may be 1 is an end, or where two lines cross.
    """
    P, H = two_tasks(benign, harmful)
    limit = ridge_convention_limit(P, H, ridge=ridge)
    if P.rank == P.dimension:
        return RidgeLimits(limit, limit if limit >= 1 else math.nan)
    least = float(H.values[-1]) if H.rank == H.dimension else 0.0
    kappa = (float(H.values[0]) + ridge) / (least + ridge)
    _, energy, rotated = _rotated(P, H)
    grid = np.geomspace(1e-8, 1e2, 31) * float(P.values[0])
    scales = [(energy + rho).rsqrt() for rho in grid]
    value = np.array([largest_bound(scale[:, None] * rotated * scale)[0] for scale in scales])
    room = grid * P.dimension
    top, scale = float(P.values[0]), ridge * kappa
    harmful_ratio = min(limit, (float((value * (top + room)).min()) + ridge) / scale)
    if harmful_ratio < 1:
        return RidgeLimits(harmful_ratio, math.nan)
    least_top = max(0.0, float(((scale - ridge) / value - room).max()))  # t from which (i) may be 1
    slope = value * (room - ridge) + ridge
    ends = 1 / (top + ridge), 1 / (least_top + ridge)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = -np.subtract.outer(value, value) / np.subtract.outer(slope, slope)
    u = np.clip([*crossings[np.isfinite(crossings)], *ends], *ends)
    bound = float((value[:, None] + np.outer(slope, u)).min(axis=0).max()) * (top + ridge) / scale
    return RidgeLimits(harmful_ratio, min(limit, bound))


def immunizer_family(benign: Task, powers: Sequence[float]) -> Tensor:
    """Return `K_P^{-s/2}`, which leads from I (s = 0) to θ* (s = 1), below the front except at its end."""
    s = torch.as_tensor(powers, dtype=benign.values.dtype, device=benign.values.device)[:, None]
    gains = (benign.values[0] / benign.values) ** (s / 2)
    inside = (benign.vectors * gains[:, None, :]) @ benign.vectors.mT
    return inside + gains[:, -1, None, None] * benign.null_projector


def extractor_ratios(theta: Tensor, benign: Task, harmful: Task) -> tuple[float, float]:
    """Return (ii) and (i) of an invertible θ, over the ranks of K: no numerical rank is cut."""
    ratios = []
    for task in (benign, harmful):
        sigma = graded_singular_values((task.root @ theta).mT)
        kappa = float((sigma[0] / sigma[-1]).square()) if float(sigma[-1]) > 0 else math.inf
        ratios.append(kappa / task.kappa if kappa < (task.dimension * EPS) ** -2 else math.nan)
    return ratios[0], ratios[1]


def _front_spike(P: Task, H: Task, region: FeasibleRegion, ratio: float) -> tuple[Tensor, Tensor | None]:
    """Return the w that scales up the top of M, and what lifts its bottom where κ(M) is extreme."""
    most, lift = _largest_kappa(P.dimension), None
    if region.kappa_pencil > most:
        root, sigma, W = pencil_decomposition(P, H)
        gain = (float(sigma[0]) / math.sqrt(most) / sigma).clamp_min(1.0)
        top, lift = root @ W[:, 0], (root @ W) * (gain - 1) @ W.mT
    else:
        top = P.whitener @ largest_pair(gram(H.root @ P.whitener))[1]
    # κ(H_P) from 1, where nothing is scaled up, to the wanted one or as far as κ(H_H) can be told.
    room = max(1.0, most / region.kappa_pencil)
    kappa = min(max(ratio * region.kappa_benign, 1.0), room)
    return math.sqrt(float(P.values[-1]) * (kappa - 1)) * top, lift


def _own_direction(P: Task, H: Task) -> Tensor:
    """Return as w the harmful task's strongest own direction, scaled up until κ(H_H) is ten times κ(K_H)."""
    energies, own = exclusive_directions(H, P)
    wanted = min(10 * H.kappa, _largest_kappa(P.dimension)) * float(H.values[0])
    return own[:, 0] * math.sqrt(wanted / float(energies[0]))


def _rotated(P: Task, H: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvectors of K_P, null(K_P) last, its eigenvalues, and K_H in that basis."""
    Q = torch.cat([P.vectors, P.null_basis], dim=1)
    return Q, torch.cat([P.values, P.values.new_zeros(P.dimension - P.rank)]), gram(H.root @ Q)


def _ridge_spike(P: Task, H: Task, kappa: float, null_gain: float) -> Tensor:
    """Return the w of the ridge convention, as long as κ(H_P) allows."""
    floor, D = float(P.values[-1]), P.dimension
    filled = float((floor / P.values).sum()) + null_gain**2 * (D - P.rank)
    Q, energy, rotated = _rotated(P, H)
    scale = (energy + kappa * floor / D).rsqrt()
    top = Q @ (scale * largest_pair(scale[:, None] * rotated * scale)[1])
    length, benign = (float(part.square().sum()) for part in (top, P.root @ top))
    # w = √a·u: κ(H_P) = 1 + a·uᵀK_Pu/γ_r, and, for a singular K_P, σ₁(H_P) at ‖θ‖_F² = D, bound a.
    bounds = [1e3 * filled / length, (kappa - 1) * floor / benign if benign > 0 else math.inf]
    if P.rank < D:
        slope, spare = D * benign - kappa * floor * length, kappa * floor * filled - D * floor
        bounds.append(spare / slope if slope > 0 else math.inf if spare >= 0 else 0.0)
    return math.sqrt(max(min(bounds), 0.0)) * top


def _spiked(P: Task, w: Tensor, null_gain: float, lift: Tensor | None = None) -> Tensor:
    """Return θ with `θθᵀ = γ_rK_P⁺ + ν²Π + wwᵀ`: `R(I + (√(1 + ‖y‖²) − 1)ŷŷᵀ)` with w = Ry, lifted."""
    scaled = (float(P.values[-1]) / P.values).sqrt()
    inside = P.inverse_root if lift is None else P.inverse_root + lift
    root = math.sqrt(float(P.values[-1])) * inside + null_gain * P.null_projector
    along = P.vectors.mT @ w
    y = P.vectors @ (along / scaled) + (w - P.vectors @ along) / null_gain
    square = float(y.square().sum())
    return root + torch.outer(w, y) / (math.sqrt(1 + square) + 1)


def _merit(seen: Seen) -> tuple[float, ...]:
    """Rank candidates: Definition 3.1 in both conventions, then in compact, kept ranks, RIR.

    To six digits: gains on null(K_P) leave the compact RIR as it is, and round-off must not choose.
    """
    compact, ridged = both_conventions(seen)
    sizes = [round(math.log(found.rir), 6) if found.rir > 0 else -math.inf for found in (compact, ridged)]
    return compact.success + ridged.success, compact.success, not compact.rank_changed, *sizes


def _largest_kappa(dimension: int) -> float:
    """Return the κ(H) at which an eigenvalue is four times the rank tolerance of H itself, D·eps."""
    return 1 / (4 * rank_tolerance(dimension))
