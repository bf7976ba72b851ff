"""Controls of an explorer, declared as data: one entry a trait, with a label, a unit and a help text.

Bounds, choices and help come from the trait, so that each is stated once.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from condnum.errors import InvalidInputError
from condnum.extras import require
from condnum.plots.style import num

ipywidgets = require("ipywidgets", "notebooks")

#: Width of one column of controls: two fit beside each other in a window of 1280 pixels.
CONTROL_WIDTH = 500
#: What the box for a typed number takes of it.
TYPED_WIDTH = 84
#: 1,000 but not 1,5.
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")


@dataclass(frozen=True)
class Control(ABC):
    """What every control has."""

    trait: str  # name of the trait that it shows and sets
    label: str  # plain text, with Greek letters; nothing here renders HTML
    unit: str = ""  # shown in brackets behind the label

    @property
    def description(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def build(self, trait: Any, value: Any, description_width: str) -> Any:
        """Return the widget; its `value` is of the trait's type."""
        return self._widget(trait)(
            value=value,
            description=self.description,
            tooltip=trait.help,
            style={"description_width": description_width},
            layout={"width": f"{CONTROL_WIDTH}px", "max_width": "100%"},
            **self._options(trait),
        )

    @abstractmethod
    def _widget(self, trait: Any) -> Any:
        """Return the widget's class."""

    def _options(self, trait: Any) -> dict[str, Any]:
        """Return what this kind of control has beside description, help and style."""
        return {}


@dataclass(frozen=True)
class Slider(Control):
    """A slider over the trait's bounds: whole numbers for an `Int`, else fractions."""

    step: float = 1
    continuous: bool = True  # False where a redraw takes more than 100 ms

    def typed(self, trait: Any) -> Any:
        """Return the box for a number that is taken as it is typed; `number_in` reads it."""
        tip = f"{self.description}: a number from {num(trait.min, 10)} to {num(trait.max, 10)}, then Enter"
        return ipywidgets.Text(
            continuous_update=False, tooltip=tip, layout={"width": f"{TYPED_WIDTH}px", "flex": "0 0 auto"}
        )

    def _widget(self, trait: Any) -> Any:
        """Return the slider for whole numbers or the one for fractions."""
        return ipywidgets.IntSlider if isinstance(trait.default_value, int) else ipywidgets.FloatSlider

    def _options(self, trait: Any) -> dict[str, Any]:
        """Return bounds and step."""
        return {
            "min": trait.min,
            "max": trait.max,
            "step": self.step,
            "continuous_update": self.continuous,
            "readout": False,
        }


@dataclass(frozen=True)
class LogSlider(Slider):
    """A slider on a logarithmic scale between the trait's positive bounds."""

    step: float = 0.1  # in decades

    def _widget(self, trait: Any) -> Any:
        """Return the logarithmic slider."""
        return ipywidgets.FloatLogSlider

    def _options(self, trait: Any) -> dict[str, Any]:
        """Return the bounds as exponents of ten."""
        return {
            "base": 10,
            "min": math.log10(trait.min),
            "max": math.log10(trait.max),
            "step": self.step,
            "continuous_update": self.continuous,
            "readout": False,
        }


@dataclass(frozen=True)
class Choice(Control):
    """A dropdown over the values of an `Enum`; `labels` words them."""

    labels: Mapping[Any, str] = field(default_factory=dict)

    def _widget(self, trait: Any) -> Any:
        """Return the dropdown."""
        return ipywidgets.Dropdown

    def _options(self, trait: Any) -> dict[str, Any]:
        """Return the worded values."""
        return {"options": [(self.labels.get(value, str(value)), value) for value in trait.values]}


@dataclass(frozen=True)
class Check(Control):
    """A checkbox for a `Bool`."""

    def _widget(self, trait: Any) -> Any:
        """Return the checkbox."""
        return ipywidgets.Checkbox


@dataclass(frozen=True)
class Stepper(Slider):
    """A slider of whole numbers with a play button, which moves it in the browser."""

    interval: int = 400  # milliseconds a step

    def player(self, slider: Any) -> Any:
        """Return the play button of a slider."""
        play = ipywidgets.Play(
            value=slider.value, min=slider.min, max=slider.max, interval=self.interval, tooltip="play"
        )
        ipywidgets.jslink((play, "value"), (slider, "value"))
        return play


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
