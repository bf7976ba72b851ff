"""Adam on the full loss, and mini-batch stochastic gradient descent."""

from __future__ import annotations

import numpy as np

from condnum.probing.attackers.attacker import AttackerBase, AttackProblem, AttackRun, zero_weights
from condnum.probing.attackers.first_order import descend
from condnum.probing.attackers.race import AttackBudget
from condnum.probing.attackers.update_rules import Adam

#: Learning rates of Adam for features of unit mean square: half a decade apart.
ADAM_RATES = tuple(10.0 ** (j / 2) for j in range(-8, 5))

#: Rates of SGD in units of 1/L of the whole data.
SGD_MULTIPLES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

#: Measurements of the full loss in one pass over the data; later ones are 2 % of the steps apart.
MEASUREMENTS, SPACING = 10, 50


class AdamAttacker(AttackerBase):
    """Full-batch Adam over a grid of learning rates."""

    name, label = "adam", "Adam"
    summary = "full batch, learning rates 1e-4 to 100, half a decade apart (features at unit mean square)"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Descend with all rates side by side."""
        space = problem.space
        words = [f"rate {rate:.3g}" for rate in ADAM_RATES]
        race = self.race(space, words, budget, open_ended=True)
        descend(space, Adam(np.array(ADAM_RATES)), race)
        return AttackRun(race.traces(), space)


class StochasticDescent(AttackerBase):
    """Mini-batch SGD without replacement, over rates × (constant, 1/√epoch)."""

    name, label = "sgd", "Mini-batch SGD"
    summary = "batches in a new order each epoch, rates around 1/L, constant or falling as 1/√epoch"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Take one batch a step, at most `steps` of them and `dense_steps` passes over the data."""
        space = problem.space
        grid = [(m, falls) for falls in (False, True) for m in SGD_MULTIPLES]
        words = [f"rate {m:g}/L, {'falling' if falls else 'constant'}" for m, falls in grid]
        race = self.race(space, words, budget, dense=False)
        race.edges = [m in (SGD_MULTIPLES[0], SGD_MULTIPLES[-1]) for m, _ in grid]
        rates = np.array([m for m, _ in grid]) / space.objective.smoothness
        falling = np.array([falls for _, falls in grid])
        N = space.objective.rows
        batches = max(1, N // budget.batch_size)
        generator = np.random.default_rng(budget.seed)
        race.last = min(race.last, batches * budget.dense_steps)
        W, step, epoch, due = zero_weights(space, len(grid)), 0, 0, 0
        every = max(1, batches // MEASUREMENTS)
        with np.errstate(over="ignore", invalid="ignore"):
            while True:
                epoch += 1
                eta = np.where(falling, rates / np.sqrt(epoch), rates)[:, None, None]
                for index in np.array_split(generator.permutation(N), batches):
                    if step >= due:
                        due = min(race.last, step + max(every, step // SPACING))
                        excess, _ = space.objective.evaluate(W)
                        excess = np.where(excess < 1e6, excess, np.nan)
                        W[np.isnan(excess)] = np.nan
                        if not race.observe(step, excess, W.copy):
                            return AttackRun(race.traces(), space, pass_share=1 / batches)
                    W -= eta * space.objective.batch_gradient(W, index)
                    step += 1
