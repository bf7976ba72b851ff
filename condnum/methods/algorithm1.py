"""Algorithm 1 of the paper (`ours`) and its ablation to one regularizer (`r_ill_only`).

With the preconditioner of Algorithm 1 the inverse cancels: `K⁻¹∇_θR(H(θ)) = 2θ∇_H R(H)`. No
inverse, no solve, no ε, and well defined for singular K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.methods.batch import ProblemBatch
from condnum.methods.hessians import ill_gradients, well_gradients
from condnum.methods.method import (
    Gradients,
    Memory,
    OuterGradient,
    Parameters,
    random_extractor,
    random_probe,
)
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.methods.settings import DescentSettings
from condnum.theory.regularizers import ill_gradient_from_pair, well_gradient_from_pair
from condnum.theory.spectra import symmetric_part


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
