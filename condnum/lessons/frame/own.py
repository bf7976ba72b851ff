"""The reader's own function in an explorer: checked at every call, and compared with the library's."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError
from condnum.numbers import num
from condnum.page.style import NEUTRAL, honest_legend

#: Differences below this, relative to the largest number of the library's, are round-off.
AGREES = 1e-6


def _itself(found: Any, *_: Any) -> Any:
    return found


@dataclass(frozen=True)
class Own:
    """An argument of an explorer's function that readers may write themselves, and the library's answer.

    Where different answers are equally right, `view` turns one, and the arguments after it, into numbers that
    do not depend on the choice.
    """

    name: str
    library: Callable[..., Any]
    view: Callable[..., Any] = _itself
    function: Callable[..., Any] | None = None  # the reader's, where an explorer is given none


def newest(function: Any) -> Any:
    """Return what the name of a notebook's function means now: its cell may have run again."""
    if getattr(function, "__module__", "") != "__main__":
        return function
    again = function.__globals__.get(function.__name__)
    return again if callable(again) else function


class Tried:
    """A reader's function in the place of the library's, with the largest difference between the two."""

    def __init__(self, own: Own, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise InvalidInputError(
                f"{own.name} must be a function, got {function!r}; give its name without parentheses."
            )
        name = getattr(function, "__name__", own.name)
        self.own, self.function, self.name = own, function, name if name.isidentifier() else own.name
        self.difference = self.size = 0.0
        self.calls = 0

    @property
    def agrees(self) -> bool:
        """Whether it returned the library's numbers, up to round-off."""
        return self.difference <= AGREES * self.size

    def words(self) -> str:
        """Say how far its numbers are from the library's; nothing where it was not called."""
        if not self.calls:
            return ""
        name = f"Your <b>{self.name}</b>"
        if self.agrees:
            return f"{name} agrees with the library's: largest difference {num(self.difference, 2)}. "
        return f"{name} differs from the library's (gray) by up to {num(self.difference, 2)}. "

    def __call__(self, *given: Any) -> NDArray[np.float64]:
        """Return what the function makes of copies of its arguments, if these are numbers that fit."""
        found = self._numbers(self._answer([np.copy(one) if np.ndim(one) else one for one in given]))
        expected, seen = (
            np.asarray(self.own.view(np.asarray(one), *given), dtype=np.float64)
            for one in (self.own.library(*given), found)
        )
        if seen.shape != expected.shape:
            raise InvalidInputError(
                f"your {self.name} returned {_shape(seen)}; for these arguments the library returns "
                f"{_shape(expected)}."
            )
        apart = np.where(seen == expected, 0, np.nan_to_num(np.abs(seen - expected), nan=np.inf))
        self.calls += 1
        self.difference = max(self.difference, float(apart.max(initial=0)))
        self.size = max(self.size, float(np.abs(expected).max(initial=0)))
        return found

    def _answer(self, given: list[Any]) -> Any:
        try:
            with np.errstate(all="ignore"):
                return self.function(*given)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            file = getattr(getattr(self.function, "__code__", None), "co_filename", None)
            at = next((f" in the line '{one.line}'" for one in frames[::-1] if one.filename == file), "")
            raise InvalidInputError(
                f"your {self.name} stopped{at}: {type(error).__name__}: {error}"
            ) from error

    def _numbers(self, found: Any) -> NDArray[np.float64]:
        """Return what was found as finite real numbers, or say what it is instead."""
        if found is None or found is Ellipsis:
            raise InvalidInputError(
                f"your {self.name} returned nothing yet; end it with return and the result."
            )
        try:
            numbers = np.asarray(np.nan if np.iscomplexobj(found) else found, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.asarray(np.nan)
        if not np.isfinite(numbers).all():
            raise InvalidInputError(
                f"your {self.name} returned {str(found)[:60]!r}; expected finite real numbers."
            )
        return numbers


def _shape(values: Any) -> str:
    return f"an array of shape {values.shape}" if values.ndim else "a number"


def with_library(figure: Any, library: Any) -> Any:
    """Return the figure of a reader's function, with the library's lines in gray where they differ."""
    shown, below = [one.to_plotly_json() for one in figure.data], list[dict[str, Any]]()
    for mine, theirs in zip(shown, (one.to_plotly_json() for one in library.data), strict=True):
        if mine["type"] != "scatter" or theirs.get("fill"):
            continue
        if all(np.array_equal(mine[axis], theirs[axis], equal_nan=True) for axis in "xy"):
            continue
        theirs |= {"name": "the library's", "legendgroup": "library", "showlegend": not below, "opacity": 0.7}
        theirs["line"] = {**theirs.get("line", {}), "color": NEUTRAL, "dash": "dot", "width": 2}
        theirs["marker"] = {**theirs.get("marker", {}), "color": NEUTRAL}
        below.append(theirs)
    figure = type(figure)({"data": below + shown, "layout": figure.layout.to_plotly_json()}, _validate=False)
    return honest_legend(figure)
