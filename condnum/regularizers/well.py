r"""R_well: the regularizer that lowers a condition number (Eq. 3), and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, storage_eps
from condnum.errors import InvalidInputError
from condnum.regularizers.autograd import ClosedForm
from condnum.regularizers.extremes import decompose, largest, resolve_rank, resolve_rtol
from condnum.regularizers.result import RegularizerGradient, hand_back
from condnum.regularizers.theta import pull_back, theta_hessian
from condnum.spectra import singular_values


def r_well(S: ArrayLike, *, dimension: int | None = None) -> Any:
    r"""Value of the κ-minimising regularizer (Eq. 3).

    .. math:: R_{well}(S) = \tfrac12\sigma_1^2 - \frac{1}{2p}\|S\|_F^2

    It is zero iff all p singular values are equal, and bounds log κ:
    :math:`\kappa \le \exp(p\,\sigma_p^{-2}R_{well})` at full rank (Theorem A.1). It is not
    invariant to scale: `R_well → 0` also as `S → 0`.

    Args:
        S: `(..., p_r, p_c)`; symmetric matrices take `eigh`, others the SVD.
        dimension: p; default `min(p_r, p_c)`. Larger when S is a smaller dual matrix with the same
            non-zero spectrum.

    Returns:
        A float for one NumPy matrix, an array `(...)` for a NumPy batch, a float64 tensor `(...)` for
        torch. A tensor that requires grad gets the closed form as its backward (once).

    Raises:
        InvalidInputError: Fewer than two dimensions, non-finite entries, `dimension` below p.
        RankError: A matrix is zero.

    Examples:
        >>> import numpy as np
        >>> r_well(np.diag([3.0, 1.0]))  # 9/2 - 10/4
        2.0
    """
    M = as_tensor(S, "S", minimum_ndim=2)
    eps = storage_eps(S)
    p = resolve_dimension(dimension, min(M.shape[-2:]))
    if M.requires_grad and torch.is_grad_enabled():
        result = well_core(M.detach(), dimension=p, rtol=None, eps=eps)
        return ClosedForm.apply(M, result.value, result.gradient)
    sigma = singular_values(M.detach(), eps=eps)
    resolve_rank(sigma, None, 0.0)
    value = well_value(sigma, p)
    if isinstance(S, Tensor):
        return value
    return value.item() if value.ndim == 0 else value.cpu().numpy()


def r_well_gradient(
    S: ArrayLike, *, dimension: int | None = None, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_well in S (Theorem A.1 (3)).

    .. math:: \nabla R_{well}(S) = \sigma_1u_1v_1^\top - \frac1p S

    Where :math:`\sigma_1` is repeated m times the answer is the centre of the subdifferential,
    :math:`\frac{\sigma_1}{m}\sum_{i\le m}u_iv_i^\top - \frac1pS`, with `differentiable=False`.

    Args:
        S: `(..., p_r, p_c)`.
        dimension: p; default `min(p_r, p_c)`.
        rtol: Singular values within `rtol·σ₁` count as equal, those below as zero; default
            `max(p_r, p_c)·eps` of the stored dtype.

    Returns:
        Value, gradient `(..., p_r, p_c)`, and whether it is one.

    Raises:
        InvalidInputError: Fewer than two dimensions, non-finite entries, bad `dimension` or `rtol`.
        RankError: A matrix is zero.

    Examples:
        >>> import numpy as np
        >>> r_well_gradient(np.diag([3.0, 1.0])).gradient
        array([[ 1.5,  0. ],
               [ 0. , -0.5]])
        >>> r_well_gradient(np.diag([3.0, 3.0, 0.0])).differentiable
        False
    """
    M = as_tensor(S, "S", minimum_ndim=2).detach()
    p = resolve_dimension(dimension, min(M.shape[-2:]))
    return hand_back(well_core(M, dimension=p, rtol=rtol, eps=storage_eps(S)), S)


def r_well_theta_gradient(
    theta: ArrayLike, K: ArrayLike, *, rtol: float | None = None
) -> RegularizerGradient:
    r"""Gradient of R_well(H(θ)) in θ, with :math:`H(\theta) = \theta^\top K\theta` (Theorem 4.2 (1)).

    .. math:: \nabla_\theta R_{well} = 2K\theta\,\nabla_HR_{well}(H(\theta))

    Args:
        theta: `(..., D, D_hid)` linear feature extractor.
        K: `(..., D, D)` data covariance.
        rtol: As in `r_well_gradient`, for the Hessian.

    Returns:
        Value, gradient `(..., D, D_hid)` and the evidence of the Hessian.

    Raises:
        InvalidInputError: The shapes do not fit, non-finite entries, bad `rtol`.
        RankError: The Hessian is zero.

    Examples:
        >>> import numpy as np
        >>> r_well_theta_gradient(np.eye(2), np.diag([3.0, 1.0])).gradient
        array([[ 9.,  0.],
               [ 0., -1.]])
    """
    T, C, H, eps = theta_hessian(theta, K)
    return hand_back(pull_back(T, C, well_core(H, dimension=H.shape[-1], rtol=rtol, eps=eps)), theta)


def well_core(matrix: Tensor, *, dimension: int, rtol: float | None, eps: float) -> RegularizerGradient:
    """Return value and gradient as tensors, from one decomposition of a detached matrix."""
    tolerance = resolve_rtol(rtol, matrix, eps)
    U, sigma, V = decompose(matrix, eps)
    rank = resolve_rank(sigma, None, tolerance)
    top = largest(sigma, tolerance)
    G = (U * (top.weights * sigma).unsqueeze(-2)) @ V.mT - matrix / dimension
    value = well_value(sigma, dimension)
    return RegularizerGradient(value, G, top.multiplicity == 1, top.gap, top.sigma, rank, top.multiplicity)


def well_value(sigma: Tensor, dimension: int) -> Tensor:
    """Return R_well `(...)` of a descending spectrum `(..., n)`; missing values are zero.

    A sum of differences of squares: non-negative, and exactly zero at a flat spectrum.
    """
    first = sigma[..., :1]
    differences = ((first - sigma) * (first + sigma)).sum(dim=-1)
    return (differences + (dimension - sigma.shape[-1]) * sigma[..., 0].square()) / (2 * dimension)


def resolve_dimension(dimension: int | None, minimum: int) -> int:
    """Return p, checked."""
    if dimension is None:
        return minimum
    if int(dimension) != dimension or dimension < minimum:
        raise InvalidInputError(
            f"dimension must be a whole number of at least {minimum}, the number of singular values, "
            f"got {dimension}."
        )
    return int(dimension)
