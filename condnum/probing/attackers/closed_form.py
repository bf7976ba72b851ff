"""The attacker that solves: ridge regression in closed form, or scikit-learn's logistic regression."""

from __future__ import annotations

import time
import warnings

import numpy as np

from condnum.probing.attackers.attacker import AttackerBase, AttackProblem, AttackRun
from condnum.probing.attackers.race import AttackBudget, Trace
from condnum.probing.attackers.space import ProbeSpace

#: Ridge relative to σ₁ of FᵀF/N.
RIDGES = (1e-14, 1e-10, 1e-6)

#: scikit-learn's C, the inverse strength of the penalty on features at unit mean square.
PENALTIES = (1e2, 1e5)


class ClosedForm(AttackerBase):
    """Ridge regression by one decomposition, or logistic regression by Newton's method."""

    name, label, informed = "closed_form", "Closed form / Newton", True
    summary = "ridge from one SVD; classification: scikit-learn's newton-cholesky, to its own stopping rule"

    def run(self, problem: AttackProblem, budget: AttackBudget) -> AttackRun:
        """Solve with each strength of the penalty."""
        space = problem.space
        started = time.perf_counter()
        traces = _ridge(space) if space.kind == "regression" else _logistic(space)
        return AttackRun(traces, space, seconds=(time.perf_counter() - started) / len(traces))


def _ridge(space: ProbeSpace) -> list[Trace]:
    """Return a step of each ridge: the solution itself."""
    U, s, right = np.linalg.svd(space.features, full_matrices=False)
    projected = U.T @ space.regression_targets
    traces = []
    for ridge in RIDGES:
        W = right.T @ ((s / (s**2 + ridge * s[0] ** 2))[:, None] * projected)
        traces.append(_trace(space, f"ridge {ridge:g}·σ₁", W[None], 1))
    return traces


def _logistic(space: ProbeSpace) -> list[Trace]:
    """Return what Newton's method gives for each penalty, after as many steps as it took."""
    from sklearn.linear_model import LogisticRegression

    traces = []
    for C in PENALTIES:
        model = LogisticRegression(C=C, solver="newton-cholesky", fit_intercept=False, max_iter=100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a singular Hessian falls back to L-BFGS; the loss tells
            model.fit(space.features, space.targets)
        W = model.coef_.T[None]
        traces.append(_trace(space, f"C = {C:g}", W, int(np.max(model.n_iter_))))
    return traces


def _trace(space: ProbeSpace, choice: str, W: np.ndarray, steps: int) -> Trace:
    """Return a trace of the start and the solution."""
    both = np.concatenate([np.zeros_like(W), W])
    excess, _ = space.objective.evaluate(both)
    at = np.array([0, steps])
    evaluated = np.stack([at, *space.evaluate(both)], axis=1)
    return Trace(choice, at, excess, False, evaluated)
