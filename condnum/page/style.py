"""One look for every figure: a color-blind-safe color and a dash for each method, one template."""

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from condnum.errors import require
from condnum.methods import get_method, method_names
from condnum.numbers import num

#: What plotly draws beside a figure: no advertisement, no button that uploads the figure to its cloud.
CONFIG = {"displaylogo": False, "showSendToCloud": False}


class MethodStyle(NamedTuple):
    """How a method is drawn, everywhere."""

    label: str
    color: str  # hexadecimal, of the Okabe–Ito palette
    dash: str  # a second code beside color: methods are solid, controls are not


#: Okabe–Ito without the yellow, which is too light for lines: the order of series, after which dashes begin.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9"]

#: Of the palette, in teaching figures: readable light on dark and dark on light.
BLUE, ORANGE, GREEN, PURPLE, NEUTRAL = "#2E86C8", "#D55E00", "#009E73", "#CC79A7", "#8A8A8A"

#: The theoretical limit, in a color of no method.
LIMIT = "#222222"

#: What is drawn for comparison: axes, levels, thresholds.
GREY = "#888888"
DOTTED = {"color": GREY, "dash": "dot", "width": 1}

_METHODS = {
    "ours": (PALETTE[0], "solid"),
    "opt_kappa": (PALETTE[1], "solid"),
    "imma": (PALETTE[2], "solid"),
    "r_ill_only": (PALETTE[3], "solid"),
    "identity": (PALETTE[4], "dash"),
    "initial": ("#7F7F7F", "dot"),
    "max_rir": (PALETTE[5], "dashdot"),
    "pareto": (PALETTE[6], "longdash"),
    "erase": ("#B8405E", "dash"),
}

TASK_TITLES = {"benign": "D<sub>P</sub>, pre-training task", "harmful": "D<sub>H</sub>, harmful task"}


def method_style(name: str) -> MethodStyle:
    """Return a method's style; one that the palette does not know gets the spare color."""
    color, dash = _METHODS.get(name, ("#000000", "longdashdot"))
    label = getattr(get_method(name), "label", name) if name in method_names() else name
    return MethodStyle(label, color, dash)


def option_text(label: str) -> str:
    """Return a method's label for a dropdown, which renders no HTML.

    Examples:
        >>> [option_text(label) for label in ("R<sub>ill</sub> only", "Initial (θ = θ<sub>0</sub>)")]
        ['Rᵢₗₗ only', 'Initial']
    """
    words = re.sub(r" \(.*<.*\)", "", label)
    return re.sub(r"<.*?>", "", words.replace("<sub>ill</sub>", "ᵢₗₗ"))


def translucent(color: str, alpha: float) -> str:
    """Return `#rrggbb` as an rgba() color."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def finish(
    figure: Any, title: str, subtitle: str, *, height: int = 460, width: int = 120, legend: str = "method"
) -> Any:
    """Give a figure its title, look, legend and margins; the subtitle is broken at so many characters.

    The look stands in the layout: pages drop plotly's templates, as they have colors of their own.
    """
    require("plotly.io", "viz").renderers["plotly_mimetype"].config.update(CONFIG)  # in JupyterLab
    lines = subtitle.removeprefix(". ").removeprefix("<br>").split("<br>")  # of data without words
    parts = [textwrap.wrap(line, width) or [""] for line in lines]
    headings = [note.text.count("<br>") for note in figure.layout.annotations if note.yref == "paper"]
    # Titles of panels grow upwards.
    top = 73 + 22 * sum(map(len, parts)) + 20 * max(headings, default=0)
    # A space before a break tells pages that it was made for this width.
    text = f"{title}<br><sup>{'<br>'.join(' <br>'.join(part) for part in parts)}</sup>"
    corner = {"x": 0.01, "xanchor": "left", "y": 1 - 23 / height, "yanchor": "top"}
    figure.update_layout(
        template="plotly_white",
        title={"text": text, "font": {"size": 17}, **corner},
        font={"size": 13, "family": "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"},
        height=height,
        margin={"l": 70, "r": 20, "t": top, "b": 60},
        legend={"title": {"text": legend and f"{legend} (click to hide)"}, "groupclick": "togglegroup"},
        hoverlabel={"namelength": -1},
    )
    look = {"showline": True, "linecolor": GREY, "ticks": "outside", "exponentformat": "power"}
    return figure.update_xaxes(**look).update_yaxes(**look)


#: Size of powers of ten: plotly draws them larger by a quarter, so that they come out as 13.
POWER_SIZE = 13 / 1.25


def log_axis(title: str, values: Any) -> dict[str, Any]:
    """Return the settings of a logarithmic axis, labeled at powers of ten, or, if few, at 1, 2, 5."""
    drawn = np.asarray(values, dtype=np.float64)
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    decades = math.log10(drawn.max() / drawn.min()) if len(drawn) else 1.0
    if len(drawn) and decades < 1.5:  # one power of ten, or none, says nothing of the others
        ends = math.floor(math.log10(drawn.min())), math.ceil(math.log10(drawn.max()))
        values = [m * 10.0**power for power in range(ends[0] - 1, ends[1] + 1) for m in (1, 2, 5)]
        texts = [num(value) for value in values]
        return {"type": "log", "title_text": title, "tickvals": values, "ticktext": texts}
    return {
        "type": "log",
        "title_text": title,
        "dtick": max(1, math.ceil(decades / 8)),
        "tickfont": {"size": POWER_SIZE},
        "minor": {"ticks": "outside", "dtick": "D1" if decades < 8 else 1},
    }


#: Cividis over the square root of the overlap, so that the 1/D of generic tasks is not lost in the dark.
_ROOT_CIVIDIS = [
    [0, "#00224E"], [0.01, "#123570"], [0.0625, "#3B496C"], [0.16, "#575D6D"], [0.25, "#707173"],
    [0.36, "#8A8678"], [0.5, "#A59C74"], [0.7, "#C3B369"], [0.85, "#E1CC55"], [1, "#FEE838"],
]  # fmt: skip


def overlap_heatmap(overlaps: Any, dimension: int, **colorbar: Any) -> dict[str, Any]:
    """Return the heat map of two tasks' overlaps |q_Piᵀq_Hj|², in blocks where there are many."""
    centres = np.linspace(1, dimension, len(overlaps))
    ticks = {"tickvals": [0, 0.25, 0.5, 1], "tickangle": 0, "tickfont": {"size": 12}}
    return {
        "x": centres, "y": centres, "z": overlaps, "zmin": 0, "zmax": 1, "colorscale": _ROOT_CIVIDIS,
        "colorbar": {"orientation": "h", "thickness": 10, **ticks, **colorbar},
        "hovertemplate": "i = %{y:.0f}, j = %{x:.0f}: %{z:.3f}<extra></extra>",
    }  # fmt: skip


def empty() -> Any:
    """Return a figure without traces."""
    return require("plotly.graph_objects", "viz").Figure()


def figure_of(traces: Any, layout: Any) -> Any:
    """Return a figure of traces and a layout that are right, without plotly's checks, which are slow."""
    content = {"data": traces, "layout": {**layout, "template": _white()}}
    return require("plotly.graph_objects", "viz").Figure(content, _validate=False)


@cache
def _white() -> Any:
    """Return the template of every figure."""
    return require("plotly.io", "viz").templates["plotly_white"].to_plotly_json()


def panels(**options: Any) -> Any:
    """Return an empty figure of several panels, as plotly's `make_subplots` does."""
    return require("plotly.subplots", "viz").make_subplots(**options)


def express(kind: str, table: Any, **options: Any) -> Any:
    """Draw a table by `plotly.express.KIND`, in colors and dashes that distinguish fourteen lines."""
    given: dict[str, Any] = {"render_mode": "svg", "color_discrete_sequence": PALETTE}  # WebGL blurs
    if kind == "line":
        given["line_dash_sequence"] = ["solid"] * 7 + ["dash"] * 7
    figure = getattr(require("plotly.express", "viz"), kind)(table, **given, **options)
    return figure.for_each_annotation(lambda note: note.update(text=note.text.partition("=")[2]))


def square(figure: Any) -> Any:
    """Give the cells of heatmaps equal sides."""
    for trace in figure.data:
        axis = figure.layout[trace.yaxis.replace("y", "yaxis")]
        axis.update(scaleanchor=trace.xaxis, constrain="domain")
    return figure.update_xaxes(constrain="domain")


def add_line(
    figure: Any, name: str, x: Any, y: Any, color: str, dash: str = "solid", *, width: float = 3, **more: Any
) -> None:
    """Add a line to a figure, or to a panel of it."""
    line = {"color": color, "dash": dash, "width": width}
    figure.add_scatter(x=x, y=y, name=name, line=line, **{"mode": "lines"} | more)


def add_band(
    figure: Any,
    wide: Any,
    style: MethodStyle,
    *,
    geometric: bool = True,
    mode: str = "lines",
    width: float = 2.2,
    **place: Any,
) -> None:
    """Add the mean over the columns of a table (seeds) as a line, and a band from the least to the largest.

    What a line shows on hovering may use `%{customdata[0]}` for the least and `[1]` for the largest.
    """
    x, low, high = wide.index.to_numpy(), wide.min(axis=1), wide.max(axis=1)
    mean = np.exp(np.log(wide).mean(axis=1)) if geometric else wide.mean(axis=1)
    if wide.shape[1] > 1 and (high > low).any():
        hidden = {name: value for name, value in place.items() if name not in ("hovertemplate", "marker")}
        figure.add_scatter(
            x=np.r_[x, x[::-1]], y=np.r_[low, high[::-1]], fill="toself", mode="lines", line={"width": 0},
            fillcolor=translucent(style.color, 0.15), hoverinfo="skip", **(hidden | {"showlegend": False}),
        )  # fmt: skip
    figure.add_scatter(
        x=x, y=mean, name=style.label, mode=mode, customdata=np.c_[low, high],
        line={"color": style.color, "dash": style.dash, "width": width}, **place,
    )  # fmt: skip


def lines_by_method(
    figure: Any,
    table: Any,
    x: str,
    y: str,
    *,
    method: str = "method",
    panel: str = "",
    columns: int = 1,
    over: Sequence[str] = ("seed",),
    style: Callable[[str], MethodStyle] = method_style,
    listed: bool = True,
    **look: Any,
) -> None:
    """Add a line (mean over the columns `over`) and a band per method; with `panel`, a panel per value.

    Panels are filled in the order of the categories of the column `panel`, or of its rows, by `columns`.
    """
    values = table[panel].astype("category").cat.categories if panel else []
    for number, (name, own) in enumerate(table.groupby(method, sort=False)):
        first, width = listed, max(1.8, 4.2 - 0.6 * number)  # a line shows beside one that covers it
        for index, place in enumerate(values if panel else [None]):
            rows = own[own[panel] == place] if panel else own
            if rows.empty:
                continue
            at: dict[str, Any] = {"row": index // columns + 1, "col": index % columns + 1} if panel else {}
            wide = rows.pivot_table(index=x, columns=list(over), values=y)
            add_band(
                figure, wide, style(str(name)), legendgroup=name, showlegend=first, width=width, **at, **look
            )
            first = False


def teaching_layout(figure: Any, title: str, subtitle: str = "", *, height: int = 420) -> Any:
    """Give a teaching figure its title, font, margins and a legend below the panels."""
    finish(figure, title, subtitle, height=height)
    figure.layout.title.text = f"{title}<br><sup>{subtitle}</sup>" if subtitle else title
    figure.update_layout(
        title_font_size=16,
        margin={"l": 64, "r": 16, "t": 92 if subtitle else 74, "b": 100},
        legend={
            "orientation": "h", "x": 0.5, "xanchor": "center", "yref": "container", "y": 0.01,
            "yanchor": "bottom", "title_text": "", "itemsizing": "constant",
        },
        hovermode="closest",
    )  # fmt: skip
    return figure


def honest_legend(figure: Any) -> Any:
    """Take out of the legend what is not to be seen: traces without data, or outside of their axes."""
    layout = figure.layout.to_plotly_json()
    for trace in figure.data:
        given = trace.to_plotly_json()
        if given["type"] == "scatter" and given.get("showlegend") is not False:
            trace["showlegend"] = _is_seen(given, layout)
    return figure


def _is_seen(trace: Mapping[str, Any], layout: Mapping[str, Any]) -> bool:
    """Tell whether a trace has points and reaches into its axes, as far as their ranges are fixed."""
    for letter in "xy":
        values = trace.get(letter)
        axis = layout.get(f"{letter}axis{trace.get(f'{letter}axis', letter)[1:]}", {})
        if axis.get("type") == "category" or axis.get("range") is None or values is None:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.asarray(values, dtype=np.float64)
            at = np.log10(at) if axis.get("type") == "log" else at
        low, high = sorted(axis["range"])
        if np.nanmin(at, initial=np.inf) > high or np.nanmax(at, initial=-np.inf) < low:
            return False
    y = trace.get("y")
    return y is not None and bool(np.isfinite(np.asarray(y, dtype=np.float64)).any())
