"""Notebooks: their parameters, a run that is whole or fails clearly, a kernel that leaves nothing behind."""

import ast
import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from condnum.audit import FeatureAudit
from condnum.errors import DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.files import shipped
from condnum.report.notebook import (
    NotebookError,
    ParameterNotebook,
    find_notebook,
    read_notebook,
    run_notebook,
    running_kernel,
)


@pytest.fixture
def write_notebook(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer: a parameters cell, then the given cells (`# …` is Markdown)."""

    def write(*cells: str, parameters: str = "seeds: int = 2", name: str = "small") -> Path:
        node = new_notebook()
        node.cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
        node.cells += [
            new_markdown_cell(cell) if cell.startswith("# ") else new_code_cell(cell) for cell in cells
        ]
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(node, path)
        return path

    return write


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# Parameters.

CELL = """
# how many
seeds: int = 5  # seeds
lr: float = 0.1
name: str = "b"
opt: Optional[str] = None
layers: list[int] = [1, 2]
flag = True
odd: Path = x
""".strip()


def test_parameters_and_defaults(write_notebook: Any) -> None:
    book = ParameterNotebook.find(write_notebook("# The *title*", parameters=CELL))
    assert book.defaults == {
        "seeds": 5, "lr": 0.1, "name": "b", "opt": None, "layers": [1, 2], "flag": True, "odd": None
    }  # fmt: skip
    assert [of.inferred_type_name for of in book.parameters.values()] == [
        "int", "float", "str", "Optional[str]", "list[int]", "None", "Path"
    ]  # fmt: skip
    assert (book.parameters["seeds"].help, book.parameters["lr"].help) == ("seeds", "")
    assert book.heading == "The title"
    with pytest.raises(UnknownNameError, match=r"the notebook small 'sedes'; did you mean 'seeds'"):
        run_notebook(book, {"sedes": 3}, "nowhere")


WRITTEN = """
%matplotlib inline
import math
s = "a=b"  # text
y = 1; x = 2
z = 2*3  # a product
a: "int | None" = None
b: dict[str, int] = {
    "k": 1,  # inner = comment
}  # sizes
c, d = 1, -2
e = f = 1e-3
g = "x # y"
h: float
_private = 3
print(s == "c", y)
w = math.pi
""".strip()


def test_parameters_are_read_as_python_reads_them(write_notebook: Any) -> None:
    book = ParameterNotebook.find(write_notebook(parameters=WRITTEN))
    assert book.defaults == {
        "s": "a=b", "y": 1, "x": 2, "z": None, "a": None, "b": {"k": 1}, "c": 1, "d": -2, "e": 1e-3,
        "f": 1e-3, "g": "x # y", "w": None,
    }  # fmt: skip
    found = book.parameters
    assert [found[name].help for name in ("s", "z", "b", "g")] == ["text", "a product", "sizes", ""]
    assert (found["a"].inferred_type_name, found["z"].default) == ("int | None", "2 * 3")
    broken = ParameterNotebook.find(write_notebook(parameters="x = 1\ny = (2"))
    with pytest.raises(InvalidInputError, match=r"small.ipynb is not valid Python: .*in its line 2"):
        _ = broken.parameters


@pytest.mark.parametrize(
    ("kernel", "language", "runs"),
    [("ir", "R", False), ("ir", "", False), ("julia-1.9", "julia", False), ("xcpp17", "C++17", False),
     ("", "R", False), ("my-env", "python", True), ("my-env", "", True), ("", "", True)],
)  # fmt: skip
def test_notebooks_of_other_languages_are_refused(
    write_notebook: Any, kernel: str, language: str, runs: bool
) -> None:
    path = write_notebook()
    node = nbformat.read(path, as_version=4)
    if kernel:
        about = {"language": language} if language else {}
        node.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, **about}
    elif language:
        node.metadata["language_info"] = {"name": language}
    nbformat.write(node, path)
    if runs:
        assert ParameterNotebook.find(path).defaults == {"seeds": 2}
    else:
        with pytest.raises(
            InvalidInputError, match=f"the kernel '{re.escape(kernel or language)}', and condnum"
        ):
            ParameterNotebook.find(path)


def test_every_parameter_of_every_notebook_is_an_option_with_help_and_an_effect() -> None:
    for path in sorted(shipped("notebooks").glob("experiments/*.ipynb")):
        book = ParameterNotebook.find(path)
        declared = re.findall(r"(?m)^(\w+)\b.* = ", book.cell.source)
        assert declared == list(book.parameters)
        assert all(parameter.help for parameter in book.parameters.values()), path
        rest = "\n".join(c.source for c in book.node.cells if c.cell_type == "code" and c is not book.cell)
        used = {node.id for node in ast.walk(ast.parse(rest)) if isinstance(node, ast.Name)}
        by_field = {field.name for field in fields(FeatureAudit)} if "globals()" in rest else set()
        assert set(declared) <= used | by_field, path  # none is ignored


@pytest.mark.parametrize("count", [0, 2])
def test_a_notebook_has_one_parameters_cell(write_notebook: Any, count: int) -> None:
    book = ParameterNotebook.find(write_notebook("x = 1"))
    for index, cell in enumerate(book.node.cells):
        cell.metadata["tags"] = ["parameters"] * (index < count)
    with pytest.raises(InvalidInputError, match=rf"exactly one code cell .*small.ipynb has {count}"):
        _ = book.parameters


def test_finding_notebooks(write_notebook: Any) -> None:
    path = write_notebook(name="house_prices")
    assert find_notebook(path) == path
    assert find_notebook("limits").parent.name == "experiments"
    assert find_notebook("4_ceiling").parent.name == "notebooks"
    with pytest.raises(UnknownNameError, match="unknown notebook 'house_price'; did you mean 'house_prices'"):
        find_notebook("house_price")


# Runs.

EVENTS = """
import json, os, sys
with open(os.environ["CONDNUM_PROGRESS"], "a") as stream:
    for done in range(3):
        stream.write(json.dumps({"stage": "ours", "done": done, "total": 3}) + "\\n")
print(sys.executable, os.getcwd(), seeds, sep="|")
"""


def test_a_whole_run(
    write_notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, on_shared_kernel: Any
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    folder = tmp_path / "out {braces}"  # papermill takes paths as format strings
    folder.mkdir()
    (folder / "report.failed.ipynb").write_text("of an earlier try")
    report = run_notebook(write_notebook("# Title", EVENTS), {"seeds": 7}, folder)
    assert report == folder / "report.ipynb"
    assert names(folder) == ["report.ipynb"]
    node = read_notebook(report)
    told = [output.text for cell in node.cells for output in cell.get("outputs", [])]
    assert "".join(told).split("|") == [sys.executable, str(tmp_path / "cwd"), "7\n"]
    assert re.search(r"small: 2/3 \[.*, ours\]", capsys.readouterr().err)
    assert node.metadata["condnum"] == {"parameters": {"seeds": 7}}
    assert node.metadata["kernelspec"]["name"] == "python3"
    assert str(tmp_path) not in str(node.metadata)
    assert "widgets" not in node.metadata


@pytest.mark.parametrize("version", [(3, 0), (4, 0), (4, 4)], ids=str)
def test_notebooks_of_older_formats_run(
    tmp_path: Path, version: tuple[int, int], on_shared_kernel: Any
) -> None:
    tagged, plain = {"tags": ["parameters"]}, {}
    cells = [
        {"cell_type": "code", "metadata": metadata, "outputs": [], "execution_count": None, "source": source}
        for metadata, source in ((tagged, "count = 2"), (plain, "print('so many', count)"))
    ]
    content: dict[str, Any] = {"metadata": {}, "nbformat": version[0], "nbformat_minor": version[1]}
    if version[0] == 3:
        cells = [
            {"cell_type": "code", "metadata": cell["metadata"], "outputs": [], "language": "python",
             "collapsed": False, "input": cell["source"]}
            for cell in cells
        ]  # fmt: skip
        content["worksheets"] = [{"metadata": {}, "cells": cells}]
    else:
        content["cells"] = cells
    (tmp_path / "old.ipynb").write_text(json.dumps(content))
    report = read_notebook(run_notebook(tmp_path / "old.ipynb", {"count": 5}, tmp_path / "out", quiet=True))
    assert [o.text for cell in report.cells for o in cell.get("outputs", [])] == ["so many 5\n"]


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        ("[][3]", r"the notebook small failed in cell \[\d+\] with IndexError: list .*failed\.ipynb"),
        ("import os; os.kill(os.getpid(), 9)", r"the kernel of the notebook small died.*fewer rows"),
    ],
    ids=["foreign", "killed"],
)
def test_a_cell_that_fails_or_kills_its_kernel(
    write_notebook: Any, tmp_path: Path, cell: str, match: str
) -> None:
    with pytest.raises(NotebookError, match=match):
        run_notebook(write_notebook(cell), {}, tmp_path / "out", quiet=True)
    assert names(tmp_path / "out") == ["report.failed.ipynb"]


def test_a_known_error_is_one_paragraph_in_the_notebook(tmp_path: Path, on_shared_kernel: Any) -> None:
    with pytest.raises(DataNotFoundError, match="house-prices: train"):
        run_notebook("house_prices", {"data": "nowhere"}, tmp_path, quiet=True)
    cells = read_notebook(tmp_path / "report.failed.ipynb").cells
    (error,) = [o for cell in cells for o in cell.get("outputs", []) if o.output_type == "error"]
    (paragraph,) = error.traceback
    assert paragraph.startswith("DataNotFoundError: house-prices: train.csv.gz or train.csv not found in: ")
    assert "or 'auto', which falls back to the bundled data; got 'nowhere'" in paragraph


def test_the_kernel_is_killed_when_a_gentle_stop_fails(tmp_path: Path) -> None:
    calls: list[bool] = []
    with pytest.raises(KeyboardInterrupt), running_kernel(cwd=tmp_path) as manager:  # ruff: ignore[pytest-raises-with-multiple-statements]
        kill = manager.shutdown_kernel
        process = manager.provisioner.process

        async def stop(now: bool = False) -> None:
            calls.append(now)
            if not now:
                raise KeyboardInterrupt
            await kill(now=True)

        manager.shutdown_kernel = stop
    assert calls == [False, True]
    assert process.poll() is not None
