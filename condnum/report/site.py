"""Building the whole site beside the old one, and swapping them when it is finished."""

import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from condnum.errors import CondnumError, DataNotFoundError, OutputError, require
from condnum.files import folder_lock, output_folder, write_text
from condnum.report.front import front_html
from condnum.report.html import read_asset, report_css
from condnum.report.pages import glossary_html, notebook_page, render, templates_script
from condnum.report.reproduce import RECORD, ReproductionRecord, read_record
from condnum.report.results import REPORT, Result, read_result

#: The front page, and the folder of everything else.
INDEX, SITE = "index.html", "site"

#: Start of the name of a folder in which a site grows.
_HIDDEN = ".site-"


def build_site(root: Path, target: Path) -> Path:
    """Write the site of a reproduction: static, offline, plotly once.

    `target/index.html` is the front page; `target/site/` holds a page for each experiment that has a
    result, the glossary, the scripts, and of each run its notebook, provenance and tables. The site is
    built in a hidden folder beside the old one and takes its place when it is whole; other files of
    `target` are not touched.
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
    footer = f"condnum {metadata.version('condnum')}, reproduction of {record.started_utc[:10]}"
    for name, text in {
        "site.css": f"{report_css()}\n{read_asset('assets/site.css')}",
        "site.js": read_asset("assets/site.js"),
        "templates.js": templates_script(),
        "plotly.min.js": require("plotly.offline", "viz").get_plotlyjs(),
        "glossary.html": glossary_html(footer),
    }.items():
        write_text(site / name, text)
    shown = [run for run in results if run.page]
    for run, before, after in zip(shown, [None, *shown], [*shown[1:], None], strict=False):
        path = Path(run.folder or "") / REPORT
        body, cells = notebook_page(path, run.record.title, path.stat().st_mtime_ns)
        files = run.publish(site / "runs" / run.name)
        page = render(
            "experiment.html.j2", body=body, html=cells, run=run, files=files, before=before, after=after
        )
        write_text(site / str(run.page), page)
    write_text(scratch / INDEX, front_html(record, results, footer))


@contextmanager
def _scratch(folder: Path) -> Generator[Path]:
    """Give a hidden folder on the same disk; it is removed, and so are those that killed builds left."""
    for stale in folder.glob(f"{_HIDDEN}*"):  # the lock is ours: nobody works there
        shutil.rmtree(stale, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=_HIDDEN, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)
    except CondnumError:
        raise  # some of them are OSErrors too
    except OSError as error:
        raise OutputError(
            f"the site cannot be written to {folder}: {error.strerror or error}; free some space there, make "
            "it writable, or choose another folder. The old site is as it was."
        ) from error


def _swap(scratch: Path, folder: Path) -> None:
    """Put the new site in the place of the old one; if that fails, put the old one back."""
    old, site = scratch / "old", folder / SITE
    if site.exists():
        os.replace(site, old)
    try:
        os.replace(scratch / SITE, site)
        os.replace(scratch / INDEX, folder / INDEX)
    except OSError:
        if old.exists():
            shutil.rmtree(site, ignore_errors=True)
            with suppress(OSError):
                os.replace(old, site)
        raise
    for path in (site, folder / INDEX):
        path.chmod(path.stat().st_mode | 0o044 | (0o011 if path.is_dir() else 0))
