"""One look for every figure: a colour-blind-safe colour and a dash for each method, one template."""

from __future__ import annotations

import math
import re
import textwrap
from typing import Any, NamedTuple

import numpy as np

from condnum.errors import require
from condnum.methods import get_method, method_names


class MethodStyle(NamedTuple):
    """How a method is drawn, everywhere."""

    label: str
    color: str  # hexadecimal, of the Okabe–Ito palette
    dash: str  # a second code beside colour: methods are solid, controls are not


_LOOK = {
    "ours": ("#0072B2", "solid"),
    "opt_kappa": ("#D55E00", "solid"),
    "imma": ("#009E73", "solid"),
    "r_ill_only": ("#CC79A7", "solid"),
    "identity": ("#000000", "dash"),
    "initial": ("#7F7F7F", "dot"),
    "optimal": ("#E69F00", "dashdot"),
    "front": ("#56B4E9", "longdash"),
}
_SPARE = ("#000000", "longdashdot")

TASK_TITLES = {"pretrain": "D<sub>P</sub>, pre-training task", "harmful": "D<sub>H</sub>, harmful task"}


def method_style(name: str) -> MethodStyle:
    """Return a method's style; one that the palette does not know gets the spare colour.

    Args:
        name: Registry name.

    Returns:
        Label, colour and dash.

    Examples:
        >>> method_style("identity").dash
        'dash'
    """
    color, dash = _LOOK.get(name, _SPARE)
    label = get_method(name).label if name in method_names() else name
    return MethodStyle(label, color, dash)


def num(value: float, digits: int = 3) -> str:
    """Write a number for people: thousands apart, a power of ten only beyond ten million or below 1e-4.

    Examples:
        >>> [num(value) for value in (1000.0, 12.589, 2.5e9, 3e-6, float("inf"))]
        ['1,000', '12.6', '2.5·10⁹', '3·10⁻⁶', '∞']
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0 or math.isnan(value) or 1e-4 <= abs(rounded) < 1e7:
        return f"{rounded:,.10g}"
    mantissa, exponent = f"{rounded:e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{float(mantissa):.{digits}g}·10{power}"


def translucent(color: str, alpha: float) -> str:
    """Return `#rrggbb` as an rgba() colour.

    Examples:
        >>> translucent("#0072B2", 0.2)
        'rgba(0,114,178,0.2)'
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def finish(figure: Any, title: str, subtitle: str, *, height: int = 460) -> Any:
    """Give a figure its title, template, legend and margins."""
    figure.update_layout(
        template="plotly_white",
        title={
            "text": f"{title}<br><sup>{subtitle}</sup>",
            "x": 0.01,
            "xanchor": "left",
            "y": 0.95,
            "yanchor": "top",
            "font": {"size": 17},
        },
        font={"size": 13, "family": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"},
        height=height,
        margin={"l": 70, "r": 20, "t": 95, "b": 60},
        legend={"title": {"text": "method (click to toggle)"}, "groupclick": "togglegroup"},
        hoverlabel={"namelength": -1},
    )
    figure.update_xaxes(showline=True, linecolor="#888", ticks="outside", exponentformat="power")
    figure.update_yaxes(showline=True, linecolor="#888", ticks="outside", exponentformat="power")
    return figure


def log_axis(title: str, values: Any) -> dict[str, Any]:
    """Return the settings of a logarithmic axis that is labelled at whole powers of ten only."""
    drawn = np.asarray(values, dtype=np.float64)
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    decades = math.log10(drawn.max() / drawn.min()) if len(drawn) else 1.0
    return {
        "type": "log",
        "title_text": title,
        "dtick": max(1, math.ceil(decades / 8)),
        "minor": {"ticks": "outside", "dtick": "D1" if decades < 8 else 1},
    }


#: Cividis over the square root of the overlap, so that the 1/D of generic tasks is not lost in the dark.
_ROOT_CIVIDIS = [
    [0, "#00224E"], [0.01, "#123570"], [0.0625, "#3B496C"], [0.16, "#575D6D"], [0.25, "#707173"],
    [0.36, "#8A8678"], [0.5, "#A59C74"], [0.7, "#C3B369"], [0.85, "#E1CC55"], [1, "#FEE838"],
]  # fmt: skip


def overlap_map(overlaps: Any, dimension: int, **colorbar: Any) -> dict[str, Any]:
    """Return the heat map of two tasks' overlaps |q_Piᵀq_Hj|², in blocks where there are many."""
    centres = np.linspace(1, dimension, len(overlaps))
    flat = {"orientation": "h", "thickness": 10, "tickvals": [0, 0.1, 0.25, 0.5, 1], "tickfont": {"size": 12}}
    return {
        "x": centres, "y": centres, "z": overlaps, "zmin": 0, "zmax": 1, "colorscale": _ROOT_CIVIDIS,
        "colorbar": {**flat, **colorbar},
        "hovertemplate": "i = %{y:.0f}, j = %{x:.0f}: %{z:.3f}<extra></extra>",
    }  # fmt: skip


def two_panels(titles: dict[str, str] | None = None, *, shared_y: bool = True) -> Any:
    """Return an empty figure with one panel a task, pre-training on the left."""
    subplots = require("plotly.subplots", "viz")
    names = TASK_TITLES if titles is None else titles
    return subplots.make_subplots(
        rows=1,
        cols=2,
        shared_yaxes=shared_y,
        horizontal_spacing=0.06 if shared_y else 0.11,
        subplot_titles=(names["pretrain"], names["harmful"]),
    )


# The look of the teaching figures: large enough to project, readable light on dark and dark on light.


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
