"""R_well and R_ill of the Hessian H̃ = X̃ᵀX̃ of a linear probe on features (Eq. 18).

They depend on nothing but its spectrum, and are taken of the smaller of X̃ᵀX̃ and X̃X̃ᵀ, in float64 whatever
the features are, inside autocast too.
"""

from typing import Any

import torch
from torch import Tensor

from condnum.arrays import as_tensor
from condnum.errors import InvalidInputError, RankError
from condnum.theory.regularizers import r_ill, r_well
from condnum.theory.spectra import squared_rtol

#: Default ε relative to σ₁(X̃ᵀX̃): small, but round-off (eps·σ₁/ε = 2e-10) stays out of the result.
RELATIVE_RIDGE = 1e-6


class PreconditionedIdentity(torch.autograd.Function):
    """The dummy layer of Sec. 4.4: identity forward; backward multiplies by an inverse covariance."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, samples: Tensor, factor: Tensor, ridge: Tensor) -> Tensor:
        """Return `values` `(..., D)`; `factor` is Cholesky's of the smaller of `X̃X̃ᵀ + εI`, `X̃ᵀX̃ + εI`."""
        ctx.save_for_backward(samples, factor, ridge)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """Return `G (X̃ᵀX̃ + εI)⁻¹`, computed in float64 and handed back in the dtype of G `(..., D)`."""
        samples, factor, ridge = ctx.saved_tensors
        G = upstream.reshape(-1, upstream.shape[-1]).to(torch.float64)
        solved = apply_inverse_covariance(G, samples, factor, ridge)
        return solved.reshape(upstream.shape).to(upstream.dtype), None, None, None


def precondition_gradient(
    values: Tensor, samples: Tensor | None = None, *, ridge: float | None = None
) -> Tensor:
    r"""Return `values`, with gradients preconditioned by the covariance of `samples`.

    .. math:: G \mapsto G\,(\tilde X^\top\tilde X + \varepsilon I)^{-1}

    For N < D the inverse is applied through the N×N Gram matrix (Woodbury):

    .. math:: G(\tilde X^\top\tilde X + \varepsilon I)^{-1}
       = \tfrac1\varepsilon\big(G - G\tilde X^\top(\tilde X\tilde X^\top + \varepsilon I)^{-1}\tilde X\big)

    Args:
        values: `(..., D)` of any float dtype: features, or the weight `(out, in)` of a linear map.
        samples: `(N, D)` X̃, a constant; default the values themselves.
        ridge: ε > 0, absolute, in the units of `X̃ᵀX̃`; default `1e-6·σ₁`.

    Returns:
        `(..., D)` float64, so that gradients are preconditioned before they are rounded.

    Raises:
        InvalidInputError: Widths differ, non-finite entries, or ridge not positive.
        RankError: The samples are all zero and no ridge was given.

    Examples:
        The gradient of the sum is all ones; the covariance is `diag(4, 1)`:

        >>> W = torch.zeros(1, 2, requires_grad=True)
        >>> X = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        >>> precondition_gradient(W, X, ridge=1.0).sum().backward()
        >>> W.grad
        tensor([[0.2000, 0.5000]])
    """
    Z = as_tensor(values, "values", minimum_ndim=2)
    X = (Z if samples is None else as_tensor(samples, "samples", ndim=2)).detach()
    if X.ndim != 2 or X.shape[-1] != Z.shape[-1]:
        raise InvalidInputError(
            f"values {tuple(Z.shape)} and samples {tuple(X.shape)} need the same last dimension."
        )
    S = smaller_gram(X)
    if ridge is None:
        epsilon = RELATIVE_RIDGE * torch.linalg.eigvalsh(S)[-1]
        if not bool(epsilon > 0):
            raise RankError("the samples are all zero, without a covariance; pass ridge=….")
    elif 0 < ridge < float("inf"):
        epsilon = S.new_tensor(ridge)
    else:
        raise InvalidInputError(f"ridge must be a positive number, got {ridge}.")
    factor = torch.linalg.cholesky(S + epsilon * torch.eye(len(S), dtype=S.dtype, device=S.device))
    result: Tensor = PreconditionedIdentity.apply(Z, X, factor, epsilon)
    return result


def apply_inverse_covariance(gradient: Tensor, samples: Tensor, factor: Tensor, ridge: Tensor) -> Tensor:
    """Return `G (X̃ᵀX̃ + εI)⁻¹` by the factor of the smaller Gram matrix."""
    if samples.shape[0] >= samples.shape[1]:
        return torch.cholesky_solve(gradient.mT, factor).mT
    inside = torch.cholesky_solve(samples @ gradient.mT, factor)  # (N, M)
    return (gradient - inside.mT @ samples) / ridge


def smaller_gram(samples: Tensor) -> Tensor:
    """Return `X̃X̃ᵀ` where N < D, else `X̃ᵀX̃`: the same non-zero spectrum, `(n, n)` with `n = min(N, D)`."""
    return samples @ samples.mT if samples.shape[0] < samples.shape[1] else samples.mT @ samples


def feature_r_well(features: Tensor) -> Tensor:
    r"""R_well of the probe's Hessian (Eq. 3): what lowers κ on the pre-training task.

    .. math:: R_{well}(\tilde H) = \tfrac12\sigma_1^2 - \frac{1}{2D}\|\tilde H\|_F^2

    With N < D the Hessian has D − N zero eigenvalues, so R_well cannot vanish.

    Args:
        features: `(N, D)` X̃ of any float dtype.

    Returns:
        `()` float64, differentiable once.

    Raises:
        InvalidInputError: Not `(N, D)`, or non-finite entries.
        RankError: The features are all zero.

    Examples:
        >>> X = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> feature_r_well(X)  # 81/2 - 82/6
        tensor(26.8333, dtype=torch.float64)
    """
    X = as_tensor(features, "features", ndim=2)
    value: Tensor = r_well(smaller_gram(X), dimension=X.shape[1])
    return value


def feature_r_ill(features: Tensor, *, rank: int | None = None, rtol: float | None = None) -> Tensor:
    r"""R_ill of the probe's Hessian (Eq. 12): what raises κ on the harmful task.

    .. math:: R_{ill}(\tilde H) = \frac{1}{\frac{1}{2k}\|\tilde H\|_F^2 - \frac12\sigma_k^2},
       \quad k = \mathrm{rank}(\tilde X)

    Args:
        features: `(N, D)` X̃ of any float dtype.
        rank: k; default the number of singular values of H̃ above `rtol·σ₁`.
        rtol: Relative tolerance of the rank, of H̃; default `feature_rtol`.

    Returns:
        `()` float64, differentiable once at fixed k; infinite at a flat spectrum, rank 1 included.

    Raises:
        InvalidInputError: Not `(N, D)`, non-finite entries, bad `rank` or `rtol`.
        RankError: The features are all zero; or a backward is asked of an infinite value.

    Examples:
        >>> feature_r_ill(torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))  # 1/(82/4 - 1/2)
        tensor(0.0500, dtype=torch.float64)
    """
    X = as_tensor(features, "features", ndim=2)
    tolerance = feature_rtol(features) if rtol is None else rtol
    value: Tensor = r_ill(smaller_gram(X), rank=rank, rtol=tolerance)
    return value


def feature_rtol(features: Tensor) -> float:
    """Return the relative rank tolerance of `H̃ = X̃ᵀX̃` that its features' round-off asks for (`squared_rtol`).

    Args:
        features: `(N, D)` of any float dtype.

    Returns:
        The tolerance, relative to σ₁(H̃).

    Raises:
        InvalidInputError: Not two-dimensional or not of a float dtype.

    Examples:
        >>> X = torch.zeros(100, 768)
        >>> f"{feature_rtol(X):.1e}", f"{feature_rtol(X.double()):.1e}"
        ('8.4e-09', '1.7e-13')
    """
    if features.ndim != 2 or not features.is_floating_point():
        raise InvalidInputError(
            f"features must be (N, D) of a float dtype, got {tuple(features.shape)} of {features.dtype}."
        )
    return squared_rtol(features.shape[1], torch.finfo(features.dtype).eps)
