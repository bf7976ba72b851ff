"""The report in a real browser: figures drawn from the run's numbers, nothing fetched, toggles that work."""

import pandas as pd
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("embedded_run")]


def test_the_report_draws_its_figures_offline_and_answers(embedded_run, window):
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
    last = window.evaluate(
        """() => Array.from(document.querySelector('.js-plotly-plot')._fullData.find(
            t => t.name && t.name.startsWith('Identity') && t.xaxis !== 'x2').y).at(-1)"""
    )
    curves = pd.read_parquet(embedded_run.folder / "curves.parquet")
    chosen = curves.query("method == 'identity' and task == 'pretrain' and quantity == 'norm_ratio'")
    assert last == pytest.approx(chosen.loc[chosen["x"].idxmax(), "value"], rel=1e-6, abs=0)
    hidden = """() => document.querySelector('.js-plotly-plot')._fullData
        .filter(t => t.legendgroup === 'ours' && t.visible === 'legendonly').length"""
    assert window.evaluate(hidden) == 0
    window.locator(".js-plotly-plot").first.locator(".legendtoggle").first.click()
    window.wait_for_function(f"({hidden})() >= 2")  # in both panels
