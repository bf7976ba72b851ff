"""Algorithm 1 of the paper (`ours`) and its ablation to one regularizer (`r_ill_only`).

With the preconditioner of Algorithm 1 the inverse cancels: `K⁻¹∇_θR(H(θ)) = 2θ∇_H R(H)`. No
inverse, no solve, no ε, and well defined for singular K.
"""

from typing import ClassVar

import torch
from torch import Tensor

from condnum.methods.method import Gradients, Method, Parameters, random_weights
from condnum.methods.nets import NetPart
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings
from condnum.theory.features import feature_r_ill, feature_r_well
from condnum.theory.linalg import SMALL, eigenpair, gram, largest_pair, smallest_pair
from condnum.theory.regularizers import r_ill_of_norm, rank_one_gradient
from condnum.theory.task import Task


class TaskHessian:
    """`H = θᵀKθ` of a task, and the pairs at both ends of its non-zero spectrum."""

    def __init__(self, task: Task, theta: Tensor) -> None:
        self.rank, self.small = task.rank, len(theta) <= SMALL
        self._factor = task.root @ theta
        self.H = gram(self._factor)

    def largest(self) -> tuple[Tensor, Tensor]:
        """Return σ₁ and v₁ `(D,)`."""
        return eigenpair(self.H, len(self.H) - 1) if self.small else largest_pair(self.H)

    def smallest(self) -> tuple[Tensor, Tensor]:
        """Return σ_k and v_k `(D,)`, k the rank of K."""
        n = len(self.H)
        return eigenpair(self.H, n - min(self.rank, n)) if self.small else smallest_pair(self._factor)


def well_gradient_in_hessian(task: Task, theta: Tensor) -> Tensor:
    """Return `∇_H R_well`: the preconditioned direction is 2θ times that."""
    hessian = TaskHessian(task, theta)
    return rank_one_gradient(hessian.H, *hessian.largest(), theta.shape[1])


def ill_gradient_in_hessian(task: Task, theta: Tensor) -> Tensor:
    """Return `∇_H R_ill`, likewise."""
    hessian = TaskHessian(task, theta)
    sigma, vector = hessian.smallest()
    value = r_ill_of_norm(torch.linalg.matrix_norm(hessian.H), sigma, task.rank)
    return rank_one_gradient(hessian.H, sigma, vector, task.rank).mul_(value.square())


def benign_gradients(problem: ImmunizationProblem, parameters: Parameters) -> Gradients:
    """Return those of the supervised loss on D_P in θ and ω, none for a task without targets."""
    theta, omega, loss = parameters["theta"], parameters.get("omega"), problem.losses[0]
    if loss is None or omega is None:
        return Gradients({})
    slope = loss.derivative(theta @ omega)  # ∂L/∂β at β = θω
    return Gradients({"supervised": slope @ omega.mT}, {"omega": theta.mT @ slope})


#: R_ill of a net's features on D_H.
_ILL = NetPart("harmful", lambda step: feature_r_ill(step.X("harmful"), rtol=step.rtol("harmful")))


class Ours(Method):
    """Algorithm 1: supervised loss and `R_well` on the pre-training task, `R_ill` on the harmful one."""

    name = "ours"
    label = "Ours (Algorithm 1)"
    summary = (
        "descends the loss, R<sub>well</sub>(H<sub>P</sub>) and R<sub>ill</sub>(H<sub>H</sub>); steps × O(D³)"
    )
    parts: tuple[str, ...] = ("well", "ill", "supervised")
    defaults = DescentSettings()
    net_parts: ClassVar = {
        "well": NetPart("benign", lambda step: feature_r_well(step.X("benign"))),
        "ill": _ILL,
    }

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and, with targets, ω₀, uniform in ±1/√D; the order of classes changes no ω₀."""
        drawn = super().initial(problem, generator)
        if problem.losses[0] is not None:
            column = random_weights(problem, 1, generator)
            drawn["omega"] = column.repeat(1, problem.losses[0].outputs)
        return drawn

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the three parts of line 6 and the probe's gradient of line 4."""
        theta, benign = parameters["theta"], benign_gradients(problem, parameters)
        inner = {
            "well": well_gradient_in_hessian(problem.benign, theta),
            "ill": ill_gradient_in_hessian(problem.harmful, theta),
        }
        return Gradients(benign.parts, benign.others, inner)


class RIllOnly(Method):
    """The baseline that minimizes `R_ill(H_H)` alone, with Algorithm 1's preconditioner."""

    name = "r_ill_only"
    label = "R<sub>ill</sub> only"
    summary = "descends R<sub>ill</sub>(H<sub>H</sub>) alone; steps × O(D³)"
    parts = ("ill",)
    defaults = DescentSettings()
    net_parts: ClassVar = {"ill": _ILL}

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the one part of line 6 that is left."""
        return Gradients({}, {}, {"ill": ill_gradient_in_hessian(problem.harmful, parameters["theta"])})
