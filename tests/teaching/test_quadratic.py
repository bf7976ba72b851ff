"""Notebook 1's computations, against formulas by hand and against the library's probe."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.condition_number import kantorovich_bound, norm_bound, spectrum, spectrum_descent, zigzag
from condnum.probing import linear_probe

KAPPAS = st.floats(1.0, 1000.0)
ANGLES = st.floats(0.0, 90.0)
#: Each factor (1 − ασ_i) is rounded; 40 steps of a few operations each stay far below this.
ROUND_OFF = 1e-11


def test_the_worst_start_by_hand():
    run = zigzag(kappa=3.0, angle=45.0, steps=2)
    start = np.array([1, 3]) / np.sqrt(10)  # He₀ ∝ (1, 1)
    np.testing.assert_allclose(run.path, [start, start * [-0.5, 0.5], start * 0.25], rtol=1e-14)
    np.testing.assert_allclose(run.norm_ratio, [1, 0.25, 0.0625], rtol=1e-14)


def test_constant_step_by_hand():
    run = zigzag(kappa=4.0, angle=45.0, rule="constant", steps=3)
    # α = 1/σ₁ removes the steep part at once; the flat one shrinks by 1 − 1/κ.
    np.testing.assert_allclose(run.path[1:, 0], 0)
    np.testing.assert_allclose(run.path[:, 1], (4 / np.sqrt(17)) * 0.75 ** np.arange(4), rtol=1e-14)


@given(KAPPAS, ANGLES)
def test_contraction_in_the_plane_is_the_closed_form_in_every_step(kappa, angle):
    run = zigzag(kappa=kappa, angle=angle, steps=6)
    c, s = np.cos(np.deg2rad(angle)) ** 2, np.sin(np.deg2rad(angle)) ** 2
    # (κ−1)²/((κ + tan²φ)(κ + cot²φ)), multiplied out so that 0° and 90° need no limit.
    rate = (kappa - 1) ** 2 * c * s / ((kappa * c + s) * (kappa * s + c))
    np.testing.assert_allclose(run.energy_ratio, rate ** np.arange(7), rtol=1e-6, atol=1e-12)


@given(KAPPAS, ANGLES, st.sampled_from(["exact", "constant"]))
def test_both_bounds_hold(kappa, angle, rule):
    run = zigzag(kappa=kappa, angle=angle, rule=rule)
    assert (run.norm_ratio <= run.norm_bound + ROUND_OFF).all()
    if rule == "exact":
        assert (run.energy_ratio <= run.energy_bound + ROUND_OFF).all()


@given(st.floats(1.0, 1e4), st.integers(2, 12), st.integers(0, 2**16))
def test_eq_2_holds_for_exact_line_search_in_any_dimension(kappa, dimension, seed):
    run = spectrum_descent(shape="geometric", dimension=dimension, kappa=kappa, steps=60, seed=seed)
    assert (run.curve.norm_ratio <= run.norm_bound + ROUND_OFF).all()
    assert (run.curve.excess_loss <= run.energy_bound + ROUND_OFF).all()


def test_successive_steps_stand_at_right_angles():
    moves = np.diff(zigzag(kappa=20.0, angle=30.0, steps=6).path, axis=0)
    for one, two in pairwise(moves):
        assert abs(one @ two) < 1e-14 * np.linalg.norm(one) * np.linalg.norm(two) * 20  # κ magnifies eps


@pytest.mark.parametrize(("kappa", "angle"), [(1.0, 45.0), (10.0, 0.0), (10.0, 90.0)])
def test_one_step_arrives(kappa, angle):
    assert zigzag(kappa=kappa, angle=angle, steps=3).norm_ratio[1] < 1e-30


def test_the_plane_is_a_case_of_the_probe():
    run = zigzag(kappa=7.0, angle=20.0, steps=12)
    K = np.diag([1.0, 1 / 7.0])
    curve = linear_probe(np.eye(2), K, K @ -run.path[0], steps=12)
    np.testing.assert_allclose(run.norm_ratio, curve.norm_ratio, rtol=1e-9)


@pytest.mark.parametrize("shape", ["geometric", "linear", "clusters", "outlier"])
@pytest.mark.parametrize("dimension", [2, 5, 8])
def test_spectra_descend_from_1_to_1_over_kappa(shape, dimension):
    sigma = spectrum(shape, dimension, 50.0)
    assert sigma.shape == (dimension,)
    assert sigma[0] == 1
    assert sigma[-1] == pytest.approx(1 / 50, rel=1e-14)
    assert (np.diff(sigma) <= 0).all()


def test_the_worst_start_attains_kantorovich_in_many_dimensions():
    run = spectrum_descent(dimension=10, kappa=20.0, start="worst", steps=50)
    np.testing.assert_allclose(run.curve.excess_loss, run.energy_bound, rtol=1e-9)


def test_bounds_by_hand():
    t = np.array([0, 1, 3])
    np.testing.assert_allclose(norm_bound(4.0, t), [1, 0.75, 0.421875])
    np.testing.assert_allclose(kantorovich_bound(3.0, t), [1, 1 / 4, 1 / 64])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"kappa": 0.5}, InvalidInputError, r"kappa must be at least 1 and finite, got 0\.5"),
        ({"kappa": np.nan}, InvalidInputError, "got nan"),
        ({"angle": 91}, InvalidInputError, "between 0 and 90 degrees, got 91"),
        ({"step": 50}, InvalidInputError, "between 0 and steps = 40, got 50"),
        ({"rule": "exat"}, UnknownNameError, "did you mean 'exact'"),
    ],
    ids=["kappa", "nan", "angle", "step", "rule"],
)
def test_bad_arguments_of_the_zigzag(arguments, error, match):
    with pytest.raises(error, match=match):
        zigzag(**arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"dimension": 1}, "dimension must be at least 2, got 1"),
        ({"shape": "cluster"}, "did you mean 'clusters'"),
        ({"start": "best"}, "unknown start 'best'"),
    ],
    ids=["dimension", "shape", "start"],
)
def test_bad_arguments_of_a_descent(arguments, match):
    with pytest.raises(InvalidInputError, match=match):
        spectrum_descent(**arguments)
