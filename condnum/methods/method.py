"""What a method is: a start, and the gradients to descend along from there."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from condnum.methods.problem import SMALL, ImmunizationProblem
from condnum.methods.settings import Settings

#: Named tensors that a method trains; every method has "theta" `(D, D)`.
Parameters = dict[str, Tensor]


@dataclass
class Memory:
    """What a batch may carry from one step to the next."""

    active: Tensor  # (b,) bool: problems that still descend, and count
    vectors: dict[str, Tensor] = field(default_factory=dict)  # warm starts, by the method's own names
    counts: dict[str, Tensor] = field(default_factory=dict)  # (b,) each: evidence, such as fall-backs

    def count(self, name: str, amount: Tensor) -> None:
        """Add `(b,)` to a counter, where a problem still descends."""
        counted = torch.where(self.active, amount.long(), 0)
        self.counts[name] = self.counts[name] + counted if name in self.counts else counted


@dataclass(frozen=True)
class HessianGradient:
    """A part of θ's gradient given as `∇_H R = aH + c·vvᵀ`; its preconditioned direction is `2θ∇_H R`."""

    hessian: Tensor  # (b, D, D), H
    scale: Tensor  # (b,), a
    coefficient: Tensor  # (b,), c
    vector: Tensor  # (b, D), v


@dataclass(frozen=True)
class OuterGradient:
    """A part of θ's gradient of low rank, `left·rightᵀ`, such as that of a supervised loss."""

    left: Tensor  # (b, D, m)
    right: Tensor  # (b, D_hid, m)


@dataclass(frozen=True)
class Gradients:
    """Gradients of one step: θ's in named, unweighted parts; the other parameters' whole."""

    parts: Mapping[str, Tensor | HessianGradient | OuterGradient]
    others: dict[str, Tensor] = field(default_factory=dict)  # by parameter name

    def weighted_sum(self, theta: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the weighted sum of the parts; those given as `∇_H R` share one product with θ."""
        total = torch.zeros_like(theta)
        inner = None
        for name, part in self.parts.items():
            weight = weights[name][:, None]
            if isinstance(part, Tensor):
                total.addcmul_(weight[:, None], part)
            elif isinstance(part, OuterGradient):
                total.baddbmm_(weight[:, None] * part.left, part.right.mT)
            else:
                if inner is None:
                    inner = torch.zeros_like(part.hessian)
                inner.addcmul_(part.hessian, (2 * weight * part.scale[:, None])[:, None])
                scaled = 2 * weight * part.coefficient[:, None] * part.vector
                inner.baddbmm_(scaled[:, :, None], part.vector[:, None])
        return total if inner is None else total.baddbmm_(theta, inner)

    def norms(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the Frobenius norms `(b,)` of each part's directions."""
        one = theta.new_ones(len(theta))
        return {
            name: torch.linalg.vector_norm(
                Gradients({name: part}).weighted_sum(theta, {name: one}), dim=(1, 2)
            )
            for name, part in self.parts.items()
        }


class Method:
    """What `immunize` runs: a start and, for a descent, the gradients along which θ leaves it."""

    name: str
    label: str  # for people; may hold <sub> and <sup>
    summary: str
    remark: str = ""  # what its explanations say after the ratios, with a space before
    seeded: bool = True  # False: θ is the same for every seed, and a sweep computes it once
    defaults: Settings | None = None  # of a descent; None: the start is the answer, in closed form
    parts: tuple[str, ...] | None = None  # names of θ's gradient parts; None: not known
    needs: tuple[Literal["pretrain", "harmful"], ...] = ()  # tasks whose targets it needs
    batched: bool = False  # whether `gradients` takes many problems at once

    def missing(self, problem: ImmunizationProblem) -> list[str]:
        """Return which targets it needs that a problem lacks."""
        return [f"y_{task[0].upper()}" for task in self.needs if getattr(problem, task).targets is None]

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return the parameters at step 0: θ₀ `(D, D)`, uniform in ±1/√D."""
        return {"theta": random_weights(problem, problem.dimension, generator)}

    def gradients(self, problem: Any, parameters: Parameters, settings: Any, memory: Memory) -> Gradients:
        """Return the gradients at the parameters.

        `problem` is an `ImmunizationProblem`, and the parts are tensors. If `batched` is True, it is a
        `ProblemBatch`, and all tensors have a leading batch dimension.
        """
        raise NotImplementedError(f"{type(self).__name__} has settings, but no gradients to descend.")


@contextmanager
def few_threads(problem: ImmunizationProblem) -> Generator[None]:
    """Give a small problem one thread: beside other work, several mostly wait for each other."""
    before = torch.get_num_threads()
    if problem.dimension <= SMALL and problem.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_weights(problem: ImmunizationProblem, columns: int, generator: torch.Generator) -> Tensor:
    """Return `(D, columns)` uniform in ±1/√D, as the paper's linear layers are initialised.

    The draw happens on the CPU, so that a seed gives the same θ₀ on every device.
    """
    unit = torch.rand((problem.dimension, columns), generator=generator, dtype=torch.float64)
    return ((2 * unit - 1) / math.sqrt(problem.dimension)).to(problem.device)
