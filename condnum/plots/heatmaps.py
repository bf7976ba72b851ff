"""Fig. 2: heatmaps of ln RIR over all ordered pairs of digits, one panel a method."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.extras import require
from condnum.plots.pair_cells import (
    DIGITS,
    MEASURE_NAMES,
    PairCells,
    check_pair_results,
    color_limit,
    comparable,
    number_text,
    pair_cells,
)
from condnum.plots.style import finish, method_style

#: ColorBrewer's RdBu, safe for the common kinds of colour blindness: blue immunizes, red fails.
SCALE = "RdBu"

#: Cells whose mean of ln RIR is not finite.
GREY = "#BDBDBD"

#: Side of a panel in pixels; the gap between rows holds a panel's title, ticks and axis title.
PANEL, GAP, BOTTOM = 405, 112, 62

#: Characters of the subtitle that fit in a line at 640 and at 1050 pixels.
LINE = {1: 88, 2: 150}


def pair_heatmaps(
    results: pd.DataFrame,
    subtitle: str,
    *,
    convention: str = "ridge",
    gauge: str = "unit",
    methods: Sequence[str] | None = None,
    limit: float | None = None,
) -> Any:
    """Draw Fig. 2: ln RIR of every ordered pair of digits.

    Rows are pre-training digits, columns harmful digits; a cell is the mean of ln RIR over seeds.
    A cross marks a pair that fails Definition 3.1 in any seed, which a blue cell can do as well:
    RIR > 1 is not enough. A panel's title gives the mean RIR over pairs ± its standard deviation
    over seeds, as in Table 2. The heatmaps' `customdata` holds (pre-training digit, harmful digit).

    Args:
        results: A row per method × seed × pair × convention × gauge, with the columns `method, seed,
            pretrain_digit, harmful_digit, convention, gauge, harmful_ratio, pretrain_ratio, rir,
            success, rank_pretrain, rank_harmful`. Pairs without a row stay blank.
        subtitle: The data set.
        convention: Of the coloured RIR and of the verdicts; the hover box shows every one.
        gauge: Likewise.
        methods: Panels, in this order; default: the `comparable` ones of the table, in its order.
        limit: End of the colour scale; default: the largest finite |ln RIR| of the drawn methods.

    Returns:
        A plotly figure.

    Raises:
        InvalidInputError: The table is malformed or has no rows of this convention and gauge, or the
            limit is not positive.
        UnknownNameError: The table has no such method.
        MissingExtraError: Plotly is missing.
    """
    table = check_pair_results(results)
    known = list(dict.fromkeys(table["method"]))
    names = comparable(known) if methods is None else list(methods)
    if not names:
        raise InvalidInputError(f"methods is empty; choose of: {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise UnknownNameError("method of the table", name, known)
    panels = [pair_cells(table, name, convention=convention, gauge=gauge) for name in names]
    limit = color_limit(table, names, convention=convention, gauge=gauge) if limit is None else limit
    if not 0 < limit < math.inf:
        raise InvalidInputError(f"limit must be positive and finite, got {limit}.")
    columns = min(2, len(names))
    figure = _grid(names, panels, columns)
    for index, cells in enumerate(panels):
        _add_panel(figure, cells, limit, row=index // columns + 1, col=index % columns + 1)
    measure = MEASURE_NAMES.get((convention, gauge), f"{convention}, {gauge}")
    lines = textwrap.wrap(
        f"{subtitle}. Measured with {measure}. Blue: RIR > 1, red: RIR < 1; cells: mean of ln RIR over "
        "seeds; ✕\u00a0fails Definition 3.1 in at least one seed. Titles: mean RIR over pairs ± std over "
        "seeds, and the pairs that succeed in every seed",
        LINE[columns],
    )
    top = 84 + 22 * len(lines)
    rows = math.ceil(len(names) / columns)
    height = top + BOTTOM + rows * PANEL + (rows - 1) * GAP
    pairs = len(table[["pretrain_digit", "harmful_digit"]].drop_duplicates())
    finish(figure, f"ln RIR of {pairs} of 90 pairs of digits", "<br>".join(lines), height=height)
    figure.update_layout(margin={"t": top, "b": BOTTOM, "l": 60, "r": 90}, title_y=1 - 22 / height)
    return _lay_out(figure, limit, len(names), columns)


def _grid(names: Sequence[str], panels: Sequence[PairCells], columns: int) -> Any:
    """Return an empty figure with titled panels."""
    rows = math.ceil(len(names) / columns)
    inner = rows * PANEL + (rows - 1) * GAP
    titles = [
        f"<b>{method_style(name).label}</b><br>{cells.summary}"
        for name, cells in zip(names, panels, strict=True)
    ]
    subplots = require("plotly.subplots", "viz")
    return subplots.make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=titles,
        horizontal_spacing=0.08,
        vertical_spacing=GAP / inner if rows > 1 else 0,
    )


def _add_panel(figure: Any, cells: PairCells, limit: float, *, row: int, col: int) -> None:
    """Add one method: grey cells, coloured cells, their texts, and crosses on failures."""
    digits = np.arange(DIGITS)
    P, H = np.meshgrid(digits, digits, indexing="ij")
    finite = np.isfinite(cells.log_rir)
    grid = {"x": digits, "y": digits, "xgap": 1, "ygap": 1, "row": row, "col": col}
    figure.add_heatmap(
        z=_where(cells.present & ~finite, np.ones_like(cells.log_rir)), zmin=0, zmax=1, showscale=False,
        colorscale=[[0, GREY], [1, GREY]], hoverinfo="skip", **grid,
    )  # fmt: skip
    figure.add_heatmap(
        z=_where(finite, cells.log_rir), coloraxis="coloraxis", text=cells.hover,
        customdata=np.stack([P, H], axis=-1), hovertemplate="%{text}<extra></extra>", **grid,
    )  # fmt: skip
    ink = _ink(cells.log_rir, limit)
    at = cells.present
    figure.add_scatter(
        x=H[at], y=P[at], mode="text", text=[number_text(value) for value in cells.log_rir[at]],
        textfont={"color": ink[at], "size": 12}, hoverinfo="skip", showlegend=False, row=row, col=col,
    )  # fmt: skip
    at = cells.failed
    figure.add_scatter(
        x=H[at] + 0.36, y=P[at] - 0.35, mode="markers", hoverinfo="skip", showlegend=False,
        marker={"symbol": "x-thin", "size": 6, "line": {"width": 1.5, "color": ink[at]}}, row=row, col=col,
    )  # fmt: skip


def _where(mask: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return values with gaps of None: a NaN would make a widget's message invalid JSON."""
    cells = np.full(values.shape, None, dtype=object)
    cells[mask] = values[mask]
    return cells


def _ink(log_rir: NDArray[np.float64], limit: float) -> NDArray[np.object_]:
    """Return black or white for each cell, whichever contrasts more with the cell's colour."""
    colors = require("plotly.colors", "viz")
    ink = np.full(log_rir.shape, "#000000", dtype=object)
    finite = np.isfinite(log_rir)
    places = (log_rir[finite] / limit + 1) / 2
    if len(places):
        sampled = colors.sample_colorscale(SCALE, list(np.clip(places, 0, 1)), colortype="tuple")
        # Relative luminance as WCAG 2 defines it; at 0.179 black and white contrast equally.
        channels = np.array(sampled)
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
        ink[finite] = np.where(luminance < 0.179, "#FFFFFF", "#000000")
    return ink


def _lay_out(figure: Any, limit: float, count: int, columns: int) -> Any:
    """Set square cells, digits on both axes with 0 on top, one colour bar, and room for the titles."""
    plain = {"dtick": 1, "tick0": 0, "ticks": "", "showgrid": False, "zeroline": False, "showline": False}
    figure.update_xaxes(range=[-0.5, DIGITS - 0.5], constrain="domain", **plain)
    figure.update_yaxes(range=[DIGITS - 0.5, -0.5], constrain="domain", **plain)
    for index in range(count):
        row, col = index // columns + 1, index % columns + 1
        panel = figure.get_subplot(row, col)
        panel.yaxis.scaleanchor = panel.yaxis.anchor
        if col == 1:
            panel.yaxis.title = {"text": "pre-training digit D<sub>P</sub>", "standoff": 6}
        if index + columns >= count:
            panel.xaxis.title = {"text": "harmful digit D<sub>H</sub>", "standoff": 6}
    bar = {"title": {"text": "ln RIR"}, "len": PANEL, "lenmode": "pixels", "thickness": 16}
    figure.update_layout(
        coloraxis={"colorscale": SCALE, "cmin": -limit, "cmax": limit, "cmid": 0, "colorbar": bar},
    )
    figure.update_annotations(font_size=14)
    return figure
