"""What a check says: right, wrong or not answered, and why; and fields to type answers in."""

import ast
import functools
import html
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from condnum.errors import CondnumError, InvalidInputError, require
from condnum.figures.style import num
from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.widget import on_a_page

_ipywidgets = require("ipywidgets", "notebooks")
_VBox: Any = _ipywidgets.VBox

#: Color and mark of each status.
LOOKS = {"right": ("#009E73", "✔"), "wrong": ("#D55E00", "✘"), "not answered yet": ("#8A8A8A", "…")}


@dataclass(frozen=True)
class AnswerVerdict:
    """The outcome of a check; a notebook shows it as a colored line."""

    status: str  # of `LOOKS`
    reason: str = ""  # plain text, one or two sentences

    def __repr__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status

    def _repr_html_(self) -> str:
        """Return the line for a notebook."""
        color, mark = LOOKS[self.status]
        style = f"border-left:6px solid {color};padding:4px 12px;font-size:1.1em"
        return f'<div style="{style}"><b>{mark} {self.status}.</b> {html.escape(self.reason)}</div>'


class AnswerError(Exception):
    """A property that the answer should have and has not; the message says which and why."""


class NotAnsweredError(Exception):
    """A function returned None or `...`: its body is still to be written."""


def need(holds: Any, reason: str) -> None:
    """Call an answer wrong, and say why, unless something holds."""
    if not holds:
        raise AnswerError(reason)


def answer_check(examine: Callable[..., str]) -> Callable[..., AnswerVerdict]:
    """Turn a function that raises `AnswerError`, or returns why an answer is right, into a check.

    An answer that is None or `...` is not answered yet. Whatever a learner's own code raises is a
    finding, with the exception's words, and stops no notebook.
    """

    @functools.wraps(examine)
    def checked(*answers: Any) -> AnswerVerdict:
        try:
            if any(answer is None or answer is ... for answer in answers):
                raise NotAnsweredError
            return AnswerVerdict("right", examine(*answers))
        except NotAnsweredError:
            return AnswerVerdict("not answered yet")
        except AnswerError as finding:
            return AnswerVerdict("wrong", str(finding))
        except CondnumError as error:
            return AnswerVerdict("wrong", f"the answer cannot be used: {error}")
        except Exception as error:  # the learner's code may raise anything
            return AnswerVerdict("wrong", f"the answer fails with {type(error).__name__}: {error}")

    return checked


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a learner's function with copies of the arguments, so that it cannot change ours."""
    need(callable(function), f"expected a function, got {type(function).__name__}.")
    result = function(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    if result is None or result is ...:
        raise NotAnsweredError
    return result


def real(answer: Any, name: str, kind: str = "made of numbers") -> Floats:
    """Return an answer as real numbers; imaginary parts that are round-off, as of `sqrtm`, are dropped."""
    try:
        values = np.array(answer, dtype=np.complex128)
    except (TypeError, ValueError) as error:
        raise AnswerError(f"{name} must be {kind}, got {answer!r}.") from error
    off = np.abs(values.imag).max(initial=0)
    need(
        not off > 1e-9 * np.abs(values).max(initial=0),
        f"{name} must be real, but has imaginary parts up to {num(off, 2)}: a root of a negative number, or "
        "eigenvectors of a matrix that is not symmetric?",
    )
    return np.array(values.real)


def number_answer(answer: Any, name: str) -> float:
    """Return an answer as a finite float."""
    values = real(answer, name, "a number")
    need(values.size == 1, f"{name} must be a number, got {answer!r}.")
    need(np.isfinite(values).all(), f"{name} must be finite, got {values.item()}.")
    return float(values.item())


def matrix_answer(answer: Any, shape: tuple[int, ...], name: str) -> Floats:
    """Return an answer as a finite matrix of a given shape."""
    value = real(answer, name)
    need(value.shape == shape, f"{name} must have shape {shape}, got {value.shape}.")
    need(np.isfinite(value).all(), f"{name} holds entries that are not finite.")
    return value


def covariance_like(answer: Any, size: int, name: str) -> Floats:
    """Return an answer as a symmetric positive semi-definite matrix."""
    K = matrix_answer(answer, (size, size), name)
    symmetric = np.allclose(K, K.T, rtol=1e-9, atol=1e-12 * np.abs(K).max())
    need(symmetric, f"{name} is not symmetric, so it is not a covariance.")
    gamma = np.linalg.eigvalsh(K)
    negative = f"{name} has the negative eigenvalue {num(gamma[0])}, so it is not a covariance XᵀX."
    need(gamma[0] >= -1e-9 * np.abs(gamma).max(), negative)
    return K


#: Letters of a formula, and rows and columns of a matrix.
LONGEST, LARGEST = 2000, 64


def _sized(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose last argument is a size, refused beyond `LARGEST`."""

    def sized(*arguments: Any) -> Any:
        if not 1 <= arguments[-1] <= LARGEST:
            raise InvalidInputError(f"a size must lie between 1 and {LARGEST}, got {arguments[-1]}.")
        return make(*arguments[:-1], int(arguments[-1]))

    return sized


#: What a formula may call.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "sqrt", "exp", "log", "ceil", "floor")},
    **{name: getattr(np, name) for name in ("max", "min", "sum", "diag", "trace")},
    **{name: getattr(np.linalg, name) for name in ("inv", "solve", "cond", "cholesky", "svd")},
    **{name: getattr(np.linalg, name) for name in ("eigh", "eigvalsh", "eigvals")},
    **{name: _sized(getattr(np, name)) for name in ("eye", "linspace", "geomspace")},
    "len": len,
    "sqrtm": linalg.sqrtm,
}
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.MatMult: operator.matmul,
    ast.Pow: np.float_power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


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
        raise InvalidInputError(f"this is not a valid formula: {error}.") from error

    @np.errstate(all="ignore")  # the checks name what is not finite
    def value(*arguments: Any) -> Any:
        known = dict(zip(names, arguments, strict=True))
        for line in lines[:-1]:
            match line:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    known[name] = _computed(line.value, known)
                case ast.Assign(targets=[ast.Tuple(elts=parts)]) if {*map(type, parts)} == {ast.Name}:
                    found = _computed(line.value, known)
                    known |= {ast.unparse(part): one for part, one in zip(parts, found, strict=True)}
                case ast.Assign():
                    raise InvalidInputError("the left side of = must be a name, or names between commas.")
                case _:
                    raise InvalidInputError("each line except the last must be name = formula.")
        if not isinstance(lines[-1], ast.Expr):
            raise InvalidInputError("the last line must be the answer: a formula without name =.")
        return _computed(lines[-1].value, known)

    return value if names else value()


def _computed(node: ast.AST | None, known: Mapping[str, Any]) -> Any:
    """Compute one part of a formula."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.BinOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](_computed(node.left, known), _computed(node.right, known))
        case ast.UnaryOp() if type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](_computed(node.operand, known))
        case ast.List() | ast.Tuple():
            array = np.array([_computed(part, known) for part in node.elts])
            if array.ndim > 2 or max(array.shape) > LARGEST:
                raise InvalidInputError(f"a matrix has up to {LARGEST} rows and columns, got {array.shape}.")
            return array
        case ast.Attribute(attr="T"):
            return np.transpose(_computed(node.value, known))
        case ast.Subscript():
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return _computed(node.value, known)[tuple(_computed(part, known) for part in parts)]
        case ast.Slice(start, stop, step):
            return slice(*(None if end is None else _computed(end, known) for end in (start, stop, step)))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_computed(part, known) for part in node.args))
    shown = "nothing" if node is None else ast.unparse(node)
    words = ", ".join([*known, *FUNCTIONS])
    raise InvalidInputError(f"{shown!r} is not allowed in a formula; use {words}, + - * / ** @ .T [ ].")


class AnswerBox(_VBox):
    """Fields for the answers to one exercise: numbers, or formulas in a function's arguments."""

    def __init__(self, examine: Callable[..., AnswerVerdict], **answers: Any) -> None:
        self._examine = examine
        self._arguments: dict[str, tuple[str, ...]] = {}
        self.fields = {}
        tip = f"A formula with + - * / ** @ .T [ ] and {', '.join(FUNCTIONS)}, after lines name = formula."
        for name, gap in answers.items():
            arguments = tuple(inspect.signature(gap).parameters) if callable(gap) else ()
            kind, label = _ipywidgets.Text, f"{name} ="
            hint = "a number, or a matrix such as [[2, 1], [1, 2]]"
            if arguments:
                listed = ", ".join(arguments)
                kind, label, hint = _ipywidgets.Textarea, f"{name}({listed}) =", f"a formula in {listed}"
            look = {"style": {"description_width": "16ch"}, "layout": {"width": "640px", "max_width": "100%"}}
            self._arguments[name] = arguments
            self.fields[name] = kind(description=label, placeholder=hint, tooltip=tip, **look)
        self.button = _ipywidgets.Button(description="Check", tooltip="Is this right, and why?")
        self.verdict = _ipywidgets.HTML()
        self.button.on_click(self._on_click)
        super().__init__(children=[*self.fields.values(), self.button, self.verdict])

    @classmethod
    def show(cls, examine: Callable[..., AnswerVerdict], **answers: Any) -> Any:
        """Return the verdict on what the cells hold; on a page of Voilà, while they are gaps, the box."""
        verdict = examine(*answers.values())
        return cls(examine, **answers) if on_a_page() and verdict.status == "not answered yet" else verdict

    def _on_click(self, _: Any) -> None:
        """Read the fields and examine them; a formula that cannot be read is a finding as well."""
        try:
            found = [formula(self.fields[name].value, names) for name, names in self._arguments.items()]
            verdict = self._examine(*found)
        except Exception as error:  # of the formula: it may divide by zero, or invert what cannot be inverted
            verdict = AnswerVerdict("wrong", f"the answer cannot be computed: {error}")
        self.verdict.value = verdict._repr_html_()
