"""What every teaching figure shares: a legend of what is drawn, colours that can be seen."""

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from condnum.page.look import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE
from condnum.page.style import finish, method_style


def luminance(color):
    levels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


#: Colors of methods that are not of the shared palette.
OF_METHODS = [method_style(name).color for name in ("erase", "initial")]


@pytest.mark.parametrize("color", [BLUE, ORANGE, GREEN, PURPLE, NEUTRAL, *OF_METHODS])
@pytest.mark.parametrize("background", ["#FFFFFF", "#111111"])
def test_colours_can_be_seen_on_both_backgrounds(color, background):
    low, high = sorted([luminance(color), luminance(background)])
    assert (high + 0.05) / (low + 0.05) >= 3  # WCAG 2, graphical objects


def test_no_button_of_a_figure_sends_it_anywhere():
    renderer = pio.renderers["plotly_mimetype"]  # JupyterLab's
    finish(go.Figure(), "title", "subtitle")
    bundle = renderer.to_mimebundle(go.Figure().to_dict())
    assert bundle["application/vnd.plotly.v1+json"]["config"]["showSendToCloud"] is False
