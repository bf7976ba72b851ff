"""A small static picture of a plotly figure as SVG: the first panel's lines, marks or cells, no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.extras import require
from condnum.site.plot_data import trace_array

#: Size of the picture in its own units; the page scales it.
WIDTH, HEIGHT, MARGIN = 240, 120, 8

#: Points of a line that a picture of this size can show.
_MOST = 80

#: A colour that both backgrounds carry, where a figure has black.
_NEUTRAL = "#8A8A8A"
_DARK = ("#000000", "#222222", "black")


def thumbnail(figure: Mapping[str, Any]) -> str | None:
    """Draw the first panel of a figure in small.

    Examples:
        >>> picture = thumbnail({"data": [{"type": "scatter", "y": [1, 3, 2]}], "layout": {}})
        >>> picture.startswith("<svg") and "<polyline" in picture
        True
        >>> thumbnail({"data": [], "layout": {}}) is None
        True
    """
    layout = figure.get("layout", {})
    traces = [
        t for t in figure.get("data", []) if t.get("xaxis", "x") == "x" and t.get("visible", True) is True
    ]
    heatmaps = [t for t in traces if t.get("type") == "heatmap" and np.asarray(trace_array(t["z"])).ndim == 2]
    parts = _cells(heatmaps[-1], layout) if heatmaps else _lines(traces, layout)
    if not parts:
        return None
    return (
        f'<svg class="thumbnail" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" focusable="false" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _lines(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> list[str]:
    """Return a polyline for each line, dots for each cloud of marks."""
    drawn = []
    for trace in traces:
        points = _points(trace, layout)
        if points is not None and len(points[0]):
            drawn.append((trace, *points))
    spans = (
        [np.concatenate([part[i] for part in ((x, y) for _, x, y in drawn)]) for i in (0, 1)] if drawn else []
    )
    if not drawn:
        return []
    low, high = [float(part.min()) for part in spans], [float(part.max()) for part in spans]
    parts = []
    for trace, x, y in drawn:
        chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST)).round().astype(int))
        across = MARGIN + (x[chosen] - low[0]) / ((high[0] - low[0]) or 1) * (WIDTH - 2 * MARGIN)
        down = HEIGHT - MARGIN - (y[chosen] - low[1]) / ((high[1] - low[1]) or 1) * (HEIGHT - 2 * MARGIN)
        color = _color(trace)
        if "lines" in str(trace.get("mode", "lines")) and len(chosen) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        else:
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{color}"/>'
                for a, b in zip(across, down, strict=True)
            ]
    return parts


def _points(
    trace: Mapping[str, Any], layout: Mapping[str, Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the finite points of a line or a cloud where the axes place them; None for anything else."""
    plain = trace.get("type", "scatter") in ("scatter", "scattergl") and not trace.get("fill")
    if not plain or trace.get("mode") == "text" or "y" not in trace:
        return None
    y = _scaled(trace_array(trace["y"]), layout.get("yaxis", {}))
    if y is None:
        return None
    x = _scaled(trace_array(trace["x"]), layout.get("xaxis", {})) if "x" in trace else np.arange(len(y)) + 0.0
    if x is None or len(x) != len(y):
        return None
    known = np.isfinite(x) & np.isfinite(y)
    return np.asarray(x[known]), np.asarray(y[known])


def _cells(trace: Mapping[str, Any], layout: Mapping[str, Any]) -> list[str]:
    """Return a rectangle for each cell of a heatmap, in its own colours."""
    z = np.asarray(trace_array(trace["z"]))
    values = np.array([[np.nan if v is None else float(v) for v in row] for row in z], dtype=np.float64)
    axis = layout.get("coloraxis", {}) if trace.get("coloraxis") else {}
    scale = trace.get("colorscale") or axis.get("colorscale")
    known = values[np.isfinite(values)]
    if scale is None or not len(known):
        return []
    limits = [trace.get("zmin", axis.get("cmin")), trace.get("zmax", axis.get("cmax"))]
    low, high = (
        float(v if v is not None else d) for v, d in zip(limits, (known.min(), known.max()), strict=True)
    )
    colors = require("plotly.colors", "viz").sample_colorscale(
        scale if isinstance(scale, str) else [[float(a), str(b)] for a, b in scale],
        np.clip((known - low) / ((high - low) or 1), 0, 1).tolist(),
    )
    rows, columns = values.shape
    side = min((WIDTH - 2 * MARGIN) / columns, (HEIGHT - 2 * MARGIN) / rows)
    wide = (WIDTH - 2 * MARGIN) / columns if columns < rows / 2 else side
    left, top = (WIDTH - wide * columns) / 2, (HEIGHT - side * rows) / 2
    upward = str(layout.get("yaxis", {}).get("autorange", "")) != "reversed" and not _reversed(layout)
    found = iter(colors)
    parts = []
    for i, j in np.argwhere(np.isfinite(values)):
        row = rows - 1 - i if upward else i
        parts.append(
            f'<rect x="{left + j * wide:.1f}" y="{top + row * side:.1f}" width="{wide - 0.6:.1f}" '
            f'height="{side - 0.6:.1f}" fill="{next(found)}"/>'
        )
    return parts


def _reversed(layout: Mapping[str, Any]) -> bool:
    """Whether the vertical axis runs downwards."""
    limits = layout.get("yaxis", {}).get("range")
    return limits is not None and float(limits[0]) > float(limits[1])


def _scaled(values: NDArray[Any], axis: Mapping[str, Any]) -> NDArray[np.float64] | None:
    """Return values as the axis places them: logarithms on a logarithmic one; None for words."""
    if values.dtype.kind not in "fiu":
        return None
    numbers = values.astype(np.float64)
    if axis.get("type") != "log":
        return numbers
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(numbers > 0, np.log10(numbers), np.nan)


def _color(trace: Mapping[str, Any]) -> str:
    """Return a trace's colour, black replaced by one that is seen on dark and on light."""
    for part in ("line", "marker"):
        color = (trace.get(part) or {}).get("color")
        if isinstance(color, str):
            return _NEUTRAL if color.lower() in _DARK else color
    return "#2E86C8"
