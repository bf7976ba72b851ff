"""Pages for people: figures with one plotly, nothing from elsewhere, formulas, and how values are written."""

import json
import re

import pandas as pd
import plotly.graph_objects as go
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from condnum.page import tables
from condnum.page.html import PLOTLY, WIDGET, figure_html, mathml, render_html, shown_notebook


def display(**data):
    return new_output("display_data", data={kind.replace("__", "/"): value for kind, value in data.items()})


def figure(height=None):
    value = go.Figure(go.Scatter(y=[1, 3, 2]), layout={"height": height, "title": {"text": "κ"}})
    return new_output("display_data", data={PLOTLY: json.loads(value.to_json()), "text/html": "<div>x</div>"})


@pytest.fixture(scope="module")
def html():
    remote = '<script src="https://cdn.example/x.js"></script><b>kept</b>'
    passed = new_output("stream", name="stdout", text="3 of 4\r      \r")  # a line of progress
    title = "# A `title` of *one*\n\nThe ratio $\\kappa$ and\n\n$$\\frac{1}{2}$$"
    links = "\n\n[a link](https://example.org) ![a picture](https://example.org/a.png)"
    shown = [
        new_output("stream", name="stdout", text="printed"),
        display(text__html=remote, text__plain="x"),
        display(application__javascript="alert(1)", text__plain="<Javascript object>"),
        display(text__latex=r"$$\displaystyle \kappa$$", text__plain="k"),
        new_output("display_data", data={WIDGET: {"model_id": "a"}, "text/plain": "IntSlider()"}),
    ]
    node = new_notebook()
    node.cells = [
        new_markdown_cell(title + links),
        new_code_cell("seeds: int = 2", metadata={"tags": ["parameters"]}),
        new_code_cell("seeds = 'INJECTED'", metadata={"tags": ["injected-parameters"]}),
        new_code_cell("draw()", outputs=[figure(321), figure(), passed], metadata={"tags": ["hide-input"]}),
        new_code_cell("show()", outputs=shown),
    ]
    node.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {"big": "x" * 9}}}
    node.metadata["condnum"] = {"parameters": {"seeds": 3, "out": "<a>"}}
    node.metadata["papermill"] = {"start_time": "2030-01-02T03:04:05.678+00:00", "parameters": {"seeds": 3}}
    return render_html(node)


def without_plotly(html):
    """Drop plotly.js itself: its source mentions addresses that it does not load."""
    return re.sub(r"<script[^>]*>(?:(?!</script>).){1000000,}</script>", "", html, flags=re.DOTALL)


@pytest.fixture(scope="module")
def page(html):
    return BeautifulSoup(without_plotly(html), "html.parser")


def test_figures_are_drawn_with_one_plotly_and_nothing_is_loaded_from_elsewhere(html, page):
    assert len(html) > 3_000_000
    assert len(without_plotly(html)) < 200_000  # one copy, and a font
    frames = page.select(".figure > .plot-frame")
    assert [frame["style"].partition(";")[0] for frame in frames] == ["min-height:321px", "min-height:450px"]
    assert [script["data-for"] for script in page.select("script[data-for]")] == [of["id"] for of in frames]
    (policy,) = page.select("meta[http-equiv=Content-Security-Policy]")  # before what it is about
    assert policy["content"].startswith("default-src 'none'; script-src 'unsafe-inline'")
    assert "http" not in policy["content"]
    assert page.select("head > *").index(policy) < 2


def test_code_is_folded_and_outputs_are_what_a_page_can_show(page):
    folded = page.select("details.code")
    assert [f.pre.get_text().strip() for f in folded] == ["seeds: int = 2", "draw()", "show()"]
    assert not any(f.has_attr("open") for f in folded)
    assert len(page.select(".output_stream")) == 1
    for words in ("printed", "kept", "This is an interactive control"):
        assert words in page.get_text()
    for words in ("INJECTED", "big", "Javascript object", "alert(1)", "IntSlider"):
        assert words not in str(page.main)
    assert [m.get_text() for m in page.find_all("math")] == ["κ", "12", "κ"]
    assert [row.get_text("=") for row in page.select(".parameters tr")] == ["seeds=3", "out=<a>"]
    assert page.footer.get_text().endswith("run on 2030-01-02 03:04:05 UTC")


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"\min_{w\in\mathbb{R}^{d}} \left\| X\theta w - y \right\|_2^2", "<munder><mo>min</mo>"),
        (r"\mathcal{L}\mathcal{D} \Bigl\{ a < b \Bigr\}", "<mi>ℒ</mi><mi>𝒟</mi>"),
        ("κ₁ ≤ 2", "<mi>₁</mi>"),
    ],
)
def test_formulas(tex, text):
    found = str(BeautifulSoup(mathml(tex, display=True), "html.parser"))
    assert text in found
    assert "\\" not in found
    assert mathml(r"\nonsense x") == '<code class="tex">\\nonsense x</code>'


def test_a_page_shows_what_a_warning_says_and_not_where_it_was_raised():
    text = (
        "/home/a/torch/jit.py:9: FutureWarning: `x` is deprecated.\n  x()\n"
        "/home/a/condnum/k.py:3: RankWarning: fewer rows than columns.\n  kappa(X)\nkept\n"
    )
    stream = new_output("stream", name="stderr", text=text)
    shown, _ = shown_notebook(new_notebook(cells=[new_code_cell("f()", outputs=[stream])]))
    said = [output.text for output in shown.cells[0].outputs]
    assert said == ["RankWarning: fewer rows than columns.\nkept\n"]


def drawn(figure):
    return json.loads(re.search(r'data-for="f">(.*?)</script>', figure_html(figure, "f"), re.DOTALL).group(1))


def test_a_figure_cannot_end_its_script_and_its_panels_stack_on_a_phone():
    name = "</script><script>alert(1)</script>"
    layout = {"title": {"text": '<b>"a<br><sup>b'}, "xaxis": {}, "height": 321}
    figure = {"data": [{"y": [1.0, None], "name": name}], "layout": layout}
    assert drawn(figure)["data"] == [{"y": [1.0, None], "name": name}]
    page = figure_html(figure, "f")
    assert page.count("</script>") == 1
    assert 'aria-label="&quot;a"' in page
    assert drawn({"layout": {"xaxis": {}, "xaxis2": {}}})["layout"]["meta"]["stack"]
    assert "meta" not in drawn({"data": [{"type": "heatmap"}], "layout": {}})["layout"]


def test_a_table_of_numbers_is_written_for_a_page_and_for_a_terminal():
    row = {
        "method": "r_ill_only", "rir_mean": 70.04, "rir_std": float("nan"), "immunized_ridge": 7, "of": 10,
        "benign_loss": 1e-12, "kept_mean": 0.5, "kept_std": 0.25, "steps": float("inf"), "name": "<b>x",
    }  # fmt: skip
    written = tables.written(pd.DataFrame([row]))
    shown = [cell.replace(tables.GAP, " ") for cell in written.iloc[0]]
    assert shown == ["R<sub>ill</sub> only", "70.04", "7 of 10", "0 %", "50 ± 25 %", "∞", "&lt;b&gt;x"]
    assert "<sub>" not in tables.plain(written)
