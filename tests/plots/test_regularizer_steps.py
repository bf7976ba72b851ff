"""Figures of notebook 3 hold what was computed, in traces that never change their make-up."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.errors import UnknownNameError
from condnum.lessons.regularizer_paths import (
    MOST_LINES,
    joint_steps,
    joint_steps_figure,
    regularizer_path,
    regularizer_path_figure,
    value_plane,
    value_plane_figure,
)
from condnum.lessons.regularizers import (
    STEP_RANGE,
    counter_example,
    regularizer_step,
    regularizer_step_figure,
)


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


def test_a_step_shows_spectra_gradient_and_curve():
    run = regularizer_step(step=0.3)
    figure = regularizer_step_figure(run)
    np.testing.assert_array_equal(by_name(figure, "before").y, run.sigma)
    after = by_name(figure, "after")
    np.testing.assert_allclose(after.y, run.next_sigma)
    np.testing.assert_array_equal(by_name(figure, "g<sub>i</sub>").customdata, run.gradient)
    good, bad = by_name(figure, "κ falls"), by_name(figure, "κ goes the wrong way")
    together = np.where(np.isnan(good.y), bad.y, good.y)
    finite = run.curve < 1e3
    np.testing.assert_allclose(together[finite], run.curve[finite])
    assert np.isnan(good.y[run.curve_steps == 1]).all()  # annihilated
    assert by_name(figure, "printed bound").x[0] == pytest.approx(run.printed / run.unit)
    assert by_name(figure, "corrected bound").x[0] == pytest.approx(run.corrected / run.unit)
    assert list(by_name(figure, "this step").y) == [run.next_kappa]


def test_bounds_that_are_negative_or_infinite_are_not_drawn():
    run = regularizer_step(regularizer="ill", kappa=3.0, dimension=2, top=100.0)
    assert run.printed < 0
    figure = regularizer_step_figure(run)
    assert np.isnan(by_name(figure, "printed bound").x).all()
    assert np.isnan(by_name(figure, "corrected bound").x).all()
    assert max(by_name(figure, "below the corrected").x) == STEP_RANGE[1]  # every step is shaded


def test_an_annihilated_value_lies_on_the_edge_of_the_panel():
    figure = regularizer_step_figure(regularizer_step(**counter_example("well")))
    after = by_name(figure, "after")
    assert np.log10(after.y[0]) > figure.layout.yaxis.range[0]
    assert list(after.customdata) == [0.0, 1.5625]
    assert by_name(figure, "this step").marker.symbol == "triangle-up"  # κ = ∞ lies above the panel
    assert figure.layout.title.text.endswith("κ = 4 → ∞")


@pytest.mark.parametrize("scale", ["decades", "near"])
def test_the_second_counter_example_can_be_seen(scale):
    run = regularizer_step(**counter_example("ill"))
    figure = regularizer_step_figure(run, scale=scale)
    low, high = figure.layout.yaxis2.range
    place = np.log10(run.next_kappa) if scale == "decades" else run.next_kappa
    assert low < place < high
    assert list(by_name(figure, "this step").y) == [run.next_kappa]


def test_a_scale_that_does_not_exist():
    with pytest.raises(UnknownNameError, match="scale of κ 'nea'; did you mean 'near'"):
        regularizer_step_figure(regularizer_step(), scale="nea")


def test_every_step_draws_the_same_traces():
    figures = [
        regularizer_step_figure(regularizer_step(**arguments))
        for arguments in ({}, {"step": 1.0}, {"dimension": 64}, counter_example("well"), {"step": 30.0})
    ]
    assert len({tuple(trace.name for trace in figure.data) for figure in figures}) == 1
    ill = regularizer_step_figure(regularizer_step(regularizer="ill"))
    assert len(ill.data) == len(figures[0].data)
    assert [trace.type for trace in ill.data] == [trace.type for trace in figures[0].data]


@pytest.mark.parametrize("dimension", [2, 3, MOST_LINES])
def test_a_path_has_a_line_a_value_and_always_as_many_traces(dimension):
    run = regularizer_path(dimension=dimension, sizes="constant", share=0.5)
    figure = regularizer_path_figure(run)
    assert len(figure.data) == len(regularizer_path_figure(regularizer_path()).data) == MOST_LINES + 3
    np.testing.assert_array_equal(by_name(figure, "σ<sub>1</sub>").y, run.sigma[:, 0])
    np.testing.assert_array_equal(by_name(figure, "σ<sub>k</sub>").y, run.sigma[:, -1])
    drawn = [
        trace for trace in figure.data if trace.name.startswith("between") and np.isfinite(trace.y).any()
    ]
    assert len(drawn) == dimension - 2
    np.testing.assert_array_equal(by_name(figure, "κ(H").y, run.kappa)
    np.testing.assert_array_equal(by_name(figure, "κ went").x, np.flatnonzero(run.wrong_way) + 1)


def test_the_plane_of_values():
    plane = value_plane()
    figure = value_plane_figure(plane)
    kappa, value = plane.curves["vanishing"]
    np.testing.assert_array_equal(figure.data[0].x, kappa)
    np.testing.assert_array_equal(figure.data[0].y, value)
    assert [len(trace.x) for trace in figure.data] == [121, 121, 401, 1]


def test_a_joint_run_shows_both_kappas_and_the_verdict():
    run = joint_steps(angle=15.0)
    figure = joint_steps_figure(run)
    np.testing.assert_array_equal(by_name(figure, "κ(H<sub>P").y, run.kappa_pretrain)
    np.testing.assert_array_equal(by_name(figure, "κ(H<sub>H").y, run.kappa_harmful)
    wrong = by_name(figure, "wrong way")
    assert len(wrong.x) == run.pretrain_rises.sum() + run.harmful_falls.sum() > 0
    path, ceiling = by_name(figure, "path"), by_name(figure, "RIR")
    np.testing.assert_array_equal(path.y, run.ratio_harmful)
    np.testing.assert_allclose(np.divide(ceiling.y, ceiling.x), run.rir_max)
    other = joint_steps_figure(joint_steps(angle=90.0, share_well=0.9, share_ill=0.95))
    assert [trace.name for trace in other.data] == [trace.name for trace in figure.data]
