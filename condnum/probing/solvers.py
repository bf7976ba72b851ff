"""Attackers that solve: conjugate gradients, L-BFGS, and the closed form or Newton's method."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from condnum.arrays import FloatArray
from condnum.probing.attackers import (
    AttackBudget,
    Attacker,
    AttackProblem,
    AttackRun,
    Race,
    Trace,
    zero_weights,
)
from condnum.probing.descents import gradient_contraction
from condnum.probing.objectives import ProbeSpace
from condnum.probing.recurrences import multiplied, rate_steps, run_conjugate_gradients

#: Pairs of vectors that L-BFGS keeps.
_MEMORIES = (10, 50)


def scipy_trace(space: ProbeSpace, method: str, race: Race, options: dict[str, float]) -> Trace:
    """Minimize the relative excess loss with SciPy from zero weights; a step is an iteration."""
    objective = space.objective
    shape = zero_weights(space, 1).shape
    scale = objective.start_loss - objective.optimum
    count, passes = 0, [0.0]

    def function(flat: FloatArray) -> tuple[float, FloatArray]:
        nonlocal count
        count += 1
        excess, gradient = objective.evaluate(flat.reshape(shape))
        return float(excess[0]), gradient.ravel() / scale

    def callback(intermediate_result: Any) -> None:
        x, value = intermediate_result.x, intermediate_result.fun
        passes.append(float(count))
        if not race.observe(len(passes) - 1, np.array([float(value)]), lambda: x.reshape(shape)):
            raise StopIteration

    start = np.zeros(shape)
    race.observe(0, np.array([1.0]), lambda: start)
    minimize(function, start.ravel(), jac=True, method=method, callback=callback, options=options)
    return replace(race.traces()[0], passes=np.array(passes))


class ConjugateGradients(Attacker):
    """Conjugate gradients; on the logistic loss the non-linear variant of Polak and Ribière."""

    name, label = "cg", "Conjugate gradients"
    summary = "linear CG; classification: SciPy's non-linear CG (a step may need several gradients)"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Run the recurrence, or SciPy's `CG`."""
        space = problem.space
        if space.kind == "classification":
            race = Race(space, ["Polak–Ribière"], budget)
            options = {"gtol": 0.0, "maxiter": budget.dense_steps}
            return AttackRun([scipy_trace(space, "CG", race, options)], space)
        race = Race(space, ["no parameters"], budget, dense=False)
        run_conjugate_gradients(space.spectrum, race, multiplied(space))
        contraction = gradient_contraction(math.sqrt(space.spectrum.condition))
        most = float(space.spectrum.rank)
        bound = {e: min(most, rate_steps(contraction, e, constant=4.0)) for e in budget.epsilons}
        return AttackRun(race.traces(), space, bound)


class LimitedMemoryBfgs(Attacker):
    """SciPy's L-BFGS-B without bounds."""

    name, label = "lbfgs", "L-BFGS"
    summary = "SciPy's L-BFGS-B with 10 and 50 pairs; a step is an iteration"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Minimize with each memory."""
        space, traces = problem.space, []
        for memory in _MEMORIES:
            race = Race(space, [f"{memory} pairs"], budget)
            options = {"maxcor": memory, "maxiter": budget.dense_steps, "ftol": 0.0, "gtol": 0.0}
            options["maxfun"] = 20 * budget.dense_steps
            traces.append(scipy_trace(space, "L-BFGS-B", race, options))
        return AttackRun(traces, space)


#: Ridge relative to σ₁ of FᵀF/N.
_RIDGES = (1e-14, 1e-10, 1e-6)

#: scikit-learn's C, the inverse strength of the penalty on features at unit mean square.
_PENALTIES = (1e2, 1e5)


class DirectSolution(Attacker):
    """Ridge regression by one decomposition, or logistic regression by Newton's method."""

    name, label, informed = "closed_form", "Closed form / Newton", True
    summary = "ridge from one SVD; classification: scikit-learn's newton-cholesky, to its own stopping rule"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Solve with each strength of the penalty."""
        space = problem.space
        solved = self._ridge(space) if space.kind == "regression" else self._logistic(space)
        traces = []
        for choice, W, steps in solved:
            both, at = np.stack([np.zeros_like(W), W]), np.array([0, steps])
            excess, _ = space.objective.evaluate(both)
            traces.append(Trace(choice, at, excess, False, np.stack([at, *space.evaluate(both)], axis=1)))
        return AttackRun(traces, space)

    @staticmethod
    def _ridge(space: ProbeSpace) -> Iterator[tuple[str, FloatArray, int]]:
        """Yield the solution of each ridge, all from one decomposition."""
        U, s, right = np.linalg.svd(space.features, full_matrices=False)
        projected = U.T @ space.regression_targets
        for ridge in _RIDGES:
            W = right.T @ ((s / (s**2 + ridge * s[0] ** 2))[:, None] * projected)
            yield f"ridge {ridge:g}·σ₁", W, 1

    @staticmethod
    def _logistic(space: ProbeSpace) -> Iterator[tuple[str, FloatArray, int]]:
        """Yield what Newton's method gives for each penalty, after as many steps as it took."""
        from sklearn.linear_model import LogisticRegression

        for C in _PENALTIES:
            model = LogisticRegression(C=C, solver="newton-cholesky", fit_intercept=False, max_iter=100)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a singular Hessian falls back to L-BFGS; the loss tells
                model.fit(space.features, space.targets)
            yield f"C = {C:g}", model.coef_.T, int(np.max(model.n_iter_))
