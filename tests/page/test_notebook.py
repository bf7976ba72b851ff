"""Notebooks: their parameters, a run that is whole or fails clearly, a kernel that leaves nothing behind."""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from condnum.errors import CondnumError, DataNotFoundError, InvalidInputError, UnknownNameError
from condnum.files import shipped
from condnum.page.notebook import ParameterNotebook, find_notebook, read_notebook
from condnum.page.run import NotebookError, check, run_notebook


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# Parameters.

CELL = """
# how many
seeds: int = 5  # a # of seeds
lr: float = 0.1
name: str = (
    "b"  # so # it is
)
opt: Optional[int] = None
word: str | None = None
a, c = 1, 2
half = 1 / 2
layers: list[int] = [1, 2]
flag = True
""".strip()


def test_parameters_and_defaults(write_notebook: Any) -> None:
    book = ParameterNotebook.find(write_notebook("# The *title*", parameters=CELL))
    assert book.defaults == {
        "seeds": 5, "lr": 0.1, "name": "b", "opt": None, "word": None, "layers": [1, 2], "flag": True
    }  # fmt: skip
    kinds = {name: parameter.kind for name, parameter in book.parameters.items()}
    assert kinds == {
        "seeds": "int", "lr": "float", "name": "str", "opt": "int", "word": "str", "layers": "list[int]",
        "flag": "bool",
    }  # fmt: skip
    assert book.others == {"a": "a, c = (1, 2)", "c": "a, c = (1, 2)", "half": "half = 1 / 2"}
    helps = [book.parameters[name].help for name in ("seeds", "lr", "name")]
    assert helps == ["a # of seeds", "", "so # it is"]
    assert (book.heading, book.about) == ("The title", "how many")
    with pytest.raises(UnknownNameError, match=r"the notebook small 'sedes'; did you mean 'seeds'"):
        check(book, {"sedes": 3})


def test_a_parameters_cell_that_is_no_python_is_named(write_notebook: Any) -> None:
    book = ParameterNotebook.find(write_notebook(parameters="x = 1\nwhat now"))
    with pytest.raises(InvalidInputError, match=r"small.ipynb is not Python \(line 2"):
        _ = book.parameters


@pytest.mark.parametrize(("kernel", "language"), [("ir", "R"), ("julia-1.9", "julia"), ("my-env", "python")])
def test_notebooks_of_other_languages_are_refused(write_notebook: Any, kernel: str, language: str) -> None:
    path = write_notebook()
    node = nbformat.read(path, as_version=4)
    node.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": language}
    nbformat.write(node, path)
    if language == "python":
        assert ParameterNotebook.find(path).defaults == {"seeds": 2}
    else:
        with pytest.raises(InvalidInputError, match=f"the kernel '{re.escape(kernel)}', and condnum"):
            ParameterNotebook.find(path)


def test_every_parameter_of_every_notebook_is_an_option_with_help_and_an_effect() -> None:
    for path in sorted(shipped("notebooks").glob("experiments/*.ipynb")):
        book = ParameterNotebook.find(path)
        declared = re.findall(r"(?m)^(\w+)\b.* = ", book.cell.source)
        assert declared == list(book.parameters)
        assert all(parameter.help for parameter in book.parameters.values()), path
        rest = "\n".join(c.source for c in book.node.cells if c.cell_type == "code" and c is not book.cell)
        used = {node.id for node in ast.walk(ast.parse(rest)) if isinstance(node, ast.Name)}
        assert set(declared) <= used, path  # none is ignored


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
    assert find_notebook("deep-attackers").parent.name == "experiments"
    assert find_notebook("4_limit").parent.name == "notebooks"
    with pytest.raises(UnknownNameError, match="unknown notebook 'house_price'; did you mean 'house-prices'"):
        find_notebook("house_price")


# Runs.

EVENTS = """
import os, sys
from tqdm import tqdm
for _ in tqdm(range(3), desc="cells", mininterval=0): pass
print(sys.executable, os.getcwd(), seeds, sep="|")
"""


def test_a_whole_run(
    write_notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, on_shared_kernel: Any
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    folder = tmp_path / "out {braces}"  # papermill takes paths as format strings
    book = ParameterNotebook.find(write_notebook("# Title", EVENTS))
    report = run_notebook(book, {"seeds": 7}, folder, title="[1/2] ")
    assert report == folder / "report.ipynb"
    assert names(folder) == ["report.ipynb"]
    node = read_notebook(report)
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    printed = [output.text for output in outputs if output.name == "stdout"]
    assert "".join(printed).split("|") == [sys.executable, str(tmp_path / "cwd"), "7\n"]
    assert "[1/2] cells: 100%" in capsys.readouterr().err  # the progress of the kernel, as it comes
    assert node.metadata["kernelspec"]["name"] == "python3"
    assert str(tmp_path) not in str(node.metadata)
    assert "widgets" not in node.metadata


def test_a_notebook_of_an_older_format_runs(tmp_path: Path, on_shared_kernel: Any) -> None:
    cells = [
        {"cell_type": "code", "metadata": metadata, "outputs": [], "language": "python", "collapsed": False,
         "input": source}
        for metadata, source in (({"tags": ["parameters"]}, "count = 2"), ({}, "print('so many', count)"))
    ]  # fmt: skip
    content = {"metadata": {}, "nbformat": 3, "nbformat_minor": 0}
    content["worksheets"] = [{"metadata": {}, "cells": cells}]
    (tmp_path / "old.ipynb").write_text(json.dumps(content))
    book = ParameterNotebook.find(tmp_path / "old.ipynb")
    report = read_notebook(run_notebook(book, {"count": 5}, tmp_path / "out", quiet=True))
    assert [o.text for cell in report.cells for o in cell.get("outputs", [])] == ["so many 5\n"]


@pytest.mark.parametrize(
    ("cell", "match"),
    [
        ("[][3]", r"the notebook small failed in cell \[\d+\] with IndexError: list "),
        ("import os; os.kill(os.getpid(), 9)", r"the kernel of the notebook small died.*fewer rows"),
    ],
    ids=["foreign", "killed"],
)
def test_a_cell_that_fails_or_kills_its_kernel(
    write_notebook: Any, tmp_path: Path, cell: str, match: str
) -> None:
    with pytest.raises(NotebookError, match=match):
        run_notebook(ParameterNotebook.find(write_notebook(cell)), {}, tmp_path / "out", quiet=True)
    assert names(tmp_path / "out") == ["report.failed.ipynb"]


def test_an_error_of_condnum_comes_out_of_the_kernel_as_it_is(
    write_notebook: Any, tmp_path: Path, on_shared_kernel: Any
) -> None:
    cell = "from condnum import load_house_prices; load_house_prices('nowhere')"
    with pytest.raises(DataNotFoundError, match=r"house-prices: train.*got 'nowhere'"):
        run_notebook(ParameterNotebook.find(write_notebook(cell)), {}, tmp_path / "out", quiet=True)
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": "nowhere"}, "got 'nowhere'"),
        ({"methods": "oors"}, "did you mean 'ours'"),
        ({"seeds": 0}, "≥ 1"),
    ],
)
def test_wrong_values_are_refused_before_a_kernel_starts(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(CondnumError, match=said):
        check(ParameterNotebook.find("house_prices"), given)
