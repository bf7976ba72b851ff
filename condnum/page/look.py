"""The look that every figure shares, as numbers and colors: nothing here needs plotly."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from condnum.numbers import num

#: Of the palette, in teaching figures: readable light on dark and dark on light.
BLUE, ORANGE, GREEN, PURPLE, NEUTRAL = "#2E86C8", "#D55E00", "#009E73", "#CC79A7", "#8A8A8A"

#: The theoretical limit, in a color of no method.
LIMIT = "#222222"

#: What is drawn for comparison: axes, levels, thresholds.
GREY = "#888888"
DOTTED = {"color": GREY, "dash": "dot", "width": 1}


def translucent(color: str, alpha: float) -> str:
    """Return `#rrggbb` as an rgba() color."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


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


def in_blocks(overlaps: Any, size: int) -> Any:
    """Average overlaps over blocks of rows and sum them over blocks of columns, so that rows sum to 1.

    Examples:
        >>> in_blocks(np.eye(4), 2)
        array([[1., 0.],
               [0., 1.]])
    """
    if size >= len(overlaps):
        return overlaps
    edges = np.linspace(0, len(overlaps), size + 1).astype(int)
    summed = np.add.reduceat(np.add.reduceat(overlaps, edges[:-1], axis=0), edges[:-1], axis=1)
    return summed / np.diff(edges)[:, None]


def overlap_heatmap(overlaps: Any, dimension: int, **colorbar: Any) -> dict[str, Any]:
    """Return the heat map of two tasks' overlaps |q_Piᵀq_Hj|², in blocks where there are many."""
    centres = np.linspace(1, dimension, len(overlaps))
    ticks = {"tickvals": [0, 0.25, 0.5, 1], "tickangle": 0, "tickfont": {"size": 12}}
    return {
        "x": centres, "y": centres, "z": overlaps, "zmin": 0, "zmax": 1, "colorscale": _ROOT_CIVIDIS,
        "colorbar": {"orientation": "h", "thickness": 10, **ticks, **colorbar},
        "hovertemplate": "i = %{y:.0f}, j = %{x:.0f}: %{z:.3f}<extra></extra>",
    }  # fmt: skip


def honest_legend(figure: dict[str, Any]) -> dict[str, Any]:
    """Take out of the legend what is not to be seen: traces without data, or outside of their axes."""
    for trace in figure["data"]:
        if trace.get("type", "scatter") == "scatter" and trace.get("showlegend") is not False:
            trace["showlegend"] = _is_seen(trace, figure["layout"])
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
