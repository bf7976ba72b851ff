"""Building the site: a folder of sources, Sphinx over it, and the new site in the place of the old one."""

import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import nbformat

from condnum.errors import CondnumError, OutputError, require
from condnum.files import (
    RECORD,
    folder_lock,
    output_folder,
    results_folder,
    shipped,
    write_json,
    write_text,
)
from condnum.lessons.alignment_lab import LABS
from condnum.lessons.explorers import EXPLORERS, is_current, record_all
from condnum.progress import OnProgress
from condnum.report.experiments import ExperimentResult
from condnum.report.notebook import ParameterNotebook, read_notebook
from condnum.report.run import REPORT, run_notebook
from condnum.site.extension import SPHINX
from condnum.site.notebooks import page_notebook
from condnum.site.results import results_pages
from condnum.stale import code_hash

#: The page that leads to the site, and the folder of the site.
INDEX, SITE = "index.html", "site"

#: Where the site is built, and keeps what needs no new run.
CACHE = Path("runs") / SITE

#: Notebooks that are executed for the site, without widgets.
LESSONS = tuple(sorted(path.stem for path in shipped("notebooks").glob("[1-9]_*.ipynb")))

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
    application = require("sphinx.application", "site").Sphinx
    namespace = require("sphinx.util.docutils", "site").docutils_namespace  # this process may build again
    folder, warnings = output_folder(target), io.StringIO()
    with folder_lock(output_folder(cache)), results_folder(folder / SITE) as results:
        players = _recorded(cache / "recorded", explorers, say, progress)
        ran = _executed(lessons, cache / "lessons", say, progress)
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
        write_json(results.path / RECORD, {"files": results.checksums()})
        results.replace()
    absent = [name for name in LESSONS if name not in ran]  # links to these lead nowhere, as was said
    for line in re.sub(r"\x1b\[[\d;]+m", "", warnings.getvalue()).splitlines():
        if not any(name in line for name in absent):
            say(f"site: {line.replace(f'{work}/', '')}")
    first = f"{SITE}/{'index.html' if runs is None else 'results/index.html'}"
    return write_text(
        folder / INDEX,
        f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>condnum</title>\n'
        f'<meta http-equiv="refresh" content="0; url={first}"><link rel="icon" href="data:,">\n'
        f'<p><a href="{first}">condnum</a></p></html>\n',
    )


def prepare() -> None:
    """Run lessons and record explorers, which depend on no run, for the next `build_site`."""
    os.nice(5)
    _recorded(CACHE / "recorded", None, lambda line: None)
    _executed(LESSONS, CACHE / "lessons", lambda line: None)


@contextmanager
def prepared() -> Generator[None]:
    """Let another process prepare the site while the caller works, and wait for it at the end."""
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, "-c", "from condnum.site.build import prepare; prepare()"]
    process = subprocess.Popen(command, **quiet)
    try:
        yield
        process.wait()  # what it did not manage, `build_site` does, and says why it cannot
    finally:
        process.terminate()


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
        pages[path.relative_to(_PAGES).as_posix()] = text
    return pages


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


def _executed(
    names: Sequence[str], folder: Path, say: Callable[[str], None], progress: OnProgress | None = None
) -> dict[str, Path]:
    """Run notebooks side by side; those whose text and code are unchanged were run before."""
    runs, books = dict[str, Path](), {name: ParameterNotebook.find(name) for name in names}
    for name, book in books.items():
        state = hashlib.sha256(f"{book.code_hash}{book.path.read_text('utf-8')}".encode())
        runs[name] = folder / f"{name}-{state.hexdigest()[:12]}"

    def run(name: str) -> None:
        for old in set(folder.glob(f"{name}-*")) - {runs[name]}:
            shutil.rmtree(old)
        try:
            run_notebook(books[name], {}, runs[name], quiet=True)
        except CondnumError as error:
            say(f"site: the lesson {name} is omitted: {error}")
        if progress is not None:
            progress({"stage": name, "done": next(done), "total": len(missing)})

    missing, done = [name for name in names if not (runs[name] / REPORT).exists()], count(1)
    logging.getLogger("traitlets").setLevel(logging.ERROR)  # kernels warn that another thread ends them
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        list(pool.map(run, missing))
    return {name: runs[name] / REPORT for name in names if (runs[name] / REPORT).exists()}


def _recorded(
    folder: Path, names: Sequence[str] | None, say: Callable[[str], None], progress: OnProgress | None = None
) -> dict[str, Path]:
    """Record explorers, but those that this code has recorded before; return the files."""
    chosen = [name for name in [*EXPLORERS, *LABS] if names is None or name in names]
    files = {name: folder / f"{name}.js" for name in chosen}
    try:
        if files:
            record_all(folder, list(files), progress=progress)
    except CondnumError as error:
        say(f"site: explorers are omitted: {error}")
    return {name: path for name, path in files.items() if is_current(path)}


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
    (folder / "plotly.min.js").write_text(require("plotly.offline", "viz").get_plotlyjs(), encoding="utf-8")
