"""Figures while a slider moves, in Chromium: what is drawn at once is what Plotly draws."""

import json
import re
from typing import Any

import numpy as np
import pytest

from condnum.files import asset

pytestmark = pytest.mark.browser

_PAGE = """async figure => {
    window.plot = document.body.appendChild(document.createElement('div'));
    const {react} = Plotly;
    window.reacts = 0;
    Plotly.react = (...what) => { reacts += 1; return react(...what); };
    window.drawn = () => [...plot.querySelectorAll(
        '.cartesianlayer :is(.scatterlayer, .barlayer, .heatmaplayer) :is(path, image)')].map(one =>
        ['d', 'transform', 'style', 'href'].map(name => one.getAttribute(name) ?? '').join(' '));
    await condnum.paint(plot, figure);
    return drawn();
}"""
#: One call, so that no timer comes between.
_FOLLOW = """async ([figure, before]) => {
    reacts = 0;
    eval(before);
    await condnum.follow(plot, figure);
    return {reacts, drawn: drawn(), title: plot.querySelector('.gtitle').textContent};
}"""
_HIDDEN = "plot._fullData[3].visible === 'legendonly'"


def a_figure(at: float, points: int, title: str) -> dict[str, Any]:
    """Lines with gaps, filled ones, markers and what the reader hides, on logarithmic axes; bars; a map."""
    x = np.geomspace(1, 90, points)
    y = x**at
    gaps = [None if i % 4 == 2 else one for i, one in enumerate(y.tolist())]
    waves, heights = np.sin(at * x).tolist(), [(times * y).tolist() for times in (2, 3, 4)]
    right, last = {"xaxis": "x2", "yaxis": "y2"}, {"xaxis": "x3", "yaxis": "y3", "showscale": False}
    data: list[dict[str, Any]] = [
        {"x": x.tolist(), "y": gaps, "mode": "lines", "name": "gaps"},
        {"x": x.tolist(), "y": heights[0], "mode": "lines", "fill": "tonexty", "name": "filled"},
        {"x": x.tolist(), "y": heights[1], "mode": "markers", "name": "markers"},
        {"x": x.tolist(), "y": heights[2], "mode": "lines+markers", "name": "hidden"},
        {"x": x.tolist(), "y": waves, "mode": "lines", "line": {"shape": "spline"}, **right},
        {"x": [20, 50], "y": [at, -at], "type": "bar", **right},
        {"x": [0, 1, 2], "z": [[at, 1, 2], [0, at, 1]], "type": "heatmap", "zmin": 0, "zmax": 2, **last},
    ]
    layout = {
        "title": {"text": title}, "showlegend": True,
        "xaxis": {"type": "log", "range": [0, 2], "domain": [0, 0.3]},
        "yaxis": {"type": "log", "range": [-0.2, 3]},
        "xaxis2": {"range": [0, 90], "domain": [0.4, 0.7]}, "yaxis2": {"range": [-1, 1], "anchor": "x2"},
        "xaxis3": {"domain": [0.8, 1]}, "yaxis3": {"anchor": "x3"},
    }  # fmt: skip
    return {"data": [{"type": "scatter"} | trace for trace in data], "layout": layout}


@pytest.fixture
def page(watched: Any) -> Any:
    """The first figure, of which the reader has hidden a trace."""
    from plotly.offline import get_plotlyjs

    watched.set_content("<!doctype html><body data-theme=light>")
    watched.add_script_tag(content=get_plotlyjs())
    watched.add_script_tag(content=asset("figures/paint.js"))
    watched.evaluate(_PAGE, a_figure(0.5, 20, "κ = 2"))
    watched.locator(".legend .traces", has_text="hidden").locator(".legendtoggle").click()
    watched.wait_for_function(_HIDDEN)
    watched.first = watched.evaluate("drawn()")
    return watched


def assert_close(drawn: list[str], wanted: list[str]) -> None:
    """Assert that paths are the same up to half a pixel, and their styles."""
    number = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    assert [re.sub(number, "", one) for one in drawn] == [re.sub(number, "", one) for one in wanted]
    for one, other in zip(drawn, wanted, strict=True):
        found, expected = (np.array(re.findall(number, path), dtype=float) for path in (one, other))
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.5)


def test_what_follows_a_slider_is_what_plotly_draws_at_rest(page: Any) -> None:
    found = page.evaluate(_FOLLOW, [a_figure(0.7, 26, "κ = 30"), ""])
    assert (found["reacts"], found["title"]) == (0, "κ = 30")
    assert sum(one in page.first for one in found["drawn"]) == 1  # the first marker, at 1
    page.wait_for_function("reacts === 1")
    assert page.evaluate(_HIDDEN)
    assert_close(found["drawn"], page.evaluate("drawn()"))
    assert page.evaluate("plot.querySelector('.gtitle').textContent") == "κ = 30"
    assert page.problems == []


@pytest.mark.parametrize(
    ("broken", "change"),
    [
        ("plot._fullData.forEach(one => { delete one._module; })", {}),
        ("delete plot.calcdata", {}),
        ("", {"layout": {"yaxis": {"type": "log", "range": [0, 2]}}}),
        ("", {"layout": {"title": {"text": "κ = 3,<br>in two lines"}}}),
        ("", {"traces": 6}),
        ("", {"trace": {"mode": "markers"}}),
        ("", {"trace": {"y": []}}),
        ("", {"map": {"x": [0, 1, 4]}}),
        ("", {"map": {"z": [[0, 1, 2]]}}),
    ],
    ids=[
        "no modules",
        "no calcdata",
        "range",
        "title",
        "traces",
        "mode",
        "empty",
        "map's range",
        "map's shape",
    ],
)
def test_what_cannot_follow_is_drawn_whole(page: Any, broken: str, change: dict[str, Any]) -> None:
    """Internals of Plotly that another version may lack; changes of more than points."""
    figure = a_figure(0.7, 26, "κ = 30")
    figure["layout"] |= change.get("layout", {})
    figure["data"][0] |= change.get("trace", {})
    figure["data"][6] |= change.get("map", {})
    del figure["data"][change.get("traces", 7) :]
    found = page.evaluate(_FOLLOW, [figure, broken])
    assert found["reacts"] == 1
    assert_close(found["drawn"], page.evaluate("figure => condnum.paint(plot, figure).then(drawn)", figure))
    assert page.problems == []


def test_a_map_in_the_base64_of_plotly_py_is_painted(page: Any) -> None:
    """As the figures of pages are; those of explorers are plain lists."""
    from plotly import graph_objects

    figure = json.loads(graph_objects.Figure(graph_objects.Heatmap(z=np.eye(3))).to_json())
    assert "bdata" in figure["data"][0]["z"]
    page.evaluate("figure => condnum.paint(plot, figure)", figure)
    assert page.locator(".heatmaplayer image").count() == 1
