"""Algorithm 1 that tunes itself: what it promises, and that its steps are steps of Algorithm 1."""

import math
import re

import numpy as np
import pytest
import torch
from covariances import covariance_of, orthogonal
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from condnum import PRESETS, DescentSettings, immunize, pareto_immunizer, relative_immunization_ratio
from condnum.errors import RankError, UnknownNameError
from condnum.methods import SelfTunedSettings
from condnum.methods.algorithm1 import Ours
from condnum.methods.auto import MARGIN, SelfTuned, _stretched
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.steps import ill_step, well_step, well_step_bound

STRUCTURES = ("dense", "diagonal", "blocks", "one-hot", "low-rank", "projector", "tiny-column")


def pair(seed, dimension, kappas=(1e3, 50.0), ranks=(None, None)):
    """Two covariances of uneven scale as a problem without loss."""
    rng = np.random.default_rng(seed)
    return ImmunizationProblem.from_covariances(
        *(
            covariance_of(rng, dimension, rank or dimension, kappa, 10 ** rng.uniform(-2, 3))
            for kappa, rank in zip(kappas, ranks, strict=True)
        )
    )


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 24), st.floats(0.5, 5), st.floats(0.5, 5))
def test_full_rank_pairs_are_immunized_up_to_their_ceiling(seed, dimension, pretrain, harmful):
    problem = pair(seed, dimension, (10**pretrain, 10**harmful))
    result = immunize(problem, "ours", seed=seed % 3)
    assert result.stop_reason == "settled"
    if result.ceiling > 1.1:
        assert result.verdict.success, result.explanation
        assert result.verdict.rir > 0.6 * result.ceiling
    K = problem.pretrain.covariance, problem.harmful.covariance
    found = relative_immunization_ratio(result.theta, *K)
    assert found.pretrain_ratio <= 1 - MARGIN / 2
    # The explanation describes the θ that is returned.
    said = [float(x) for x in re.findall(r"(?:= |after )(inf|[\d.]*\d(?:e[+-]\d+)?)", result.explanation)]
    measured = [found.harmful_ratio, found.pretrain_ratio, found.rir]
    measured += [found.pretrain_after.value, found.harmful_after.value]
    assert said[:5] == pytest.approx(measured, rel=1e-3)
    assert result.verdict.success is found.success
    assert said[5] <= result.steps


def structured(rng, structure, dimension):
    """A covariance of a given structure, of any scale up to 1e±100."""
    spread = 10 ** rng.uniform(-rng.uniform(0.1, 11), 0, dimension)
    rank = int(rng.integers(1, dimension + 1))
    K = covariance_of(rng, dimension, rank if structure == "low-rank" else dimension, 1 / spread.min())
    if structure == "diagonal":
        K = np.diag(spread)
    elif structure == "blocks":
        block = rng.integers(min(3, dimension), size=dimension)
        K = K * (block == block[:, None]) * spread[block][:, None]
    elif structure == "one-hot":
        K = np.diag(np.bincount(rng.integers(rank, size=12), minlength=dimension).astype(float))
    elif structure == "projector":
        K = np.diag((np.arange(dimension) < rank) * 1.0)
    elif structure == "tiny-column":
        K[:, 0] *= spread.min() ** 0.5
        K[0] *= spread.min() ** 0.5
    order = rng.permutation(dimension)
    return 10 ** rng.uniform(-100, 100) * (K + K.T)[np.ix_(order, order)]


def is_missed(K_P, K_H, seed):
    """Tell whether `ours` misses Definition 3.1 where the closed form meets it."""
    try:
        front = pareto_immunizer(K_P / K_P.max(), K_H / K_H.max())
    except RankError:  # tasks that share no direction
        return False
    found = immunize(ImmunizationProblem.from_covariances(K_P, K_H), seed=seed, record_every=0).theta
    met, also = (relative_immunization_ratio(theta, K_P, K_H).success for theta in (front, found))
    return met and not also


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 9), st.sampled_from(STRUCTURES), st.sampled_from(STRUCTURES))
def test_no_pair_that_the_closed_form_meets_is_missed(seed, dimension, pretrain, harmful):
    rng = np.random.default_rng(seed)
    K = structured(rng, pretrain, dimension), structured(rng, harmful, dimension)
    assert not is_missed(*K, seed % 5)


def wide(seed):
    """Two dimensions, κ from 1e8 to 1e11."""
    rng = np.random.default_rng(seed)
    return [covariance_of(rng, 2, 2, 10 ** rng.uniform(8, 11)) for _ in range(2)]


def nearly_the_same(seed):
    """Two covariances whose ceiling is between 1 and 1.001."""
    rng = np.random.default_rng(seed)
    K, A = covariance_of(rng, 6, 6, 300.0), rng.normal(size=(6, 6))
    return K, K + 1e-7 * (A + A.T)


def weak_own_direction(seed):
    """One direction is the harmful task's own, with little of its energy."""
    rng = np.random.default_rng(seed)
    Q, R = orthogonal(rng, 6), orthogonal(rng, 5)
    shared, own = Q[:, :5], Q[:, 5]
    K_P = shared * np.geomspace(1, 1 / 3, 5) @ shared.T
    return K_P, shared @ (R * np.geomspace(1, 0.1, 5) @ R.T) @ shared.T + 1e-6 * np.outer(own, own)


@pytest.mark.parametrize(
    "pair_of",
    [lambda seed: (np.diag([1.0, 0.0]), np.diag([1.0, 0.01])), wide, nearly_the_same, weak_own_direction],
    ids=["one-direction", "wide", "nearly-the-same", "weak-own-direction"],
)
def test_pairs_that_were_missed(pair_of):
    assert not any(is_missed(*pair_of(seed), seed) for seed in range(20))


def test_each_step_is_a_step_of_algorithm_1():
    problem = pair(3, 9)
    run = SelfTuned(problem, Ours(), SelfTunedSettings(), 0)
    theta = run.theta
    for task, factors_of, step, part, options in (
        (problem.pretrain, run._landing_factors, well_step, "well", {}),
        # What is near σ₁ counts as equal to it, here what is within a factor e.
        (problem.pretrain, run._levelling_factors, well_step, "well", {"rtol": 1 - 1 / math.e}),
        (problem.harmful, lambda s: run._ill_factors(s, 0.25), ill_step, "ill", {}),
    ):
        _, s, rows = torch.linalg.svd(task.factor @ theta, full_matrices=False)
        moved = _stretched(theta, rows, factors_of(s.square().numpy()))
        by_hand = step(theta, task.covariance, run.weights[part], **options)
        torch.testing.assert_close(moved, by_hand, rtol=1e-9, atol=1e-12)


@settings(max_examples=200)
@given(st.lists(st.floats(-16, 0), min_size=2, max_size=20), st.integers(0, 5), st.floats(-6, 0))
def test_steps_of_r_well(logs, null, narrow):
    """Landing takes the first term of the corrected bound, at most; levelling never raises κ."""
    sigma = 10.0 ** (np.sort(logs)[::-1] * 10**narrow)
    assume(sigma[0] > sigma[1] * (1 + 1e-9))
    run = SelfTuned(pair(0, len(sigma) + null), Ours(), SelfTunedSettings(), 0)
    levelled = sigma * run._levelling_factors(sigma) ** 2
    assert levelled.max() / levelled.min() <= sigma[0] / sigma[-1]
    landed, p = sigma * run._landing_factors(sigma) ** 2, len(sigma) + null
    first = (1 - math.sqrt(sigma[-1] / sigma[0])) / (2 * (1 - 1 / p) * sigma[0])
    assert run.weights["well"] <= first * (1 + 1e-12)
    if sigma[-1] > 1e-6 * sigma[0]:
        assert landed[0] == pytest.approx(sigma[-1])
    if run.weights["well"] <= well_step_bound(sigma, dimension=p):  # the whole bound
        assert landed.max() / landed.min() <= sigma[0] / sigma[-1] * (1 + 1e-12)


@pytest.mark.parametrize("ranks", [(6, 9), (9, 6), (10, 4), (7, 7)], ids=str)
def test_rank_deficient_pairs(ranks):
    result = immunize(pair(1, 10, ranks=ranks), "ours")
    assert result.verdict.success, result.explanation
    assert ("no theoretical limit" in result.explanation) == math.isinf(result.ceiling)


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
    assert result.settings == SelfTunedSettings(steps=7)


def test_recorded_and_cancelled():
    seen = []
    cut = immunize(pair(5, 8), "ours", callback=lambda p: seen.append(p.step) or p.step >= 10)
    assert cut.stop_reason == "cancelled"
    assert seen[-1] == cut.steps == cut.history["step"][-1]
    assert (cut.history["eta_lambda_well"][1:] > 0).all()


def test_settings_by_name_and_what_ran():
    problem = pair(6, 5)
    named, same = (immunize(problem, settings=given, steps=20) for given in ("fixed", PRESETS["fixed"]))
    assert torch.equal(named.theta, same.theta)
    assert immunize(problem, "ours", steps=5, learning_rate=0.1).settings == DescentSettings(steps=5)
    with pytest.raises(UnknownNameError, match=r"unknown settings 'mnits'; did you mean 'mnist'"):
        immunize(problem, "ours", settings="mnits")
    result = immunize(problem, "ours")
    assert result.part_weights["supervised"] == 0
    assert "in turn, none on the loss" in result.settings.describe()
    steps = re.search(r"of (\d+) steps, (\d+) on R_well alone.* and (\d+) on R_ill", result.explanation)
    assert result.steps == int(steps[1]) == int(steps[2]) + int(steps[3])
