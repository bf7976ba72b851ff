r"""The dummy layer of Sec. 4.4: identity forward, preconditioned backward.

Algorithm 1 multiplies the regularizers' gradients by an inverse covariance. With autograd that is a
layer that passes its input on and multiplies the gradient that comes back, on its last axis:

.. math:: G \mapsto G\,(\tilde X^\top\tilde X + \varepsilon I)^{-1}

On features `Z = X̃` that is the layer for deep nets. On the weight `W = θᵀ`, `(out, in)`, of a linear map
with inputs X it is line 6 of Algorithm 1, `K⁻¹∇_θR` transposed: the inverse belongs to the input side.
The covariance is a constant of the step: nothing is differentiated through it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from condnum.arrays import as_tensor
from condnum.errors import InvalidInputError, RankError

#: Default ε relative to σ₁(X̃ᵀX̃): small against every direction that a sample of some hundred images fills,
#: large enough that round-off (eps·σ₁/ε = 2e-10) stays out of the result.
RELATIVE_RIDGE = 1e-6


class PreconditionedIdentity(torch.autograd.Function):
    """Identity forward; backward multiplies by the inverse covariance that is handed in."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, samples: Tensor, factor: Tensor, ridge: Tensor) -> Tensor:
        """Return `values` unchanged.

        Args:
            ctx: Autograd's context.
            values: `(..., D)` what the gradient is taken in.
            samples: `(N, D)` float64 X̃, a constant.
            factor: Lower Cholesky factor of the smaller of `X̃X̃ᵀ + εI` and `X̃ᵀX̃ + εI`.
            ridge: `()` ε.

        Returns:
            `(..., D)`.
        """
        ctx.save_for_backward(samples, factor, ridge)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """Return `G (X̃ᵀX̃ + εI)⁻¹`, computed in float64 and handed back in the dtype of G.

        Args:
            ctx: Autograd's context.
            upstream: `(..., D)` G.

        Returns:
            `(..., D)` for the values, None for the constants.
        """
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
        samples: `(N, D)` X̃ whose covariance preconditions; default the values themselves. Taken as a
            constant, in float64.
        ridge: ε > 0, absolute, in the units of `X̃ᵀX̃`; default `1e-6·σ₁`. Parts of G outside the row space of
            X̃ are divided by ε, round-off included: about `eps·‖G‖/ε` in all.

    Returns:
        `(..., D)` float64, so that what comes back from the spectra is preconditioned before it is
        rounded to the trunk's dtype.

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
            f"values {tuple(Z.shape)} and samples {tuple(X.shape)} do not fit: "
            "both need the same last dimension, (..., D) and (N, D)."
        )
    S = smaller_gram(X)
    epsilon = _resolve_ridge(ridge, S)
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


def _resolve_ridge(ridge: float | None, gram: Tensor) -> Tensor:
    """Return ε as a tensor."""
    if ridge is not None:
        if not 0 < ridge < float("inf"):
            raise InvalidInputError(f"ridge must be a positive number, got {ridge}.")
        return gram.new_tensor(ridge)
    largest = torch.linalg.eigvalsh(gram)[-1]
    if not bool(largest > 0):
        raise RankError(
            "the samples are all zero: there is no covariance to precondition with; pass ridge=…."
        )
    return RELATIVE_RIDGE * largest
