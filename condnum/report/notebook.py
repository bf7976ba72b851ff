"""Running a notebook with parameters, so that it finishes whole, fails clearly and leaves nothing behind."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from condnum.errors import (
    CondnumError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
)
from condnum.extras import require
from condnum.files import atomic_write, output_folder
from condnum.progress import PROGRESS_VARIABLE
from condnum.report.kernel import KERNEL_NAME, running_kernel
from condnum.report.parameters import checked_parameters, declared_parameters, effective_parameters
from condnum.report.progress import OnProgress, following
from condnum.report.provenance import without_home
from condnum.report.run_folder import FAILED, REPORT
from condnum.report.terminal import terminal_progress

#: Errors of a disk, which papermill meets too when it saves.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NotebookError(CondnumError, RuntimeError):
    """A notebook failed for a reason that condnum does not know; the message names cell and error."""


def run_notebook(
    notebook: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    folder: str | os.PathLike[str],
    *,
    timeout: float | None = None,
    quiet: bool = False,
    progress: OnProgress | None = None,
) -> Path:
    """Execute a notebook and write it, with its outputs, to `folder/report.ipynb`.

    The kernel is the current interpreter, in the caller's working directory. Names and types of
    the parameters are checked before it starts. When a cell fails, the notebook up to there is kept
    as `folder/report.failed.ipynb`.
    """
    require("papermill", "notebooks")
    path = find_notebook(notebook)
    node = read_notebook(path)
    declared = declared_parameters(node)
    values = checked_parameters(parameters, declared, notebook=f"notebook {path.stem}")
    node.metadata["condnum"] = {
        "parameters": {k: without_home(v) for k, v in effective_parameters(values, declared).items()}
    }
    node.metadata.setdefault(
        "kernelspec", {"display_name": "Python 3", "language": "python", "name": KERNEL_NAME}
    )
    target = output_folder(folder)
    with atomic_write(target / REPORT) as temporary:
        try:
            with _progress(path.stem, quiet, progress) as report:
                _execute(node, temporary, values, timeout=timeout, report=report)
        except CondnumError:
            raise
        except Exception as error:
            failed = target / FAILED
            temporary.replace(failed)
            failure = _translated(error, path.stem, failed)
            raise failure from error
        _without_paths(temporary)
    (target / FAILED).unlink(missing_ok=True)  # of an earlier try
    return target / REPORT


def find_notebook(notebook: str | os.PathLike[str], *, tree: Path | None = None) -> Path:
    """Return the path of a notebook given by path, or by its name in the source tree."""
    path = Path(notebook).expanduser()
    if path.suffix == ".ipynb" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise DataNotFoundError(f"there is no notebook {path}; check the path.")
    folder = tree or Path(__file__).resolve().parents[2] / "notebooks"
    named = {
        path.stem: path for pattern in ("*.ipynb", "experiments/*.ipynb") for path in folder.glob(pattern)
    }
    if not named:
        raise DataNotFoundError(
            f"the notebook '{path}' was asked for by name, but this condnum has no "
            "notebooks folder beside it; run from a source tree (pip install -e .), or give an .ipynb file."
        )
    if path.name not in named:
        raise UnknownNameError("notebook", path.name, sorted(named))
    return named[path.name]


def read_notebook(path: Path) -> Any:
    """Read a notebook file."""
    nbformat = require("nbformat", "notebooks")
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat lets JSON, schema, key and attribute errors through
        raise InvalidInputError(
            f"{path} is not a Jupyter notebook ({error}); give an .ipynb file."
        ) from error


@contextmanager
def _progress(
    title: str, quiet: bool, progress: OnProgress | None
) -> Generator[OnProgress | None, None, None]:
    """Give the function that progress goes to, if any."""
    shown: Any = nullcontext(progress) if quiet or progress else terminal_progress(title)
    with shown as report:
        yield report


def _execute(
    node: Any, path: Path, values: Mapping[str, Any], *, timeout: float | None, report: OnProgress | None
) -> None:
    """Run the notebook in a kernel of its own, saving it to `path` after each cell."""
    papermill = require("papermill", "notebooks")
    logger = logging.getLogger("papermill")
    if not logger.handlers:  # its error lines would double our message on the terminal
        logger.addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="condnum-") as scratch:
        events, log = Path(scratch) / "progress.jsonl", Path(scratch) / "kernel.log"
        environment = {PROGRESS_VARIABLE: str(events)} if report else {}
        followed = following(events, report) if report else nullcontext()
        with followed, running_kernel(cwd=Path.cwd(), environment=environment, log=log) as manager:
            papermill.execute_notebook(
                node,
                str(path).replace("{", "{{").replace("}", "}}"),  # papermill takes paths as format strings
                dict(values),
                kernel_name=KERNEL_NAME,
                language="python",
                progress_bar=False,
                execution_timeout=int(timeout) if timeout else None,
                km=manager,
                store_widget_state=False,  # else 5 MB of JavaScript for each figure widget
                coalesce_streams=True,
            )


def _translated(error: Exception, name: str, failed: Path) -> CondnumError:
    """Turn what papermill raises into one of our errors."""
    if isinstance(error, OSError) and error.errno in _DISK:
        return OutputError(
            f"cannot write the report to {failed.parent}: {error.strerror}; free some space there, make it "
            "writable, or choose another folder with --out. The cells finished so far are kept."
        )
    kept = f"the executed part is kept in {failed}"
    ename, evalue = getattr(error, "ename", None), str(getattr(error, "evalue", ""))
    known = {kind.__name__: kind for kind in _subclasses(CondnumError)}.get(str(ename))
    if known is not None:
        same = known.__new__(known, evalue)  # not by calling it: some build their message from parts
        same.args = (evalue,)
        same.add_note(f"Raised in a cell of the notebook {name}; {kept}.")
        return same
    if ename is not None:
        where = f"in cell [{getattr(error, 'exec_count', '?')}]"
        return NotebookError(f"the notebook {name} failed {where} with {ename}: {evalue}; {kept}.")
    kind = type(error).__name__
    if kind == "CellTimeoutError":
        return NotebookError(
            f"a cell of the notebook {name} ran into its time limit; raise the limit, or ask for less "
            f"(fewer seeds, epochs or rows); {kept}."
        )
    if kind == "DeadKernelError":
        return NotebookError(
            f"the kernel of the notebook {name} died, most often for lack of memory; "
            f"try fewer rows or another device; {kept}."
        )
    return NotebookError(f"the notebook {name} could not be run ({kind}: {error}); {kept}.")


def _subclasses(kind: type[CondnumError]) -> set[type[CondnumError]]:
    """Return a class and all classes derived from it that are loaded."""
    return {kind}.union(*(_subclasses(child) for child in kind.__subclasses__()))


def _without_paths(path: Path) -> None:
    """Drop the temporary paths and the home folder that papermill stores in a finished notebook."""
    nbformat = require("nbformat", "notebooks")
    node = nbformat.read(path, as_version=4)
    record = node.metadata.get("papermill", {})
    for key in ("input_path", "output_path"):
        record.pop(key, None)
    nbformat.write(node, path)
