"""Explorers: `@explore` above a function of its controls that returns panels and a sentence.

    @explore(kappa=Log(1, 1000), steps=(10, 500))
    def bound(kappa=10.0, steps=50):
        t = np.arange(steps + 1)
        left = (1 - 1 / kappa) ** t
        panel = Panel("Eq. 2", x="step t", y="fraction left", log="y").line("bound", t, left)
        return panel, f"After {steps} steps at most {left[-1]:.2g} is left."

In a notebook, running the cell draws. Elsewhere the name is the explorer: `bound.show(kappa=3)` draws it, and
`bound(kappa=3)` is a call of the function.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from condnum.errors import InvalidInputError, check_known
from condnum.lessons.draw import NUMBERS, Json, Panel, figure
from condnum.numbers import num
from condnum.page.look import NEUTRAL

#: A function of the reader's agrees with the library's where what is drawn differs by less, relatively.
AGREES = 1e-6


@dataclass(frozen=True, kw_only=True)
class Control:
    """How a reader sets an argument."""

    kind: ClassVar[str]
    label: str = ""  # the argument's name unless it is given; may hold <sub>
    help: str = ""
    live: bool = False  # needs a kernel: a recording holds it at its default

    def check(self, name: str, value: Any) -> Any:
        """Return a value that the control may have."""
        raise NotImplementedError

    def recorded(self, wanted: Iterable[Any]) -> list[Any]:
        """Return the values that a recording has."""
        raise NotImplementedError


class FieldError(InvalidInputError):
    """A value that a control refuses; the page shows the words beside it."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


@dataclass(frozen=True)
class Slider(Control):
    """A slider from `low` to `high`, with a box for numbers beside it.

    `stops` are the values that a recording has: how many, evenly spread over the scale, or which. Stops with
    names, `{"raw": 1.0, "erased": 0.0}`, are also where the handle stops with a kernel.
    """

    kind: ClassVar[str] = "slider"
    low: float
    high: float
    step: float | None = None  # on a logarithmic scale in decades
    log: bool = False
    stops: int | Sequence[float] | Mapping[str, float] = 5
    play: int = 0  # milliseconds a step of a play button, 0 for none

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers: those of its ends are."""
        return not self.log and all(isinstance(one, int) for one in (self.low, self.high, self.step or 1))

    def check(self, name: str, value: Any) -> Any:
        """Return a number in the range."""
        words = f"{self.label or name} must be {'a whole number' if self.whole else 'a number'} "
        words += f"from {num(self.low)} to {num(self.high)}, got {value!r}."
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise FieldError(name, words)
        if not self.low <= value <= self.high or (self.whole and value != int(value)):
            raise FieldError(name, words)
        return int(value) if self.whole else float(value)

    def recorded(self, wanted: Iterable[float]) -> list[Any]:
        """Return the stops, and the wanted values among them."""
        if isinstance(self.stops, Mapping):
            return [*self.stops.values()]
        kept = self.stops
        if isinstance(kept, int):
            spread = np.geomspace if self.log else np.linspace
            kept = [float(f"{value:.3g}") for value in spread(self.low, self.high, kept)]
            kept = [min(max(value, self.low), self.high) for value in kept]
            if self.step and not self.log:  # those of the slider
                kept = [self.low + self.step * round((value - self.low) / self.step) for value in kept]
                kept = [float(f"{value:.12g}") for value in kept if value <= self.high]
        found = sorted({*kept, *wanted})
        return [round(value) for value in found] if self.whole else [float(value) for value in found]


def Log(low: float, high: float, stops: int | Sequence[float] = 7, **more: Any) -> Slider:  # ruff: ignore[invalid-function-name]
    """Return a slider on a logarithmic scale."""
    return Slider(low, high, log=True, stops=stops, **more)


@dataclass(frozen=True)
class Choice(Control):
    """A dropdown of values, or of `{words: value}`."""

    kind: ClassVar[str] = "choice"
    options: Sequence[Any] | Mapping[str, Any]

    @property
    def words(self) -> dict[Any, str]:
        """The words of each value."""
        if isinstance(self.options, Mapping):
            return {value: words for words, value in self.options.items()}
        return {value: str(value) for value in self.options}

    def check(self, name: str, value: Any) -> Any:
        """Return one of the values."""
        if value not in self.words:
            choices = ", ".join(map(repr, self.words))
            raise FieldError(name, f"{self.label or name} must be one of {choices}, got {value!r}.")
        return value

    def recorded(self, wanted: Iterable[Any]) -> list[Any]:
        """Return every value."""
        return [*self.words]


@dataclass(frozen=True)
class Check(Control):
    """A checkbox."""

    kind: ClassVar[str] = "check"

    def check(self, name: str, value: Any) -> bool:
        """Return a truth value."""
        if not isinstance(value, bool | np.bool_):
            raise FieldError(name, f"{self.label or name} must be True or False, got {value!r}.")
        return bool(value)

    def recorded(self, wanted: Iterable[Any]) -> list[bool]:
        """Return both."""
        return [False, True]


def control_of(name: str, given: Any) -> Control:
    """Return a control, or that of one of ipywidgets' abbreviations."""
    if isinstance(given, Control):
        return given
    if isinstance(given, bool):
        return Check()
    if isinstance(given, list | Mapping) and given:
        return Choice(given)
    if isinstance(given, tuple) and len(given) in (2, 3) and given[0] < given[1]:
        return Slider(*given)
    if isinstance(given, int | float) and given:
        return Slider(min(-given, 3 * given), max(-given, 3 * given))
    raise InvalidInputError(
        f"the control of {name} must be (low, high), (low, high, step), a number, a list, {{words: value}}, "
        f"a boolean, or a Slider, Log, Choice or Check, got {given!r}."
    )


def explore(
    *, presets: Mapping[str, Mapping[str, Any]] | None = None, **controls: Any
) -> Callable[[Callable[..., Any]], Explorer]:
    """Give the arguments of a function controls, and draw what it returns.

    Args:
        presets: States one click away, `{"worst start": {"angle": 45}}`.
        controls: By argument, a `Slider`, `Log`, `Choice` or `Check`, or in short, as ipywidgets has it,
            `(low, high)` or `(low, high, step)`, a number, a list of values, `{words: value}`, or a boolean.

    Returns:
        A decorator of a function that returns a panel or several, a sentence (HTML), and perhaps a table.

    Raises:
        InvalidInputError: A control is none of these, or refuses the argument's default.
        UnknownNameError: The function has no such argument.
    """

    def decorate(function: Callable[..., Any]) -> Explorer:
        made = Explorer(function, controls, presets or {})
        if function.__module__ == "__main__" and "IPython" in sys.modules:
            from IPython.display import display  # the notebook is there

            display(made)
        return made

    return decorate


class Explorer:
    """A function with controls; `show` draws it."""

    #: The states in which readers left explorers: a cell that runs again starts from there.
    left: ClassVar[dict[Any, dict[str, Any]]] = {}

    def __init__(
        self,
        function: Callable[..., Any],
        controls: Mapping[str, Any],
        presets: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.function, self.presets, self.__doc__ = function, presets, inspect.getdoc(function)
        self.name = self.__name__ = function.__name__
        arguments = inspect.signature(function).parameters
        self.controls, self.start = dict[str, Control](), dict[str, Any]()
        for name, given in controls.items():
            check_known(f"argument of {self.name}", name, arguments)
            control, default = control_of(name, given), arguments[name].default
            if default is inspect.Parameter.empty:
                default = given if isinstance(given, bool | int | float) else control.recorded([])[0]
            if isinstance(control, Slider) and control.whole and isinstance(default, float):
                control = replace(control, low=float(control.low))
            self.controls[name], self.start[name] = control, control.check(name, default)
        self.library = {name: of.default for name, of in arguments.items() if callable(of.default)}
        self._others = [name for name in arguments if name not in controls]
        for settings in presets.values():
            for name in settings:
                check_known(f"control of {self.name} in a preset", name, self.controls)
            self.state(settings)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function."""
        return self.function(*given, **named)

    def state(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the start with some settings changed, or refuse one of them."""
        for name in settings:
            check_known(f"setting of {self.name}", name, [*self.controls, *self._others])
        changed = {name: self.controls[name].check(name, value) for name, value in settings.items()}
        return self.start | changed

    def show(self, *, static: bool | None = None, **given: Any) -> Any:
        """Return what a notebook displays: a widget, or with `static` a figure that pages can play.

        Args:
            static: None asks the notebook, whose parameter of this name says whether it becomes a page.
            given: Controls where they start, and other arguments: functions of yours in the place of the
                library's, or your data.

        Raises:
            InvalidInputError: A control does not take its value.
            UnknownNameError: There is no such argument.
        """
        settings = {name: value for name, value in given.items() if name in self.controls}
        others = {name: value for name, value in given.items() if name not in self.controls}
        for name, function in others.items():
            check_known(f"setting of {self.name}", name, [*self.controls, *self._others])
            if name in self.library and not callable(function):
                raise InvalidInputError(
                    f"{name} must be a function, got {function!r}; give its name without parentheses."
                )
        state = self.state(settings)
        if is_page() if static is None else static:
            from condnum.lessons.record import Recorded

            return Recorded(self, state, others)
        from condnum.lessons.widget import ExplorerWidget

        return ExplorerWidget(self, state, others)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        shown = self.show()
        return shown._repr_mimebundle_(**options)

    def draw(self, state: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> Json:
        """Return figure, sentence and table of a state; a reader's function is drawn beside the library's."""
        others = {name: newest(value) for name, value in (others or {}).items()}
        yours = {
            name: Yours(name, others[name], self.library[name]) for name in others if name in self.library
        }
        panels, words, table = returned(self.function(**{**state, **others, **yours}))
        agrees = True
        if used := [f"<b>{one.name}</b>" for one in yours.values() if one.used]:
            rest = {name: value for name, value in others.items() if name not in yours}
            agrees = not beside(panels, returned(self.function(**{**state, **rest}))[0])
            said = " draws what the library's does. " if agrees else ": the library's is drawn in gray. "
            words = f"Your {' and '.join(used)}{said}{words}"
        drawn = figure(panels, columns=2 if len(panels) == 4 else 3)
        return {"figure": drawn, "sentence": words, "table": table, "agrees": agrees}

    def spec(self) -> Json:
        """Return controls, presets and the start, as JSON for the page."""
        controls = []
        for name, control in self.controls.items():
            one: Json = {
                "name": name,
                "kind": control.kind,
                "label": control.label or name,
                "help": control.help,
            }
            one |= {"live": control.live}
            if isinstance(control, Slider):
                step = control.step or (
                    0.05 if control.log else 1 if control.whole else (control.high - control.low) / 100
                )
                one |= {"low": control.low, "high": control.high, "step": step, "log": control.log}
                one |= {"play": control.play, "whole": control.whole}
                if isinstance(control.stops, Mapping):
                    one |= {"values": [*control.stops.values()], "names": [*control.stops]}
            if isinstance(control, Choice):
                one["options"] = [[value, words] for value, words in control.words.items()]
            controls.append(one)
        presets = [{"label": label, "settings": {**settings}} for label, settings in self.presets.items()]
        return {"name": self.name, "doc": self.__doc__ or "", "controls": controls, "presets": presets}

    def code(self, state: Mapping[str, Any], others: Mapping[str, Any]) -> str:
        """Return a line of Python that shows this state."""
        given = [f"{name}={value!r}" for name, value in state.items() if value != self.start[name]]
        given += [f"{name}={getattr(value, '__name__', name)}" for name, value in others.items()]
        return f"{self.name}.show({', '.join(given)})"


def is_page() -> bool:
    """Return whether the notebook's parameter `static` says that it becomes a page, without a kernel."""
    return bool(getattr(sys.modules["__main__"], "static", False))


def returned(found: Any) -> tuple[list[Panel], str, str]:
    """Return panels, sentence and table (HTML) of what a function returned."""
    parts = found if isinstance(found, tuple) else (found,)
    panels, words, table = (*parts, "", "")[:3]
    panels = [panels] if isinstance(panels, Panel) else panels
    known = isinstance(panels, list | tuple) and all(isinstance(one, Panel) for one in panels)
    if len(parts) > 3 or not known or not isinstance(words, str):
        raise InvalidInputError(
            "the function of an explorer returns a Panel or a list of them, then a sentence, such as "
            f"`return Panel().line('y', x, y), f'y ends at {{y[-1]}}'`, got {str(found)[:60]}."
        )
    return [*panels], words, table if isinstance(table, str) else as_table(table)


def as_table(table: Any) -> str:
    """Return a data frame as HTML."""
    return str(table.to_html(index=False, border=0, escape=False))


def newest(function: Any) -> Any:
    """Return what the name of a notebook's function means now: its cell may have run again."""
    if getattr(function, "__module__", "") != "__main__":
        return function
    again = function.__globals__.get(getattr(function, "__name__", ""))
    return again if callable(again) else function


class Yours:
    """A reader's function in the place of the library's: its numbers have the same shape, and are finite."""

    def __init__(self, argument: str, function: Callable[..., Any], library: Callable[..., Any]) -> None:
        self.function, self.library, self.used = function, library, False
        name = getattr(function, "__name__", argument)
        self.name = name if name.isidentifier() else argument

    def __call__(self, *given: Any) -> Any:
        """Return what the function makes of copies of its arguments, or say what is wrong with it."""
        self.used = True
        try:
            with np.errstate(all="ignore"):
                found = self.function(*(one.copy() if isinstance(one, np.ndarray) else one for one in given))
        except Exception as error:
            file = getattr(getattr(self.function, "__code__", None), "co_filename", None)
            frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
            at = f" in the line '{frames[-1].line}'" if frames else ""
            raise InvalidInputError(
                f"your {self.name} stopped{at}: {type(error).__name__}: {error}"
            ) from error
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
        expected = np.shape(self.library(*given))
        if numbers.ndim != len(expected) or numbers.shape[:1] != expected[:1]:
            raise InvalidInputError(
                f"your {self.name} returned {_shape(numbers.shape)}; for these arguments the library returns "
                f"{_shape(expected)}."
            )
        return numbers


def _shape(shape: tuple[int, ...]) -> str:
    return f"an array of shape {shape}" if shape else "a number"


def beside(panels: Sequence[Panel], library: Sequence[Panel]) -> bool:
    """Put the library's lines in gray below those that differ; the axes follow. Tell whether any does."""
    found = False
    for mine, theirs in zip(panels, library, strict=True):
        look = {"name": "the library's", "legendgroup": "library", "showlegend": False, "opacity": 0.7}
        look["line"] = {"color": NEUTRAL, "dash": "dot", "width": 2}
        gray = [
            {**one, **look, "marker": {**one["marker"], "color": NEUTRAL}}
            for one, other in zip(theirs.traces, mine.traces, strict=True)
            if one["type"] == "scatter" and "fill" not in one and not _alike(one, other)
        ]
        if gray:
            gray[0]["showlegend"] = not found
            found = True
            mine.traces = gray + mine.traces
            mine.follow()
    return found


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two lines differ by round-off alone."""
    for axis in "xy":
        a, b = np.asarray(one[axis]), np.asarray(other[axis])
        if a.shape != b.shape:
            return False
        if a.dtype.kind not in "fiu":
            continue
        span = np.nanmax(np.abs(a), initial=0.0)
        if not np.allclose(a, b, rtol=AGREES, atol=1e-12 * span, equal_nan=True):
            return False
    return True


def split(drawn: Json) -> tuple[Json, list[Json]]:
    """Return a figure without its numbers, and the numbers of each trace."""
    data = [{key: value for key, value in one.items() if key not in NUMBERS} for one in drawn["data"]]
    numbers = [{key: one[key] for key in NUMBERS if key in one} for one in drawn["data"]]
    return {"data": data, "layout": drawn["layout"]}, numbers
