"""What an attacker is, and the registry of attackers.

An attacker is an object with a name and a method `run`; see `Attacker`. One that descends on the loss in
lock-step needs a dozen lines::

    class SignDescent(AttackerBase):
        name, label, summary = "sign", "Sign descent", "gradient descent on signs, grid of rates"

        def run(self, problem, budget):
            race = self.race(problem.space, ["rate 0.01"], budget)
            space, W, step = problem.space, np.zeros(...), 0
            while race.observe(step, *space.objective.evaluate(W)[:1], lambda: W):
                ...
            return AttackRun(race.traces(), space)

    register_attacker(SignDescent())
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.probing.attackers.feature_set import Kind
from condnum.probing.attackers.objectives import Array
from condnum.probing.attackers.race import AttackBudget, Race, Trace
from condnum.probing.attackers.space import ProbeSpace


@dataclass(frozen=True, eq=False)
class AttackProblem:
    """One extractor as all attackers meet it."""

    space: ProbeSpace  # features of the extractor
    inputs: ProbeSpace | None = None  # the raw inputs, where θ is known
    theta: Array | None = None  # (D, k), features = inputs·θ in the panel's scaling


@dataclass(frozen=True, eq=False)
class AttackRun:
    """All candidates of one attacker on one extractor."""

    traces: Sequence[Trace]
    space: ProbeSpace  # the space in which the attacker works: its L* is the one that counts
    kappa_steps: Mapping[float, float] = field(default_factory=dict)  # ε -> steps predicted from κ alone
    spectrum_steps: Mapping[float, float] = field(default_factory=dict)  # ε -> from the full spectrum
    seconds: float = math.nan  # measured, where it is not passes × seconds of a pass
    pass_share: float = 1.0  # share of the rows that one gradient sees
    optimum: float | None = None  # L* of the attacker; None: that of `space`


@runtime_checkable
class Attacker(Protocol):
    """Someone who trains on the released features."""

    @property
    def name(self) -> str:
        """Registry name."""

    @property
    def label(self) -> str:
        """Name for tables and figures."""

    @property
    def summary(self) -> str:
        """What it does, and over which grid."""

    @property
    def informed(self) -> bool:
        """Whether it changes coordinates or solves in closed form, so that κ is not in its way."""

    def obstacle(self, problem: AttackProblem) -> str | None:
        """Return why this attacker cannot run on a problem; None if it can."""

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Attack from zero weights with every candidate of the grid."""


class AttackerBase:
    """Defaults of an attacker."""

    informed: ClassVar[bool] = False
    kinds: ClassVar[tuple[Kind, ...]] = ("regression", "classification")

    def obstacle(self, problem: AttackProblem) -> str | None:
        """Return why it cannot run: by default a wrong kind of task."""
        if problem.space.kind not in self.kinds:
            return f"it is an attack on {' and '.join(self.kinds)} only"
        return None

    @staticmethod
    def race(
        space: ProbeSpace,
        choices: Sequence[str],
        budget: AttackBudget,
        *,
        dense: bool = True,
        open_ended: bool = False,
    ) -> Race:
        """Return a race of these candidates that is evaluated in a space.

        Args:
            space: Where the weights live.
            choices: Hyper-parameters in words.
            budget: Steps and targets.
            dense: Count with `dense_steps`.
            open_ended: The first and last candidate are ends of a grid that could go on.

        Returns:
            The race.
        """
        last = budget.dense_steps if dense else budget.steps
        ends = [open_ended and i in (0, len(choices) - 1) for i in range(len(choices))]
        return Race(choices, last, budget, evaluate=space.evaluate, edges=ends)


_ATTACKERS: dict[str, Attacker] = {}


def register_attacker(attacker: Attacker) -> None:
    """Add an attacker to the registry under its name.

    Args:
        attacker: Anything with the attributes of `Attacker`.

    Raises:
        InvalidInputError: The name is taken, or it is no attacker.
    """
    if not isinstance(attacker, Attacker):
        raise InvalidInputError(
            f"{attacker!r} is no attacker: it needs name, label, summary, informed, obstacle and run."
        )
    if attacker.name in _ATTACKERS:
        raise InvalidInputError(f"an attacker named '{attacker.name}' is registered already; choose another.")
    _ATTACKERS[attacker.name] = attacker


def attacker_names() -> list[str]:
    """Return the names of all registered attackers, in display order."""
    return list(_ATTACKERS)


def get_attacker(name: str) -> Attacker:
    """Return a registered attacker.

    Args:
        name: One of `attacker_names()`.

    Returns:
        The attacker.

    Raises:
        UnknownNameError: There is no such attacker.
    """
    if name not in _ATTACKERS:
        raise UnknownNameError("attacker", name, _ATTACKERS)
    return _ATTACKERS[name]


def zero_weights(space: ProbeSpace, candidates: int) -> Array:
    """Return the start of all candidates, `(B, k, m)` zeros."""
    return np.zeros((candidates, space.features.shape[1], space.objective.outputs))
