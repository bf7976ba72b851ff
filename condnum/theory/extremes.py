"""Extreme eigenpairs of a batch of Hessians, warm-started, each with its residual.

A descent needs one eigenpair of each Hessian a step, and the Hessian moves little between steps.
Both routines check their residual and fall back to a full `eigh`, which the result says. A small residual
shows that a pair *is* an eigenpair, not that it is the extreme one: a start inside an invariant subspace (a
column of a block-diagonal matrix, an eigenvector that another one has overtaken) would never leave it. So
every start has a part in a random direction, and `largest_bound` proves what is used as a bound.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

#: Relative residual at which an eigenpair counts as found: the gradient error that it causes is
#: below the round-off of the products that form the Hessian.
RESIDUAL = 1e-13

#: Length of the random part of a warm start, whose own length is 1.
STIRRED = 1e-3

#: Relative distance above a found eigenvalue at which `largest_bound` tests definiteness: well above the
#: round-off of a Cholesky factor, D·2⁻⁵².
PROVEN = 1e-10

#: Basis vectors of Lanczos, those kept at a restart, and products in all.
_BASIS, _KEEP, _MOST = 32, 12, 240


def gram(matrix: Tensor) -> Tensor:
    """Return `FᵀF` by a symmetric rank-k product, half the work of a general one."""
    if matrix.device.type != "cpu":
        return matrix.mT @ matrix
    array = matrix.detach().numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # as torch: who descends looks at the result
        return torch.from_numpy(array.T @ array)  # NumPy sees AᵀA and calls BLAS syrk; torch does not


def grams(matrices: Tensor) -> Tensor:
    """Return `FᵀF` of each matrix."""
    return matrices.mT @ matrices if len(matrices) > 1 else gram(matrices[0])[None]


@dataclass(frozen=True)
class EigenPairs:
    """One eigenpair of each matrix, with the evidence that it is one."""

    values: Tensor  # (b,)
    vectors: Tensor  # (b, n) unit
    residuals: Tensor  # (b,) ‖Av − σv‖ / scale of A
    iterations: Tensor  # (b,) products until it was found
    fallbacks: Tensor  # (b,) bool, found by a full eigendecomposition


def largest_pairs(matrices: Tensor, start: Tensor | None = None) -> EigenPairs:
    """Return the largest eigenpair of each symmetric positive semidefinite matrix."""
    A, finite = _finite_ones(matrices)
    start = _stirred(torch.zeros_like(A[:, 0]) if start is None else start)
    return _first_good(_ritz_pairs(lambda q: _times(A, q), start, first_looks=0), A, finite, index=-1)


def largest_bound(matrix: Tensor) -> tuple[float, Tensor]:
    """Return an upper bound on the largest eigenvalue of a positive semidefinite matrix, and its vector.

    Cholesky's method proves what Lanczos found, in a tenth of the time of `eigh` unless the matrix is small.
    """
    bound = -1.0
    if len(matrix) > _BASIS:
        pair = largest_pairs(matrix[None])
        bound, vector = float(pair.values[0]) * (1 + PROVEN), pair.vectors[0]
    if int(torch.linalg.cholesky_ex(bound * torch.eye(len(matrix)).to(matrix) - matrix).info):
        values, vectors = torch.linalg.eigh(matrix)
        bound, vector = float(values[-1]) * (1 + PROVEN), vectors[:, -1]
    return bound, vector


def smallest_pairs(factor: Tensor, ranks: Tensor, start: Tensor | None = None) -> EigenPairs:
    """Return the smallest non-zero eigenpair of each `FᵀF` by Lanczos on the inverse of `FFᵀ`.

    That has no null directions, so no rank is decided at every step. The padding gets a diagonal above the
    spectrum, and a start that is zero there stays so.
    """
    r = factor.shape[1]
    own = torch.arange(r, device=factor.device) < ranks[:, None]
    dual, finite = _finite_ones(grams(factor.mT))
    scale = dual.diagonal(dim1=1, dim2=2).amax(dim=1)
    dual = dual + torch.diag_embed(2 * scale[:, None] * ~own)
    lower, failed = torch.linalg.cholesky_ex(dual)
    identity = torch.eye(r, dtype=dual.dtype, device=dual.device).expand_as(dual)
    usable = (failed == 0) & finite
    lower = torch.where(usable[:, None, None], lower, identity)
    inverse = torch.linalg.solve_triangular(lower, identity, upper=False)

    def solve(q: Tensor) -> Tensor:
        return _times(inverse.mT, _times(inverse, q))

    guess = _stirred(torch.zeros_like(dual[:, 0]) if start is None else start)

    def candidates() -> Iterator[_Candidate]:
        for _, found, _, count in _ritz_pairs(solve, solve(guess * own), first_looks=4):
            x = _unit(solve(found))  # what is left of large eigenvectors, F would magnify
            image = _times(dual, x)
            value = (x * image).sum(dim=1)
            residual = torch.linalg.vector_norm(image - value[:, None] * x, dim=1) / scale
            yield value, x, torch.where(usable, residual, torch.inf), count

    pairs = _first_good(candidates(), dual, finite, index=0)
    return replace(pairs, vectors=_unit(_times(factor.mT, pairs.vectors)))


#: Values `(b,)`, vectors `(b, n)` and residuals `(b,)` after so many products.
_Candidate = tuple[Tensor, Tensor, Tensor, int]


def _first_good(
    candidates: Iterator[_Candidate], matrices: Tensor, finite: Tensor, *, index: int
) -> EigenPairs:
    """Return of each finite matrix the first pair that passes the residual check, else that of `eigh`."""
    values, vectors = matrices.new_zeros(len(matrices)), torch.zeros_like(matrices[:, 0])
    residuals = torch.full_like(values, torch.inf)
    iterations = torch.full_like(values, _MOST, dtype=torch.int64)
    missing = torch.ones_like(finite)
    for value, vector, residual, count in candidates:
        new = missing & (residual <= RESIDUAL)
        values, vectors = torch.where(new, value, values), torch.where(new[:, None], vector, vectors)
        residuals, iterations = torch.where(new, residual, residuals), torch.where(new, count, iterations)
        missing = missing & ~new
        if not bool(missing.any()):
            break
    missing = missing & finite
    for place in missing.nonzero()[:, 0].tolist():
        try:
            spectrum, basis = torch.linalg.eigh(matrices[place])
        except torch.linalg.LinAlgError:
            finite = finite.index_fill(0, torch.tensor([place], device=finite.device), False)
            continue
        values[place], vectors[place], residuals[place] = spectrum[index], basis[:, index], 0.0
    values, vectors = (
        torch.where(finite, values, torch.nan),
        torch.where(finite[:, None], vectors, torch.nan),
    )
    return EigenPairs(values, vectors, residuals, iterations, missing)


def _ritz_pairs(apply: Callable[[Tensor], Tensor], start: Tensor, first_looks: int) -> Iterator[_Candidate]:
    """Run thick-restart Lanczos with full reorthogonalisation; yield the largest Ritz pairs."""
    n = start.shape[1]
    size = min(_BASIS, n)
    Q = start.new_zeros((len(start), size, n))  # basis vectors as rows
    T = start.new_zeros((len(start), size, size))
    Q[:, 0] = _unit(torch.nan_to_num(start))
    filled = 0
    for count in range(1, _MOST + 1):
        w = apply(Q[:, filled])
        filled += 1
        basis = Q[:, :filled]
        coefficients = _times(basis, w)
        w = w - _times(basis.mT, coefficients)
        correction = _times(basis, w)
        w = w - _times(basis.mT, correction)
        T[:, filled - 1, :filled] = coefficients + correction
        beta = torch.linalg.vector_norm(w, dim=1)
        # An invariant subspace holds the pair exactly; the zero vectors that follow it change nothing.
        invariant = beta <= torch.finfo(T.dtype).eps * T[:, 0, 0].abs()
        if count <= first_looks or count % 4 == 0 or filled == size:
            projected = torch.nan_to_num(T[:, :filled, :filled], nan=0.0, posinf=0.0, neginf=0.0)
            values, S = torch.linalg.eigh(projected)  # reads the lower triangle
            vectors = S.mT @ basis
            residual = torch.where(invariant, 0.0, beta * S[:, -1, -1].abs() / values[:, -1])
            yield values[:, -1], _unit(vectors[:, -1]), residual, count
            if filled == size:
                if size == n:
                    return
                filled = _KEEP
                Q[:, :filled] = vectors[:, -filled:].flip(1)
                T.zero_()
                T[:, :filled, :filled] = torch.diag_embed(values[:, -filled:].flip(1))
        Q[:, filled] = torch.where(invariant[:, None], 0.0, w / beta[:, None])


def _stirred(start: Tensor) -> Tensor:
    """Return starts `(b, n)` with a part in a random direction, the same for all of one n."""
    random = torch.randn(start.shape[1], generator=torch.Generator().manual_seed(0), dtype=start.dtype)
    return _unit(torch.nan_to_num(start)) + STIRRED * _unit(random[None].to(start.device))


def _finite_ones(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices, zeros in the place of those whose norm is not finite, and whose is."""
    finite = torch.isfinite(torch.linalg.vector_norm(matrices, dim=(1, 2)))
    if bool(finite.all()):
        return matrices, finite
    return torch.where(finite[:, None, None], matrices, 0.0), finite


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return `A_i x_i` of each matrix and vector."""
    return torch.bmm(matrices, vectors.unsqueeze(2)).squeeze(2)


def _unit(vectors: Tensor) -> Tensor:
    """Return vectors of length one; zero stays zero."""
    return vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min(
        torch.finfo(vectors.dtype).tiny
    )
