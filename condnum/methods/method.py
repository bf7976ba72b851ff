"""What a method is, a gradient to descend along or a closed form; its settings; what a run leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    Self,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.errors import InvalidInputError, check_known
from condnum.machine import limited_threads
from condnum.methods.problem import SMALL, ImmunizationProblem
from condnum.theory.immunization import Immunization

if TYPE_CHECKING:
    import pandas as pd

#: What `auto` leaves to the caller.
_HEEDED = {"auto", "steps", "record_every"}


@dataclass(frozen=True)
class DescentSettings:
    """How a method descends. Defaults: full batch, Adam, cosine decay, balanced λ.

    `auto=True` (for `ours`) leaves the choice to `condnum.methods.auto`: only `steps`, the most that may be
    taken, and `record_every` are then heeded, and giving another setting is an error.
    """

    optimizer: Literal["adam", "gd"] = "adam"  # Adam (0.9, 0.999, 1e-8) or plain gradient descent
    learning_rate: float = 0.1  # η at step 0
    schedule: Literal["constant", "cosine"] = "cosine"  # cosine: η falls to 0 at the last step
    steps: int = 1000  # full batch: a step is an epoch
    weights: Literal["balanced", "fixed"] = "balanced"  # where λ_P and λ_H come from
    ratio: float = 5.0  # balanced: λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0
    loss_weight: float = 1.0  # weight of the supervised loss
    lambda_pretrain: float = 100.0  # fixed: λ_P (Table 4, house prices)
    lambda_harmful: float = 1e7  # fixed: λ_H (Table 4, house prices)
    batch_size: int | None = None  # rows a step and task; None is the full batch
    tolerance: float = 0.0  # stop once the weighted θ-gradient is below this share of its start
    record_every: int | None = None  # steps between history rows; None: about 200 in all; 0: no history
    auto: bool = False  # η, λ_P, λ_H and the number of steps follow from the spectra

    def __post_init__(self) -> None:
        """Refuse what a field of its type cannot mean: another word, a number that is not positive."""
        hints = get_type_hints(type(self))
        for name, value in vars(self).items():
            kind = hints[name]
            if get_origin(kind) is Literal:
                check_known(name, value, get_args(kind))
            elif name == "tolerance":
                if not 0 <= value < 1:
                    raise InvalidInputError(f"tolerance must lie in [0, 1), got {value}.")
            elif kind is float:
                if not (isinstance(value, int | float) and 0 < value < math.inf):
                    raise InvalidInputError(f"{name} must be a positive number, got {value!r}.")
            elif kind in (int, int | None):
                left_out = (value is None and kind is not int) or (name, value) == ("record_every", 0)
                if not left_out and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                    raise InvalidInputError(f"{name} must be a positive integer, got {value!r}.")
        if self.auto:
            given = [
                field.name
                for field in fields(self)
                if field.name not in _HEEDED and getattr(self, field.name) != field.default
            ]
            if given:
                raise InvalidInputError(
                    f"auto=True chooses {', '.join(given)} by itself: leave that out, or pass auto=False."
                )

    @cached_property
    def recorded_steps(self) -> frozenset[int]:
        """Steps at which the history gets a row: every `record_every`, or about 200 of them; none at 0.

        Those 200 are half log-spaced, for the fast start, and half evenly spaced, for the long end.
        """
        if self.record_every == 0:
            return frozenset()
        if self.record_every is not None:
            return frozenset(range(0, self.steps + 1, self.record_every))
        spaced = np.concatenate([np.geomspace(1, self.steps, 100), np.linspace(0, self.steps, 101)])
        return frozenset(map(int, spaced.round()))

    def rate(self, step: int) -> float:
        """Return η of a step: constant, or multiplied by `(1 + cos(π·step/steps))/2`."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with some settings changed; naming one that `auto` would choose turns `auto` off."""
        names = [field.name for field in fields(self)]
        for name in overrides:
            check_known("setting", name, names)
        if self.auto and not (overrides.get("auto", True) and set(overrides) <= _HEEDED):
            overrides = {"steps": type(self).steps, "auto": False} | overrides
        return replace(self, **overrides)

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return in one line what has an effect; the gradient's parts decide what the weights weigh.

        Examples:
            >>> DescentSettings(steps=100).describe(["well", "ill", "supervised"])
            '100 steps of adam, η = 0.1 (cosine), full batch, λ balanced with ratio 5, loss weight 1'
        """
        if self.auto:
            return f"auto: η, λ and the number of steps (at most {self.steps}) follow from the spectra"
        batch = "full batch" if self.batch_size is None else f"{self.batch_size} rows a step"
        text = (
            f"{self.steps} steps of {self.optimizer}, η = {self.learning_rate:g} ({self.schedule}), {batch}"
        )
        if self.weights == "fixed" and {"well", "ill"} & set(parts):
            text += f", λ_P = {self.lambda_pretrain:g}, λ_H = {self.lambda_harmful:g}"
        elif self.weights == "balanced" and len(parts) > 1:
            text += f", λ balanced with ratio {self.ratio:g}"
        return text + (f", loss weight {self.loss_weight:g}" if "supervised" in parts else "")


#: Fixed settings of `ours` by name: the former default, and those that the paper's experiments were tuned to.
#: On other data they may fail without a word: see `auto`.
NAMED_SETTINGS = {
    "fixed": DescentSettings(),
    "house-prices": DescentSettings(learning_rate=0.3, ratio=60.0, loss_weight=0.1, steps=12_000),
    "mnist": DescentSettings(learning_rate=2.5e-3, ratio=1.0, loss_weight=1e-3, steps=120, record_every=0),
    "digits-8x8": DescentSettings(
        learning_rate=0.03, ratio=20.0, loss_weight=0.1, steps=300, record_every=30
    ),
    "diabetes": DescentSettings(learning_rate=0.1, ratio=5.0, loss_weight=0.1, steps=2000),
}

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

    def weighted_sum(self, theta: Tensor, weights: dict[str, Tensor], memory: Memory) -> Tensor:
        """Return the weighted sum of the parts; those given as `∇_H R` share one product with θ."""
        total = memory.buffer("total", theta, *theta.shape[1:]).zero_()
        inner = None
        for name, part in self.parts.items():
            weight = weights[name][:, None]
            if isinstance(part, Tensor):
                total.addcmul_(weight[:, None], part)
            elif isinstance(part, OuterGradient):
                total.baddbmm_(weight[:, None] * part.left, part.right.mT)
            else:
                if inner is None:
                    inner = memory.buffer("hessian_sum", theta, *part.hessian.shape[1:]).zero_()
                inner.addcmul_(part.hessian, (2 * weight * part.scale[:, None])[:, None])
                scaled = 2 * weight * part.coefficient[:, None] * part.vector
                inner.baddbmm_(scaled[:, :, None], part.vector[:, None])
        return total if inner is None else total.baddbmm_(theta, inner)

    def norms(self, theta: Tensor, memory: Memory) -> dict[str, Tensor]:
        """Return the Frobenius norms `(b,)` of each part's directions."""
        one = theta.new_ones(len(theta))
        return {
            name: torch.linalg.vector_norm(
                Gradients({name: part}).weighted_sum(theta, {name: one}, memory), dim=(1, 2)
            )
            for name, part in self.parts.items()
        }


class DescentMethod(Protocol):
    """A method that descends: the loop weighs the parts of its gradient, steps, records and stops.

    It has one of two functions of `(problem, parameters, settings, memory)`, both with `Gradients` for an
    answer: `batched_gradients`, where the problems (a `ProblemBatch`) and all tensors have a leading batch
    dimension, or `gradients` of one `ImmunizationProblem` or a mini-batch of it, whose parts are tensors.
    """

    name: str
    label: str  # for people; may hold <sub> and <sup>
    summary: str
    parts: tuple[str, ...]  # names of θ's gradient parts
    defaults: Any  # its settings

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return the parameters at step 0."""


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


def knows_batches(method: object) -> bool:
    """Tell whether a method has gradients of many problems at once."""
    return callable(getattr(method, "batched_gradients", None))


def few_threads(problem: ImmunizationProblem) -> AbstractContextManager[None]:
    """Give a small problem one thread: beside other work, several mostly wait for each other."""
    return limited_threads(1 if problem.dimension <= SMALL and problem.device.type == "cpu" else None)


def random_weights(problem: ImmunizationProblem, columns: int, generator: torch.Generator) -> Tensor:
    """Return `(D, columns)` uniform in ±1/√D, as the paper's linear layers are initialised.

    The draw happens on the CPU, so that a seed gives the same θ₀ on every device.
    """
    unit = torch.rand((problem.dimension, columns), generator=generator, dtype=torch.float64)
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
    """What a callback is told at each recorded or watched step."""

    method: str
    seed: int
    step: int
    steps: int
    record: dict[str, float]  # the history's row; empty at a step that is watched only
    theta: Tensor  # (D, D_hid) after so many steps; the run goes on with it: copy what is to be kept


#: Told of each recorded or watched step; returning True asks the run to stop there.
Callback = Callable[[Progress], bool | None]
