"""Figures of notebook 1 hold what was computed, in traces that never change their make-up."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.errors import UnknownNameError
from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, apply_theme
from condnum.lessons.condition_number import (
    plateau,
    plateau_figure,
    spectrum_descent,
    spectrum_descent_figure,
    zigzag,
    zigzag_figure,
)


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


def test_the_plane_shows_the_path_up_to_the_step():
    run = zigzag(kappa=5.0, angle=30.0, step=3)
    figure = zigzag_figure(run)
    path = by_name(figure, "iterates")
    np.testing.assert_array_equal(path.x, run.path[:4, 1])
    np.testing.assert_array_equal(path.y, run.path[:4, 0])
    through = by_name(figure, "contour through")
    x, y = (np.asarray(values, dtype=float)[:-1] for values in (through.x, through.y))
    np.testing.assert_allclose(y**2 + x**2 / 5, run.path[3] ** 2 @ [1, 1 / 5], rtol=1e-12)


def test_ratios_and_bounds_are_those_of_the_run():
    run = zigzag(kappa=5.0, angle=30.0, step=3)
    figure = zigzag_figure(run)
    visible = run.norm_ratio > 1e-11
    np.testing.assert_array_equal(by_name(figure, "norm ratio").y[visible], run.norm_ratio[visible])
    assert np.isnan(by_name(figure, "norm ratio").y[~visible]).all()
    np.testing.assert_array_equal(by_name(figure, "norm bound").y, run.norm_bound)
    np.testing.assert_array_equal(by_name(figure, "shown step").y, [run.norm_ratio[3], run.energy_ratio[3]])
    assert figure.layout.title.text.endswith("κ = 5, t = 3")


@pytest.mark.parametrize("arguments", [{"kappa": 1.0}, {"kappa": 1000.0, "angle": 0.0}, {"rule": "constant"}])
def test_every_setting_draws_the_same_traces(arguments):
    usual, other = zigzag_figure(zigzag()), zigzag_figure(zigzag(**arguments), axes="fit")
    assert [trace.name for trace in usual.data] == [trace.name for trace in other.data]
    assert other.layout.yaxis.scaleanchor is False
    assert usual.layout.yaxis.scaleanchor == "x"


def test_a_scale_that_does_not_exist():
    with pytest.raises(UnknownNameError, match="scale of the axes 'equl'; did you mean 'equal'"):
        zigzag_figure(zigzag(), axes="equl")


def test_a_descent_shows_spectrum_curves_and_round_off():
    run = spectrum_descent(dimension=6, kappa=50.0)
    figure = spectrum_descent_figure(run)
    np.testing.assert_array_equal(figure.data[0].y, run.sigma)
    np.testing.assert_array_equal(by_name(figure, "norm ratio").x, run.curve.steps[1:])
    np.testing.assert_array_equal(by_name(figure, "energy bound").y[:50], run.energy_bound[1:51])
    assert set(by_name(figure, "float64").y) == {run.round_off}


def test_a_plateau_has_a_curve_and_a_diamond_a_run():
    runs = [plateau(kappa, "float32") for kappa in (10.0, 100.0)]
    figure = plateau_figure(runs)
    assert len(figure.data) == 4
    np.testing.assert_array_equal(figure.data[2].y, runs[1].norm_ratio[1:])
    assert list(figure.data[3].y) == [runs[1].round_off]
    assert figure.data[0].line.color == figure.data[1].marker.color != figure.data[2].line.color


def luminance(color):
    levels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("color", [BLUE, ORANGE, GREEN, PURPLE, NEUTRAL])
@pytest.mark.parametrize("background", ["#FFFFFF", "#111111"])
def test_colours_can_be_seen_on_both_backgrounds(color, background):
    low, high = sorted([luminance(color), luminance(background)])
    assert (high + 0.05) / (low + 0.05) >= 3  # WCAG 2, graphical objects


def test_themes():
    figure = zigzag_figure(zigzag())
    assert apply_theme(figure, dark=False).layout.template.layout.paper_bgcolor == "white"
    assert apply_theme(figure, dark=True).layout.template.layout.paper_bgcolor == "rgb(17,17,17)"
    assert apply_theme(figure, dark=False).layout.template.layout.paper_bgcolor == "white"
