"""The look of the teaching figures: large enough to project, readable light on dark and dark on light.

Every colour here has a contrast of at least 3 : 1 against both backgrounds (white and `#111111`) and
belongs to the Okabe–Ito palette, which the common forms of colour-blindness keep apart; a line that
matters has a dash or a marker of its own besides.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np

from condnum.plots.style import finish

#: Roles of colours, the same in every teaching figure.
BLUE, ORANGE, GREEN, PURPLE = "#2E86C8", "#D55E00", "#009E73", "#CC79A7"
NEUTRAL = "#8A8A8A"
#: Font size of labels that are powers of ten: plotly enlarges them by a quarter.
POWER_SIZE = 12

_LIGHT = "white"  # background of the template that `finish` sets


def teaching_layout(figure: Any, title: str, subtitle: str = "", *, height: int = 520) -> Any:
    """Give a teaching figure its title, font, margins and a legend below the panels."""
    finish(figure, title, subtitle, height=height)
    figure.layout.title.text = f"{title}<br><sup>{subtitle}</sup>" if subtitle else title
    figure.update_layout(
        font_size=15,
        title_font_size=20,
        title_y=0.94 if subtitle else 0.97,
        margin={"l": 80, "r": 24, "t": 100 if subtitle else 76, "b": 120},
        legend={
            "orientation": "h", "x": 0.5, "xanchor": "center", "yref": "container", "y": 0.01,
            "yanchor": "bottom", "title_text": "", "itemsizing": "constant",
        },
        hovermode="closest",
    )  # fmt: skip
    return figure


def apply_theme(figure: Any, *, dark: bool) -> Any:
    """Set the background of a figure.

    Examples:
        >>> import plotly.graph_objects as go
        >>> apply_theme(go.Figure(), dark=True).layout.template.layout.paper_bgcolor
        'rgb(17,17,17)'
    """
    if dark or figure.layout.template.layout.paper_bgcolor != _LIGHT:  # setting it is slow
        figure.update_layout(template="plotly_dark" if dark else "plotly_white")
    return figure


def honest_legend(figure: Any) -> Any:
    """Take out of the legend what is not to be seen: traces without data, or outside of their axes.

    Examples:
        >>> import plotly.graph_objects as go
        >>> figure = go.Figure([{"y": [1, 2], "name": "a"}, {"y": [None, None], "name": "b"}])
        >>> [trace.showlegend for trace in honest_legend(figure).data]
        [True, False]
    """
    for trace in figure.data:
        if trace.type == "scatter" and trace.showlegend is not False:
            trace.showlegend = _is_seen(trace, figure.layout)
    return figure


def _is_seen(trace: Any, layout: Any) -> bool:
    """Tell whether any point of a trace lies within its axes, as far as their ranges are fixed."""
    y = np.asarray(trace.y if trace.y is not None else [], dtype=np.float64)
    seen = np.isfinite(y)
    for values, axis in (
        (trace.x, f"xaxis{(trace.xaxis or 'x')[1:]}"),
        (y, f"yaxis{(trace.yaxis or 'y')[1:]}"),
    ):
        axis = layout[axis]
        if axis.type == "category" or axis.range is None or values is None:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.log10(np.asarray(values, float)) if axis.type == "log" else np.asarray(values, float)
        if len(at) == len(seen):
            low, high = sorted(axis.range)
            inside = (at >= low) & (at <= high)
            crossing = np.nanmin(at, initial=np.inf) <= high and np.nanmax(at, initial=-np.inf) >= low
            seen &= inside | crossing  # a line may cross the window between two points
    return bool(seen.any())


def stacked(figure: Any) -> Any:
    """Put panels that lie beside each other below each other, for a window as narrow as a phone.

    Examples:
        >>> from plotly.subplots import make_subplots
        >>> layout = stacked(make_subplots(rows=1, cols=2)).layout
        >>> layout.xaxis2.domain, layout.yaxis.domain[0] > layout.yaxis2.domain[1]
        ((0, 1), True)
    """
    layout = figure.layout
    where = {}
    for x in figure.select_xaxes():
        y = layout[f"yaxis{(x.anchor or 'y')[1:]}"]
        where[x.plotly_name, y.plotly_name] = (*(x.domain or (0, 1)), *(y.domain or (0, 1)))
    order = sorted(where, key=lambda names: (where[names][0], -where[names][3]))
    entries = sum(trace.showlegend is not False for trace in figure.data)
    legend = 22 * entries + 30
    notes = list(layout.annotations)
    slot, gap = 1 / len(order), 0.24 / len(order)
    for number, (x, y) in enumerate(order):
        old, top = where[x, y], 1 - number * slot
        layout[x].domain, layout[y].domain = (0, 1), (top - slot + gap, top)
        for note in [*notes]:
            titled = note.xref == note.yref == "paper" and abs(note.y - old[3]) < 1e-6
            if titled and old[0] <= note.x <= old[1]:
                note.x, note.y = 0.5, top
                notes.remove(note)
        for trace in figure.select_traces({"type": "heatmap", "xaxis": f"x{x[5:]}" if x[5:] else None}):
            trace.colorbar.update(x=1, y=top, yanchor="top", len=slot - gap)
    lines = (layout.title.text or "").split("<br>")
    wrapped = [part for line in lines for part in _wrapped(line)]
    height = 320 * len(order) + 24 * len(wrapped) + legend
    layout.update(
        title={"text": "<br>".join(wrapped), "y": 1 - 20 / height, "font": {"size": 15}},
        height=height,
        margin={"l": 62, "r": 12, "t": 24 * len(wrapped) + 36, "b": legend + 50},
        legend={"orientation": "v", "x": 0, "xanchor": "left"},
    )
    return figure


def _wrapped(line: str) -> list[str]:
    """Break a title into lines of 40 letters; tags do not count and are not broken."""
    tag = re.compile(r"<[^>]*>|\0")
    tags = iter(tag.findall(line))
    words = textwrap.wrap(tag.sub("\0", line), 40) or [""]
    return [tag.sub(lambda _: next(tags), part) for part in words]
