"""Answers typed on a page, where there are no cells: a small language of formulas, read and computed here.

It looks like Python, but nothing is handed to Python: numbers, lists, names, ``+ - * / ** @``, ``.T``,
indices, the functions of `FUNCTIONS`, and lines ``name = formula``. So a page that a class can reach runs no
code of its visitors, and a formula computes with matrices of at most `LARGEST` rows and columns.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import linalg

from condnum.errors import InvalidInputError

#: Letters of a formula, and rows and columns of a matrix.
LONGEST, LARGEST = 2000, 64


def _sized(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose last argument is a size, refused beyond `LARGEST`."""

    def checked(*arguments: Any) -> Any:
        if not 1 <= arguments[-1] <= LARGEST:
            raise InvalidInputError(f"a size lies between 1 and {LARGEST}, got {arguments[-1]}.")
        return make(*arguments[:-1], int(arguments[-1]))

    return checked


#: What a formula may call.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "ceil": np.ceil, "floor": np.floor,
    "max": np.max, "min": np.min, "sum": np.sum, "len": len, "diag": np.diag, "trace": np.trace,
    "inv": np.linalg.inv, "solve": np.linalg.solve, "cond": np.linalg.cond, "cholesky": np.linalg.cholesky,
    "eigh": np.linalg.eigh, "eigvalsh": np.linalg.eigvalsh, "eigvals": np.linalg.eigvals,
    "svd": np.linalg.svd, "sqrtm": linalg.sqrtm,
    "eye": _sized(np.eye), "linspace": _sized(np.linspace), "geomspace": _sized(np.geomspace),
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.MatMult: operator.matmul, ast.Pow: np.float_power, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def formula(text: str, names: tuple[str, ...] = ()) -> Any:
    """Return the value of a formula, or the function that it is of `names`.

    Examples:
        >>> float(formula("2**2 + max([1, 3])"))
        7.0
        >>> formula("R = inv(A); R @ diag([2, 2])", ("A",))(np.eye(2)).tolist()
        [[2.0, 0.0], [0.0, 2.0]]
    """
    if not text.strip():
        return ...
    if len(text) > LONGEST:
        raise InvalidInputError(f"a formula has at most {LONGEST} letters, got {len(text)}.")
    try:
        lines = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInputError(f"this is no formula: {error}.") from error

    def value(*arguments: Any) -> Any:
        known = dict(zip(names, arguments, strict=True))
        for line in lines[:-1]:
            if not isinstance(line, ast.Assign) or len(line.targets) != 1:
                raise InvalidInputError("each line but the last is name = formula.")
            target, result = line.targets[0], _value(line.value, known)
            if isinstance(target, ast.Name):
                known[target.id] = result
            elif isinstance(target, ast.Tuple) and all(isinstance(part, ast.Name) for part in target.elts):
                known |= {part.id: one for part, one in zip(target.elts, result, strict=True)}  # type: ignore[attr-defined]
            else:
                raise InvalidInputError("on the left of = stands a name, or names with commas.")
        if not isinstance(lines[-1], ast.Expr):
            raise InvalidInputError("the last line is the answer: a formula without name =.")
        return _value(lines[-1].value, known)

    quiet = np.errstate(all="ignore")(value)  # the checks name what is not finite
    return quiet if names else quiet()


def _value(node: ast.AST | None, known: Mapping[str, Any]) -> Any:
    """Compute one part of a formula."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known))
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.operand, known))
        case ast.List() | ast.Tuple():
            array = np.array([_value(part, known) for part in node.elts])
            if array.ndim > 2 or max(array.shape) > LARGEST:
                raise InvalidInputError(
                    f"a matrix has at most {LARGEST} rows and columns, got {array.shape}."
                )
            return array
        case ast.Attribute(attr="T"):
            return np.transpose(_value(node.value, known))
        case ast.Subscript():
            return _value(node.value, known)[_index(node.slice, known)]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(part, known) for part in node.args))
    shown = "nothing" if node is None else ast.unparse(node)
    words = ", ".join([*known, *FUNCTIONS])
    raise InvalidInputError(f"{shown!r} is not part of a formula; known are {words}, + - * / ** @ .T [ ].")


def _index(node: ast.AST, known: Mapping[str, Any]) -> Any:
    """Return what stands in square brackets."""
    if isinstance(node, ast.Tuple):
        return tuple(_index(part, known) for part in node.elts)
    if isinstance(node, ast.Slice):
        ends = (node.lower, node.upper, node.step)
        return slice(*(None if end is None else _value(end, known) for end in ends))
    return _value(node, known)
