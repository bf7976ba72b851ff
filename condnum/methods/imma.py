"""The baseline IMMA (Zheng & Yeh, 2024): a bi-level game against a simulated fine-tuner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from condnum.errors import InvalidInputError
from condnum.methods.batch import ProblemBatch
from condnum.methods.method import Gradients, Memory, Parameters, random_extractor, random_probe
from condnum.methods.problem import ImmunizationProblem, SupervisedLoss
from condnum.methods.settings import DescentSettings


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
