"""The eigenbasis recurrence against a plain loop over the data, and against theorems."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum import Immunizer, Task
from condnum.errors import InvalidInputError
from condnum.probing import linear_probe


def plain_probe(Z, Y, steps):
    """Norm ratios (Eq. 16) and relative excess losses by a pass over the rows a step."""
    Y = Y.reshape(len(Z), -1)
    optimum = np.linalg.pinv(Z, rcond=1e-10) @ Y
    w = np.zeros_like(optimum)
    best = np.sum((Z @ optimum - Y) ** 2)
    norms, losses = [], []
    for _ in range(steps + 1):
        residual = Z @ w - Y
        norms.append(np.sum((w - optimum) ** 2))
        losses.append(np.sum(residual**2) - best)
        gradient = Z.T @ residual
        curvature = np.sum((Z @ gradient) ** 2)
        if curvature > 0:
            w = w - np.sum(gradient**2) / curvature * gradient
    return np.array(norms) / norms[0], np.array(losses) / losses[0]


def problem(N=30, columns=8, outputs=1, rank=8, seed=0, spread=0.3):
    """X, y and θ; the columns of X shrink to `spread`, so that κ(H) is a few thousand."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(8, rank)))[0]
    X = rng.normal(size=(N, 8)) * np.geomspace(1, spread, 8) @ Q @ Q.T
    Y = rng.normal(size=(N, outputs))
    return X, (Y[:, 0] if outputs == 1 else Y), rng.normal(size=(8, columns))


PROBLEMS = {
    "full-rank": {},
    "rank-deficient": {"rank": 5},
    "wide": {"columns": 12},
    "few-rows": {"N": 5},
    "narrow-and-deficient": {"columns": 3, "rank": 2, "outputs": 2},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_plain_loop(name):
    X, Y, theta = problem(**PROBLEMS[name])
    norms, losses = plain_probe(X @ theta, Y, 200)
    task = Task.of_covariance(X.T @ X, X.T @ Y)
    curve = linear_probe(theta, task, steps=200)
    # The loop rounds w at eps·‖w‖ a step, κ times that in the flattest direction; ratios are ≤ 1.
    np.testing.assert_allclose(curve.norm_ratio, norms, rtol=0, atol=1e-8)
    np.testing.assert_allclose(curve.excess_loss, losses, rtol=0, atol=1e-8)
    assert (curve.norm_ratio[0], curve.excess_loss[0]) == (1, 1)  # exactly: figures start there
    some = linear_probe(theta, task, steps=200, record=[0, 7, 200])
    np.testing.assert_array_equal(some.norm_ratio, curve.norm_ratio[[0, 7, 200]])


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(2, 8), log_kappa=st.floats(0, 6))
def test_kantorovich_bounds_every_step_and_the_norm_never_grows(seed, k, log_kappa):
    rng = np.random.default_rng(seed)
    sigma = np.geomspace(1, 10**-log_kappa, k) * 10 ** rng.uniform(-3, 3)
    task = Task.of_covariance(np.diag(sigma), rng.normal(size=k) * sigma)
    curve = linear_probe(np.eye(k), task, steps=60)
    # Products of 60 factors; below 1e-25 the curve is round-off.
    loss, kappa = curve.excess_loss, float(curve.condition)
    rate = ((kappa - 1) / (kappa + 1)) ** 2
    assert (loss[1:] <= rate * loss[:-1] * (1 + 1e-9) + 1e-25).all()
    assert (np.diff(curve.norm_ratio) <= 1e-12).all()


def test_rows_in_place_of_a_covariance():
    X, Y, _ = problem(outputs=2)
    theta = np.random.default_rng(1).normal(size=(8, 6))
    found = linear_probe(theta, Task.of_covariance(X.T @ X, X.T @ Y), steps=50)
    own = linear_probe(torch.from_numpy(theta), Task.of(X, Y), steps=50)
    np.testing.assert_allclose(found.norm_ratio, own.norm_ratio, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found.excess_loss, own.excess_loss, rtol=1e-7, atol=1e-12)


def test_the_probe_of_labels_has_an_intercept_and_an_immunizer_is_an_extractor():
    """Steps with an intercept are those on centered rows; of two classes, either column tells the other."""
    X, Y, _ = problem()
    labels, immunizer = np.where(Y > 0, "yes", "no"), Immunizer().fit(X, X * np.arange(1, 9))
    found = linear_probe(immunizer, Task.of(X, labels), steps=20)
    centered = X - X.mean(axis=0)
    known = linear_probe(immunizer.theta_, Task.of(centered, np.sign(Y) + 0.5), steps=20)
    np.testing.assert_allclose(found.norm_ratio, known.norm_ratio, rtol=1e-6)
    of_numbers = linear_probe(immunizer, Task.of(X, np.sign(Y) + 0.5), steps=20)  # none, unless asked for
    assert not np.allclose(of_numbers.norm_ratio, known.norm_ratio, rtol=1e-2)
    asked = linear_probe(immunizer, Task.of(X, np.sign(Y) + 0.5).centered(), steps=20)
    np.testing.assert_allclose(asked.norm_ratio, known.norm_ratio, rtol=1e-6)


@settings(max_examples=40)
@given(powers=st.tuples(*[st.integers(-200, 200)] * 3))
def test_curves_do_not_see_the_units_of_theta_covariance_and_moment(powers):
    X, Y, theta = problem()
    given = theta, X.T @ X, X.T @ Y
    plain, scaled = (
        linear_probe(own, Task.of_covariance(K, moment), steps=20)
        for own, K, moment in (given, map(np.ldexp, given, powers))
    )
    np.testing.assert_allclose(scaled.norm_ratio, plain.norm_ratio, rtol=1e-12)
    assert scaled.stopped_at == plain.stopped_at


def test_stop_at_round_off_is_recorded_and_the_curve_is_flat_from_there():
    curve = linear_probe(np.eye(2), Task.of_covariance(np.diag([2.0, 1.0]), [2.0, 1.0]), steps=200)
    stop = int(curve.stopped_at)
    assert 6 <= stop < 200
    assert (curve.norm_ratio[stop:] == curve.norm_ratio[stop]).all()
    # ‖g‖ ≤ eps·σ₁·‖w*‖ bounds the error by eps·κ‖w*‖ = 2 eps‖w*‖
    assert curve.norm_ratio[stop] <= (2 * np.finfo(float).eps) ** 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"theta": np.eye(3)}, r"theta has shape \(3, 3\), but the task has 2 inputs"),
        ({"task": Task.of_covariance(np.eye(2), np.zeros(2))}, "targets without a linear part"),
        ({"task": Task.of(np.eye(2))}, "has no targets: there is nothing to learn"),
        ({"task": np.eye(2)}, r"must be a Task with targets, got ndarray; give Task.of\(X, y\)"),
        ({"theta": np.diag([0.0, 1.0])}, "the probe starts at its optimum"),
        ({"steps": 0}, "steps must be an integer ≥ 1, got 0"),
        ({"record": [3, 2]}, "non-empty increasing"),
        ({"record": [0, 6], "steps": 5}, "from 0 to 6, outside 0..5"),
    ],
)
def test_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        linear_probe(**{"theta": np.eye(2), "task": Task.of_covariance(np.eye(2), [1.0, 0.0])} | options)
