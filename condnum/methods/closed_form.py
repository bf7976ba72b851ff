"""Methods with nothing to iterate: two controls and the closed-form immunizer."""

from __future__ import annotations

import torch
from torch import Tensor

from condnum.methods.method import random_extractor
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.ceiling import optimal_immunizer
from condnum.theory.pareto import front_immunizer


class Identity:
    """The control θ = I: raw inputs, RIR = 1 by definition."""

    name = "identity"
    label = "Identity (θ = I)"
    summary = "control: no feature extractor"
    seeded = False

    def theta(self, problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
        """Return I."""
        return torch.eye(problem.dimension, dtype=torch.float64, device=problem.device)


class Initial:
    """The control θ = θ₀, untrained: what a random extractor does by itself."""

    name = "initial"
    label = "Initial (θ = θ<sub>0</sub>)"
    summary = "control: the random θ₀ that every trained method starts from"

    def theta(self, problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
        """Return θ₀, the same draw as the trained methods' for the same seed."""
        return random_extractor(problem, generator)


class Optimal:
    """The closed form θ* = K_P^{-1/2}, which attains the ceiling of the compact convention."""

    name = "optimal"
    label = "Optimal (K<sub>P</sub><sup>−1/2</sup>)"
    summary = "closed form: attains the RIR ceiling of the compact convention"
    seeded = False

    def theta(self, problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
        """Return θ*, in the unit gauge."""
        return torch.as_tensor(optimal_immunizer(problem.pretrain.covariance, problem.harmful.covariance))


class Front:
    """The closed form on the Pareto front at (ii) = 1 − 1e-3: immunized wherever the ceiling allows it."""

    name = "front"
    label = "Front ((ii) just below 1)"
    summary = "closed form: the largest (i) that (ii) ≤ 1 allows"
    seeded = False

    def theta(self, problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
        """Return `front_immunizer`, in the unit gauge."""
        return torch.as_tensor(front_immunizer(problem.pretrain.covariance, problem.harmful.covariance))
