"""What a method is: either a gradient to descend along, or a closed form; and what a run leaves behind."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.machine import limited_threads
from condnum.methods.batch import ProblemBatch
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings
from condnum.theory.immunization import Immunization

if TYPE_CHECKING:
    import pandas as pd


#: Up to this dimension a full `eigh` of one Hessian is as fast as anything cleverer.
SMALL = 128

SettingsT = TypeVar("SettingsT", bound=DescentSettings)

#: Named tensors that a method trains; every method has "theta" `(D, D)`.
Parameters = dict[str, Tensor]


@dataclass
class Memory:
    """What a batch may carry from one step to the next."""

    active: Tensor  # (b,) bool: problems that still descend, and count
    vectors: dict[str, Tensor] = field(default_factory=dict)  # warm starts, by the method's own names
    counts: dict[str, Tensor] = field(default_factory=dict)  # (b,) each: evidence, such as fall-backs
    buffers: dict[str, Tensor] = field(default_factory=dict)  # reused from step to step

    def count(self, name: str, amount: Tensor) -> None:
        """Add `(b,)` to a counter, where a problem still descends."""
        counted = torch.where(self.active, amount.long(), 0)
        self.counts[name] = self.counts[name] + counted if name in self.counts else counted

    def buffer(self, name: str, like: Tensor, rows: int, columns: int) -> Tensor:
        """Return uninitialised matrices, one a problem, that keep their memory from step to step."""
        kept = self.buffers.get(name)
        if kept is None or kept.shape[1:] != (rows, columns):
            kept = self.buffers[name] = like.new_empty((len(like), rows, columns))
        return kept


@dataclass(frozen=True)
class HessianGradient:
    """`∇_H R(H) = aH + c·vvᵀ` of each problem, in its parts: many of them share one product with θ."""

    hessian: Tensor  # (b, D, D), H
    scale: Tensor  # (b,), a
    coefficient: Tensor  # (b,), c
    vector: Tensor  # (b, D), v

    def add_to(self, total: Tensor, weight: Tensor, *, fresh: bool = False) -> Tensor:
        """Add `weight·∇_H R` to running sums in place (fresh ones are overwritten), and return them."""
        scale = (weight * self.scale)[:, None, None]
        if fresh:
            torch.mul(self.hessian, scale, out=total)
        else:
            total.addcmul_(self.hessian, scale)
        scaled = (weight * self.coefficient)[:, None] * self.vector
        return total.baddbmm_(scaled[:, :, None], self.vector[:, None, :])


@dataclass(frozen=True)
class OuterGradient:
    """A part of θ's gradient of low rank, `left·rightᵀ`, such as that of a supervised loss."""

    left: Tensor  # (b, D, m)
    right: Tensor  # (b, D_hid, m)

    def add_to(self, total: Tensor, weight: Tensor) -> Tensor:
        """Add `weight·left·rightᵀ` to running sums in place, and return them."""
        return total.baddbmm_(self.left * weight[:, None, None], self.right.mT)


@dataclass(frozen=True)
class Gradients:
    """Gradients of one step: θ's in named, unweighted parts; the others whole.

    A part may be given unevaluated: as `∇_H R`, whose preconditioned direction is `2θ∇_H R`, so that all
    such parts share one product with θ, or as an outer product.
    """

    theta_parts: dict[str, Tensor] = field(default_factory=dict)  # each as θ
    others: dict[str, Tensor] = field(default_factory=dict)  # by parameter name
    hessian_parts: dict[str, HessianGradient] = field(default_factory=dict)
    outer_parts: dict[str, OuterGradient] = field(default_factory=dict)

    def as_batch(self) -> Gradients:
        """Return the gradients of one problem, given whole, as those of a batch of one."""
        theta_parts, others = (
            {name: value[None] for name, value in parts.items()} for parts in (self.theta_parts, self.others)
        )
        return Gradients(theta_parts, others)

    def weighted_sum(self, theta: Tensor, weights: dict[str, Tensor], memory: Memory) -> Tensor:
        """Return the weighted sum of all parts; Hessian parts share one product with θ."""
        direct = [weights[part][:, None, None] * value for part, value in self.theta_parts.items()]
        if not self.hessian_parts and not self.outer_parts:
            return torch.stack(direct).sum(dim=0)
        total = memory.buffer("total", theta, *theta.shape[1:])
        if self.hessian_parts:
            inner = memory.buffer("hessian_sum", theta, theta.shape[2], theta.shape[2])
            for index, (part, gradient) in enumerate(self.hessian_parts.items()):
                gradient.add_to(inner, 2 * weights[part], fresh=index == 0)
            torch.bmm(theta, inner, out=total)
        else:
            total.zero_()
        for part, outer in self.outer_parts.items():
            outer.add_to(total, weights[part])
        for value in direct:
            total += value
        return total

    def norms(self, theta: Tensor, memory: Memory) -> dict[str, Tensor]:
        """Return the Frobenius norms `(b,)` of each part's directions."""
        ones = theta.new_ones(len(theta))
        alone = {
            **{part: Gradients(hessian_parts={part: value}) for part, value in self.hessian_parts.items()},
            **{part: Gradients(outer_parts={part: value}) for part, value in self.outer_parts.items()},
            **{part: Gradients({part: value}) for part, value in self.theta_parts.items()},
        }
        return {
            part: torch.linalg.vector_norm(one.weighted_sum(theta, {part: ones}, memory), dim=(1, 2))
            for part, one in alone.items()
        }


class _Start(Protocol, Generic[SettingsT]):
    """What every method that descends declares."""

    name: str
    label: str  # for people; may hold <sub> and <sup>
    summary: str
    parts: tuple[str, ...]  # names of θ's gradient parts
    defaults: SettingsT

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return the parameters at step 0."""


class SingleMethod(_Start[SettingsT], Protocol[SettingsT]):
    """A method that descends one problem at a time. The loop weighs the parts, steps, records and stops.

    A method that knows batches too is asked this way for one problem of at most `SMALL` dimensions.
    """

    def gradients(
        self, problem: ImmunizationProblem, parameters: Parameters, settings: SettingsT, memory: Memory
    ) -> Gradients:
        """Return `theta_parts` and `others` at the parameters, on the full problem or on a mini-batch."""


class BatchedMethod(_Start[SettingsT], Protocol[SettingsT]):
    """A method that descends many problems at once: everything has a leading batch dimension."""

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: SettingsT, memory: Memory
    ) -> Gradients:
        """Return the gradients at the parameters, on the full problems or on mini-batches of them."""


DescentMethod = SingleMethod[Any] | BatchedMethod[Any]


def can(method: object, name: str) -> bool:
    """Tell whether a method has this function; one of a user's own may lack the rest of a protocol."""
    return callable(getattr(method, name, None))


@runtime_checkable
class ClosedFormMethod(Protocol):
    """A method with nothing to iterate: the controls and the closed-form immunizer.

    `seeded = False` on the class says that θ is the same for every seed: a sweep then computes it once.
    """

    name: str
    label: str
    summary: str

    def theta(self, problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
        """Return the extractor `(D, D)`."""


def few_threads(problem: ImmunizationProblem) -> AbstractContextManager[None]:
    """Give a small problem one thread: beside other work, several mostly wait for each other."""
    return limited_threads(1 if problem.dimension <= SMALL and problem.device.type == "cpu" else None)


def random_extractor(problem: ImmunizationProblem, generator: torch.Generator) -> Tensor:
    """Return θ₀ with entries uniform in ±1/√D, as the paper's linear layer is initialised.

    The draw happens on the CPU, so that a seed gives the same θ₀ on every device.
    """
    return _uniform(problem, (problem.dimension, problem.dimension), generator)


def random_probe(
    problem: ImmunizationProblem, targets: Tensor | None, generator: torch.Generator
) -> Parameters:
    """Return `{"omega": ω₀}` for a task with targets, nothing for one without."""
    if targets is None:
        return {}
    return {"omega": _uniform(problem, (problem.dimension, targets.shape[1]), generator)}


def _uniform(problem: ImmunizationProblem, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Draw a matrix uniform in ±1/√D."""
    unit = torch.rand(shape, generator=generator, dtype=torch.float64)
    return ((2 * unit - 1) / math.sqrt(problem.dimension)).to(problem.device)


StopReason = Literal["steps", "tolerance", "settled", "cancelled", "diverged", "closed_form"]


@dataclass(frozen=True)
class History:
    """One row per recorded step, as equally long arrays, from θ₀ to the result; empty if unwanted."""

    columns: dict[str, NDArray[np.float64]]

    @classmethod
    def of(cls, rows: list[dict[str, float]]) -> History:
        """Return recorded rows as columns."""
        return cls({name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {})

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return a column: step, loss, r_well, r_ill, kappa_pretrain, kappa_harmful or norm_<part>."""
        return self.columns[name]

    def __len__(self) -> int:
        """Return the number of recorded steps."""
        return len(self.columns.get("step", ()))

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a table."""
        import pandas as pd

        return pd.DataFrame(self.columns)


@dataclass(frozen=True)
class ImmunizationResult:
    """An immunized extractor and how it was obtained."""

    theta: Tensor  # (D, D_hid)
    omega: Tensor | None  # (D_hid, m) pre-training probe, None without supervised loss
    method: str
    seed: int
    settings: DescentSettings | None  # None for controls and closed forms
    history: History
    part_weights: dict[str, float]  # λ of each gradient part
    steps: int  # steps taken
    seconds: float
    converged: bool  # True only if the tolerance was reached, RIR settled, or the answer is in closed form
    stop_reason: StopReason
    counts: dict[str, int] = field(default_factory=dict)  # Lanczos steps, fall-backs to eigh, …
    verdict: Immunization | None = None  # of θ, compact convention; `auto` only
    ceiling: float | None = None  # RIR_max beside it
    explanation: str = ""  # whether Definition 3.1 is met, what is possible, what was chosen and why


@dataclass(frozen=True)
class Progress:
    """What a callback is told at each recorded step."""

    method: str
    seed: int
    step: int
    steps: int
    record: dict[str, float]  # the history's row
