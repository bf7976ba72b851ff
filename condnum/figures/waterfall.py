"""Waterfalls of log RIR: what each switch of a protocol adds or takes, in both conventions."""

import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import FALLS, LIMIT, NEUTRAL, RISES, finish, panels
from condnum.numbers import num

#: Panels, left to right; short, for narrow screens.
_PANELS = {"ridge": "floor", "compact": "compact"}


def waterfall_figure(
    waterfall: pd.DataFrame, subtitle: str, *, epochs: int, published: float = math.nan
) -> Any:
    """Draw the path from the release to the corrected protocol, one switch more in each row.

    `published` is the RIR that the paper has for house prices, in the floor convention.
    """
    table = waterfall[waterfall["start_epochs"] == epochs]
    start = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    line = ""
    figure = panels(cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=[*_PANELS.values()])
    for column, convention in enumerate(_PANELS, start=1):
        rows = table[table["convention"] == convention].sort_values("index")
        ends = np.r_[0.0, rows["log10_rir"]]  # from RIR = 1
        names = [f"released, {start}", *("+\u00a0" + rows["switch"])[1:], "corrected"]
        factors = [f"× {num(10**step, 2)}" for step in np.diff(ends)[1:]]
        figure.add_waterfall(
            y=names, x=np.r_[np.diff(ends), 0.0], orientation="h", showlegend=False,
            measure=["absolute", *["relative"] * len(factors), "total"],
            text=[num(10 ** ends[1]), *factors, num(10 ** ends[-1])], textposition="outside",
            increasing_marker_color=RISES, decreasing_marker_color=FALLS, totals_marker_color=NEUTRAL,
            connector_line_color=NEUTRAL, hovertemplate="%{y}: %{text}<extra></extra>",
            cliponaxis=False, row=1, col=column,
        )  # fmt: skip
        if convention == "ridge" and {*rows["dataset"]} == {"house-prices"} and published > 0:
            ends, line = np.r_[ends, math.log10(published)], f"; black line: Table 1, {num(published)}"
            figure.add_vline(ends[-1], line_color=LIMIT, row=1, col=column)
        figure.update_xaxes(**_axis(ends), row=1, col=column)
    figure.update_xaxes(title_text="RIR", zeroline=True, zerolinecolor=NEUTRAL)
    figure.update_yaxes(autorange="reversed", ticktext=names, tickvals=names)
    note = f"{subtitle}. Means of log RIR over seeds; violet: rises, ocher: falls{line}; "
    note += "floor: ε = 10<sup>−6</sup>"
    title = f"From the released to the corrected protocol (first row: {start})"
    return finish(figure, title, note, height=190 + 34 * len(names))


def _axis(ends: Any) -> dict[str, Any]:
    """Fit an axis to RIR = 1, the bars and their texts; label it at 1, 2, 5 or at decades."""
    low, high = ends.min(), ends.max()
    width = max(high - low, 0.1)
    bounds = [low - 0.3 * width, high + 0.3 * width]
    decades = range(math.floor(bounds[0]), math.ceil(bounds[1]) + 1)
    if width < 2:
        ticks = {d + math.log10(m): num(m * 10.0**d) for d in decades for m in (1, 2, 5)}
    else:
        ticks = {d: f"10<sup>{d}</sup>" for d in decades if d % math.ceil(width / 6) == 0}
    return {"range": bounds, "tickvals": list(ticks), "ticktext": list(ticks.values())}
