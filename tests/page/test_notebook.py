"""Notebooks: their parameters, a run that is whole or fails clearly, a kernel that leaves nothing behind."""

import ast
import re
import sys

import nbformat
import pytest

from condnum.errors import CondnumError, InvalidInputError, UnknownNameError
from condnum.files import shipped
from condnum.page.notebook import ParameterNotebook, read_notebook
from condnum.page.run import NotebookError, check, run_notebook


@pytest.fixture
def write_notebook(tmp_path):
    """Return a writer: a parameters cell, then the given cells (`# …` is Markdown)."""

    def write(*cells, parameters="seeds: int = 2", name="small"):
        v4, node = nbformat.v4, nbformat.v4.new_notebook()
        node.cells = [v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
        for cell in cells:
            node.cells.append((v4.new_markdown_cell if cell.startswith("# ") else v4.new_code_cell)(cell))
        nbformat.write(node, tmp_path / f"{name}.ipynb")
        return tmp_path / f"{name}.ipynb"

    return write


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


CELL = """
# how many
seeds: int = 5  # a # of seeds
name: str = (
    "b"  # so # it is
)
opt: Optional[int] = None
half = 1 / 2
layers: list[int] = [1, 2]
flag = True
""".strip()


def test_parameters_and_defaults(write_notebook):
    book = ParameterNotebook.find(write_notebook("# The *title*", parameters=CELL))
    assert book.defaults == {"seeds": 5, "name": "b", "opt": None, "layers": [1, 2], "flag": True}
    kinds = [parameter.kind for parameter in book.parameters.values()]
    assert kinds == ["int", "str", "int", "list[int]", "bool"]
    assert book.others == {"half": "half = 1 / 2"}
    assert [book.parameters[name].help for name in ("seeds", "name", "opt")] == [
        "a # of seeds",
        "so # it is",
        "",
    ]
    assert (book.heading, book.about) == ("The title", "how many")
    with pytest.raises(UnknownNameError, match=r"the notebook small 'sedes'; did you mean 'seeds'"):
        check(book, {"sedes": 3})


def test_notebooks_that_cannot_be_run_are_refused(write_notebook):
    book = ParameterNotebook.find(write_notebook(parameters="x = 1\nwhat now"))
    with pytest.raises(InvalidInputError, match=r"small.ipynb is not Python \(line 2"):
        _ = book.parameters
    book = ParameterNotebook.find(write_notebook())
    book.node.cells[0].metadata["tags"] = []
    with pytest.raises(InvalidInputError, match=r"exactly one code cell .*small.ipynb has 0"):
        _ = book.parameters
    path = write_notebook()
    node = nbformat.read(path, as_version=4)
    for kernel, language in (("my-env", "python"), ("ir", "R")):
        node.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": language}
        nbformat.write(node, path)
        if language == "python":
            assert ParameterNotebook.find(path).defaults == {"seeds": 2}
    with pytest.raises(InvalidInputError, match="the kernel 'ir', and condnum"):
        ParameterNotebook.find(path)


def test_every_parameter_of_every_notebook_is_an_option_with_help_and_an_effect():
    for path in sorted(shipped("notebooks").glob("experiments/*.ipynb")):
        book = ParameterNotebook.find(path)
        declared = re.findall(r"(?m)^(\w+)\b.* = ", book.cell.source)
        assert declared == list(book.parameters)
        assert all(parameter.help for parameter in book.parameters.values()), path
        rest = "\n".join(c.source for c in book.node.cells if c.cell_type == "code" and c is not book.cell)
        used = {node.id for node in ast.walk(ast.parse(rest)) if isinstance(node, ast.Name)}
        assert set(declared) <= used, path  # none is ignored


# Runs.

EVENTS = """
import os, sys
from tqdm import tqdm
for _ in tqdm(range(3), desc="cells", mininterval=0): pass
print(sys.executable, os.getcwd(), seeds, sep="|")
"""


def test_a_whole_run(write_notebook, tmp_path, monkeypatch, capsys, on_shared_kernel):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    folder = tmp_path / "out {braces}"  # papermill takes paths as format strings
    book = ParameterNotebook.find(write_notebook("# Title", EVENTS))
    report = run_notebook(book, {"seeds": 7}, folder, title="[1/2] ")
    assert report == folder / "report.ipynb"
    assert names(folder) == ["report.ipynb"]
    node = read_notebook(report)
    outputs = [output for cell in node.cells for output in cell.get("outputs", [])]
    printed = [output.text for output in outputs if output.name == "stdout"]
    assert "".join(printed).split("|") == [sys.executable, str(tmp_path), "7\n"]
    assert "[1/2] cells: 100%" in capsys.readouterr().err  # the progress of the kernel, as it comes
    assert str(tmp_path) not in str(node.metadata)
    assert "widgets" not in node.metadata


FAILURES = {
    "[][3]": (NotebookError, r"the notebook small failed in cell \[\d+\] with IndexError: list "),
    "from condnum import load_house_prices; load_house_prices('nowhere')": (
        CondnumError, r"house-prices: train.*got 'nowhere'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cell", FAILURES, ids=["foreign", "of condnum"])
def test_a_cell_that_fails(write_notebook, tmp_path, cell, on_shared_kernel):
    """What nobody knows keeps the executed part; an error of condnum comes out of the kernel as it is."""
    error, match = FAILURES[cell]
    with pytest.raises(error, match=match):
        run_notebook(ParameterNotebook.find(write_notebook(cell)), {}, tmp_path / "out", quiet=True)
    assert names(tmp_path / "out") == ["report.failed.ipynb"] * (error is NotebookError)


def test_a_kernel_that_is_killed(write_notebook, tmp_path):
    book = ParameterNotebook.find(write_notebook("import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(NotebookError, match=r"the kernel of the notebook small died.*fewer rows"):
        run_notebook(book, {}, tmp_path / "out", quiet=True)
    assert names(tmp_path / "out") == ["report.failed.ipynb"]


def test_wrong_values_are_refused_before_a_kernel_starts():
    with pytest.raises(CondnumError, match="did you mean 'ours'"):
        check(ParameterNotebook.find("house_prices"), {"methods": "oors"})
