"""What a check says: right, wrong or not answered, and why; and fields to type answers in."""

import functools
import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from condnum.errors import CondnumError, InvalidInputError, require
from condnum.figures.kept import on_a_page
from condnum.lessons.condition_number import Floats
from condnum.numbers import num

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


def typed_numbers(text: str) -> Any:
    """Return what stands in a field: a number, a row of them, or a matrix with `;` between its rows.

    Examples:
        >>> typed_numbers("1/4"), typed_numbers("10^-6"), typed_numbers("")
        (0.25, 1e-06, Ellipsis)
        >>> typed_numbers("2 1; 1 2").tolist()
        [[2.0, 1.0], [1.0, 2.0]]
    """
    try:
        rows = [[_typed(word) for word in row.replace(",", " ").split()] for row in text.split(";")]
        values = np.array(rows)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInputError(f"'{text}' does not read as {HINT}.") from error
    return (values if values.size > 1 else values.item()) if values.size else ...


#: What a field reads.
HINT = "a number (0.5, 1/3, 10^-6), or a matrix of them (2 1; 1 2)"


def _typed(word: str) -> float:
    """Read a number, or a fraction of two."""
    above, _, below = word.replace("10^", "1e").partition("/")
    return float(above) / float(below or 1)


class AnswerBox(_VBox):
    """Fields for the numbers that answer one exercise."""

    def __init__(self, examine: Callable[..., AnswerVerdict], names: Iterable[str]) -> None:
        self._examine = examine
        look = {"style": {"description_width": "16ch"}, "layout": {"width": "640px", "max_width": "100%"}}
        self.fields = {
            name: _ipywidgets.Text(description=f"{name} =", placeholder=HINT, continuous_update=False, **look)
            for name in names
        }
        for field in self.fields.values():
            field.observe(self._answer, "value")  # at Enter, and where the reader leaves it
        self.button = _ipywidgets.Button(description="Check", tooltip="Is this right, and why?")
        self.verdict = _ipywidgets.HTML()
        self.button.on_click(self._answer)
        super().__init__(children=[*self.fields.values(), self.button, self.verdict])

    @classmethod
    def show(cls, examine: Callable[..., AnswerVerdict], **answers: Any) -> Any:
        """Return the verdict on what the cells hold; on a page of Voilà, while they are gaps, the box.

        What asks for a function is answered in the notebook.
        """
        verdict = examine(*answers.values())
        if not on_a_page() or verdict.status != "not answered yet":
            return verdict
        if any(map(callable, answers.values())):
            return AnswerVerdict(verdict.status, "This exercise asks for code: answer it in the notebook.")
        return cls(examine, answers)

    def _answer(self, _: Any) -> None:
        """Read the fields and examine them; what cannot be read is a finding as well."""
        try:
            verdict = self._examine(*(typed_numbers(field.value) for field in self.fields.values()))
        except InvalidInputError as error:
            verdict = AnswerVerdict("wrong", str(error))
        self.verdict.value = verdict._repr_html_()
