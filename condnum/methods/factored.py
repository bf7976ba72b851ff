"""Gradients of large extractors at a few matrix products: the Hessians in factor form.

With `K = BᵀB` of rank r, `F = Bθ` and `H = FᵀF` cost r/D and r/2D of a D×D product. The extreme
eigenpairs are warm-started (`condnum.extremes`), and the smallest one is not computed at all while
its term `σ_k v_k v_kᵀ` is certified to be negligible beside `H/k`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.extremes import gram, largest_pair, smallest_pair
from condnum.methods.method import HessianGradient, Memory, OuterGradient
from condnum.tasks import LinearTask

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
