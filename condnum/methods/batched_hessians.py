"""Gradients of a batch through its Hessians in factor form: `condnum.methods.batched_hessians`, batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from condnum.methods.batched_tasks import BatchMemory, HessianGradientBatch, OuterGradientBatch, TaskBatch
from condnum.methods.method import HessianGradient, Memory, OuterGradient
from condnum.methods.problem import LinearTask
from condnum.theory.extremes import RESIDUAL, gram, largest_pair, smallest_pair

# Extreme eigenpairs of a batch of Hessians: `condnum.theory.extremes` with a leading dimension.


#: Basis vectors of Lanczos, those kept at a restart, and products in all.
_BASIS, _KEEP, _MOST = 32, 12, 240


@dataclass(frozen=True)
class EigenPairs:
    """One eigenpair of each matrix, with the evidence that it is one."""

    values: Tensor  # (b,)
    vectors: Tensor  # (b, n) unit
    residuals: Tensor  # (b,) ‖Av − σv‖ / scale of A
    iterations: Tensor  # (b,) products until it was found
    fallbacks: Tensor  # (b,) bool, found by a full eigendecomposition


def largest_pairs(matrices: Tensor, start: Tensor | None = None) -> EigenPairs:
    """Return the largest eigenpair of each symmetric positive semidefinite matrix.

    Examples:
        >>> pairs = largest_pairs(torch.diag_embed(torch.tensor([[1.0, 5.0], [3.0, 2.0]]).double()))
        >>> [round(value, 12) for value in pairs.values.tolist()], pairs.fallbacks.tolist()
        ([5.0, 3.0], [False, False])
    """
    A, finite = _finite_ones(matrices)
    if start is None:
        largest = A.diagonal(dim1=1, dim2=2).argmax(dim=1)
        start = A[torch.arange(len(A), device=A.device), :, largest]
    search = _Search(len(A), A.shape[1], A)
    for value, vector, residual, count in _ritz_pairs(lambda q: _times(A, q), start, first_looks=0):
        if search.offer(value, vector, residual, count):
            break
    return search.finish(A, finite, index=-1)


def smallest_pairs(factor: Tensor, ranks: Tensor, start: Tensor | None = None) -> EigenPairs:
    """Return the smallest non-zero eigenpair of each `FᵀF` through the dual Gram matrix `FFᵀ`.

    Lanczos on the inverse of `FFᵀ`. The inverse of its Cholesky factor is formed once, so that each
    product is one for the whole batch; a triangular solve is a chain of n steps that wait for each
    other. The padding gets a diagonal above the spectrum, and a start that is zero there stays so.

    Examples:
        >>> F = torch.tensor([[[3.0, 0.0], [0.0, 0.5]], [[2.0, 0.0], [0.0, 0.0]]]).double()
        >>> pairs = smallest_pairs(F, torch.tensor([2, 1]))
        >>> [round(value, 9) for value in pairs.values.tolist()]
        [0.25, 4.0]
    """
    r = factor.shape[1]
    own = torch.arange(r, device=factor.device) < ranks[:, None]
    dual, finite = _finite_ones(factor @ factor.mT)
    scale = dual.diagonal(dim1=1, dim2=2).amax(dim=1)
    dual = dual + torch.diag_embed(2 * scale[:, None] * ~own)
    lower, failed = torch.linalg.cholesky_ex(dual)
    identity = torch.eye(r, dtype=dual.dtype, device=dual.device).expand_as(dual)
    usable = (failed == 0) & finite
    lower = torch.where(usable[:, None, None], lower, identity)
    inverse = torch.linalg.solve_triangular(lower, identity, upper=False)

    def solve(q: Tensor) -> Tensor:
        return _times(inverse.mT, _times(inverse, q))

    guess = torch.ones_like(own, dtype=dual.dtype) if start is None else torch.nan_to_num(start)
    search = _Search(len(dual), r, dual)
    for _, found, _, count in _ritz_pairs(solve, solve(guess * own), first_looks=4):
        x = _unit(solve(found))  # what is left of large eigenvectors, F would magnify
        image = _times(dual, x)
        value = (x * image).sum(dim=1)
        residual = torch.linalg.vector_norm(image - value[:, None] * x, dim=1) / scale
        if search.offer(value, x, torch.where(usable, residual, torch.inf), count):
            break
    pairs = search.finish(dual, finite, index=0)
    primal = _unit(_times(factor.mT, pairs.vectors))
    return EigenPairs(pairs.values, primal, pairs.residuals, pairs.iterations, pairs.fallbacks)


class _Search:
    """The first pair of each matrix that passes the residual check."""

    def __init__(self, count: int, n: int, like: Tensor) -> None:
        self.values = like.new_zeros(count)
        self.vectors = like.new_zeros((count, n))
        self.residuals = like.new_full((count,), torch.inf)
        self.iterations = torch.full((count,), _MOST, device=like.device)
        self.done = torch.zeros(count, dtype=torch.bool, device=like.device)

    def offer(self, value: Tensor, vector: Tensor, residual: Tensor, count: int) -> bool:
        """Take the pairs that are new and good enough; True once all are found."""
        new = ~self.done & (residual <= RESIDUAL)
        self.values = torch.where(new, value, self.values)
        self.vectors = torch.where(new[:, None], vector, self.vectors)
        self.residuals = torch.where(new, residual, self.residuals)
        self.iterations = torch.where(new, count, self.iterations)
        self.done = self.done | new
        return bool(self.done.all())

    def finish(self, matrices: Tensor, finite: Tensor, *, index: int) -> EigenPairs:
        """Decompose the matrices for which nothing was found; NaN for those that are not finite."""
        missing = ~self.done & finite
        for place in missing.nonzero()[:, 0].tolist():
            try:
                values, vectors = torch.linalg.eigh(matrices[place])
            except torch.linalg.LinAlgError:
                finite = finite.clone()
                finite[place] = False
                continue
            self.values[place], self.vectors[place] = values[index], vectors[:, index]
            self.residuals[place] = 0.0
        return EigenPairs(
            torch.where(finite, self.values, torch.nan),
            torch.where(finite[:, None], self.vectors, torch.nan),
            self.residuals,
            self.iterations,
            missing,
        )


def _ritz_pairs(
    apply: Callable[[Tensor], Tensor], start: Tensor, first_looks: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
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


# Gradients of large extractors at a few matrix products: the Hessians in factor form.


#: A term of `∇_H R_ill` below this share of `‖H/k‖_F` moves no digit that the descent keeps.
NEGLIGIBLE = 1e-10


def well_gradient(task: LinearTask, theta: Tensor, memory: Memory) -> HessianGradient:
    """Return `∇_H R_well = σ₁v₁v₁ᵀ − H/D` (Theorem A.1 (3))."""
    H = _hessian(task, theta, memory, "P")[1]
    pair = largest_pair(H, memory.vectors.get("v_1"))
    memory.vectors["v_1"] = pair.vector
    memory.count("lanczos_steps", pair.iterations)
    memory.count("eigh_fallbacks", int(pair.fallback))
    return HessianGradient(H, H.new_tensor(-1 / H.shape[0]), pair.value, pair.vector)


def ill_gradient(task: LinearTask, theta: Tensor, memory: Memory) -> HessianGradient:
    """Return `∇_H R_ill = (σ_k v_k v_kᵀ − H/k)·R_ill²` (Eq. 13).

    A Rayleigh quotient of the dual Gram matrix bounds σ_k from above: while that bound is
    negligible, so is the term, and no eigenpair is needed.
    """
    F, H = _hessian(task, theta, memory, "H")
    k = min(task.rank, H.shape[0])
    squared_norm = torch.linalg.vector_norm(H).square()
    guess = memory.vectors.get("dual_k")
    if guess is None:  # the least energetic direction of the data
        guess = torch.zeros_like(F[:, 0])
        guess[-1] = 1.0
    bound = (F.mT @ guess).square().sum()
    if float(bound) <= NEGLIGIBLE * float(squared_norm.sqrt()) / k:
        value = 2 * k / squared_norm
        return HessianGradient(H, -value.square() / k, H.new_zeros(()), torch.zeros_like(H[0]))
    pair = smallest_pair(F, guess)
    dual = F @ pair.vector
    memory.vectors["dual_k"] = dual / dual.norm()
    memory.count("smallest_pair_solves")
    memory.count("eigh_fallbacks", int(pair.fallback))
    value = 1 / (squared_norm / (2 * k) - pair.value.square() / 2)
    return HessianGradient(H, -value.square() / k, pair.value * value.square(), pair.vector)


def kappa_gradient(
    task: LinearTask, theta: Tensor, memory: Memory, name: str, *, ridge: float | None
) -> tuple[Tensor, OuterGradient]:
    r"""Return κ(H(θ)) and its gradient in θ as a product of rank one or two.

    .. math:: \nabla_\theta\kappa = 2B^\top\left(Fv_1v_1^\top - \kappa Fv_kv_k^\top\right)/\sigma_k
    """
    F, H = _hessian(task, theta, memory, name)
    largest = largest_pair(H, memory.vectors.get(f"v_1_{name}"))
    memory.vectors[f"v_1_{name}"] = largest.vector
    memory.count("lanczos_steps", largest.iterations)
    memory.count("eigh_fallbacks", int(largest.fallback))
    floor = 0.0 if ridge is None else ridge
    if ridge is not None and task.rank < H.shape[0]:
        kappa, smallest = (largest.value + floor) / floor, largest.value.new_tensor(floor)
        vectors, weights = largest.vector[:, None], H.new_ones(1)
    else:
        guess = memory.vectors.get(f"dual_k_{name}")
        pair = smallest_pair(F, guess)
        dual = F @ pair.vector
        memory.vectors[f"dual_k_{name}"] = dual / dual.norm()
        memory.count("smallest_pair_solves")
        memory.count("eigh_fallbacks", int(pair.fallback))
        # Where σ_k is below the round-off of H, its computed value may be negative.
        smallest = pair.value.clamp_min(torch.finfo(H.dtype).eps * largest.value) + floor
        kappa = (largest.value + floor) / smallest
        vectors = torch.stack([largest.vector, pair.vector], dim=1)
        weights = torch.stack([torch.ones_like(kappa), -kappa])
    left = task.covariance @ (theta @ vectors)
    return kappa, OuterGradient(left * (2 * weights / smallest), vectors)


def _hessian(task: LinearTask, theta: Tensor, memory: Memory, name: str) -> tuple[Tensor, Tensor]:
    """Return `F = Bθ` and `H = FᵀF`, in buffers that the next step overwrites."""
    rows, columns = task.factor.shape[0], theta.shape[1]
    F = memory.buffer(f"F_{name}", theta, rows, columns)
    if task.triangular_factor is None:
        torch.mm(task.factor, theta, out=F)
    else:
        task.triangular_factor.times(theta, out=F)
    return F, gram(F, out=memory.buffer(f"H_{name}", theta, columns, columns))


def well_gradients(tasks: TaskBatch, theta: Tensor, memory: BatchMemory) -> HessianGradientBatch:
    """Return `∇_H R_well = σ₁v₁v₁ᵀ − H/D` of each problem (Theorem A.1 (3))."""
    H = _hessians(tasks, theta, memory, "P")[1]
    pairs = _largest(H, memory, "v_1")
    scale = torch.full_like(pairs.values, -1 / H.shape[1])
    return HessianGradientBatch(H, scale, pairs.values, pairs.vectors)


def ill_gradients(tasks: TaskBatch, theta: Tensor, memory: BatchMemory) -> HessianGradientBatch:
    """Return `∇_H R_ill = (σ_k v_k v_kᵀ − H/k)·R_ill²` of each problem (Eq. 13).

    Eigenpairs are computed for those problems alone whose term `σ_k v_k v_kᵀ` is not certified to be
    negligible, as for one problem.
    """
    F, H = _hessians(tasks, theta, memory, "H")
    k = tasks.ranks
    squared_norm = torch.linalg.vector_norm(H, dim=(1, 2)).square()
    guess = memory.vectors.get("dual_k")
    if guess is None:  # the least energetic direction of the data
        guess = torch.nn.functional.one_hot(k - 1, F.shape[1]).to(F)
    bound = (F.mT @ guess[:, :, None]).square().sum(dim=(1, 2))
    needed = ~(bound <= NEGLIGIBLE * squared_norm.sqrt() / k) & torch.isfinite(squared_norm)
    sigma, vector = _smallest(tasks, F, needed, guess, memory, "dual_k")
    value = 1 / (squared_norm / (2 * k) - sigma.square() / 2)
    return HessianGradientBatch(H, -value.square() / k, sigma * value.square(), vector)


def kappa_gradients(
    tasks: TaskBatch, theta: Tensor, memory: BatchMemory, name: str, *, ridge: float | None
) -> tuple[Tensor, OuterGradientBatch]:
    r"""Return κ(H(θ)) and its gradient in θ of each problem, as `factored.kappa_gradient` does.

    .. math:: \nabla_\theta\kappa = 2B^\top\left(Fv_1v_1^\top - \kappa Fv_kv_k^\top\right)/\sigma_k
    """
    F, H = _hessians(tasks, theta, memory, name)
    largest = _largest(H, memory, f"v_1_{name}")
    deficient = tasks.ranks < H.shape[1]
    needed = torch.isfinite(largest.values)
    if ridge is not None:
        needed = needed & ~deficient
    guess = memory.vectors.get(f"dual_k_{name}")
    if guess is None:
        guess = F.new_ones(F.shape[:2])
    sigma, v_k = _smallest(tasks, F, needed, guess, memory, f"dual_k_{name}")
    # Where σ_k is below the round-off of H, its computed value may be negative.
    sigma = torch.maximum(sigma, torch.where(needed, torch.finfo(H.dtype).eps * largest.values, 0.0))
    floor = 0.0 if ridge is None else ridge
    smallest = sigma + floor
    kappa = (largest.values + floor) / smallest
    vectors = torch.stack([largest.vectors, v_k], dim=2)
    weights = torch.stack([torch.ones_like(kappa), -kappa], dim=1) * (2 / smallest)[:, None]
    left = tasks.factor.mT @ (F @ vectors)
    return kappa, OuterGradientBatch(left * weights[:, None, :], vectors)


def _hessians(tasks: TaskBatch, theta: Tensor, memory: BatchMemory, name: str) -> tuple[Tensor, Tensor]:
    """Return `F = Bθ` and `H = FᵀF` of each problem, in buffers that the next step overwrites."""
    rows, columns = tasks.factor.shape[1], theta.shape[2]
    F = torch.bmm(tasks.factor, theta, out=memory.buffer(f"F_{name}", theta, rows, columns))
    return F, torch.bmm(F.mT, F, out=memory.buffer(f"H_{name}", theta, columns, columns))


def _largest(hessians: Tensor, memory: BatchMemory, name: str) -> EigenPairs:
    """Return the largest pairs from warm starts, counted."""
    pairs = largest_pairs(hessians, memory.vectors.get(name))
    memory.vectors[name] = pairs.vectors
    memory.count("lanczos_steps", pairs.iterations)
    memory.count("eigh_fallbacks", pairs.fallbacks)
    return pairs


def _smallest(
    tasks: TaskBatch, factors: Tensor, needed: Tensor, guess: Tensor, memory: BatchMemory, name: str
) -> tuple[Tensor, Tensor]:
    """Return σ_k `(b,)` and v_k `(b, D)` where they are needed, elsewhere zeros; counted."""
    sigma = factors.new_zeros(len(factors))
    vector = factors.new_zeros((len(factors), factors.shape[2]))
    index = needed.nonzero()[:, 0]
    if not len(index):
        return sigma, vector
    F = factors if len(index) == len(factors) else factors[index]
    pairs = smallest_pairs(F, tasks.ranks[index], guess[index])
    sigma[index], vector[index] = pairs.values, pairs.vectors
    dual = (F @ pairs.vectors[:, :, None]).squeeze(2)
    fallbacks = torch.zeros_like(needed)
    fallbacks[index] = pairs.fallbacks
    memory.vectors[name] = guess.clone()
    memory.vectors[name][index] = dual / torch.linalg.vector_norm(dual, dim=1, keepdim=True)
    memory.count("smallest_pair_solves", needed)
    memory.count("eigh_fallbacks", fallbacks)
    return sigma, vector
