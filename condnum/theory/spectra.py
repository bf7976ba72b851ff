"""Spectra at the ground of everything: covariance, Hessian, singular values, condition numbers.

A condition number needs a stated convention (compact or ridge) and a stated rank; see
`condition_number`. Feature matrices are never squared in the larger dimension: `X̃ᵀX̃` and
`X̃X̃ᵀ` have the same non-zero spectrum, so the smaller of the two is formed.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor

from condnum.arrays import Array, ArrayLike, as_tensor, like, storage_eps
from condnum.errors import InvalidInputError, RankError, check_known

Convention = Literal["compact", "ridge"]
MatrixKind = Literal["auto", "symmetric", "general", "features"]

#: The absolute floor of the published linear experiments, kept as the comparable ridge.
PUBLISHED_RIDGE = 1e-6


@dataclass(frozen=True)
class ConditionNumber:
    """A condition number with the evidence it rests on.

    For a batch every field but `dimension` and `convention` is an array of the batch's shape,
    of the caller's kind (NumPy or torch).
    """

    value: Any  # κ, () or (batch...)
    sigma_max: Any  # σ₁, before the ridge is added
    sigma_min: Any  # compact: σ_k, the smallest kept; ridge: σ_D, 0 when rank-deficient
    rank: Any  # number of σ > rtol·σ₁
    dimension: int  # number of singular values that the matrix could have
    convention: Convention

    def __float__(self) -> float:
        """Return κ of an unbatched matrix."""
        return float(self.value)


def covariance(features: ArrayLike) -> Array:
    """Return the data covariance `K = XᵀX`, uncentred and unnormalised as in the paper (Eq. 9).

    Args:
        features: `(..., N, D)` inputs, one row a sample.

    Returns:
        `(..., D, D)`, symmetric, of the caller's kind, float64.

    Raises:
        InvalidInputError: Not at least two-dimensional, empty or non-finite.

    Examples:
        >>> covariance([[1.0, 0.0], [1.0, 2.0]])
        array([[2., 2.],
               [2., 4.]])
    """
    X = as_tensor(features, "features", minimum_ndim=2)
    return like(features)(X.mT @ X)


def hessian(theta: ArrayLike, covariance: ArrayLike) -> Array:
    """Return the Hessian of the linear probe, `H(θ) = θᵀKθ` (Eq. 9).

    The paper drops the factor 2 of the squared loss, as κ does not see it; so do we.

    Args:
        theta: `(..., D, D_hid)` linear feature extractor; features are `Xθ`.
        covariance: `(..., D, D)` data covariance `K = XᵀX`.

    Returns:
        `(..., D_hid, D_hid)`, symmetric, of the kind of `theta`, float64.

    Raises:
        InvalidInputError: The shapes do not fit, or entries are non-finite.

    Examples:
        >>> hessian([[1.0, 1.0], [0.0, 1.0]], [[2.0, 0.0], [0.0, 3.0]])
        array([[2., 2.],
               [2., 5.]])
    """
    T = as_tensor(theta, "theta", minimum_ndim=2)
    K = as_tensor(covariance, "covariance", minimum_ndim=2).to(T.device)
    if K.shape[-1] != K.shape[-2] or K.shape[-1] != T.shape[-2]:
        raise InvalidInputError(
            f"theta {tuple(T.shape)} and covariance {tuple(K.shape)} do not fit: "
            "theta must be (..., D, D_hid) and covariance (..., D, D)."
        )
    return like(theta)(symmetric_part(T.mT @ K @ T))


def symmetric_part(matrix: Tensor) -> Tensor:
    """Return `(A + Aᵀ)/2`."""
    return (matrix + matrix.mT) / 2


def is_symmetric(matrix: Tensor, eps: float) -> bool:
    """Tell whether every matrix of the batch is square and symmetric up to round-off in `eps`.

    A product of three D×D factors is asymmetric by about D·eps of its largest entry.
    """
    if matrix.shape[-1] != matrix.shape[-2]:
        return False
    scale = matrix.abs().amax(dim=(-2, -1))
    gap = (matrix - matrix.mT).abs().amax(dim=(-2, -1))
    return bool((gap <= 4 * matrix.shape[-1] * eps * scale).all())


def singular_values(matrix: Tensor, *, kind: MatrixKind = "auto", eps: float = 2.0**-52) -> Tensor:
    """Return the singular values, descending, by the cheapest exact route."""
    check_known("matrix kind", kind, ("auto", "symmetric", "general", "features"))
    if kind == "symmetric" and matrix.shape[-1] != matrix.shape[-2]:
        raise InvalidInputError(f"a symmetric matrix must be square, got shape {tuple(matrix.shape)}.")
    if kind == "features":
        wide = matrix.shape[-1] > matrix.shape[-2]
        gram = matrix @ matrix.mT if wide else matrix.mT @ matrix
        return torch.linalg.eigvalsh(gram).clamp_min(0).flip(-1)
    if kind == "symmetric" or (kind == "auto" and is_symmetric(matrix, eps)):
        values = torch.linalg.eigvalsh(symmetric_part(matrix)).abs()
        return values.sort(dim=-1, descending=True).values
    return torch.linalg.svdvals(matrix)


def covariance_factor(covariance: Tensor, *, rtol: float | None = None) -> Tensor:
    """Return `B` with `K = BᵀB` and as many rows as the numerical rank of K."""
    values, vectors = torch.linalg.eigh(symmetric_part(covariance))
    rtol = default_rtol(len(values)) if rtol is None else rtol
    kept = values > rtol * values[-1].clamp_min(0)
    if not bool(kept.any()):
        raise RankError("the covariance has rank 0: check that the features are not all constant zero.")
    return (vectors[:, kept] * values[kept].sqrt()).mT.flip(0)


def hessian_spectrum(theta: Tensor, factor: Tensor) -> Tensor:
    """Return the non-zero spectrum of `H(θ) = θᵀBᵀBθ` without forming H.

    Forming H loses everything below `eps·‖K‖‖θ‖²`, and after immunization that round-off can exceed
    the rank tolerance, so that null directions pass for a smallest eigenvalue. The squared singular
    values of `Bθ` have no null directions to begin with.
    """
    return torch.linalg.svdvals(factor @ theta) ** 2


def default_rtol(dimension: int, eps: float = 2.0**-52) -> float:
    """Return the relative rank tolerance `dimension · eps`, as NumPy's and MATLAB's rank do."""
    return dimension * eps


def condition_number(
    matrix: ArrayLike,
    *,
    convention: Convention = "compact",
    rtol: float | None = None,
    ridge: float = PUBLISHED_RIDGE,
    kind: MatrixKind = "auto",
) -> ConditionNumber:
    r"""Condition number of a matrix or a batch of matrices, in a stated convention.

    * `compact` (Eq. 1, Moore–Penrose): :math:`\kappa = \sigma_1/\sigma_k` over the numerical
      rank `k`, the number of singular values above `rtol·σ₁`.
    * `ridge`: :math:`\kappa_\varepsilon = (\sigma_1+\varepsilon)/(\sigma_D+\varepsilon)` with
      :math:`\sigma_D = 0` when rank-deficient: what an attacker with weight decay ε meets.

    Args:
        matrix: `(..., p_r, p_c)`.
        convention: `compact` or `ridge`.
        rtol: Relative rank tolerance; default `max(p_r, p_c)·eps` of the stored dtype (for
            `features`: `p_c·eps`, that of the Hessian which is meant).
        ridge: ε > 0 of the ridge convention, in the units of the singular values.
        kind: `auto` (symmetric or general), `symmetric`, `general`, or `features`: κ of the
            probe's Hessian `XᵀX` of the feature matrix `X`, through the smaller Gram matrix.

    Returns:
        The condition number with `sigma_max`, `sigma_min`, `rank` and `dimension`.

    Raises:
        InvalidInputError: Fewer than two dimensions, non-finite entries, bad `rtol` or `ridge`.
        RankError: A matrix of the batch is zero, so that κ is undefined.
        UnknownNameError: Unknown convention or kind.

    Examples:
        >>> import numpy as np
        >>> condition_number(np.diag([4.0, 2.0, 0.0])).value
        2.0
        >>> condition_number(np.diag([4.0, 2.0, 0.0]), convention="ridge", ridge=1.0).value
        5.0
        >>> condition_number(np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), kind="features").value
        9.0
    """
    M = as_tensor(matrix, "matrix", minimum_ndim=2)
    eps = storage_eps(matrix)
    dimension = M.shape[-1] if kind == "features" else min(M.shape[-2:])
    sigma = singular_values(M, kind=kind, eps=eps)
    if rtol is None:
        rtol = default_rtol(M.shape[-1] if kind == "features" else max(M.shape[-2:]), eps)
    value, sigma_max, sigma_min, rank = condition_from_spectrum(
        sigma, convention=convention, rtol=rtol, ridge=ridge, dimension=dimension
    )
    convert = (lambda t: t.item()) if M.ndim == 2 else like(matrix)
    return ConditionNumber(
        convert(value), convert(sigma_max), convert(sigma_min), convert(rank), dimension, convention
    )


def condition_from_spectrum(
    sigma: Tensor, *, convention: Convention, rtol: float, ridge: float, dimension: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `(κ, σ_max, σ_min, rank)` of descending singular values `(..., n)`."""
    check_known("convention", convention, ("compact", "ridge"))
    if not 0 <= rtol < 1:
        raise InvalidInputError(f"rtol must lie in [0, 1), got {rtol}.")
    sigma_max = sigma[..., 0]
    rank = (sigma > rtol * sigma_max.unsqueeze(-1)).sum(dim=-1)
    if bool((rank == 0).any()):
        raise RankError(
            "a matrix has rank 0 (all singular values are zero): its condition number is undefined; "
            "check that the features are not all constant zero."
        )
    if convention == "compact":
        sigma_min = torch.gather(sigma, -1, (rank - 1).unsqueeze(-1)).squeeze(-1)
        return sigma_max / sigma_min, sigma_max, sigma_min, rank
    if not (ridge > 0 and ridge < float("inf")):
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}.")
    full = rank == dimension
    sigma_min = torch.where(full, sigma[..., -1], torch.zeros_like(sigma_max))
    return (sigma_max + ridge) / (sigma_min + ridge), sigma_max, sigma_min, rank


@dataclass(frozen=True)
class CovarianceRange:
    """Eigenpairs of a covariance above its numerical rank; one decomposition serves many ceilings."""

    values: Tensor  # (r,) descending, > 0
    vectors: Tensor  # (D, r), orthonormal columns

    @classmethod
    def of(cls, covariance: Tensor, *, rtol: float | None = None, name: str = "covariance") -> Self:
        """Decompose a covariance."""
        values, vectors = torch.linalg.eigh(covariance)
        rtol = default_rtol(len(values)) if rtol is None else rtol
        if float(values[-1]) <= 0:
            raise RankError(
                f"{name} has rank 0 (no positive eigenvalue): check that the features are not zero."
            )
        if float(values[0]) < -max(rtol, 1e-8) * float(values[-1]):
            raise InvalidInputError(
                f"{name} is not positive semidefinite: its smallest eigenvalue is {float(values[0]):.3g} "
                f"against a largest of {float(values[-1]):.3g}; pass a covariance XᵀX."
            )
        kept = values > rtol * values[-1]
        return cls(values[kept].flip(0), vectors[:, kept].flip(1))

    @classmethod
    def of_factor(cls, factor: Tensor) -> Self:
        """Read the range off a factor of `covariance_factor`, without another decomposition."""
        lengths = torch.linalg.vector_norm(factor, dim=1)
        return cls(lengths.square(), (factor / lengths[:, None]).mT)

    def ridged(self, ridge: float) -> Self:
        """Return the range of `K + εI`, which is the whole space, from this decomposition.

        What lies below the numerical rank of K counts as exactly zero, so that its directions have the
        eigenvalue ε itself, however small ε is against the round-off of K.
        """
        if not 0 < ridge < math.inf:
            raise InvalidInputError(f"ridge must be positive and finite, got {ridge}; leave it out for none.")
        null = self.null_basis
        values = torch.cat([self.values + ridge, self.values.new_full((null.shape[1],), ridge)])
        return type(self)(values, torch.cat([self.vectors, null], dim=1))

    @property
    def dimension(self) -> int:
        """D, of the space that the covariance lives in."""
        return self.vectors.shape[0]

    @property
    def rank(self) -> int:
        """Number of eigenvalues above the tolerance."""
        return len(self.values)

    @property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)`."""
        return (self.vectors * self.values.sqrt()).mT

    @cached_property
    def null_basis(self) -> Tensor:
        """Orthonormal basis of null(K), `(D, D − r)`."""
        return torch.linalg.qr(self.vectors, mode="complete").Q[:, self.rank :]

    @property
    def null_projector(self) -> Tensor:
        """Orthogonal projector on null(K), `(D, D)`."""
        return torch.eye(self.dimension).to(self.vectors) - self.vectors @ self.vectors.mT


def covariance_pair(pretrain: ArrayLike, harmful: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return two covariances of one input space as symmetric tensors on one device."""
    K_P = as_tensor(pretrain, "pretrain_covariance", ndim=2)
    K_H = as_tensor(harmful, "harmful_covariance", ndim=2).to(K_P.device)
    if K_P.shape != K_H.shape or K_P.shape[0] != K_P.shape[1]:
        raise InvalidInputError(
            f"pretrain_covariance {tuple(K_P.shape)} and harmful_covariance {tuple(K_H.shape)} must be "
            "square and of the same shape: both tasks share one input space."
        )
    return symmetric_part(K_P), symmetric_part(K_H)


def task_ranges(
    pretrain: ArrayLike | CovarianceRange,
    harmful: ArrayLike | CovarianceRange,
    ridge: float | None = None,
    rtol: float | None = None,
) -> tuple[CovarianceRange, CovarianceRange]:
    """Return the ranges of two covariances of one input space."""
    if isinstance(pretrain, CovarianceRange) and isinstance(harmful, CovarianceRange):
        if pretrain.dimension != harmful.dimension:
            raise InvalidInputError(
                f"the ranges live in {pretrain.dimension} and {harmful.dimension} dimensions: "
                "both tasks share one input space."
            )
        P, H = pretrain, harmful
    elif isinstance(pretrain, CovarianceRange) or isinstance(harmful, CovarianceRange):
        raise InvalidInputError("pass two covariances or two ranges, not one of each.")
    else:
        K_P, K_H = covariance_pair(pretrain, harmful)
        P = CovarianceRange.of(K_P, rtol=rtol, name="pretrain_covariance")
        H = CovarianceRange.of(K_H, rtol=rtol, name="harmful_covariance")
    return (P, H) if ridge is None else (P.ridged(ridge), H.ridged(ridge))
