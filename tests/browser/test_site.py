"""The site and reports in Chromium, without a server: every page, and what a reader does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.page_faults import FOUR_VIEWS, VIEWS, faults_of
from golden_runs import SHOWN

from condnum.report.html import export_html, mathml

pytestmark = [pytest.mark.browser, pytest.mark.long]

#: Bytes of a page beside the scripts that pages share, and of the whole site.
LARGEST_PAGE, LARGEST_SITE = 1_500_000, 25_000_000
#: A page of each kind, which is seen at four widths.
KINDS = ("index", "2_alignment", "house-prices", "own_data", "condnum")

_SECTIONS = """() => [
    [...document.querySelectorAll('nav.contents a')].map(link => decodeURIComponent(link.hash)),
    [...document.querySelectorAll('main h2')].map(heading => `#${heading.id}`)]"""


def strangers(page: Any) -> list[str]:
    """What a page fetched from elsewhere."""
    return [url for url in page.fetched if not url.startswith(("file:", "data:", "blob:"))]


def file_faults(watched: Any, path: Path, name: str) -> dict[tuple[str, str], list[str]]:
    """Open a page without a server: its faults, its complaints and what it fetches from elsewhere."""
    watched.problems.clear()
    watched.fetched.clear()
    watched.emulate_media(color_scheme=VIEWS[0][1])
    watched.set_viewport_size({"width": VIEWS[0][0], "height": 900})
    watched.goto(path.as_uri())
    found = faults_of(watched, name, FOUR_VIEWS if path.stem in KINDS else VIEWS)
    return found | {(name, fault): ["always"] for fault in [*watched.problems, *strangers(watched)]}


def test_every_page_and_report(
    site: Path,
    golden_run: Callable[..., Any],
    lesson_run: Callable[[str], Path],
    watched: Any,
    tmp_path: Path,
) -> None:
    """Pages of the site, reports of experiments and of an audit, and a page of any other notebook."""
    pages, found = sorted(site.rglob("*.html")), dict[Any, Any]()
    for path in pages:
        found |= file_faults(watched, path, path.relative_to(site).as_posix())
        if path.parent.name == "results" and (run := site / "runs" / path.stem / "report.ipynb").exists():
            figures = run.read_text("utf-8").count('"application/vnd.plotly.v1+json":')
            assert watched.locator(".plot-frame").count() == figures >= 2
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert max(sizes[path] for path in pages) <= LARGEST_PAGE
    assert sum(sizes.values()) <= LARGEST_SITE
    plain = export_html(lesson_run("6_exercises") / "report.ipynb", tmp_path / "lesson.html")
    for path in [*(golden_run(name)[1] / "report.html" for name in (SHOWN[0], "audit")), plain]:
        found |= file_faults(watched, path, f"{path.parents[1].name}/{path.name}")
        links, sections = watched.evaluate(_SECTIONS)
        assert links == sections, path
    assert not found, "\n".join(map(str, found.items()))


def test_a_recorded_explorer_plays_in_its_lesson_below_a_link_and_on_paper(site, watched):
    page = site / "learn" / "1_condition_number.html"
    explorer = "[data-explorer=SpectrumDescentExplorer]"
    watched.goto(f"{page.as_uri()}#2.kappa=1000000")  # the second explorer of the page
    watched.locator(f"{explorer} .condnum-verdict", has_text="not reached within").wait_for()
    watched.locator(f"{explorer} input[type=range]").first.press("Home")
    watched.locator(f"{explorer} .condnum-verdict", has_text="is reached after").wait_for()
    watched.set_viewport_size({"width": 1280, "height": 300})  # low, so that the page can be scrolled to it
    watched.emulate_media(color_scheme="dark")
    watched.goto("about:blank")
    watched.goto(f"{page.as_uri()}#summary")
    paper = f"document.querySelector('{explorer} .js-plotly-plot')?._fullLayout?.paper_bgcolor?.toLowerCase()"
    watched.wait_for_function(f"{paper} === '#14181e'")
    heading = "document.getElementById('summary').getBoundingClientRect().y"
    watched.wait_for_function(f"0 <= {heading} && {heading} < 150")
    watched.emulate_media(media="print", color_scheme="dark")
    watched.wait_for_function(f"{paper} === '#ffffff'")
    assert watched.problems == strangers(watched) == []


def test_dark_and_light_follow_the_reader_and_print_is_light_and_narrow(site, window):
    frames = "[...document.querySelectorAll('.plot-frame')]"
    white = (
        f"{frames}.length && {frames}.every(g => g._fullLayout?.paper_bgcolor.toLowerCase() === '#ffffff')"
    )
    dark = white.replace("#ffffff", "#14181e")
    window.emulate_media(color_scheme="dark")
    window.goto((site / "results" / "house-prices.html").as_uri())
    window.wait_for_function(dark)
    identity = f"{frames}.flatMap(g => g._fullData).find(t => t.name?.startsWith('Identity')).line.color"
    assert window.evaluate(identity) == "#e3e8ef"  # black would not be seen
    window.locator(".theme-toggle:visible").click()  # from the reader's system to light
    window.wait_for_function(white)
    window.locator(".theme-toggle:visible").click()
    window.wait_for_function(dark)
    window.emulate_media(media="print", color_scheme="dark")
    window.wait_for_function(white)
    for name in (".sidebar-drawer", ".theme-toggle"):
        assert not window.locator(name).first.is_visible()
    assert max(window.evaluate(f"{frames}.map(g => g._fullLayout.width)")) <= 940


def test_the_start_plays_until_the_harmful_descent_is_stuck_and_learn_shows_each_lesson(
    site: Path, watched: Any
) -> None:
    watched.goto((site / "index.html").as_uri())
    verdict = watched.locator(".cg-verdict")
    assert "harmful κ as before" in verdict.inner_text()
    watched.locator(".cg-verdict.success").wait_for()
    watched.get_by_role("button", name="Play").click()
    watched.locator(".cg-verdict:not(.success)", has_text="as before").wait_for()
    watched.goto((site / "learn" / "index.html").as_uri())
    shown = "images => images.map(image => image.complete && image.naturalWidth > 100)"
    assert watched.locator(".gallery a.card img").evaluate_all(shown) == [True] * 8


def test_fences_are_as_tall_as_what_they_enclose_and_rows_not_chosen_are_hidden_on_a_phone(
    site: Path, golden_run: Callable[..., Any], watched: Any
) -> None:
    formula = mathml(r"\left(\frac{\frac{a}{b}}{\frac{c}{d}}\right)", display=True)
    for page in (site / "results" / f"{SHOWN[0]}.html", golden_run(SHOWN[0])[1] / "report.html"):
        watched.goto(page.as_uri())
        tall, fences = watched.evaluate(
            """async formula => {
                document.querySelector('main, article').insertAdjacentHTML('afterbegin', formula);
                await document.fonts.ready;
                const fonts = [...document.fonts].filter(font => font.family.includes('condnum-math'));
                if (fonts.map(font => font.status).join() !== 'loaded') throw new Error('no font');
                const high = name => [...document.querySelector('math').querySelectorAll(name)].map(
                    element => element.getBoundingClientRect().height);
                return [high('mfrac')[0], high('mo')];
            }""",
            formula,
        )
        assert min(fences) > 0.9 * tall, page
    watched.set_viewport_size({"width": 390, "height": 844})  # where rows are cards
    shown = "rows => rows.map(row => row.getClientRects().length)"
    assert {*watched.locator(".cards tr[hidden]").evaluate_all(shown)} == {0}
    assert watched.problems == strangers(watched) == []
