"""The frame of all explorers: a pure function of its controls, drawn as a figure with a caption."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from condnum.errors import InvalidInputError, check_known, require
from condnum.lessons.frame.own import Own, Tried, newest, with_library
from condnum.lessons.frame.widget import (
    PlotlyWidget,
    errors_shown,
    payload_json,
    show_figure,
)
from condnum.machine import limited_threads

_traitlets = require("traitlets", "notebooks")

_F = TypeVar("_F", bound=Callable[..., Any])


class ExplorerResult(ABC):
    """What the function of an explorer returns."""

    @abstractmethod
    def figure(self) -> Any:
        """Return a plotly figure, always of the same traces."""

    @abstractmethod
    def caption(self) -> str:
        """Say in HTML what the figure shows."""

    def show(self, *, static: bool = False) -> Any:
        """Display the sentence and return the figure: for what no control changes."""
        ipython = import_module("IPython.display")
        ipython.display(ipython.HTML(f"<p>{self.caption()}</p>"))
        return show_figure(self.figure(), static=static)


@dataclass(frozen=True)
class Control(ABC):
    """How a reader sets an argument."""

    kind: ClassVar[str]  # of its row on the page
    label: str  # may hold <sub>; help and options are plain text
    help: str
    advanced: bool = field(default=False, kw_only=True)  # folded away; held at a preset's value in recordings
    #: For other arguments, the values with which this one has an effect; with others the page disables it.
    only: Mapping[str, Sequence[Any]] = field(default_factory=dict, kw_only=True)

    def trait(self, hint: Any, default: Any) -> Any:
        """Return the trait of an argument."""
        return _traitlets.Bool(default, help=self.help)

    def spec(self, trait: Any) -> dict[str, Any]:
        """Return what the page needs to know, as JSON."""
        only = {mode: list(values) for mode, values in self.only.items()}
        words = {"label": self.label, "help": self.help, "advanced": self.advanced}
        return words | {"kind": self.kind, "only": only}


@dataclass(frozen=True)
class Slider(Control):
    """A slider from `low` to `high`, with a box for numbers beside it."""

    kind: ClassVar[str] = "slider"
    low: float
    high: float
    step: float | None = None  # 1; on a logarithmic scale 0.1, in decades
    log: bool = False
    play: int = 0  # milliseconds a step of a play button, 0 for none
    marks: int = 5  # how many of its values a recording has, evenly spread over its scale
    values: Sequence[float] = ()  # where the handle stops, if neither scale suits; between them one types

    def trait(self, hint: Any, default: Any) -> Any:
        """Return a number within the range."""
        numbers = _traitlets.Int if hint is int else _traitlets.Float
        return numbers(default, min=hint(self.low), max=hint(self.high), help=self.help)

    def spec(self, trait: Any) -> dict[str, Any]:
        """Return the range, too; steps of a logarithmic scale are decades."""
        step = self.step or (0.1 if self.log else 1)
        scale = {"low": trait.min, "high": trait.max, "step": step, "log": self.log, "play": self.play}
        scale |= {"values": list(self.values)} if self.values else {}
        return super().spec(trait) | scale | {"whole": isinstance(trait, _traitlets.Int)}


@dataclass(frozen=True)
class Choice(Control):
    """A dropdown over the values of a `Literal`; `labels` words them."""

    kind: ClassVar[str] = "choice"
    labels: Mapping[Any, str] = field(default_factory=dict)

    def trait(self, hint: Any, default: Any) -> Any:
        """Return one of the values."""
        return _traitlets.Enum(list(get_args(hint)), default, help=self.help)

    def spec(self, trait: Any) -> dict[str, Any]:
        """Return the values and their words, too."""
        words = [(value, self.labels.get(value, str(value))) for value in trait.values]
        return super().spec(trait) | {"options": words}


@dataclass(frozen=True)
class Check(Control):
    """A checkbox for a `bool`."""

    kind: ClassVar[str] = "check"


def with_controls(**controls: Control) -> Callable[[_F], _F]:
    """Give keyword arguments of an explorer's function their controls."""

    def decorate(function: _F) -> _F:
        function.controls = controls  # type: ignore[attr-defined]
        return function

    return decorate


@dataclass(frozen=True)
class Preset:
    """Settings one click away."""

    label: str
    help: str
    settings: Mapping[str, Any]


class Explorer(PlotlyWidget):
    """A figure with controls: each control sets a trait, and all of them are the state.

    A subclass declares `compute`, a function `with_controls` that returns an `ExplorerResult`, and `presets`.
    Setting a trait redraws before it returns; an exception is shown in red, kept in `error`, and leaves
    nothing old in view.
    """

    compute: ClassVar[Callable[..., Any]]
    own: ClassVar[Own | None] = None  # the argument of `compute` in whose place readers may put a function
    fixed: ClassVar[tuple[str, ...]] = ()  # arguments of `compute` that readers may give and no control sets
    presets: ClassVar[tuple[Preset, ...]] = ()
    controls: ClassVar[dict[str, Control]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make a trait of each argument that has a control."""
        super().__init_subclass__(**kwargs)
        if "compute" not in vars(cls):  # anywidget makes a subclass for each instance
            return
        cls.controls, hints = cls.compute.controls, get_type_hints(cls.compute)  # type: ignore[attr-defined]
        for name, control in cls.controls.items():
            trait = control.trait(hints[name], inspect.signature(cls.compute).parameters[name].default)
            trait.class_init(cls, name)
            setattr(cls, name, trait)

    def __init__(self, **settings: Any) -> None:
        self._function = settings.pop(self.own.name, self.own.function) if self.own else None  # the reader's
        given = {name: settings.pop(name, None) for name in self.fixed}
        self._fixed = {name: value for name, value in given.items() if value is not None}
        self._check_names(settings)
        self._tried: Tried | None = None  # that function in the last drawing
        self.result: Any  # what `compute` returned last; None where nothing can be drawn
        self.error: str  # what the red line says; empty when all is well
        self._drawn: tuple[Any, ...] | None  # the state that is drawn
        self._request = 0  # number of the page's last message, which the answer repeats
        self._clear()
        super().__init__(**settings)
        self.observe(self._draw, list(self.controls))

    def open(self) -> None:
        """Draw, and then tell the page that there is a widget."""
        self.declaration = self.spec() | {"state": self.settings}
        self._draw()
        super().open()

    @classmethod
    def _check_names(cls, settings: Iterable[str]) -> None:
        """Refuse what is not a control."""
        for name in settings:
            check_known(f"setting of {cls.__name__}", name, cls.controls)

    @classmethod
    def effective(cls, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that have an effect in a state."""
        return {
            name: value
            for name, value in state.items()
            if all(state[mode] in values for mode, values in cls.controls[name].only.items())
        }

    @classmethod
    def spec(cls) -> dict[str, Any]:
        """Return controls, presets and the state at the start, as JSON."""
        traits = cls.class_traits()
        return {
            "name": cls.__name__,
            "doc": inspect.getdoc(cls),
            "controls": [
                {"name": name} | control.spec(traits[name]) for name, control in cls.controls.items()
            ],
            "presets": [asdict(preset) for preset in cls.presets],
            "state": {name: traits[name].default_value for name in cls.controls},
        }

    @classmethod
    def show(cls, *, static: bool = False, **settings: Any) -> Any:
        """Return the explorer, or the plain figure of these settings."""
        explorer = cls(**settings)  # checks the settings, and the reader's function
        if static and explorer.error:
            raise InvalidInputError(explorer.error)
        return explorer.plain_figure() if static else explorer

    @property
    def settings(self) -> dict[str, Any]:
        """The state: the value of each trait that has a control."""
        return {name: getattr(self, name) for name in self.controls}

    @property
    def settings_code(self) -> str:
        """A line of Python that makes this explorer again."""
        arguments = [f"{name}={value!r}" for name, value in self.effective(self.settings).items()]
        arguments += [f"{name}={name}" for name in self._fixed]
        arguments += [f"{self._tried.own.name}={self._tried.name}"] if self._tried else []
        return f"{type(self).__name__}({', '.join(arguments)})"

    def plain_figure(self) -> Any:
        """Return what is shown as a plotly figure without a widget; it says which explorer it shows.

        What a reader's function or data has drawn is no explorer's: recordings do not have it.
        """
        figure, _ = self._drawing(self.result, self._beside)
        meta = {"explorer": type(self).__name__, "settings": self.settings}
        if self._fixed or (self._tried and not self._tried.agrees):
            return figure
        return figure.update_layout(meta={**(figure.layout.meta or {}), **meta})

    def change(self, **settings: Any) -> None:
        """Set several traits at once and draw once; where a name or value is wrong nothing is changed."""
        self._check_names(settings)
        with self.hold_trait_notifications():
            for name, value in settings.items():
                setattr(self, name, value)

    def handle_message(self, message: dict[str, Any]) -> None:
        """Take over the state that the page asks for."""
        before, self._request, self.error = self.payload, message["id"], ""
        with errors_shown("the settings stay as they are", self._show_error):
            self.change(**message["state"])
            if self.payload is before:  # the state is drawn already
                self._send_payload()

    def _draw(self, _: Any = None) -> None:
        """Compute and draw the state, unless it is drawn already."""
        state = (*self.settings.values(), newest(self._function))
        if state == self._drawn:
            return
        self._clear()
        self._drawn = state
        with errors_shown("nothing can be drawn for these settings", self._show_error):
            # Small matrices: threads cost more than they give, on a busy machine most.
            with limited_threads(1):
                computed = self._compute()
                figure, caption = self._drawing(*computed)
            words: dict[str, Any] = {"caption": caption, "code": self.settings_code}
            self._content = figure, words
            self.result, self._beside = computed
            self._send_payload()

    def _compute(self) -> tuple[Any, Any]:
        """Return the state as the reader's function has it, if there is one, and as the library's does."""
        settings, compute, self._tried = self.effective(self.settings), type(self).compute, None
        settings |= self._fixed
        if self.own is None or self._function is None:
            return compute(**settings), None
        self._tried = Tried(self.own, newest(self._function))
        return compute(**settings, **{self.own.name: self._tried}), compute(**settings)

    def _drawing(self, result: Any, beside: Any) -> tuple[Any, str]:
        """Return figure and sentence, the library's lines beside the reader's where they differ."""
        figure, caption = result.figure(), result.caption()
        if self._tried is None:
            return figure, caption
        said = self._tried.words() + caption
        return figure if self._tried.agrees else with_library(figure, beside.figure()), said

    def _clear(self) -> None:
        """Forget what is drawn: nothing old stands for new settings."""
        self._drawn = self.result = self._beside = None
        self._content, self.error = (None, {}), ""

    def _show_error(self, error: str, field: str = "") -> None:
        """Show an error, that of a field beside it."""
        self.error = error
        self._send_payload(field)

    def _send_payload(self, field: str = "") -> None:
        """Send all that there is to the page."""
        figure, words = self._content
        words = words | {"state": self.settings, "error": self.error, "field": field}
        self.payload = payload_json(figure, id=self._request, **words)
