"""Lessons 1, 2 and 3: formulas by hand, theorems on random cases, and panels that hold what was computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.alignment import ROTATIONS, rotated, turned
from condnum.lessons.condition_number import (
    constant_step,
    kantorovich_bound,
    norm_bound,
    spectrum,
    spectrum_panels,
    zigzag,
    zigzag_path,
)
from condnum.lessons.regularizers import SPECTRA, STEPS, annihilating_step, kappas, many_steps, one_step
from condnum.probing import linear_probe
from condnum.theory.kappa import hessian
from condnum.theory.regularizers import ill_step, ill_step_bound, well_step, well_step_bound
from condnum.theory.task import Task

#: Each factor (1 − ασ_i) is rounded: far above the round-off of forty of them.
ROUND_OFF = 1e-11


def lines_of(panel):
    """Lines of a panel by name."""
    return {one["name"]: np.asarray(one["y"], dtype=float) for one in panel.traces if one["mode"] == "lines"}


# Lesson 1.


def test_bounds_and_both_rules_by_hand():
    np.testing.assert_allclose(norm_bound(4.0, np.array([0, 1, 3])), [1, 0.75, 0.421875])
    np.testing.assert_allclose(kantorovich_bound(3.0, np.array([0, 1, 3])), [1, 1 / 4, 1 / 64])
    path, *_ = zigzag_path(3.0, 45.0, 2)
    start = np.array([1, 3]) / np.sqrt(10)  # He₀ ∝ (1, 1)
    np.testing.assert_allclose(path, [start, start * [-0.5, 0.5], start * 0.25], rtol=1e-14)
    path, *_ = zigzag_path(4.0, 45.0, 3, constant_step)
    # α = 1/σ₁ removes the steep part at once; the flat one shrinks by 1 − 1/κ.
    np.testing.assert_allclose(path[1:, 0], 0)
    np.testing.assert_allclose(path[:, 1], (4 / np.sqrt(17)) * 0.75 ** np.arange(4), rtol=1e-14)


@given(st.floats(1.0, 1000.0), st.floats(0.0, 90.0))
def test_contraction_is_the_closed_form_and_within_both_bounds(kappa, angle):
    _, norm, energy = zigzag_path(kappa, angle, 40)
    c, s = np.cos(np.deg2rad(angle)) ** 2, np.sin(np.deg2rad(angle)) ** 2
    # (κ−1)²/((κ + tan²φ)(κ + cot²φ)), multiplied out so that 0° and 90° need no limit.
    rate = (kappa - 1) ** 2 * c * s / ((kappa * c + s) * (kappa * s + c))
    np.testing.assert_allclose(energy[:7], rate ** np.arange(7), rtol=1e-6, atol=1e-12)
    t = np.arange(41)
    assert (energy <= kantorovich_bound(kappa, t) + ROUND_OFF).all()
    for ratio in (norm, zigzag_path(kappa, angle, 40, constant_step)[1]):
        assert (ratio <= norm_bound(kappa, t) + ROUND_OFF).all()


def test_the_plane_is_a_case_of_the_probe_and_the_worst_start_attains_the_bound():
    (path, norm, _), K = zigzag_path(7.0, 20.0, 12), np.diag([1.0, 1 / 7.0])
    curve = linear_probe(None, Task.of_covariance(K, K @ -path[0]), steps=12)
    np.testing.assert_allclose(norm, curve.norm_ratio, rtol=1e-9)
    sigma = spectrum("geometric", 10, 20.0)
    (_, right), words = spectrum_panels(sigma, np.isin(np.arange(10), [0, 9]) / sigma)
    drawn = lines_of(right)
    seen = drawn["Kantorovich"] > 1e-20
    np.testing.assert_allclose(drawn["excess loss"][seen], drawn["Kantorovich"][seen], rtol=1e-6)
    assert "Eq. 2 promises it after 270" in words  # ln 1e-6 / ln(1 − 1/20) = 269.3


def test_the_sentences_of_lesson_1():
    assert "0.6694 of the excess loss, exactly Kantorovich's worst case" in zigzag()[1]  # (9/11)²
    assert "one step arrives" in zigzag(kappa=1.0)[1]
    assert "After 40 steps 0.2" in zigzag(kappa=100.0, t=40)[1]


# Lesson 2.


def test_turned_vectors_are_orthonormal_and_the_captions_know_the_hand_made_case():
    for rotation in ROTATIONS:
        U, theta, _ = rotated(rotation, 30.0, dimension=5, theta_kappa=4.0)
        np.testing.assert_allclose(U.T @ U, np.eye(5), atol=1e-12)
        assert np.linalg.cond(theta) == pytest.approx(4.0)
    for label, words in (
        ("D = 2 at 45°", "4 is 64.8% of the true one, 6.171"),
        ("Aligned", "is exact</b>, κ(H)"),
    ):
        preset = next(of for name, of in turned.presets.items() if name.startswith(label))
        assert words in turned(**preset)[1]
    assert "though not in the order" in turned(angle=90, rotation="ends")[1]
    assert "θ has repeated singular values" in turned(theta_kappa=1.0)[1]


# Lesson 3.


@pytest.mark.parametrize("regularizer", ["well", "ill"])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_spectrum_is_that_of_a_step_on_theta_and_lies_on_the_curve(regularizer, name):
    sigma, step = SPECTRA[name], float(STEPS[40])
    eta = step * annihilating_step(regularizer, sigma)
    K, move = np.diag(sigma), {"well": well_step, "ill": ill_step}[regularizer]
    after = np.linalg.eigvalsh(hessian(move(np.eye(len(sigma)), K, eta), K))
    (left, right), _ = one_step(regularizer, name, step)
    marks = next(one for one in left.traces if one["name"] == "after")
    low, high = 1.1 * sigma[-1] / 10, sigma[0] * 10 / 1.1
    np.testing.assert_allclose(np.sort(marks["y"]), np.clip(after, low, high), rtol=1e-9)
    curves = lines_of(right)
    drawn = np.fmax(curves["κ moves as promised"], curves["κ goes the wrong way"])
    top = max(right.limits[1])
    assert drawn[40] == pytest.approx(min(kappas(after), 10 * top), rel=1e-9)
    bound = (well_step_bound if regularizer == "well" else ill_step_bound)(sigma)
    inside = STEPS * annihilating_step(regularizer, sigma) < bound
    assert np.isfinite(curves["κ moves as promised"][inside]).all()


def test_the_sentences_of_lesson_3():
    first, second = (one_step(**settings)[1] for settings in one_step.presets.values())
    assert "σ<sub>1</sub> becomes 0" in first
    assert "κ falls from 1.631 to 1.562: <b>the wrong way</b>" in second
    assert "printed bound is negative" in one_step(regularizer="ill", scale=100.0)[1]
    assert "allows every step (k = 2)" in one_step(regularizer="ill", spectrum="(4, 1)")[1]
    assert "Every step lets κ fall" in many_steps()[1]
    assert "steps κ does not fall" in many_steps(constant=True)[1]
    assert "κ rise: from 10 to 142" in many_steps("ill", constant=True)[1]
