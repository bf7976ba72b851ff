"""An explorer of a function of one's own, as `ipywidgets.interact` makes sliders of one."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from condnum.errors import InvalidInputError, check_known
from condnum.lessons.frame.explorer import Check, Choice, Control, Explorer, ExplorerResult, Slider
from condnum.lessons.frame.own import newest


@dataclass(frozen=True)
class Drawn(ExplorerResult):
    """What a reader's function returned."""

    drawn: Any
    words: str

    def figure(self) -> Any:
        """Return the figure."""
        return self.drawn

    def caption(self) -> str:
        """Return the sentence."""
        return self.words


def explore(function: Callable[..., Any], **controls: Any) -> Explorer:
    """Return an explorer of a function that returns a plotly figure, or a figure and a sentence.

    Args:
        function: Each argument with a control needs a default. Numbers, booleans and text are checked.
        controls: By argument: a `Slider`, `Choice` or `Check`, or in short, as ipywidgets has it,
            `(low, high)` or `(low, high, step)`, a list of values, or a boolean.

    Returns:
        The explorer. Its arguments are traits: set them by name, `observe` them, or `traitlets.link` them to
        a widget.

    Raises:
        InvalidInputError: An argument has no default, or its control is none of these.
        UnknownNameError: The function has no such argument.
    """
    parameters, hints, rows = inspect.signature(function).parameters, dict[str, Any](), dict[str, Control]()
    for name, given in controls.items():
        check_known(f"argument of {function.__name__}", name, parameters)
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            raise InvalidInputError(f"{function.__name__} needs a default for {name}, such as {name}=1.0.")
        rows[name] = given if isinstance(given, Control) else _control(name, given)
        hints[name] = type(default)
        if isinstance(given, list):
            hints[name] = Literal[tuple(given)]

    def compute(**settings: Any) -> Drawn:
        found = newest(function)(**settings)
        return Drawn(*found) if isinstance(found, tuple) else Drawn(found, "")

    compute.__annotations__ = hints
    compute.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    compute.controls = rows  # type: ignore[attr-defined]
    body = {"compute": staticmethod(compute), "__doc__": inspect.getdoc(function)}
    made: type[Explorer] = type(function.__name__, (Explorer,), body)
    return made()


def _control(name: str, given: Any) -> Control:
    """Return the control of an abbreviation."""
    if isinstance(given, bool):
        return Check(name, "")
    if isinstance(given, list):
        return Choice(name, "")
    if isinstance(given, tuple) and len(given) in (2, 3):
        return Slider(name, "", *given)
    raise InvalidInputError(
        f"the control of {name} must be (low, high), (low, high, step), a list, a boolean, or a Slider, "
        f"Choice or Check, got {given!r}."
    )
