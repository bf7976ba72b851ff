"""Building the whole site beside the old one, and swapping them when it is finished."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from condnum.errors import CondnumError, DataNotFoundError, OutputError
from condnum.extras import require
from condnum.files import output_folder, write_text
from condnum.folder_lock import folder_lock
from condnum.report.html import report_css
from condnum.reproduce.record import RECORD, ReproductionRecord, read_record
from condnum.site.pages import (
    NotebookPage,
    experiment_html,
    front_html,
    glossary_html,
    notebook_page,
    read_asset,
)
from condnum.site.plot_data import templates_script
from condnum.site.result import REPORT, Result, read_result
from condnum.site.run_facts import publish_files

#: The front page, and the folder of everything else.
INDEX, SITE = "index.html", "site"

#: Start of the name of a folder in which a site grows.
_HIDDEN = ".site-"

#: Converted notebooks by path and time of change.
_pages: dict[tuple[Path, int], NotebookPage] = {}


def build_site(root: Path, target: Path) -> Path:
    """Write the site of a reproduction: static, offline, plotly once.

    `target/index.html` is the front page; `target/site/` holds a page for each experiment that has a
    result, the glossary, the scripts, and of each run its notebook, provenance and tables. The site is
    built in a hidden folder beside the old one and takes its place when it is whole; other files of
    `target` are not touched.

    Args:
        root: A reproduction's folder, with `reproduction.json`.
        target: Where the site goes; created if missing.

    Returns:
        The front page.

    Raises:
        DataNotFoundError: `root` holds no reproduction.
        InvalidInputError: Its record is damaged or names a folder elsewhere.
        DataFormatError: A table of a run is damaged.
        OutputError: The site cannot be written, or another process is writing it; the old one is as it was.
        MissingExtraError: nbconvert or plotly is not installed.
    """
    record = read_record(Path(root))
    if record is None:
        raise DataNotFoundError(f"{root} holds no {RECORD}; make a reproduction first: condnum reproduce.")
    results = [read_result(entry, Path(root)) for entry in record.experiments]
    folder = output_folder(target)
    with folder_lock(folder), _scratch(folder) as scratch:
        _write(record, results, scratch)
        _swap(scratch, folder)
    return folder / INDEX


def _write(record: ReproductionRecord, results: Sequence[Result], scratch: Path) -> None:
    """Write every file of the site into a folder."""
    site = scratch / SITE
    site.mkdir()
    write_text(site / "site.css", f"{report_css()}\n{read_asset('site.css')}")
    write_text(site / "site.js", read_asset("site.js"))
    write_text(site / "templates.js", templates_script())
    write_text(site / "plotly.min.js", require("plotly.offline", "viz").get_plotlyjs())
    footer = f"condnum {metadata.version('condnum')}, reproduction of {record.started_utc[:10]}"
    write_text(site / "glossary.html", glossary_html(footer))
    shown = [run for run in results if run.folder is not None]
    pictures = {}
    for place, run in enumerate(shown):
        page = _converted(run)
        files = publish_files(run, site / "runs" / run.name)
        before = shown[place - 1] if place else None
        after = shown[place + 1] if place + 1 < len(shown) else None
        write_text(site / str(run.page), experiment_html(page, run, files, before, after))
        if page.picture is not None:
            pictures[run.name] = page.picture
    write_text(scratch / INDEX, front_html(record, results, pictures, footer))


def _converted(run: Result) -> NotebookPage:
    """Convert each notebook once a process: a site that grows is built after every experiment."""
    path = Path(run.folder or "") / REPORT
    key = path, path.stat().st_mtime_ns
    if key not in _pages:
        _pages[key] = notebook_page(run)
    return _pages[key]


@contextmanager
def _scratch(folder: Path) -> Generator[Path]:
    """Give a hidden folder on the same disk; it is removed, and so are those that killed builds left."""
    for stale in folder.glob(f"{_HIDDEN}*"):  # the lock is ours: nobody works there
        shutil.rmtree(stale, ignore_errors=True)
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=_HIDDEN))
    except OSError as error:
        raise OutputError(_words(folder, error)) from error
    try:
        yield scratch
    except CondnumError:
        raise  # some of them are OSErrors too
    except OSError as error:
        raise OutputError(_words(folder, error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(scratch: Path, folder: Path) -> None:
    """Put the new site in the place of the old one; if that fails, put the old one back."""
    old, site = scratch / "old", folder / SITE
    had = site.exists()
    if had:
        os.replace(site, old)
    try:
        os.replace(scratch / SITE, site)
        os.replace(scratch / INDEX, folder / INDEX)
    except OSError:
        if had:
            shutil.rmtree(site, ignore_errors=True)
            with suppress(OSError):
                os.replace(old, site)
        raise
    for path in (site, folder / INDEX):
        path.chmod(path.stat().st_mode | 0o044 | (0o011 if path.is_dir() else 0))


def _words(folder: Path, error: OSError) -> str:
    """Say why the site could not be written."""
    return (
        f"the site cannot be written to {folder}: {error.strerror or error}; free some space there, make it "
        "writable, or choose another folder. The old site is as it was."
    )
