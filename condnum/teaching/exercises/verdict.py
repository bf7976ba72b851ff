"""What a check says: right, wrong or not answered, and why."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.errors import CondnumError

Status = Literal["right", "wrong", "not answered yet"]

_COLORS = {"right": "#009E73", "wrong": "#D55E00", "not answered yet": "#8A8A8A"}
_MARKS = {"right": "✔", "wrong": "✘", "not answered yet": "…"}


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check; a notebook shows it as a coloured line.

    Examples:
        >>> Verdict("right", "κ is 49.")
        right: κ is 49.
    """

    status: Status
    reason: str  # plain text, one or two sentences

    def __repr__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status

    def _repr_html_(self) -> str:
        """Return the line for a notebook."""
        style = f"border-left:6px solid {_COLORS[self.status]};padding:4px 12px;font-size:1.1em"
        reason = html.escape(self.reason)
        return f'<div style="{style}"><b>{_MARKS[self.status]} {self.status}.</b> {reason}</div>'


class AnswerError(Exception):
    """A property that the answer should have and has not; the message says which and why."""


class NotAnsweredError(Exception):
    """A function returned None or `...`: its body is still to be written."""


Check = Callable[..., str]


def check(examine: Check) -> Callable[..., Verdict]:
    """Turn a function that raises `AnswerError`, or returns why an answer is right, into a check.

    An answer that is None or `...` is not answered yet. Whatever a learner's own code raises is a
    finding, with the exception's words, and stops no notebook.

    Args:
        examine: Takes the learner's answers.

    Returns:
        A function of the same arguments that returns a `Verdict`.

    Examples:
        >>> @check
        ... def check_even(n):
        ...     if n % 2:
        ...         raise AnswerError(f"{n} leaves a remainder of 1.")
        ...     return f"{n} is twice {n // 2}."
        >>> check_even(3), check_even(4), check_even(...)
        (wrong: 3 leaves a remainder of 1., right: 4 is twice 2., not answered yet)
    """

    @functools.wraps(examine)
    def checked(*answers: Any) -> Verdict:
        if any(is_blank(answer) for answer in answers):
            return Verdict("not answered yet", "")
        try:
            return Verdict("right", examine(*answers))
        except NotAnsweredError:
            return Verdict("not answered yet", "")
        except AnswerError as finding:
            return Verdict("wrong", str(finding))
        except CondnumError as error:
            return Verdict("wrong", f"the answer cannot be used: {error}")
        except Exception as error:  # the learner's code may raise anything
            return Verdict("wrong", f"the answer fails with {type(error).__name__}: {error}")

    return checked


def is_blank(answer: Any) -> bool:
    """Tell whether an answer is still the gap of the exercise."""
    return answer is None or answer is ...


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a learner's function with copies of the arguments, so that it cannot change ours."""
    if not callable(function):
        raise AnswerError(f"a function is asked for, got {type(function).__name__}.")
    result = function(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    if is_blank(result):
        raise NotAnsweredError
    return result


def real(answer: Any, name: str, kind: str = "made of numbers") -> NDArray[np.float64]:
    """Return an answer as real numbers; imaginary parts that are round-off, as of `sqrtm`, are dropped.

    Examples:
        >>> real([4 + 0j], "σ")
        array([4.])
    """
    try:
        values = np.array(answer, dtype=np.complex128)
    except (TypeError, ValueError) as error:
        raise AnswerError(f"{name} must be {kind}, got {answer!r}.") from error
    off = np.abs(values.imag).max(initial=0)
    if off > 1e-9 * np.abs(values).max(initial=0):
        raise AnswerError(
            f"{name} must be real, but has imaginary parts up to {off:.2g}: a root of a negative number, or "
            "eigenvectors of a matrix that is not symmetric?"
        )
    return np.array(values.real)


def number(answer: Any, name: str) -> float:
    """Return an answer as a finite float."""
    values = real(answer, name, "a number")
    if values.size != 1:
        raise AnswerError(f"{name} must be a number, got {answer!r}.")
    value = float(values.item())
    if not np.isfinite(value):
        raise AnswerError(f"{name} must be finite, got {value}.")
    return value


def matrix(answer: Any, shape: tuple[int, int], name: str) -> NDArray[np.float64]:
    """Return an answer as a finite matrix of a given shape."""
    value = real(answer, name)
    if value.shape != shape:
        raise AnswerError(f"{name} must have shape {shape}, got {value.shape}.")
    if not np.isfinite(value).all():
        raise AnswerError(f"{name} holds entries that are not finite.")
    return value


def covariance_like(answer: Any, size: int, name: str) -> NDArray[np.float64]:
    """Return an answer as a symmetric positive semi-definite matrix."""
    K = matrix(answer, (size, size), name)
    if not np.allclose(K, K.T, rtol=1e-9, atol=1e-12 * np.abs(K).max()):
        raise AnswerError(f"{name} is not symmetric, so it is no covariance.")
    gamma = np.linalg.eigvalsh(K)
    if gamma[0] < -1e-9 * np.abs(gamma).max():
        raise AnswerError(f"{name} has the negative eigenvalue {gamma[0]:.3g}, so it is no covariance XᵀX.")
    return K
