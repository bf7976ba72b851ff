"""A notebook's parameters: read from its tagged cell, checked before anything runs.

Papermill only warns about an unknown name and never looks at types. Here the cell is parsed as
Python, so that annotations such as `str | None` and a `#` inside a text are read correctly, which
papermill's own line-by-line inspection does not do.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from condnum.errors import InvalidInputError, UnknownNameError

#: The tag that papermill looks for.
PARAMETERS_TAG = "parameters"

_TYPES: dict[str, type] = {
    "bool": bool, "dict": dict, "float": float, "int": int, "list": list, "str": str, "tuple": tuple,
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One assignment of the cell tagged `parameters`."""

    name: str
    annotation: str  # as written, or the type of the default; "" when neither says anything
    default: Any  # None also when the default is no literal


def declared_parameters(notebook: Any) -> dict[str, Parameter]:
    """Read the parameters that a notebook declares, in their order."""
    cells = [cell for cell in notebook.cells if PARAMETERS_TAG in cell.metadata.get("tags", [])]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise InvalidInputError(
            f"a notebook needs exactly one code cell tagged '{PARAMETERS_TAG}', this one has {len(cells)}; "
            "without it the notebook's own defaults would overwrite the values that it is given."
        )
    return parameters_of(cells[0].source)


def parameters_of(source: str) -> dict[str, Parameter]:
    r"""Read the assignments of a parameters cell.

    Examples:
        >>> parameters_of("seeds: int = 5  # how many\nmethods = ''")["methods"]
        Parameter(name='methods', annotation='str', default='')
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # NUL bytes, endless brackets
        reason = f"{error.msg}, line {error.lineno}" if isinstance(error, SyntaxError) else str(error)
        raise InvalidInputError(
            f"the cell tagged '{PARAMETERS_TAG}' is not valid Python ({reason}); "
            "it may hold assignments and comments only."
        ) from error
    found: dict[str, Parameter] = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = Parameter(
                node.target.id, ast.unparse(node.annotation).strip("'\""), _literal(node.value)
            )
        elif isinstance(node, ast.Assign):
            default = _literal(node.value)
            kind = "" if default is None else type(default).__name__
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = Parameter(target.id, kind, default)
    return found


def checked_parameters(
    values: Mapping[str, Any], declared: Mapping[str, Parameter], *, notebook: str = "notebook"
) -> dict[str, Any]:
    """Check names and types of the given values before a run.

    Examples:
        >>> checked_parameters({"lr": 1}, parameters_of("lr: float = 0.1"))
        {'lr': 1.0}
        >>> checked_parameters({"lr": True}, parameters_of("lr: float = 0.1"))
        Traceback (most recent call last):
            ...
        condnum.errors.InvalidInputError: parameter 'lr' of the notebook must be float, got True (bool).
    """
    checked: dict[str, Any] = {}
    for name, given in values.items():
        if name not in declared:
            raise UnknownNameError(f"parameter of the {notebook}", name, declared)
        value = os.fspath(given) if isinstance(given, os.PathLike) else given
        annotation = declared[name].annotation
        if annotation and not _fits(value, _parsed(annotation, name)):
            raise InvalidInputError(
                f"parameter '{name}' of the {notebook} must be {annotation}, "
                f"got {value!r} ({type(value).__name__})."
            )
        integer = isinstance(value, int) and not isinstance(value, bool)
        checked[name] = float(value) if annotation == "float" and integer else value
    return checked


def effective_parameters(values: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    r"""Return every declared parameter with the value that a run sees: the given one or the default.

    Examples:
        >>> effective_parameters({"a": 2}, parameters_of("a = 1\nb = 'x'"))
        {'a': 2, 'b': 'x'}
    """
    return {name: values.get(name, parameter.default) for name, parameter in declared.items()}


def _parsed(annotation: str, name: str) -> ast.expr:
    """Return an annotation as an expression, or refuse the cell that it stands in."""
    try:
        return ast.parse(annotation, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInputError(
            f"the type of parameter '{name}' in the cell tagged '{PARAMETERS_TAG}' is not valid Python: "
            f"{annotation!r}; write int, str | None, list[int] or the like."
        ) from error


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal expression, None for any other."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None


def _fits(value: Any, annotation: ast.expr) -> bool:
    """Compare a value with an annotation."""
    match annotation:
        case ast.Constant(value=None):
            return value is None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return value is None or _fits(value, inner)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            choices = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return any(value == _literal(choice) for choice in choices)
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return isinstance(value, list) and all(_fits(item, inner) for item in value)
        case ast.Subscript(value=outer):
            return _fits(value, outer)
        case ast.Name(id=name) if name in _TYPES:
            if isinstance(value, bool):
                return name == "bool"
            return isinstance(value, (int, float) if name == "float" else _TYPES[name])
    return True
