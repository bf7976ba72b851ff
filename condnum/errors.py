"""Named errors: each message is one paragraph that shows the offending value and the fix.

The command line prints the message and exits with status 2; a library user catches
`CondnumError`, or the built-in type that each class also derives from.
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from types import ModuleType
from typing import Literal


class CondnumError(Exception):
    """Base class of every error that condnum raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of it: the paragraph, as on the command line, and no calls."""
        return [f"{type(self).__name__}: {self}"]


class InvalidInputError(CondnumError, ValueError, TypeError):
    """An argument has a wrong shape, a wrong type, a forbidden value or non-finite entries."""


class RankError(InvalidInputError):
    """A matrix has numerical rank 0, or a rank too small for what was asked of it."""


class UnknownNameError(InvalidInputError):
    """A method, parameter, data set or option has no such name; the message lists the choices."""

    def __init__(self, kind: str, name: object, choices: Iterable[str]) -> None:
        names = list(choices)
        near = get_close_matches(str(name), names, n=1)
        hint = f" did you mean '{near[0]}'?" if near else ""
        super().__init__(f"unknown {kind} '{name}';{hint} Choices: {', '.join(names)}.")


def check_known(kind: str, name: object, choices: Collection[str]) -> None:
    """Refuse a name that is not among the choices."""
    if name not in choices:
        raise UnknownNameError(kind, name, choices)


def check_integer(name: str, value: object, least: int) -> int:
    """Return a whole number, also NumPy's or 10.0, as an int; refuse anything else, or what is too small.

    Examples:
        >>> check_integer("steps", 10.0, 1)
        10
    """
    whole = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    if isinstance(value, bool) or not whole or int(value) < least:  # type: ignore[call-overload]
        raise InvalidInputError(f"{name} must be an integer ≥ {least}, got {value!r}.")
    return int(value)  # type: ignore[call-overload]


def check_flag(name: str, value: object) -> bool:
    """Return a truth value, also NumPy's, as a bool; refuse anything else: `"no"` and `"False"` are true.

    Examples:
        >>> check_flag("precondition", False)
        False
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise InvalidInputError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def check_real(name: str, value: object, least: float, most: float) -> float:
    """Return a number in [least, most], also NumPy's, as a float; refuse truth values and anything else.

    Examples:
        >>> check_real("strength", 1, 0, 1)
        1.0
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) <= most:
        raise InvalidInputError(f"{name} must lie in [{least:g}, {most:g}], got {value!r}.")
    return float(value)


class DataNotFoundError(CondnumError, FileNotFoundError):
    """A data file is missing; the message says what to put where."""


class DataFormatError(CondnumError, ValueError):
    """A data file exists but its content is not what the loader expects."""


class DeviceError(CondnumError, RuntimeError):
    """The requested device is not available on this machine."""


class MissingExtraError(CondnumError, ImportError):
    """An optional dependency is missing; the message names the extra that installs it."""


class OutputError(CondnumError, OSError):
    """A result cannot be written where it was asked to go."""


#: Optional dependencies are imported where they are used.
Extra = Literal["viz", "notebooks", "deep", "cluster", "site"]


def require(module: str, extra: Extra) -> ModuleType:
    """Import an optional module, or say which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingExtraError(
            f"this needs the module '{missing}', which is not installed; it belongs to the extra '{extra}': "
            f"pip install -e '.[{extra}]' in a clone of condnum, "
            f"or pip install 'WHEEL[{extra}]' if you installed a wheel"
        ) from error
