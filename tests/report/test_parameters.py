import ast
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.report.notebook import checked_parameters, declared_parameters, parameters_of, read_notebook

CELL = """
# how many
seeds: int = 5  # seeds
lr: float = 0.1
name: str = "a # b"
maybe: str | None = None
kind: Literal["a", "b"] = "a"
layers: list[int] = [1, 2]
free = None
flag = True
opt: Optional[int] = None
both: "int | str" = 1
odd: Path = x
table: dict[str, int] = {}
"""


def test_declarations_and_defaults() -> None:
    found = parameters_of(CELL)
    assert list(found) == [
        "seeds",
        "lr",
        "name",
        "maybe",
        "kind",
        "layers",
        "free",
        "flag",
        "opt",
        "both",
        "odd",
        "table",
    ]
    assert found["name"].default == "a # b"
    assert found["flag"].annotation == "bool"
    assert found["free"].annotation == ""
    assert found["odd"].default is None
    assert found["seeds"].help == "seeds"
    assert found["name"].help == found["lr"].help == ""


def test_same_names_as_papermill(write_notebook: Any) -> None:
    path = write_notebook(parameters="a: int = 1  # help\nb = 'x'\nc: float = 1e-3")
    node = read_notebook(path)
    node.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(node, path)
    declared = declared_parameters(node)
    inspected = papermill.inspect_notebook(str(path))
    assert set(declared) == set(inspected)
    for name in ("a", "c"):
        assert declared[name].annotation == inspected[name]["inferred_type_name"]
        assert declared[name].default == ast.literal_eval(inspected[name]["default"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seeds", 3), ("lr", 1), ("lr", 0.5), ("name", "x"), ("maybe", None), ("maybe", "x"), ("kind", "b"),
        ("layers", []), ("layers", [3]), ("free", 3), ("free", "x"), ("flag", False), ("opt", 2),
        ("opt", None),
        ("both", "x"), ("odd", 1), ("table", {"a": 1}),
    ],
)  # fmt: skip
def test_right_types(name: str, value: object) -> None:
    assert checked_parameters({name: value}, parameters_of(CELL)) == {name: value}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("seeds", True, "int"), ("seeds", 3.0, "int"), ("seeds", "3", "int"), ("seeds", None, "int"),
        ("lr", "0.1", "float"), ("lr", False, "float"), ("name", 1, "str"), ("maybe", 1, r"str \| None"),
        ("kind", "c", "Literal"), ("layers", (1,), "list"), ("layers", [True], "list"), ("flag", 1, "bool"),
        ("opt", "x", "Optional"), ("both", 1.5, r"int \| str"), ("table", [], "dict"),
    ],
)  # fmt: skip
def test_wrong_types(name: str, value: object, wanted: str) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"parameter '{name}' of the notebook must be {wanted}.*got "
    ):
        checked_parameters({name: value}, parameters_of(CELL))


def test_conversions() -> None:
    checked = checked_parameters({"lr": 1, "name": Path("a/b")}, parameters_of(CELL))
    assert checked == {"lr": 1.0, "name": "a/b"}
    assert isinstance(checked["lr"], float)


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="parameter of the notebook 'seed'; did you mean 'seeds'"):
        checked_parameters({"seed": 1}, parameters_of(CELL))


def test_code_that_does_not_parse() -> None:
    with pytest.raises(InvalidInputError, match=r"not valid Python .*line 2"):
        parameters_of("a = 1\nb =")


@pytest.mark.parametrize("count", [0, 2])
def test_exactly_one_tagged_cell(write_notebook: Any, count: int) -> None:
    notebook = read_notebook(write_notebook("x = 1"))
    notebook.cells[0].metadata["tags"] = []
    for cell in notebook.cells[:count]:
        cell.metadata["tags"] = ["parameters"]
    with pytest.raises(InvalidInputError, match=f"exactly one code cell .*, this one has {count}"):
        declared_parameters(notebook)
