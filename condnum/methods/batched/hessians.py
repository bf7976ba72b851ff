"""Gradients of a batch through its Hessians in factor form: `condnum.methods.factored`, batched."""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.methods.batched.extremes import EigenPairs, largest_pairs, smallest_pairs
from condnum.methods.batched.method import BatchMemory, HessianGradientBatch, OuterGradientBatch
from condnum.methods.batched.tasks import TaskBatch
from condnum.methods.factored import NEGLIGIBLE


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
