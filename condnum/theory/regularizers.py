"""R_well, which lowers a condition number (Eq. 3), R_ill, which raises one (Eq. 12), and their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, like, storage_eps
from condnum.errors import CondnumError, InvalidInputError, RankError, check_integer
from condnum.numbers import short_repr
from condnum.theory.spectra import checked_rtol, default_rtol, is_symmetric, symmetric_part


@dataclass(frozen=True)
class RegularizerGradient:
    """Value and closed-form gradient of a regularizer, and whether it is differentiable."""

    value: Any  # R
    gradient: Any  # the shape of the matrix that it is taken in
    rank: Any  # k, the number of σ > rtol·σ₁, or the rank that was asked for
    multiplicity: Any  # how many singular values equal the extreme one; the subgradient averages over them

    __repr__ = short_repr

    @property
    def differentiable(self) -> Any:
        """Whether the extreme singular value is unique; if not, `gradient` is a subgradient."""
        return self.multiplicity == 1


def r_well(S: ArrayLike, *, dimension: int | None = None) -> Any:
    r"""Value of the κ-minimizing regularizer (Eq. 3).

    .. math:: R_{well}(S) = \tfrac12\sigma_1^2 - \frac{1}{2p}\|S\|_F^2

    It is zero iff all p singular values are equal, and bounds log κ:
    :math:`\kappa \le \exp(p\,\sigma_p^{-2}R_{well})` at full rank (Theorem A.1).

    Args:
        S: `(p_r, p_c)`; a symmetric matrix takes `eigh`, another the SVD.
        dimension: p; default `min(p_r, p_c)`. Larger when S is a smaller dual matrix with the same
            non-zero spectrum.

    Returns:
        A float for a NumPy matrix, else a tensor `()`. A tensor that requires grad gets the
        closed form as its backward: that of `r_well(hessian(theta, K))` in θ is Theorem 4.2,
        :math:`2K\theta\,\nabla_HR(H(\theta))`.

    Raises:
        InvalidInputError: Not two-dimensional, non-finite entries, `dimension` below p.
        RankError: The matrix is zero.

    Examples:
        >>> import numpy as np
        >>> r_well(np.diag([3.0, 1.0]))  # 9/2 - 10/4
        2.0
    """
    M = as_tensor(S, "S", ndim=2)
    return _in_kind_of(S, M, well_gradient(M.detach(), dimension=dimension, eps=storage_eps(S)))


def r_well_gradient(
    S: ArrayLike, *, dimension: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_well in S (Theorem A.1 (3)).

    .. math:: \nabla R_{well}(S) = \sigma_1u_1v_1^\top - \frac1p S

    Where :math:`\sigma_1` is repeated m times the answer is the centre of the subdifferential,
    :math:`\frac{\sigma_1}{m}\sum_{i\le m}u_iv_i^\top - \frac1pS`, with `differentiable=False`.

    Args:
        S: As in `r_well`.
        dimension: As in `r_well`.
        rtol: Singular values within `rtol·σ₁` count as equal, those below as zero; default
            `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        Value, gradient `(p_r, p_c)`, and whether it is one.

    Raises:
        InvalidInputError: As `r_well`, or bad `rtol`.
        RankError: The matrix is zero.

    Examples:
        >>> import numpy as np
        >>> r_well_gradient(np.diag([3.0, 1.0])).gradient
        array([[ 1.5,  0. ],
               [ 0. , -0.5]])
        >>> r_well_gradient(np.diag([3.0, 3.0, 0.0])).differentiable
        False
    """
    M = as_tensor(S, "S", ndim=2).detach()
    return _hand_back(well_gradient(M, dimension=dimension, rtol=rtol, eps=storage_eps(S)), S)


def r_ill(S: ArrayLike, *, rank: int | None = None, rtol: float | None = None) -> Any:
    r"""Value of the κ-maximizing regularizer (Eq. 12).

    .. math:: R_{ill}(S) = \frac{1}{\frac{1}{2k}\|S\|_F^2 - \frac12\sigma_k^2}, \quad k = \mathrm{rank}(S)

    It bounds :math:`1/\log\kappa \le \sigma_1^2R_{ill}` (Theorem 4.1 (2)). Theorem 4.1 (1), that it vanishes
    iff κ = ∞, is false: at `(1, ½, σ→0)` κ → ∞ and `R_ill → 4.8`. It is `inf` where all k values are equal.

    Args:
        S: `(p_r, p_c)`; a symmetric matrix takes `eigh`, another the SVD.
        rank: k, the values beyond it being round-off; default the number of singular values above `rtol·σ₁`.
        rtol: Relative tolerance of rank and equality; default `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        As `r_well`; the backward is that at fixed k.

    Raises:
        InvalidInputError: Not two-dimensional, non-finite entries, bad `rank` or `rtol`.
        RankError: The matrix is zero; or a backward is asked of an infinite value.

    Examples:
        >>> import numpy as np
        >>> r_ill(np.diag([3.0, 1.0]))  # 1/(10/4 - 1/2)
        0.5
        >>> r_ill(np.diag([3.0, 0.0]))
        inf
    """
    M = as_tensor(S, "S", ndim=2)
    return _in_kind_of(S, M, ill_gradient(M.detach(), rank=rank, rtol=rtol, eps=storage_eps(S)))


def r_ill_gradient(
    S: ArrayLike, *, rank: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_ill in S at fixed rank k (Eq. 13).

    .. math:: \nabla R_{ill}(S) = \Big(\sigma_ku_kv_k^\top - \frac1kS\Big)R_{ill}(S)^2

    Where :math:`\sigma_k` is repeated m times the answer is the centre of Clarke's subdifferential,
    :math:`\frac1m\sum_iu_iv_i^\top` over the cluster in place of :math:`u_kv_k^\top`, with
    `differentiable=False`.

    Args:
        S: `(p_r, p_c)`.
        rank: As in `r_ill`.
        rtol: As in `r_ill`.

    Returns:
        Value, gradient `(p_r, p_c)`, and whether it is one.

    Raises:
        RankError: R_ill is infinite; else as `r_ill`.

    Examples:
        >>> import numpy as np
        >>> r_ill_gradient(np.diag([3.0, 1.0])).gradient
        array([[-0.375,  0.   ],
               [ 0.   ,  0.125]])
    """
    M = as_tensor(S, "S", ndim=2).detach()
    result = ill_gradient(M, rank=rank, rtol=rtol, eps=storage_eps(S))
    reject_infinite(result.value)
    return _hand_back(result, S)


class _WithGradient(torch.autograd.Function):
    """A value with a gradient in closed form: that of `svd` or `eigh` is NaN where singular values meet."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return `value` and keep `gradient`."""
        ctx.save_for_backward(value, gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Return `upstream · gradient`, once."""
        value, gradient = ctx.saved_tensors
        reject_infinite(value)
        if torch.is_grad_enabled():  # create_graph=True; second derivatives would come out without this term
            raise CondnumError(
                "r_well and r_ill have a closed-form first derivative only; for second derivatives write the "
                "regularizer with torch.linalg.svdvals, or detach this term."
            )
        return upstream * gradient, None, None


def _in_kind_of(S: ArrayLike, matrix: Tensor, result: RegularizerGradient) -> Any:
    """Return the value in the caller's kind, with the closed form as its backward where that is wanted."""
    if matrix.requires_grad and torch.is_grad_enabled():
        return _WithGradient.apply(matrix, result.value, result.gradient)
    return result.value if isinstance(S, Tensor) else _hand_back(result, S).value


def _hand_back(result: RegularizerGradient, reference: ArrayLike) -> RegularizerGradient:
    """Turn a result of tensors into Python scalars and a gradient of the caller's kind."""
    numbers = {name: value.item() for name, value in vars(result).items() if name != "gradient"}
    return RegularizerGradient(gradient=like(reference)(result.gradient), **numbers)


def well_gradient(
    matrix: Tensor, *, dimension: int | None = None, rtol: float | None = None, eps: float
) -> RegularizerGradient:
    """Return value and gradient of R_well as tensors, from one decomposition of a detached matrix."""
    p = resolve_dimension(dimension, min(matrix.shape))
    tolerance = checked_rtol(rtol, default_rtol(max(matrix.shape), eps))
    U, sigma, V = _decompose(matrix, eps)
    rank, found = resolve_rank(sigma, None, tolerance), well_of_spectrum(sigma, p, tolerance)
    return RegularizerGradient(found.value, (U * found.slopes) @ V.mT, rank, found.multiplicity)


def ill_gradient(matrix: Tensor, *, rank: int | None, rtol: float | None, eps: float) -> RegularizerGradient:
    """Return value and gradient of R_ill as `well_gradient`; the gradient at an infinite value is NaN."""
    tolerance = checked_rtol(rtol, default_rtol(max(matrix.shape), eps))
    U, sigma, V = _decompose(matrix, eps)
    k = resolve_rank(sigma, rank, tolerance)
    found = ill_of_spectrum(sigma, k, tolerance)
    return RegularizerGradient(found.value, (U * found.slopes) @ V.mT, k, found.multiplicity)


@dataclass(frozen=True)
class SpectralRegularizer:
    """A regularizer of a descending spectrum `(n,)`; its gradient in a matrix is `U diag(slopes) Vᵀ`."""

    value: Tensor  # ()
    slopes: Tensor  # (n,)
    multiplicity: Tensor  # () of σ₁ or σ_k, whose equals share its slope


def well_of_spectrum(sigma: Tensor, dimension: int, rtol: float | None = None) -> SpectralRegularizer:
    """Return R_well, with the slopes `σ₁[i = 1] − σ_i/p`; zeros beyond the spectrum count to p."""
    n, top = len(sigma), sigma[0]
    equal = (top - sigma) <= checked_rtol(rtol, default_rtol(n)) * top
    count = equal.sum()
    # A sum of differences of squares: non-negative, and exactly zero at a flat spectrum.
    differences = ((top - sigma) * (top + sigma)).sum()
    value = (differences + (dimension - n) * top.square()) / (2 * dimension)
    return SpectralRegularizer(value, (equal.to(sigma) / count - 1 / dimension) * sigma, count)


def ill_of_spectrum(
    sigma: Tensor, rank: int | Tensor | None = None, rtol: float | None = None
) -> SpectralRegularizer:
    """Return R_ill, with the slopes `(σ_k[i = k] − σ_i/k)·R_ill²`, without Eq. 12's cancellation.

    The rank k is by default that of all values. R_ill is inf where all k values are equal.
    """
    n = len(sigma)
    k = n if rank is None else int(rank)
    kept, low = torch.arange(n, device=sigma.device) < k, sigma[k - 1]
    equal = kept & ((sigma - low) <= checked_rtol(rtol, default_rtol(n)) * sigma[0])
    count = equal.sum()
    rho = torch.where(kept, (sigma - low) * (sigma + low), sigma.square()).sum() / (2 * k)
    value = rho.new_tensor(torch.inf) if int(count) == k else rho.reciprocal()
    slopes = (equal.to(sigma) / count - 1 / k) * sigma * value.square()
    return SpectralRegularizer(value, slopes, count)


def rank_one_gradient(H: Tensor, sigma: Tensor, vector: Tensor, count: int) -> Tensor:
    """Return `σvvᵀ − H/p`: ∇R_well(H) with σ₁ and p = D, and ∇R_ill(H)/R_ill² with σ_k and p = k."""
    return (-1 / count * H).addr_(sigma * vector, vector)


def r_ill_of_norm(norm: Tensor, sigma: Tensor, rank: int) -> Tensor:
    """Return R_ill from ‖H‖_F and σ_k alone, whose difference cancels where the spectrum is nearly flat."""
    return 1 / (norm.square() / (2 * rank) - sigma.square() / 2)


def reject_infinite(value: Tensor) -> None:
    """Raise if R_ill is infinite."""
    if bool(torch.isinf(value)):
        raise RankError(
            "R_ill is infinite and has no gradient: the non-zero singular values of a matrix are all "
            "equal (always the case at rank 1), so κ = 1; start from a theta whose Hessian has distinct "
            "singular values, or pass a smaller rtol."
        )


def _decompose(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return `U, σ, V` with `S = U diag(σ) Vᵀ`, σ descending; `eigh` where S is symmetric."""
    if not is_symmetric(matrix, eps):
        U, sigma, V = torch.linalg.svd(matrix, full_matrices=False)
        return U, sigma, V.mT
    values, vectors = torch.linalg.eigh(symmetric_part(matrix))
    order = values.abs().argsort(descending=True)
    values, V = values[order], vectors[:, order]
    # A negative eigenvalue is a positive singular value with u = −v.
    return V * torch.where(values < 0, -1.0, 1.0).to(V.dtype), values.abs(), V


def resolve_dimension(dimension: int | None, minimum: int) -> int:
    """Return p, checked."""
    name = "dimension, the number of singular values,"
    return minimum if dimension is None else check_integer(name, dimension, minimum)


def resolve_rank(sigma: Tensor, rank: int | None, rtol: float) -> Tensor:
    """Return the numerical rank of a spectrum, or the one that was asked for."""
    if not bool(sigma[0]):
        raise RankError(
            "a matrix has rank 0 (all singular values are zero): its condition number is undefined; check "
            "that theta and the features are not zero."
        )
    if not 0 < float(sigma[0].square()) * len(sigma) < math.inf:
        raise InvalidInputError(
            f"singular values go up to {float(sigma[0]):.3g}, and the largest square overflows float64: "
            "R_well and R_ill depend on the scale, so divide the matrix by its largest singular value first."
        )
    if rank is None:
        return (sigma > rtol * sigma[0]).sum()
    n, rank = len(sigma), check_integer("rank", rank, 1)
    if rank > n:
        raise InvalidInputError(f"rank must be between 1 and {n}, got {rank}.")
    return torch.tensor(rank, device=sigma.device)
