"""Figures of notebook 4 hold what was computed, in traces that never change their make-up."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the extra viz is not installed")

from condnum.lessons.ceiling import ceiling_demo, ceiling_plane_figure


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


def inside(x, y, trace):
    """Whether a point lies in the polygon of a filled trace, on logarithmic axes (even-odd rule)."""
    px, py = np.log(np.asarray(trace.x, dtype=float)), np.log(np.asarray(trace.y, dtype=float))
    qx, qy = np.roll(px, -1), np.roll(py, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = px + (np.log(y) - py) * (qx - px) / (qy - py)
    return bool((((py > np.log(y)) != (qy > np.log(y))) & (np.log(x) < crossing)).sum() % 2)


def test_points_are_those_of_the_demo():
    demo = ceiling_demo(step=7)
    figure = ceiling_plane_figure(demo)
    for name, points in (
        ("Algorithm 1", demo.path),
        ("K<sub>P</sub>", demo.plane.family),
        ("90 random", demo.plane.cloud),
        ("θ*", demo.plane.optimum[None]),
        ("shown step", demo.path[[7]]),
    ):
        trace = by_name(figure, name)
        np.testing.assert_array_equal(np.stack([trace.x, trace.y], axis=1), points)
    np.testing.assert_array_equal(by_name(figure, "RIR of Algorithm 1").y, demo.rir)
    assert list(by_name(figure, "RIR<sub>max").y) == [demo.plane.ceiling.value] * 2
    assert list(by_name(figure, "RIR at").y) == [demo.rir[7]]
    assert figure.layout.title.text.endswith(f"= {demo.plane.ceiling.value:,.0f}")


@pytest.mark.parametrize("null", ["none", "both", "harmful", "pretrain"])
def test_the_grey_region_is_what_is_impossible(null):
    """A point just inside each border is free, one just beyond is grey."""
    plane = ceiling_demo(null=null).plane
    grey = by_name(ceiling_plane_figure(ceiling_demo(null=null)), "no θ")
    for x in (0.02, 0.3, 5.0, 50.0):
        low, high = plane.lowest(np.array([x]))[0], plane.highest(np.array([x]))[0]
        assert inside(x, 0.9 * low, grey)
        assert not inside(x, 1.1 * low, grey)
        if np.isfinite(high):
            assert inside(x, 1.1 * high, grey)
            assert not inside(x, 0.9 * high, grey)
    assert inside(0.99 / plane.kappa_pretrain, plane.optimum[1], grey)


def test_the_front_is_the_ray_of_the_ceiling():
    plane = ceiling_demo().plane
    front = by_name(ceiling_plane_figure(ceiling_demo()), "Pareto front")
    np.testing.assert_allclose(np.divide(front.y, front.x), plane.ceiling.value, rtol=1e-12)
    np.testing.assert_allclose([front.x[0], front.y[0]], plane.optimum, rtol=1e-9)


@pytest.mark.parametrize(
    "arguments", [{"null": "pretrain"}, {"kappa_pretrain": 1.0, "learning_rate": 1.0}, {"angle": 0.0}]
)
def test_every_setting_draws_the_same_traces(arguments):
    usual, other = (ceiling_plane_figure(ceiling_demo(**kw)) for kw in ({}, arguments))
    assert [trace.name for trace in usual.data] == [trace.name for trace in other.data]
    assert usual.layout.xaxis.range == other.layout.xaxis.range


def test_without_a_ceiling_there_is_no_front():
    figure = ceiling_plane_figure(ceiling_demo(null="pretrain"))
    assert figure.layout.title.text.endswith("RIR has no ceiling")
    assert np.isnan(by_name(figure, "Pareto front").y).all()
    assert np.isnan(by_name(figure, "RIR<sub>max").y).all()
