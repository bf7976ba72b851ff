"""What an attacker is, what it is given, and what it hands back.

The how-to page own_study has an attacker in a dozen lines.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import FloatArray, as_tensor
from condnum.errors import InvalidInputError, check_integer
from condnum.probing.line_search import log_spaced_steps
from condnum.probing.objectives import ProbeSpace, TaskKind


@dataclass(frozen=True)
class AttackBudget:
    """How much an attacker may spend, and what counts as arrived."""

    steps: int = 20_000
    dense_steps: int = 3_000
    epsilons: tuple[float, ...] = (0.1, 0.01, 0.001)
    headline: float = 0.01
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("dense_steps", 1), ("batch_size", 1), ("seed", 0)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least))
        epsilons = as_tensor(np.asarray(self.epsilons), "epsilons", ndim=1).tolist()
        if not all(0 < epsilon < 1 for epsilon in epsilons) or len({*epsilons}) < len(epsilons):
            raise InvalidInputError(
                f"epsilons must be distinct and lie between 0 and 1, got {self.epsilons}."
            )
        object.__setattr__(self, "epsilons", tuple(epsilons))
        if self.headline not in self.epsilons:
            raise InvalidInputError(f"headline {self.headline} must be one of the epsilons {self.epsilons}.")


@dataclass(frozen=True, eq=False)
class Trace:
    """How one candidate of an attacker's grid descends."""

    choice: str  # its hyper-parameters in words
    steps: NDArray[np.int64]  # (T,) steps at which the loss was measured
    excess: FloatArray  # (T,) (L_t − L*)/(L₀ − L*); NaN once it diverges
    edge: bool = False  # first or last of an open-ended grid
    evaluated: FloatArray | None = None  # (R, 3) step, loss, accuracy on the evaluation rows
    passes: FloatArray | None = None  # (T,) gradient evaluations so far, where not the steps

    def steps_to(self, epsilon: float) -> int | None:
        """Return the first step at which the relative excess loss is at most ε; None: never."""
        hit = np.flatnonzero(self.excess <= epsilon)
        return int(self.steps[hit[0]]) if len(hit) else None

    def passes_to(self, step: int) -> float:
        """Return how many gradients were evaluated up to a step."""
        at = int(np.searchsorted(self.steps, step))
        return float(step if self.passes is None else self.passes[at])


class Race:
    """Records candidates that take their steps together, and ends when one has reached the last target."""

    def __init__(
        self,
        space: ProbeSpace,
        choices: Sequence[str],
        budget: AttackBudget,
        *,
        dense: bool = True,
        open_ended: bool = False,
    ) -> None:
        """Name the candidates; at the edge are the first and last of an `open_ended` grid."""
        self.choices, self.target = list(choices), min(budget.epsilons)
        self.last = budget.dense_steps if dense else budget.steps
        self.edges = [open_ended and i in (0, len(choices) - 1) for i in range(len(choices))]
        self._evaluate, self._due = space.evaluate, {*log_spaced_steps(self.last, 60).tolist()}
        self._steps: list[int] = []
        self._excess: list[FloatArray] = []
        self._evaluated: list[FloatArray] = []  # each (3, B)

    def observe(self, step: int, excess: FloatArray, weights: Callable[[], FloatArray] | None = None) -> bool:
        """Record a step."""
        excess = np.where(np.isfinite(excess), excess, np.nan)
        done = bool((excess <= self.target).any()) or step >= self.last or bool(np.isnan(excess).all())
        self._steps.append(step)
        self._excess.append(excess)
        if weights is not None and (step in self._due or done):
            loss, accuracy = self._evaluate(weights())
            self._evaluated.append(np.stack([np.full(len(loss), float(step)), loss, accuracy]))
        return not done

    def traces(self) -> list[Trace]:
        """Return what was recorded, a trace per candidate."""
        steps, excess = np.array(self._steps), np.array(self._excess)
        seen = np.array(self._evaluated) if self._evaluated else None
        return [
            Trace(choice, steps, excess[:, b], edge, None if seen is None else seen[:, :, b])
            for b, (choice, edge) in enumerate(zip(self.choices, self.edges, strict=True))
        ]


def best(traces: Sequence[Trace], epsilon: float) -> tuple[Trace, int | None]:
    """Return the candidate that reaches ε first, with its step; if none does, the one that gets nearest."""
    reached = [(step, i) for i, trace in enumerate(traces) if (step := trace.steps_to(epsilon)) is not None]
    if reached:
        step, i = min(reached)
        return traces[i], step
    least = [float(np.nanmin(t.excess)) if np.isfinite(t.excess).any() else math.inf for t in traces]
    return traces[int(np.argmin(least))], None


@dataclass(frozen=True, eq=False)
class AttackProblem:
    """One extractor as all attackers meet it."""

    space: ProbeSpace  # features of the extractor
    inputs: ProbeSpace  # the raw inputs
    theta: FloatArray  # (D, k), features = inputs·θ in the panel's scaling


@dataclass(frozen=True, eq=False)
class AttackRun:
    """All candidates of one attacker on one extractor."""

    traces: Sequence[Trace]
    space: ProbeSpace  # the space in which the attacker works: its L* is the one that counts
    kappa_steps: Mapping[float, float] = field(default_factory=dict)  # ε -> steps predicted from κ alone
    spectrum_steps: Mapping[float, float] = field(default_factory=dict)  # ε -> from the full spectrum
    pass_share: float = 1.0  # fraction of the rows that one gradient sees


class Attacker(ABC):
    """Someone who trains on the released features; derive from it."""

    name: str  # in the registry
    label: str  # for tables and figures
    summary: str  # what it does, and over which grid
    informed: bool = False  # whether it changes coordinates or solves in closed form: κ does not matter
    kinds: tuple[TaskKind, ...] = ("regression", "classification")

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the space in which it works: what of the targets can be reached there?"""
        return problem.space

    @abstractmethod
    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Attack from zero weights with every candidate of the grid."""


def zero_weights(space: ProbeSpace, candidates: int) -> FloatArray:
    """Return the start of all candidates, `(B, k, m)` zeros."""
    return np.zeros((candidates, space.features.shape[1], space.objective.outputs))
