"""Lesson 1: against formulas by hand and the library's probe; its figures hold what was computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.condition_number import (
    kantorovich_bound,
    norm_bound,
    plateau,
    plateau_figure,
    spectrum,
    spectrum_descent,
    zigzag,
)
from condnum.probing import linear_probe

KAPPAS = st.floats(1.0, 1000.0)
ANGLES = st.floats(0.0, 90.0)
#: Each factor (1 − ασ_i) is rounded; 40 steps of a few operations each stay far below this.
ROUND_OFF = 1e-11


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


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


@given(KAPPAS, ANGLES)
@settings(deadline=None)
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


@given(st.floats(1.0, 1e4), st.integers(2, 12), st.integers(0, 2**16))
@settings(deadline=None)
def test_eq_2_holds_for_exact_line_search_in_any_dimension(kappa, dimension, seed):
    run = spectrum_descent(shape="geometric", dimension=dimension, kappa=kappa, steps=60, seed=seed)
    assert (run.curve.norm_ratio <= run.norm_bound + ROUND_OFF).all()
    assert (run.curve.excess_loss <= run.energy_bound + ROUND_OFF).all()


def test_the_plane_is_a_case_of_the_probe_and_the_worst_start_attains_the_bound():
    run = zigzag(kappa=7.0, angle=20.0, steps=12)
    K = np.diag([1.0, 1 / 7.0])
    curve = linear_probe(np.eye(2), K, K @ -run.path[0], steps=12)
    np.testing.assert_allclose(run.norm_ratio, curve.norm_ratio, rtol=1e-9)
    worst = spectrum_descent(dimension=10, kappa=20.0, start="worst", steps=50)
    np.testing.assert_allclose(worst.curve.excess_loss, worst.energy_bound, rtol=1e-9)


@pytest.mark.parametrize("shape", ["geometric", "linear", "clusters", "outlier"])
@pytest.mark.parametrize("dimension", [2, 5])
def test_spectra_descend_from_1_to_1_over_kappa(shape, dimension):
    sigma = spectrum(shape, dimension, 50.0)
    assert sigma.shape == (dimension,)
    assert sigma[[0, -1]] == pytest.approx([1, 1 / 50], rel=1e-14)
    assert (np.diff(sigma) <= 0).all()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_plateau_of_the_predicted_order(precision):
    run = plateau(100.0, precision)
    end = run.norm_ratio[run.steps > 0.8 * run.steps[-1]]
    # Rounding of b alone rarely cancels: the level is within (κ·eps)² and a ten-thousandth of it; and flat.
    assert 1e-4 * run.round_off < end.min() <= end.max() <= min(run.round_off, 10 * end.min())
    figure = plateau_figure([plateau(10.0, precision), run])
    np.testing.assert_array_equal(figure.data[2].y, run.norm_ratio[1:])
    assert list(figure.data[3].y) == [run.round_off]
    assert figure.data[0].line.color == figure.data[1].marker.color != figure.data[2].line.color


def test_the_zigzag_is_drawn_as_computed():
    run = zigzag(kappa=5.0, angle=30.0, step=3)
    figure = run.figure()
    np.testing.assert_array_equal(by_name(figure, "iterates").x, run.path[:4, 1])
    through = by_name(figure, "contour through")
    x, y = (np.asarray(values, dtype=float)[:-1] for values in (through.x, through.y))
    np.testing.assert_allclose(y**2 + x**2 / 5, run.path[3] ** 2 @ [1, 1 / 5], rtol=1e-12)
    visible = run.norm_ratio > 1e-11
    np.testing.assert_array_equal(by_name(figure, "norm ratio").y[visible], run.norm_ratio[visible])
    assert np.isnan(by_name(figure, "norm ratio").y[~visible]).all()
    np.testing.assert_array_equal(by_name(figure, "shown step").y, [run.norm_ratio[3], run.energy_ratio[3]])
    assert figure.layout.title.text.endswith("κ = 5, t = 3")
    assert "κ = 1,000, t" in zigzag(kappa=1000.0).figure().layout.title.text
