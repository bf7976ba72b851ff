"""A run: papermill executes a notebook in a kernel of its own, and nbconvert makes its page.

`DIR/report.ipynb` and `report.html` are there whole or not at all; what a notebook writes beside them
(finished cells, tables) is its own affair.
"""

import copy
import errno
import logging
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from condnum import errors
from condnum.errors import CondnumError, OutputError, check_known, require
from condnum.files import atomic_write, output_folder, shipped
from condnum.machine import end_group
from condnum.page.notebook import ParameterNotebook

#: What a finished run leaves: the executed notebook, and its page; of one that failed, the executed part.
REPORT, PAGE, FAILED = "report.ipynb", "report.html", "report.failed.ipynb"
#: Parameters on which no result depends.
BESIDE = ("out", "quiet", "static", "jobs")
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


def experiment_of(book: ParameterNotebook) -> Any:
    """Return the module of an experiment's notebook; None if it is none of condnum's."""
    if book.path.parent != shipped("notebooks") / "experiments":
        return None
    with suppress(ModuleNotFoundError):
        return import_module(f"condnum.experiments.{book.path.stem}")


def check(book: ParameterNotebook, given: Mapping[str, Any]) -> None:
    """Refuse a name that is no parameter, and values that the experiment refuses, before a kernel starts."""
    for name in given:
        check_known(f"parameter of the notebook {book.path.stem}", name, book.parameters)
    if experiment := experiment_of(book):
        values = {name: of for name, of in {**book.defaults, **given}.items() if name not in BESIDE}
        list(experiment.cells(**values))


def run_into_folder(
    book: ParameterNotebook, given: Mapping[str, Any], folder: Path, *, quiet: bool = False, title: str = ""
) -> Any:
    """Run a notebook into a folder, with its page; return the executed notebook."""
    from condnum.page.html import export_html

    target = output_folder(folder)
    ours = {"out": str(target), "quiet": quiet}
    values = {**given, **{name: value for name, value in ours.items() if name in book.parameters}}
    try:
        check(book, values)
        report = run_notebook(book, values, target, quiet=quiet, title=title)
        export_html(report, target / PAGE, title=book.heading)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or STOPPED.is_set():
            # The tasks of a kernel that was stopped end in errors that nobody waits for.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            kept = len(list((target / "cells").glob("[!.]*.npz")))
            raise StoppedError(
                f"; finished cells kept in {target / 'cells'}: {kept}. The same command resumes from there."
                if kept
                else " before the first cell was finished; nothing was kept."
            ) from None
        if isinstance(error, NotebookError) and (target / FAILED).exists():
            error.args = (f"{error}; the executed part is kept in {target / FAILED}.",)
        raise
    finally:
        if not any(target.iterdir()):
            target.rmdir()
    (target / FAILED).unlink(missing_ok=True)
    return report


def run_notebook(
    book: ParameterNotebook,
    given: Mapping[str, Any],
    folder: Path,
    *,
    quiet: bool = False,
    title: str = "",
) -> Path:
    """Execute a notebook and write it, with its outputs, to `folder/report.ipynb`.

    The kernel is the current interpreter, in the caller's working directory; its progress is shown after
    `title`. A notebook with a parameter `static` shows figures instead of widgets, as a page has no kernel.
    When a cell fails for a reason that condnum does not know, the notebook up to there is kept.
    """
    papermill = require("papermill", "notebooks")
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # our messages and progress say the same
    values = {**({"static": True} if "static" in book.parameters else {}), **given}
    node, target = copy.deepcopy(book.node), output_folder(folder)
    node.metadata.setdefault(
        "kernelspec", {"name": "python3", "display_name": "Python 3", "language": "python"}
    )
    with atomic_write(target / REPORT) as temporary:
        line = ProgressLine(title)
        try:
            with running_kernel(cwd=Path.cwd(), beside=book.path.parent) as manager:
                finished = papermill.execute_notebook(
                    node,
                    str(temporary).replace("{", "{{").replace("}", "}}"),  # taken as a format string
                    values,
                    kernel_name="python3",
                    language="python",
                    progress_bar=False,
                    km=manager,
                    stderr_file=None if quiet else line,
                    store_widget_state=False,  # else 5 MB of JavaScript for each figure widget
                    coalesce_streams=True,
                )
        except CondnumError:
            raise
        except Exception as error:
            known = _known_error(error, book.path.stem)
            if isinstance(known, NotebookError) and temporary.exists():
                temporary.replace(target / FAILED)
            raise known from error
        finally:
            line.end()
        for key in ("input_path", "output_path"):  # temporary, and inside somebody's home
            finished.metadata["papermill"].pop(key, None)
        require("nbformat", "notebooks").write(finished, temporary)
    return target / REPORT


class ProgressLine:
    """Where a kernel's progress goes: one line that is written over, or, in a log, one every ten seconds."""

    def __init__(self, title: str = "") -> None:
        self.title, self.width, self.last = title, 0, time.monotonic()

    def write(self, text: str) -> None:
        """Show what begins at the start of a line, as tqdm writes it; warnings stand in the page."""
        shown = self.title + text.rpartition("\r")[2].strip("\n")
        if "\r" not in text or not shown.strip():
            return
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{shown:<{self.width}}")
            self.width = len(shown)
        elif time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            sys.stderr.write(f"{shown}\n")
        sys.stderr.flush()

    def flush(self) -> None:
        """Do nothing: each line is shown at once."""

    def end(self) -> None:
        """Leave the line free."""
        if self.width:
            sys.stderr.write(f"\r{' ' * self.width}\r")
            sys.stderr.flush()


@contextmanager
def running_kernel(*, cwd: Path, beside: Path) -> Generator[Any, None, None]:
    """Start an IPython kernel of the current interpreter; stop it, and what it started, at the end.

    It finds modules `beside` the notebook, as in JupyterLab.

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
    paths = os.pathsep.join(filter(None, [str(beside.resolve()), os.environ.get("PYTHONPATH")]))
    places, group = {**os.environ, "PYTHONPATH": paths}, None
    with open(os.devnull, "ab") as output:
        try:
            run_sync(manager.start_kernel)(cwd=str(cwd), env=places, stdout=output, stderr=output)
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
