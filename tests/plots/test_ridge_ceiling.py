"""Figures of ceilings against ε, and of attackers."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.lessons.ridge_ceiling import attacks_figure, ridge_ceiling_demo, ridge_ceiling_figure
from condnum.lessons.two_tasks import attacks


@pytest.mark.parametrize("null", ["none", "pretrain"])
def test_curves_are_those_of_the_demo(null):
    demo = ridge_ceiling_demo(null=null, ridge=0.02)
    compact, of_data, of_measure, attained, chosen = ridge_ceiling_figure(demo).data
    np.testing.assert_array_equal(of_data.y, demo.of_data)
    np.testing.assert_array_equal(of_measure.y, demo.of_measure)
    np.testing.assert_array_equal(attained.y, demo.attained)
    assert (chosen.x[1], chosen.y[1]) == (0.02, demo.at_ridge.rir)
    np.testing.assert_array_equal(compact.y, np.nan if null == "pretrain" else demo.compact)


def test_an_attack_ends_at_the_floor():
    runs = attacks(dimension=4)
    figure = attacks_figure(runs)
    raw, whitened = figure.data[0], figure.data[3]
    np.testing.assert_array_equal(raw.y[:5], runs[0].curve.excess_loss[1:6])
    assert list(raw.y <= 1e-12) == [False] * (len(raw.y) - 1) + [True]
    assert list(whitened.x) == [1]
    assert list(whitened.y) == [1e-12]
    assert "κ = 10" in raw.name
