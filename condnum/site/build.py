"""Building the site: a folder of sources, Sphinx over it, and the new site in the place of the old one."""

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module, metadata
from itertools import count
from pathlib import Path

import nbformat

from condnum.errors import OutputError, require
from condnum.files import (
    RECORD,
    folder_lock,
    output_folder,
    results_folder,
    shipped,
    signature,
    write_json,
    write_text,
)
from condnum.lessons.explorers import is_current
from condnum.machine import core_count
from condnum.progress import OnProgress
from condnum.report.experiments import ExperimentResult
from condnum.report.html import math_css
from condnum.report.notebook import read_notebook
from condnum.report.pool import Task, run_tasks
from condnum.report.run import kept_record
from condnum.site.extension import SPHINX
from condnum.site.notebooks import page_notebook
from condnum.site.parts import CACHE, LESSONS, lesson, missing_parts, recorded_explorers, recording
from condnum.site.results import committed_runs, results_pages
from condnum.stale import code_hash

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
    site is built in `cache`, where executed lessons, recordings and Sphinx's pages stay until notebook or
    code change, and takes the place of the old one when it is whole; other files of `target` stay.

    Raises:
        OutputError: Another process builds there, or the disk is full.
    """
    folder, warnings = output_folder(target), io.StringIO()
    with folder_lock(output_folder(cache)), results_folder(folder / SITE) as results:
        ran, players = _made(cache, lessons, explorers, say, progress)
        key = _key(runs, [*ran.values(), *players.values()])
        if (folder / INDEX).exists() and kept_record(folder / SITE, key):
            return folder / INDEX
        application = require("sphinx.application", "site").Sphinx
        namespace = require("sphinx.util.docutils", "site").docutils_namespace  # this process may build again
        work = cache / f"sphinx-{code_hash('condnum.site.extension')[:12]}"
        for old in {*cache.glob("sphinx-*"), work / "_extra", work / "_static", work / "html/runs"} - {work}:
            shutil.rmtree(old, ignore_errors=True)
        pages = _written(players, ran) | _api()
        pages |= results_pages(runs, players, work / "_extra" / "runs")
        for name, notebook in ran.items():
            page = page_notebook(read_notebook(notebook), name, players)
            pages[f"learn/{name}.ipynb"] = nbformat.writes(page)
        try:
            _scripts(work / "_static", players)
            _write_sources(work, pages)
            places = (work, None, work / "html", work / "doctrees")
            with namespace():
                made = application(*places, "html", confoverrides=SPHINX, status=None, warning=warnings)
                made.build(force_all=True)  # reads what changed and writes all: each page lists the others
            keep = shutil.ignore_patterns("*.map", ".buildinfo*", "objects.inv", "*.LICENSE.txt")
            shutil.copytree(work / "html", results.path, ignore=keep, dirs_exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"the site cannot be built in {work} or copied to {folder}: {error.strerror or error}; "
                "free some space there or make it writable. The old site is unchanged."
            ) from error
        write_json(results.path / RECORD, {"key": key, "files": results.checksums()})
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


def _key(runs: Sequence[ExperimentResult] | None, parts: Sequence[Path]) -> str:
    """Return the SHA-256 of what the pages show: what comes with condnum, runs, lessons and recordings."""
    shown = [  # what was reused had finished: the pages stay as they are
        [run.name, run.status.replace("reused", "finished"), run.error, signature(run.folder or os.devnull)]
        for run in runs or ()
    ]
    comes = [signature(place, 9) for place in (Path(__file__).parents[1], shipped("notebooks"))]
    comes += [signature(run.folder or os.devnull) for run in committed_runs()]
    versions = [metadata.version(name) for name in ("sphinx", "myst-nb", "furo", "plotly")]
    state = [runs is None, shown, comes, [signature(path) for path in parts], versions]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


# The sources.


def _write_sources(work: Path, pages: Mapping[str, str]) -> None:
    """Write the sources that differ, which Sphinx then builds again, and remove those that are no more."""
    for path in [*work.glob("*/*.md"), *work.glob("*/*.ipynb")]:
        if (name := path.relative_to(work)).as_posix() not in pages and name.parts[0] not in (
            "html",
            "_extra",
        ):
            path.unlink()
            (work / "html" / name).with_suffix(".html").unlink(missing_ok=True)
    for page, text in pages.items():
        path = work / page
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


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
    tasks, done, failed = missing_parts(cache, lessons, explorers), count(1), list[str]()

    def ended(task: Task, error: str) -> None:
        if error:
            failed.extend(task.words)
            say(f"site: {task.name} is left out: {error}")
        if progress is not None:
            progress({"stage": task.name, "done": next(done), "total": len(tasks)})

    run_tasks(tasks, core_count(), ended)
    ran = {name: lesson(name, cache) for name in lessons}
    players = {
        name: recording(name, cache) for name in (recorded_explorers() if explorers is None else explorers)
    }
    found = {name: path for name, path in ran.items() if path.exists()}
    current = {name: path for name, path in players.items() if is_current(path)}
    for name in sorted({*ran, *players} - {*found, *current, *failed}):
        say(f"site: {name} is left out: the source changed while the site was built; build it again.")
    for old in {*cache.glob("lessons/*")} - {path.parent for path in ran.values()}:
        shutil.rmtree(old, ignore_errors=True)
    return found, current


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
        "report/cards.css",
    )
    for path in (path for kind in kinds for path in package.glob(kind)):
        shutil.copy(path, folder)
    (folder / "math.css").write_text(math_css(), encoding="utf-8")
    (folder / "plotly.min.js").write_text(require("plotly.offline", "viz").get_plotlyjs(), encoding="utf-8")
