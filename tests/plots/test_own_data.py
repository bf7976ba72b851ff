"""The figure of notebook 5: the same traces always, and the numbers of the result in them."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.lessons.own_data import RATIO_FLOOR, own_data, own_data_figure


def test_it_draws_spectra_overlaps_and_probes():
    result = own_data(ridge=1e-3, goal=0.05)
    figure = own_data_figure(result)
    by_name = {trace.name: trace for trace in figure.data}
    np.testing.assert_array_equal(by_name["K<sub>P</sub>"].y, result.pretrain.sigma)
    np.testing.assert_array_equal(by_name["K<sub>H</sub>"].y, result.harmful.sigma)
    assert list(by_name["ridge ε"].y) == [1e-3, 1e-3]
    assert by_name["rank tolerance"].y[0] == result.pretrain.tolerance  # the larger of the two
    np.testing.assert_array_equal(figure.data[4].z, result.overlaps)
    shown = by_name["D<sub>H</sub> as is"].y
    np.testing.assert_array_equal(shown, np.maximum(result.probes.norm_ratio[2], RATIO_FLOOR / 10))
    assert list(by_name["goal"].y) == [0.05, 0.05]
    assert "470 at rank 8" in figure.layout.title.text


def test_the_traces_are_always_the_same():
    figures = [own_data_figure(own_data(example=name)) for name in ("diabetes", "digits")]
    names = [[(trace.type, trace.name) for trace in figure.data] for figure in figures]
    assert names[0] == names[1]


def test_what_lies_below_the_axis_is_drawn_on_its_floor():
    result = own_data(example="digits")
    figure = own_data_figure(result)
    floor = figure.data[1].y[-1]
    assert result.harmful.sigma[-1] < floor < result.harmful.tolerance
    assert np.log10(floor) == pytest.approx(figure.layout.yaxis.range[0])
    assert list(figure.data[1].customdata) == list(result.harmful.sigma)  # hovering tells the truth
