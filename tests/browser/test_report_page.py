"""The report in a real browser: figures drawn, nothing fetched, no console error, toggles that work."""

import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("embedded_run"),
]


def test_report_draws_its_figures_offline(embedded_run, window):
    problems, fetched = [], []
    window.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    window.on("pageerror", lambda error: problems.append(str(error)))
    window.on("request", lambda request: fetched.append(request.url))
    window.goto((embedded_run.folder / "report.html").as_uri())
    window.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    assert window.locator(".js-plotly-plot").count() == 4
    assert problems == []
    assert [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))] == []
    assert window.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_norm_ratio_on_the_page_is_the_library_s(embedded_run, window):
    import pandas as pd

    window.goto((embedded_run.folder / "report.html").as_uri())
    window.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    last = window.evaluate(
        """() => {
            const trace = document.querySelector('.js-plotly-plot')._fullData.find(
                t => t.name && t.name.startsWith('Identity') && t.xaxis !== 'x2');
            return Array.from(trace.y).at(-1);
        }"""
    )
    curves = pd.read_parquet(embedded_run.folder / "curves.parquet")
    chosen = curves[
        (curves["method"] == "identity")
        & (curves["task"] == "pretrain")
        & (curves["quantity"] == "norm_ratio")
        & (curves["x"] == 20_000)
    ]
    assert last == pytest.approx(chosen["value"].iloc[0], rel=1e-6, abs=0)


def test_a_click_in_the_legend_hides_a_method_in_both_panels(embedded_run, window):
    window.goto((embedded_run.folder / "report.html").as_uri())
    window.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    hidden = """() => document.querySelector('.js-plotly-plot')._fullData
        .filter(t => t.legendgroup === 'ours' && t.visible === 'legendonly').length"""
    assert window.evaluate(hidden) == 0
    window.locator(".js-plotly-plot").first.locator(".legendtoggle").first.click()
    window.wait_for_function(f"({hidden})() >= 2")
