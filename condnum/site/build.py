"""Building the site: a folder of sources, Sphinx over it, and the new site in the place of the old one."""

import io
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import nbformat

from condnum.errors import OutputError, require
from condnum.files import (
    RECORD,
    folder_lock,
    output_folder,
    results_folder,
    shipped,
    write_json,
    write_text,
)
from condnum.progress import OnProgress
from condnum.page.experiments import ExperimentResult
from condnum.page.html import math_css
from condnum.page.notebook import read_notebook
from condnum.site.extension import SPHINX
from condnum.site.notebooks import page_notebook
from condnum.site.parts import (
    CACHE,
    LESSONS,
    lesson,
    make_parts,
    missing_parts,
    recorded_explorers,
    recording,
)
from condnum.site.results import results_pages

#: The page that leads to the site, and the folder of the site.
INDEX, SITE = "index.html", "site"

#: Packages whose public names the API pages document; what one has of another is shown there only.
API_PACKAGES = (
    "condnum",
    "condnum.theory",
    "condnum.methods",
    "condnum.probing",
    "condnum.data",
    "condnum.figures",
    "condnum.auditing",
    "condnum.deep",
)

_PAGES = Path(__file__).parent / "pages"


def build_site(
    runs: Sequence[ExperimentResult] | None,
    target: Path,
    *,
    cache: Path = CACHE,
    lessons: Sequence[str] = LESSONS,
    explorers: Sequence[str] | None = None,
    progress: OnProgress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the site: of a reproduction, or, where `runs` is None, of the committed results.

    `target/site/` holds the pages, which need no server and no network; `target/index.html` leads there. The
    site is built anew from executed lessons and recordings, which stay in `cache` until notebook or code
    change, and takes the place of the old one when it is whole; other files of `target` stay.

    Raises:
        OutputError: Another process builds there, or the disk is full.
    """
    folder, warnings = output_folder(target), io.StringIO()
    with folder_lock(output_folder(cache)), results_folder(folder / SITE) as results:
        ran, players = _made(cache, lessons, explorers, say, progress)
        application = require("sphinx.application", "site").Sphinx
        namespace = require("sphinx.util.docutils", "site").docutils_namespace  # this process may build again
        work = cache / "sphinx"
        shutil.rmtree(work, ignore_errors=True)
        pages = _written(players, ran) | _api()
        pages |= results_pages(runs, players, work / "_extra" / "runs")
        for name, notebook in ran.items():
            page = page_notebook(read_notebook(notebook), name, players)
            pages[f"learn/{name}.ipynb"] = nbformat.writes(page)
        try:
            _scripts(work / "_static", players)
            for page, text in pages.items():
                output_folder((work / page).parent)
                write_text(work / page, text)
            with namespace():
                places = (work, None, work / "html", work / "doctrees")
                application(*places, "html", confoverrides=SPHINX, status=None, warning=warnings).build()
            keep = shutil.ignore_patterns("*.map", ".buildinfo*", "objects.inv", "*.LICENSE.txt")
            shutil.copytree(work / "html", results.path, ignore=keep, dirs_exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"the site cannot be built in {work} or written to {folder}: {error.strerror or error}; "
                "free some space there or make it writable. The old site is unchanged."
            ) from error
        write_json(results.path / RECORD, {"files": results.checksums()})
        results.replace()
    absent = [name for name in LESSONS if name not in ran]  # links to these lead nowhere, as was said
    for line in re.sub(r"\x1b\[[\d;]+m", "", warnings.getvalue()).splitlines():
        if not any(name in line for name in absent):
            say(f"site: {line.replace(f'{work}/', '')}")
    first = f"{SITE}/index.html"
    return write_text(
        folder / INDEX,
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>condnum</title>\n'
        f'<meta http-equiv="refresh" content="0; url={first}"><link rel="icon" href="data:,">\n'
        f'<p><a href="{first}">condnum</a></p></html>\n',
    )


# The sources.


def _written(recorded: Collection[str], lessons: Collection[str]) -> dict[str, str]:
    """Return the pages that are written by hand; what is not there, explorer or lesson, is words there."""

    def place(found: re.Match[str]) -> str:
        return found[0] if found[1] in recorded else "*Not recorded here; `make site` records it in minutes.*"

    def link(found: re.Match[str]) -> str:
        return found[0] if found[2] in lessons else found[1]

    pages = {}
    for path in sorted(_PAGES.rglob("*.md")):
        text = re.sub(r"\[([^\]]*)\]\([^)]*?(\w+)\.ipynb\)", link, path.read_text(encoding="utf-8"))
        text = re.sub(r'<div class="condnum-recorded" data-explorer="(\w+)".*?></div>', place, text)
        if "<!-- gallery -->" in text:
            text = text.replace("<!-- gallery -->", _gallery(lessons))
        pages[path.relative_to(_PAGES).as_posix()] = text
    return pages


def _gallery(lessons: Collection[str]) -> str:
    """Return a card for each lesson: picture, name and sentence of the notebooks' own start page."""
    start, cards = read_notebook(shipped("notebooks") / "0_start.ipynb").cells, []
    for cell in start:
        row = r"\| !\[.*?\]\(attachment:([1-9]_\w+)\.png\)<br>\*\*\[(.*?)\]\(.*?\)\*\* \| (.*?) \|"
        for name, title, sentence in re.findall(row, cell.source):
            picture = cell.attachments[f"{name}.png"]["image/png"]
            link = f'a href="{name}.html"' if name in lessons else "span"
            cards.append(
                f'<{link} class="card"><img alt="" src="data:image/png;base64,{picture}">'
                f"<strong>{title}</strong><span>{sentence}</span></{link.split()[0]}>"
            )
    return f'<div class="gallery">\n{"".join(cards)}\n</div>'


def _api() -> dict[str, str]:
    """Return a page for each package, with the names of its `__all__` that no page before it has."""
    pages, documented = dict[str, str](), set[str]()
    for package in API_PACKAGES:
        names = list(import_module(package).__all__)
        shared = ", ".join(name for name in names if name in documented)
        documented |= set(names)
        body = f"```{{eval-rst}}\n.. automodule:: {package}\n   :members:\n"
        body += f"   :exclude-members: {shared}\n" if shared else ""
        pages[f"api/{package}.md"] = f"# {package}\n\n{body}```\n"
    return pages


def _made(
    cache: Path,
    lessons: Sequence[str],
    explorers: Sequence[str] | None,
    say: Callable[[str], None],
    progress: OnProgress | None,
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Make what is missing; return the executed lessons and the recordings, but those that failed."""
    failed = make_parts(missing_parts(cache, lessons, explorers), cache, progress)
    for name, error in failed.items():
        say(f"site: {name} is left out: {error}")
    ran = {name: lesson(name, cache) for name in lessons if name not in failed}
    wanted = recorded_explorers() if explorers is None else explorers
    players = {name: recording(name, cache) for name in wanted if name not in failed}
    for old in {*cache.glob("lessons/*")} - {path.parent for path in ran.values()}:
        shutil.rmtree(old, ignore_errors=True)
    return ran, players


def _scripts(folder: Path, recordings: Mapping[str, Path]) -> None:
    """Write what pages share: plotly once, the explorers' scripts, the site's own script and style."""
    (folder / "recorded").mkdir(parents=True)
    for path in recordings.values():
        shutil.copy(path, folder / "recorded")
    package = Path(__file__).parents[1]
    kinds = (
        "site/static/*",
        "figures/*.js",
        "lessons/*.js",
        "lessons/frame/*.js",
        "lessons/frame/*.css",
        "page/cards.css",
    )
    for path in (path for kind in kinds for path in package.glob(kind)):
        shutil.copy(path, folder)
    (folder / "math.css").write_text(math_css(), encoding="utf-8")
    (folder / "plotly.min.js").write_text(require("plotly.offline", "viz").get_plotlyjs(), encoding="utf-8")
