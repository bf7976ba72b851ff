"""The bridge to torch's autograd: a value whose backward is the closed form.

Differentiating through `svd` or `eigh` divides by the gaps of all singular values: it is NaN as
soon as two of them meet, null ones of a rank-deficient Hessian included. The closed form needs
one extreme pair, and is right there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from condnum.errors import CondnumError, RankError

INFINITE_VALUE = (
    "R_ill is infinite and has no gradient: the non-zero singular values of a matrix are all "
    "equal (always so at rank 1), κ = 1; start from a theta whose Hessian has some spread, or "
    "pass a smaller rtol if the spread is real."
)


class ClosedForm(torch.autograd.Function):
    """Scalar function of each matrix of a batch, with a gradient computed beforehand."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return `value` and keep `gradient`."""
        ctx.save_for_backward(matrix, value, gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Return `upstream · gradient`."""
        matrix, value, gradient = ctx.saved_tensors
        if bool(torch.isinf(value).any()):
            raise RankError(INFINITE_VALUE)
        if torch.is_grad_enabled():  # create_graph=True
            gradient = OnceOnly.apply(matrix, gradient)
        return upstream[..., None, None] * gradient, None, None


class OnceOnly(torch.autograd.Function):
    """A closed-form gradient that refuses to be differentiated again.

    torch's `once_differentiable` would not do: where the upstream derivative is a constant it
    hands back a constant, and second derivatives come out silently without this term.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, gradient: Tensor) -> Tensor:
        """Return `gradient` as a function of `matrix`."""
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:
        """Refuse."""
        raise CondnumError(
            "r_well and r_ill have a closed-form first derivative only; for second derivatives write the "
            "regularizer with torch.linalg.svdvals, or detach this term."
        )
