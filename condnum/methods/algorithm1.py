"""Algorithm 1 of the paper (`ours`) and its ablation to one regularizer (`r_ill_only`).

With the preconditioner of Algorithm 1 the inverse cancels: `K⁻¹∇_θR(H(θ)) = 2θ∇_H R(H)`. No
inverse, no solve, no ε, and well defined for singular K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.methods.method import (
    DescentSettings,
    Gradients,
    HessianGradient,
    Memory,
    OuterGradient,
    Parameters,
    random_extractor,
    random_probe,
)
from condnum.methods.problem import ImmunizationProblem, LinearTask, ProblemBatch, TaskBatch
from condnum.theory.extremes import grams, largest_pairs, smallest_pairs
from condnum.theory.regularizers import ill_gradient_from_pair, well_gradient_from_pair
from condnum.theory.spectra import symmetric_part

# Gradients through Hessians in factor form: a few matrix products and one eigenpair for each problem.


#: A term of `∇_H R_ill` below this share of `‖H/k‖_F` moves no digit that the descent keeps.
NEGLIGIBLE = 1e-10


def well_gradients(tasks: TaskBatch, theta: Tensor, memory: Memory) -> HessianGradient:
    """Return `∇_H R_well = σ₁v₁v₁ᵀ − H/D` of each problem (Theorem A.1 (3))."""
    _, H = _hessians(tasks, theta, memory, "P")
    sigma, v_1 = _largest(H, memory, "v_1")
    return HessianGradient(H, torch.full_like(sigma, -1 / H.shape[1]), sigma, v_1)


def ill_gradients(tasks: TaskBatch, theta: Tensor, memory: Memory) -> HessianGradient:
    """Return `∇_H R_ill = (σ_k v_k v_kᵀ − H/k)·R_ill²` of each problem (Eq. 13).

    A Rayleigh quotient of the dual Gram matrix bounds σ_k from above: while that bound is negligible, so is
    the term, and no search is needed.
    """
    F, H = _hessians(tasks, theta, memory, "H")
    k = tasks.ranks
    squared_norm = torch.linalg.vector_norm(H, dim=(1, 2)).square()
    squared_norm = torch.where(torch.isfinite(squared_norm), squared_norm, torch.nan)
    guess = memory.vectors.get("dual_k")
    if guess is None:  # the least energetic direction of the data
        guess = torch.nn.functional.one_hot(k - 1, F.shape[1]).to(F)
    bound = (F.mT @ guess[:, :, None]).square().sum(dim=(1, 2))
    needed = ~(bound <= NEGLIGIBLE * squared_norm.sqrt() / k) & ~torch.isnan(squared_norm)
    sigma, v_k = _smallest(tasks, F, needed, guess, memory, "dual_k")
    value = 1 / (squared_norm / (2 * k) - sigma.square() / 2)
    return HessianGradient(H, -value.square() / k, sigma * value.square(), v_k)


def kappa_gradients(
    tasks: TaskBatch, theta: Tensor, memory: Memory, name: str, *, ridge: float | None
) -> tuple[Tensor, OuterGradient]:
    r"""Return κ(H(θ)) and its gradient in θ of each problem as a product of rank two.

    .. math:: \nabla_\theta\kappa = 2B^\top\left(Bθv_1v_1^\top - \kappa Bθv_kv_k^\top\right)/\sigma_k

    In the ridge convention σ₁ + ε and σ_D + ε take the places of σ₁ and σ_k; for a rank-deficient H the
    second term vanishes and κ is σ₁/ε, up to a constant.
    """
    F, H = _hessians(tasks, theta, memory, name)
    needed = torch.full_like(tasks.ranks, ridge is None, dtype=torch.bool) | (tasks.ranks == H.shape[1])
    sigma_1, v_1 = _largest(H, memory, f"v_1_{name}")
    needed = needed & torch.isfinite(sigma_1)
    guess = memory.vectors.get(f"dual_k_{name}", F.new_ones(F.shape[:2]))
    sigma_k, v_k = _smallest(tasks, F, needed, guess, memory, f"dual_k_{name}")
    # Where σ_k is below the round-off of H, its computed value may be negative.
    sigma_k = torch.maximum(sigma_k, torch.where(needed, torch.finfo(H.dtype).eps * sigma_1, 0.0))
    floor = 0.0 if ridge is None else ridge
    smallest = sigma_k + floor
    kappa = (sigma_1 + floor) / smallest
    pair = torch.stack([v_1, v_k], dim=2)
    weights = torch.stack([torch.ones_like(kappa), -kappa], dim=1) * (2 / smallest)[:, None]
    left = tasks.factor.mT @ (tasks.factor @ (theta @ pair))
    return kappa, OuterGradient(left * weights[:, None, :], pair)


def _hessians(tasks: TaskBatch, theta: Tensor, memory: Memory, name: str) -> tuple[Tensor, Tensor]:
    """Return `F = Bθ` and `H = FᵀF` of each problem, in buffers that the next step overwrites."""
    F = memory.buffer(f"F_{name}", theta, tasks.factor.shape[1], theta.shape[2])
    if tasks.triangular is None:
        torch.bmm(tasks.factor, theta, out=F)
    else:
        tasks.triangular.times(theta[0], out=F[0])
    return F, grams(F, out=memory.buffer(f"H_{name}", theta, theta.shape[2], theta.shape[2]))


def _largest(hessians: Tensor, memory: Memory, name: str) -> tuple[Tensor, Tensor]:
    """Return σ₁ `(b,)` and v₁ `(b, D)` from warm starts, counted."""
    pairs = largest_pairs(hessians, memory.vectors.get(name))
    memory.vectors[name] = pairs.vectors
    memory.count("lanczos_steps", pairs.iterations)
    memory.count("eigh_fallbacks", pairs.fallbacks)
    return pairs.values, pairs.vectors


def _smallest(
    tasks: TaskBatch, factors: Tensor, needed: Tensor, guess: Tensor, memory: Memory, name: str
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


def well_direction(task: LinearTask, theta: Tensor) -> Tensor:
    """Return `K_P⁻¹∇_θ R_well(H_P(θ)) = 2θ∇_H R_well(H_P)`, `(D, D_hid)` (Theorem 4.2 (1))."""
    H = symmetric_part(theta.mT @ task.covariance @ theta)
    sigma, V = torch.linalg.eigh(H)
    return 2 * theta @ well_gradient_from_pair(H, sigma[-1], V[:, -1], H.shape[0])


def ill_direction(task: LinearTask, theta: Tensor) -> Tensor:
    """Return `K_H⁻¹∇_θ R_ill(H_H(θ)) = 2θ∇_H R_ill(H_H)`, `(D, D_hid)` (Theorem 4.2 (2))."""
    H = symmetric_part(theta.mT @ task.covariance @ theta)
    sigma, V = torch.linalg.eigh(H)
    k = min(task.rank, H.shape[0])
    return 2 * theta @ ill_gradient_from_pair(H, sigma[-k], V[:, -k], k)[1]


def supervised_gradients(task: LinearTask, theta: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Return `∇_θL = (∂L/∂β)ωᵀ` and `∇_ωL = θᵀ(∂L/∂β)` at `β = θω`; zero for a task without targets."""
    if task.supervised is None:
        return torch.zeros_like(theta), torch.zeros_like(omega)
    slope = task.supervised.derivative(theta @ omega)
    return slope @ omega.mT, theta.mT @ slope


class Ours:
    """Algorithm 1: supervised loss, `R_well` on the pre-training task, `R_ill` on the harmful one."""

    name = "ours"
    label = "Ours (Algorithm 1)"
    summary = (
        "descends the loss, R<sub>well</sub>(H<sub>P</sub>) and R<sub>ill</sub>(H<sub>H</sub>) "
        "together (Eq. 11)"
    )
    parts: tuple[str, ...] = ("well", "ill", "supervised")
    defaults = DescentSettings(auto=True, steps=20_000)

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and ω₀, both uniform in ±1/√D."""
        theta = random_extractor(problem, generator)
        return {"theta": theta} | random_probe(problem, problem.pretrain.targets, generator)

    def gradients(
        self,
        problem: ImmunizationProblem,
        parameters: Parameters,
        settings: DescentSettings,
        memory: Memory,
    ) -> Gradients:
        """Return the three parts of line 6 and the probe's gradient of line 4."""
        theta = parameters["theta"]
        parts = {
            "well": well_direction(problem.pretrain, theta),
            "ill": ill_direction(problem.harmful, theta),
        }
        if "omega" not in parameters:
            return Gradients(parts)
        supervised, omega = supervised_gradients(problem.pretrain, theta, parameters["omega"])
        return Gradients(parts | {"supervised": supervised}, {"omega": omega})

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: DescentSettings, memory: Memory
    ) -> Gradients:
        """Return the same in factor form."""
        theta = parameters["theta"]
        hessian_parts = {
            "well": well_gradients(problems.pretrain, theta, memory),
            "ill": ill_gradients(problems.harmful, theta, memory),
        }
        loss, omega = problems.pretrain.loss, parameters.get("omega")
        if loss is None or omega is None:
            return Gradients(hessian_parts=hessian_parts)
        slope = loss.derivative(theta @ omega)
        return Gradients(
            others={"omega": theta.mT @ slope},
            hessian_parts=hessian_parts,
            outer_parts={"supervised": OuterGradient(slope, omega.clone())},
        )


class RIllOnly:
    """The baseline that minimises `R_ill(H_H)` alone, with Algorithm 1's preconditioner."""

    name = "r_ill_only"
    label = "R<sub>ill</sub> only"
    summary = "descends R<sub>ill</sub>(H<sub>H</sub>) alone"
    parts: tuple[str, ...] = ("ill",)
    defaults = DescentSettings()

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀, uniform in ±1/√D."""
        return {"theta": random_extractor(problem, generator)}

    def gradients(
        self,
        problem: ImmunizationProblem,
        parameters: Parameters,
        settings: DescentSettings,
        memory: Memory,
    ) -> Gradients:
        """Return the one part of line 6 that is left."""
        return Gradients({"ill": ill_direction(problem.harmful, parameters["theta"])})

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: DescentSettings, memory: Memory
    ) -> Gradients:
        """Return the same in factor form."""
        return Gradients(hessian_parts={"ill": ill_gradients(problems.harmful, parameters["theta"], memory)})
