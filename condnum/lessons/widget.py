"""Explorers and figures where there is a kernel: a thin widget over what `explore.js` draws."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, ClassVar

from condnum.errors import CondnumError, require
from condnum.files import asset
from condnum.lessons.draw import Json, plotly_figure
from condnum.lessons.explore import Explorer, is_page, newest
from condnum.lessons.record import plain
from condnum.machine import limited_threads

_traitlets = require("traitlets", "notebooks")
_AnyWidget: Any = require("anywidget", "notebooks").AnyWidget


class PlotlyWidget(_AnyWidget):
    """What the page draws: `payload` holds plotly's JSON and what stands beside it."""

    _esm = asset("page/paint.js", "lessons/explore.js", "lessons/widget.js")
    _css = asset("lessons/explore.css")
    declaration = _traitlets.Dict().tag(sync=True)
    payload = _traitlets.Unicode("{}").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._on_message)

    def handle_message(self, message: Mapping[str, Any]) -> None:
        """Do what the page asks for."""

    def _on_message(self, _: Any, message: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        if message["kind"] == "plotly":
            require("plotly", "notebooks")
            script = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
            self.send({"kind": "plotly"}, buffers=[script])
        else:
            self.handle_message(message)


class FigureView(PlotlyWidget):
    """A live figure that follows the width and the colors of the page."""

    def __init__(self, drawn: Json) -> None:
        super().__init__(payload=json.dumps(plain({"figure": drawn})))

    def change(self, drawn: Json) -> None:
        """Draw another figure in its place."""
        self.payload = json.dumps(plain({"figure": drawn}))


def show_figure(figure: Any) -> Any:
    """Return a figure that follows the look of JupyterLab; as it is where the notebook becomes a page."""
    if is_page():
        return figure
    layout = figure.layout.to_plotly_json()
    layout.pop("template", None)
    return FigureView({"data": [trace.to_plotly_json() for trace in figure.data], "layout": layout})


class ExplorerWidget(PlotlyWidget):
    """An explorer in JupyterLab.

    Attributes:
        state: The value of each control. Set it to draw, some of it by `change`; `observe` it.
        error: What the red line says; empty when all is well.
    """

    state = _traitlets.Dict()
    #: Those that a cell has drawn: one that runs again may have changed their functions.
    drawn: ClassVar[weakref.WeakSet[ExplorerWidget]] = weakref.WeakSet()

    def __init__(self, explorer: Explorer, state: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        self.explorer, self._others, self.error, self._request = explorer, dict(others), "", 0
        self._key = explorer.name, tuple(state.items())
        state = Explorer.left.get(self._key, dict(state))
        self._content: Json = {}
        super().__init__(declaration=explorer.spec() | {"state": explorer.start})
        self.observe(self._draw, "state")
        self.state = dict(state)
        heed_cells()
        ExplorerWidget.drawn.add(self)

    @_traitlets.validate("state")
    def _check(self, proposal: Any) -> dict[str, Any]:
        return self.explorer.state(proposal["value"])

    def change(self, **settings: Any) -> None:
        """Set several controls at once and draw once; where a name or value is wrong nothing is changed."""
        self.state = self.explorer.state({**self.state, **settings})

    def functions(self) -> list[Any]:
        """Return what the reader's functions mean now."""
        return [newest(value) for value in (self.explorer.function, *self._others.values())]

    def redraw(self) -> None:
        """Draw again if one of the functions has changed."""
        if self.functions() != self._functions:
            self._draw()

    def handle_message(self, message: Mapping[str, Any]) -> None:
        """Take over the state that the page asks for."""
        before, self._request, self.error = self.payload, message["id"], ""
        try:
            self.change(**message["state"])
        except Exception as error:
            self._show(_words("the settings stay as they are", error), getattr(error, "field", ""))
        if self.payload is before:  # the state is drawn already
            self._show()

    def _draw(self, _: Any = None) -> None:
        """Compute and draw the state; an exception is shown in red, and nothing old stays in view."""
        self._functions, self.error, self._content = self.functions(), "", {}
        Explorer.left[self._key] = dict(self.state)
        try:
            with limited_threads(1):  # small matrices: threads cost more than they give
                found = self.explorer.draw(self.state, self._others)
            found["code"] = self.explorer.code(self.state, self._others)
            self._content = plain(found, 6)
        except Exception as error:  # Jupyter hides it in a log
            self.error = _words("nothing can be drawn for these settings", error)
        self._show(self.error)

    def _show(self, error: str = "", field: str = "") -> None:
        self.error = error
        words = {"state": self.state, "error": error, "field": field, "id": self._request}
        self.payload = json.dumps({"figure": None, **self._content, **words})


def _words(what: str, error: Exception) -> str:
    kind = "" if isinstance(error, CondnumError) else f"{type(error).__name__}: "
    return f"{what}: {kind}{error}"


def heed_cells() -> None:
    """Draw explorers again after a cell that has defined one of their functions anew."""
    shell = getattr(__import__("IPython"), "get_ipython", lambda: None)()
    if shell and _after_a_cell not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", _after_a_cell)


def _after_a_cell(*_: Any) -> None:
    for widget in list(ExplorerWidget.drawn):
        widget.redraw()


__all__ = ["ExplorerWidget", "FigureView", "PlotlyWidget", "plotly_figure", "show_figure"]
