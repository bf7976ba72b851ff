"""What an attacker is, what it is given, and how its candidates race to the targets.

The how-to page own_study has an attacker in a dozen lines.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import FloatArray, as_tensor
from condnum.errors import InvalidInputError, check_integer
from condnum.probing.line_search import log_spaced_steps
from condnum.probing.space import ProbeSpace


@dataclass(frozen=True)
class AttackBudget:
    """How much an attacker may spend, and what counts as arrived."""

    steps: int = 20_000
    dense_steps: int = 3_000  # of attackers who pass over the data in each step
    epsilons: tuple[float, ...] = (0.1, 0.01, 0.001)
    reported_epsilon: float = 0.01  # the one of `epsilons` that sentences and tables are about
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        at_least = {"steps": 1, "dense_steps": 1, "batch_size": 1, "seed": 0}
        for name, least in at_least.items():
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least))
        epsilons = as_tensor(np.asarray(self.epsilons), "epsilons", ndim=1).tolist()
        if not all(0 < epsilon < 1 for epsilon in epsilons) or len({*epsilons}) < len(epsilons):
            raise InvalidInputError(
                f"epsilons must be distinct and lie between 0 and 1, got {self.epsilons}."
            )
        object.__setattr__(self, "epsilons", tuple(epsilons))
        if self.reported_epsilon not in self.epsilons:
            raise InvalidInputError(
                f"reported_epsilon {self.reported_epsilon} must be one of the epsilons {self.epsilons}."
            )


@dataclass(frozen=True, eq=False)
class Trace:
    """How one candidate of an attacker's grid descends."""

    choice: str  # its hyper-parameters in words
    steps: NDArray[np.int64]  # (T,) steps at which the loss was measured
    excess: FloatArray  # (T,) (L_t − L*)/(L₀ − L*); NaN where it diverges
    scores: FloatArray  # (R, 5) step; loss, accuracy on rows that judge; the same on rows that choose; or NaN
    edge: bool = False  # first or last of an open-ended grid
    passes: FloatArray | None = None  # (T,) gradient evaluations so far, where not the steps

    def steps_to(self, epsilon: float) -> int | None:
        """Return the first step at which the relative excess loss is at most ε; None: never."""
        hit = np.flatnonzero(self.excess <= epsilon)
        return int(self.steps[hit[0]]) if len(hit) else None


class Race:
    """Records candidates that take their steps together, and ends when one has reached the last target."""

    def __init__(
        self,
        space: ProbeSpace,
        choices: Sequence[str],
        budget: AttackBudget,
        *,
        last: int | None = None,
        edges: Collection[int] = (),
    ) -> None:
        """Name the candidates, and which lie at the `edges` of their grid; `last` is the last step."""
        self.choices, self.edges, self.budget = list(choices), edges, budget
        self.last, self.target = budget.dense_steps if last is None else last, min(budget.epsilons)
        self._score: Callable[[FloatArray], Any] = space.score
        self._due = {*log_spaced_steps(self.last, 60).tolist()}
        self._steps: list[int] = []
        self._excess: list[FloatArray] = []
        self._scores: list[FloatArray] = []  # each (5, B)

    def observe(self, step: int, excess: FloatArray, weights: Callable[[], FloatArray]) -> bool:
        """Record the excess losses after a step; False once the race is over."""
        excess = np.where(np.isfinite(excess), excess, np.nan)
        done = bool((excess <= self.target).any()) or step >= self.last or bool(np.isnan(excess).all())
        self._steps.append(step)
        self._excess.append(excess)
        if step in self._due or done:
            scores = np.empty((5, len(excess)))
            scores[0], scores[1:] = step, self._score(weights())
            self._scores.append(scores)
        return not done

    def traces(self) -> list[Trace]:
        """Return what was recorded, a trace per candidate."""
        steps, excess, scores = np.array(self._steps), np.array(self._excess), np.array(self._scores)
        return [
            Trace(choice, steps, excess[:, b], scores[:, :, b], b in self.edges)
            for b, choice in enumerate(self.choices)
        ]

    def follow(self, space: ProbeSpace, filters: Iterable[FloatArray]) -> list[Trace]:
        """Observe the filters `(B, r)` of a method; score the best candidate."""
        S, seen = space.spectrum, list[FloatArray]()

        def keep(q: FloatArray) -> float:
            """Keep the filters of a step that is scored, until the best candidate is known."""
            seen.append(q.copy())
            return math.nan

        self._score = keep
        for step, q in enumerate(filters):
            if not self.observe(step, (q * q) @ S.energy, partial(np.asarray, q)):
                break
        traces = self.traces()
        chosen, _ = best(traces, self.budget.reported_epsilon)
        passed = 1 - np.array(seen)[:, traces.index(chosen), :, None]
        # w_t = Σ (1 − q_i) (v_iᵀw*) v_i
        chosen.scores[:, 1:] = np.transpose(space.score(S.right @ (passed * (S.right.T @ space.solution))))
        return traces


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
    inputs: ProbeSpace  # the raw inputs, with a column of ones where the extractor has a bias
    theta: FloatArray | None  # features = inputs·θ in the panel's scaling; None: it has no matrix
    rows: bool = True  # whether the features are rows of data; if not, they have the task's covariance


@dataclass(frozen=True, eq=False)
class AttackRun:
    """All candidates of one attacker on one extractor."""

    traces: Sequence[Trace]
    space: ProbeSpace  # the space in which the attacker works: its L* is the one that counts
    kappa_steps: Mapping[float, float] = field(default_factory=dict)  # ε -> steps predicted from κ alone
    batch_fraction: float = 1.0  # fraction of the rows that one gradient sees


class Attacker(ABC):
    """Someone who trains on the released features; derive from it."""

    name: str  # in the registry
    label: str  # for tables and figures
    needs: str = ""  # `theta` or `rows`, where it cannot do without

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the space in which it works: what of the targets can be reached there?"""
        return problem.space

    @abstractmethod
    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Attack from zero weights with every candidate of the grid."""


def zero_weights(space: ProbeSpace, candidates: int) -> FloatArray:
    """Return the start of all candidates, `(B, k, m)` zeros."""
    return np.zeros((candidates, space.features.shape[1], space.outputs))
