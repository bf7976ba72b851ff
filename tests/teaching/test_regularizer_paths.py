"""Many steps of one regularizer, R_ill against κ, and both terms of Algorithm 1."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.regularizer_paths import (
    joint_step,
    joint_steps,
    largest_safe_step,
    regularizer_path,
    turned_covariance,
    value_plane,
    values,
)
from condnum.lessons.regularizers import bent_spectrum, kappas, next_spectrum
from condnum.methods.algorithm1 import ill_direction, well_direction
from condnum.methods.problem import LinearTask
from condnum.theory.regularizers import r_ill, r_well
from condnum.theory.spectra import hessian
from condnum.theory.steps import ill_step_bound, well_step_bound


@settings(max_examples=25)
@given(
    st.sampled_from(["well", "ill"]), st.floats(0.02, 0.95), st.floats(1.5, 200.0),
    st.integers(2, 8), st.floats(0.4, 2.5),
)  # fmt: skip
def test_no_step_within_the_bound_goes_the_wrong_way(regularizer, share, kappa, dimension, bend):
    path = regularizer_path(
        regularizer=regularizer, share=share, kappa=kappa, dimension=dimension, bend=bend, steps=40
    )
    assert not path.wrong_way.any()


def test_monotone_is_not_convergent():
    path = regularizer_path(share=0.2, steps=1000)
    assert path.end == "repeated"
    assert path.kappa[-1] > 6
    assert path.sigma[-1, 0] == pytest.approx(path.sigma[-1, 1], rel=1e-12)
    constant = regularizer_path(share=0.2, sizes="constant", steps=1000)
    assert constant.wrong_way.any()
    assert constant.kappa[-1] < 1.2


def test_ill_within_its_bound_leaves_float64():
    path = regularizer_path(regularizer="ill", share=0.1)
    assert path.end == "round_off"
    assert path.kappa[-1] < 1e12
    assert len(path.eta) == len(path.kappa) - 1 < 100


@pytest.mark.parametrize("regularizer", ["well", "ill"])
def test_a_path_is_made_of_steps(regularizer):
    path = regularizer_path(regularizer=regularizer, sizes="constant", share=0.3, steps=7)
    assert len(set(path.eta.tolist())) == 1
    for before, after, eta in zip(path.sigma, path.sigma[1:], path.eta, strict=False):
        np.testing.assert_array_equal(after, np.sort(next_spectrum(regularizer, before, eta))[::-1])
    function = {"well": r_well, "ill": r_ill}[regularizer]
    np.testing.assert_allclose(path.value, [function(np.diag(s)) for s in path.sigma], rtol=1e-9)


def test_safe_steps_are_the_corrected_bound_and_less_than_half_of_it():
    sigma = bent_spectrum(kappa=9.0, dimension=5)
    assert largest_safe_step("well", sigma) == well_step_bound(sigma)
    assert largest_safe_step("ill", sigma) < ill_step_bound(sigma) / 2
    moved = next_spectrum("ill", sigma, largest_safe_step("ill", sigma))
    assert moved[-1] == pytest.approx(0, abs=1e-25)


def test_r_ill_does_not_know_kappa():
    curves = value_plane().curves
    kappa, value = curves["vanishing"]
    assert kappa[-1] > 9e5
    np.testing.assert_allclose(value[-1], 4.8, rtol=1e-9)  # 1/((1 + 1/4)/6)
    kappa, value = curves["scaled"]
    np.testing.assert_allclose(kappa, 10, rtol=1e-12)
    assert value[-1] == pytest.approx(value[0] / 1e6)
    kappa, value = curves["descended"]
    assert (np.diff(kappa) > 0).all()
    assert (np.diff(value) < 0).all()
    assert values("well", np.array([2.0, 2.0])) == pytest.approx(0)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"regularizer": "il"}, "did you mean 'ill'"),
        ({"sizes": "const"}, "did you mean 'constant'"),
        ({"share": 0.0}, r"share must be positive and finite, got 0\.0"),
    ],
    ids=["regularizer", "sizes", "share"],
)
def test_bad_arguments_of_a_path(arguments, match):
    with pytest.raises((InvalidInputError, UnknownNameError), match=match):
        regularizer_path(**arguments)


def test_a_joint_step_is_line_6_of_algorithm_1():
    generator = np.random.default_rng(0)
    A, B, theta = (generator.normal(size=(5, 5)) for _ in range(3))
    K_P, K_H = A @ A.T, B @ B.T
    T, P, H = (torch.tensor(matrix) for matrix in (theta, K_P, K_H))
    wanted = T - 0.01 * well_direction(LinearTask(P), T) - 0.2 * ill_direction(LinearTask(H), T)
    np.testing.assert_allclose(joint_step(theta, K_P, K_H, 0.01, 0.2), wanted.numpy(), rtol=1e-10, atol=1e-12)


def test_within_both_bounds_both_promises_break():
    run = joint_steps(angle=15.0)
    assert run.pretrain_rises.any()
    assert run.harmful_falls.any()
    assert not (run.pretrain_rises & ~run.within).any()
    np.testing.assert_allclose(
        kappas(np.linalg.eigvalsh(hessian(run.theta, run.K_P))), run.kappa_pretrain[-1]
    )
    np.testing.assert_allclose(kappas(np.linalg.eigvalsh(hessian(run.theta, run.K_H))), run.kappa_harmful[-1])


def test_one_term_alone_keeps_its_promise_while_within():
    run = joint_steps(angle=15.0)
    assert (np.diff(run.ill_alone) > 0).all()
    assert run.well_alone[-1] < run.well_alone[0]
    assert run.well_alone[0] == run.kappa_pretrain[0] == pytest.approx(20)
    assert run.ill_alone[0] == run.kappa_harmful[0] == pytest.approx(5)


def test_within_is_recomputed_from_the_first_spectra():
    run = joint_steps(angle=30.0, steps=1)
    sigma_P, sigma_H = np.linalg.eigvalsh(run.K_P)[::-1].copy(), np.linalg.eigvalsh(run.K_H)[::-1].copy()
    assert run.eta_pretrain == pytest.approx(0.5 * well_step_bound(sigma_P))
    assert run.eta_harmful < ill_step_bound(sigma_H)
    assert run.within.tolist() == [True]


@given(st.floats(0, 90), st.floats(0.05, 0.9), st.floats(0.01, 0.5))
@settings(max_examples=20)
def test_the_ceiling_holds_along_every_run(angle, share_well, share_ill):
    run = joint_steps(angle=angle, share_well=share_well, share_ill=share_ill, steps=15)
    tame = np.maximum(run.kappa_pretrain, run.kappa_harmful) < 1e6  # beyond, κ itself carries round-off
    assert (run.ratio_harmful / run.ratio_pretrain)[tame].max() <= run.rir_max * (1 + 1e-6)


def test_a_run_that_diverges_ends_before():
    run = joint_steps(angle=0.0, share_well=0.9, share_ill=0.95, steps=200)
    assert len(run.within) < 200
    assert np.isfinite(run.kappa_pretrain).all()
    assert np.isfinite(run.theta).all()


def test_covariances_turn_from_aligned_to_reversed():
    sigma = np.array([8.0, 4.0, 2.0, 1.0, 0.5])
    np.testing.assert_allclose(turned_covariance(sigma, 0.0), np.diag(sigma))
    np.testing.assert_allclose(turned_covariance(sigma, 90.0), np.diag(sigma[::-1]), atol=1e-14)
    np.testing.assert_allclose(np.linalg.eigvalsh(turned_covariance(sigma, 33.0)), sigma[::-1])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"angle": 91.0}, r"between 0 and 90 degrees, got 91\.0"),
        ({"share_well": 0.0}, r"share_well must lie strictly between 0 and 1, got 0\.0"),
        ({"share_ill": 1.0}, r"share_ill must lie strictly between 0 and 1, got 1\.0"),
    ],
    ids=["angle", "well", "ill"],
)
def test_bad_arguments_of_a_joint_run(arguments, match):
    with pytest.raises(InvalidInputError, match=match):
        joint_steps(**arguments)
