"""The figures of an audit: attackers, spectra, limits along the depth of a net."""

import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.auditing.layers import LayerAudit
from condnum.auditing.lights import LIGHTS
from condnum.auditing.measures import LABEL_OF
from condnum.auditing.result import Audit
from condnum.page.style import (
    BLUE,
    DOTTED,
    GREEN,
    GREY,
    NEUTRAL,
    ORANGE,
    PURPLE,
    add_line,
    empty,
    express,
    finish,
    log_axis,
)
from condnum.numbers import number

#: Raw features, in the place of a light.
_RAW = "on raw features"


#: Colors and symbols of lights.
_COLORS = dict(zip((*LIGHTS, _RAW), (ORANGE, "#E69F00", GREY, GREEN, NEUTRAL), strict=True))
_SYMBOLS = dict(zip(_COLORS, ("circle", "diamond", "circle-open", "square", "line-ns-open"), strict=True))


def attackers_figure(found: Audit) -> Any:
    """Draw what every attacker reaches on every extractor, beside raw features and chance."""
    table = found.attack.lights.assign(
        more=lambda of: of["high"] - of["score"], less=lambda of: of["score"] - of["low"]
    )
    raw = table.assign(score=table["raw"], light=_RAW, more=math.nan, less=math.nan)
    table = pd.concat([raw, table]).replace({"extractor": LABEL_OF})
    kind, labels = table["score_name"].iloc[0], [*dict.fromkeys(table["label"])]
    figure = express(
        "scatter", table, x="score", y="label", color="light", symbol="light", facet_col="extractor",
        error_x="more", error_x_minus="less", color_discrete_map=_COLORS, symbol_map=_SYMBOLS,
        category_orders={"label": labels, "light": [*_COLORS]},
    ).update_traces(marker_size=10, hovertemplate="%{y}: %{x:.3f}")  # fmt: skip
    figure.add_vline(x=table["chance"].iloc[0], line=DOTTED)
    ticks = {"tickformat": ".0%" if kind == "accuracy" else "", "dtick": 0.25}
    figure.update_xaxes(title_text=kind, range=[-0.02, 1.02], **ticks)
    figure.update_yaxes(title_text="", dtick=1, showgrid=True, automargin=True)
    note = (
        f"{_data(found)}. On {found.attack.held_out:,d} rows that no attacker saw, with 95 % intervals; "
        "strokes: the best of the class on raw features; dotted: chance"
    )
    finish(figure, "What every attacker reaches", note, height=230 + 27 * len(labels), legend="")
    return _legend(figure)


def depth_figure(found: LayerAudit) -> Any:
    """Draw what is possible behind each layer along the depth; the table has κ's and ranks."""
    table, figure = found.table, empty()
    x, limit = table["layer"].to_list(), table["limit_compact"].to_numpy(dtype=float)
    known = table[["limit_compact", "limit_rir", "rir"]].replace(np.inf, np.nan).to_numpy(dtype=float)
    top = 3 * float(np.nanmax([found.target, *known.ravel()]))  # where an infinite limit is drawn
    for layer, *ends in table[["layer", "rir", "limit_rir"]].fillna({"rir": 1.0}).itertuples(index=False):
        add_line(figure, "", [layer] * 2, ends, NEUTRAL, width=2, showlegend=False, hoverinfo="skip")
    none = np.where(table["limit_rir"].isna(), 1.0, np.nan)
    for name, values, color, symbol in (
        ("compact: no invertible θ exceeds (△: ∞)", limit, PURPLE,
         np.where(limit > top, "triangle-up-open", "diamond-open")),
        ("ridge: no square θ exceeds", table["limit_rir"], NEUTRAL, "triangle-down"),
        ("ridge: a closed form reaches", table["rir"], BLUE, "circle"),
        ("ridge: none has (i) > 1 and (ii) ≤ 1", none, ORANGE, "x"),
    ):  # fmt: skip
        if np.isnan(values).all():
            continue
        figure.add_scatter(
            x=x, y=np.minimum(values, top), mode="markers", name=name, customdata=values,
            marker={"color": color, "size": 10, "symbol": symbol},
            hovertemplate="%{x}: RIR %{customdata:.3g}",
        )  # fmt: skip
    figure.add_hline(y=found.target, line_color=NEUTRAL, line_dash="dash")
    note = f"D<sub>P</sub>: {found.rows_benign:,d} rows, D<sub>H</sub>: {found.rows_harmful:,d} rows"
    if found.cheapest is not None:
        note += f". Shaded: {found.cheapest}, the cheapest"
        at = x.index(found.cheapest)
        figure.add_vrect(x0=at - 0.4, x1=at + 0.4, fillcolor=BLUE, opacity=0.12, line_width=0)
    figure.update_xaxes(tickangle=-60, type="category")
    title = f"RIR of a linear extractor (dashed: {number(found.target)})"
    figure.update_yaxes(**log_axis(title, [*known.ravel(), top, 1.0]))
    finish(figure, "What a linear extractor can reach behind each layer", note, height=560, width=60)
    return _legend(figure).update_layout(margin_b=210)


def _legend(figure: Any) -> Any:
    """Put the legend below the panels and their titles."""
    place = {"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"}
    return figure.update_layout(legend={**place, "title_text": ""}, margin_b=120)


def _data(found: Audit) -> str:
    """Name the data."""
    P, H = found.benign, found.harmful
    return f"D<sub>P</sub>: {P.rows:,d} rows, D<sub>H</sub>: {H.rows:,d} rows, {P.dimension:,d} columns"
