"""Which inputs carry the ceiling: generalised eigenvectors as bars of columns or as images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError
from condnum.extras import require
from condnum.plots.limits import lines, readable
from condnum.plots.style import finish
from condnum.plots.theme import BLUE, ORANGE

#: Columns of a table that a bar chart has room for.
SHOWN_FEATURES = 12


def direction_bars(directions: pd.DataFrame, subtitle: str) -> Any:
    """Draw the inputs that make up the first and the last generalised eigenvector of a pair."""
    ends = _ends(directions)
    subplots = require("plotly.subplots", "viz")
    titles = [
        f"{which}: λ = {readable(float(part['eigenvalue'].iloc[0]))}" for which, part in zip(
            ("most harmful", "least harmful"), ends, strict=True
        )
    ]  # fmt: skip
    figure = subplots.make_subplots(rows=1, cols=2, horizontal_spacing=0.2, subplot_titles=titles)
    for column, (part, color) in enumerate(zip(ends, (ORANGE, BLUE), strict=True), start=1):
        order = part["share"].abs().sort_values(ascending=False).index[:SHOWN_FEATURES]
        shown = part.loc[order[::-1]]
        figure.add_bar(
            x=shown["share"], y=shown["feature"], orientation="h", marker_color=color, showlegend=False,
            customdata=shown[["filter", "pattern"]],
            hovertemplate="%{y}: share %{x:.3f}<br>filter %{customdata[0]:.3g}, pattern %{customdata[1]:.3g}"
            "<extra></extra>",
            row=1, col=column,
        )  # fmt: skip
    figure.update_xaxes(title_text="share of the direction's energy", zeroline=True, zerolinecolor="#888")
    figure.update_yaxes(tickfont_size=11)
    note = lines(
        f"{subtitle}. λ: energy in the harmful task over energy in the pre-training task, of x<sup>T</sup>w. "
        f"Largest {SHOWN_FEATURES} columns; shares sum to 1, correlated columns can have negative ones"
    )
    finish(figure, "Which columns carry the ceiling", note, height=520)
    return figure.update_layout(margin={"t": 140, "l": 130})


def direction_images(directions: pd.DataFrame, subtitle: str) -> Any:
    """Draw generalised eigenvectors of a pair of digits as images: patterns above, filters below."""
    if directions.empty:
        raise InvalidInputError("there are no directions of this pair to draw; take one of the run's pairs.")
    groups = list(directions.groupby("index", sort=True))
    side = math.isqrt(len(groups[0][1]))
    if side**2 != len(groups[0][1]):
        raise InvalidInputError(
            f"{len(groups[0][1])} features are no square image; draw them with direction_bars."
        )
    subplots = require("plotly.subplots", "viz")
    titles = [
        f"λ<sub>{index}</sub> = {readable(float(part['eigenvalue'].iloc[0]))}" for index, part in groups
    ]
    figure = subplots.make_subplots(
        rows=2, cols=len(groups), subplot_titles=titles, horizontal_spacing=0.02, vertical_spacing=0.05,
        row_titles=["pattern K<sub>P</sub>w", "filter w"],
    )  # fmt: skip
    for column, (_, part) in enumerate(groups, start=1):
        for row, quantity in enumerate(("pattern", "filter"), start=1):
            image = part[quantity].to_numpy().reshape(side, side)
            limit = float(np.abs(image).max())
            figure.add_heatmap(
                z=image, colorscale="RdBu", zmin=-limit, zmax=limit, showscale=False, row=row, col=column,
                hovertemplate="row %{y}, column %{x}: %{z:.3g}<extra></extra>",
            )  # fmt: skip
    note = lines(
        f"{subtitle}. Left: features with most energy in the harmful task for what they have in the "
        "pre-training task; right: with least. Blue: positive, red: negative, each image on its own scale"
    )
    finish(figure, "Which pixels carry the ceiling", note, height=520)
    figure.update_xaxes(visible=False, constrain="domain")
    figure.update_yaxes(visible=False, autorange="reversed", constrain="domain")
    for trace in figure.data:
        axis = trace.yaxis.replace("y", "yaxis")
        figure.layout[axis].scaleanchor = trace.xaxis
    return figure.update_layout(margin={"t": 140, "r": 40})


def _ends(directions: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the first and the last direction."""
    if directions.empty:
        raise InvalidInputError("there are no directions of this pair to draw; take one of the run's pairs.")
    index = directions["index"]
    return directions[index == index.min()], directions[index == index.max()]
