"""Algorithm 1 of the paper (`ours`) and its ablation to one regularizer (`r_ill_only`).

With the preconditioner of Algorithm 1 the inverse cancels: `K⁻¹∇_θR(H(θ)) = 2θ∇_H R(H)`. No
inverse, no solve, no ε, and well defined for singular K.
"""

import torch
from torch import Tensor

from condnum.methods.batch import ProblemBatch, TaskBatch
from condnum.methods.method import (
    Gradients,
    HessianGradient,
    Memory,
    Method,
    OuterGradient,
    Parameters,
    random_weights,
)
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings, SelfTunedSettings
from condnum.theory.extremes import grams, largest_pairs, smallest_pairs
from condnum.theory.spectra import symmetric_part

#: A term of `∇_H R_ill` below this share of `‖H/k‖_F` moves no digit that the descent keeps.
NEGLIGIBLE_TERM = 1e-10


class Hessians:
    """`H = θᵀKθ` of one task of each problem, and the pairs at both ends of its spectrum.

    The H of a single small problem is decomposed whole. Otherwise it is `FᵀF` with `F = Bθ`, and Lanczos
    starts at the vector of the last step; what that took is counted.
    """

    def __init__(self, tasks: TaskBatch, theta: Tensor, memory: Memory, name: str) -> None:
        """Form H."""
        self.tasks, self.memory, self.name = tasks, memory, name
        self._whole = None
        if tasks.small_covariance is not None:
            self.H = symmetric_part(theta.mT @ tasks.small_covariance @ theta)
            self._whole = torch.linalg.eigh(self.H)
            return
        self.F = tasks.factor @ theta
        self.H = grams(self.F)

    def largest(self) -> tuple[Tensor, Tensor]:
        """Return σ₁ `(b,)` and v₁ `(b, D)`."""
        if self._whole is not None:
            return self._whole[0][:, -1], self._whole[1][:, :, -1]
        pairs = largest_pairs(self.H, self.memory.vectors.get(f"v_1_{self.name}"))
        self.memory.vectors[f"v_1_{self.name}"] = pairs.vectors
        self.memory.count("lanczos_steps", pairs.iterations)
        self.memory.count("eigh_fallbacks", pairs.fallbacks)
        return pairs.values, pairs.vectors

    def smallest(self, negligible: Tensor) -> tuple[Tensor, Tensor]:
        """Return σ_k `(b,)` and v_k `(b, D)`, zeros where σ_k is at most `negligible`.

        A Rayleigh quotient of the dual Gram matrix `FFᵀ` bounds σ_k from above: where that is small enough,
        no search is needed.
        """
        ranks, memory, key = self.tasks.ranks, self.memory, f"dual_k_{self.name}"
        if self._whole is not None:
            k = min(int(ranks), self.H.shape[2])
            sigma, vector = self._whole[0][:, -k], self._whole[1][:, :, -k]
            kept = ~(sigma <= negligible)
            return torch.where(kept, sigma, 0.0), torch.where(kept[:, None], vector, 0.0)
        F = self.F
        sigma, vector = F.new_zeros(len(F)), F.new_zeros((len(F), F.shape[2]))
        guess = memory.vectors.get(key)
        if guess is None:  # the least energetic direction of the data
            guess = torch.nn.functional.one_hot(ranks - 1, F.shape[1]).to(F)
        bound = (F.mT @ guess[:, :, None]).square().sum(dim=(1, 2))
        finite = torch.isfinite(torch.linalg.vector_norm(self.H, dim=(1, 2)))
        needed = ~(bound <= negligible) & finite
        index = needed.nonzero()[:, 0]
        if len(index):
            chosen = F if len(index) == len(F) else F[index]
            pairs = smallest_pairs(chosen, ranks[index], guess[index])
            sigma[index], vector[index] = pairs.values, pairs.vectors
            dual = (chosen @ pairs.vectors[:, :, None]).squeeze(2)
            memory.vectors[key] = guess.clone()
            memory.vectors[key][index] = dual / torch.linalg.vector_norm(dual, dim=1, keepdim=True)
            memory.count("smallest_pair_solves", needed)
            memory.count("eigh_fallbacks", torch.zeros_like(needed).index_put((index,), pairs.fallbacks))
        return sigma, vector


def well_gradients(tasks: TaskBatch, theta: Tensor, memory: Memory) -> HessianGradient:
    """Return `∇_H R_well = σ₁v₁v₁ᵀ − H/D` of each problem (Theorem A.1 (3))."""
    hessians = Hessians(tasks, theta, memory, "P")
    sigma, v_1 = hessians.largest()
    return HessianGradient(hessians.H, torch.full_like(sigma, -1 / theta.shape[2]), sigma, v_1)


def ill_gradients(tasks: TaskBatch, theta: Tensor, memory: Memory) -> HessianGradient:
    """Return `∇_H R_ill = (σ_k v_k v_kᵀ − H/k)·R_ill²` of each problem (Eq. 13)."""
    hessians, k = Hessians(tasks, theta, memory, "H"), tasks.ranks
    norm = torch.linalg.vector_norm(hessians.H, dim=(1, 2))
    norm = torch.where(torch.isfinite(norm.square()), norm, torch.nan)  # an infinite H has no gradient
    sigma, v_k = hessians.smallest(NEGLIGIBLE_TERM * norm / k)
    squared = 1 / (norm.square() / (2 * k) - sigma.square() / 2).square()
    return HessianGradient(hessians.H, -squared / k, sigma * squared, v_k)


class Ours(Method):
    """Algorithm 1: supervised loss, `R_well` on the pre-training task, `R_ill` on the harmful one.

    This is the joint descent; by default `ours` tunes itself instead, see `condnum.methods.auto`.
    """

    name = "ours"
    label = "Ours (Algorithm 1)"
    summary = (
        "self-tuned: steps on R<sub>well</sub>(H<sub>P</sub>) alone and on R<sub>ill</sub>(H<sub>H</sub>) "
        "alone in turn, none on the loss; with fixed settings: descends all three together (Eq. 11)"
    )
    parts = ("well", "ill", "supervised")
    defaults = SelfTunedSettings()
    batched = True

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and, for a task with targets, ω₀, both uniform in ±1/√D."""
        drawn = super().initial(problem, generator)
        if problem.pretrain.targets is not None:
            drawn["omega"] = random_weights(problem, problem.pretrain.targets.shape[1], generator)
        return drawn

    def gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: DescentSettings, memory: Memory
    ) -> Gradients:
        """Return the three parts of line 6 and the probe's gradient of line 4."""
        theta, omega, loss = parameters["theta"], parameters.get("omega"), problems.pretrain.loss
        hessian_parts = {
            "well": well_gradients(problems.pretrain, theta, memory),
            "ill": ill_gradients(problems.harmful, theta, memory),
        }
        if loss is None or omega is None:
            return Gradients(hessian_parts)
        slope = loss.derivative(theta @ omega)  # ∂L/∂β at β = θω
        return Gradients(
            hessian_parts | {"supervised": OuterGradient(slope, omega)}, {"omega": theta.mT @ slope}
        )


class RIllOnly(Method):
    """The baseline that minimises `R_ill(H_H)` alone, with Algorithm 1's preconditioner."""

    name = "r_ill_only"
    label = "R<sub>ill</sub> only"
    summary = "descends R<sub>ill</sub>(H<sub>H</sub>) alone"
    parts = ("ill",)
    defaults = DescentSettings()
    batched = True

    def gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: DescentSettings, memory: Memory
    ) -> Gradients:
        """Return the one part of line 6 that is left."""
        return Gradients({"ill": ill_gradients(problems.harmful, parameters["theta"], memory)})
