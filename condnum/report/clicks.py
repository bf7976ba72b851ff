"""Figures in JupyterLab whose points open another figure below them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from condnum.errors import require

_widgets = require("ipywidgets", "notebooks")


def opening(figure: Any, draw: Callable[[str | None, Any, Any], Any]) -> Any:
    """Return a figure that shows, below itself, `draw(trace name, x, y)` of the point that is clicked."""
    live = require("plotly.graph_objects", "viz").FigureWidget(figure)
    below = _widgets.Output()

    def clicked(trace: Any, points: Any, _: Any) -> None:
        if points.xs:
            below.outputs = ()
            with below:  # an exception shows there as well
                import_module("IPython.display").display(draw(trace.name, points.xs[0], points.ys[0]))

    for trace in live.data:
        trace.on_click(clicked)
    return _widgets.VBox([live, below])
