"""Every page without a server, as `walking` looks at it; a test reports all findings of its pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser.walking import FAULTS, VIEWS, report, walk
from golden_runs import SHOWN

from condnum.report.html import export_html

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Bytes of a page beside the scripts that pages share, and of the whole site.
LARGEST_PAGE, LARGEST_SITE = 1_500_000, 25_000_000

#: The contents that a page shows: what each entry says, and where it leads.
_CONTENTS = """() => [...document.querySelectorAll('.sidebar-tree a')].map(link =>
    [link.textContent.trim(), link.href.split('#')[0].split('/site/')[1]])"""
_SECTIONS = """() => [
    [...document.querySelectorAll('nav.contents a')].map(link => decodeURIComponent(link.hash)),
    [...document.querySelectorAll('main h2')].map(heading => `#${heading.id}`)]"""


def walk_file(watched: Any, path: Path, name: str) -> list[tuple[str, str, str]]:
    """Open a page without a server and walk it; also its complaints and what it fetches from elsewhere."""
    watched.problems.clear()
    watched.fetched.clear()
    watched.emulate_media(color_scheme=VIEWS[0][1])
    watched.set_viewport_size({"width": VIEWS[0][0], "height": 900})
    watched.goto(path.as_uri())
    found = walk(watched, name)
    local = ("file:", "data:", "blob:")
    strangers = [f"fetches {url}" for url in watched.fetched if not url.startswith(local)]
    return found + [(name, "always", fault) for fault in [*watched.problems, *strangers]]


def contents_faults(contents: dict[str, list[list[str]]]) -> list[tuple[str, str, str]]:
    """Return which pages show other contents than the start page, and which pages are not in these."""
    wanted = contents["index.html"]
    listed = {place for _, place in wanted} | {"genindex.html", "py-modindex.html", "search.html"}
    other = "contents differ from those of the start page: "
    found = [(name, "always", f"{other}{shown}") for name, shown in contents.items() if shown != wanted]
    return found + [(name, "always", "is not in the contents") for name in contents if name not in listed]


def test_the_site(site: Path, watched: Any) -> None:
    pages, found, contents = sorted(site.rglob("*.html")), list[tuple[str, str, str]](), dict[str, Any]()
    for path in pages:
        name = path.relative_to(site).as_posix()
        found += walk_file(watched, path, name)
        contents[name] = watched.evaluate(_CONTENTS)
        if name.startswith("results/") and (run := site / "runs" / path.stem / "report.ipynb").exists():
            figures = run.read_text("utf-8").count('"application/vnd.plotly.v1+json":')
            assert watched.locator(".plot-frame").count() == figures >= 2
    found += contents_faults(contents)
    assert not found, report(found)
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert max(sizes[path] for path in pages) <= LARGEST_PAGE
    assert sum(sizes.values()) <= LARGEST_SITE


def test_reports(
    site: Path,
    site_cache: Path,
    golden_run: Callable[..., Any],
    audit_page: Path,
    watched: Any,
    tmp_path: Path,
) -> None:
    """Of each kind: of experiments, of an audit, and of a notebook that is neither."""
    (lesson,) = site_cache.glob("lessons/6_exercises-*/report.ipynb")
    runs = [golden_run(name)[1] / "report.html" for name in SHOWN]
    plain = export_html(lesson, tmp_path / "lesson.html")
    found = []
    for path in [*runs, audit_page, plain]:
        name = f"{path.parents[1].name}/{path.parent.name}/{path.name}"
        found += walk_file(watched, path, name)
        links, sections = watched.evaluate(_SECTIONS)
        if links != sections:
            found.append((name, "always", f"contents list {links}, the page has {sections}"))
    assert not found, report(found)


_SVG = "<svg class='main-svg' style='background:white' width=300 height=90>{}</svg>"
_FIGURE = f"<div class='js-plotly-plot' style='width:300px'>{_SVG}</div>"
_TITLE = "<text class='gtitle' x='{}' y='20'>A title</text>"
_TWO = _TITLE.format(9) + _TITLE.format(20)
_OUTPUT = "<div class='cell_output'>{}</div>"
_BOX = "<div class='figure' style='width:{}'>"
_TABLE = "<div style='width:{}'><table style='width:200px'><tr><td>1</table></div>"
_LESSON = (
    "<h1>Lesson</h1><p><em>Try:</em> the <b>{}</b><div class='condnum-explorer'><label>angle φ</label></div>"
)
_PRINTED = "a number as Python prints it in an output: "
#: A page, what makes it right, what makes it wrong, and what is said of that.
FAULTY = {
    "overlap": (_FIGURE, _TITLE.format(9), _TWO, "'A title' lies upon 'A title'"),
    "cut": (_FIGURE, _TITLE.format(9), _TITLE.format(290), "'A title' leaves the figure"),
    "faint": (_FIGURE, _TITLE.format(9), _TITLE.format("9' fill='#ddd"), "'A title' is hard to see"),
    "wide figure": (f"{_BOX}{_FIGURE}</div>", "300px", "90px", "300 px wide in a box of 90 px"),
    "wide table": (_TABLE, "200px", "90px", "200 px wide in a box of 90 px"),
    "wide page": (
        "<p style='width:{}'>text",
        "90px",
        "1500px",
        "the page is 1508 px wide in a window of",
    ),
    "TeX": ("<p>{}", "κ", "$x$", "raw TeX: '$x$'"),
    "command": ("<p>{}", "κ", r"\top", r"raw TeX: '\top'"),
    "subscript": ("<h2>{}</h2>", "R", "R_ill", "a raw subscript: 'R_ill'"),
    "Markdown": ("<p>{}", "bold", "**bold**", "raw Markdown: '**bold**'"),
    "warning": (
        _OUTPUT,
        "as wished",
        "FutureWarning: beware",
        "a warning in an output: 'FutureWarning: beware'",
    ),
    "path": (_OUTPUT, "runs/P.csv", "/tmp/P.csv", "an absolute path in an output: '/tmp/P.csv'"),
    "digits": (_OUTPUT, "2030-01-02 0.12345678", "49.99999999999999", "more than eight digits in an output"),
    "notation": (_OUTPUT, "8.5·10³", "8.5e+03", f"{_PRINTED}'8.5e+03'"),
    "control": (_LESSON, "angle", "scale", "no control 'scale', which the text names"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_each_fault_is_found(window: Any, fault: str) -> None:
    page, right, wrong, said = FAULTY[fault]
    for filled, wanted in ((right, 0), (wrong, 1)):
        window.set_content(page.replace("{}", filled, 1))
        found = window.evaluate(FAULTS)
        assert sum(said in one for one in found) == len(found) == wanted, found


def test_complaints_and_strangers_are_found(watched: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<link rel=icon href='data:,'><script>console.warn('beware'); no.such.thing</script>"
        "<img src='http://127.0.0.1:1/picture.png'>"
    )
    found = [fault for _, _, fault in walk_file(watched, tmp_path / "page.html", "page")]
    for said in ("beware", "no is not defined", "fetches http://127.0.0.1:1/picture.png"):
        assert any(said in fault for fault in found), found


def test_other_contents_are_found() -> None:
    whole = [["Learn", "learn.html"], ["Start", "index.html"]]
    assert contents_faults({"index.html": whole, "learn.html": whole, "search.html": whole}) == []
    found = contents_faults({"index.html": whole, "learn.html": whole[1:], "lost.html": whole})
    assert [(page, fault.split(":")[0]) for page, _, fault in found] == [
        ("learn.html", "contents differ from those of the start page"),
        ("lost.html", "is not in the contents"),
    ]
