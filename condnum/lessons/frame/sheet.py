"""What the lessons draw with: panels beside each other, with lines, marks and areas on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, partialmethod
from typing import Any

import numpy as np

from condnum.errors import require
from condnum.page.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    POWER_SIZE,
    PURPLE,
    figure_of,
    honest_legend,
    log_axis,
    teaching_layout,
)
from condnum.page.style import panels as empty_panels


class Panel:
    """One panel of a `Sheet`."""

    def __init__(self, sheet: Sheet, number: int) -> None:
        self._sheet, self._number = sheet, "" if number == 1 else str(number)

    def line(
        self,
        name: str,
        x: Any,
        y: Any,
        color: str,
        dash: str = "solid",
        *,
        width: float = 3,
        size: float = 0,
        **more: Any,
    ) -> None:
        """Draw a line, with points of a size on it."""
        line, marker = {"color": color, "dash": dash, "width": width}, {"size": size} | more.pop("marker", {})
        self.trace(name, x, y, mode="lines+markers" if size else "lines", line=line, marker=marker, **more)

    def marks(self, name: str, x: Any, y: Any, symbol: Any, size: Any, color: Any, **more: Any) -> None:
        """Draw points."""
        marker = {"symbol": symbol, "size": size, "color": color} | more.pop("marker", {})
        self.trace(name, x, y, mode="markers", marker=marker, **more)

    def area(self, name: str, x: Any, y: Any, color: str, **more: Any) -> None:
        """Fill a polygon."""
        look: dict[str, Any] = {"fill": "toself", "fillcolor": color, "line": {"width": 0}}
        self.trace(name, x, y, mode="lines", hoverinfo="skip", **look, **more)

    def trace(
        self, name: str, x: Any, y: Any, *, hover: str | None = None, legend: bool = True, **more: Any
    ) -> None:
        """Draw any trace; where `honest_legend` may not list it, `legend` is False."""
        x, y = np.asarray(x), np.asarray(y)  # a NaN in a list would be one in the page's JSON, which has none
        place = {"xaxis": f"x{self._number}", "yaxis": f"y{self._number}"}
        shown = {"hovertemplate": hover, "showlegend": None if legend else False}
        self._sheet.traces.append({"type": "scatter", "name": name, "x": x, "y": y, **shown, **place, **more})

    def _axis(
        self, axis: str, title_text: str, low: Any = None, high: Any = None, log: bool = False, **more: Any
    ) -> None:
        """Set an axis; the ends of a logarithmic one are exponents of ten."""
        scale = {"type": "log", "dtick": 1} if log else {}
        ends = {} if low is None else {"range": [low, high]}
        look = {"title": {"text": title_text}, **scale, **ends, **more}
        if log:
            look["tickfont"] = {"size": look.get("tickfont", {}).get("size", 13) * POWER_SIZE / 13}
        self._sheet.layout[f"{axis}{self._number}"] = look

    x = partialmethod(_axis, "xaxis")
    y = partialmethod(_axis, "yaxis")


class Sheet:
    """A figure of panels; `finish` builds it at once and unchecked, which is forty times as fast."""

    def __init__(
        self,
        *titles: str,
        gap: float = 0.1,
        column_widths: Sequence[float] | None = None,
        grid: Mapping[str, Any] | None = None,
    ) -> None:
        one_row = {"cols": len(titles) or 1, "column_widths": column_widths}
        options = {**(grid or one_row), "horizontal_spacing": gap, "subplot_titles": titles or None}
        self._options = json.dumps(options)
        self.panels: Any = [Panel(self, number) for number in range(1, max(len(titles), 1) + 1)]
        self.traces: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {"legend": {"traceorder": "normal"}}

    def finish(
        self, title: str, note: str = "", *, height: int = 420, heading_size: float = 0, **layout: Any
    ) -> Any:
        """Return the figure; the panels' headings have the usual size unless another is given."""
        base = json.loads(_empty(self._options, bool(note), height))
        base["title"]["text"] = f"{title}<br><sup>{note}</sup>" if note else title
        for heading in base.get("annotations", []) if heading_size else []:
            heading["font"] = {"size": heading_size}
        for name, part in {**self.layout, **layout}.items():
            base[name] = {**base.get(name, {}), **part} if isinstance(part, dict) else part
        return honest_legend(figure_of(self.traces, base))


_HOVER = "%{x:.4g}: %{y:.4g}"
_COLORS, _DASHES = (BLUE, ORANGE, GREEN, PURPLE, NEUTRAL), ("solid", "dash", "dot", "dashdot", "longdash")


def lines_figure(
    title: str,
    panels: Mapping[str, Mapping[str, tuple[Any, Any]]],
    *,
    x: str,
    y: str,
    log: str = "",
    note: str = "",
) -> Any:
    """Draw lines by name in panels by heading, `{heading: {name: (x, y)}}`; `log` is "x", "y" or "xy"."""
    sheet = Sheet(*panels)
    for panel, lines in zip(sheet.panels, panels.values(), strict=True):
        first = panel is sheet.panels[0]
        for number, (name, (at, values)) in enumerate(lines.items()):
            look = _COLORS[number % 5], _DASHES[(number + number // 5) % 5]
            panel.line(name, at, values, *look, hover=_HOVER, legendgroup=name, legend=first)
        for axis, words in (("x", x), ("y", y)):
            drawn = np.concatenate([np.asarray(line[axis == "y"]) for line in lines.values()])
            getattr(panel, axis)(**(log_axis(words, drawn) if axis in log else {"title_text": words}))
    return sheet.finish(title, note)


@cache
def _empty(options: str, note: bool, height: int) -> str:
    """Return the layout of a sheet without content, as JSON: plotly needs 40 ms to make and check it."""
    grid = teaching_layout(empty_panels(**json.loads(options)), "", "note" if note else "", height=height)
    layout = grid.update_layout(meta={"stack": True}, template=None).to_plotly_json()["layout"]
    return json.dumps(layout, cls=require("plotly.utils", "viz").PlotlyJSONEncoder)
