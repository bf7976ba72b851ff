"""Waterfalls: every bar starts where the one before ended, and says by how much it moved."""

import numpy as np
import pandas as pd
import pytest

from condnum.errors import InvalidInputError
from condnum.figures.waterfall import alone_figure, waterfall_figure

TITLES = {"rows": "rows used", "bias": "the bias"}


@pytest.fixture
def table():
    rows = []
    for convention, levels in (("ridge", [0.2, 1.2, 0.9]), ("compact", [-1.0, -0.5, 3.0])):
        for index, (switch, level) in enumerate(zip(("released", "rows", "bias"), levels, strict=True)):
            row = {"path": "cumulative", "start_epochs": 10, "index": index, "switch": switch}
            rows.append(row | {"convention": convention, "log10_rir": level, "log10_rir_std": 0.1})
            if index:
                rows.append(rows[-1] | {"path": "alone", "log10_rir": level - 0.3, "log10_rir_std": np.nan})
    return pd.DataFrame(rows)


def bars(figure, axis):
    """The bars of a panel: {row: (from, to, kind)}."""
    found = {}
    for trace in figure.data:
        if trace.type == "bar" and trace.xaxis == axis:
            for name, base, change in zip(trace.y, trace.base, trace.x, strict=True):
                found[name] = (round(base, 9), round(base + change, 9), trace.name)
    return found


def test_each_bar_starts_where_the_one_before_ended(table):
    figure = waterfall_figure(table, "some data", epochs=10, titles=TITLES)
    assert bars(figure, "x") == {
        "released, 10 epochs": (0, 0.2, "RIR itself"),
        "+ rows used": (0.2, 1.2, "RIR rises"),
        "+ the bias": (1.2, 0.9, "RIR falls"),
        "corrected": (0, 0.9, "RIR itself"),
    }
    assert bars(figure, "x2")["+ the bias"] == (-0.5, 3.0, "RIR rises")
    order = ["corrected", "+ the bias", "+ rows used", "released, 10 epochs"]  # from the bottom
    assert list(figure.layout.yaxis.categoryarray) == order


def test_bars_say_their_factor_and_their_spread(table):
    figure = waterfall_figure(table, "some data", epochs=10, titles=TITLES)
    rise = next(trace for trace in figure.data if trace.name == "RIR rises" and trace.xaxis == "x")
    assert tuple(rise.text) == ("× 10",)
    assert list(rise.error_x.array) == [0.1]
    large = next(trace for trace in figure.data if trace.name == "RIR rises" and trace.xaxis == "x2")
    assert tuple(large.text) == ("× 3.2", "× 3,200")
    fall = next(trace for trace in figure.data if trace.name == "RIR falls")
    assert fall.marker.pattern.shape == "/"  # not by colour alone
    assert fall.marker.color != rise.marker.color


def test_alone_every_bar_starts_at_the_release(table):
    figure = alone_figure(table, "some data", epochs=10, titles=TITLES)
    assert bars(figure, "x") == {
        "released": (0, 0.2, "RIR itself"),
        "rows used": (0.2, 0.9, "RIR rises"),
        "the bias": (0.2, 0.6, "RIR rises"),
    }


def test_axes_hold_everything_and_are_labelled_with_rir(table):
    figure = waterfall_figure(table, "some data", epochs=10, titles=TITLES)
    assert "some data" in figure.layout.title.text
    low, high = figure.layout.xaxis2.range
    assert low < -1.1
    assert high > 3.1
    assert "RIR" in figure.layout.xaxis.title.text
    assert dict(zip(figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext, strict=True))[1.0] == "10"
    assert figure.layout.xaxis2.ticktext[0] == "10<sup>−2</sup>"


def test_a_path_that_is_not_there(table):
    for draw in (waterfall_figure, alone_figure):
        with pytest.raises(InvalidInputError, match=r"from 100 epochs; it has epochs \[10\]"):
            draw(table, "", epochs=100, titles=TITLES)
