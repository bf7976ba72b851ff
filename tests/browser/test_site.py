"""Pages in a real browser: a run's report; the site by keyboard, on a phone, in the dark, on paper."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.browser

#: Bytes of a page beside the shared plotly file.
LARGEST_PAGE = 1_000_000

_RUNS = {
    "digits": ("digits", "--methods", "ours,opt_kappa", "--seeds", "1", "--pairs", "4-7,9-0", "--jobs", "1"),
    "attackers": (
        *("attackers", "--source", "embedded", "--methods", "initial,ours", "--epochs", "60"),
        *("--attackers", "gd,line_search,cg", "--steps", "500"),
    ),
}
_DRAWN = """count => Array.from(document.querySelectorAll('.plot-frame'))
    .filter(g => g._fullLayout && g.querySelector('.main-svg') && g._fullData.length).length === count"""


@pytest.fixture(scope="module")
def embedded_run(condnum, tmp_path_factory):
    """The folder of a short run on the embedded table."""
    base = tmp_path_factory.mktemp("embedded")
    options = ("--data", "embedded", "--seeds", "2", "--epochs", "60", "--out", "out")
    done = condnum("run", "house-prices", *options, cwd=base)
    assert done.returncode == 0, done.stderr
    return base / "out"


@pytest.fixture(scope="module")
def site(embedded_run, condnum, tmp_path_factory):
    """The site of a small real reproduction: three finished runs, one failure."""
    from condnum.report.reproduce import Experiment, ReproductionRecord
    from condnum.report.site import build_site

    root = tmp_path_factory.mktemp("reproduction")
    shutil.copytree(embedded_run, root / "house-prices")
    commands = {"house-prices": "condnum run house-prices --data embedded --seeds 2 --epochs 60"}
    for name, words in _RUNS.items():
        done = condnum("run", *words, "--quiet", "--out", name, cwd=root)
        assert done.returncode == 0, done.stderr
        commands[name] = " ".join(("condnum", "run", *words))
    commands["deep"] = "condnum run deep"
    ReproductionRecord(
        scale="quick",
        started_utc="2030-01-02T03:04:05+00:00",
        seconds=60.0,
        source=None,
        versions={"python": "3.11"},
        device={"name": "a processor"},
        experiments=tuple(
            Experiment(
                name, f"Title of {name}", "One sentence.", command, seconds=1.0,
                status="failed" if name == "deep" else "finished", folder=None if name == "deep" else name,
                error="no memory" if name == "deep" else "",
            )
            for name, command in commands.items()
        ),
    ).save(root)  # fmt: skip
    return build_site(root, tmp_path_factory.mktemp("reports")).parent


def pages(site: Path) -> list[Path]:
    return [site / "index.html", *sorted((site / "site").glob("*.html"))]


@pytest.fixture
def watched(window):
    """The window, with everything that a page complains of or fetches."""
    window.problems, window.fetched = [], []
    window.on(
        "console",
        lambda m: window.problems.append(m.text) if m.type in ("error", "warning") else None,
    )
    window.on("pageerror", lambda error: window.problems.append(str(error)))
    window.on("request", lambda request: window.fetched.append(request.url))
    window.on("requestfailed", lambda request: window.problems.append(f"not loaded: {request.url}"))
    return window


def strangers(window) -> list[str]:
    """What a page fetched from elsewhere."""
    return [url for url in window.fetched if not url.startswith(("file:", "data:", "blob:"))]


def open_page(window, path: Path) -> int:
    """Open a page, wait until all of its figures are drawn, return how many there are."""
    window.goto(path.as_uri())
    count = window.locator(".plot-frame").count()
    window.wait_for_function(_DRAWN, arg=count)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_draws_its_figures_offline_and_does_not_scroll_sideways(site, watched, width):
    watched.set_viewport_size({"width": width, "height": 844})
    counts = {}
    for path in pages(site):
        counts[path.stem] = open_page(watched, path)
        assert watched.evaluate("document.documentElement.scrollWidth") <= width, path.name
    assert watched.problems == []
    assert strangers(watched) == []
    expected = {
        run.parent.name: run.read_text("utf-8").count('"application/vnd.plotly.v1+json":')
        for run in site.glob("site/runs/*/report.ipynb")
    }
    assert counts == {"index": 3, "glossary": 0, **expected}
    assert set(expected) == {"house-prices", *_RUNS}
    assert min(expected.values()) >= 2
    sizes = {path.name: path.stat().st_size for path in pages(site)}
    assert max(sizes.values()) <= LARGEST_PAGE, sizes
    assert not any("Plotly.newPlot(" in path.read_text("utf-8") for path in pages(site))


@pytest.mark.slow
def test_every_number_of_the_scoreboard_leads_to_its_run(site, window):
    window.goto((site / "index.html").as_uri())
    cells = window.locator(".board a.obtained")
    assert cells.count() >= 12
    addresses = {cells.nth(i).get_attribute("href") for i in range(cells.count())}
    assert addresses == {"site/house-prices.html#run", "site/digits.html#run"}
    cells.first.click()
    window.wait_for_url("**/site/house-prices.html#run")
    window.wait_for_function(_DRAWN, arg=window.locator(".plot-frame").count())
    assert window.locator("#run").is_visible()
    window.wait_for_function(
        "() => { const y = document.getElementById('run').getBoundingClientRect().y;"
        " return y >= 0 && y < innerHeight; }"
    )
    facts = window.locator("section.run .facts").inner_text()
    assert "diabetes" in facts
    assert re.search(r"[0-9a-f]{64}", facts)


#: Where on the window the tenth point of the curve of θ = I lies.
_POINT = """() => {
    const g = document.querySelector('#figure-0'), box = g.getBoundingClientRect();
    const t = g._fullData.find(t => t.name && t.name.startsWith('Identity') && t.xaxis !== 'x2');
    const {xaxis, yaxis} = g._fullLayout, i = 10;
    return [box.left + xaxis._offset + xaxis.d2p(t.x[i]), box.top + yaxis._offset + yaxis.d2p(t.y[i])];
}"""
_HIDDEN = """() => document.querySelector('.js-plotly-plot')._fullData
    .filter(t => t.legendgroup === 'ours' && t.visible === 'legendonly').length"""


def test_the_report_of_a_run_draws_its_numbers_offline_and_answers(embedded_run, watched):
    watched.goto((embedded_run / "report.html").as_uri())
    watched.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    assert watched.locator(".js-plotly-plot").count() == 4
    assert watched.problems == []
    assert strangers(watched) == []
    assert watched.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    last = watched.evaluate(
        """() => Array.from(document.querySelector('.js-plotly-plot')._fullData.find(
            t => t.name && t.name.startsWith('Identity') && t.xaxis !== 'x2').y).at(-1)"""
    )
    curves = pd.read_parquet(embedded_run / "curves.parquet")
    chosen = curves.query("method == 'identity' and task == 'pretrain' and quantity == 'norm_ratio'")
    assert last == pytest.approx(chosen.loc[chosen["x"].idxmax(), "value"], rel=1e-6, abs=0)
    assert watched.evaluate(_HIDDEN) == 0
    watched.locator(".js-plotly-plot").first.locator(".legendtoggle").first.click()
    watched.wait_for_function(f"({_HIDDEN})() >= 2")  # in both panels
    watched.locator("#figure-0").scroll_into_view_if_needed()
    x, y = watched.evaluate(_POINT)
    watched.mouse.move(x - 3, y - 3)
    watched.mouse.move(x, y, steps=4)
    watched.wait_for_function("document.querySelectorAll('#figure-0 .hoverlayer .hovertext').length > 0")


@pytest.mark.slow
def test_the_contents_are_reached_by_keyboard(site, window):
    open_page(window, site / "site" / "house-prices.html")
    window.keyboard.press("Tab")
    skip = window.evaluate("document.activeElement.textContent")
    assert skip == "Skip to the content"
    assert window.locator(".skip").bounding_box()["y"] >= 0  # in sight once it has the focus
    for _ in range(12):
        window.keyboard.press("Tab")
        if window.evaluate("document.activeElement.closest('.contents a') !== null"):
            break
    target = window.evaluate("document.activeElement.getAttribute('href')")
    assert target is not None
    assert target.startswith("#")
    assert window.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    window.keyboard.press("Enter")
    window.wait_for_function("id => location.hash === id", arg=target)
    open_page(window, site / "index.html")
    window.keyboard.press("Tab")
    window.keyboard.press("Enter")
    assert window.evaluate("document.activeElement.id") == "main"


@pytest.mark.slow
def test_the_contents_fold_on_a_phone(site, window):
    window.set_viewport_size({"width": 390, "height": 844})
    open_page(window, site / "site" / "digits.html")
    assert not window.locator(".contents details").evaluate("element => element.open")
    window.locator(".contents summary").click()
    window.locator(".contents a").last.click()
    assert window.evaluate("location.hash") == "#again"
    assert not window.locator(".contents details").evaluate("element => element.open")


@pytest.mark.slow
@pytest.mark.parametrize("clipboard", [True, False], ids=["clipboard", "without"])
def test_the_command_is_copied(site, window, clipboard):
    if not clipboard:  # as browsers have it that give no clipboard to files
        window.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        window.add_init_script(
            """window.copied = []; document.addEventListener('copy', () => copied.push(
                document.activeElement.value.slice(
                    document.activeElement.selectionStart, document.activeElement.selectionEnd)))"""
        )
    open_page(window, site / "site" / "digits.html")
    button = window.locator(".command button")
    button.click()
    window.wait_for_function("document.querySelector('.command button').textContent === 'Copied'")
    expected = " ".join(("condnum", "run", *_RUNS["digits"]))
    if clipboard:
        assert window.evaluate("navigator.clipboard.readText()") == expected
    else:
        assert window.evaluate("window.copied") == [expected]
    window.wait_for_function("document.querySelector('.command button').textContent === 'Copy'")


_COLOURS = """() => ({
    page: getComputedStyle(document.body).backgroundColor,
    figures: [...document.querySelectorAll('.plot-frame')].map(g => g._fullLayout.paper_bgcolor),
    identity: [...document.querySelectorAll('.plot-frame')].flatMap(g => g._fullData)
        .filter(t => t.name && t.name.startsWith('Identity')).map(t => t.line.color),
})"""


@pytest.mark.slow
def test_dark_and_light_follow_the_reader_and_print_is_light_and_narrow(site, window):
    window.emulate_media(color_scheme="dark")
    open_page(window, site / "index.html")
    dark = window.evaluate(_COLOURS)
    assert dark["page"] == "rgb(20, 24, 30)"
    assert set(dark["figures"]) == {"#14181e"}
    assert set(dark["identity"]) == {"#e3e8ef"}  # black would not be seen
    white = "document.querySelector('.plot-frame')._fullLayout.paper_bgcolor.toLowerCase() === '#ffffff'"
    window.emulate_media(color_scheme="light")
    window.wait_for_function(white)
    light = window.evaluate(_COLOURS)
    assert light["page"] == "rgb(255, 255, 255)"
    assert set(light["identity"]) == {"#000000"}
    window.emulate_media(color_scheme="dark")
    open_page(window, site / "site" / "house-prices.html")
    window.emulate_media(media="print", color_scheme="dark")
    window.wait_for_function(white)
    for name in (".bar", ".contents", ".copy"):
        assert not window.locator(name).first.is_visible()
    widths = window.evaluate("[...document.querySelectorAll('.plot-frame')].map(g => g._fullLayout.width)")
    assert max(widths) <= 940
    assert window.pdf(format="A4")[:4] == b"%PDF"
