"""`Bθ` at half the work: a factor of K brought to triangular form once, multiplied many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import dtrmm
from torch import Tensor


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
