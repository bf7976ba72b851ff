"""The baseline IMMA (Zheng & Yeh, 2024): a bi-level game against a simulated fine-tuner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods.algorithm1 import kappa_gradients
from condnum.methods.method import (
    DescentSettings,
    Gradients,
    Memory,
    OuterGradient,
    Parameters,
    random_extractor,
    random_probe,
)
from condnum.methods.problem import ImmunizationProblem, LinearTask, ProblemBatch, SupervisedLoss
from condnum.theory.spectra import PUBLISHED_RIDGE, Convention, symmetric_part


@dataclass(frozen=True)
class ImmaSettings(DescentSettings):
    """Settings of `imma`."""

    inner_steps: int = 1  # gradient steps of the simulated fine-tuner on θ
    inner_rate: float = 0.01  # their step size

    def __post_init__(self) -> None:
        """Refuse values that cannot mean anything."""
        super().__post_init__()
        self._require_positive("inner_rate")
        if (
            isinstance(self.inner_steps, bool)
            or not isinstance(self.inner_steps, int)
            or self.inner_steps < 1
        ):
            raise InvalidInputError(f"inner_steps must be a positive integer, got {self.inner_steps!r}.")

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return the settings in one line."""
        return super().describe(parts) + f", {self.inner_steps} inner step(s) of size {self.inner_rate:g}"


def bilevel_gradient(
    harmful: SupervisedLoss,
    pretrain: SupervisedLoss,
    parameters: Parameters,
    settings: ImmaSettings,
) -> Tensor:
    """Return the gradient in θ of `L(D_P, ω, θ*) − L(D_H, w, θ*)`, through the inner steps.

    `θ*` follows `inner_steps` gradient steps on `L(D_H, w, θ)` from θ; the outer problem maximises
    what the fine-tuner's loss exceeds the pre-training loss by, so its negative is descended.
    """
    theta = parameters["theta"].detach().requires_grad_()
    omega, w = parameters["omega"].detach(), parameters["w"].detach()
    tuned = theta
    for _ in range(settings.inner_steps):
        tuned = tuned - settings.inner_rate * harmful.derivative(tuned @ w) @ w.mT
    outer = pretrain.value(tuned @ omega) - harmful.value(tuned @ w)
    (gradient,) = torch.autograd.grad(outer.sum(), theta)
    return gradient


class Imma:
    """IMMA on a linear extractor: θ by the bi-level gradient, ω and w by their own losses."""

    name = "imma"
    label = "IMMA"
    summary = "bi-level: maximises the harmful loss after a simulated fine-tuning step"
    parts: tuple[str, ...] = ("bilevel",)
    defaults = ImmaSettings()

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀, ω₀ and w₀, all uniform in ±1/√D."""
        missing = [
            name
            for name, task in (("y_P", problem.pretrain), ("y_H", problem.harmful))
            if task.supervised is None
        ]
        if missing:
            raise InvalidInputError(f"imma needs the targets of both tasks; missing: {', '.join(missing)}.")
        theta = random_extractor(problem, generator)
        omega = random_probe(problem, problem.pretrain.targets, generator)
        w = random_probe(problem, problem.harmful.targets, generator)
        return {"theta": theta, "omega": omega["omega"], "w": w["omega"]}

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: ImmaSettings, memory: Memory
    ) -> Gradients:
        """Return the bi-level gradient of θ and the plain gradients of both probes."""
        theta, omega, w = (parameters[name] for name in ("theta", "omega", "w"))
        pretrain, harmful = problems.pretrain.loss, problems.harmful.loss
        assert pretrain is not None  # `initial` has refused such problems
        assert harmful is not None
        outer = bilevel_gradient(harmful, pretrain, parameters, settings)
        probes = {
            "omega": theta.mT @ pretrain.derivative(theta @ omega),
            "w": theta.mT @ harmful.derivative(theta @ w),
        }
        return Gradients({"bilevel": outer}, probes)


# The baseline `opt_kappa`: gradient descent on the condition numbers themselves.


@dataclass(frozen=True)
class OptKappaSettings(DescentSettings):
    """Settings of `opt_kappa`."""

    objective: Literal["difference", "log"] = "difference"  # κ_P − κ_H, or log κ_P − log κ_H
    convention: Convention = "compact"  # which κ; the released code has the absolute floor of `ridge`
    ridge: float = PUBLISHED_RIDGE  # ε of the ridge convention

    def __post_init__(self) -> None:
        """Refuse values that cannot mean anything."""
        super().__post_init__()
        if self.objective not in ("difference", "log"):
            raise UnknownNameError("objective", self.objective, ["difference", "log"])
        if self.convention not in ("compact", "ridge"):
            raise UnknownNameError("convention", self.convention, ["compact", "ridge"])
        self._require_positive("ridge")

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return the settings in one line."""
        return super().describe(parts) + f", {self.objective} of {self.convention} κ"


def kappa_gradient(task: LinearTask, theta: Tensor, settings: OptKappaSettings) -> tuple[Tensor, Tensor]:
    r"""Return κ(H(θ)) and its gradient in θ, from the two extreme eigenpairs.

    .. math:: \nabla_\theta\kappa = 2K\theta\left(v_1v_1^\top/\sigma_k - \sigma_1v_kv_k^\top/\sigma_k^2\right)

    In the ridge convention σ₁ + ε and σ_D + ε take the places of σ₁ and σ_k; for a rank-deficient H
    the second term vanishes and κ is σ₁/ε, up to a constant.
    """
    H = symmetric_part(theta.mT @ task.covariance @ theta)
    sigma, V = torch.linalg.eigh(H)
    features = task.covariance @ theta
    k = min(task.rank, H.shape[0])
    # Where σ_k is below the round-off of H, its computed value may be negative.
    smallest = sigma[-k].clamp_min(torch.finfo(H.dtype).eps * sigma[-1])
    v_1, v_k = V[:, -1:], V[:, -k].unsqueeze(-1)
    ridge = 0.0
    if settings.convention == "ridge":
        ridge = settings.ridge
        if k < H.shape[0]:
            smallest, v_k = torch.zeros_like(smallest), torch.zeros_like(v_k)
    kappa = (sigma[-1] + ridge) / (smallest + ridge)
    gradient = (features @ v_1) @ v_1.mT - kappa * (features @ v_k) @ v_k.mT
    return kappa, 2 / (smallest + ridge) * gradient


class OptKappa:
    """Descends `κ(H_P(θ)) − κ(H_H(θ))` (Sec. 5, baselines), without preconditioner."""

    name = "opt_kappa"
    label = "Opt κ"
    summary = "descends κ(H<sub>P</sub>) − κ(H<sub>H</sub>) itself, through the four extreme eigenpairs"
    parts: tuple[str, ...] = ("kappa_pretrain", "kappa_harmful")
    defaults = OptKappaSettings()

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return θ₀, uniform in ±1/√D."""
        return {"theta": random_extractor(problem, generator)}

    def gradients(
        self,
        problem: ImmunizationProblem,
        parameters: Parameters,
        settings: OptKappaSettings,
        memory: Memory,
    ) -> Gradients:
        """Return the gradients of `+κ_P` and `−κ_H` (or of their logarithms)."""
        theta = parameters["theta"]
        kappa_P, pretrain = kappa_gradient(problem.pretrain, theta, settings)
        kappa_H, harmful = kappa_gradient(problem.harmful, theta, settings)
        if settings.objective == "log":
            pretrain, harmful = pretrain / kappa_P, harmful / kappa_H
        return Gradients({"kappa_pretrain": pretrain, "kappa_harmful": -harmful})

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: OptKappaSettings, memory: Memory
    ) -> Gradients:
        """Return the same in factor form."""
        ridge = settings.ridge if settings.convention == "ridge" else None
        parts = {}
        for part, tasks, sign in (
            ("kappa_pretrain", problems.pretrain, 1.0),
            ("kappa_harmful", problems.harmful, -1.0),
        ):
            kappa, gradient = kappa_gradients(tasks, parameters["theta"], memory, part, ridge=ridge)
            scale = sign / kappa if settings.objective == "log" else torch.full_like(kappa, sign)
            parts[part] = OuterGradient(scale[:, None, None] * gradient.left, gradient.right)
        return Gradients(outer_parts=parts)
