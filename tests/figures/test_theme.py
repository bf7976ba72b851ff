"""What every teaching figure shares: a legend of what is drawn, and panels below each other on a phone."""

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from condnum.figures.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    PURPLE,
    honest_legend,
    stacked,
    teaching_layout,
)
from condnum.lessons.alignment import rotated_alignment
from condnum.lessons.own_data import own_data


def test_the_legend_lists_what_is_to_be_seen():
    figure = go.Figure(layout={"yaxis": {"type": "log", "range": [-3, 0]}})
    lines = {
        "inside": [1, 0.1],
        "crosses": [10, 1e-9],
        "below": [1e-8, 1e-9],
        "gaps": [None, np.nan],
        "none": [],
    }
    for name, y in lines.items():
        figure.add_scatter(x=[0, 1][: len(y)], y=y, name=name)
    figure.add_scatter(x=[0], y=[1], name="never listed", showlegend=False)
    listed = [trace.name for trace in honest_legend(figure).data if trace.showlegend]
    assert listed == ["inside", "crosses"]


def test_panels_lie_below_each_other_with_their_titles():
    wide = rotated_alignment().figure()
    layout = stacked(rotated_alignment().figure()).layout
    tops = [layout[name].domain[1] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert tops == sorted(tops, reverse=True)
    assert all(layout[name].domain == (0, 1) for name in ("xaxis", "xaxis2", "xaxis3"))
    assert [note.y for note in layout.annotations] == tops
    assert [note.text for note in layout.annotations] == [note.text for note in wide.layout.annotations]
    assert layout.height > 2 * wide.layout.height - 300
    own = stacked(own_data().figure()).layout  # its map of overlaps is lower than its neighbours
    assert [note.y for note in own.annotations] == sorted((n.y for n in own.annotations), reverse=True)
    assert own.yaxis2.domain[1] < own.annotations[1].y < own.yaxis.domain[0]


def test_long_titles_are_broken_between_words_and_tags():
    figure = make_subplots(rows=1, cols=1)
    title = "A title about κ(H<sub>P</sub>) and κ(H<sub>H</sub>) that is too long for a phone"
    teaching_layout(figure, title)
    shown = stacked(figure).layout.title.text
    assert shown.replace("<br>", " ") == title
    assert shown.count("<br>") >= 1


def luminance(color):
    levels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("color", [BLUE, ORANGE, GREEN, PURPLE, NEUTRAL])
@pytest.mark.parametrize("background", ["#FFFFFF", "#111111"])
def test_colours_can_be_seen_on_both_backgrounds(color, background):
    low, high = sorted([luminance(color), luminance(background)])
    assert (high + 0.05) / (low + 0.05) >= 3  # WCAG 2, graphical objects
