"""A notebook: where it lies, the parameters cell that is its options, and copies for JupyterLab."""

import ast
import io
import os
import re
import shutil
import tokenize
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from condnum.errors import DataNotFoundError, InvalidInputError, UnknownNameError, require
from condnum.files import atomic_write, output_folder, shipped

#: The tag of the cell that papermill looks for.
PARAMETERS_TAG = "parameters"
#: How an executed notebook keeps the run of an experiment, for programs, beside what it shows.
RUN_TYPE = "application/vnd.condnum.run+json"
#: How it keeps a figure, and the recording of an explorer beside its first figure.
PLOTLY = "application/vnd.plotly.v1+json"
RECORDING = "application/vnd.condnum.explorer+json"


def notebooks() -> dict[str, Path]:
    """Return the notebooks that come with condnum by their names: the lessons, then the experiments."""
    folder = shipped("notebooks")
    return {
        path.stem: path for path in sorted([*folder.glob("*.ipynb"), *folder.glob("experiments/*.ipynb")])
    }


def experiment_names() -> list[str]:
    """Return the names of the experiments: those of their notebooks but the two that judge, as typed."""
    found = (path.stem for path in notebooks().values() if path.parent.name == "experiments")
    return [name.replace("_", "-") for name in found if name not in ("audit", "referee")]


def find_notebook(notebook: str | os.PathLike[str]) -> Path:
    """Return the path of a notebook given by path, or by its name among those that come with condnum."""
    path = Path(notebook).expanduser()
    if path.suffix == ".ipynb" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise DataNotFoundError(f"there is no notebook {path}; check the path.")
    known = {name.replace("_", "-"): found for name, found in notebooks().items()}
    name = path.name.replace("_", "-")
    if name not in known:
        raise UnknownNameError("notebook", path.name, known)
    return known[name]


def copy_notebooks(folder: Path) -> list[Path]:
    """Copy condnum's notebooks; return those that were there and differ, which stay as they are."""
    source, differ = shipped("notebooks"), list[Path]()
    for notebook in notebooks().values():
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


class Parameter(NamedTuple):
    """A line of the parameters cell, `name: kind = default  # help`."""

    name: str
    kind: str  # int, float, str, bool, or whatever else stands there; None is always allowed
    default: Any
    help: str


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
        kernel, about = (node.metadata.get(key, {}) for key in ("kernelspec", "language_info"))
        language = kernel.get("language") or about.get("name") or "python"
        if language.lower() != "python":
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
    def _read(self) -> tuple[dict[str, Parameter], dict[str, str]]:
        """Read the cell: parameters, and the assignments that are none with their lines."""
        try:
            lines, body = self.cell.source.splitlines(), ast.parse(self.cell.source).body
        except SyntaxError as error:
            raise InvalidInputError(
                f"the parameters cell of {self.path} is not Python (line {error.lineno}: {error.msg})."
            ) from error
        found, others = dict[str, Parameter](), dict[str, str]()
        for line in body:
            if not isinstance(line, ast.Assign | ast.AnnAssign):
                continue
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            names = [name.id for of in targets for name in ast.walk(of) if isinstance(name, ast.Name)]
            try:
                (target,) = targets
                default = ast.literal_eval(line.value)  # type: ignore[arg-type]  # None is no literal
                assert isinstance(target, ast.Name)
            except (ValueError, TypeError, AssertionError):
                others |= dict.fromkeys(names, ast.unparse(line))
                continue
            own = "\n".join(lines[line.lineno - 1 : line.end_lineno])  # formatters break long ones
            tokens = tokenize.generate_tokens(io.StringIO(own).readline)
            comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
            said = comments[-1].lstrip("# ").strip() if comments else ""
            kind = ast.unparse(line.annotation) if isinstance(line, ast.AnnAssign) else type(default).__name__
            kind = re.sub(r"^Optional\[(.*)\]$|\s*\|\s*None\b|\bNone\s*\|\s*", r"\1", kind)
            found[target.id] = Parameter(target.id, kind, default, said)
        return found, others

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters by name: assignments of one name to a literal."""
        return self._read[0]

    @property
    def others(self) -> dict[str, str]:
        """Assignments of the cell that are no parameters, by the names that they set."""
        return self._read[1]

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults by name."""
        return {name: parameter.default for name, parameter in self.parameters.items()}

    @property
    def heading(self) -> str:
        """The first heading, or the name of the file."""
        return first_heading(self.node) or self.path.stem

    @property
    def about(self) -> str:
        """The comment with which the parameters cell begins, or the heading."""
        comments = takewhile(lambda line: line[:1] == "#", self.cell.source.splitlines())
        return "\n".join(line[1:].removeprefix(" ") for line in comments) or self.heading


def literal(text: str) -> Any:
    """Return the value of a Python literal, and any other text as it is.

    Examples:
        >>> literal("[1, 2]"), literal("4-7")
        ([1, 2], '4-7')
    """
    try:
        return ast.literal_eval(text)
    except Exception:  # whatever half an expression makes of Python's parser
        return text
