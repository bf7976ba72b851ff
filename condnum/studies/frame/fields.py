"""Types of the fields of a study, which say what they may hold: `Count`, `Names`, `Literal`, `int | None`."""

from __future__ import annotations

import ast
import json
import types
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from condnum.errors import check_integer, check_known
from condnum.files import shipped


def at_least(least: int) -> Callable[[str, Any], int]:
    """Return the check of an integer that is not smaller."""
    return lambda name, value: check_integer(name, value, least)


def several(read: Callable[[Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    """Return the check of a tuple, or of a text with commas, whose parts are read; each counts once."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        given = value.split(",") if isinstance(value, str) else value
        parts = [part.strip() if isinstance(part, str) else part for part in given]
        return tuple(dict.fromkeys(read(part) for part in parts if part != ""))

    return check


def some_of(kind: str, choices: Callable[[], Iterable[str]]) -> Callable[[str, Any], tuple[str, ...]]:
    """Return the check of names that have to be among others."""

    def known(word: str) -> str:
        check_known(kind, word, list(choices()))
        return word

    return several(known)


#: An integer of at least 1.
Count: TypeAlias = Annotated[int, at_least(1)]

#: Names, in a notebook or on the command line with commas between them.
Names: TypeAlias = Annotated[tuple[str, ...], several(str)]


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value of a field as its type has it, or say what is wrong with it.

    Where a type has an empty value, "" and 0 are that value, as a notebook has no other for "none" or "all".
    """
    if get_origin(hint) in (Union, types.UnionType):  # `… | None`
        empty = value is None or (value in ("", 0) and not isinstance(value, bool))
        return None if empty else checked(name, value, get_args(hint)[0])
    if get_origin(hint) is Annotated:
        kind, check = get_args(hint)[:2]
        return check(name, () if get_origin(kind) is tuple and value in ("", 0) else value)
    if get_origin(hint) is Literal:
        check_known(name.replace("_", " "), value, get_args(hint))
    elif hint in (bool, int, float, str):  # NumPy's are as good
        return hint(value)
    return value


def notebook_defaults(name: str) -> dict[str, Any]:
    """Return the values in the parameters cell of an experiment's notebook, where its defaults stand."""
    text = (shipped("notebooks") / "experiments" / f"{name}.ipynb").read_text(encoding="utf-8")
    tagged = (cell for cell in json.loads(text)["cells"] if "parameters" in cell["metadata"].get("tags", ()))
    lines = ast.parse("".join(next(tagged)["source"])).body
    return {
        line.target.id: ast.literal_eval(line.value)
        for line in lines
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value
    }
