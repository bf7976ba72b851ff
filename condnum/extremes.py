"""Extreme eigenpairs of a Hessian without its whole spectrum, warm-started, each with its residual.

A descent needs one eigenpair of each Hessian a step, and the Hessian moves little between steps.
Both routines check their residual and fall back to a full `eigh`, which the result says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: Relative residual at which an eigenpair counts as found: the gradient error that it causes is
#: below the round-off of the products that form the Hessian.
RESIDUAL = 1e-13

#: Lanczos steps between two looks at the residual, and in all.
_LOOK, _MOST = 8, 64


@dataclass(frozen=True)
class EigenPair:
    """One eigenpair with the evidence that it is one."""

    value: Tensor  # ()
    vector: Tensor  # (n,) unit
    residual: float  # ‖Av − σv‖ / scale of A
    iterations: int
    fallback: bool  # found by a full eigendecomposition


def gram(matrix: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `FᵀF` by a symmetric rank-k product, half the work of a general one.

    Args:
        matrix: `(r, D)` float64.
        out: `(D, D)` contiguous to write into; large fresh arrays cost as much as the product.

    Returns:
        `(D, D)`, exactly symmetric.

    Examples:
        >>> gram(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
        tensor([[1., 2.],
                [2., 4.]], dtype=torch.float64)
    """
    if matrix.device.type != "cpu":
        return torch.mm(matrix.mT, matrix, out=out)
    array = matrix.detach().numpy()
    target = None if out is None else out.numpy()
    product = np.matmul(array.T, array, out=target)  # NumPy sees AᵀA and calls BLAS syrk; torch does not
    return torch.from_numpy(product) if out is None else out


def largest_pair(matrix: Tensor, start: Tensor | None = None) -> EigenPair:
    """Return the largest eigenpair of a symmetric positive semidefinite matrix by Lanczos.

    Full reorthogonalisation, so that the Ritz values stay honest; the start is the eigenvector of
    the previous step where there is one.

    Args:
        matrix: `(D, D)` symmetric positive semidefinite.
        start: `(D,)` guess; default the column of the largest diagonal entry.

    Returns:
        The pair; its residual is relative to the eigenvalue.

    Examples:
        >>> pair = largest_pair(torch.diag(torch.tensor([1.0, 5.0, 2.0])).double())
        >>> round(float(pair.value), 12), pair.fallback
        (5.0, False)
    """
    n = matrix.shape[0]
    v = matrix[:, int(matrix.diagonal().argmax())] if start is None else start
    most = min(_MOST, n)
    Q = matrix.new_zeros((most + 1, n))  # basis vectors as rows
    T = matrix.new_zeros((most, most))
    Q[0] = v / v.norm()
    for step in range(most):
        w = matrix @ Q[step]
        basis = Q[: step + 1]
        coefficients = basis @ w
        w = w - basis.mT @ coefficients
        correction = basis @ w
        w = w - basis.mT @ correction
        T[step, : step + 1] = coefficients + correction
        beta = w.norm()
        count = step + 1
        last = count == most or float(beta) <= torch.finfo(matrix.dtype).eps * float(T[0, 0].abs())
        if last or count % _LOOK == 0:
            values, vectors = torch.linalg.eigh(T[:count, :count])  # reads the lower triangle
            residual = float(beta * vectors[-1, -1].abs() / values[-1])
            if residual <= RESIDUAL or (last and count < most):
                vector = vectors[:, -1] @ basis
                return EigenPair(values[-1], vector / vector.norm(), residual, count, False)
            if last:
                break
        Q[step + 1] = w / beta
    values, vectors = torch.linalg.eigh(matrix)
    return EigenPair(values[-1], vectors[:, -1], 0.0, most, True)


def smallest_pair(factor: Tensor, start: Tensor | None = None, *, iterations: int = 20) -> EigenPair:
    """Return the smallest non-zero eigenpair of `FᵀF` through the dual Gram matrix `FFᵀ`.

    Inverse iteration on a Cholesky factor of `FFᵀ`, whose spectrum is the non-zero spectrum of
    `FᵀF`: no null directions, so no rank decision at every step.

    Args:
        factor: `(r, D)` of full row rank.
        start: `(r,)` guess in the dual space; default a vector of ones.
        iterations: Inverse iterations before the full decomposition.

    Returns:
        The pair of `FᵀF`, `(D,)`; its residual is relative to the largest eigenvalue.

    Examples:
        >>> pair = smallest_pair(torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.5, 0.0]]).double())
        >>> round(float(pair.value), 12), [round(abs(float(x)), 9) for x in pair.vector]
        (0.25, [0.0, 1.0, 0.0])
    """
    dual = gram(factor.mT)
    scale = float(dual.diagonal().max())
    lower, failed = torch.linalg.cholesky_ex(dual)
    x = factor.new_ones(factor.shape[0]) if start is None else start
    x = x / x.norm()
    if not int(failed):
        for iteration in range(1, iterations + 1):
            x = torch.cholesky_solve(x.unsqueeze(-1), lower).squeeze(-1)
            x = x / x.norm()
            image = dual @ x
            value = x @ image
            residual = float((image - value * x).norm()) / scale
            if residual <= RESIDUAL:
                return EigenPair(value, _primal(factor, x), residual, iteration, False)
    values, vectors = torch.linalg.eigh(dual)
    return EigenPair(values[0], _primal(factor, vectors[:, 0]), 0.0, iterations, True)


def _primal(factor: Tensor, x: Tensor) -> Tensor:
    """Map an eigenvector of `FFᵀ` to the one of `FᵀF`."""
    vector = factor.mT @ x
    return vector / vector.norm()
