"""Algorithm 1 of the paper (`ours`) and its ablation to one regularizer (`r_ill_only`).

With the preconditioner of Algorithm 1 the inverse cancels: `K⁻¹∇_θR(H(θ)) = 2θ∇_H R(H)`. No
inverse, no solve, no ε, and well defined for singular K.
"""

import torch
from torch import Tensor

from condnum.methods.batch import ProblemBatch, TaskBatch
from condnum.methods.method import Gradients, Memory, Method, Parameters, random_weights
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings
from condnum.theory.extremes import grams, largest_pairs, smallest_pairs
from condnum.theory.spectra import symmetric_part

#: A term of `∇_H R_ill` below this fraction of `‖H/k‖_F` moves no digit that the descent keeps.
NEGLIGIBLE_TERM = 1e-10


class Hessians:
    """`H = θᵀKθ` of one task of each problem, and the pairs at both ends of its spectrum.

    A single small H is decomposed whole; otherwise Lanczos starts at the vector of the last step.
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
        pairs = largest_pairs(self.H, self.memory.get(f"v_1_{self.name}"))
        self.memory[f"v_1_{self.name}"] = pairs.vectors
        return pairs.values, pairs.vectors

    def smallest(self, negligible: Tensor) -> tuple[Tensor, Tensor]:
        """Return σ_k `(b,)` and v_k `(b, D)`, zeros where a Rayleigh quotient shows σ_k ≤ `negligible`."""
        ranks, key = self.tasks.ranks, f"dual_k_{self.name}"
        if self._whole is not None:
            k = min(int(ranks), self.H.shape[2])
            sigma, vector = self._whole[0][:, -k], self._whole[1][:, :, -k]
            kept = ~(sigma <= negligible)
            return torch.where(kept, sigma, 0.0), torch.where(kept[:, None], vector, 0.0)
        F = self.F
        sigma, vector = F.new_zeros(len(F)), F.new_zeros((len(F), F.shape[2]))
        guess = self.memory.get(key)
        if guess is None:  # the least energetic direction of the data
            guess = torch.nn.functional.one_hot(ranks - 1, F.shape[1]).to(F)
        bound = (F.mT @ guess[:, :, None]).square().sum(dim=(1, 2))
        finite = torch.isfinite(torch.linalg.vector_norm(self.H, dim=(1, 2)))
        index = (~(bound <= negligible) & finite).nonzero()[:, 0]
        if len(index):
            chosen = F if len(index) == len(F) else F[index]
            pairs = smallest_pairs(chosen, ranks[index], guess[index])
            sigma[index], vector[index] = pairs.values, pairs.vectors
            dual = (chosen @ pairs.vectors[:, :, None]).squeeze(2)
            self.memory[key] = guess.clone()
            self.memory[key][index] = dual / torch.linalg.vector_norm(dual, dim=1, keepdim=True)
        return sigma, vector


def _direction(theta: Tensor, H: Tensor, a: Tensor, c: Tensor, v: Tensor) -> Tensor:
    """Return `2θ∇_H R`, with `∇_H R = aH + c·vvᵀ`."""
    return 2 * theta @ (a[:, None, None] * H).baddbmm_((c[:, None] * v)[:, :, None], v[:, None])


def well_gradients(tasks: TaskBatch, theta: Tensor, memory: Memory) -> Tensor:
    """Return the directions of R_well: `∇_H R_well = σ₁v₁v₁ᵀ − H/D` (Theorem A.1 (3))."""
    hessians = Hessians(tasks, theta, memory, "P")
    sigma, v_1 = hessians.largest()
    return _direction(theta, hessians.H, torch.full_like(sigma, -1 / theta.shape[2]), sigma, v_1)


def ill_gradients(tasks: TaskBatch, theta: Tensor, memory: Memory) -> Tensor:
    """Return the directions of R_ill: `∇_H R_ill = (σ_k v_k v_kᵀ − H/k)·R_ill²` (Eq. 13)."""
    hessians, k = Hessians(tasks, theta, memory, "H"), tasks.ranks
    norm = torch.linalg.vector_norm(hessians.H, dim=(1, 2))
    norm = torch.where(torch.isfinite(norm.square()), norm, torch.nan)  # an infinite H has no gradient
    sigma, v_k = hessians.smallest(NEGLIGIBLE_TERM * norm / k)
    squared = 1 / (norm.square() / (2 * k) - sigma.square() / 2).square()
    return _direction(theta, hessians.H, -squared / k, sigma * squared, v_k)


class Ours(Method):
    """Algorithm 1: supervised loss and `R_well` on the pre-training task, `R_ill` on the harmful one."""

    name = "ours"
    label = "Ours (Algorithm 1)"
    summary = "descends the loss, R<sub>well</sub>(H<sub>P</sub>) and R<sub>ill</sub>(H<sub>H</sub>) together"
    parts = ("well", "ill", "supervised")
    defaults = DescentSettings()
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
        parts = {
            "well": well_gradients(problems.pretrain, theta, memory),
            "ill": ill_gradients(problems.harmful, theta, memory),
        }
        if loss is None or omega is None:
            return Gradients(parts)
        slope = loss.derivative(theta @ omega)  # ∂L/∂β at β = θω
        return Gradients(parts | {"supervised": slope @ omega.mT}, {"omega": theta.mT @ slope})


class RIllOnly(Method):
    """The baseline that minimizes `R_ill(H_H)` alone, with Algorithm 1's preconditioner."""

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
