"""Algorithm 1 of the paper (`ours`) and its ablation to one regularizer (`r_ill_only`).

With the preconditioner of Algorithm 1 the inverse cancels: `K⁻¹∇_θR(H(θ)) = 2θ∇_H R(H)`. No
inverse, no solve, no ε, and well defined for singular K.
"""

import math

import torch
from torch import Tensor

from condnum.methods.descent import DescentSettings
from condnum.methods.method import Gradients, Parameters, random_probe, random_start
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.linalg import SMALL, eigenpair, gram, largest_pair, matmul, smallest_pair
from condnum.theory.regularizers import rank_one_gradient
from condnum.theory.task import Task


class TaskHessian:
    """`H = θᵀKθ` of a task, and the pairs at both ends of its non-zero spectrum."""

    def __init__(self, task: Task, theta: Tensor) -> None:
        self.rank, self._factor = task.rank, matmul(task.root, theta)
        self.H = gram(self._factor)
        flat = self.H.flatten()
        self.squares = float(flat @ flat)  # ‖H‖²
        if not math.isfinite(self.squares):
            raise torch.linalg.LinAlgError("the Hessian is not finite.")

    def largest(self) -> tuple[float, Tensor]:
        """Return σ₁ and v₁ `(D,)`."""
        n = len(self.H)
        return eigenpair(self.H, n - 1) if n <= SMALL else largest_pair(self.H)

    def smallest(self) -> tuple[float, Tensor]:
        """Return σ_k and v_k `(D,)`, k the rank of K."""
        n = len(self.H)
        return eigenpair(self.H, n - min(self.rank, n)) if n <= SMALL else smallest_pair(self._factor)


def well_gradient_in_hessian(task: Task, theta: Tensor) -> Tensor:
    """Return `∇_H R_well`: the preconditioned direction is 2θ times that."""
    hessian = TaskHessian(task, theta)
    return rank_one_gradient(hessian.H, *hessian.largest(), theta.shape[1])


def ill_gradient_in_hessian(task: Task, theta: Tensor) -> Tensor:
    """Return `∇_H R_ill`, likewise."""
    hessian, k = TaskHessian(task, theta), task.rank
    sigma, vector = hessian.smallest()
    inverse = hessian.squares / (2 * k) - sigma * sigma / 2  # 1/R_ill
    value = 1 / inverse if inverse else math.inf
    return rank_one_gradient(hessian.H, sigma, vector, k).mul_(value * value)


def benign_gradients(problem: ImmunizationProblem, parameters: Parameters) -> Gradients:
    """Return those of the supervised loss on D_P in θ and ω, none for a task without targets."""
    theta, omega, loss = parameters["theta"], parameters.get("omega"), problem.losses[0]
    if loss is None or omega is None:
        return Gradients({})
    slope = loss.derivative(theta @ omega)  # ∂L/∂β at β = θω
    return Gradients({"supervised": slope @ omega.mT}, {"omega": theta.mT @ slope})


class Ours:
    """Algorithm 1: supervised loss and `R_well` on the benign task, `R_ill` on the harmful one."""

    name = "ours"
    label = "Ours (Algorithm 1)"
    summary = (
        "descends the loss, R<sub>well</sub>(H<sub>P</sub>) and R<sub>ill</sub>(H<sub>H</sub>); steps × O(D³)"
    )
    parts = ("well", "ill", "supervised")
    defaults = DescentSettings()

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀ and, with targets, ω₀, uniform in ±1/√D."""
        drawn = random_start(problem, generator)
        if problem.losses[0] is not None:
            drawn["omega"] = random_probe(problem, problem.losses[0].outputs, generator)
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


class RIllOnly:
    """The baseline that minimizes `R_ill(H_H)` alone, with Algorithm 1's preconditioner."""

    name = "r_ill_only"
    label = "R<sub>ill</sub> only"
    summary = "descends R<sub>ill</sub>(H<sub>H</sub>) alone; steps × O(D³)"
    parts = ("ill",)
    defaults = DescentSettings()

    initial = staticmethod(random_start)

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the one part of line 6 that is left."""
        return Gradients({}, {}, {"ill": ill_gradient_in_hessian(problem.harmful, parameters["theta"])})
