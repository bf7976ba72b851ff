"""The actual probe, its curve and its steps: against a plain loop over the data, theorems, and by hand."""

import math

import numpy as np
import pytest
import torch
from problems import PROBLEMS, columns, turned

from condnum import Immunizer, Task, linear_probe, probe_steps
from condnum.errors import InvalidInputError


def plain_probe(Z, Y, steps):
    """Norm ratios (Eq. 16) and relative excess losses by a pass over the rows a step."""
    optimum = np.linalg.pinv(Z, rcond=1e-10) @ Y
    w, norms, losses = np.zeros_like(optimum), [], []
    for _ in range(steps + 1):
        residual = Z @ w - Y
        norms.append(np.sum((w - optimum) ** 2))
        losses.append(np.sum(residual**2) - np.sum((Z @ optimum - Y) ** 2))
        gradient = Z.T @ residual
        curvature = np.sum((Z @ gradient) ** 2)
        w = w - (np.sum(gradient**2) / curvature if curvature > 0 else 0) * gradient
    return np.array(norms) / norms[0], np.array(losses) / losses[0]


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_curve_is_that_of_a_loop_over_centered_rows(name):
    X, y = PROBLEMS[name]
    theta, Y = turned(X.shape[1], 0.3)[:, : max(3, X.shape[1] - 2)], columns(y)
    norms, losses = plain_probe((X - X.mean(axis=0)) @ theta, Y - Y.mean(axis=0), 60)
    task = Task.of(X, y).centered()
    curve = linear_probe(torch.from_numpy(theta), task, steps=60)
    np.testing.assert_allclose(curve.norm_ratio, norms, rtol=0, atol=1e-8)  # both are ≤ 1
    np.testing.assert_allclose(curve.excess_loss, losses, rtol=0, atol=1e-8)
    assert (curve.norm_ratio[0], curve.excess_loss[0]) == (1, 1)  # exactly: figures start there
    some = linear_probe(theta, task, steps=60, record=[0, 7, 60])
    np.testing.assert_array_equal(some.norm_ratio, curve.norm_ratio[[0, 7, 60]])


def test_there_is_an_intercept_for_classes_and_none_for_numbers_unless_asked():
    X, labels = PROBLEMS["two classes"]
    immunizer = Immunizer().fit(X, X * np.arange(1, 6))
    Y, K = columns(labels)[:, :1], (X - X.mean(axis=0)).T @ (X - X.mean(axis=0))
    known = linear_probe(immunizer.theta_, Task.of_covariance(K, (X - X.mean(axis=0)).T @ Y), steps=20)
    for task in (Task.of(X, labels), Task.of(X, Y + 0.5).centered()):
        np.testing.assert_allclose(
            linear_probe(immunizer, task, steps=20).norm_ratio, known.norm_ratio, rtol=1e-6
        )
    plain, expected = linear_probe(None, Task.of(X, Y + 0.5), steps=20), plain_probe(X, Y + 0.5, 20)
    np.testing.assert_allclose(plain.norm_ratio, expected[0], atol=1e-8)


def test_the_stop_at_round_off_is_recorded_and_the_curve_is_flat_from_there():
    curve = linear_probe(np.eye(2), Task.of_covariance(np.diag([2.0, 1.0]), [2.0, 1.0]), steps=200)
    stop = int(curve.stopped_at)
    assert 6 <= stop < 200
    assert (curve.norm_ratio[stop:] == curve.norm_ratio[stop]).all()
    # ‖g‖ ≤ eps·σ₁·‖w*‖ bounds the error by eps·κ‖w*‖ = 2 eps‖w*‖
    assert curve.norm_ratio[stop] <= (2 * np.finfo(float).eps) ** 2


@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_steps_are_those_of_the_curve(name):
    X, y = PROBLEMS[name]
    theta, task = turned(X.shape[1]), Task.of(X, y).centered()
    found = probe_steps(theta, task, budget=3000)
    curve = linear_probe(theta, task, steps=3000, record=range(3001)).excess_loss
    assert found.exact == np.flatnonzero(curve <= 0.01)[0]


#: Two directions of one length, and the target on the first.
BOTH = Task.of_covariance(np.eye(2), [1.0, 0.0])


@pytest.mark.parametrize("kappa", [1, 10, 1e3, 1e6])
def test_kantorovich_bounds_every_step_whatever_the_units(kappa):
    sigma = np.geomspace(1, 1 / kappa, 5)
    K, moment = np.diag(sigma), np.random.default_rng(0).normal(size=5) * sigma
    curve = linear_probe(np.eye(5), Task.of_covariance(K, moment), steps=60)
    # Products of 60 factors; below 1e-25 the curve is round-off.
    loss, rate = curve.excess_loss, ((kappa - 1) / (kappa + 1)) ** 2
    assert (loss[1:] <= rate * loss[:-1] * (1 + 1e-9) + 1e-25).all()
    assert (np.diff(curve.norm_ratio) <= 1e-12).all()
    for power in (-200, 200):
        task = Task.of_covariance(np.ldexp(K, power), moment)
        scaled = linear_probe(np.ldexp(np.eye(5), power), task, steps=60)
        np.testing.assert_allclose(scaled.norm_ratio, curve.norm_ratio, rtol=1e-10)


def test_fixed_steps_by_hand():
    # σ = (1, 1/4), all of the target on the second: (3/4)^{2t} ≤ 0.01 first at t = 9.
    assert probe_steps(np.eye(2), Task.of_covariance(np.diag([4.0, 1.0]), [0.0, 1.0])).fixed == 9
    # 10⁹ steps are counted without taking them: (1 − 10⁻⁹)^{2t} ≤ 0.01.
    far = probe_steps(None, Task.of_covariance(np.diag([1e9, 1.0]), [0.0, 1.0]), budget=10)
    assert far.fixed == math.ceil(math.log(0.01) / (2 * math.log1p(-1e-9)))
    assert far.exact == 1  # one eigenvector: one step
    # More steps than are counted differ from a loss out of reach.
    task = Task.of_covariance(np.eye(2), [1.0, 1.0])
    slow, singular = (probe_steps(np.diag([1.0, small]), task) for small in (1e-10, 0.0))
    assert (slow.fixed, slow.fit) == (np.inf, pytest.approx(1))
    assert str(slow).startswith("takes more than 2⁵⁰ steps")
    assert (singular.fixed, singular.fit) == (np.inf, pytest.approx(0.5))
    assert str(singular).startswith("never gets there")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probe_steps(np.eye(3), BOTH), r"theta has shape \(3, 3\), but the task has 2 inputs"),
        (lambda: linear_probe(None, Task.of_covariance(np.eye(2), np.zeros(2))), "without a linear part"),
        (lambda: linear_probe(None, Task.of(np.eye(2))), "has no targets: there is nothing to learn"),
        (lambda: probe_steps(None, np.eye(2)), r"must be a Task with targets, got ndarray"),
        (lambda: linear_probe(np.diag([0.0, 1.0]), BOTH), "the probe starts at its optimum"),
        (lambda: linear_probe(None, BOTH, steps=0), "steps must be an integer ≥ 1, got 0"),
        (lambda: linear_probe(None, BOTH, record=[3, 2]), "non-empty increasing"),
        (lambda: probe_steps(None, BOTH, epsilon=1), "epsilon must lie between 0 and 1"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()
