"""What a method is, a gradient to descend along or a closed form; its settings; what a run leaves behind."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
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

from condnum.errors import CondnumError, InvalidInputError, check_integer, check_known
from condnum.machine import limited_threads
from condnum.methods.problem import SMALL, ImmunizationProblem
from condnum.theory.ceiling import rir_ceiling, share_of_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio, unit_gauge

if TYPE_CHECKING:
    import pandas as pd


def only_where(default: Any, *, parts: str = "", **modes: str) -> Any:
    """Declare a setting that has an effect only at these other settings, on one of these gradient parts."""
    return field(default=default, metadata={"parts": frozenset(parts.split()), "modes": modes})


@dataclass(frozen=True)
class Settings:
    """What all settings have: their values are checked, and so is that each has an effect."""

    steps: int = 1000  # full batch: a step is an epoch
    record_every: int | None = None  # steps between history rows; None: about 200 in all; 0: no history

    def __post_init__(self) -> None:
        """Read each value by the type of its field: NumPy's numbers and 10.0 for 10 are as good."""
        for name, kind in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _read(name, kind, getattr(self, name)))
        self.refuse_idle()

    def refuse_idle(
        self, parts: Collection[str] | None = None, named: Collection[str] = (), where: str = ""
    ) -> None:
        """Raise for a setting, named or not at its default, without effect here; `parts`: of the gradient."""
        for one in fields(self):
            value, needed = getattr(self, one.name), one.metadata.get("parts", frozenset())
            if value == one.default and one.name not in named:
                continue
            misses = [
                (f"{name}={getattr(self, name)!r}", f"{name}={mode!r}")
                for name, mode in one.metadata.get("modes", {}).items()
                if getattr(self, name) != mode
            ]
            if parts is not None and needed.isdisjoint(parts) and needed:
                misses.append(
                    (where, f"methods and tasks with a gradient part {' or '.join(sorted(needed))}")
                )
            for here, there in misses:
                raise InvalidInputError(
                    f"{one.name}={value!r} has no effect with {here}: it belongs to {there}; leave it out."
                )

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with some settings changed; what loses its effect by that returns to its default."""
        known = {one.name: one for one in fields(self)}
        for name in overrides:
            check_known("setting", name, known)
        idle: dict[str, Any] = {
            name: one.default
            for name, one in known.items()
            for other, mode in one.metadata.get("modes", {}).items()
            if name not in overrides and overrides.get(other, mode) != mode
        }
        changed = replace(self, **idle | overrides)
        # All settings at once, as `asdict` gives them, are no choice of each.
        changed.refuse_idle(named=overrides if len(overrides) < len(known) else ())
        return changed


def _read(name: str, kind: Any, value: Any) -> Any:
    """Return the value of a setting as the type of its field has it, or say what is wrong with it."""
    if get_origin(kind) is Literal:
        check_known(name, value, get_args(kind))
    elif kind is float:
        number = isinstance(value, Real) and not isinstance(value, bool)
        if name == "tolerance" and not (number and 0 <= value < 1):
            raise InvalidInputError(f"tolerance must lie in [0, 1), got {value!r}.")
        if name != "tolerance" and not (number and 0 < value < math.inf):
            raise InvalidInputError(f"{name} must be a positive number, got {value!r}.")
        return float(value)
    elif value is not None or kind is int:
        return check_integer(name, value, 0 if name == "record_every" else 1)
    return value


@dataclass(frozen=True)
class DescentSettings(Settings):
    """How a method descends all parts of its gradient together. Defaults: full batch, Adam, balanced λ.

    `ours` descends so, as published (Eq. 11), where settings are given; else see `SelfTunedSettings`.
    """

    optimizer: Literal["adam", "gd"] = "adam"  # Adam (0.9, 0.999, 1e-8) or plain gradient descent
    learning_rate: float = 0.1  # η at step 0
    schedule: Literal["constant", "cosine"] = "cosine"  # cosine: η falls to 0 at the last step
    # Where the weights of the parts come from.
    weights: Literal["balanced", "fixed"] = only_where(
        "balanced", parts="well ill kappa_pretrain kappa_harmful"
    )
    # λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0
    ratio: float = only_where(5.0, parts="ill kappa_harmful", weights="balanced")
    loss_weight: float = only_where(1.0, parts="supervised")  # weight of the supervised loss
    lambda_pretrain: float = only_where(100.0, parts="well", weights="fixed")  # Table 4, house prices
    lambda_harmful: float = only_where(1e7, parts="ill", weights="fixed")  # likewise
    batch_size: int | None = None  # rows a step and task; None is the full batch
    tolerance: float = 0.0  # stop once the weighted θ-gradient is below this share of its start

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

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return in one line what has an effect; the gradient's parts decide what the weights weigh.

        Examples:
            >>> DescentSettings(steps=100).describe(["well", "ill", "supervised"])
            '100 steps of adam, η = 0.1 (cosine), full batch, λ balanced with ratio 5, loss weight 1'
        """
        batch = "full batch" if self.batch_size is None else f"{self.batch_size} rows a step"
        text = (
            f"{self.steps} steps of {self.optimizer}, η = {self.learning_rate:g} ({self.schedule}), {batch}"
        )
        if self.weights == "fixed" and {"well", "ill"} & set(parts):
            text += f", λ_P = {self.lambda_pretrain:g}, λ_H = {self.lambda_harmful:g}"
        elif self.weights == "balanced" and len(parts) > 1:
            text += f", λ balanced with ratio {self.ratio:g}"
        return text + (f", loss weight {self.loss_weight:g}" if "supervised" in parts else "")


@dataclass(frozen=True)
class SelfTunedSettings(Settings):
    """Self-tuned `ours`: all but these two settings follows from the spectra (`condnum.methods.auto`).

    It uses the steps of Algorithm 1, but alternates `R_well` alone (λ_H = 0) and `R_ill` alone (λ_P = 0), and
    never descends the loss: it is not the joint descent of Eq. 11.
    """

    steps: int = 20_000  # at most

    def with_overrides(self, **overrides: Any) -> Any:
        """Return a copy with some settings changed; naming one of the joint descent returns its settings."""
        if set(overrides) <= {one.name for one in fields(self)}:
            return replace(self, **overrides)
        return DescentSettings(record_every=self.record_every).with_overrides(**overrides)

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return in one line what runs.

        Examples:
            >>> SelfTunedSettings().describe()
            'self-tuned: steps on R_well alone (λ_H = 0) and on R_ill alone (λ_P = 0) in turn, none on the
            loss; η and λ from the spectra, at most 20000 steps'
        """
        return (
            "self-tuned: steps on R_well alone (λ_H = 0) and on R_ill alone (λ_P = 0) in turn, none on the "
            f"loss; η and λ from the spectra, at most {self.steps} steps"
        )


#: Settings of the joint descent of `ours` by name: the defaults, and those searched on the paper's data. On
#: other data they may fail without a word: self-tuned, `ours` says whether it immunized.
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


@dataclass(frozen=True, repr=False)
class ImmunizationResult:
    """An immunized extractor and how it was obtained; `immunize` judges it, `immunize_batch` does not."""

    theta: Tensor  # (D, D_hid)
    omega: Tensor | None  # (D_hid, m) pre-training probe, None without supervised loss
    method: str
    seed: int
    settings: Settings | None  # what ran; None for controls and closed forms
    history: History
    # λ of each gradient part; self-tuned: ηλ of the last step on each, 0 for the loss, which takes none
    part_weights: dict[str, float]
    steps: int  # steps taken
    seconds: float
    converged: bool  # True only if the tolerance was reached, RIR settled, or the answer is in closed form
    stop_reason: StopReason
    counts: dict[str, int] = field(default_factory=dict)  # Lanczos steps, fall-backs to eigh, …
    verdict: Immunization | None = None  # of θ, compact convention; None where θ cannot be measured
    ceiling: float | None = None  # RIR_max beside it
    explanation: str = ""  # whether Definition 3.1 is met, what is possible, what was chosen and why

    def __repr__(self) -> str:
        """Return at most eight lines: what was run, and whether Definition 3.1 is met."""
        return "\n".join([self._heading, *textwrap.wrap(self.explanation, 100, max_lines=7)])

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return f"<b>{html.escape(self._heading)}</b><p>{html.escape(self.explanation)}</p>"

    @property
    def _heading(self) -> str:
        shape = " × ".join(map(str, self.theta.shape))
        return f"{self.method}, seed {self.seed}: θ {shape}, {self.steps} steps ({self.stop_reason})"


def judged(problem: ImmunizationProblem, result: ImmunizationResult) -> ImmunizationResult:
    """Add the verdict by Definition 3.1 and the explanation to a result."""
    if not bool(torch.isfinite(result.theta).all()):
        return replace(result, explanation="θ cannot be measured: it has NaN or infinite entries.")
    ranges = problem.pretrain.range, problem.harmful.range
    try:
        pretrain, unit = problem.pretrain, unit_gauge(result.theta)  # at which no square overflows
        gap = None if pretrain.targets is None else pretrain.loss_gap(unit)
        ceiling = rir_ceiling(*ranges).value
        verdict = relative_immunization_ratio(result.theta, *ranges, loss_gap=gap)
        text = verdict_words(verdict, ceiling, ranges[1].rank)
        ridge = ridge_words(result.theta, problem, verdict)
    except CondnumError as error:
        return replace(result, explanation=f"θ cannot be measured: {error}")
    return replace(result, verdict=verdict, ceiling=ceiling, explanation=f"{text} {ridge}")


def verdict_words(verdict: Immunization, ceiling: float, harmful_rank: int) -> str:
    """Say whether θ meets Definition 3.1 in the compact convention, and what is possible."""
    text = f"Definition 3.1 is {verdict.verdict}: {_ratios(verdict)}, RIR = {verdict.rir:.4g}"
    if math.isfinite(ceiling):
        text += f", {share_of_ceiling(verdict.rir, ceiling):.1%} of the ceiling {ceiling:.4g}."
    else:
        text += "; no ceiling: the harmful task has directions of its own."
    if harmful_rank == 1:
        text += " K_H has rank 1, so that κ(H_H) = 1 whatever θ is: no extractor can meet clause (a)."
    elif ceiling <= 1 + 1e-6:
        text += " A ceiling of 1 means that no extractor can immunize this pair."
    return text


def ridge_words(theta: Tensor, problem: ImmunizationProblem, verdict: Immunization) -> str:
    """Say the same in the ridge convention."""
    ranges = problem.pretrain.range, problem.harmful.range
    ridge = relative_immunization_ratio(theta, *ranges, convention="ridge", loss_gap=verdict.loss_gap)
    return f"Ridge convention (ε = 1e-6): {ridge.verdict}, {_ratios(ridge)}."


def _ratios(found: Immunization) -> str:
    return f"(i) = {found.harmful_ratio:.4g}, (ii) = {found.pretrain_ratio:.4g}"


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
