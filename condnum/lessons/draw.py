"""What explorers and lessons draw: panels of named lines, as the JSON of a plotly figure.

No plotly is needed to make it: a page and a widget draw it, and `plotly_figure` turns it into a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from condnum.errors import require
from condnum.page.look import BLUE, GREEN, GREY, NEUTRAL, ORANGE, PURPLE, honest_legend, log_axis

Json = dict[str, Any]

_COLORS, _DASHES = (BLUE, ORANGE, GREEN, PURPLE, NEUTRAL), ("solid", "dash", "dot", "dashdot", "longdash")
_FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
#: What a point says of itself, unless it is told otherwise.
HOVER = "%{x:.4g}, %{y:.4g}"
#: Keys of a trace that are numbers of a state; all else is its look.
NUMBERS = ("x", "y", "z", "text", "customdata")


class Panel:
    """One pair of axes with named lines on it; each method that draws returns the panel.

    Args:
        title: Heading; HTML such as `<sub>` may stand in all texts.
        x: Words below the axis, and `y` beside it.
        xlim: Ends of the axis, the larger first to turn it over, and `ylim`; None follows what is drawn. Give
            limits wherever a slider should not move the axes.
        log: "x", "y" or "xy".
        xticks: Names at places of the axis, `{place: name}`, and `yticks`.
        equal: Whether a unit is as long on both axes.
        width: Share of the row beside other panels.
    """

    def __init__(
        self,
        title: str = "",
        *,
        x: str = "",
        y: str = "",
        xlim: tuple[float, float] | None = None,
        ylim: tuple[float, float] | None = None,
        log: str = "",
        xticks: Mapping[Any, str] | None = None,
        yticks: Mapping[Any, str] | None = None,
        equal: bool = False,
        width: float = 1.0,
    ) -> None:
        self.title, self.names, self.log, self.equal, self.width = title, (x, y), log, equal, width
        self.limits, self.ticks = [xlim, ylim], (xticks, yticks)
        self.traces: list[Json] = []
        self.bare = False  # a picture, without axes

    def line(
        self, name: str, x: Any, y: Any, color: str = "", dash: str = "", *,
        width: float = 3, size: float = 0, hover: str = "", legend: bool = True, **more: Any,
    ) -> Self:  # fmt: skip
        """Draw a line, with points of a size on it; colors and dashes take turns unless they are given."""
        number = len([one for one in self.traces if one["mode"] != "markers"])
        color, dash = color or _COLORS[number % 5], dash or _DASHES[(number // 5) % 5]
        look = {"mode": "lines+markers" if size else "lines", "marker": {"size": size or 6, "color": color}}
        line = {"color": color, "dash": dash, "width": width, "simplify": False}
        return self._trace(name, x, y, hover, legend, line=line, **look, **more)

    def marks(
        self, name: str, x: Any, y: Any, color: str = PURPLE, symbol: str = "circle", *,
        size: float = 10, hover: str = "", legend: bool = True, **more: Any,
    ) -> Self:  # fmt: skip
        """Draw points."""
        line = {"width": 3 if "open" in symbol else 0}
        look = {"symbol": symbol, "size": size, "color": color, "line": line}
        more = {"cliponaxis": False} | more  # whole also on the frame
        return self._trace(name, x, y, hover, legend, mode="markers", marker=look, **more)

    def area(self, name: str, x: Any, y: Any, color: str, *, legend: bool = True, **more: Any) -> Self:
        """Fill a polygon, whose last point is joined to the first."""
        look = {"fill": "toself", "fillcolor": color, "hoverinfo": "skip"} | {"line": {"width": 0}} | more
        return self._trace(name, x, y, "", legend, mode="lines", **look)

    def heat(self, name: str, z: Any, x: Any = None, y: Any = None, *, hover: str = "", **look: Any) -> Self:
        """Draw a matrix in colors, its first row at the top; `look` is plotly's heatmap's."""
        z = np.asarray(z, dtype=np.float64)
        rows, columns = (np.arange(1, n + 1) for n in z.shape)
        x, y = (columns if x is None else np.asarray(x)), (rows if y is None else np.asarray(y))
        self.limits = [
            limit or _ends(at, turn) for limit, at, turn in zip(self.limits, (x, y), (0, 1), strict=True)
        ]
        return self._trace(name, x, y, hover, False, type="heatmap", z=z, mode="", **look)

    def bars(self, name: str, names: Sequence[str], values: Any, color: str, *, hover: str = "") -> Self:
        """Draw a bar to the right for each name."""
        look = {"type": "bar", "orientation": "h", "marker": {"color": color}, "mode": ""}
        return self._trace(name, values, np.array(names, dtype=object), hover, False, **look)

    def _trace(self, name: str, x: Any, y: Any, hover: str, legend: bool, **more: Any) -> Self:
        x, y = (np.asarray(list(one) if isinstance(one, range) else one) for one in (x, y))
        shown = {"hovertemplate": hover or HOVER, "showlegend": legend}
        if more.get("hoverinfo") == "skip":
            shown.pop("hovertemplate")
        self.traces.append({"type": "scatter", "name": name, "x": x, "y": y, **shown, **more})
        return self

    def follow(self) -> None:
        """Widen the limits to all that can be pointed at, which a reader's own function may put anywhere."""
        for place, (letter, limit) in enumerate(zip("xy", self.limits, strict=True)):
            drawn = [np.ravel(one[letter]) for one in self.traces if one["mode"] and "hovertemplate" in one]
            values = np.concatenate([one for one in drawn if one.dtype.kind in "fiu"] or [np.empty(0)])
            if letter in self.log:
                values = values[values > 1e-300]
            values = values[np.isfinite(values)]
            if limit is None or not len(values):
                continue
            low, high = min(limit), max(limit)
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            self.limits[place] = (low, high) if limit[0] <= limit[1] else (high, low)

    def axis(self, letter: str) -> Json:
        """Return the settings of an axis for plotly."""
        place = "xy".index(letter)
        limit, ticks, log = self.limits[place], self.ticks[place], letter in self.log
        look: Json = {"showline": True, "linecolor": GREY, "ticks": "outside", "exponentformat": "power"}
        if log:
            drawn = [np.ravel(one[letter]) for one in self.traces if one["mode"]] or [np.ones(1)]
            look |= log_axis("", np.array(limit) if limit else np.concatenate(drawn))
            look.pop("title_text")
        look["title"] = {"text": self.names[place], "font": {"size": 13}, "standoff": 8}
        if limit:
            look["range"] = (np.log10(limit) if log else np.asarray(limit, dtype=np.float64)).tolist()
        if ticks:
            for key in ("dtick", "minor"):
                look.pop(key, None)
            look |= {"tickvals": [*ticks], "ticktext": [*ticks.values()], "tickfont": {"size": 13}}
        if self.bare:
            hidden = dict.fromkeys(("showticklabels", "showgrid", "zeroline", "showline"), False)
            look |= {**hidden, "ticks": ""}
        return look


def _ends(at: Any, turn: int) -> tuple[float, float]:
    """Return the outer edges of the cells at these centres, of rows from the top down."""
    half = 0.5 * (at[1] - at[0]) if len(at) > 1 else 0.5
    ends = float(at[0] - half), float(at[-1] + half)
    return ends[::-1] if turn else ends


def figure(panels: Sequence[Panel], title: str = "", *, columns: int = 3, height: int = 0) -> Json:
    """Return panels beside each other, in rows of so many, as plotly's JSON with NumPy arrays in it."""
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    across, down, data, notes, axes = 0.11, 0.2, list[Json](), list[Json](), Json()
    deep = (1 - down * (len(rows) - 1)) / len(rows)
    number = 0
    for depth, row in enumerate(rows):
        whole, left = sum(panel.width for panel in row), 0.0
        top = 1 - depth * (deep + down)
        for panel in row:
            number += 1
            key = "" if number == 1 else str(number)
            wide = (1 - across * (len(row) - 1)) * panel.width / whole
            x, y = panel.axis("x"), panel.axis("y")
            x |= {"domain": [left, min(1.0, left + wide)], "anchor": f"y{key}"}
            y |= {"domain": [max(0.0, top - deep), top], "anchor": f"x{key}"}
            if panel.equal:
                x |= {"constrain": "domain"}
                y |= {"scaleanchor": f"x{key}", "constrain": "domain", "constraintoward": "top"}
            axes |= {f"xaxis{key}": x, f"yaxis{key}": y}
            placed = [_placed(one, key) for one in panel.traces]
            for one in placed:
                if one["type"] == "heatmap" and one.get("showscale", True):  # a bar below the heading
                    bar = {"orientation": "h", "thickness": 10} | one.get("colorbar", {})
                    one["colorbar"] = bar | {"x": left + wide / 2, "y": top, "yanchor": "top", "len": wide}
                    y["domain"] = [y["domain"][0], top - 42 / (270 * len(rows))]
            data += placed
            if panel.title:
                notes.append(_heading(panel.title, left + wide / 2, top))
            left += wide + across
    honest_legend({"data": data, "layout": axes})
    listed = [one for one in data if one["showlegend"] is not False]
    if len(listed) == 1:  # title or sentence name it
        listed.pop()["showlegend"] = False
    layout: Json = {
        "meta": {"stack": True}, "height": height or 150 + 270 * len(rows), "hovermode": "closest",
        "font": {"size": 13, "family": _FONT}, "title": {"text": title, "font": {"size": 16}, "x": 0.01},
        "margin": {"l": 64, "r": 16, "t": 74 if title else 40, "b": 60 + 40 * bool(listed)},
        "legend": {
            "orientation": "h", "x": 0.5, "xanchor": "center", "yref": "container", "y": 0.01,
            "yanchor": "bottom", "itemwidth": 45, "traceorder": "normal",
        },
        "hoverlabel": {"namelength": -1}, "annotations": notes, **axes,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _placed(trace: Json, key: str) -> Json:
    """Return a trace on its axes."""
    own = {name: value for name, value in trace.items() if name != "mode" or value}
    return {**own, "xaxis": f"x{key}", "yaxis": f"y{key}"}


def _heading(text: str, x: float, y: float) -> Json:
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": "center", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, "font": {"size": 15}, **place}


def plotly_figure(drawn: Json) -> Any:
    """Return plotly's figure of `figure`'s JSON, which is right: its checks take longer than all else."""
    white = require("plotly.io", "viz").templates["plotly_white"].to_plotly_json()
    content = {"data": drawn["data"], "layout": {**drawn["layout"], "template": white}}
    return require("plotly.graph_objects", "viz").Figure(content, _validate=False)


def lines(
    title: str, panels: Mapping[str, Mapping[str, tuple[Any, Any]]], *, x: str, y: str, log: str = ""
) -> Any:
    """Return a plotly figure of lines by name in panels by heading, `{heading: {name: (x, y)}}`."""
    made = [Panel(heading, x=x, y=y if place == 0 else "", log=log) for place, heading in enumerate(panels)]
    for panel, named in zip(made, panels.values(), strict=True):
        for name, (at, values) in named.items():
            panel.line(name, at, values, legend=panel is made[0], legendgroup=name)
    return plotly_figure(figure(made, title, columns=2 if len(made) == 4 else 3))
