"""Lessons 1 and 3: formulas by hand, theorems on random cases, and figures that hold what was computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.condition_number import (
    kantorovich_bound,
    norm_bound,
    spectrum_descent,
    zigzag,
)
from condnum.lessons.regularizers import (
    CURVE_POINTS,
    kappas,
    next_spectrum,
    regularizer_step,
)
from condnum.probing import linear_probe
from condnum.theory.kappa import hessian
from condnum.theory.regularizers import ill_step, well_step
from condnum.theory.task import Task

#: Each factor (1 − ασ_i) is rounded; products of orthogonal matrices of size ≤ 16: far above their round-off.
ROUND_OFF = 1e-11
#: κ up to 1e4 · 1e4 from a Cholesky-free SVD in float64: relative error below 1e-9.
CLOSE = 1e-8
BOTH = pytest.mark.parametrize("regularizer", ["well", "ill"])


# Lesson 1.


def test_bounds_and_both_rules_by_hand():
    np.testing.assert_allclose(norm_bound(4.0, np.array([0, 1, 3])), [1, 0.75, 0.421875])
    np.testing.assert_allclose(kantorovich_bound(3.0, np.array([0, 1, 3])), [1, 1 / 4, 1 / 64])
    run = zigzag(kappa=3.0, angle=45.0, steps=2)
    start = np.array([1, 3]) / np.sqrt(10)  # He₀ ∝ (1, 1)
    np.testing.assert_allclose(run.path, [start, start * [-0.5, 0.5], start * 0.25], rtol=1e-14)
    run = zigzag(kappa=4.0, angle=45.0, rule="constant", steps=3)
    # α = 1/σ₁ removes the steep part at once; the flat one shrinks by 1 − 1/κ.
    np.testing.assert_allclose(run.path[1:, 0], 0)
    np.testing.assert_allclose(run.path[:, 1], (4 / np.sqrt(17)) * 0.75 ** np.arange(4), rtol=1e-14)


@given(st.floats(1.0, 1000.0), st.floats(0.0, 90.0))
def test_contraction_is_the_closed_form_and_within_both_bounds(kappa, angle):
    run = zigzag(kappa=kappa, angle=angle, steps=40)
    c, s = np.cos(np.deg2rad(angle)) ** 2, np.sin(np.deg2rad(angle)) ** 2
    # (κ−1)²/((κ + tan²φ)(κ + cot²φ)), multiplied out so that 0° and 90° need no limit.
    rate = (kappa - 1) ** 2 * c * s / ((kappa * c + s) * (kappa * s + c))
    np.testing.assert_allclose(run.energy_ratio[:7], rate ** np.arange(7), rtol=1e-6, atol=1e-12)
    assert (run.energy_ratio <= run.energy_bound + ROUND_OFF).all()
    for rule in ("exact", "constant"):
        other = zigzag(kappa=kappa, angle=angle, rule=rule)
        assert (other.norm_ratio <= other.norm_bound + ROUND_OFF).all()


def test_the_plane_is_a_case_of_the_probe_and_the_worst_start_attains_the_bound():
    run, K = zigzag(kappa=7.0, angle=20.0, steps=12), np.diag([1.0, 1 / 7.0])
    curve = linear_probe(None, Task.of_covariance(K, K @ -run.path[0]), steps=12)
    np.testing.assert_allclose(run.norm_ratio, curve.norm_ratio, rtol=1e-9)
    worst = spectrum_descent(dimension=10, kappa=20.0, start="worst", steps=50)
    np.testing.assert_allclose(worst.curve.excess_loss, worst.energy_bound, rtol=1e-9)


# Lesson 3.


@BOTH
def test_the_spectrum_is_that_of_a_step_on_theta_and_lies_on_the_curve(regularizer):
    run = regularizer_step(regularizer=regularizer, step=0.3, kappa=7.0, dimension=5, bend=0.7, top=2.0)
    K, move = np.diag(run.sigma), {"well": well_step, "ill": ill_step}[regularizer]
    assert run.promised[run.curve_steps * run.unit < run.corrected].all()
    moved = hessian(move(np.eye(5), K, run.eta), K)
    np.testing.assert_allclose(np.linalg.eigvalsh(moved), np.sort(run.next_sigma), rtol=1e-12)
    for index in range(0, CURVE_POINTS, 37):
        after = next_spectrum(run.sigma, run.curve_steps[index] * run.unit, regularizer)
        assert run.curve[index] == pytest.approx(kappas(after), rel=1e-9)
