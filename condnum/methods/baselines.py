"""IMMA's bi-level game (Zheng & Yeh, 2024), descent on the condition numbers, and two controls."""

import torch
from torch import Tensor

from condnum.methods.algorithm1 import TaskHessian
from condnum.methods.descent import DescentSettings
from condnum.methods.method import Gradients, Parameters, random_probe, random_start
from condnum.methods.problem import ImmunizationProblem, SupervisedLoss
from condnum.theory.kappa import PUBLISHED_RIDGE, Convention
from condnum.theory.task import Task


def bilevel_gradient(
    harmful: SupervisedLoss, benign: SupervisedLoss, parameters: Parameters, settings: DescentSettings
) -> Tensor:
    """Return the gradient in θ of `L(D_P, ω, θ*) − L(D_H, w, θ*)`, through the inner steps from θ to θ*."""
    theta = parameters["theta"].detach().requires_grad_()
    omega, w = parameters["omega"].detach(), parameters["w"].detach()
    with torch.enable_grad():  # also under the caller's torch.no_grad()
        tuned = theta
        for _ in range(settings.inner_steps):
            tuned = tuned - settings.inner_rate * harmful.derivative(tuned @ w) @ w.mT
        outer = benign.value(tuned @ omega) - harmful.value(tuned @ w)
        (gradient,) = torch.autograd.grad(outer, theta)
    return gradient


class Imma:
    """IMMA on a linear extractor: θ by the bi-level gradient, ω and w by their own losses."""

    name = "imma"
    label = "IMMA"
    summary = "bi-level: maximizes the harmful loss after a simulated fine-tuning step; steps × O(D²)"
    parts = ("bilevel",)
    needs = ("benign", "harmful")
    defaults = DescentSettings()

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀, ω₀ and w₀, all uniform in ±1/√D."""
        drawn = random_start(problem, generator)
        for name, loss in zip(("omega", "w"), problem.losses, strict=True):
            assert loss is not None  # see `needs`
            drawn[name] = random_probe(problem, loss.outputs, generator)
        return drawn

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the bi-level gradient of θ and the plain gradients of both probes."""
        theta, omega, w = (parameters[name] for name in ("theta", "omega", "w"))
        benign, harmful = problem.losses
        assert benign is not None  # see `needs`
        assert harmful is not None
        probes = {
            "omega": theta.mT @ benign.derivative(theta @ omega),
            "w": theta.mT @ harmful.derivative(theta @ w),
        }
        return Gradients({"bilevel": bilevel_gradient(harmful, benign, parameters, settings)}, probes)


def kappa_gradient(task: Task, theta: Tensor, convention: Convention) -> Tensor:
    """Return `∇_θκ = 2Kθ(v₁v₁ᵀ − κv_kv_kᵀ)/σ_k`: a product of rank two.

    In the ridge convention σ + ε take the places of σ; for a rank-deficient H the second term vanishes.
    """
    hessian = TaskHessian(task, theta)
    ridge = PUBLISHED_RIDGE if convention == "ridge" else 0.0
    sigma_1, v_1 = hessian.largest()
    if convention == "ridge" and task.rank < theta.shape[1]:
        sigma_k, v_k = 0.0, torch.zeros_like(v_1)
    else:
        sigma_k, v_k = hessian.smallest()
        # Where σ_k is below the round-off of H, its computed value may be negative.
        sigma_k = max(sigma_k, torch.finfo(theta.dtype).eps * sigma_1)
    kappa = (sigma_1 + ridge) / (sigma_k + ridge)
    pair = torch.stack([v_1, v_k], dim=1)
    images = task.root.mT @ (task.root @ (theta @ pair))
    return (images * images.new_tensor([1.0, -kappa]) * (2 / (sigma_k + ridge))) @ pair.mT


class OptKappa:
    """Descends `κ(H_P(θ)) − κ(H_H(θ))` (Sec. 5, baselines), without preconditioner."""

    name = "opt_kappa"
    label = "Opt κ"
    summary = (
        "descends κ(H<sub>P</sub>) − κ(H<sub>H</sub>) itself, through four extreme eigenpairs; steps × O(D³)"
    )
    parts = ("kappa_benign", "kappa_harmful")
    defaults = DescentSettings()

    initial = staticmethod(random_start)

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the gradients of `+κ_P` and `−κ_H`."""
        P = kappa_gradient(problem.benign, parameters["theta"], settings.convention)
        H = kappa_gradient(problem.harmful, parameters["theta"], settings.convention)
        return Gradients({"kappa_benign": P, "kappa_harmful": -H})


class Identity:
    """The raw inputs."""

    name, label = "identity", "Identity (θ = I)"
    summary = "control: no feature extractor"
    seeded = False

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return I."""
        return {"theta": torch.eye(problem.dimension, dtype=torch.float64, device=problem.device)}


class Initial:
    """The start of every trained method."""

    name, label = "initial", "Initial (θ = θ<sub>0</sub>)"
    summary = "control: the random θ₀ that every trained method starts from"

    initial = staticmethod(random_start)
