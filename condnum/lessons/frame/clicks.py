"""Figures in JupyterLab whose points open another figure below them."""

from collections.abc import Callable, Sequence
from typing import Any

from condnum.lessons.frame.widget import FigureView, errors_shown, payload_json, plotly_lists


class Opening(FigureView):
    """A figure that shows, below itself, `draw(trace name, x, y)` of the point that is clicked."""

    def __init__(self, figure: Any, draw: Callable[[str | None, Any, Any], Any]) -> None:
        self._draw = draw
        super().__init__(figure)

    def handle_message(self, message: dict[str, Any], buffers: Sequence[Any]) -> None:
        """Open what lies behind a point, or say why there is nothing."""
        below: dict[str, Any] = {}
        with errors_shown("nothing can be drawn for this point", lambda error, _: below.update(error=error)):
            opened = self._draw(self.figure.data[message["trace"]].name, message["x"], message["y"])
            below["below"] = plotly_lists(opened)
        self.payload = payload_json(self.figure, **below)
