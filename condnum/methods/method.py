"""What a method is: any object with a name, a start and, for a descent, settings and gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from condnum.methods.problem import ImmunizationProblem

#: Named tensors that a method trains; every method has "theta" `(D, D_hid)`.
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Gradients:
    """Gradients of one step: θ's in named, unweighted parts; the other parameters' whole."""

    parts: dict[str, Tensor]
    others: Parameters = field(default_factory=dict)
    #: More parts, as gradients ∇_HR `(D_hid, D_hid)`: that of θ is 2θ∇_HR, and their sum takes one product.
    preconditioned: dict[str, Tensor] = field(default_factory=dict)

    def of_theta(self, theta: Tensor) -> dict[str, Tensor]:
        """Return all parts as gradients of θ."""
        return {part: 2 * theta @ of.to(theta) for part, of in self.preconditioned.items()} | self.parts


@runtime_checkable
class Method(Protocol):
    """What `immunize` runs: no base class, any object with a name and a start.

    One that descends is a `Descending` method; without `defaults` the start is the answer, in closed form.
    It may also have `label` and `summary` for tables (else the name, and nothing), `seeded = False` where θ
    is the same for every seed, `needs`, the tasks ("benign", "harmful") whose targets it cannot do without,
    and `parts`, the names of its gradient's parts.
    """

    name: str

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return the parameters at step 0, θ `(D, D_hid)` and what is trained beside it."""
        ...


class Descending(Method, Protocol):
    """A method that leaves its start."""

    @property
    def defaults(self) -> Any:
        """Its settings, a dataclass: what it lacks of the fields of `DescentSettings` is as there."""

    def gradients(self, problem: ImmunizationProblem, parameters: Parameters, settings: Any) -> Gradients:
        """Return the gradients at the parameters."""
        ...


def random_weights(problem: ImmunizationProblem, columns: int, generator: torch.Generator) -> Tensor:
    """Return `(D, columns)` uniform in ±1/√D, as the paper's linear layers are initialized.

    The draw happens on the CPU, so that a seed gives the same θ₀ on every device.
    """
    unit = torch.rand((problem.dimension, columns), generator=generator, dtype=torch.float64)
    return ((2 * unit - 1) / math.sqrt(problem.dimension)).to(problem.device)


def random_start(problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
    """Return θ₀ `(D, D)`, where every method of the paper starts."""
    return {"theta": random_weights(problem, problem.dimension, generator)}


def random_probe(problem: ImmunizationProblem, outputs: int, generator: torch.Generator) -> Tensor:
    """Return a probe's weights `(D, m)`, the same for each class: the order of classes changes nothing."""
    return random_weights(problem, 1, generator).repeat(1, outputs)
