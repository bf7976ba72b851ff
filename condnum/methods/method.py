"""What a method is: either a gradient to descend along, or a closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from condnum.methods.settings import DescentSettings
from condnum.tasks import ImmunizationProblem

SettingsT = TypeVar("SettingsT", bound=DescentSettings)

#: Named tensors that a method trains; every method has "theta" `(D, D)`.
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Gradients:
    """Gradients of one step: θ's in named, unweighted parts; the others whole."""

    theta_parts: dict[str, Tensor]  # each (D, D_hid)
    others: dict[str, Tensor]  # by parameter name


class DescentMethod(Protocol, Generic[SettingsT]):
    """A method that descends. The loop weighs the parts, steps, records and stops."""

    name: str
    label: str  # for people; may hold <sub> and <sup>
    summary: str
    parts: tuple[str, ...]  # names of θ's gradient parts
    defaults: SettingsT

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return the parameters at step 0."""

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: SettingsT
    ) -> Gradients:
        """Return the gradients at the parameters, on the full problem or on a mini-batch of it."""


@runtime_checkable
class ClosedFormMethod(Protocol):
    """A method with nothing to iterate: the controls and the closed-form immunizer."""

    name: str
    label: str
    summary: str

    def theta(self, problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
        """Return the extractor `(D, D)`."""


def random_extractor(problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
    """Return θ₀ with entries uniform in ±1/√D, as the paper's linear layer is initialised.

    The draw happens on the CPU, so that a seed gives the same θ₀ on every device.

    Args:
        problem: Gives D and the device.
        generator: CPU generator.

    Returns:
        `(D, D)` float64.
    """
    return _uniform(problem, (problem.dimension, problem.dimension), generator)


def random_probe(
    problem: ImmunizationProblem, targets: Tensor | None, generator: torch.Generator
) -> Parameters:
    """Return `{"omega": ω₀}` for a task with targets, nothing for one without.

    Args:
        problem: Gives D and the device.
        targets: `(N, m)` or None.
        generator: CPU generator.

    Returns:
        At most one named parameter, `(D, m)`.
    """
    if targets is None:
        return {}
    return {"omega": _uniform(problem, (problem.dimension, targets.shape[1]), generator)}


def _uniform(problem: ImmunizationProblem, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Draw a matrix uniform in ±1/√D."""
    unit = torch.rand(shape, generator=generator, dtype=torch.float64)
    return ((2 * unit - 1) / math.sqrt(problem.dimension)).to(problem.device)
