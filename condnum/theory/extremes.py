"""Extreme eigenpairs of Hessians, one at a time, where a whole `eigh` would take most of a step.

LAPACK finds one of a small matrix in half the time of all, Lanczos (ARPACK) one of a large matrix. Every run
of Lanczos starts at a random vector: a start inside an invariant subspace, such as a column of a
block-diagonal matrix, would never leave it.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import eigh, svd
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

#: Relative residual at which an eigenpair counts as found: the gradient error that it causes is
#: below the round-off of the products that form the Hessian.
RESIDUAL = 1e-13

#: Relative residual at which an eigenvalue counts as found: its own error is at most that, mostly its square.
_VALUE_RESIDUAL = 1e-11

#: Up to this dimension `eigh` is faster.
_FEW = 64

#: Up to this dimension all eigenvalues of one matrix are as fast as anything cleverer.
SMALL = 128

#: Restarts of Lanczos, after which a crowded spectrum is left to `eigh`.
_RESTARTS = 30

#: Relative distance above a found eigenvalue at which `largest_bound` tests definiteness: well above the
#: round-off of a Cholesky factor, D·2⁻⁵².
PROVEN = 1e-10


def gram(matrix: Tensor) -> Tensor:
    """Return `FᵀF` by a symmetric rank-k product, half the work of a general one."""
    if matrix.device.type != "cpu":
        return matrix.mT @ matrix
    array = matrix.detach().numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # as torch: who descends looks at the result
        return torch.from_numpy(array.T @ array)  # NumPy sees AᵀA and calls BLAS syrk; torch does not


def singular_triples(matrix: Tensor, *, whole: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, σ and Vᵀ of one finite matrix; `whole`: square U and V.

    LAPACK's divide and conquer (gesdd), which is fast, fails on a few finite matrices; QR iteration does not.

    Raises:
        torch.linalg.LinAlgError: The matrix is not finite.
    """
    try:
        return torch.linalg.svd(matrix, full_matrices=whole)
    except torch.linalg.LinAlgError:
        array = _finite(matrix).detach().cpu().numpy()
        found = svd(array, full_matrices=whole, lapack_driver="gesvd")
        return tuple(torch.from_numpy(part).to(matrix) for part in found)  # type: ignore[return-value]


def eigenpair(matrix: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """Return an eigenvalue `()` of a small symmetric matrix, 0 for the smallest, and its vector `(n,)`.

    Raises:
        torch.linalg.LinAlgError: The matrix is not finite.
    """
    if matrix.device.type != "cpu":
        values, vectors = torch.linalg.eigh(matrix)
        return values[index], vectors[:, index]
    array = _finite(matrix).detach().numpy()
    values, vectors = eigh(array, subset_by_index=[index, index], driver="evr", check_finite=False)
    return torch.from_numpy(values)[0], torch.from_numpy(vectors)[:, 0]


def largest_pair(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ₁ `()` and v₁ `(n,)` of a positive semidefinite matrix.

    Raises:
        torch.linalg.LinAlgError: The matrix is not finite.
    """
    vector = _top_vector(_finite(matrix), lambda q: matrix @ q)
    if vector is None:
        values, vectors = torch.linalg.eigh(matrix)
        return values[-1], vectors[:, -1]
    return vector @ (matrix @ vector), vector


def triangle_ends(R: Tensor) -> tuple[float, float]:
    """Return σ₁ and σ_n of an upper triangular R `(n, n)`.

    σ_n is the inverse of a largest singular value, as accurate as R is; 0 where R is singular.
    """
    if len(R) <= SMALL:
        sigma = torch.linalg.svdvals(R)
        return float(sigma[0]), float(sigma[-1])

    def inverse(x: Tensor) -> Tensor:  # (RᵀR)⁻¹
        x = torch.linalg.solve_triangular(R.mT, x, upper=False)
        return torch.linalg.solve_triangular(R, x, upper=True)

    if not bool(torch.isfinite(inverse(torch.ones_like(R[:, :1]))).all()):
        return spectral_norm(R), 0.0
    vector = _top_vector(R, lambda q: inverse(q[:, None])[:, 0], _VALUE_RESIDUAL)
    if vector is None:
        value = torch.linalg.eigvalsh(inverse(torch.eye(len(R)).to(R)))[-1]
    else:
        value = vector @ inverse(vector[:, None])[:, 0]
    return spectral_norm(R), float(value) ** -0.5


def spectral_norm(matrix: Tensor) -> float:
    """Return the largest singular value."""
    if min(matrix.shape) == 0 or not bool(matrix.any()):
        return 0.0
    shorter = matrix.mT if matrix.shape[0] < matrix.shape[1] else matrix
    vector = _top_vector(shorter, lambda q: shorter.mT @ (shorter @ q), _VALUE_RESIDUAL)
    if vector is None:
        return math.sqrt(float(torch.linalg.eigvalsh(gram(shorter))[-1]))
    return float(torch.linalg.vector_norm(shorter @ vector))


def smallest_pair(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return σ_k `()` and v_k `(D,)` of `FᵀF`, F `(k, D)` of full row rank, through the inverse of `FFᵀ`.

    That has no null directions, so no rank is decided at every step.

    Raises:
        torch.linalg.LinAlgError: F is not finite.
    """
    dual = _finite(gram(factor.mT))
    lower, failed = torch.linalg.cholesky_ex(dual)

    def solve(x: Tensor) -> Tensor:
        return torch.cholesky_solve(x[:, None], lower)[:, 0]

    found = None if bool(failed) else _top_vector(dual, solve)
    # Another solution: what is left of large eigenvectors, F would magnify.
    dual_vector = torch.linalg.eigh(dual).eigenvectors[:, 0] if found is None else solve(found)
    image = factor.mT @ (dual_vector / torch.linalg.vector_norm(dual_vector))
    length = torch.linalg.vector_norm(image)
    return length.square(), image / length.clamp_min(torch.finfo(image.dtype).tiny)


def largest_bound(matrix: Tensor) -> tuple[float, Tensor]:
    """Return an upper bound on the largest eigenvalue of a positive semidefinite matrix, and its vector.

    Cholesky's method proves what Lanczos found, in a tenth of the time of `eigh` unless the matrix is small.
    """
    value, vector = largest_pair(matrix)
    bound = float(value) * (1 + PROVEN)
    if int(torch.linalg.cholesky_ex(bound * torch.eye(len(matrix)).to(matrix) - matrix).info):
        values, vectors = torch.linalg.eigh(matrix)
        bound, vector = float(values[-1]) * (1 + PROVEN), vectors[:, -1]
    return bound, vector


def _top_vector(like: Tensor, apply: Callable[[Tensor], Tensor], residual: float = RESIDUAL) -> Tensor | None:
    """Return the unit vector of the largest eigenvalue of a positive operator on the columns of a matrix.

    None where `eigh` is the better way: for few dimensions, and where Lanczos does not converge.
    """
    n = like.shape[1]
    if n <= _FEW:
        return None
    operator = LinearOperator(
        (n, n), matvec=lambda q: apply(torch.from_numpy(q).to(like)).cpu().numpy(), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(n)
    try:
        _, vectors = eigsh(operator, k=1, which="LA", v0=start, tol=residual, maxiter=_RESTARTS)
    except ArpackError:
        return None
    return torch.from_numpy(vectors[:, 0]).to(like)


def _finite(matrix: Tensor) -> Tensor:
    """Return a matrix, or raise where its norm is not finite."""
    if not bool(torch.isfinite(torch.linalg.vector_norm(matrix))):
        raise torch.linalg.LinAlgError("the matrix is not finite.")
    return matrix
