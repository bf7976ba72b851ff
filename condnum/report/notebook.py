"""A notebook: its parameters, a run of it in a kernel of its own, and the folder with all that it leaves."""

import ast
import copy
import errno
import io
import logging
import os
import re
import shutil
import tempfile
import tokenize
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from condnum.errors import (
    CondnumError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
    check_known,
    require,
)
from condnum.files import FAILED, atomic_write, output_folder, shipped
from condnum.machine import end_group, threads_environment, without_home
from condnum.progress import PROGRESS_VARIABLE, OnProgress, following, terminal_progress

#: The tag of the cell that papermill looks for.
PARAMETERS_TAG = "parameters"

#: The executed notebook, as a finished run leaves it.
REPORT = "report.ipynb"


class NotebookError(CondnumError, RuntimeError):
    """A notebook failed for a reason that condnum does not know; the message names cell and error."""


# Notebooks and their parameters.


def find_notebook(notebook: str | os.PathLike[str]) -> Path:
    """Return the path of a notebook given by path, or by its name among those that come with condnum."""
    path = Path(notebook).expanduser()
    if path.suffix == ".ipynb" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise DataNotFoundError(f"there is no notebook {path}; check the path.")
    named = {found.stem: found for found in _own_notebooks(shipped("notebooks"))}
    if path.name not in named:
        raise UnknownNameError("notebook", path.name, sorted(named))
    return named[path.name]


def _own_notebooks(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.ipynb"), *folder.glob("experiments/*.ipynb")])


def copy_notebooks(folder: Path) -> list[Path]:
    """Copy condnum's notebooks; return those that were there and differ, which stay as they are."""
    source, differ = shipped("notebooks"), list[Path]()
    for notebook in _own_notebooks(source):
        copy = folder / notebook.relative_to(source)
        if not copy.exists():
            output_folder(copy.parent)
            with atomic_write(copy) as temporary:
                shutil.copyfile(notebook, temporary)
        elif copy.read_bytes() != notebook.read_bytes():
            differ.append(copy)
    return differ


def read_notebook(path: Path) -> Any:
    """Read a notebook file."""
    nbformat = require("nbformat", "notebooks")
    try:
        return nbformat.from_dict(nbformat.read(path, as_version=4))  # of version 3 come other classes
    except Exception as error:  # nbformat lets JSON, schema, key and attribute errors through
        raise InvalidInputError(
            f"{path} is not a Jupyter notebook ({error}); give an .ipynb file."
        ) from error


def first_heading(notebook: Any) -> str | None:
    """Return the text of the first heading of level one, without Markdown's signs."""
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    match = re.search(r"^# +(.+?)\s*#*$", prose, re.MULTILINE)
    return re.sub(r"[`*$]|<[^>]+>", "", match[1]) if match else None


@dataclass(frozen=True)
class ParameterNotebook:
    """A notebook with one cell tagged `parameters`, read once for its options, its run and its page."""

    path: Path
    node: Any  # as nbformat reads it

    @classmethod
    def find(cls, notebook: str | os.PathLike[str]) -> "ParameterNotebook":
        """Read a notebook given by path, or by its name among those that come with condnum."""
        path = find_notebook(notebook)
        node = read_notebook(path)
        translators = require("papermill.translators", "notebooks")
        kernel, about = (node.metadata.get(key, {}) for key in ("kernelspec", "language_info"))
        unsaid = "R" if kernel.get("name") == "ir" else "python"
        language = kernel.get("language") or about.get("name") or unsaid
        try:
            found = translators.papermill_translators.find_translator(kernel.get("name"), language)
        except require("papermill.exceptions", "notebooks").PapermillException:
            found = None
        if found is not translators.PythonTranslator:
            raise InvalidInputError(
                f"{path} is for the kernel '{kernel.get('name', language)}', and condnum runs notebooks in "
                "Python; run it with papermill or in Jupyter."
            )
        return cls(path, node)

    @cached_property
    def cell(self) -> Any:
        """The one cell that declares the parameters."""
        cells = [cell for cell in self.node.cells if PARAMETERS_TAG in cell.metadata.get("tags", [])]
        if len(cells) != 1 or cells[0].cell_type != "code":
            raise InvalidInputError(
                f"a notebook needs exactly one code cell tagged '{PARAMETERS_TAG}', {self.path} has "
                f"{len(cells)}; otherwise the notebook's defaults would overwrite the given values. "
                "JupyterLab's property inspector sets tags."
            )
        return cells[0]

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Papermill's record of each parameter by name: `inferred_type_name`, `default` and `help` as text.

        Of each name that the cell assigns to. Papermill itself reads lines with one equals sign, and misses
        `s = "a=b"` and `x = 1; y = 2`.
        """
        record, source, found = require("papermill.models", "notebooks").Parameter, self.cell.source, {}
        try:
            body = ast.parse(source).body
        except SyntaxError:  # with lines of IPython, such as %matplotlib inline
            manager = require("IPython.core.inputtransformer2", "notebooks").TransformerManager()
            source = manager.transform_cell(source)
            try:
                body = ast.parse(source).body
            except SyntaxError as error:
                raise InvalidInputError(
                    f"the parameters cell of {self.path} is not valid Python: {error.msg} in its line "
                    f"{error.lineno}."
                ) from error
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {t.start[0]: t.string.lstrip("#").strip() for t in tokens if t.type == tokenize.COMMENT}
        for statement in body:
            about = comments.get(statement.end_lineno or 0, "")
            kind: ast.expr | None = getattr(statement, "annotation", None)
            said = kind.value if isinstance(kind, ast.Constant) else kind and ast.unparse(kind)
            for name, value in _assigned(statement):
                found[name] = record(name, str(said), ast.unparse(value), about)
        return found

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults by name; None where the text is not a literal."""
        return {name: _literal(parameter.default) for name, parameter in self.parameters.items()}

    @property
    def heading(self) -> str:
        """The first heading, or the name of the file."""
        return first_heading(self.node) or self.path.stem


def _assigned(statement: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Return the public names to which a statement assigns, each with its value."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return []
    pairs = list[tuple[ast.expr, ast.expr]]()
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs += zip(target.elts, statement.value.elts, strict=False)
        else:
            pairs.append((target, statement.value))
    return [(to.id, value) for to, value in pairs if isinstance(to, ast.Name) and to.id[0] != "_"]


def _literal(text: str) -> Any:
    """Return the value of a literal, None of any other text."""
    try:
        return ast.literal_eval(text)
    except Exception:  # whatever half an expression makes of Python's parser
        return None


def is_arithmetic(text: str) -> bool:
    """Tell whether an expression is made of numbers alone, such as 2 * 3; it is never evaluated."""
    arithmetic = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(
        isinstance(node, arithmetic) or isinstance(getattr(node, "value", None), int | float)
        for node in ast.walk(ast.parse(text, mode="eval").body)
    )


# Running one.


@contextmanager
def running_kernel(*, cwd: Path, environment: Mapping[str, str] | None = None) -> Generator[Any, None, None]:
    """Start an IPython kernel of the current interpreter and stop it when the block ends.

    One that is still busy (Ctrl-C, a cell over its time limit) is interrupted first, so that it can finish
    the file that it is writing, and killed if it does not; worker processes that outlive it are killed.
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
            group = getattr(manager.provisioner, "pgid", None)
            yield manager
        finally:
            try:
                if manager.has_kernel:
                    run_sync(manager.shutdown_kernel)(now=False)
            except BaseException:
                with suppress(RuntimeError):  # the process has gone meanwhile: as wanted
                    run_sync(manager.shutdown_kernel)(now=True)
                raise
            finally:
                if group and group != os.getpgrp():  # None on Windows
                    end_group(group)


def run_notebook(
    notebook: str | os.PathLike[str] | ParameterNotebook,
    parameters: Mapping[str, Any],
    folder: str | os.PathLike[str],
    *,
    quiet: bool = False,
    progress: OnProgress | None = None,
    threads: int = 0,
    optional: Mapping[str, Any] | None = None,
    shown: str | os.PathLike[str] | None = None,
) -> Path:
    """Execute a notebook and write it, with its outputs, to `folder/report.ipynb`.

    The kernel is the current interpreter, in the caller's working directory, with so many threads (0: all).
    `progress` receives the events of the notebook, instead of the terminal. `optional` values are passed on
    if the notebook has such parameters. When a cell fails, the notebook up to there is kept as
    `folder/report.failed.ipynb`; messages say so of the folder `shown`, where the caller moves it.
    """
    require("papermill", "notebooks")
    book = notebook if isinstance(notebook, ParameterNotebook) else ParameterNotebook.find(notebook)
    values = {**parameters, **{k: v for k, v in (optional or {}).items() if k in book.parameters}}
    node, name = copy.deepcopy(book.node), book.path.stem
    for parameter in values:
        check_known(f"parameter of the notebook {name}", parameter, book.parameters)
    defaults = {
        k: of.default if book.defaults[k] is None else book.defaults[k] for k, of in book.parameters.items()
    }
    effective = {parameter: without_home(value) for parameter, value in {**defaults, **values}.items()}
    node.metadata["condnum"] = {"parameters": effective}
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    node.metadata.setdefault("kernelspec", python)
    target = output_folder(folder)
    bar: Any = nullcontext(progress) if quiet or progress else terminal_progress(name)
    environment = threads_environment(threads) | {"LOKY_MAX_CPU_COUNT": str(threads)} if threads else {}
    with atomic_write(target / REPORT) as temporary:
        try:
            with bar as report:
                finished = _execute(node, temporary, values, report, environment)
        except CondnumError:
            raise
        except Exception as error:
            temporary.replace(target / FAILED)
            raise _translated(error, name, Path(shown or target) / FAILED) from error
        for key in ("input_path", "output_path"):  # temporary, and inside somebody's home
            finished.metadata.get("papermill", {}).pop(key, None)
        require("nbformat", "notebooks").write(finished, temporary)
    (target / FAILED).unlink(missing_ok=True)  # of an earlier try
    return target / REPORT


def _execute(
    node: Any,
    path: Path,
    values: Mapping[str, Any],
    report: OnProgress | None,
    environment: Mapping[str, str],
) -> Any:
    """Run the notebook in a kernel of its own, saving it to `path` after each cell; return it."""
    papermill = require("papermill", "notebooks")
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # our messages and progress say the same
    with tempfile.TemporaryDirectory(prefix="condnum-") as scratch:
        events = Path(scratch) / "progress.jsonl"
        environment = {**environment, **({PROGRESS_VARIABLE: str(events)} if report else {})}
        followed = following(events, report) if report else nullcontext()
        with followed, running_kernel(cwd=Path.cwd(), environment=environment) as manager:
            return papermill.execute_notebook(
                node,
                str(path).replace("{", "{{").replace("}", "}}"),  # papermill takes paths as format strings
                dict(values),
                kernel_name="python3",
                language="python",
                progress_bar=False,
                km=manager,
                store_widget_state=False,  # else 5 MB of JavaScript for each figure widget
                coalesce_streams=True,
            )


def _translated(error: Exception, name: str, failed: Path) -> CondnumError:
    """Turn what papermill raises into one of our errors."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return OutputError(
            f"cannot write the report to {failed.parent}: {error.strerror}; free some space there, make it "
            "writable, or choose another folder with --out. The cells finished so far are kept."
        )
    ename, kind, ours = getattr(error, "ename", None), type(error).__name__, [CondnumError]
    while ours:
        known = ours.pop()
        ours += known.__subclasses__()
        if known.__name__ == ename:
            same = known.__new__(known)  # not by calling it: some build their message from parts
            same.args = (str(getattr(error, "evalue", "")),)
            same.add_note(f"Raised in a cell of the notebook {name}; the executed part is kept in {failed}.")
            return same
    said = {
        "PapermillExecutionError": f"the notebook {name} failed in cell [{getattr(error, 'exec_count', '?')}]"
        f" with {ename}: {getattr(error, 'evalue', '')}",
        "DeadKernelError": f"the kernel of the notebook {name} died, most often because memory ran out; "
        "try fewer rows or another device",
    }.get(kind, f"the notebook {name} could not be run ({kind}: {error})")
    return NotebookError(f"{said}; the executed part is kept in {failed}.")
