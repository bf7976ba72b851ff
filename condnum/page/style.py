"""One look for every figure: a color-blind-safe color and a dash for each method, one template."""

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from condnum.errors import require
from condnum.methods import get_method, method_names
from condnum.page.look import GREY, translucent

#: What plotly draws beside a figure: no advertisement, no button that uploads the figure to its cloud.
CONFIG = {"displaylogo": False, "showSendToCloud": False}


class MethodStyle(NamedTuple):
    """How a method is drawn, everywhere."""

    label: str
    color: str  # hexadecimal, of the Okabe–Ito palette
    dash: str  # a second code beside color: methods are solid, controls are not


#: Okabe–Ito without the yellow, which is too light for lines: the order of series, after which dashes begin.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9"]

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


def empty() -> Any:
    """Return a figure without traces."""
    return require("plotly.graph_objects", "viz").Figure()


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
