"""Attackers with a product of two matrices: a stacked linear layer on the features, and fine-tuning of θ."""

from __future__ import annotations

import numpy as np

from condnum.probing.attackers.attacker import AttackerBase, AttackProblem, AttackRun
from condnum.probing.attackers.objectives import Array
from condnum.probing.attackers.race import AttackBudget, Race
from condnum.probing.attackers.space import ProbeSpace
from condnum.probing.attackers.update_rules import Adam, UpdateRule

#: Columns of the stacked layer.
WIDTH = 32

STACKED_RATES = tuple(10.0 ** (j / 2) for j in range(-8, 1))
FINE_TUNING_RATES = tuple(10.0 ** (j / 2) for j in range(-8, -2))


def descend_factored(space: ProbeSpace, first: Array, rule: UpdateRule, race: Race) -> None:
    """Train `W = UV` from `U = first`, `V = 0`: `∇_U L = (∇_W L)Vᵀ`, `∇_V L = Uᵀ∇_W L`."""
    B = len(race.choices)
    U = np.repeat(first[None], B, axis=0)
    V = np.zeros((B, first.shape[1], space.objective.outputs))
    step = 0
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            W = U @ V
            excess, G = space.objective.evaluate(W)
            excess = np.where(excess < 1e6, excess, np.nan)
            if not race.observe(step, excess, W.copy):
                return
            rule.step([U, V], [G @ V.transpose(0, 2, 1), U.transpose(0, 2, 1) @ G])
            step += 1


class StackedLayer(AttackerBase):
    """A linear layer stacked on the features: the probe re-parametrised as `W = UV`."""

    name, label = "stacked", "Stacked linear layer"
    summary = "W = UV with 32 columns between, Adam on both, learning rates half a decade apart"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Train both layers by Adam from a random orthogonal U and V = 0."""
        space = problem.space
        k = space.features.shape[1]
        generator = np.random.default_rng(budget.seed)
        first, _ = np.linalg.qr(generator.normal(size=(k, min(k, WIDTH))))
        race = self.race(space, [f"rate {r:.3g}" for r in STACKED_RATES], budget, open_ended=True)
        descend_factored(space, first, Adam(np.array(STACKED_RATES)), race)
        return AttackRun(race.traces(), space)


class FineTuning(AttackerBase):
    """Full fine-tuning: θ and the probe are trained together on the raw inputs."""

    name, label = "fine_tune", "Fine-tuning of θ"
    summary = "θ and the probe together, Adam, learning rates half a decade apart"

    def obstacle(self, problem: AttackProblem) -> str | None:
        """Return why it cannot run: without θ and raw inputs there is nothing to tune."""
        if problem.theta is None or problem.inputs is None:
            return "it needs a linear θ and the raw inputs; only features are known"
        return super().obstacle(problem)

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Train from θ as released and a zero probe; the optimum is that of the raw inputs."""
        assert problem.inputs is not None  # see obstacle
        assert problem.theta is not None
        space = problem.inputs
        race = self.race(space, [f"rate {r:.3g}" for r in FINE_TUNING_RATES], budget, open_ended=True)
        descend_factored(space, problem.theta, Adam(np.array(FINE_TUNING_RATES)), race)
        return AttackRun(race.traces(), space)
