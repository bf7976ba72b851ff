"""Grab the vectors: one θ, two tasks, two dimensions, every axis to be dragged.

An ellipse is `(a, b, degrees)`: half axes and the direction of the first; of a task the spread of its data,
of θ the image of the circle. `grab.js` draws and computes, in Jupyter and on pages without a kernel.
"""

import html
import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from condnum.errors import InvalidInputError, UnknownNameError, require
from condnum.files import asset, write_text
from condnum.lessons.explore import is_page

_traitlets = require("traitlets", "notebooks")
_AnyWidget: Any = require("anywidget", "notebooks").AnyWidget

Ellipse = tuple[float, float, float]

#: Half axes that can be drawn, and grabbed: data up to κ = 100.
SHORTEST, LONGEST = 0.1, 1.0
#: Draws into each `<div class="condnum-grab" data-state="{…}">`.
_SCRIPT = asset("lessons/grab.js")

#: The state at the start: θ stands at 45° to both tasks.
AT_FIRST: dict[str, Ellipse] = {"theta": (1, 0.3, 65), "benign": (1, 0.2, 20), "harmful": (0.5, 0.9, 20)}


def check_ellipse(name: str, value: Any) -> Ellipse:
    """Return two half axes and an angle, or say what is wrong with them."""
    try:
        a, b, degrees = (float(part) for part in value)
    except (TypeError, ValueError):
        a = b = degrees = np.nan
    if not (SHORTEST <= a <= LONGEST and SHORTEST <= b <= LONGEST and np.isfinite(degrees)):
        raise InvalidInputError(
            f"{name} must be two half axes from {SHORTEST:g} to {LONGEST:g} and an angle in degrees, such as "
            f"(1, 0.5, 30), got {value!r}."
        )
    return a, b, degrees


def fragment(state: Mapping[str, Ellipse], *, address: bool = False) -> str:
    """Return the explorer as HTML that works on any page; `address` puts the state in the page's."""
    marked = html.escape(json.dumps(_state(state)), quote=True)
    mark = " data-address" if address else ""
    return f'<div class="condnum-grab" data-state="{marked}"{mark}></div>\n<script>{_SCRIPT}</script>'


def standalone(path: str | os.PathLike[str], **state: Ellipse) -> Path:
    """Write the explorer as one HTML file that needs no network; its address carries the state."""
    head = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>Grab the vectors</title>\n"
        "<style>:root { color-scheme: light dark; } "
        "body { margin: 0; background: light-dark(#ffffff, #14181e); }</style>\n"
    )
    return write_text(path, f"{head}{fragment(state, address=True)}\n</html>\n")


class GrabTheVectors(_AnyWidget):
    """The explorer in JupyterLab: `theta`, `benign` and `harmful` follow the reader's hand."""

    _esm = asset("lessons/grab.js", "lessons/grab_widget.js")
    theta = _traitlets.Tuple(AT_FIRST["theta"]).tag(sync=True)
    benign = _traitlets.Tuple(AT_FIRST["benign"]).tag(sync=True)
    harmful = _traitlets.Tuple(AT_FIRST["harmful"]).tag(sync=True)

    def __init__(self, **state: Ellipse) -> None:
        super().__init__(**_state(state))

    @_traitlets.validate(*AT_FIRST)
    def _check(self, proposal: Any) -> Ellipse:
        return check_ellipse(proposal["trait"].name, proposal["value"])

    @property
    def state(self) -> dict[str, Ellipse]:
        """The three ellipses."""
        return {name: getattr(self, name) for name in AT_FIRST}

    @classmethod
    def show(cls, **state: Ellipse) -> Any:
        """Return the widget; where the notebook becomes a page, HTML that works without a kernel."""
        html_of = import_module("IPython.display").HTML
        return html_of(fragment(state)) if is_page() else cls(**state)


def _state(state: Mapping[str, Ellipse]) -> dict[str, Ellipse]:
    """Return the start, with what is given in its place."""
    for unknown in state.keys() - AT_FIRST.keys():
        raise UnknownNameError("ellipse", unknown, AT_FIRST)
    return {name: check_ellipse(name, state.get(name, start)) for name, start in AT_FIRST.items()}
