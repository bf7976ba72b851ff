"""The site: lessons, results, guide and API as pages that need no server, by Sphinx, MyST-NB and furo.

`condnum/site/` has its configuration and the pages that are written by hand; lessons, results and the API are
added to a copy of it. Executed lessons, with their recorded explorers, stay in a cache until code changes.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from joblib import Parallel, cpu_count, delayed

from condnum.errors import CondnumError, OutputError, require
from condnum.experiments.keys import CODE
from condnum.files import output_folder, shipped, write_text
from condnum.page.html import figure_html, fill_slots, math_css, shown_notebook
from condnum.page.notebook import ParameterNotebook, find_notebook, read_notebook
from condnum.page.results import executed, results_body
from condnum.page.run import REPORT, run_notebook
from condnum.page.tables import INDEX, formula_html, mark_tables

#: Where the site is built, and keeps what needs no new run.
CACHE = Path("runs") / "site"
#: Notebooks that are executed for the site, without widgets.
LESSONS = tuple(sorted(path.stem for path in shipped("notebooks").glob("[!0]*.ipynb")))
#: Packages whose public names the API pages document; what one has of another is shown there only.
API = (
    "condnum",
    "condnum.theory",
    "condnum.methods",
    "condnum.probing",
    "condnum.data",
    "condnum.auditing",
    "condnum.deep",
)
#: What pages share, by places in the package.
_SHARED = (
    "site/static/*",
    "page/*.js",
    "page/cards.css",
    "lessons/*.js",
    "lessons/*.css",
)


def build_site(
    root: Path,
    target: Path,
    *,
    cache: Path = CACHE,
    lessons: Sequence[str] = LESSONS,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write `target/site/` anew, with the runs below `root` and the committed ones; return its first page.

    A lesson that cannot be run is left out and said.

    Raises:
        OutputError: The disk is full, or the folder cannot be written.
    """
    package, work = shipped("site"), output_folder(cache) / "source"
    ran = _executed(cache, lessons, say)
    made, new, old = work.with_name("html"), output_folder(target) / ".site-new", target / "site"
    try:
        for folder in (work, made, new):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(package / "pages", work)
        shutil.copy(package / "conf.py", work)
        _scripts(work / "_static")
        for name, text in (_written(work, ran) | _api() | _results(root)).items():
            write_text(output_folder((work / name).parent) / Path(name).name, text)
        for name, path in ran.items():
            page = page_notebook(read_notebook(path), name)
            nbformat.write(page, output_folder(work / "learn") / f"{name}.ipynb")
        status = require("sphinx.cmd.build", "site").build_main(["-q", "-j", "auto", str(work), str(made)])
        if status:
            raise OutputError(
                f"Sphinx could not build the site in {work} (status {status}); its words stand above."
            )
        junk = shutil.ignore_patterns(".doctrees", "_sources", ".buildinfo*", "objects.inv")
        shutil.copytree(made, new, ignore=junk)
        shutil.rmtree(old, ignore_errors=True)
        new.rename(old)
    except OSError as error:
        raise OutputError(
            f"the site cannot be built in {work} or written to {target}: {error.strerror or error}; free "
            "some space there or make it writable."
        ) from error
    return old / "index.html"


# Lessons.


def lesson_path(name: str, cache: Path) -> Path:
    """Return the executed notebook of a lesson, whose folder is named by its text and the package's code."""
    state = hashlib.sha256(f"{CODE}{find_notebook(name).read_text('utf-8')}".encode())
    return cache / "lessons" / f"{name}-{state.hexdigest()[:12]}" / REPORT


def _executed(cache: Path, lessons: Sequence[str], say: Callable[[str], None]) -> dict[str, Path]:
    """Run what this code has not run yet, on all cores; return executed lessons."""
    ran = {name: lesson_path(name, cache.absolute()) for name in lessons}
    missing = [name for name, path in ran.items() if not path.exists()][::-1]  # the labs take longest
    tasks = (delayed(_run)(name, ran[name].parent) for name in missing)
    for name, error in Parallel(max(1, min(cpu_count(), len(missing))), return_as="generator_unordered")(
        tasks
    ):
        say(f"{name} is left out: {error}" if error else f"{name} is made")
        if error:
            ran.pop(name)
    for old in {*cache.absolute().glob("lessons/*")} - {path.parent for path in ran.values()}:
        shutil.rmtree(old, ignore_errors=True)
    return ran


def _run(name: str, folder: Path) -> tuple[str, str]:
    """Run a lesson; return its name, and what went wrong."""
    try:
        run_notebook(ParameterNotebook.find(name), {}, folder, quiet=True)
    except CondnumError as error:
        return name, str(error)
    return name, ""


# Sources.


def _written(work: Path, lessons: Collection[str]) -> dict[str, str]:
    """Return the pages that are written by hand; a link to a lesson that is not there is words."""

    def link(found: re.Match[str]) -> str:
        return found[0] if found[2] in lessons else found[1]

    pages = {}
    for path in sorted(work.rglob("*.md")):
        text = re.sub(r"\[([^\]]*)\]\([^)]*?(\w+)\.ipynb\)", link, path.read_text(encoding="utf-8"))
        if "<!-- gallery -->" in text:
            text = text.replace("<!-- gallery -->", _gallery(lessons))
        pages[path.relative_to(work).as_posix()] = text
    return pages


def _gallery(lessons: Collection[str]) -> str:
    """Return a card for each lesson: picture, name and sentence of the notebooks' own start page."""
    start, cards = read_notebook(shipped("notebooks") / "0_start.ipynb").cells, []
    for cell in start:
        row = r"\| !\[(.*?)\]\(attachment:([1-9]_\w+)\.png\)<br>\*\*\[(.*?)\]\(.*?\)\*\* \| (.*?) \|"
        for alt, name, title, sentence in re.findall(row, cell.source):
            picture = cell.attachments[f"{name}.png"]["image/png"]
            link = f'a href="{name}.html"' if name in lessons else "span"
            cards.append(
                f'<{link} class="card"><img alt="{alt}" src="data:image/png;base64,{picture}">'
                f"<strong>{title}</strong><span>{sentence}</span></{link.split()[0]}>"
            )
    return f'<div class="gallery">\n{"".join(cards)}\n</div>'


def _api() -> dict[str, str]:
    """Return a page for each package, with the names of its `__all__` that no page before it has."""
    pages, documented = dict[str, str](), set[str]()
    for package in API:
        names = list(import_module(package).__all__)
        shared = ", ".join(name for name in names if name in documented)
        documented |= set(names)
        body = f"```{{eval-rst}}\n.. automodule:: {package}\n   :members:\n"
        body += f"   :exclude-members: {shared}\n" if shared else ""
        pages[f"api/{package}.md"] = f"---\nno-search: true\n---\n# {package}\n\n{body}```\n"
    return pages


def _results(root: Path) -> dict[str, str]:
    """Return the page of the results, the page of each run, and the earlier results as plain tables."""
    runs = {
        run.name.replace("_", "-"): run for place in (shipped("reports"), root) for run in executed(place)
    }
    pages = {
        f"results/{name}.ipynb": nbformat.writes(page_notebook(run.notebook, name))
        for name, run in runs.items()
    }
    body = results_body(
        root,
        lambda run: f"{run.name.replace('_', '-')}.html",
        lambda path: f"earlier-{path.parent.name}.html",
    )
    for path in sorted(shipped("reports").glob("*/README.md")):
        more = (of.read_text(encoding="utf-8") for of in sorted({*path.parent.glob("*.md")} - {path}))
        text = "\n\n".join([path.read_text(encoding="utf-8"), *(re.sub(r"(?m)^#", "##", of) for of in more)])
        pages[f"results/earlier-{path.parent.name}.md"] = _without_links(text)
    listed = "\n".join(Path(name).stem for name in pages)
    pages["results/index.md"] = (
        f"# Results\n\n```{{raw}} html\n{body}\n```\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    )
    return pages


def _without_links(text: str) -> str:
    """Return Markdown whose pictures are gone and whose links into the repository are words."""
    return re.sub(
        r"\[([^\]]*)\]\((?!http)[^)]*\)",
        r"\1",
        re.sub(r"!\[[^\]]*\]\([^)]*\)|<img[^>]*>|</?picture>|<source[^>]*>", "", text),
    )


def _scripts(folder: Path) -> None:
    """Write what pages share: plotly once, the explorers' scripts, the site's own script and style."""
    folder.mkdir(parents=True)
    package = Path(__file__).parents[1]
    for path in (path for kind in _SHARED for path in package.glob(kind)):
        shutil.copy(path, folder)
    write_text(folder / "math.css", math_css())
    write_text(folder / "plotly.min.js", require("plotly.offline", "viz").get_plotlyjs())


# Executed notebooks on pages.


def page_notebook(notebook: Any, name: str) -> Any:
    """Return an executed notebook as its page shows it.

    Cells with the tag `remove-cell` are for readers with a kernel: MyST-NB leaves them out.
    """
    page, figures = shown_notebook(notebook)
    drawn = [figure_html(figure, f"{name}-{number}") for number, figure in enumerate(figures)]
    for cell in page.cells:
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.setdefault("tags", [])
        if "idea" not in tags:  # what a lesson is about stands open
            tags.append("hide-input" if cell.source else "remove-input")
        if words := cell.metadata.get("condnum_summary"):
            cell.metadata["mystnb"] = {"code_prompt_show": words}
        cell.source = cell.source or "pass"  # MyST-NB leaves out cells without a source
        if "solution" in tags:
            cell.metadata["mystnb"] = {"code_prompt_show": "Solution in Python"}
        for output in cell.outputs:
            if "text/html" in output.get("data", {}):
                soup = BeautifulSoup(output.data["text/html"], "html.parser")
                mark_tables(soup)
                for text in soup.find_all(string=INDEX):
                    if not text.find_parent(["code", "script", "style"]):
                        text.replace_with(BeautifulSoup(formula_html(text), "html.parser"))
                for table in soup.find_all("table"):
                    table.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
                output.data["text/html"] = fill_slots(str(soup), drawn)
    return page
