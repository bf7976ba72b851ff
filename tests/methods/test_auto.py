"""Algorithm 1 that tunes itself: what it promises, and that its steps are steps of Algorithm 1."""

import math

import numpy as np
import pytest
import torch
from covariances import covariance_of
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum import NAMED_SETTINGS, DescentSettings, immunize, relative_immunization_ratio
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods.auto import MARGIN, _Auto, _scaled
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.steps import ill_step, well_step

AUTO = DescentSettings(auto=True, steps=20_000)


def pair(seed, dimension, kappas=(1e3, 50.0), ranks=(None, None)):
    """Two covariances of uneven scale as a problem without loss."""
    rng = np.random.default_rng(seed)
    return ImmunizationProblem.from_covariances(
        *(
            covariance_of(rng, dimension, rank or dimension, kappa, 10 ** rng.uniform(-2, 3))
            for kappa, rank in zip(kappas, ranks, strict=True)
        )
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 24), st.floats(0.5, 5), st.floats(0.5, 5))
def test_full_rank_pairs_are_immunized_up_to_their_ceiling(seed, dimension, pretrain, harmful):
    problem = pair(seed, dimension, (10**pretrain, 10**harmful))
    result = immunize(problem, "ours", seed=seed % 3)
    assert result.stop_reason == "settled"
    if result.ceiling > 1.1:
        assert result.verdict.success, result.explanation
        assert result.verdict.rir > 0.6 * result.ceiling
    measured = relative_immunization_ratio(
        result.theta, problem.pretrain.covariance, problem.harmful.covariance
    )
    assert measured.rir == pytest.approx(result.verdict.rir)
    assert measured.pretrain_ratio <= 1 - MARGIN / 2


def test_each_step_is_a_step_of_algorithm_1():
    problem = pair(3, 9)
    run = _Auto(problem, AUTO, 0, None)
    theta = run.theta
    for task, factors_of, step, part in (
        (problem.pretrain, run._well_factors, well_step, "well"),
        (problem.harmful, lambda s: run._ill_factors(s, 0.25), ill_step, "ill"),
    ):
        _, s, rows = torch.linalg.svd(task.factor @ theta, full_matrices=False)
        moved = _scaled(theta, rows, factors_of(s.square().numpy()))
        by_hand = step(theta, task.covariance, run.weights[part])
        torch.testing.assert_close(moved, by_hand, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [(6, 9), (9, 6), (10, 4), (7, 7)], ids=str)
def test_rank_deficient_pairs(ranks):
    result = immunize(pair(1, 10, ranks=ranks), "ours")
    assert result.verdict.success, result.explanation
    assert ("no ceiling" in result.explanation) == math.isinf(result.ceiling)


def test_the_loss_stays_at_its_minimum_and_omega_attains_it():
    rng = np.random.default_rng(0)
    X_P, X_H = rng.standard_normal((2, 60, 5)) @ np.diag([5.0, 2, 1, 0.5, 0.1])
    for loss, y in (("mse", X_P @ np.ones(5) + rng.standard_normal(60)), ("bce", (X_P[:, 2] > 0) * 1.0)):
        noisy = y if loss == "mse" else np.where(rng.random(60) < 0.2, 1 - y, y)
        problem = ImmunizationProblem.from_data(X_P, noisy, X_H[:, ::-1].copy(), loss=loss)
        result = immunize(problem, "ours")
        loss, beta = problem.pretrain.supervised, result.theta @ result.omega
        value, gradient = loss.value(beta), loss.derivative(beta)
        assert float(gradient.abs().max()) < 1e-4
        assert result.history["loss"] == pytest.approx(float(value), rel=1e-6)
        assert result.verdict.loss_gap == pytest.approx(0, abs=1e-9)


def test_it_says_what_cannot_be():
    K = covariance_of(np.random.default_rng(0), 6, 6, 100.0)
    same = immunize(ImmunizationProblem.from_covariances(K, 3 * K), "ours")
    assert not same.verdict.success
    assert "NOT met" in same.explanation
    assert "no extractor can immunize this pair" in same.explanation
    line = immunize(ImmunizationProblem.from_covariances(np.eye(3), np.ones((3, 3))), "ours")
    assert "rank 1" in line.explanation


def test_a_budget_is_kept_and_said():
    result = immunize(pair(4, 12), "ours", steps=7)
    assert (result.steps, result.stop_reason, result.converged) == (7, "steps", False)
    assert "budget of 7 steps" in result.explanation
    assert result.settings.auto


def test_recorded_and_cancelled():
    seen = []
    cut = immunize(pair(5, 8), "ours", callback=lambda p: seen.append(p.step) or p.step >= 10)
    assert cut.stop_reason == "cancelled"
    assert seen[-1] == cut.steps == cut.history["step"][-1]
    assert (cut.history["eta_lambda_well"][1:] > 0).all()


def test_settings_by_name_and_what_auto_refuses():
    problem = pair(6, 5)
    named = immunize(problem, "ours", settings="fixed", steps=20)
    torch.testing.assert_close(
        named.theta, immunize(problem, "ours", settings=NAMED_SETTINGS["fixed"], steps=20).theta
    )
    assert not immunize(problem, "ours", steps=5, learning_rate=0.1).settings.auto
    with pytest.raises(UnknownNameError, match=r"unknown settings 'mnits'; did you mean 'mnist'"):
        immunize(problem, "ours", settings="mnits")
    with pytest.raises(InvalidInputError, match="auto=True chooses ratio by itself"):
        DescentSettings(auto=True, ratio=2.0)
    with pytest.raises(InvalidInputError, match="auto=True is for method 'ours'"):
        immunize(problem, "r_ill_only", auto=True)
