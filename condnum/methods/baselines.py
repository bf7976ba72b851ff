"""IMMA's bi-level game (Zheng & Yeh, 2024), descent on the condition numbers, controls and closed forms."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from condnum.methods.algorithm1 import TaskHessian
from condnum.methods.method import Gradients, Method, Parameters, random_weights
from condnum.methods.nets import HARMFUL, SUPERVISED, NetPart, NetStep
from condnum.methods.problem import ImmunizationProblem, SupervisedLoss
from condnum.methods.settings import DescentSettings
from condnum.theory.erasure import erasure_of_task
from condnum.theory.kappa import PUBLISHED_RIDGE, Convention
from condnum.theory.limits import max_rir, pareto
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


class Imma(Method):
    """IMMA on a linear extractor: θ by the bi-level gradient, ω and w by their own losses."""

    name = "imma"
    label = "IMMA"
    summary = "bi-level: maximizes the harmful loss after a simulated fine-tuning step; steps × O(D²)"
    parts = ("bilevel",)
    needs = ("benign", "harmful")
    defaults = DescentSettings()
    net_parts: ClassVar = {}  # its gradients are its own
    net_defaults: ClassVar = {"loss_weight": 1.0}  # as published: no part to balance
    net_probe = True

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀, ω₀ and w₀, all uniform in ±1/√D; the order of classes changes none."""
        drawn = super().initial(problem, generator)
        for name, loss in zip(("omega", "w"), problem.losses, strict=True):
            assert loss is not None  # see `needs`
            drawn[name] = random_weights(problem, 1, generator).repeat(1, loss.outputs)
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

    def net_backward(self, step: NetStep, weights: Mapping[str, float]) -> dict[str, float]:
        """Fill the gradients of θ, through the attacker's steps, and of both heads, at θ."""
        loss_weight, moved = weights[SUPERVISED], step.theta
        inner = step.loss("harmful", step.probe, moved)
        own = loss_weight * step.loss("benign", theta=moved) + inner
        step.fill(step.heads, torch.autograd.grad(own, list(step.heads), retain_graph=True))
        for k in range(step.settings.inner_steps):
            inner = inner if k == 0 else step.loss("harmful", step.probe, moved)
            moved, _ = step.descend(inner, moved)
        benign, harmful = step.loss("benign", theta=moved), step.loss("harmful", step.probe, moved)
        outer = loss_weight * benign - harmful
        step.fill(step.theta, torch.autograd.grad(outer, list(step.theta), materialize_grads=True))
        return {SUPERVISED: float(benign.detach()), HARMFUL: float(harmful.detach())}


def kappa_gradient(task: Task, theta: Tensor, convention: Convention) -> Tensor:
    """Return `∇_θκ = 2Kθ(v₁v₁ᵀ − κv_kv_kᵀ)/σ_k`: a product of rank two.

    In the ridge convention σ + ε take the places of σ; for a rank-deficient H the second term vanishes.
    """
    hessian = TaskHessian(task, theta)
    ridge = PUBLISHED_RIDGE if convention == "ridge" else 0.0
    sigma_1, v_1 = hessian.largest()
    if convention == "ridge" and task.rank < theta.shape[1]:
        sigma_k, v_k = torch.zeros_like(sigma_1), torch.zeros_like(v_1)
    else:
        sigma_k, v_k = hessian.smallest()
        # Where σ_k is below the round-off of H, its computed value may be negative.
        sigma_k = torch.maximum(sigma_k, torch.finfo(theta.dtype).eps * sigma_1)
    kappa = (sigma_1 + ridge) / (sigma_k + ridge)
    pair = torch.stack([v_1, v_k], dim=1)
    images = task.root.mT @ (task.root @ (theta @ pair))
    weights = torch.stack([torch.ones_like(kappa), -kappa]) * 2 / (sigma_k + ridge)
    return (images * weights) @ pair.mT


class OptKappa(Method):
    """Descends `κ(H_P(θ)) − κ(H_H(θ))` (Sec. 5, baselines), without preconditioner."""

    name = "opt_kappa"
    label = "Opt κ"
    summary = (
        "descends κ(H<sub>P</sub>) − κ(H<sub>H</sub>) itself, through four extreme eigenpairs; steps × O(D³)"
    )
    parts = ("kappa_benign", "kappa_harmful")
    defaults = DescentSettings()
    net_parts: ClassVar = {
        "kappa_benign": NetPart("benign", lambda step: step.kappa("benign")),
        "kappa_harmful": NetPart("harmful", lambda step: -step.kappa("harmful")),
    }

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: DescentSettings
    ) -> Gradients:
        """Return the gradients of `+κ_P` and `−κ_H`."""
        P = kappa_gradient(problem.benign, parameters["theta"], settings.convention)
        H = kappa_gradient(problem.harmful, parameters["theta"], settings.convention)
        return Gradients({"kappa_benign": P, "kappa_harmful": -H})


class Identity(Method):
    """The raw inputs."""

    name, label = "identity", "Identity (θ = I)"
    summary = "control: no feature extractor"
    seeded = False

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return I."""
        return {"theta": torch.eye(problem.dimension, dtype=torch.float64, device=problem.device)}


class Initial(Method):
    """The start of every trained method."""

    name, label = "initial", "Initial (θ = θ<sub>0</sub>)"
    summary = "control: the random θ₀ that every trained method starts from"


class ClosedForm(Method):
    """θ as a function of the problem; it needs no seed."""

    seeded = False

    def __init__(
        self, name: str, label: str, summary: str, function: Callable[[ImmunizationProblem], Any]
    ) -> None:
        self.name, self.label, self.summary = name, label, f"closed form: {summary}"
        self.function = function

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ, at unit scale."""
        return {"theta": self.function(problem)}


MAX_RIR = ClosedForm(
    "max_rir",
    "Maximum RIR (K<sub>P</sub><sup>−1/2</sup>)",
    "RIR at the theoretical limit (compact) if K_P and K_H are invertible; one eigh per task, O(D³)",
    lambda problem: max_rir(problem.benign),
)
PARETO = ClosedForm(
    "pareto",
    "Pareto (closed form)",
    "meets Definition 3.1 in as many conventions as it can, then with the largest RIR; O(D³)",
    lambda problem: pareto(problem.benign, problem.harmful, limit=problem.limit),
)


class Erase(Method):
    """Linear erasure of the harmful targets: the limit at which conditioning becomes a singular θ."""

    name, label = "erase", "Erasure"
    summary = (
        "closed form: no linear probe learns the harmful targets of its rows; RIR does not measure it; O(ND²)"
    )
    remark = (
        " κ and RIR do not rank an erasing θ: they measure how slowly a probe learns, over all targets, "
        "whereas on the eraser's rows a linear probe with an intercept has nothing left to learn of its own "
        "target."
    )
    needs = ("harmful",)
    seeded = False
    # On all data and backbones; chosen on 8×8 digits and a small ResNet.
    net_defaults: ClassVar = {
        "learning_rate": 1e-3,
        "loss_weight": 0.1,
        "steps": 800,
        "max_accuracy_drop": 0.03,
    }
    net_parts: ClassVar = {}  # its gradients are in `condnum.deep.training.erasure`
    net_ranked = False

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return `erasure` of the harmful targets."""
        task = problem.probes[1]
        assert task is not None  # see `needs`
        theta = erasure_of_task(
            task, strength=1.0, rank=None
        ).extractor  # (D, r), and columns that are exactly zero, as other methods have D
        return {"theta": torch.nn.functional.pad(theta, (0, len(theta) - theta.shape[1]))}
