r"""How much immunization is possible at all: the theoretical limit of RIR and the closed-form immunizer.

For `K_P, K_H ≻ 0` and invertible `θ = K_P^{-1/2}S`, `κ(H_P) = κ(S)²` and `κ(H_H) = κ(SᵀMS) ≤ κ(S)²κ(M)` with
`M = K_P^{-1/2} K_H K_P^{-1/2}`; equality at `θ* = K_P^{-1/2}`. κ(M) is that of one generalized eigenproblem.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from condnum.arrays import Array, ArrayLike
from condnum.errors import InvalidInputError
from condnum.theory.covariances import CovarianceRange, like_task, task_ranges
from condnum.theory.extremes import gram, singular_triples
from condnum.theory.immunization import unit_scale
from condnum.theory.spectra import PUBLISHED_RIDGE, condition_from_spectrum, hessian_spectrum, symmetric_part

#: Sine of a principal angle below which a direction lies in both subspaces.
ANGLE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class NullSpaces:
    """The null spaces of two covariances, and the energy of each task in the other's."""

    dimension: int  # D
    rank_pretrain: int  # rank(K_P)
    rank_harmful: int  # rank(K_H)
    harmful_only: int  # directions of null(K_P) that the harmful task excites; the ceiling's criterion
    harmful_energy: float  # tr(ΠK_H)/tr(K_H), Π the projector on null(K_P)
    intersection: int  # dim(null(K_P) ∩ range(K_H)), at most `harmful_only`
    intersection_energy: float  # fraction of tr(K_H) on that intersection
    pretrain_only: int  # directions of null(K_H) that the pre-training task excites
    pretrain_energy: float  # fraction of tr(K_P) on null(K_H)

    @property
    def common(self) -> int:
        """Dimension of null(K_P) ∩ null(K_H): features that neither task uses."""
        return self.dimension - self.rank_pretrain - self.harmful_only


def null_spaces(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    rtol: float | None = None,
) -> NullSpaces:
    """Compare null(K_P) with range(K_H), and null(K_H) with range(K_P).

    A direction that leans into null(K_P) without lying in it, as principal angles tell (Björck and Golub
    1973), is enough for an infinite ceiling: `harmful_only` counts it, the intersection does not.
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, rtol=rtol)
    rtol = max(P.tolerance, H.tolerance) if rtol is None else rtol
    N_P, N_H = P.null_basis, H.null_basis
    # An orthonormal basis of null(K_P) ∩ range(K_H), range(K_H) = null(K_H)^⊥.
    _, sines, rows = singular_triples(N_H.mT @ N_P, whole=True)
    lying = N_P @ rows[(torch.nn.functional.pad(sines, (0, len(rows) - len(sines))) < ANGLE_TOLERANCE)].mT
    totals = float(H.values.sum()), float(P.values.sum())
    return NullSpaces(
        dimension=P.dimension,
        rank_pretrain=P.rank,
        rank_harmful=H.rank,
        harmful_only=len(exclusive_directions(H, N_P, rtol=rtol)[0]),
        harmful_energy=float((H.factor @ N_P).square().sum()) / totals[0],
        intersection=lying.shape[1],
        intersection_energy=float((H.factor @ lying).square().sum()) / totals[0],
        pretrain_only=len(exclusive_directions(P, N_H, rtol=rtol)[0]),
        pretrain_energy=float((P.factor @ N_H).square().sum()) / totals[1],
    )


def exclusive_directions(task: CovarianceRange, null_basis: Tensor, *, rtol: float) -> tuple[Tensor, Tensor]:
    """Return what a task excites in the null space of the other one."""
    _, sigma, rows = singular_triples(task.factor @ null_basis)
    kept = sigma.square() > rtol * task.values[0]
    return sigma[kept].square(), null_basis @ rows[kept].mT


def pencil_decomposition(
    pretrain: CovarianceRange, harmful: CovarianceRange
) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonalize the pencil `(K_H, K_P)` on range(K_P), through K_H's factor rather than K_H."""
    _, sigma, rows = singular_triples(harmful.factor @ pretrain.whitener)
    return pretrain.power(-0.5), sigma, pretrain.vectors @ rows.mT


@dataclass(frozen=True)
class RirCeiling:
    """The largest RIR that any invertible θ can have, with the quantities behind it."""

    value: float  # RIR_max; infinite when the harmful task has directions of its own and rank > 1
    lambda_max: float  # largest generalized eigenvalue of (K_H, K_P) on range(K_P); 0: no shared direction
    lambda_min: float  # smallest non-zero one
    rank_pretrain: int  # rank(K_P)
    rank_harmful: int  # rank(K_H)
    harmful_only_dimension: int  # dimension of null(K_P) that the harmful task excites
    ridge: float | None  # ε added to both covariances, None for none


def rir_ceiling(
    pretrain_covariance: ArrayLike | CovarianceRange | None = None,
    harmful_covariance: ArrayLike | CovarianceRange | None = None,
    *,
    pretrain_features: ArrayLike | None = None,
    harmful_features: ArrayLike | None = None,
    ridge: float | None = None,
    rtol: float | None = None,
) -> RirCeiling:
    r"""Largest possible RIR (compact convention) over all invertible linear extractors.

    .. math:: \mathrm{RIR}_{\max} = \frac{\lambda_{\max}(K_H, K_P)}{\lambda_{\min}(K_H, K_P)}
              \cdot \frac{\kappa(K_P)}{\kappa(K_H)}

    Rank-deficient covariances are restricted to range(K_P). If the harmful task excites a direction
    in null(K_P), θ can scale it freely and the ceiling is infinite (unless rank(K_H) = 1, where κ(H_H) is
    always 1). It is also infinite where the tasks share no direction. A θ that is not invertible can drop
    directions of either task, so different subspaces are compared; the bound does not hold for it.

    Args:
        pretrain_covariance: `(D, D)`, `K_P`, or its range.
        harmful_covariance: `(D, D)`, `K_H`, or its range.
        pretrain_features: `(N_P, D)` inputs X_P in place of `K_P`.
        harmful_features: `(N_H, D)` inputs X_H in place of `K_H`.
        ridge: ε > 0 replaces both by `K + εI`, for which the ceiling is always finite.
        rtol: Relative rank tolerance; default `D·eps`.

    Returns:
        The theoretical limit and the generalized eigenvalues and ranks behind it.

    Raises:
        InvalidInputError: Shapes differ, entries are non-finite, `ridge` is not positive, λ_max overflows.
        RankError: A covariance is zero.

    Examples:
        >>> import numpy as np
        >>> round(rir_ceiling(np.diag([100.0, 1.0]), np.diag([2.0, 1.0])).value, 9)
        2500.0
        >>> rir_ceiling(np.diag([1.0, 0.0]), np.diag([2.0, 1.0])).value
        inf
    """
    given = pretrain_covariance, harmful_covariance, pretrain_features, harmful_features
    P, H = task_ranges(*given, ridge=ridge, rtol=rtol)
    rtol = max(P.tolerance, H.tolerance) if rtol is None else rtol
    # Squared singular values of K_H's factor: the pencil's κ may reach κ(K_P)κ(K_H), beyond what
    # the eigenvalues of rootᵀK_H root keep.
    pencil = hessian_spectrum(P.whitener, H.factor, rtol**2)
    shared = float(pencil[0]) > rtol * float(H.values[0]) / float(P.values[0])
    harmful_only = 0
    if P.rank < P.dimension:
        harmful_only = len(exclusive_directions(H, P.null_basis, rtol=rtol)[0])
    rank = int((pencil > rtol**2 * pencil[0]).sum())
    lambda_max, lambda_min = (float(pencil[0]), float(pencil[rank - 1])) if shared else (0.0, 0.0)
    if not math.isfinite(lambda_max):
        raise InvalidInputError(
            f"λ_max of (K_H, K_P) overflows float64, since their σ₁ are {float(H.values[0]):.3g} and "
            f"{float(P.values[0]):.3g}; divide the data of D_H, or multiply those of D_P."
        )
    ratio = float(P.values[0] / P.values[-1]) / float(H.values[0] / H.values[-1])
    # A harmful task of rank 1 has κ(H_H) = 1 for every θ: nothing to scale up against.
    infinite = harmful_only > 0 and H.rank > 1
    value = math.inf if infinite else (lambda_max / lambda_min if shared else 1.0) * ratio
    return RirCeiling(value, lambda_max, lambda_min, P.rank, H.rank, harmful_only, ridge)


def ridge_convention_ceiling(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    ridge: float = PUBLISHED_RIDGE,
    squared_norm: float | None = None,
    rtol: float | None = None,
) -> float:
    r"""Bound RIR in the `ridge` convention for `(D, D_hid ≥ D)` extractors with `s = ‖θ‖_F²`, by default D.

    For a unit vector v, `(vᵀH_Hv + ε)/(vᵀH_Pv + ε)` lies between the extreme eigenvalues λ of the pencil
    `(K_H + (ε/s)I, K_P + (ε/s)I)`, or between them and 1, so that :math:`RIR_ε ≤ \max(1, λ_{max})/\min(1,
    λ_{min})·κ_ε(K_P)/κ_ε(K_H)`. For a singular K_P, `σ_D(H_P) = 0`, and the lower end is 1.
    """
    if not 0 < ridge < math.inf:
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
    P, H = task_ranges(pretrain_covariance, harmful_covariance, rtol=rtol)
    floor = ridge / (P.dimension if squared_norm is None else squared_norm)
    # Each end of the pencil as a largest eigenvalue: those are accurate.
    smallest = min(1.0, 1 / _largest_ratio(P, H, floor)) if P.rank == P.dimension else 1.0
    kappa_P, kappa_H = (
        condition_from_spectrum(
            task.values, convention="ridge", rtol=0.0, ridge=ridge, dimension=task.dimension
        )[0].item()
        for task in (P, H)
    )
    return max(1.0, _largest_ratio(H, P, floor)) / smallest * (kappa_P / kappa_H)


def share_of_ceiling(rir: float, ceiling: float) -> float:
    """Return RIR over its limit, the fraction of what is possible that is reached; NaN without a limit."""
    return rir / ceiling if math.isfinite(ceiling) else math.nan


def max_rir_immunizer(
    pretrain_covariance: ArrayLike | CovarianceRange | None = None,
    harmful_covariance: ArrayLike | CovarianceRange | None = None,
    *,
    pretrain_features: ArrayLike | None = None,
    harmful_features: ArrayLike | None = None,
    null_gain: float = 1.0,
    rtol: float | None = None,
) -> Array:
    """Closed-form immunizer `θ* = K_P^{-1/2}`: `κ(H_P(θ*)) = 1` and RIR at its theoretical limit.

    On null(K_P), where the limit is infinite if the harmful task lives there, θ* scales by
    `null_gain` times its largest gain on range(K_P): RIR then grows with `null_gain²`.

    Args:
        pretrain_covariance: `(D, D)`, `K_P`.
        harmful_covariance: `(D, D)`, `K_H` (only its shape is used: θ* does not depend on it).
        pretrain_features: `(N_P, D)` inputs X_P in place of `K_P`.
        harmful_features: `(N_H, D)` inputs X_H in place of `K_H`.
        null_gain: Gain on null(K_P) relative to `1/√γ_r`.
        rtol: Relative rank tolerance; default `D·eps`.

    Returns:
        `(D, D)` symmetric positive definite, at unit scale, of the kind of `pretrain_covariance`; a
        tensor for ranges.

    Raises:
        InvalidInputError: Shapes differ, entries are non-finite, `null_gain` is not positive.
        RankError: A covariance is zero.

    Examples:
        >>> import numpy as np
        >>> theta = max_rir_immunizer(np.diag([4.0, 1.0]), np.diag([2.0, 1.0]))
        >>> np.round(theta / theta[1, 1], 12)
        array([[0.5, 0. ],
               [0. , 1. ]])
    """
    given = pretrain_covariance, harmful_covariance, pretrain_features, harmful_features
    P, _ = task_ranges(*given, rtol=rtol)
    if not 0 < null_gain < math.inf:
        raise InvalidInputError(f"null_gain must be positive and finite, got {null_gain}.")
    theta = P.power(-0.5) + null_gain * float(P.values[-1]) ** -0.5 * P.null_projector
    return like_task(pretrain_covariance, pretrain_features)(unit_scale(symmetric_part(theta)))


def _largest_ratio(above: CovarianceRange, below: CovarianceRange, floor: float) -> float:
    """Return the largest eigenvalue of (K_above + floor·I, K_below + floor·I), from the factors of both K."""
    return float(torch.linalg.eigvalsh(gram(above.ridged(floor).factor @ below.ridged(floor).whitener))[-1])


@dataclass(frozen=True)
class PencilDirections:
    """Generalized eigenvectors of (K_H, K_P), by descending eigenvalue."""

    values: Tensor  # (r,) λ
    filters: Tensor  # (D, r) w, with wᵀK_Pw = 1: the weights of the feature xᵀw
    patterns: Tensor  # (D, r) K_Pw ∝ K_Hw: how the inputs vary with that feature


def pencil_directions(
    pretrain_covariance: ArrayLike | CovarianceRange, harmful_covariance: ArrayLike | CovarianceRange
) -> PencilDirections:
    """Return the generalized eigenvectors of `(K_H, K_P)` on range(K_P), in terms of the inputs.

    The *filter* w computes a feature; the *pattern* K_Pw tells what varies with it (Haufe et al., 2014).
    Their product `w_j (K_P w)_j` is an input's fraction of the feature's energy, in any units; the fractions
    sum to 1.
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance)
    root, sigma, W = pencil_decomposition(P, H)
    filters, patterns = root @ W, P.power(0.5) @ W
    largest = patterns.gather(0, patterns.abs().argmax(dim=0, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0)
    return PencilDirections(sigma.square(), filters * sign, patterns * sign)
