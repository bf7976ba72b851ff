"""The frame of all explorers: a pure function of its controls, shown as a figure, a sentence and a table.

`checked` says what each argument of a lesson's function may be and how a reader sets it, and holds callers to
that; an `Explorer` makes a trait and a widget of it.
"""

import functools
import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import pandas as pd

from condnum.errors import InvalidInputError, MissingExtraError, UnknownNameError, require
from condnum.figures.style import apply_theme, honest_legend, num, stacked
from condnum.lessons.figure_view import (
    EXPLORER_CLASS,
    Courier,
    alarm,
    display_with_picture,
    errors_shown,
    figure_widget,
    redraw,
)
from condnum.machine import limited_threads

ipywidgets = require("ipywidgets", "notebooks")
traitlets = require("traitlets", "notebooks")
VBox: Any = ipywidgets.VBox

P = ParamSpec("P")
R = TypeVar("R")


class Shown(ABC):
    """What a lesson's function returns."""

    @abstractmethod
    def figure(self) -> Any:
        """Return a plotly figure, always of the same traces."""

    @abstractmethod
    def reading(self) -> str:
        """Say in HTML what is to be seen."""

    @abstractmethod
    def table(self) -> pd.DataFrame:
        """Return the data of the figure."""


@dataclass(frozen=True)
class Between:
    """The range of an argument without a control."""

    low: float
    high: float


@dataclass(frozen=True)
class Control(ABC):
    """How a reader sets an argument."""

    label: str  # plain text, with Greek letters; nothing here renders HTML
    help: str
    advanced: bool = field(default=False, kw_only=True)  # folded away; held at a preset's value in recordings

    def trait(self, kind: Any, default: Any) -> Any:
        """Return the trait of an argument of this type."""
        return {bool: traitlets.Bool, str: traitlets.Unicode}[kind](default, help=self.help)

    @abstractmethod
    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the widget; its `value` is of the trait's type."""


@dataclass(frozen=True)
class Slider(Control):
    """A slider from `low` to `high`, with a box for numbers beside it."""

    low: float
    high: float
    step: float | None = None  # 1; on a logarithmic scale 0.1, in decades
    log: bool = False
    continuous: bool = True  # False where a redraw takes more than 100 ms
    play: int = 0  # milliseconds a step of a play button, 0 for none
    marks: int = 5  # how many of its values a recording has, evenly spread over its scale

    def trait(self, kind: Any, default: Any) -> Any:
        """Return a number within the range."""
        numbers = traitlets.Int if kind is int else traitlets.Float
        return numbers(default, min=kind(self.low), max=kind(self.high), help=self.help)

    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the slider for whole numbers, for fractions or for decades."""
        common |= {"step": self.step or (0.1 if self.log else 1), "continuous_update": self.continuous}
        low, high, slider = trait.min, trait.max, ipywidgets.FloatSlider
        if self.log:
            low, high, slider = math.log10(low), math.log10(high), ipywidgets.FloatLogSlider
        elif isinstance(trait, traitlets.Int):
            slider = ipywidgets.IntSlider
        return slider(min=low, max=high, readout=False, **common)


@dataclass(frozen=True)
class Choice(Control):
    """A dropdown over the values of a `Literal`; `labels` words them."""

    labels: Mapping[Any, str] = field(default_factory=dict)

    def trait(self, kind: Any, default: Any) -> Any:
        """Return one of the values."""
        return traitlets.Enum(list(get_args(kind)), default, help=self.help)

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


def checked(**rules: Between | Control) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give arguments ranges or controls; refuse what lies outside, and a name that no `Literal` has."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        hints, signature = get_type_hints(function), inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                choices, rule = get_args(hints[name]), rules.get(name)
                if get_origin(hints[name]) is Literal and value not in choices:
                    raise UnknownNameError(name, str(value), map(str, choices))
                if isinstance(rule, Between | Slider) and not rule.low <= value <= rule.high:
                    low, high = num(rule.low, 10), num(rule.high, 10)
                    raise InvalidInputError(f"{name} must lie between {low} and {high}, got {value}.")
            return function(*args, **kwargs)

        call.controls = {name: rule for name, rule in rules.items() if isinstance(rule, Control)}  # type: ignore[attr-defined]
        return call

    return decorate


@dataclass(frozen=True)
class Preset:
    """Settings one click away."""

    label: str
    help: str
    settings: Mapping[str, Any]


def number_in(text: str, trait: Any, label: str) -> float:
    """Return the number that a reader typed; a comma parts thousands."""
    whole, plain = isinstance(trait.default_value, int), text.strip()
    thousands = re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", plain)  # 1,000 but not 1,5
    try:
        value = float(plain.replace(",", "") if thousands else plain)
    except ValueError:
        value = math.nan
    if not trait.min <= value <= trait.max or (whole and value != int(value)):
        kind, ends = "a whole number" if whole else "a number", (num(trait.min, 10), num(trait.max, 10))
        raise InvalidInputError(f"{label} must be {kind} from {ends[0]} to {ends[1]}, got {plain!r}.")
    return int(value) if whole else value


def is_rounding(box: Any, wanted: Any, shown: Any) -> bool:
    """Tell whether a slider shows a value that the page has rounded to the slider's marks.

    In the browser a slider that is told 37 moves to its nearest mark and reports that mark as if a reader
    had moved it. The state keeps what it was told; only a move of more than half a step is the reader's.
    """
    logarithmic = isinstance(box, ipywidgets.FloatLogSlider)
    if not (logarithmic or isinstance(box, ipywidgets.FloatSlider)):
        return False
    told, mark = (math.log(value, box.base) if logarithmic else value for value in (wanted, shown))
    steps, moved = (mark - box.min) / box.step, abs(mark - told) / box.step
    return abs(steps - round(steps)) < 1e-6 and moved <= 0.5 + 1e-6


#: Width of one column of controls: two fit beside each other in a window of 1280 pixels.
CONTROL_WIDTH = 500
#: Button and media type of each kind of file.
EXPORTS = {
    "html": ("Figure as HTML", "text/html"),
    "png": ("Figure as PNG", "image/png"),
    "csv": ("Data as CSV", "text/csv"),
}
COPY = "Copy settings as code"
#: What is said of the clipboard.
COPIED = {
    True: "Copied the line below to the clipboard.",
    False: "This browser keeps its clipboard to itself: select the line below and press Ctrl+C.",
}


class Explorer(VBox):
    """A figure with controls: each control sets a trait, and all of them are the state.

    A subclass declares `compute`, a `checked` function of keyword arguments that returns a `Shown`, and
    `presets`, buttons that set several traits.

    Setting a trait (`explorer.kappa = 50`) recomputes and redraws before it returns. A value that the
    trait forbids raises `traitlets.TraitError`; an exception in between is shown in the red line `alert`
    and kept in `error`. What cannot be drawn leaves no figure, table, code line or export of what was shown
    before.
    """

    compute: ClassVar[Callable[..., Any]]
    presets: ClassVar[tuple[Preset, ...]] = ()
    controls: ClassVar[dict[str, Control]] = {}

    theme = traitlets.Enum(
        ["auto", "light", "dark"], "auto", help="Colours of the figure; auto follows the page."
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make a trait of each argument that has a control."""
        super().__init_subclass__(**kwargs)
        cls.controls, hints = cls.compute.controls, get_type_hints(cls.compute)  # type: ignore[attr-defined]
        for name, control in cls.controls.items():
            trait = control.trait(hints[name], inspect.signature(cls.compute).parameters[name].default)
            trait.class_init(cls, name)
            setattr(cls, name, trait)

    def __init__(self, **settings: Any) -> None:
        names = [*self.controls, "theme"]
        for unknown in settings.keys() - names:
            raise UnknownNameError(f"setting of {type(self).__name__}", unknown, names)
        self.result: Any = None  # what `compute` returned last
        self.view: Any = None  # the live figure, once a first drawing has succeeded
        self.redraws = 0  # how often the figure was drawn
        self.error = ""  # what the red line says; empty when all is well
        self._drawn: tuple[Any, ...] | None = None
        self.courier = Courier()
        super().__init__(**settings)
        self._start = self.settings
        self.inputs: dict[str, Any] = {}  # the widget of each control, by trait
        self.typed: dict[str, Any] = {}  # the box beside each slider, by trait
        self.alerts: dict[str, Any] = {}  # red lines beside controls, for errors that name their `field`
        self.buttons: dict[str, Any] = {}  # by their labels
        self.reading_line = ipywidgets.HTML(layout={"min_height": "3.6em", "margin": "0 8px"})
        self.alert = ipywidgets.HTML()
        self.code = ipywidgets.Text(description="as code", layout={"width": "99%"})
        self.place = ipywidgets.Box()  # of the figure
        self.add_class(EXPLORER_CLASS)
        lines = [self.reading_line, self.alert, self._tools(), self.code]
        self.children = [self._panel(), self.place, *lines, self.courier]
        self._draw()
        self.observe(self._draw, names)
        self.courier.tips = {control.label: control.help for control in self.controls.values()} | {
            "theme": type(self).theme.help
        }
        self.courier.observe(self._draw, ["dark", "narrow"])
        self.courier.on_msg(lambda _, message, __: self._say(COPIED[bool(message.get("copied"))]))

    @classmethod
    def show(cls, *, static: bool = False, **settings: Any) -> Any:
        """Return the explorer, or the plain figure of these settings."""
        explorer = cls(**settings)  # checks the settings
        if static and explorer.error:
            raise InvalidInputError(explorer.error)
        return explorer.plain_figure() if static else explorer

    def _ipython_display_(self) -> None:
        display_with_picture(self, None if self.result is None else self.plain_figure())

    @property
    def settings(self) -> dict[str, Any]:
        """The state: the value of each trait that has a control."""
        return {name: getattr(self, name) for name in self.controls}

    @property
    def dark(self) -> bool:
        """Whether the figure is drawn light on dark."""
        return bool(self.courier.dark if self.theme == "auto" else self.theme == "dark")

    @property
    def settings_code(self) -> str:
        """A line of Python that makes this explorer again."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({arguments})"

    def plain_figure(self) -> Any:
        """Return what is shown as a plotly figure without a widget, in the colours of the theme."""
        figure = honest_legend(self.result.figure())
        return apply_theme(stacked(figure) if self.courier.narrow else figure, dark=self.dark)

    def change(self, **settings: Any) -> None:
        """Set several traits at once and draw once; where a value is not allowed nothing is changed."""
        with self.hold_trait_notifications():
            for name, value in settings.items():
                setattr(self, name, value)

    def reset(self) -> None:
        """Go back to the settings that the explorer started with."""
        self.change(**self._start)
        self._draw()  # what a failed upload has taken away

    def export(self, kind: str) -> None:
        """Send the figure or its data to the browser."""
        if self.result is None:
            raise InvalidInputError(f"there is nothing to export: {self.error}")
        if kind == "csv":
            content = self.result.table().to_csv(index=False).encode()
        elif kind == "html":
            content = self.plain_figure().to_html(include_plotlyjs=True, full_html=True).encode()
        else:
            require("kaleido", "viz")
            try:
                content = self.plain_figure().to_image(format="png", width=1200, scale=2)
            except (ValueError, RuntimeError) as error:
                raise MissingExtraError(
                    f"a PNG needs kaleido and a Chromium or Chrome that starts ({error}); install both, "
                    "or use the camera above the figure, which works in the browser."
                ) from error
        name = f"{type(self).__name__}.{kind}"
        message = {"kind": "download", "name": name, "type": EXPORTS[kind][1]}
        self.courier.send(message, buffers=[content])
        self._say(f"Sent {name} to your browser's downloads.")

    def _panel(self) -> Any:
        """Return the controls, in as many columns as the window has room for, and the presets below."""
        place = {"width": f"{CONTROL_WIDTH}px", "max_width": "100%"}
        longest = max(len(control.label) for control in self.controls.values())
        style = {"description_width": f"{0.85 * longest + 1:.0f}ch"}
        rows = []
        for name, control in self.controls.items():
            trait, value = self.traits()[name], getattr(self, name)
            texts = {"description": control.label, "tooltip": control.help, "style": style}
            box = control.widget(trait, value=value, layout=dict(place), **texts)
            self.inputs[name] = box
            self._join(name, box)
            if isinstance(control, Slider):
                box.layout.width, box.layout.flex = "auto", "1 1 240px"
                parts = [box, self._number_box(name, control, trait)]
                if control.play:
                    player = ipywidgets.Play(
                        value=value, min=box.min, max=box.max, interval=control.play, tooltip="play"
                    )
                    ipywidgets.jslink((player, "value"), (box, "value"))
                    parts.append(player)
                box = ipywidgets.HBox(parts, layout=place | {"flex_flow": "row wrap"})
            rows.append(box)
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
            with errors_shown(f"{name} stays {getattr(self, name)}", self._alarm):
                setattr(self, name, change["new"])
            box.value = getattr(self, name)

        def to_control(change: Any) -> None:
            box.value = change["new"]

        box.observe(to_trait, "value")
        self.observe(to_control, name)

    def _number_box(self, name: str, control: Slider, trait: Any) -> Any:
        """Return the box beside a slider: a typed number is taken as it is, or refused in the red line."""
        tip = f"{control.label}: a number from {num(trait.min, 10)} to {num(trait.max, 10)}, then Enter"
        layout = {"width": "84px", "flex": "0 0 auto"}
        self.typed[name] = box = ipywidgets.Text(continuous_update=False, tooltip=tip, layout=layout)

        def read(change: Any) -> None:
            if change["new"] == num(getattr(self, name), 4):  # what `show` wrote, rounded
                return
            with errors_shown(f"{name} stays {num(getattr(self, name), 10)}", self._alarm):
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

    def _button(self, label: str, tip: str, action: Callable[[], Any]) -> Any:
        """Return a button; the errors of what it does are seen."""

        def run(_: Any) -> None:
            with errors_shown(label, self._alarm):
                action()

        self.buttons[label] = button = ipywidgets.Button(
            description=label, tooltip=tip, layout={"width": "auto"}
        )
        button.on_click(run)
        return button

    def _tools(self) -> Any:
        """Return the row of buttons and the theme."""
        tools: dict[str, tuple[str, Callable[[], Any]]] = {
            "Reset": ("Back to the settings at the start", self.reset),
            COPY: (
                "Copy the line below to the clipboard",
                lambda: self.courier.send({"kind": "copy", "text": self.code.value}),
            ),
        }
        for kind, (label, _) in EXPORTS.items():
            tools[label] = (f"Download as a .{kind} file", functools.partial(self.export, kind))
        buttons = [self._button(label, tip, action) for label, (tip, action) in tools.items()]
        look = {"style": {"description_width": "initial"}, "layout": {"width": "150px"}}
        values = type(self).theme.values
        themes = ipywidgets.Dropdown(options=values, value=self.theme, description="theme", **look)
        self._join("theme", themes)
        return ipywidgets.Box([*buttons, themes], layout={"flex_flow": "row wrap"})

    def _draw(self, _: Any = None) -> None:
        """Compute and draw the state, unless it is drawn already."""
        state = (*self.settings.values(), self.dark, self.courier.narrow)
        if state == self._drawn:
            return
        self._drawn, failed = state, True
        with errors_shown("nothing can be drawn for these settings", self._alarm):
            # Small matrices: threads cost more than they give, on a busy machine most.
            with limited_threads(1):
                self.result = type(self).compute(**self.settings)
            figure = self.plain_figure()
            if self.view is None:
                self.view = figure_widget(figure)
                self.place.children = [self.view]
            else:
                redraw(self.view, figure)
            self._say(self.result.reading())
            self.redraws += 1
            failed = False
        self._blank(failed)

    def _blank(self, blank: bool = True) -> None:
        """Take away, or give back, all that a result is shown by: nothing old stands for new settings."""
        if blank:
            self.result, self._drawn, self.reading_line.value = None, None, ""
        self.place.layout.display = "none" if blank else "block"
        self.code.value = "" if blank else self.settings_code
        for label in (COPY, *(label for label, _ in EXPORTS.values())):
            self.buttons[label].disabled = blank

    def _say(self, text: str) -> None:
        """Show a line of HTML below the figure, and take back an error."""
        self.reading_line.value = f'<span role="status" style="font-size:1.15em">{text}</span>'
        self._alarm("")

    def _alarm(self, error: str, field: str = "") -> None:
        """Show an error in the red line, that of its field if there is one."""
        self.error = error
        for line in (self.alert, *self.alerts.values()):
            line.value = ""
        if error:
            self.alerts.get(field, self.alert).value = alarm(error)
