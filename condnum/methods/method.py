"""What a method is: a start, and the gradients to descend along from there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from condnum.methods.nets import NetPart, NetStep
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import Settings

#: Named tensors that a method trains; every method has "theta" `(D, D)`.
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


class Method:
    """What `immunize` runs: a start and, for a descent, the gradients along which θ leaves it.

    With `net_parts` it is a method of `condnum.deep.immunize_backbone` too.
    """

    name: str
    label: str  # for people; may hold <sub> and <sup>
    summary: str
    remark: str = ""  # what its explanations say after the ratios, with a space before
    seeded: bool = True  # False: θ is the same for every seed, and a sweep computes it once
    defaults: Settings | None = None  # of a descent; None: the start is the answer, in closed form
    parts: tuple[str, ...] | None = None  # names of θ's gradient parts; None: not known
    needs: tuple[Literal["benign", "harmful"], ...] = ()  # tasks whose targets it needs
    net_parts: ClassVar[Mapping[str, NetPart] | None] = None  # of its objective on a net; None: not for nets
    net_defaults: ClassVar[Mapping[str, Any]] = {}  # of `DeepSettings`, in place of its own
    # Whether it simulates an attacker, by `inner_steps` and `inner_rate`, on a head of D_H trained beside θ.
    net_probe: bool = False
    net_ranked: bool = True  # whether κ tells which θ is best; else the last one above the accuracy floor is

    def missing(self, problem: ImmunizationProblem) -> list[str]:
        """Return which targets it needs that a problem lacks."""
        return [f"y_{task[0].upper()}" for task in self.needs if problem.losses[task == "harmful"] is None]

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return the parameters at step 0: θ₀ `(D, D)`, uniform in ±1/√D."""
        return {"theta": random_weights(problem, problem.dimension, generator)}

    def gradients(self, problem: ImmunizationProblem, parameters: Parameters, settings: Any) -> Gradients:
        """Return the gradients at the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has settings but defines no gradients.")

    def net_backward(self, step: NetStep, weights: Mapping[str, float]) -> dict[str, float]:
        """Fill the gradients of a net's parameters at a step; return the values of the weighted parts."""
        return step.backward(self.net_parts or {}, weights)


def random_weights(problem: ImmunizationProblem, columns: int, generator: torch.Generator) -> Tensor:
    """Return `(D, columns)` uniform in ±1/√D, as the paper's linear layers are initialized.

    The draw happens on the CPU, so that a seed gives the same θ₀ on every device.
    """
    unit = torch.rand((problem.dimension, columns), generator=generator, dtype=torch.float64)
    return ((2 * unit - 1) / math.sqrt(problem.dimension)).to(problem.device)
