"""Pages in a real browser: a run's report; the site by keyboard, on a phone, in the dark, on paper."""

from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.browser

_DRAWN = """() => Array.from(document.querySelectorAll('.plot-frame'))
    .every(g => g._fullLayout && g.querySelector('.main-svg') && g._fullData.length)"""


def strangers(window) -> list[str]:
    """What a page fetched from elsewhere."""
    return [url for url in window.fetched if not url.startswith(("file:", "data:", "blob:"))]


def open_page(window, path: Path) -> int:
    """Open a page, wait until all of its figures are drawn, return how many there are."""
    window.goto(path.as_uri())
    window.wait_for_function(_DRAWN)
    return window.locator(".plot-frame").count()


@pytest.mark.slow
def test_the_search_finds_words_of_lessons_names_of_the_api_and_terms(site, watched):
    for word, page in {
        "majorised": "learn/2_alignment.html",
        "max_rir_immunizer": "api/condnum.html",
        "whitening": "glossary.html",
    }.items():
        watched.goto((site / "index.html").as_uri())
        watched.locator("input.sidebar-search").fill(word)
        watched.keyboard.press("Enter")
        watched.locator(".search-summary", has_text="finished").wait_for()  # until then the hits move
        assert watched.locator(f"#search-results a[href*='{page}']").count()
    assert watched.problems == []
    assert strangers(watched) == []


@pytest.mark.slow
def test_a_recorded_explorer_plays_in_its_lesson_and_keeps_its_state_in_the_address(site, watched):
    page = site / "learn" / "2_alignment.html"
    watched.goto(f"{page.as_uri()}#2.exponent=0")  # the second explorer of the page
    place = watched.locator(".condnum-recorded[data-explorer=AlignedTasksExplorer]")
    slider = place.locator("input[type=range]").first
    slider.wait_for()  # far below, and yet there, as a page may be printed
    said = place.locator(".condnum-verdict").inner_text()
    slider.press("ArrowRight")
    watched.wait_for_function("location.hash.includes('2.exponent=0.')")
    watched.wait_for_function(
        "said => document.querySelector('[data-explorer=AlignedTasksExplorer] .condnum-verdict').innerText"
        " !== said",
        arg=said,
    )
    assert watched.problems == []
    assert strangers(watched) == []


@pytest.mark.slow
def test_a_link_to_a_heading_below_an_explorer_arrives_and_paper_shows_the_explorer(site, watched):
    heading = "document.getElementById('summary').getBoundingClientRect().y"
    explorer = "document.querySelector('[data-explorer=AlignedTasksExplorer] .js-plotly-plot')"
    watched.set_viewport_size({"width": 1280, "height": 300})  # low, so that the page can be scrolled to it
    watched.emulate_media(color_scheme="dark")
    watched.goto(f"{(site / 'learn' / '2_alignment.html').as_uri()}#summary")
    watched.wait_for_function(f"{explorer}?._fullLayout?.paper_bgcolor === '#14181e'")
    watched.wait_for_function(f"0 <= {heading} && {heading} < 150")
    watched.emulate_media(media="print", color_scheme="dark")
    watched.wait_for_function(f"{explorer}._fullLayout.paper_bgcolor.toLowerCase() === '#ffffff'")
    assert watched.evaluate(f"{explorer}._fullLayout.width") <= 940
    assert watched.problems == []


_HIDDEN = """() => document.querySelector('.js-plotly-plot')._fullData
    .filter(t => t.legendgroup === 'ours' && t.visible === 'legendonly').length"""


def test_the_report_of_a_run_draws_its_numbers_and_answers(golden_run, watched):
    _, run = golden_run("house-prices")
    watched.goto((run / "report.html").as_uri())
    watched.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    last = watched.evaluate(
        """() => Array.from(document.querySelector('.js-plotly-plot')._fullData.find(
            t => t.name && t.name.startsWith('Identity') && t.xaxis !== 'x2').y).at(-1)"""
    )
    curves = pd.read_parquet(run / "curves.parquet")
    chosen = curves.query("method == 'identity' and task == 'pretrain' and quantity == 'norm_ratio'")
    assert last == pytest.approx(chosen.loc[chosen["x"].idxmax(), "value"], rel=1e-6, abs=0)
    assert watched.evaluate(_HIDDEN) == 0
    watched.locator(".js-plotly-plot").first.locator(".legendtoggle").first.click()
    watched.wait_for_function(f"({_HIDDEN})() >= 2")  # in both panels


_COLOURS = """() => ({
    page: getComputedStyle(document.body).backgroundColor,
    figures: [...document.querySelectorAll('.plot-frame')].map(g => g._fullLayout.paper_bgcolor),
    identity: [...document.querySelectorAll('.plot-frame')].flatMap(g => g._fullData)
        .filter(t => t.name && t.name.startsWith('Identity')).map(t => t.line.color),
})"""


@pytest.mark.slow
def test_dark_and_light_follow_the_reader_and_print_is_light_and_narrow(site, window):
    white = "document.querySelector('.plot-frame')._fullLayout.paper_bgcolor.toLowerCase() === '#ffffff'"
    window.emulate_media(color_scheme="dark")
    open_page(window, site / "results" / "house-prices.html")
    dark = window.evaluate(_COLOURS)
    assert set(dark["figures"]) == {"#14181e"}
    assert set(dark["identity"]) == {"#e3e8ef"}  # black would not be seen
    window.locator(".theme-toggle:visible").click()  # from the reader's system to light
    window.wait_for_function(white)
    light = window.evaluate(_COLOURS)
    assert set(light["identity"]) == {"#000000"}
    assert light["page"] != dark["page"]
    window.locator(".theme-toggle:visible").click()
    window.wait_for_function(f"!({white})")
    window.emulate_media(media="print", color_scheme="dark")
    window.wait_for_function(white)
    for name in (".sidebar-drawer", ".theme-toggle"):
        assert not window.locator(name).first.is_visible()
    widths = window.evaluate("[...document.querySelectorAll('.plot-frame')].map(g => g._fullLayout.width)")
    assert max(widths) <= 940
    assert window.pdf(format="A4")[:4] == b"%PDF"
