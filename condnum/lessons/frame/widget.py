"""Plotly in a live page: a thin widget over `Plotly.react`."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from condnum.errors import CondnumError, require
from condnum.files import asset

_traitlets = require("traitlets", "notebooks")
_AnyWidget: Any = require("anywidget", "notebooks").AnyWidget


class PlotlyWidget(_AnyWidget):
    """What the page draws: `payload` holds plotly's JSON and what stands beside it."""

    _esm = asset("page/paint.js", "lessons/frame/explorer.js", "lessons/frame/widget.js")
    _css = asset("lessons/frame/explorer.css")
    declaration = _traitlets.Dict().tag(sync=True)
    payload = _traitlets.Unicode("{}").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._on_message)

    def handle_message(self, message: dict[str, Any]) -> None:
        """Do what the page asks for."""

    def _on_message(self, _: Any, message: dict[str, Any], buffers: Sequence[Any]) -> None:
        if message["kind"] == "plotly":
            script = require("plotly.offline", "notebooks").get_plotlyjs()
            self.send({"kind": "plotly"}, buffers=[script.encode()])
        else:
            self.handle_message(message)


class FigureView(PlotlyWidget):
    """A live figure that follows the width and the colors of the page."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure
        super().__init__(payload=payload_json(figure))


def show_figure(figure: Any, *, static: bool = False) -> Any:
    """Return a figure without controls that follows the page's theme and width, or with `static` as it is."""
    return figure if static else FigureView(figure)


def payload_json(figure: Any | None, **beside: Any) -> str:
    """Return a figure and what stands beside it as JSON."""
    plotted = None if figure is None else plotly_lists(figure)
    return str(require("plotly.io", "notebooks").to_json({"figure": plotted, **beside}, validate=False))


def plotly_lists(figure: Any) -> dict[str, Any]:
    """Return a figure's traces, with plain lists for arrays, and its layout without a template."""
    layout = figure.layout.to_plotly_json()
    layout.pop("template", None)  # the page has its own colors
    return {"data": [trace.to_plotly_json() for trace in figure.data], "layout": layout}


@contextmanager
def errors_shown(what: str, show: Callable[[str, str], None]) -> Generator[None]:
    """Hand the words of an exception, and the field at fault, to `show`: Jupyter hides them in a log."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, CondnumError) else f"{type(error).__name__}: "
        show(f"{what}: {kind}{error}", getattr(error, "field", ""))
