"""Extreme eigenpairs of a Hessian without its whole spectrum, warm-started, each with its residual.

A descent needs one eigenpair of each Hessian a step, and the Hessian moves little between steps.
Both routines check their residual and fall back to a full `eigh`, which the result says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import dtrmm
from torch import Tensor

#: Relative residual at which an eigenpair counts as found: the gradient error that it causes is
#: below the round-off of the products that form the Hessian.
RESIDUAL = 1e-13

#: Lanczos steps between two looks at the residual, and in all.
_LOOK, _MOST = 4, 160


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

    Examples:
        >>> pair = largest_pair(torch.diag(torch.tensor([1.0, 5.0, 2.0])).double())
        >>> round(float(pair.value), 12), pair.fallback
        (5.0, False)
    """
    guess = matrix[:, int(matrix.diagonal().argmax())] if start is None else start
    count = 0
    for value, vector, residual, count in _ritz_pairs(lambda q: matrix @ q, guess):
        if residual <= RESIDUAL:
            return EigenPair(value, vector, residual, count, False)
    values, vectors = torch.linalg.eigh(matrix)
    return EigenPair(values[-1], vectors[:, -1], 0.0, count, True)


def smallest_pair(factor: Tensor, start: Tensor | None = None) -> EigenPair:
    """Return the smallest non-zero eigenpair of `FᵀF` through the dual Gram matrix `FFᵀ`.

    Lanczos on the inverse of `FFᵀ` by its Cholesky factor; the spectrum of `FFᵀ` is the non-zero
    spectrum of `FᵀF`: no null directions, so no rank decision at every step.

    Examples:
        >>> pair = smallest_pair(torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.5, 0.0]]).double())
        >>> round(float(pair.value), 12), [round(abs(float(x)), 9) for x in pair.vector]
        (0.25, [0.0, 1.0, 0.0])
    """
    dual = gram(factor.mT)
    scale = float(dual.diagonal().max())
    lower, failed = torch.linalg.cholesky_ex(dual)
    guess = factor.new_ones(factor.shape[0]) if start is None else start
    count = 0
    if not int(failed):

        def solve(q: Tensor) -> Tensor:
            return torch.cholesky_solve(q.unsqueeze(-1), lower).squeeze(-1)

        # The first solve of a warm start is worth a look of its own.
        for _, x, _, count in _ritz_pairs(solve, solve(guess), look=1):
            x = solve(x)  # what is left of large eigenvectors in x, F would magnify
            x = x / x.norm()
            image = dual @ x
            value = x @ image
            residual = float((image - value * x).norm()) / scale
            if residual <= RESIDUAL:
                return EigenPair(value, _primal(factor, x), residual, count, False)
    values, vectors = torch.linalg.eigh(dual)
    return EigenPair(values[0], _primal(factor, vectors[:, 0]), 0.0, count, True)


def _ritz_pairs(
    apply: Callable[[Tensor], Tensor], start: Tensor, look: int = _LOOK
) -> Iterator[tuple[Tensor, Tensor, float, int]]:
    """Run Lanczos with full reorthogonalisation; yield the largest Ritz pair at every look."""
    n = start.shape[0]
    most = min(_MOST, n)
    Q = start.new_zeros((most, n))  # basis vectors as rows
    T = start.new_zeros((most, most))
    Q[0] = start / start.norm()
    for step in range(most):
        w = apply(Q[step])
        basis = Q[: step + 1]
        coefficients = basis @ w
        w = w - basis.mT @ coefficients
        correction = basis @ w
        w = w - basis.mT @ correction
        T[step, : step + 1] = coefficients + correction
        beta = w.norm()
        count = step + 1
        invariant = float(beta) <= torch.finfo(start.dtype).eps * float(T[0, 0].abs())
        if invariant or count == most or count % look == 0:
            values, vectors = torch.linalg.eigh(T[:count, :count])  # reads the lower triangle
            vector = vectors[:, -1] @ basis
            # An invariant subspace holds the pair exactly, as a start in it can know.
            residual = 0.0 if invariant else float(beta * vectors[-1, -1].abs() / values[-1])
            yield values[-1], vector / vector.norm(), residual, count
        if invariant or count == most:
            return
        Q[count] = w / beta


def _primal(factor: Tensor, x: Tensor) -> Tensor:
    """Map an eigenvector of `FFᵀ` to the one of `FᵀF`."""
    vector = factor.mT @ x
    return vector / vector.norm()


# `Bθ` at half the work: a factor of K brought to triangular form once, multiplied many times.


@dataclass(frozen=True)
class TriangularFactor:
    """`R = QᵀB`, upper trapezoidal, with `RᵀR = BᵀB = K`.

    A descent multiplies the factor with a new θ at every step. The triangle `(r, r)` of R takes half
    the work of the square; the other columns are a general product. Where B has r < D rows and a few
    dependent columns, that is r² + 2r(D − r) multiplications a column of θ instead of 2rD.
    """

    triangle: NDArray[np.float64]  # (r, r) NumPy array in Fortran order, as BLAS wants it
    rest: Tensor  # (r, D - r)

    @classmethod
    def of(cls, factor: Tensor) -> Self:
        """Bring a factor to triangular form.

        Examples:
            >>> B = torch.tensor([[3.0, 1.0], [4.0, 2.0]], dtype=torch.float64)
            >>> F = TriangularFactor.of(B).times(torch.eye(2, dtype=torch.float64))
            >>> torch.allclose(F.mT @ F, B.mT @ B)
            True
        """
        rows = factor.shape[0]
        R: NDArray[np.float64] = np.asarray(np.linalg.qr(factor.numpy(), mode="r"))
        return cls(np.asfortranarray(R[:, :rows]), torch.from_numpy(np.ascontiguousarray(R[:, rows:])))

    def times(self, theta: Tensor, out: Tensor | None = None) -> Tensor:
        """Return `Rθ`."""
        rows = len(self.triangle)
        result = theta.new_empty((rows, theta.shape[1])) if out is None else out
        result.copy_(theta[:rows])
        # Row-major (r, n) is column-major (n, r): from the right, in place, without a copy.
        dtrmm(1.0, self.triangle, result.numpy().T, side=1, trans_a=1, overwrite_b=1)
        return result.addmm_(self.rest, theta[rows:]) if self.rest.shape[1] else result
