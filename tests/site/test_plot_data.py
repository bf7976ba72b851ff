"""Figures in a page: small, exact to seven digits, and never the end of a script."""

import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest

from condnum.report.site import figure_html, slim_figure, templates_script, thumbnail, trace_array


def stored(**trace):
    return json.loads(go.Figure(go.Scatter(**trace)).to_json())


def test_arrays_keep_seven_digits():
    y = np.geomspace(1e-32, 1e30, 200)
    slim = slim_figure(stored(y=y))["data"][0]["y"]
    assert slim["dtype"] == "f4"
    np.testing.assert_allclose(trace_array(slim), y, rtol=6e-8)  # half a unit in float32's last place


@pytest.mark.parametrize("value", [1e-40, 1e39])
def test_numbers_that_float32_cannot_hold_stay_float64(value):
    slim = slim_figure(stored(y=np.array([1.0, value])))["data"][0]["y"]
    assert slim["dtype"] == "f8"
    assert trace_array(slim)[1] == value


def test_matrices_keep_their_shape():
    table = np.arange(6.0).reshape(2, 3)
    slim = slim_figure(json.loads(go.Figure(go.Heatmap(z=table)).to_json()))["data"][0]["z"]
    np.testing.assert_array_equal(trace_array(slim), table)


def test_gaps_and_words_survive():
    figure = {
        "data": [
            {"y": [1.0, None, float("inf")], "text": ["κ", "b"], "z": np.array([[1, None]], dtype=object)}
        ]
    }
    (trace,) = slim_figure(figure)["data"]
    assert trace == {"y": [1.0, None, None], "text": ["κ", "b"], "z": [[1, None]]}


def test_text_cannot_end_the_script():
    figure = {
        "data": [{"y": [1], "name": "</script><script>alert(1)</script>"}],
        "layout": {"title": {"text": "<b>a"}},
    }
    html = figure_html(figure, "f")
    body = re.search(r'data-for="f">(.*?)</script>', html, re.DOTALL).group(1)
    assert json.loads(body)["data"][0]["name"] == "</script><script>alert(1)</script>"
    assert html.count("</script>") == 1
    assert 'aria-label="a"' in html


def test_two_panels_are_wider_than_one():
    one = figure_html({"data": [], "layout": {"xaxis": {}, "height": 321}}, "f")
    two = figure_html({"data": [], "layout": {"xaxis": {}, "xaxis2": {}}}, "f")
    assert "min-height:321px;min-width:340px" in one
    assert "min-width:900px" in two


def test_both_templates_are_there():
    script = templates_script()
    templates = json.loads(script.removeprefix("window.condnumTemplates = ").rstrip(";\n"))
    assert templates["light"]["layout"]["paper_bgcolor"] == "white"
    assert templates["dark"]["layout"]["paper_bgcolor"] == "rgb(17,17,17)"


def test_thumbnail_draws_lines_where_a_logarithmic_axis_has_them():
    picture = thumbnail({"data": [{"x": [1, 10, 100], "y": [3, 2, 1]}], "layout": {"xaxis": {"type": "log"}}})
    points = re.search(r'points="([^"]+)"', picture).group(1).split()
    assert points == ["8.0,8.0", "120.0,60.0", "232.0,112.0"]


def test_thumbnail_of_a_heatmap_has_a_cell_for_each_value():
    z = [[1.0, None], [0.0, 2.0]]
    picture = thumbnail(
        {"data": [{"type": "heatmap", "z": z, "colorscale": [[0, "#000000"], [1, "#ffffff"]]}]}
    )
    assert picture.count("<rect") == 3
    assert "rgb(255, 255, 255)" in picture


def test_thumbnail_skips_what_it_cannot_draw():
    hidden = {"y": [1, 2], "visible": "legendonly"}
    words = {"x": ["a", "b"], "y": [1, 2]}
    assert thumbnail({"data": [hidden, words, {"type": "pie", "values": [1]}]}) is None
