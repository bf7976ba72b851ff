r"""R_ill: the regularizer that raises a condition number (Eq. 12), and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, storage_eps
from condnum.errors import RankError
from condnum.regularizers.autograd import INFINITE_VALUE, ClosedForm
from condnum.regularizers.extremes import Extreme, decompose, resolve_rank, resolve_rtol, smallest
from condnum.regularizers.result import RegularizerGradient, hand_back
from condnum.regularizers.theta import pull_back, theta_hessian
from condnum.spectra import singular_values


def r_ill(S: ArrayLike, *, rank: int | None = None, rtol: float | None = None) -> Any:
    r"""Value of the κ-maximising regularizer (Eq. 12).

    .. math:: R_{ill}(S) = \frac{1}{\frac{1}{2k}\|S\|_F^2 - \frac12\sigma_k^2}, \quad k = \mathrm{rank}(S)

    It bounds :math:`1/\log\kappa \le \sigma_1^2R_{ill}` (Theorem 4.1 (2)). Theorem 4.1 (1), that
    it vanishes iff κ = ∞, is false: at the spectrum `(1, ½, σ→0)` κ → ∞ and `R_ill → 4.8`.
    `R_ill → 0` only as `‖S‖ → ∞`. It is `inf` where the k singular values are all equal (so always
    at rank 1).

    Args:
        S: `(..., p_r, p_c)`; symmetric matrices take `eigh`, others the SVD.
        rank: k of every matrix, the values beyond it being round-off; default the number of singular
            values above `rtol·σ₁`.
        rtol: Relative tolerance of rank and equality; default `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        A float for one NumPy matrix, an array `(...)` for a NumPy batch, a float64 tensor `(...)` for
        torch. A tensor that requires grad gets the closed form as its backward (once), at fixed k.

    Raises:
        InvalidInputError: Fewer than two dimensions, non-finite entries, bad `rank` or `rtol`.
        RankError: A matrix is zero; or a backward is asked of an infinite value.

    Examples:
        >>> import numpy as np
        >>> r_ill(np.diag([3.0, 1.0]))  # 1/(10/4 - 1/2)
        0.5
        >>> r_ill(np.diag([3.0, 0.0]))
        inf
    """
    M = as_tensor(S, "S", minimum_ndim=2)
    eps = storage_eps(S)
    if M.requires_grad and torch.is_grad_enabled():
        result = ill_core(M.detach(), rank=rank, rtol=rtol, eps=eps)
        return ClosedForm.apply(M, result.value, result.gradient)
    tolerance = resolve_rtol(rtol, M, eps)
    sigma = singular_values(M.detach(), eps=eps)
    k = resolve_rank(sigma, rank, tolerance)
    value = ill_value(sigma, k, smallest(sigma, k, tolerance))
    if isinstance(S, Tensor):
        return value
    return value.item() if value.ndim == 0 else value.cpu().numpy()


def r_ill_gradient(
    S: ArrayLike, *, rank: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_ill in S at fixed rank k (Eq. 13).

    .. math:: \nabla R_{ill}(S) = \Big(\sigma_ku_kv_k^\top - \frac1kS\Big)R_{ill}(S)^2

    Where :math:`\sigma_k` is repeated m times the answer is the centre of Clarke's subdifferential,
    :math:`\frac1m\sum_iu_iv_i^\top` over the cluster in place of :math:`u_kv_k^\top`, with
    `differentiable=False`.

    Args:
        S: `(..., p_r, p_c)`.
        rank: k of every matrix, the values beyond it being round-off; default the number of singular
            values above `rtol·σ₁`.
        rtol: Relative tolerance of rank and equality; default `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        Value, gradient `(..., p_r, p_c)`, and whether it is one.

    Raises:
        InvalidInputError: Fewer than two dimensions, non-finite entries, bad `rank` or `rtol`.
        RankError: A matrix is zero, or R_ill is infinite.

    Examples:
        >>> import numpy as np
        >>> r_ill_gradient(np.diag([3.0, 1.0])).gradient
        array([[-0.375,  0.   ],
               [ 0.   ,  0.125]])
    """
    M = as_tensor(S, "S", minimum_ndim=2).detach()
    result = ill_core(M, rank=rank, rtol=rtol, eps=storage_eps(S))
    reject_infinite(result.value)
    return hand_back(result, S)


def r_ill_theta_gradient(
    theta: ArrayLike, K: ArrayLike, *, rank: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_ill(H(θ)) in θ, with :math:`H(\theta) = \theta^\top K\theta` (Theorem 4.2 (2)).

    .. math:: \nabla_\theta R_{ill} = 2K\theta\,\nabla_HR_{ill}(H(\theta))

    Args:
        theta: `(..., D, D_hid)` linear feature extractor.
        K: `(..., D, D)` data covariance.
        rank: k of every Hessian; default its numerical rank.
        rtol: As in `r_ill_gradient`, for the Hessian. Null directions of H carry round-off of about
            `eps·‖θ‖²‖K‖`, which exceeds the default where θ shrinks K's large directions: then
            pass `rank`.

    Returns:
        Value, gradient `(..., D, D_hid)` and the evidence of the Hessian.

    Raises:
        InvalidInputError: The shapes do not fit, non-finite entries, bad `rank` or `rtol`.
        RankError: The Hessian is zero, or R_ill is infinite.

    Examples:
        >>> import numpy as np
        >>> r_ill_theta_gradient(np.eye(2), np.diag([3.0, 1.0])).gradient
        array([[-2.25,  0.  ],
               [ 0.  ,  0.25]])
    """
    T, C, H, eps = theta_hessian(theta, K)
    result = ill_core(H, rank=rank, rtol=rtol, eps=eps)
    reject_infinite(result.value)
    return hand_back(pull_back(T, C, result), theta)


def ill_core(matrix: Tensor, *, rank: int | None, rtol: float | None, eps: float) -> RegularizerGradient:
    """Return value and gradient as tensors, from one decomposition; NaN gradient at infinite value."""
    tolerance = resolve_rtol(rtol, matrix, eps)
    U, sigma, V = decompose(matrix, eps)
    k = resolve_rank(sigma, rank, tolerance)
    low = smallest(sigma, k, tolerance)
    value = ill_value(sigma, k, low)
    term = (U * (low.weights * sigma).unsqueeze(-2)) @ V.mT
    G = (term - matrix / k[..., None, None]) * value.square()[..., None, None]
    return RegularizerGradient(value, G, low.multiplicity == 1, low.gap, low.sigma, k, low.multiplicity)


def ill_value(sigma: Tensor, rank: Tensor, low: Extreme) -> Tensor:
    """Return R_ill `(...)` of a descending spectrum `(..., n)`, inf where it is flat.

    The denominator is the sum `Σ(σ_i − σ_k)(σ_i + σ_k)/(2k)` over all n values, the null ones
    included (their squares belong to `‖S‖_F²`), without the cancellation of Eq. 12.
    """
    kept = torch.arange(sigma.shape[-1], device=sigma.device) < rank.unsqueeze(-1)
    last = low.sigma.unsqueeze(-1)
    terms = torch.where(kept, (sigma - last) * (sigma + last), sigma.square())
    rho = terms.sum(dim=-1) / (2 * rank)
    flat = low.multiplicity == rank
    return torch.where(flat, torch.inf, torch.where(flat, 1.0, rho).reciprocal())


def reject_infinite(value: Tensor) -> None:
    """Raise if R_ill is infinite anywhere."""
    if bool(torch.isinf(value).any()):
        raise RankError(INFINITE_VALUE)
