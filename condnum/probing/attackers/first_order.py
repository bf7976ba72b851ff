"""First-order attackers: gradient descent, line search, momentum, Nesterov, and two changes of coordinates.

On the squared loss they are recurrences in the eigenbasis (`quadratic`); on the logistic loss a grid of
rates around 1/L descends side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from condnum.probing.attackers.attacker import AttackerBase, AttackProblem, AttackRun, zero_weights
from condnum.probing.attackers.feature_set import Kind
from condnum.probing.attackers.objectives import Array
from condnum.probing.attackers.quadratic import (
    TwoTerm,
    assumed_minima,
    gradient_descent,
    heavy_ball,
    nesterov,
    predicted_steps,
    rate_steps,
    run_line_search,
    run_two_term,
)
from condnum.probing.attackers.race import AttackBudget, Race, best
from condnum.probing.attackers.space import ProbeSpace
from condnum.probing.attackers.update_rules import Momentum, UpdateRule

#: Rates in units of 1/L, L the bound on the curvature: the logistic loss stays stable well beyond 2/L,
#: as its curvature falls while it fits.
MULTIPLES = (0.3, 1.0, 1.9, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

#: Momentum on the logistic loss, beside the rates.
BETAS = (0.9, 0.99)


def multiplied(space: ProbeSpace) -> Callable[[Array], Array]:
    """Return the function from multipliers `(B, r)` to weights: `w_t = Σ (1 − q_i) (v_iᵀw*) v_i`."""
    V, solution = space.spectrum.right, space.solution

    def weights(multipliers: Array) -> Array:
        return V @ ((1 - multipliers)[:, :, None] * (V.T @ solution))

    return weights


def descend(space: ProbeSpace, rule: UpdateRule, race: Race) -> None:
    """Descend on the full loss with a grid of candidates until the race ends."""
    W, step = zero_weights(space, len(race.choices)), 0
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            excess, G = space.objective.evaluate(W)
            excess = np.where(excess < 1e6, excess, np.nan)
            if not race.observe(step, excess, W.copy):
                return
            rule.step([W], [G])
            step += 1


class _Descent(AttackerBase, ABC):
    """A two-term recurrence on the squared loss, a grid of rates (and momenta) on the logistic loss."""

    recurrence: ClassVar[Callable[[Array, float], TwoTerm]]
    betas: ClassVar[tuple[float, ...]] = (0.0,)
    lookahead: ClassVar[bool] = False

    @abstractmethod
    def contraction(self, kappa: float) -> float:
        """Return the asymptotic contraction of the error in one step, with the textbook's parameters."""

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the space in which this attacker works."""
        return problem.space

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with every candidate; on the squared loss with predictions of the number of steps."""
        space = self.space(problem)
        return self._quadratic(space, budget) if space.kind == "regression" else self._convex(space, budget)

    def _quadratic(self, space: ProbeSpace, budget: AttackBudget) -> AttackRun:
        """Run the recurrence over the grid of assumed smallest eigenvalues."""
        S = space.spectrum
        recurrence = type(self).recurrence
        candidates = [recurrence(S.sigma, mu) for mu in assumed_minima(S.sigma)]
        race = self.race(space, [c.choice for c in candidates], budget, dense=False)
        run_two_term(candidates, S, race, multiplied(space))
        traces = race.traces()
        by_kappa, by_spectrum = {}, {}
        for epsilon in budget.epsilons:
            by_kappa[epsilon] = rate_steps(self.contraction(S.condition), epsilon)
            chosen, step = best(traces, epsilon)
            # Beyond the budget any candidate may turn out the best one.
            asked = [c for c in candidates if step is None or c.choice == chosen.choice]
            by_spectrum[epsilon] = min(predicted_steps(c, S.shares, epsilon) for c in asked)
        return AttackRun(traces, space, by_kappa, by_spectrum)

    def _convex(self, space: ProbeSpace, budget: AttackBudget) -> AttackRun:
        """Run the grid of rates and momenta in lock-step."""
        grid = [(multiple, beta) for beta in self.betas for multiple in MULTIPLES]
        words = [f"rate {m:g}/L" + (f", β = {b:g}" if b else "") for m, b in grid]
        race = self.race(space, words, budget)
        race.edges = [multiple in (MULTIPLES[0], MULTIPLES[-1]) for multiple, _ in grid]
        rates, betas = np.array(grid).T
        rule = Momentum(rates / space.objective.smoothness, betas, nesterov=self.lookahead)
        descend(space, rule, race)
        return AttackRun(race.traces(), space)


class GradientDescent(_Descent):
    """Gradient descent with the best constant step."""

    name, label = "gd", "Gradient descent"
    summary = "constant step: 2/(σ₁ + μ) over a grid of μ down to σ_k; classification: a grid around 1/L"
    recurrence = staticmethod(gradient_descent)  # type: ignore[assignment]

    def contraction(self, kappa: float) -> float:
        """Return `(κ − 1)/(κ + 1)`."""
        return (kappa - 1) / (kappa + 1)


class HeavyBall(_Descent):
    """Polyak's momentum with the best constant parameters."""

    name, label = "momentum", "Momentum (heavy ball)"
    summary = "Polyak's parameters over a grid of assumed κ; classification: β = 0.9, 0.99 × rates"
    recurrence = staticmethod(heavy_ball)  # type: ignore[assignment]
    betas = BETAS

    def contraction(self, kappa: float) -> float:
        """Return `(√κ − 1)/(√κ + 1)`, the asymptotic rate without its transient."""
        return (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)


class Nesterov(_Descent):
    """Nesterov's method with the best constant parameters."""

    name, label = "nesterov", "Nesterov"
    summary = "Lessard's parameters over a grid of assumed κ; classification: β = 0.9, 0.99 × rates"
    recurrence = staticmethod(nesterov)  # type: ignore[assignment]
    betas, lookahead = BETAS, True

    def contraction(self, kappa: float) -> float:
        """Return `1 − 2/√(3κ + 1)`."""
        return 1 - 2 / math.sqrt(3 * kappa + 1)


class Standardised(GradientDescent):
    """Gradient descent after a `StandardScaler`, with an intercept."""

    name, label, informed = "standardise", "Standardise + GD", True
    summary = "columns centred and scaled, an intercept, then gradient descent"

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the standardised space."""
        return problem.space.standardised


class Whitened(GradientDescent):
    """Gradient descent on whitened features: `H = I`."""

    name, label, informed = "whiten", "Whiten + GD", True
    summary = "features times H^{-1/2} on their range, then gradient descent"

    def space(self, problem: AttackProblem) -> ProbeSpace:
        """Return the whitened space."""
        return problem.space.whitened


class LineSearch(AttackerBase):
    """Steepest descent with exact line search: the attacker of the paper's Fig. 1."""

    name, label = "line_search", "Exact line search"
    summary = "steepest descent with the exact step, the attacker of Fig. 1; nothing to choose"
    kinds: ClassVar[tuple[Kind, ...]] = ("regression",)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence, with Kantorovich's bound as the prediction from κ."""
        space = problem.space
        race = self.race(space, ["exact step"], budget, dense=False)
        run_line_search(space.spectrum, race, multiplied(space))
        kappa = space.spectrum.condition
        bound = {e: rate_steps((kappa - 1) / (kappa + 1), e) for e in budget.epsilons}
        return AttackRun(race.traces(), space, bound)
