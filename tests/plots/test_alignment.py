"""Figures of notebook 2 hold what was computed, in traces that never change their make-up."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.lessons.aligned_tasks import aligned_tasks, aligned_tasks_figure
from condnum.lessons.alignment import (
    ROTATIONS,
    alignment_figure,
    alignment_sweep,
    alignment_sweep_figure,
    rotated_alignment,
)


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


def test_overlaps_spectra_and_partial_sums_are_those_of_the_run():
    run = rotated_alignment(angle=40.0, dimension=5, pairing="opposite")
    figure, result = alignment_figure(run), run.alignment
    np.testing.assert_array_equal(by_name(figure, "overlaps").z, result.overlaps)
    np.testing.assert_array_equal(by_name(figure, "truth").y, result.spectrum)
    np.testing.assert_array_equal(by_name(figure, "Eq. 10").y, sorted(result.predicted, reverse=True))
    np.testing.assert_array_equal(by_name(figure, "Ostrowski, lower").y, result.ostrowski_lower)
    np.testing.assert_array_equal(by_name(figure, "Ostrowski's").y, result.ostrowski_upper)
    below, above = by_name(figure, "sums of Eq. 10").y, by_name(figure, "gap").y
    np.testing.assert_allclose(np.diff(above), result.spectrum / result.spectrum.sum(), rtol=1e-12)
    assert below[0] == above[0] == 0
    assert below[-1] == pytest.approx(1)
    assert (below <= above + 1e-12).all()
    assert f"Misalignment {result.misalignment:.3f}" in figure.layout.title.text


def test_everything_drawn_lies_within_the_frame():
    for arguments in ({}, {"angle": 90.0, "data_kappa": 1e4, "theta_kappa": 100.0}, {"data_kappa": 1.0}):
        run = rotated_alignment(**arguments)
        figure = alignment_figure(run)
        low, high = figure.layout.yaxis2.range
        for trace in figure.data[1:5]:
            assert (low <= np.log10(trace.y)).all()
            assert (np.log10(trace.y) <= high).all()


@pytest.mark.parametrize(
    "arguments", [{"dimension": 2}, {"dimension": 64, "angle": 10.0}, {"theta_kappa": 1.0}]
)
def test_every_setting_draws_the_same_traces(arguments):
    usual, other = (alignment_figure(rotated_alignment(**given)) for given in ({}, arguments))
    assert [(trace.type, trace.name) for trace in usual.data] == [(t.type, t.name) for t in other.data]


def test_a_sweep_has_a_curve_a_rotation_in_each_panel():
    sweeps = [alignment_sweep([0.0, 45.0, 90.0], rotation=rotation) for rotation in ROTATIONS]
    figure = alignment_sweep_figure(sweeps)
    assert len(figure.data) == 3 * 3 + 2 * 3
    np.testing.assert_array_equal(figure.data[3].y, sweeps[1].diagonal_overlap)
    np.testing.assert_array_equal(figure.data[5].y, sweeps[1].condition_ratio)
    band, median = figure.data[11:13]
    np.testing.assert_allclose(sorted(set(band.y)), np.quantile(sweeps[3].misalignment, [0.05, 0.95]))
    np.testing.assert_allclose(median.y, np.median(sweeps[3].misalignment))
    legend = [trace.name for trace in figure.data if trace.showlegend]
    assert len(legend) == len(set(legend)) == 4


def test_aligned_tasks_show_both_kappas_and_the_ceiling():
    run = aligned_tasks(exponent=0.5)
    figure = aligned_tasks_figure(run)
    np.testing.assert_array_equal(by_name(figure, "κ(H<sub>P</sub>)").y, run.pretrain_condition)
    np.testing.assert_array_equal(by_name(figure, "κ(H<sub>H</sub>)").y, run.harmful_condition)
    np.testing.assert_allclose(by_name(figure, "shown s").y, [10, 5], rtol=1e-9)  # 100^½ and 100^½/2
    assert list(by_name(figure, "RIR at s").y) == [run.immunization.rir]
    assert set(by_name(figure, "ceiling").y) == {run.ceiling}
