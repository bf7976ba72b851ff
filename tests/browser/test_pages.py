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
        if path == audit_page:  # the verdict comes first and is complete
            assert watched.locator("article.score").bounding_box()["y"] < 300
            card = watched.locator("article.score").inner_text()
            for part in ("immunized", "Weakest attacker", "of at most", "What to do next", "--drop label"):
                assert part in card
    assert not found, report(found)


#: A page with everything that `walk_file` looks for, and what it says of each.
_FAULTY = """<link rel=icon href='data:,'><script>console.warn('beware')</script><h1>Lesson R_ill</h1>
<img src='http://127.0.0.1:1/picture.png'><p>$x$ and **bold**<p style='width:1500px'>text
<div style='width:90px'><table style='width:200px'><tr><td>1</table></div>
<div class='cell_output'>FutureWarning: it, /tmp/P.csv, 49.99999999999999 and 8.5e+03</div>
<p><em>Try:</em> the <b>scale</b><div class='condnum-explorer'><label>angle φ</label></div>
<div class='js-plotly-plot' style='width:300px'><svg class='main-svg' width=300 height=90>
<text class='gtitle' x=9 y=20>A title</text><text class='gtitle' x=20 y=20>A title</text></svg></div>"""
_FAULTS = (
    *("beware", "fetches http://127.0.0.1:1/picture.png", "a raw subscript", "raw TeX: '$x$"),
    *("raw Markdown", "the page is", "200 px wide in a box of 90 px", "a warning in an output"),
    *("an absolute path in an output: '/tmp/P.csv", "more than eight digits", "a number as Python prints it"),
    *("no control 'scale', which the text names", "'A title' lies upon 'A title'"),
)


def test_each_fault_is_found(watched: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(f"<meta charset=utf-8>{_FAULTY}")
    watched.goto((tmp_path / "page.html").as_uri())
    found = [*watched.evaluate(FAULTS), *watched.problems, *(f"fetches {url}" for url in watched.fetched)]
    assert [said for said in _FAULTS if not any(said in fault for fault in found)] == []
