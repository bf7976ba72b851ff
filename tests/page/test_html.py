import json
import re
from typing import Any

import plotly.graph_objects as go
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from condnum.page.html import PLOTLY, WIDGET, figure_html, mathml, render_html, shown_notebook
from condnum.page.tables import mark_tables

LATEX = r"$$\displaystyle \kappa$$"


def display(**data: Any) -> Any:
    return new_output("display_data", data={kind.replace("__", "/"): value for kind, value in data.items()})


def figure(height: int | None = None) -> Any:
    value = go.Figure(go.Scatter(y=[1, 3, 2]), layout={"height": height, "title": {"text": "κ"}})
    return new_output("display_data", data={PLOTLY: json.loads(value.to_json()), "text/html": "<div>x</div>"})


@pytest.fixture
def executed() -> Any:
    remote = '<script src="https://cdn.example/x.js"></script><b>kept</b>'
    passed = new_output("stream", name="stdout", text="3 of 4\r      \r")  # a line of progress
    node = new_notebook()
    node.cells = [
        new_markdown_cell(
            "# A `title` of *one*\n\nThe ratio $\\kappa$ and\n\n$$\\frac{1}{2}$$\n\n"
            "[a link](https://example.org) ![a picture](https://example.org/a.png)"
        ),
        new_code_cell("seeds: int = 2", metadata={"tags": ["parameters"]}),
        new_code_cell("seeds = 'INJECTED'", metadata={"tags": ["injected-parameters"]}),
        new_code_cell("draw()", outputs=[figure(321), figure(), passed], metadata={"tags": ["hide-input"]}),
        new_code_cell(
            "show()",
            outputs=[
                new_output("stream", name="stdout", text="printed"),
                display(text__html=remote, text__plain="x"),
                display(application__javascript="alert(1)", text__plain="<Javascript object>"),
                display(text__latex=LATEX, text__plain="k"),
                new_output("display_data", data={WIDGET: {"model_id": "a"}, "text/plain": "IntSlider()"}),
                display(text__plain="only text"),
            ],
        ),
        new_code_cell("   "),
    ]
    node.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {"big": "x" * 9}}}
    node.metadata["condnum"] = {"parameters": {"seeds": 3, "out": "<a>"}}
    node.metadata["papermill"] = {"start_time": "2030-01-02T03:04:05.678+00:00", "parameters": {"seeds": 3}}
    return node


def without_plotly(html: str) -> str:
    """Drop plotly.js itself: its source mentions addresses that it does not load."""
    return re.sub(r"<script[^>]*>(?:(?!</script>).){1000000,}</script>", "", html, flags=re.DOTALL)


@pytest.fixture
def page(executed: Any) -> Any:
    return BeautifulSoup(without_plotly(render_html(executed)), "html.parser")


def test_figures_are_drawn_with_one_plotly(executed: Any, page: Any) -> None:
    html = render_html(executed)
    assert len(html) > 3_000_000
    assert len(without_plotly(html)) < 200_000  # one copy, and a font
    frames = page.select(".figure > .plot-frame")
    assert [frame["id"] for frame in frames] == ["figure-0", "figure-1"]
    assert [frame["style"].partition(";")[0] for frame in frames] == ["min-height:321px", "min-height:450px"]
    assert [script["data-for"] for script in page.select("script[data-for]")] == ["figure-0", "figure-1"]
    del executed.cells[3]
    assert "Plotly" not in render_html(executed)


def test_nothing_is_loaded_from_elsewhere(page: Any) -> None:
    (policy,) = page.select("meta[http-equiv=Content-Security-Policy]")  # before what it is about
    assert policy["content"].startswith("default-src 'none'; script-src 'unsafe-inline'")
    assert "http" not in policy["content"]
    assert page.select("head > *").index(policy) < 2
    assert "MathJax" not in page.get_text()


def test_code_is_folded_and_outputs_are_what_a_page_can_show(page: Any) -> None:
    folded = page.select("details.code")
    assert [f.summary.get_text() for f in folded] == ["Code: default parameters", "Code", "Code"]
    assert not any(f.has_attr("open") for f in folded)
    assert [f.pre.get_text().strip() for f in folded] == ["seeds: int = 2", "draw()", "show()"]
    assert len(page.select(".output_stream")) == 1
    for words in ("printed", "only text", "This is an interactive control"):
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
        (r"\tfrac12 \lVert S\rVert_2^2 - \frac{1}{2p}", "<mfrac>"),
        (r"\mathcal{L}\mathcal{D} \Bigl\{ a < b \Bigr\}", "<mi>ℒ</mi><mi>𝒟</mi>"),
        (r"\bigl(x\bigr)^2", "<msup><mrow><mo"),
        ("κ₁ ≤ 2", "<mi>₁</mi>"),
    ],
)
def test_formulas(tex: str, text: str) -> None:
    found = str(BeautifulSoup(mathml(tex, display=True), "html.parser"))
    assert found.startswith('<math display="block"')
    assert text in found
    assert "\\" not in found
    for unknown in (r"\nonsense x", "x^", "x_1_2"):
        assert mathml(unknown) == f'<code class="tex">{unknown}</code>'


def test_columns_of_words() -> None:
    soup = BeautifulSoup(
        "<table><tr><th>m</th><th>n</th></tr><tr><td>ours</td><td>1.5e3 ± 2</td></tr>"
        "<tr><td>1</td><td>—</td></tr></table><table><tr><td colspan='2'>x</td></tr></table>",
        "html.parser",
    )
    mark_tables(soup)
    assert [cell.get_text() for cell in soup.select(".words")] == ["m", "ours", "1"]


def test_a_page_shows_what_a_warning_says_and_not_where_it_was_raised() -> None:
    text = (
        "/home/a/torch/jit.py:9: FutureWarning: `x` is deprecated.\n  x()\n"
        "/home/a/condnum/k.py:3: RankWarning: fewer rows than columns.\n  kappa(X)\nkept\n"
    )
    texts = (text, text.partition("/home/a/condnum")[0])
    streams = [new_output("stream", name="stderr", text=part) for part in texts]
    shown, _ = shown_notebook(new_notebook(cells=[new_code_cell("f()", outputs=streams)]))
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
    assert "min-height:321px;min-width:340px" in page
    panels = {"layout": {"xaxis": {}, "xaxis2": {}}}
    assert "min-width:340px" in figure_html(panels, "f")
    assert drawn(panels)["layout"]["meta"]["stack"]
    kinds = {kind: {"data": [{"type": kind}], "layout": {}} for kind in ("scatter", "heatmap")}
    assert drawn(kinds["scatter"])["layout"]["meta"]["stack"]
    assert "meta" not in drawn(kinds["heatmap"])["layout"]
