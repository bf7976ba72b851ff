"""Notebook 2's computations, against formulas by hand and the theorems they show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.aligned_tasks import EXPONENTS, aligned_tasks
from condnum.lessons.alignment import (
    ROTATIONS,
    alignment_sweep,
    haar_overlap_band,
    rotated_alignment,
    rotation_matrix,
)
from condnum.lessons.condition_number import spectrum

#: Products of orthogonal matrices of size ≤ 16: far above their round-off.
ROUND_OFF = 1e-12
ANGLES = st.floats(0.0, 90.0)


@pytest.mark.parametrize("rotation", ROTATIONS[:-1])
@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_rotations_are_orthogonal_and_of_the_chosen_size(rotation, dimension):
    R = rotation_matrix(rotation, dimension, 35.0, seed=3)
    np.testing.assert_allclose(R.T @ R, np.eye(dimension), atol=ROUND_OFF)
    assert np.linalg.det(R) == pytest.approx(1)
    turned = np.rad2deg(np.abs(np.angle(np.linalg.eigvals(R))))
    assert turned.max() == pytest.approx(35.0)


def test_planes_are_those_that_they_are_named_after():
    c, s = np.cos(np.pi / 6), np.sin(np.pi / 6)
    np.testing.assert_allclose(rotation_matrix("ends", 3, 30.0), [[c, 0, -s], [0, 1, 0], [s, 0, c]])
    np.testing.assert_allclose(rotation_matrix("neighbours", 3, 30.0), [[c, -s, 0], [s, c, 0], [0, 0, 1]])


def test_another_seed_is_another_random_rotation():
    one, two = (rotation_matrix("random", 5, 40.0, seed) for seed in (0, 1))
    assert np.abs(one - two).max() > 0.01
    np.testing.assert_array_equal(one, rotation_matrix("random", 5, 40.0, 0))


@pytest.mark.parametrize("dimension", [2, 8, 64])
def test_only_a_haar_draw_is_generic(dimension):
    draws = [rotated_alignment(rotation="haar", dimension=dimension, seed=seed) for seed in range(40)]
    overlaps = [run.diagonal_overlap for run in draws]
    assert np.mean(overlaps) == pytest.approx(1 / dimension, rel=0.25)  # E|u_iᵀq_i|² = 1/D, 40 draws
    low, high = haar_overlap_band(dimension)
    assert sum(low <= value <= high for value in overlaps) >= 30
    bounded = rotated_alignment(rotation="random", angle=90.0, dimension=dimension)
    assert bounded.exact if dimension == 2 else bounded.diagonal_overlap > 1.5 * high


def test_the_matrices_have_the_chosen_spectra():
    run = rotated_alignment(
        angle=50.0, dimension=6, data_kappa=40.0, data_spectrum="linear", theta_kappa=7.0, pairing="opposite"
    )
    theta_values = np.linalg.svd(run.theta, compute_uv=False)
    np.testing.assert_allclose(theta_values, spectrum("geometric", 6, 7.0), rtol=1e-12)
    np.testing.assert_array_equal(np.diag(run.covariance), spectrum("linear", 6, 40.0))
    H = run.theta.T @ run.covariance @ run.theta
    np.testing.assert_allclose(run.alignment.spectrum, np.linalg.eigvalsh(H)[::-1], rtol=1e-10)


def test_by_hand():
    run = rotated_alignment(angle=45.0, dimension=2, data_kappa=3.0, theta_kappa=2.0)
    np.testing.assert_allclose(12 * run.sorted_prediction, [8, 2], rtol=1e-12)
    np.testing.assert_allclose(12 * run.alignment.spectrum, 5 + np.sqrt(13) * np.array([1, -1]), rtol=1e-12)
    assert run.alignment.misalignment == pytest.approx(
        np.sqrt(8 / 76)
    )  # off-diagonal 2, 2 of [[8, 2], [2, 2]]
    assert not run.exact


def test_opposite_pairing_can_undo_the_data():
    run = rotated_alignment(angle=0.0, pairing="opposite", data_kappa=100.0, theta_kappa=10.0)
    assert run.exact
    assert run.alignment.true_condition == pytest.approx(1)
    np.testing.assert_allclose(run.alignment.overlaps, np.eye(8)[::-1], atol=ROUND_OFF)


@pytest.mark.parametrize("rotation", ["ends", "neighbours"])
def test_a_quarter_turn_in_a_plane_permutes_and_is_exact_again(rotation):
    run = rotated_alignment(angle=90.0, rotation=rotation)
    assert run.exact
    assert (np.diff(run.alignment.predicted) > 0).any()  # not in the order of θ


@given(ANGLES, st.sampled_from(ROTATIONS), st.integers(2, 12), st.floats(1.5, 1e3), st.floats(1.5, 30))
def test_what_is_true_at_every_angle(angle, rotation, dimension, data_kappa, theta_kappa):
    run = rotated_alignment(
        angle=angle, rotation=rotation, dimension=dimension, data_kappa=data_kappa, theta_kappa=theta_kappa
    )
    result = run.alignment
    np.testing.assert_allclose(result.overlaps.sum(0), 1, atol=ROUND_OFF)
    np.testing.assert_allclose(result.overlaps.sum(1), 1, atol=ROUND_OFF)
    assert result.majorised
    assert result.ostrowski_holds
    assert result.condition_ratio <= 1 + 1e-9  # round-off of σ_D, up to κ(θ)²κ(K)·eps


def test_a_sweep_goes_through_the_same_runs():
    sweep = alignment_sweep([0.0, 20.0], rotation="ends")
    run = rotated_alignment(angle=20.0, rotation="ends").alignment
    assert sweep.misalignment.tolist() == [0.0, run.misalignment]
    assert sweep.condition_ratio[1] == run.condition_ratio < 0.5


@given(st.floats(1, 1000), st.floats(1, 1000), st.floats(0, 1))
def test_aligned_tasks_follow_the_closed_form(p, h, s):
    run = aligned_tasks(pretrain_kappa=p, harmful_kappa=h, exponent=s)
    np.testing.assert_allclose(run.pretrain_condition, p ** (1 - EXPONENTS), rtol=1e-9)
    harmful = np.maximum(h / p**EXPONENTS, p**EXPONENTS / h)
    np.testing.assert_allclose(run.harmful_condition, harmful, rtol=1e-9)
    assert run.immunization.rir == pytest.approx(max(h / p**s, p**s / h) / p ** (1 - s) * p / h, rel=1e-8)
    assert run.ceiling == pytest.approx(max(p / h, h / p) * p / h, rel=1e-8)
    assert (run.ratios <= run.ceiling * (1 + 1e-8)).all()


def test_the_counter_example():
    run = aligned_tasks(pretrain_kappa=100.0, harmful_kappa=2.0, exponent=1.0)
    assert run.immunization.success
    assert run.ratios[-1] == pytest.approx(2500) == run.ceiling


def test_one_task_cannot_be_told_from_itself():
    run = aligned_tasks(pretrain_kappa=30.0, harmful_kappa=30.0, exponent=1.0)
    np.testing.assert_allclose(run.ratios, 1, rtol=1e-9)
    assert not run.immunization.success


@pytest.mark.parametrize(
    ("call", "arguments", "error", "match"),
    [
        (rotated_alignment, {"angle": 91.0}, InvalidInputError, "between 0 and 90 degrees, got 91"),
        (rotated_alignment, {"angle": np.nan}, InvalidInputError, "got nan"),
        (rotated_alignment, {"dimension": 1}, InvalidInputError, "dimension must be at least 2, got 1"),
        (rotated_alignment, {"rotation": "randm"}, UnknownNameError, "did you mean 'random'"),
        (rotated_alignment, {"pairing": "oposite"}, UnknownNameError, "did you mean 'opposite'"),
        (rotated_alignment, {"data_kappa": 0.5}, InvalidInputError, r"got 0\.5"),
        (aligned_tasks, {"exponent": 1.5}, InvalidInputError, r"between 0 and 1, got 1\.5"),
        (aligned_tasks, {"harmful_kappa": 0.0}, InvalidInputError, r"harmful_kappa must be .* got 0\.0"),
    ],
    ids=["angle", "nan", "dimension", "rotation", "pairing", "kappa", "exponent", "task"],
)
def test_bad_arguments(call, arguments, error, match):
    with pytest.raises(error, match=match):
        call(**arguments)
