"""A run: a notebook in a kernel of its own, and the folder with its tables, page and record.

The notebook's first cells make the study and load the data, the last one writes the record of what was
run. Nothing is loaded here.
"""

import copy
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from condnum import errors
from condnum.errors import CondnumError, OutputError, check_known, require
from condnum.files import (
    FAILED,
    FAILURES,
    RECORD,
    atomic_write,
    data_folders,
    output_folder,
    read_record,
    read_table,
    results_folder,
    sha256_file,
    shipped,
    signature,
    write_json,
)
from condnum.machine import end_group, provenance, source_revision
from condnum.progress import PROGRESS_VARIABLE, following, terminal_progress
from condnum.page.notebook import ParameterNotebook
from condnum.stale import code_hash

#: What a finished run leaves beside its tables: the executed notebook and its page.
REPORT, PAGE = "report.ipynb", "report.html"

#: Parameters on which no result depends.
_BESIDE = ("out", "quiet", "static", "jobs")

#: Set when a signal has stopped this program.
STOPPED = threading.Event()


class NotebookError(CondnumError, RuntimeError):
    """A notebook failed for a reason that condnum does not know; the message names cell and error."""


class StoppedError(KeyboardInterrupt):
    """A run was stopped; the text says what is kept."""


def say(message: str) -> None:
    """Print one wrapped paragraph on the standard error, after the program's name."""
    width = min(100, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    print(wrapper.fill(f"condnum: {' '.join(message.split())}"), file=sys.stderr, flush=True)


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds a finished run."""
    return all((folder / name).is_file() for name in (REPORT, PAGE, RECORD))


def run_key(book: ParameterNotebook, given: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a result depends on: parameters, code, and files that the notebook may read.

    These are the files and folders that parameters name, and what bears their names in the data folders.
    """
    values = {name: str(of) for name, of in {**book.defaults, **given}.items() if name not in _BESIDE}
    words = {"house", "mnist", *re.findall(r"[a-z]{4,}", " ".join(values.values()).lower())}
    places = [Path(part).expanduser() for of in values.values() for part in of.split(",") if part]
    for folder in data_folders():
        named = sorted(folder.iterdir()) if folder.is_dir() else []
        places += [place for place in named if any(word in place.name.lower() for word in words)]
    code = [cell.source for cell in book.node.cells if cell.cell_type == "code"]
    parts = [book.path.stem, values, code_hash(), code, [signature(place) for place in places]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def kept_record(folder: Path, key: str) -> dict[str, Any]:
    """Return the record of a whole run with this key whose files are as it left them; else an empty one."""
    with suppress(CondnumError):
        record = read_record(folder)
        files = record.get("files", {})
        same = record.get("key") == key and FAILURES not in files
        if same and all(sha256_file(folder / name) == digest for name, digest in files.items()):
            return record
    return {}


def run_into_folder(
    book: ParameterNotebook, given: Mapping[str, Any], folder: Path, *, quiet: bool = False
) -> dict[str, Any]:
    """Run a notebook into a folder, which has its results before or, whole, those with page and record.

    Returns the record of the run, with `failures`, a line per cell that failed. A notebook of condnum runs
    only if there is no result yet that is the same.
    """
    ours_too = book.path.is_relative_to(shipped("notebooks"))  # others may read what nobody knows of
    key = run_key(book, given) if ours_too else ""
    if key and (record := kept_record(folder.expanduser(), key)):
        say(
            f"reused: parameters, data and code are those of the run of {record['started_utc'][:16]} UTC; "
            f"remove {folder} to compute it again."
        )
        _warn(record)
        return {**record, "failures": []}
    from condnum.page.html import answer_of, export_html

    started, source = datetime.now(UTC), source_revision()
    with results_folder(folder) as results:
        ours = {"out": str(results.path), "quiet": quiet}
        values = {**given, **{name: value for name, value in ours.items() if name in book.parameters}}
        try:
            report = run_notebook(book, values, results.path, quiet=quiet)
            shown = {name: of for name, of in {**book.defaults, **given}.items() if name not in ours}
            record = read_record(results.path) | provenance(shown, started, source)
            title = ", ".join(record.get("data", ()))
            title = f"{book.heading} ({title})" if title else book.heading
            export_html(report, results.path / PAGE, title=title)
            if said := answer_of(report):
                record["answer"] = said
            record |= {"key": key, "files": results.checksums()}
            write_json(results.path / RECORD, record)
            failures = read_table(results.path, "failures")
            results.replace()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or STOPPED.is_set():
                raise StoppedError(_stopped(results)) from None
            if (results.path / FAILED).exists():  # with a reason that condnum does not know
                os.replace(results.path / FAILED, output_folder(results.folder) / FAILED)
                error.args = (f"{error}; the executed part is kept in {results.folder / FAILED}.",)
            raise
    _warn(record)
    rows = () if failures is None else failures.itertuples(index=False)
    return {**record, "failures": [": ".join(" ".join(str(word).split()) for word in row) for row in rows]}


def _warn(record: Mapping[str, Any]) -> None:
    """Say what whoever started a run has to know."""
    for warning in record.get("warnings", ()):
        say(f"warning: {warning}")


def _stopped(results: Any) -> str:
    """Say what a stopped run has left."""
    # The tasks of a kernel that was stopped end in errors that nobody waits for.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if is_whole(results.folder) and not results.path.exists():
        return f" after the run had finished: the results in {results.folder} are complete."
    kept = sum(1 for _ in results.cells.glob("[!.]*.npz"))
    if not kept:
        shutil.rmtree(results.cells, ignore_errors=True)
        return " before the first cell was finished; nothing was kept."
    return f"; finished cells kept in {results.cells}: {kept}. The same command resumes from there."


# A notebook in a kernel.


def run_notebook(
    book: ParameterNotebook,
    given: Mapping[str, Any],
    folder: Path,
    *,
    quiet: bool = False,
) -> Path:
    """Execute a notebook and write it, with its outputs, to `folder/report.ipynb`.

    The kernel is the current interpreter, in the caller's working directory. A notebook with a parameter
    `static` shows figures instead of widgets, as a page has no kernel. When a cell fails for a reason that
    condnum does not know, the notebook up to there is kept as `folder/report.failed.ipynb`.
    """
    papermill = require("papermill", "notebooks")
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # our messages and progress say the same
    for name in given:
        check_known(f"parameter of the notebook {book.path.stem}", name, book.parameters)
    values = {**({"static": True} if "static" in book.parameters else {}), **given}
    node, target = copy.deepcopy(book.node), output_folder(folder)
    node.metadata.setdefault(
        "kernelspec", {"name": "python3", "display_name": "Python 3", "language": "python"}
    )
    bar: Any = nullcontext() if quiet else terminal_progress(book.path.stem)
    with (
        atomic_write(target / REPORT) as temporary,
        tempfile.TemporaryDirectory(prefix="condnum-") as scratch,
    ):
        events = Path(scratch) / "progress.jsonl"
        try:
            with bar as report, following(events, report) if report else nullcontext():
                environment = {PROGRESS_VARIABLE: str(events)} if report else {}
                with running_kernel(cwd=Path.cwd(), environment=environment) as manager:
                    finished = papermill.execute_notebook(
                        node,
                        str(temporary).replace("{", "{{").replace("}", "}}"),  # taken as a format string
                        values,
                        kernel_name="python3",
                        language="python",
                        progress_bar=False,
                        km=manager,
                        store_widget_state=False,  # else 5 MB of JavaScript for each figure widget
                        coalesce_streams=True,
                    )
        except CondnumError:
            raise
        except Exception as error:
            known = _known_error(error, book.path.stem)
            if isinstance(known, NotebookError):
                temporary.replace(target / FAILED)
            raise known from error
        for key in ("input_path", "output_path"):  # temporary, and inside somebody's home
            finished.metadata["papermill"].pop(key, None)
        require("nbformat", "notebooks").write(finished, temporary)
    return target / REPORT


@contextmanager
def running_kernel(*, cwd: Path, environment: Mapping[str, str] | None = None) -> Generator[Any, None, None]:
    """Start an IPython kernel of the current interpreter; stop it, and what it started, at the end.

    One that is busy (Ctrl-C) is interrupted first, so that it can finish the file that it is writing.
    """
    require("ipykernel", "notebooks")
    run_sync = require("jupyter_core.utils", "notebooks").run_sync
    specs = require("jupyter_client.kernelspec", "notebooks").KernelSpecManager
    manager = require("jupyter_client.manager", "notebooks").AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=specs(kernel_dirs=[]),  # whatever is registered under this name
        shutdown_wait_time=5.0,
    )
    group: int | None = None
    with open(os.devnull, "ab") as output:
        try:
            run_sync(manager.start_kernel)(
                cwd=str(cwd), env={**os.environ, **(environment or {})}, stdout=output, stderr=output
            )
            group = getattr(manager.provisioner, "pgid", None)  # None on Windows
            yield manager
        finally:
            try:
                if manager.has_kernel:
                    with suppress(RuntimeError):  # the process has gone meanwhile: as wanted
                        run_sync(manager.shutdown_kernel)()
            finally:
                if group and group != os.getpgrp():
                    end_group(group)


def _known_error(error: Exception, name: str) -> CondnumError:
    """Turn what papermill raises into one of our errors."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return OutputError(
            f"cannot write the report: {error.strerror}; free some space there, make it writable, or choose "
            "another folder with --out. The cells finished so far are kept."
        )
    ename, evalue = getattr(error, "ename", ""), str(getattr(error, "evalue", ""))
    if getattr(error, "traceback", None) == [f"{ename}: {evalue}"]:  # as our errors show themselves
        known = getattr(errors, ename, CondnumError)
        same: CondnumError = known.__new__(known)  # not by calling it: some build their message from parts
        same.args = (evalue,)
        return same
    if ename:
        cell = getattr(error, "exec_count", "?")
        return NotebookError(f"the notebook {name} failed in cell [{cell}] with {ename}: {evalue}")
    if type(error).__name__ == "DeadKernelError":
        return NotebookError(
            f"the kernel of the notebook {name} died, most often because memory ran out; try fewer rows or "
            "another device"
        )
    return NotebookError(f"the notebook {name} could not be run ({type(error).__name__}: {error})")
