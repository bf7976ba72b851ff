"""The eigenbasis recurrence against a plain loop over the data, and against theorems."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError
from condnum.probing import linear_probe, log_spaced_steps


def plain_probe(Z, Y, steps, start=None):
    """Gradient descent with exact line search as one would write it first: a pass over the rows a step.

    Returns the norm ratios (Eq. 16) and the relative excess losses at every step.
    """
    Y = Y.reshape(len(Z), -1)
    w = np.zeros((Z.shape[1], Y.shape[1])) if start is None else start.reshape(Z.shape[1], -1)
    pseudo = np.linalg.pinv(Z, rcond=1e-10)
    optimum = pseudo @ Y + (w - pseudo @ (Z @ w))
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


def problem(N=30, D=8, columns=8, outputs=1, rank=None, seed=0, spread=0.3):
    """X, y and θ; the columns of X shrink to `spread`, so that κ(H) is a few thousand."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)) * np.geomspace(1, spread, D)
    if rank is not None:
        Q = np.linalg.qr(rng.normal(size=(D, rank)))[0]
        X = X @ Q @ Q.T
    Y = rng.normal(size=(N, outputs))
    return X, (Y[:, 0] if outputs == 1 else Y), rng.normal(size=(D, columns))


PROBLEMS = {
    "full-rank": {},
    "rank-deficient": {"rank": 5},
    "narrow": {"columns": 3},
    "wide": {"columns": 12},
    "multi-output": {"outputs": 3},
    "few-rows": {"N": 5},
    "narrow-and-deficient": {"columns": 3, "rank": 2, "outputs": 2},
}


class TestAgainstThePlainLoop:
    @pytest.mark.parametrize("name", PROBLEMS)
    @pytest.mark.parametrize("started", [False, True], ids=["from-0", "from-w0"])
    def test_norm_ratio_and_loss(self, name, started):
        X, Y, theta = problem(**PROBLEMS[name])
        start = None
        if started:
            shape = (theta.shape[1],) if Y.ndim == 1 else (theta.shape[1], Y.shape[1])
            start = np.random.default_rng(9).normal(size=shape)
        norms, losses = plain_probe(X @ theta, Y, 200, start)
        curve = linear_probe(theta, X.T @ X, X.T @ Y, steps=200, start=start)
        np.testing.assert_array_equal(curve.steps, np.arange(201))
        # The loop rounds w at eps·‖w‖ a step, κ times that in the flattest direction; ratios are ≤ 1.
        np.testing.assert_allclose(curve.norm_ratio, norms, rtol=0, atol=1e-8)
        np.testing.assert_allclose(curve.excess_loss, losses, rtol=0, atol=1e-8)
        assert (curve.norm_ratio[0], curve.excess_loss[0]) == (1, 1)  # exactly: figures start there

    def test_the_start_outside_the_row_space_is_kept(self):
        # w* shares the start's null-space part, so the ratio falls to 0 all the same.
        X, Y, theta = problem(rank=3, spread=1.0)
        start = np.random.default_rng(1).normal(size=8)
        curve = linear_probe(theta, X.T @ X, X.T @ Y, steps=2000, start=start)
        assert curve.norm_ratio[-1] < 1e-12


class TestByHand:
    def test_two_directions(self):
        # H = diag(2, 1), w* = (1, 1), e = −(1, 1): g = −(2, 1), α = 5/9, e ← −(1 − 10/9, 1 − 5/9).
        curve = linear_probe(np.eye(2), np.diag([2.0, 1.0]), [2.0, 1.0], steps=1)
        assert curve.norm_ratio[1] == pytest.approx((1 / 81 + 16 / 81) / 2, rel=1e-13)
        assert curve.excess_loss[1] == pytest.approx((2 / 81 + 16 / 81) / 3, rel=1e-13)
        assert float(curve.condition) == pytest.approx(2)

    def test_the_worst_start_contracts_at_the_kantorovich_rate(self):
        # e_i ∝ 1/σ_i: each step contracts the loss by exactly ((κ − 1)/(κ + 1))².
        sigma = np.array([10.0, 1.0])
        curve = linear_probe(np.eye(2), np.diag(sigma), sigma * (1 / sigma), steps=30)
        rate = (9 / 11) ** 2
        assert float(curve.worst_contraction) == pytest.approx(rate, rel=1e-13)
        np.testing.assert_allclose(curve.excess_loss, rate ** np.arange(31), rtol=1e-11)

    def test_whitening_solves_in_one_step(self):
        X, Y, _ = problem()
        values, vectors = np.linalg.eigh(X.T @ X)
        curve = linear_probe(vectors / np.sqrt(values), X.T @ X, X.T @ Y, steps=2)
        assert curve.norm_ratio[1] < 1e-25


class TestTheorem:
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 2**32 - 1),
        k=st.integers(2, 8),
        log_kappa=st.floats(0, 6),
    )
    def test_kantorovich_bounds_every_step_and_the_norm_never_grows(self, seed, k, log_kappa):
        rng = np.random.default_rng(seed)
        sigma = np.geomspace(1, 10**-log_kappa, k) * 10 ** rng.uniform(-3, 3)
        curve = linear_probe(np.eye(k), np.diag(sigma), rng.normal(size=k) * sigma, steps=60)
        # Products of 60 factors; below 1e-25 the curve is round-off.
        loss, rate = curve.excess_loss, float(curve.worst_contraction)
        assert (loss[1:] <= rate * loss[:-1] * (1 + 1e-9) + 1e-25).all()
        assert (np.diff(curve.norm_ratio) <= 1e-12).all()
        assert (np.diff(loss) <= 1e-12).all()


class TestBatch:
    def test_equals_its_members(self):
        X, Y, _ = problem(rank=6)
        theta = np.random.default_rng(2).normal(size=(2, 3, 8, 5))
        batch = linear_probe(theta, X.T @ X, X.T @ Y, steps=100)
        assert batch.norm_ratio.shape == batch.excess_loss.shape == (2, 3, 101)
        assert batch.stopped_at.shape == batch.condition.shape == batch.rank.shape == (2, 3)
        for index in np.ndindex(2, 3):
            single = linear_probe(theta[index], X.T @ X, X.T @ Y, steps=100)
            np.testing.assert_allclose(batch.norm_ratio[index], single.norm_ratio, rtol=1e-9, atol=1e-15)
            np.testing.assert_allclose(batch.excess_loss[index], single.excess_loss, rtol=1e-9, atol=1e-15)
            assert batch.condition[index] == pytest.approx(float(single.condition), rel=1e-12)

    def test_covariances_and_moments_broadcast(self):
        problems = [problem(seed=seed) for seed in (3, 4)]
        K = np.stack([X.T @ X for X, _, _ in problems])
        b = np.stack([(X.T @ Y)[:, None] for X, Y, _ in problems])
        theta = problems[0][2]
        batch = linear_probe(theta, K, b, steps=30)
        for index in range(2):
            single = linear_probe(theta, K[index], b[index], steps=30)
            np.testing.assert_allclose(batch.norm_ratio[index], single.norm_ratio, rtol=1e-9)


class TestStopping:
    def test_stop_at_round_off_is_recorded_and_the_curve_is_flat_from_there(self):
        curve = linear_probe(np.eye(2), np.diag([2.0, 1.0]), [2.0, 1.0], steps=200)
        stop = int(curve.stopped_at)
        assert 5 < stop < 200
        assert (curve.norm_ratio[stop:] == curve.norm_ratio[stop]).all()
        assert curve.norm_ratio[stop - 1] > curve.norm_ratio[stop]
        # ‖g‖ ≤ eps·σ₁·‖w*‖ bounds the error by eps·κ‖w*‖ = 2 eps‖w*‖.
        assert curve.norm_ratio[stop] <= (2 * np.finfo(float).eps) ** 2

    def test_a_start_within_round_off_of_the_optimum_stops_at_once(self):
        # ‖g‖ = 2 eps against eps·σ₁·‖w*‖ = 2√2 eps.
        start = [1.0, 1.0 + 2 * np.finfo(float).eps]
        curve = linear_probe(np.eye(2), np.diag([2.0, 1.0]), [2.0, 1.0], steps=5, start=start)
        assert int(curve.stopped_at) == 0
        np.testing.assert_array_equal(curve.norm_ratio, np.ones(6))


class TestRecord:
    def test_chosen_steps(self):
        X, Y, theta = problem()
        every = linear_probe(theta, X.T @ X, X.T @ Y, steps=50)
        some = linear_probe(theta, X.T @ X, X.T @ Y, steps=50, record=[0, 7, 50])
        np.testing.assert_array_equal(some.steps, [0, 7, 50])
        np.testing.assert_array_equal(some.norm_ratio, every.norm_ratio[[0, 7, 50]])

    @pytest.mark.parametrize(("steps", "count"), [(1, 5), (10, 3), (20_000, 400), (7, 100)])
    def test_log_spaced_steps(self, steps, count):
        recorded = log_spaced_steps(steps, count)
        assert (recorded[0], recorded[-1]) == (0, steps)
        assert (np.diff(recorded) > 0).all()
        assert len(recorded) <= count + 1

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            ([], "non-empty increasing"),
            ([3, 3], "non-empty increasing"),
            ([3, 2], "non-empty increasing"),
            ([0.5, 1.5], "integer steps"),
            ([[0, 1]], "non-empty increasing"),
            ([-1, 2], "from -1 to 2, outside 0..5"),
            ([0, 6], "from 0 to 6, outside 0..5"),
        ],
        ids=str,
    )
    def test_refused(self, record, message):
        with pytest.raises(InvalidInputError, match=message):
            linear_probe(np.eye(2), np.eye(2), [1.0, 2.0], steps=5, record=record)


class TestErrors:
    @pytest.mark.parametrize(
        ("theta", "K", "b", "message"),
        [
            (np.eye(3), np.eye(2), np.ones(2), r"theta \(3, 3\), covariance \(2, 2\)"),
            (np.eye(2), np.eye(2), np.ones(3), "do not fit"),
            (np.eye(2), np.ones((2, 3)), np.ones(2), "do not fit"),
            (np.ones(2), np.eye(2), np.ones(2), "theta must have at least 2"),
            (np.eye(2), np.eye(2), [1.0, np.nan], "moment holds 1 non-finite"),
        ],
        ids=["covariance", "moment", "not-square", "vector", "nan"],
    )
    def test_shapes(self, theta, K, b, message):
        with pytest.raises(InvalidInputError, match=message):
            linear_probe(theta, K, b)

    @pytest.mark.parametrize("steps", [0, -1, True])
    def test_steps(self, steps):
        with pytest.raises(InvalidInputError, match=f"steps must be a positive integer, got {steps}"):
            linear_probe(np.eye(2), np.eye(2), np.ones(2), steps=steps)

    @pytest.mark.parametrize(
        ("K", "b", "start"),
        [(np.eye(2), np.zeros(2), None), (np.eye(2), np.ones(2), np.ones(2))],
        ids=["no-signal", "at-optimum"],
    )
    def test_nothing_to_converge_to(self, K, b, start):
        with pytest.raises(InvalidInputError, match="starts at its optimum"):
            linear_probe(np.eye(2), K, b, start=start)
