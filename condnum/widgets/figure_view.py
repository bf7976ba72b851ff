"""One plotly figure in a widget: alive with anywidget, a picture in an `Output` without it.

The rest of `condnum.widgets` draws through these functions and need not know which of the two it has.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.theme import apply_theme, honest_legend, stacked
from condnum.widgets.courier import FIGURE_CLASS, courier

ipywidgets = require("ipywidgets", "notebooks")
go = require("plotly.graph_objects", "notebooks")


def figure_widget(figure: Any) -> Any:
    """Return a live figure, or an `Output` that shows it where anywidget is missing."""
    try:
        widget = go.FigureWidget(figure)
    except ImportError:
        return ipywidgets.Output(outputs=(figure_output(figure),))
    widget._config = widget._config | {"responsive": True, "displaylogo": False}
    return widget


def redraw(widget: Any, figure: Any) -> None:
    """Show another figure of the same make-up in a widget of `figure_widget`.

    The data are changed in place, in one message to the page: nothing flickers, and the reader's zoom
    and hidden legend entries stay.
    """
    if isinstance(widget, ipywidgets.Output):
        widget.outputs = (figure_output(figure),)
        return
    for axis in (*figure.select_xaxes({"domain": None}), *figure.select_yaxes({"domain": None})):
        axis.domain = (0, 1)  # else it keeps the one that it has below other panels
    with widget.batch_update():
        for old, new in zip(widget.data, figure.data, strict=True):
            old.update(_changed(old, new), overwrite=False)
        widget.layout.update(_changed(widget.layout, figure.layout))


def shown_figure(figure: Any, *, static: bool = False) -> Any:
    """Return a figure without controls that follows the page's theme and width, or the plain one.

    Args:
        figure: A plotly figure.
        static: As it is, for reports and papermill.

    Returns:
        What a notebook's cell displays.
    """
    honest_legend(figure)
    guide = None if static else courier()
    if guide is None:
        return figure
    view, source = figure_widget(figure), go.Figure(figure)

    def draw(_: Any) -> None:
        fresh = go.Figure(source)
        redraw(view, apply_theme(stacked(fresh) if guide.narrow else fresh, dark=guide.dark))

    guide.observe(draw, ["dark", "narrow"])
    return ipywidgets.VBox([view, guide]).add_class(FIGURE_CLASS)


def on_a_page() -> bool:
    """Tell whether the notebook is served by Voilà, without cells."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")


def figure_output(figure: Any) -> dict[str, Any]:
    """Return a figure as the output of a cell: set as a whole, it neither flickers nor piles up."""
    data = {
        "application/vnd.plotly.v1+json": json.loads(figure.to_json()),
        "text/plain": str(figure.layout.title.text),
    }
    return {"output_type": "display_data", "data": data, "metadata": {}}


def plain_label(label: str) -> str:
    """Write the subscripts and superscripts of a label without tags, for what cannot render HTML.

    Examples:
        >>> plain_label("R<sub>ill</sub> only")
        'R_ill only'
        >>> plain_label("K<sub>P</sub><sup>−1/2</sup>")
        'K_P^(−1/2)'
    """
    return re.sub(r"<sup>(.*?)</sup>", r"^(\1)", re.sub(r"<sub>(.*?)</sub>", r"_\1", label))


def _changed(old: Any, new: Any) -> dict[str, Any]:
    """Return what differs at the first level: plotly checks all that it is given, entry by entry."""
    before = old.to_plotly_json()
    return {
        name: value
        for name, value in new.to_plotly_json().items()
        if name not in before or not _same(before[name], value)
    }


def _same(old: Any, new: Any) -> bool:
    """Compare two properties; arrays with gaps (NaN) are equal where both have one."""
    if isinstance(old, np.ndarray) or isinstance(new, np.ndarray):
        numeric = all(np.asarray(values).dtype.kind in "fiu" for values in (old, new))
        return bool(np.array_equal(old, new, equal_nan=numeric))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    return bool(old == new)
