"""Recurrences in the eigenbasis against plain loops on the data, and facts that are known by hand."""

import math

import numpy as np
import pytest

from condnum.probing import AttackBudget, attack_panel
from condnum.probing.quadratic import (
    assumed_minima,
    descent_contraction,
    descent_filter,
    gradient_descent,
    heavy_ball,
    nesterov,
    rate_steps,
    two_term_filters,
)
from condnum.probing.race import Race
from condnum.probing.space import ProbeSpace

STEPS = 25


@pytest.fixture
def space():
    """Forty rows of six features with κ ≈ 400, one of them a copy of another: rank 5."""
    generator = np.random.default_rng(7)
    X = generator.normal(size=(40, 6)) * [3.0, 2.0, 1.0, 0.5, 0.2, 1.0]
    X[:, 5] = X[:, 0]
    Y = np.c_[X[:, :5] @ [1.0, -1.0, 2.0, 3.0, 1.0], X[:, 2]] + generator.normal(size=(40, 2))
    return ProbeSpace(X, Y)


def excess(space, W):
    """Relative excess loss from the data, by SciPy-free least squares."""
    X, Y = space.features, space.targets
    best = np.linalg.lstsq(X, Y, rcond=None)[0]

    def loss(w):
        return ((X @ w - Y) ** 2).sum() / len(X)

    return (loss(W) - loss(best)) / (loss(np.zeros_like(best)) - loss(best))


BUDGET = AttackBudget(dense_steps=STEPS, epsilons=(1e-12,), reported_epsilon=1e-12)


def rates(top, mu, method):
    """Step, momentum and share of it in the look-ahead, as their authors write them."""
    if method is gradient_descent:
        return 2 / (top + mu), 0, 0
    if method is heavy_ball:
        roots = math.sqrt(top), math.sqrt(mu)
        return 4 / sum(roots) ** 2, ((roots[0] - roots[1]) / sum(roots)) ** 2, 0
    root = math.sqrt(3 * top / mu + 1)
    return 4 / (3 * top + mu), (root - 2) / (root + 2), 1


@pytest.mark.parametrize("recurrence", [gradient_descent, heavy_ball, nesterov])
def test_two_term_recurrences_are_the_plain_loops(space, recurrence):
    S, X, Y = space.spectrum, space.features, space.targets
    H, b = X.T @ X / len(X), X.T @ Y / len(X)
    for mu in assumed_minima(S.sigma):
        alpha, beta, ahead = rates(np.linalg.eigvalsh(H)[-1], mu, recurrence)
        w = before = np.zeros_like(b)
        values = [excess(space, w)]
        for _ in range(STEPS):
            at = w + ahead * beta * (w - before)
            w, before = w - alpha * (H @ at - b) + beta * (w - before), w
            values.append(excess(space, w))
        filters = two_term_filters([recurrence(S.sigma, mu)])
        found = Race(space, ["only"], BUDGET).follow(space, filters)
        np.testing.assert_allclose(found[0].excess, values, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("distinct", [1, 2, 4])
def test_conjugate_gradients_need_as_many_steps_as_distinct_eigenvalues(distinct):
    sigma = np.repeat(np.geomspace(1, 100, distinct), 3)
    generator = np.random.default_rng(0)
    basis = np.linalg.qr(generator.normal(size=(30, len(sigma))))[0]
    X = basis * np.sqrt(sigma)
    report = attack_panel(X, X @ generator.normal(size=len(sigma)), {"raw": None}, attackers=["cg"])
    assert report.steps["steps"].tolist()[-1] == distinct


def test_kappa_bounds_the_steps_of_gradient_descent(space):
    S = space.spectrum
    for epsilon in (0.1, 0.01, 0.001):
        budget = AttackBudget(dense_steps=5000, epsilons=(epsilon,), reported_epsilon=epsilon)
        filters = two_term_filters([gradient_descent(S.sigma, S.sigma[-1])])
        (found,) = Race(space, ["only"], budget).follow(space, filters)
        assert found.steps_to(epsilon) <= rate_steps(descent_contraction(S.modes.condition), epsilon)


def test_the_filter_of_gradient_descent_is_its_recurrence_and_exact_for_tiny_eigenvalues():
    sigma = np.geomspace(1, 1e-3, 5)
    filters = two_term_filters([gradient_descent(sigma, sigma[0])])  # the step 1/σ₁
    for step, q in zip(range(1, 9), [q for q, _ in zip(filters, range(9), strict=False)][1:], strict=True):
        np.testing.assert_allclose(descent_filter(sigma, step), q[0], rtol=1e-12, atol=1e-300)
    assert descent_filter(np.array([1e-17]), 10**17)[0] == pytest.approx(math.exp(-1))
