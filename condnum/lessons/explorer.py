"""The base of all explorers: state in traits, one figure, one reading line, exports.

A lesson's computing function says in its annotations what each argument may be; `checked` holds it to that,
and an explorer makes the trait and the control of the same name from it. See `Explorer`.
"""

from __future__ import annotations

import functools
import html
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import pandas as pd

from condnum.errors import CondnumError, InvalidInputError, MissingExtraError, UnknownNameError, require
from condnum.figures.style import apply_theme, honest_legend, num, stacked
from condnum.lessons.figure_view import (
    EXPLORER_CLASS,
    courier,
    deliver,
    display_with_picture,
    figure_widget,
    redraw,
)
from condnum.machine import limited_threads

ipywidgets = require("ipywidgets", "notebooks")
traitlets = require("traitlets", "notebooks")
VBox: Any = ipywidgets.VBox

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Between:
    """The range of an argument, of its trait and of its slider."""

    low: float
    high: float


#: Degrees.
Angle = Annotated[float, Between(0, 90)]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse what the annotations do not allow: a number not `Between`, a name that no `Literal` has.

    Examples:
        >>> @checked
        ... def turned(angle: Angle, way: Literal["left", "right"]) -> float:
        ...     return angle if way == "left" else -angle
        >>> turned(30.0, "right")
        -30.0
        >>> turned(100.0, "left")
        Traceback (most recent call last):
        condnum.errors.InvalidInputError: angle must lie between 0 and 90, got 100.0.
    """
    hints, signature = get_type_hints(function, include_extras=True), inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            allowed = get_args(hints[name])
            if get_origin(hints[name]) is Literal and value not in allowed:
                raise UnknownNameError(name, str(value), [str(choice) for choice in allowed])
            if get_origin(hints[name]) is Annotated and not allowed[1].low <= value <= allowed[1].high:
                low, high = num(allowed[1].low, 10), num(allowed[1].high, 10)
                raise InvalidInputError(f"{name} must lie between {low} and {high}, got {value}.")
        return function(*args, **kwargs)

    return call


def trait_of(hint: Any, default: Any, text: str) -> Any:
    """Return the trait of an argument: its annotation says what it may be."""
    if get_origin(hint) is Literal:
        return traitlets.Enum(list(get_args(hint)), default, help=text)
    if get_origin(hint) is Annotated:
        kind, within = get_args(hint)
        numbers = traitlets.Int if kind is int else traitlets.Float
        return numbers(default, min=kind(within.low), max=kind(within.high), help=text)
    return {bool: traitlets.Bool, str: traitlets.Unicode}[hint](default, help=text)


#: Width of one column of controls: two fit beside each other in a window of 1280 pixels.
CONTROL_WIDTH = 500
#: 1,000 but not 1,5.
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")


@dataclass(frozen=True)
class Control(ABC):
    """What every control has; its range and start are those of the argument of its name."""

    name: str  # of the argument, and of the trait that it shows and sets
    label: str  # plain text, with Greek letters; nothing here renders HTML
    help: str
    unit: str = ""  # shown in brackets behind the label

    @property
    def description(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @abstractmethod
    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the widget; its `value` is of the trait's type."""


@dataclass(frozen=True)
class Slider(Control):
    """A slider over the trait's bounds: whole numbers for an `Int`, else fractions."""

    step: float = 1
    continuous: bool = True  # False where a redraw takes more than 100 ms

    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the slider for whole numbers or the one for fractions."""
        whole = isinstance(trait, traitlets.Int)
        slider = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
        return slider(min=trait.min, max=trait.max, **self._common(common))

    def _common(self, common: dict[str, Any]) -> dict[str, Any]:
        return {**common, "step": self.step, "continuous_update": self.continuous, "readout": False}


@dataclass(frozen=True)
class LogSlider(Slider):
    """A slider on a logarithmic scale between the trait's positive bounds."""

    step: float = 0.1  # in decades

    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the logarithmic slider."""
        low, high = math.log10(trait.min), math.log10(trait.max)
        return ipywidgets.FloatLogSlider(base=10, min=low, max=high, **self._common(common))


@dataclass(frozen=True)
class Choice(Control):
    """A dropdown over the values of a `Literal`; `labels` words them."""

    labels: Mapping[Any, str] = field(default_factory=dict)

    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the dropdown."""
        options = [(self.labels.get(value, str(value)), value) for value in trait.values]
        return ipywidgets.Dropdown(options=options, **common)


@dataclass(frozen=True)
class Check(Control):
    """A checkbox for a `bool`."""

    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the checkbox."""
        return ipywidgets.Checkbox(**common)


@dataclass(frozen=True)
class Stepper(Slider):
    """A slider of whole numbers with a play button, which moves it in the browser."""

    interval: int = 400  # milliseconds a step


@dataclass(frozen=True)
class Preset:
    """Settings one click away."""

    label: str
    help: str
    settings: Mapping[str, Any]


def number_in(text: str, trait: Any, label: str) -> float:
    """Return the number that a reader typed.

    Examples:
        >>> from traitlets import Float
        >>> number_in("1,000", Float(min=1.0, max=1e6), "κ")
        1000.0
    """
    whole, plain = isinstance(trait.default_value, int), text.strip()
    try:
        value = float(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain)
    except ValueError:
        value = math.nan
    if not trait.min <= value <= trait.max or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InvalidInputError(
            f"{label} must be {kind} from {num(trait.min, 10)} to {num(trait.max, 10)}, got {plain!r}."
        )
    return int(value) if whole else value


def is_rounding(box: Any, wanted: Any, shown: Any) -> bool:
    """Tell whether a slider shows a value that the page has rounded to the slider's marks.

    In the browser a slider that is told 37 moves to its nearest mark and reports that mark as if a reader
    had moved it. The state keeps what it was told; only a move of more than half a step is the reader's.

    Examples:
        >>> box = ipywidgets.FloatLogSlider(base=10, min=0, max=3, step=0.1)
        >>> is_rounding(box, 37.0, 10**1.6), is_rounding(box, 37.0, 10**1.5), is_rounding(box, 37.0, 38.0)
        (True, False, False)
    """
    if not isinstance(box, ipywidgets.FloatLogSlider | ipywidgets.FloatSlider) or not box.step:
        return False
    logarithmic = isinstance(box, ipywidgets.FloatLogSlider)
    told, mark = (math.log(value, box.base) if logarithmic else value for value in (wanted, shown))
    steps, moved = (mark - box.min) / box.step, abs(mark - told) / box.step
    return abs(steps - round(steps)) < 1e-6 and moved <= 0.5 + 1e-6


#: Size of an exported picture in pixels, before `PNG_SCALE`.
PNG_WIDTH, PNG_SCALE = 1200, 2
#: Media type of each kind of file.
EXPORTS = {"html": "text/html", "png": "image/png", "csv": "text/csv"}


def png_bytes(figure: Any) -> bytes:
    """Return a figure as a picture."""
    require("kaleido", "viz")
    try:
        return bytes(figure.to_image(format="png", width=PNG_WIDTH, scale=PNG_SCALE))
    except (ValueError, RuntimeError) as error:
        raise MissingExtraError(
            f"a PNG needs kaleido and a Chromium or Chrome that starts ({error}); install both, "
            "or use the camera above the figure, which works in the browser."
        ) from error


class Explorer(VBox):
    """A figure with controls: each control sets a trait, and all of them are the state.

    Setting a trait (`explorer.kappa = 50`) recomputes and redraws before it returns. A value that the
    trait forbids raises `traitlets.TraitError`; an exception in between is shown in the red line `alert`
    and kept in `error`, because Jupyter hides what a callback raises in a log. What cannot be drawn leaves no
    figure, table, code line or export of what was shown before. A subclass declares

    * `compute`, a pure function of keyword arguments that returns a result;
    * `figure`, `data` and `reading`: from that result to a plotly figure (always the same traces), to a
      table and to a line of HTML that says what is to be seen;
    * `controls`, each for an argument of `compute`, or one of `figure` that changes the drawing alone. Its
      range and its start are those of the argument;
    * `presets`, buttons that set several traits.
    """

    controls: ClassVar[tuple[Control, ...]] = ()
    presets: ClassVar[tuple[Preset, ...]] = ()
    view_settings: ClassVar[tuple[str, ...]] = ()
    compute: ClassVar[staticmethod[..., Any]]
    figure: ClassVar[staticmethod[..., Any]]
    data: ClassVar[staticmethod[[Any], pd.DataFrame]]
    reading: ClassVar[staticmethod[[Any], str]]

    theme = traitlets.Enum(
        ["auto", "light", "dark"], "auto", help="Colours of the figure; auto follows the page."
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make a trait of the argument of each control."""
        super().__init_subclass__(**kwargs)
        arguments: dict[str, tuple[Any, Any]] = {}
        for function in (cls.figure, cls.compute):
            hints = get_type_hints(function, include_extras=True)
            signature = inspect.signature(function).parameters.items()
            arguments |= {name: (hints.get(name), parameter.default) for name, parameter in signature}
        for control in cls.controls:
            trait = trait_of(*arguments[control.name], control.help)
            trait.class_init(cls, control.name)
            setattr(cls, control.name, trait)
        drawn = inspect.signature(cls.figure).parameters
        cls.view_settings = tuple(control.name for control in cls.controls if control.name in drawn)

    def __init__(self, **settings: Any) -> None:
        self.result: Any = None  # what `compute` returned last
        self.redraws = 0  # how often the figure was drawn
        self.error = ""  # what the red line says; empty when all is well
        self._drawn: tuple[Any, ...] | None = None
        names = [control.name for control in self.controls]
        unknown = sorted(set(settings) - {*names, "theme"})
        if unknown:
            raise UnknownNameError(f"setting of {type(self).__name__}", unknown[0], [*names, "theme"])
        self.courier = courier()
        super().__init__(**settings)
        self._start = self.settings
        self.reading_line = ipywidgets.HTML(layout={"min_height": "3.6em", "margin": "0 8px"})
        self.alert = ipywidgets.HTML()
        self.inputs: dict[str, Any] = {}  # the widget of each control, by trait
        self.alerts: dict[str, Any] = {}  # red lines beside controls, for errors that name their `field`
        self.typed: dict[str, Any] = {}  # the box beside each slider, by trait
        self.buttons: dict[str, Any] = {}  # by their labels
        self.code = ipywidgets.Text(description="as code", disabled=False, layout={"width": "99%"})
        self.view: Any = None  # the live figure, once a first drawing has succeeded
        self.add_class(EXPLORER_CLASS)
        figure_place = ipywidgets.Box(layout={"display": "block"})
        hidden = [] if self.courier is None else [self.courier]
        lines = [self.reading_line, self.alert, self._tools(), self.code]
        self.children = [self._panel(), figure_place, *lines, *hidden]
        self._draw()
        self.observe(self._draw, [*names, "theme"])
        if self.courier is not None:
            self.courier.tips = {control.description: control.help for control in self.controls} | {
                "theme": type(self).theme.help
            }
            self.courier.observe(self._draw, ["dark", "narrow"])
            self.courier.on_msg(lambda _, message, __: self._say_copied(bool(message.get("copied"))))

    @classmethod
    def show(cls, *, static: bool = False, **settings: Any) -> Any:
        """Return the explorer, or the plain figure of these settings."""
        explorer = cls(**settings)  # checks the settings
        if not static:
            return explorer
        if explorer.error:
            raise InvalidInputError(explorer.error)
        return explorer.plain_figure()

    def _ipython_display_(self) -> None:
        hidden_when_live = self.courier is not None and self.result is not None
        display_with_picture(self, self.plain_figure() if hidden_when_live else None)

    @property
    def settings(self) -> dict[str, Any]:
        """The state: the value of each trait that has a control."""
        return {control.name: getattr(self, control.name) for control in self.controls}

    @property
    def dark(self) -> bool:
        """Whether the figure is drawn light on dark."""
        if self.theme == "auto":
            return self.courier is not None and bool(self.courier.dark)
        return bool(self.theme == "dark")

    @property
    def narrow(self) -> bool:
        """Whether the panels lie below each other, as on a phone."""
        return self.courier is not None and bool(self.courier.narrow)

    @property
    def settings_code(self) -> str:
        """A line of Python that makes this explorer again."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({arguments})"

    def plain_figure(self) -> Any:
        """Return what is shown as a plotly figure without a widget, in the colours of the theme."""
        view = {name: getattr(self, name) for name in self.view_settings}
        figure = honest_legend(type(self).figure(self.result, **view))
        return apply_theme(stacked(figure) if self.narrow else figure, dark=self.dark)

    def table(self) -> pd.DataFrame:
        """Return the data of the figure, which the button CSV exports."""
        return type(self).data(self.result)

    def change(self, **settings: Any) -> None:
        """Set several traits at once and draw once; where a value is not allowed nothing is changed."""
        with self.hold_trait_notifications():
            for name, value in settings.items():
                setattr(self, name, value)

    def reset(self) -> None:
        """Go back to the settings that the explorer started with."""
        self.change(**self._start)
        self._draw()  # what a failed upload has taken away

    def copy_settings(self) -> None:
        """Put `settings_code` on the reader's clipboard, where the browser allows it."""
        if self.courier is None:
            self._say_copied(False)
        else:
            self.courier.send({"kind": "copy", "text": self.settings_code})

    def export(self, kind: str) -> None:
        """Send the figure or its data to the browser."""
        if kind not in EXPORTS:
            raise UnknownNameError("export", kind, EXPORTS)
        if self.result is None:
            raise InvalidInputError(f"there is nothing to export: {self.error}")
        if kind == "csv":
            content = self.table().to_csv(index=False).encode()
        elif kind == "html":
            content = self.plain_figure().to_html(include_plotlyjs=True, full_html=True).encode()
        else:
            content = png_bytes(self.plain_figure())
        sent = deliver(self.courier, f"{type(self).__name__}.{kind}", content, EXPORTS[kind])
        self._say(html.escape(sent))

    def _panel(self) -> Any:
        """Return the controls, in as many columns as the window has room for, and the presets below."""
        place = {"width": f"{CONTROL_WIDTH}px", "max_width": "100%"}
        longest = max((len(control.description) for control in self.controls), default=0)
        style = {"description_width": f"{0.85 * longest + 1:.0f}ch"}
        rows = []
        for control in self.controls:
            trait, value = self.traits()[control.name], getattr(self, control.name)
            box = control.widget(
                trait, value=value, description=control.description, tooltip=control.help, style=style,
                layout=dict(place),
            )  # fmt: skip
            self.inputs[control.name] = box
            self._join(control.name, box)
            if isinstance(control, Slider):
                box.layout.width, box.layout.flex = "auto", "1 1 240px"
                parts = [box, self._typed(control, trait)]
                if isinstance(control, Stepper):
                    play = ipywidgets.Play(
                        value=value, min=box.min, max=box.max, interval=control.interval, tooltip="play"
                    )
                    ipywidgets.jslink((play, "value"), (box, "value"))
                    parts.append(play)
                box = ipywidgets.HBox(parts, layout=place | {"flex_flow": "row wrap"})
            rows.append(box)
        if self.presets:
            buttons = [
                self._button(one.label, one.help, functools.partial(self.change, **one.settings))
                for one in self.presets
            ]
            rows.append(ipywidgets.Box(buttons, layout={"flex_flow": "row wrap", "width": "100%"}))
        return ipywidgets.Box(rows, layout={"flex_flow": "row wrap", "margin": "0 0 8px 0"})

    def _join(self, name: str, box: Any) -> None:
        """Keep a trait and its control equal; a control that is refused says so in the red line."""

        def to_trait(change: Any) -> None:
            if is_rounding(box, getattr(self, name), change["new"]):
                return
            with self._visible_errors(f"{name} stays {getattr(self, name)}"):
                setattr(self, name, change["new"])
            box.value = getattr(self, name)

        def to_control(change: Any) -> None:
            box.value = change["new"]

        box.observe(to_trait, "value")
        self.observe(to_control, name)

    def _typed(self, control: Slider, trait: Any) -> Any:
        """Return the box beside a slider: a typed number is taken as it is, or refused in the red line."""
        name = control.name
        tip = f"{control.description}: a number from {num(trait.min, 10)} to {num(trait.max, 10)}, then Enter"
        box = ipywidgets.Text(
            continuous_update=False, tooltip=tip, layout={"width": "84px", "flex": "0 0 auto"}
        )
        self.typed[name] = box

        def read(change: Any) -> None:
            if change["new"] == num(getattr(self, name), 4):  # what `show` wrote, rounded
                return
            with self._visible_errors(f"{name} stays {num(getattr(self, name), 10)}"):
                setattr(self, name, number_in(change["new"], trait, control.label))
            show()

        def show(_: Any = None) -> None:
            value = getattr(self, name)
            with suppress(InvalidInputError):
                if number_in(box.value, trait, control.label) == value:
                    return  # as it was typed, with all its digits
            box.value = num(value, 4)

        box.observe(read, "value")
        self.observe(show, name)
        show()
        return box

    def _button(self, label: str, tip: str, action: Callable[[], None]) -> Any:
        """Return a button; the errors of what it does are seen."""

        def run(_: Any) -> None:
            with self._visible_errors(label):
                action()

        button = ipywidgets.Button(description=label, tooltip=tip, layout={"width": "auto"})
        button.on_click(run)
        self.buttons[label] = button
        return button

    def _tools(self) -> Any:
        """Return the row of buttons and the theme."""
        buttons = [
            self._button("Reset", "Back to the settings at the start", self.reset),
            self._button("Copy settings as code", "Copy the line below to the clipboard", self.copy_settings),
        ]
        for kind, text in (("html", "Figure as HTML"), ("png", "Figure as PNG"), ("csv", "Data as CSV")):
            action = functools.partial(self.export, kind)
            buttons.append(self._button(text, f"Download as a .{kind} file", action))
        themes = ipywidgets.Dropdown(
            options=["auto", "light", "dark"], value=self.theme, description="theme",
            style={"description_width": "initial"}, layout={"width": "150px"},
        )  # fmt: skip
        self._join("theme", themes)
        return ipywidgets.Box([*buttons, themes], layout={"flex_flow": "row wrap"})

    def _draw(self, _: Any = None) -> None:
        """Compute and draw the state, unless it is drawn already."""
        state = (*self.settings.values(), self.dark, self.narrow)
        if state == self._drawn:
            return
        self._drawn, failed = state, True
        with self._visible_errors("nothing can be drawn for these settings"):
            chosen = {key: value for key, value in self.settings.items() if key not in self.view_settings}
            # Small matrices: threads cost more than they give, on a busy machine most.
            with limited_threads(1):
                self.result = type(self).compute(**chosen)
            figure = self.plain_figure()
            if self.view is None:
                self.view = figure_widget(figure)
                self.children[1].children = [self.view]
            else:
                redraw(self.view, figure)
            self._say(type(self).reading(self.result))
            self.redraws += 1
            failed = False
        self._blank(failed)

    def _blank(self, blank: bool = True) -> None:
        """Take away, or give back, all that a result is shown by: nothing old stands for new settings."""
        if blank:
            self.result, self._drawn, self.reading_line.value = None, None, ""
        self.children[1].layout.display = "none" if blank else "block"
        self.code.value = "" if blank else self.settings_code
        for label in ("Copy settings as code", "Figure as HTML", "Figure as PNG", "Data as CSV"):
            self.buttons[label].disabled = blank

    def _say_copied(self, copied: bool) -> None:
        """Say whether the clipboard holds the code, and what to do if not."""
        manual = "This browser keeps its clipboard to itself: select the line below and press Ctrl+C."
        self._say("Copied the line below to the clipboard." if copied else manual)

    def _say(self, text: str) -> None:
        """Show a line of HTML below the figure, and take back an error."""
        self.reading_line.value = f'<span role="status" style="font-size:1.15em">{text}</span>'
        self.error = ""
        for line in (self.alert, *self.alerts.values()):
            line.value = ""

    @contextmanager
    def _visible_errors(self, what: str) -> Generator[None]:
        """Turn an exception into a red line; nothing else would show it."""
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, CondnumError) else f"{type(error).__name__}: "
            self.error = f"{what}: {kind}{error}"
            style = "color:var(--jp-error-color1, #D32F2F);font-weight:bold"
            for line in (self.alert, *self.alerts.values()):
                line.value = ""
            place = self.alerts.get(getattr(error, "field", ""), self.alert)
            place.value = f'<span role="alert" style="{style}">{html.escape(self.error)}</span>'
