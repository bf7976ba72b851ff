"""The report in a real browser: figures drawn, nothing fetched, no console error, toggles that work."""

import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("embedded_run"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: browser tests are skipped"),
]


@pytest.fixture
def page():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def test_report_draws_its_figures_offline(embedded_run, page):
    problems, fetched = [], []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto((embedded_run.folder / "report.html").as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    assert page.locator(".js-plotly-plot").count() == 4
    assert problems == []
    assert [url for url in fetched if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_norm_ratio_on_the_page_is_the_library_s(embedded_run, page):
    import pandas as pd

    page.goto((embedded_run.folder / "report.html").as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    last = page.evaluate(
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


def test_a_click_in_the_legend_hides_a_method_in_both_panels(embedded_run, page):
    page.goto((embedded_run.folder / "report.html").as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    hidden = """() => document.querySelector('.js-plotly-plot')._fullData
        .filter(t => t.legendgroup === 'ours' && t.visible === 'legendonly').length"""
    assert page.evaluate(hidden) == 0
    page.locator(".js-plotly-plot").first.locator(".legendtoggle").first.click()
    page.wait_for_function(f"({hidden})() >= 2")
