"""What a method is: either a gradient to descend along, or a closed form."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.machine import limited_threads
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.settings import DescentSettings
from condnum.theory.immunization import Immunization
from condnum.theory.spectra import covariance_factor, hessian_spectrum

if TYPE_CHECKING:
    import pandas as pd


SettingsT = TypeVar("SettingsT", bound=DescentSettings)

#: Up to this dimension a full `eigh` is as fast as anything cleverer.
SMALL = 128

#: Named tensors that a method trains; every method has "theta" `(D, D)`.
Parameters = dict[str, Tensor]


@dataclass
class Memory:
    """What a method may carry from one step of a run to the next."""

    vectors: dict[str, Tensor] = field(default_factory=dict)  # warm starts, by the method's own names
    counts: dict[str, int] = field(default_factory=dict)  # evidence for the result, such as fall-backs
    buffers: dict[str, Tensor] = field(default_factory=dict)  # reused from step to step

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def buffer(self, name: str, like: Tensor, rows: int, columns: int) -> Tensor:
        """Return an uninitialised matrix that keeps its memory from step to step."""
        kept = self.buffers.get(name)
        if kept is None or kept.shape != (rows, columns):
            kept = self.buffers[name] = like.new_empty((rows, columns))
        return kept


@dataclass(frozen=True)
class HessianGradient:
    """`∇_H R(H) = aH + c·vvᵀ`, kept in its parts: many of them share one product with θ."""

    hessian: Tensor  # (D_hid, D_hid), H
    scale: Tensor  # (), a
    coefficient: Tensor  # (), c
    vector: Tensor  # (D_hid,), v

    def add_to(self, total: Tensor, weight: float, *, fresh: bool = False) -> Tensor:
        """Add `weight·∇_H R` to a running sum in place (a fresh one is overwritten), and return it."""
        scale, coefficient = weight * float(self.scale), weight * float(self.coefficient)
        if fresh:
            torch.mul(self.hessian, scale, out=total)
        else:
            total.add_(self.hessian, alpha=scale)
        return total.addr_(self.vector, self.vector, alpha=coefficient) if coefficient else total


@dataclass(frozen=True)
class OuterGradient:
    """A part of θ's gradient of low rank, `left·rightᵀ`, such as that of a supervised loss."""

    left: Tensor  # (D, m)
    right: Tensor  # (D_hid, m)

    def add_to(self, total: Tensor, weight: float) -> Tensor:
        """Add `weight·left·rightᵀ` to a running sum in place, and return it."""
        return total.addmm_(self.left, self.right.mT, alpha=weight)


@dataclass(frozen=True)
class Gradients:
    """Gradients of one step: θ's in named, unweighted parts; the others whole.

    A large part may be given unevaluated: as `∇_H R`, whose preconditioned direction is `2θ∇_H R`, so
    that all such parts share one product with θ, or as an outer product.
    """

    theta_parts: dict[str, Tensor]  # each (D, D_hid)
    others: dict[str, Tensor]  # by parameter name
    hessian_parts: dict[str, HessianGradient] = field(default_factory=dict)
    outer_parts: dict[str, OuterGradient] = field(default_factory=dict)


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
        self, problem: ImmunizationProblem, parameters: Parameters, settings: SettingsT, memory: Memory
    ) -> Gradients:
        """Return the gradients at the parameters, on the full problem or on a mini-batch of it."""


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


# What an immunization run leaves behind: θ, ω, and the evidence.


StopReason = Literal["steps", "tolerance", "settled", "cancelled", "diverged", "closed_form"]


@dataclass(frozen=True)
class History:
    """One row per recorded step, as equally long arrays, from θ₀ to the result; empty if unwanted."""

    columns: dict[str, NDArray[np.float64]]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return a column: step, loss, r_well, r_ill, kappa_pretrain, kappa_harmful or norm_<part>."""
        return self.columns[name]

    def __len__(self) -> int:
        """Return the number of recorded steps."""
        return len(self.columns.get("step", ()))

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a table.

        Returns:
            A DataFrame with one row per recorded step.
        """
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


# Evaluation of θ on the full problem, the same for every method: what the history records.


class Monitor:
    """Measures loss, both regularizers and both compact κ's of a θ.

    κ is taken over rank(K), the rank that H(θ) has for invertible θ: along a run a fixed rank gives
    a continuous curve, whereas a rank decided anew at every step jumps near the tolerance.
    """

    def __init__(self, problem: ImmunizationProblem) -> None:
        self._problem = problem
        self._pretrain_factor, self._harmful_factor = (
            covariance_factor(task.covariance) if task.known_factor is None else task.known_factor
            for task in (problem.pretrain, problem.harmful)
        )

    def __call__(self, theta: Tensor, omega: Tensor | None) -> dict[str, float]:
        """Return the record of one step, in float: NaN for a loss that does not exist."""
        sigma_P = _spectrum(theta, self._pretrain_factor)
        sigma_H = _spectrum(theta, self._harmful_factor)
        spread = float((sigma_H**2).mean() - sigma_H[-1] ** 2) / 2
        supervised = self._problem.pretrain.supervised
        loss = math.nan if supervised is None or omega is None else float(supervised.value(theta @ omega))
        return {
            "loss": loss,
            "r_well": float(sigma_P[0] ** 2 - (sigma_P**2).sum() / theta.shape[1]) / 2,
            "r_ill": 1 / spread if spread > 0 else math.inf,
            "kappa_pretrain": _kappa(sigma_P),
            "kappa_harmful": _kappa(sigma_H),
        }


def _spectrum(theta: Tensor, factor: Tensor) -> Tensor:
    """Return the spectrum of H(θ), infinite where θ has diverged so far that the features overflow."""
    if bool(torch.isfinite(factor @ theta).all()):
        return hessian_spectrum(theta, factor)
    return torch.full((min(len(factor), theta.shape[1]),), math.inf).to(theta)


def _kappa(sigma: Tensor) -> float:
    """Return σ₁/σ_k of a spectrum, infinite where σ_k is exactly zero."""
    if bool(torch.isfinite(sigma).all()) and float(sigma[-1]) > 0:
        return float(sigma[0] / sigma[-1])
    return math.inf
