"""Conjugate gradients and L-BFGS: attackers whose search directions adapt to the spectrum."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize

from condnum.probing.attackers.attacker import AttackerBase, AttackProblem, AttackRun
from condnum.probing.attackers.first_order import multiplied
from condnum.probing.attackers.objectives import Array
from condnum.probing.attackers.quadratic import rate_steps, run_conjugate_gradients
from condnum.probing.attackers.race import AttackBudget, Race, Trace
from condnum.probing.attackers.space import ProbeSpace

#: Pairs of vectors that L-BFGS keeps.
MEMORIES = (10, 50)


def scipy_trace(space: ProbeSpace, method: str, choice: str, race: Race, options: dict[str, float]) -> Trace:
    """Minimise the relative excess loss with SciPy from zero weights; a step is an iteration."""
    objective = space.objective
    shape = (1, space.features.shape[1], objective.outputs)
    scale = objective.start_loss - objective.optimum
    count, passes = 0, [0.0]

    def function(flat: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        excess, gradient = objective.evaluate(flat.reshape(shape))
        return float(excess[0]), gradient.ravel() / scale

    step = 0

    def callback(intermediate_result: object) -> None:
        nonlocal step
        step += 1
        passes.append(float(count))
        x, value = intermediate_result.x, intermediate_result.fun  # type: ignore[attr-defined]
        if not race.observe(step, np.array([float(value)]), lambda: x.reshape(shape)):
            raise StopIteration

    start = np.zeros(math.prod(shape))
    race.observe(0, np.array([1.0]), lambda: start.reshape(shape))
    minimize(function, start, jac=True, method=method, callback=callback, options=options)
    (trace,) = race.traces()
    return Trace(choice, trace.steps, trace.excess, False, trace.evaluated, np.array(passes))


class ConjugateGradients(AttackerBase):
    """Conjugate gradients; on the logistic loss the non-linear variant of Polak and Ribière."""

    name, label = "cg", "Conjugate gradients"
    summary = "linear CG; classification: SciPy's non-linear CG (a step may need several gradients)"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence, or SciPy's `CG`."""
        space = problem.space
        if space.kind == "classification":
            race = self.race(space, ["Polak–Ribière"], budget)
            options = {"gtol": 0.0, "maxiter": budget.dense_steps}
            return AttackRun([scipy_trace(space, "CG", race.choices[0], race, options)], space)
        race = self.race(space, ["no parameters"], budget, dense=False)
        run_conjugate_gradients(space.spectrum, race, multiplied(space))
        root = math.sqrt(space.spectrum.condition)
        bound = {e: rate_steps((root - 1) / (root + 1), e, constant=4.0) for e in budget.epsilons}
        most = float(space.spectrum.rank)
        return AttackRun(race.traces(), space, {e: min(most, steps) for e, steps in bound.items()})


class LimitedMemoryBfgs(AttackerBase):
    """SciPy's L-BFGS-B without bounds."""

    name, label = "lbfgs", "L-BFGS"
    summary = "SciPy's L-BFGS-B with 10 and 50 pairs; a step is an iteration"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Minimise with each memory."""
        space, traces = problem.space, []
        for memory in MEMORIES:
            race = self.race(space, [f"{memory} pairs"], budget)
            options = {"maxcor": memory, "maxiter": budget.dense_steps, "ftol": 0.0, "gtol": 0.0}
            options["maxfun"] = 20 * budget.dense_steps
            traces.append(scipy_trace(space, "L-BFGS-B", race.choices[0], race, options))
        return AttackRun(traces, space)
