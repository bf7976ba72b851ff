"""Products and decompositions that the formulas share, and what counts as a covariance."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import svd
from scipy.linalg.lapack import dsyevx
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from condnum.arrays import ArrayLike, all_finite, as_tensor, storage_eps
from condnum.errors import InvalidInputError

#: Round-off of float64.
EPS = 2.0**-52

#: Below it a sum of squares has lost digits.
TINY = torch.finfo(torch.float64).tiny / EPS

#: Relative distance above a found eigenvalue at which `largest_bound` tests definiteness: well above the
#: round-off of a Cholesky factor, D·2⁻⁵².
PROVEN = 1e-10

#: Up to this dimension LAPACK finds one eigenpair faster than Lanczos.
SMALL = 128


def symmetric_part(matrix: Tensor) -> Tensor:
    """Return `(A + Aᵀ)/2`."""
    return (matrix + matrix.mT) / 2


def is_symmetric(matrix: Tensor, eps: float) -> bool:
    """Tell whether a matrix is symmetric up to the round-off of a product of three D×D factors."""
    if matrix.shape[0] != matrix.shape[1]:
        return False
    gap = (matrix - matrix.mT).abs().max()
    return bool(gap <= 4 * len(matrix) * min(eps, 2.0**-23) * matrix.abs().max())


def checked_gram(gram: Tensor, features: Tensor) -> Tensor:
    """Return products of features, or raise if they leave float64."""
    overflow = not all_finite(gram)
    if overflow or (float(gram.detach().abs().max()) < TINY and bool(features.any())):
        change = "overflow float64: divide" if overflow else "underflow in float64: multiply"
        raise InvalidInputError(
            f"the features have entries up to {float(features.abs().max()):.3g}, whose squares {change} "
            "the inputs of all tasks by the same number, which does not change condition numbers."
        )
    return gram


def as_covariance(value: ArrayLike, name: str) -> Tensor:
    """Return a covariance `(D, D)`, exactly symmetric, or raise where it is none beyond round-off."""
    K = as_tensor(value, name, ndim=2)
    D = len(K)
    if K.shape[1] != D:
        raise InvalidInputError(
            f"{name} must be square, got shape {tuple(K.shape)}; for rows pass Task.of(X, y)."
        )
    eps = min(storage_eps(value), 2.0**-23)
    slack = max(4 * D * eps, 2 * math.sqrt(D) * storage_eps(value), 1e-8)
    variances = K.detach().diagonal()
    allowed = slack * variances.abs().max()
    gap = (K - K.mT).detach().abs().max()
    if bool(gap > allowed):
        raise InvalidInputError(
            f"{name} must be symmetric, got |K - Kᵀ| up to {float(gap):.3g}; pass a covariance XᵀX, or "
            "Task.of(X, y) for rows."
        )
    K = symmetric_part(K)
    shift = torch.diag((allowed + torch.finfo(K.dtype).tiny).expand_as(variances))
    if int(torch.linalg.cholesky_ex(K.detach() + shift).info):
        least = float(torch.linalg.eigvalsh(K.detach()).min())
        raise InvalidInputError(
            f"{name} is not positive semidefinite: its smallest eigenvalue is {least:.3g} against a largest "
            f"variance of {float(variances.max()):.3g}; pass a covariance XᵀX, or Task.of(X, y) for rows."
        )
    return K


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return `AB`; on CPUs by NumPy's BLAS, which takes two thirds of the time of torch's at D = 79."""
    if a.device.type != "cpu":
        return a @ b
    with np.errstate(over="ignore", invalid="ignore"):  # as torch: who descends looks at the result
        return torch.from_numpy(a.detach().numpy() @ b.detach().numpy())


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


def eigenpair(matrix: Tensor, index: int) -> tuple[float, Tensor]:
    """Return an eigenvalue of a small symmetric finite matrix, 0 for the smallest, and its vector `(n,)`."""
    if matrix.device.type == "cpu":
        # LAPACK itself: SciPy's `eigh` takes a fifth longer at D = 79.
        array, place = matrix.detach().numpy(), index + 1
        values, vectors, _, _, failed = dsyevx(array.T, range="I", il=place, iu=place, lower=1)
        if not failed:
            return float(values[0]), torch.from_numpy(vectors[:, 0])
    values, vectors = torch.linalg.eigh(matrix)
    return float(values[index]), vectors[:, index]


def largest_pair(matrix: Tensor) -> tuple[float, Tensor]:
    """Return σ₁ and v₁ `(n,)` of a positive semidefinite matrix.

    Raises:
        torch.linalg.LinAlgError: The matrix is not finite.
    """
    n = len(_finite(matrix))
    if n > SMALL and matrix.device.type == "cpu":
        array = matrix.detach().numpy()
        vector = lanczos(n, lambda q: array @ q)
        if vector is not None:
            found = torch.from_numpy(vector)
            return float(found @ (matrix @ found)), found
    return eigenpair(matrix, n - 1)


def smallest_pair(factor: Tensor) -> tuple[float, Tensor]:
    """Return σ_k and v_k `(D,)` of `FᵀF`, F `(k, D)` of full row rank, through the inverse of `FFᵀ`.

    That has no null directions, so no rank is decided at every step.

    Raises:
        torch.linalg.LinAlgError: F is not finite.
    """
    dual = _finite(gram(factor.mT))
    lower, failed = torch.linalg.cholesky_ex(dual)

    def solve(q: NDArray[np.float64]) -> NDArray[np.float64]:
        return torch.cholesky_solve(torch.from_numpy(q).to(dual)[:, None], lower)[:, 0].cpu().numpy()

    found = None if bool(failed) or len(dual) <= SMALL else lanczos(len(dual), solve)
    # Another solution: what is left of large eigenvectors, F would magnify.
    dual_vector = eigenpair(dual, 0)[1] if found is None else torch.from_numpy(solve(found)).to(dual)
    image = factor.mT @ (dual_vector / torch.linalg.vector_norm(dual_vector))
    length = torch.linalg.vector_norm(image)
    return float(length.square()), image / length.clamp_min(torch.finfo(image.dtype).tiny)


def lanczos(
    n: int, apply: Callable[[NDArray[np.float64]], Any], residual: float = 1e-13
) -> NDArray[np.float64] | None:
    """Return the unit vector of the largest eigenvalue of a positive operator; None: it does not converge.

    It starts at a random vector: one inside an invariant subspace would never leave it.
    """
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        return eigsh(
            operator,
            k=1,
            which="LA",
            v0=np.random.default_rng(0).standard_normal(n),
            tol=residual,
            maxiter=30,
        )[1][:, 0]
    except ArpackError:
        return None


def triangle_ends(R: Tensor, rtol: float) -> tuple[float, float, int]:
    """Return σ₁, σ_r and the rank r by `rtol` of an upper triangular R `(n, n)`.

    Of a large one of full rank by Lanczos on RᵀR and its inverse, in a third of the time of all singular
    values and as accurate as R is; else by all of them.
    """
    n = len(R)
    if n > SMALL:

        def inverse(x: Tensor) -> Tensor:  # (RᵀR)⁻¹
            x = torch.linalg.solve_triangular(R.mT, x[:, None], upper=False)
            return torch.linalg.solve_triangular(R, x, upper=True)[:, 0]

        def top_vector(apply: Callable[[Tensor], Tensor]) -> Tensor | None:
            found = lanczos(n, lambda q: apply(torch.from_numpy(q).to(R)).cpu().numpy(), 1e-11)
            return None if found is None else torch.from_numpy(found).to(R)

        if bool(torch.isfinite(inverse(R.new_ones(n))).all()):
            last = top_vector(inverse)
            low = 0.0 if last is None else float(last @ inverse(last)) ** -0.5
            first = None if last is None else top_vector(lambda q: R.mT @ (R @ q))
            top = math.inf if first is None else float((R @ first).norm())
            if low > rtol * top:
                return top, low, n
    sigma = torch.linalg.svdvals(R)
    rank = int((sigma > rtol * sigma[0]).sum())
    return float(sigma[0]), float(sigma[max(rank, 1) - 1]), rank


def _finite(matrix: Tensor) -> Tensor:
    """Return a matrix, or raise where its norm is not finite."""
    if not bool(torch.isfinite(torch.linalg.vector_norm(matrix))):
        raise torch.linalg.LinAlgError("the matrix is not finite.")
    return matrix


def largest_bound(matrix: Tensor) -> tuple[float, Tensor]:
    """Return an upper bound on the largest eigenvalue of a positive semidefinite matrix, and its vector.

    Cholesky's method proves what Lanczos found, in a tenth of the time of `eigh` unless the matrix is small.
    """
    value, vector = largest_pair(matrix)
    bound = value * (1 + PROVEN)
    if int(torch.linalg.cholesky_ex(bound * torch.eye(len(matrix)).to(matrix) - matrix).info):
        values, vectors = torch.linalg.eigh(matrix)
        bound, vector = float(values[-1]) * (1 + PROVEN), vectors[:, -1]
    return bound, vector
