"""What a check says: right, wrong or not answered, and why."""

import functools
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from condnum.errors import CondnumError
from condnum.lessons.condition_number import Floats
from condnum.numbers import num

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
