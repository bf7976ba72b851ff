"""Waterfalls of log RIR: what each switch of a protocol adds or takes, in both conventions."""

import math
from typing import Any

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError
from condnum.figures.style import BLUE, NEUTRAL, ORANGE, finish, num, panels

#: Panels, left to right; short, for narrow screens.
_PANELS = {"ridge": "floor", "compact": "compact"}

#: Kinds of bars with their colour and hatching: both tell rises from falls.
_ENDS, _RISES, _FALLS = "RIR itself", "RIR rises", "RIR falls"
_LOOKS = {_ENDS: (NEUTRAL, ""), _RISES: (BLUE, ""), _FALLS: (ORANGE, "/")}


def waterfall_figure(waterfall: pd.DataFrame, subtitle: str, *, epochs: int) -> Any:
    """Draw the path from the release to the corrected protocol, one switch more in each row.

    A panel per convention: bars float from RIR before to RIR after; error bars are one standard deviation of
    log RIR over seeds.
    """
    known = sorted({int(start) for start in waterfall.loc[waterfall["index"] > 0, "start_epochs"]})
    if epochs not in known:
        raise InvalidInputError(f"no waterfall starts at {epochs} epochs; those there are start at {known}.")
    table = waterfall[waterfall["start_epochs"] == epochs]
    released = f"released, {_count(epochs)}"
    figure = panels(cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=[*_PANELS.values()])
    for column, convention in enumerate(_PANELS, start=1):
        rows = table[table["convention"] == convention].sort_values("index")
        names = np.where(rows["switch"] == "released", released, "+ " + rows["switch"])
        rows = rows.assign(name=names, end=rows["log10_rir"], spread=rows["log10_rir_std"].fillna(0.0))
        rows = rows.assign(start=rows["end"].shift(fill_value=0.0))
        rows = pd.concat([rows, rows.iloc[-1:].assign(name="corrected", start=0.0)])
        change = rows["end"] - rows["start"]
        kinds = np.where(
            rows["name"].isin([released, "corrected"]), _ENDS, np.where(change >= 0, _RISES, _FALLS)
        )
        texts = [
            num(10**end, 3) if kind == _ENDS else f"× {num(10**step, 2)}" if math.isfinite(step) else "?"
            for kind, end, step in zip(kinds, rows["end"], change, strict=True)
        ]
        rows = rows.assign(change=change, kind=kinds, text=texts)
        for kind, (color, shape) in _LOOKS.items():
            part = rows[rows["kind"] == kind]
            if part.empty:
                continue
            figure.add_bar(
                y=part["name"], x=part["change"], base=part["start"], orientation="h", name=kind,
                legendgroup=kind, showlegend=column == 1, text=part["text"], textposition="none",
                marker={"color": color, "pattern": {"shape": shape, "solidity": 0.35}},
                error_x={"type": "data", "array": part["spread"], "thickness": 1.3, "width": 3},
                hovertemplate="%{y}: %{text}<extra></extra>", row=1, col=column,
            )  # fmt: skip
            figure.add_scatter(
                y=part["name"], x=np.maximum(part["end"] + part["spread"], part["start"]), mode="text",
                text="  " + part["text"], textposition="middle right", textfont={"size": 11},
                cliponaxis=False, hoverinfo="skip", showlegend=False, legendgroup=kind, row=1, col=column,
            )  # fmt: skip
        figure.update_xaxes(**_axis(rows), row=1, col=column)
    figure.update_xaxes(title_text="RIR", zeroline=True, zerolinecolor=NEUTRAL)
    figure.update_yaxes(categoryorder="array", categoryarray=list(rows["name"])[::-1])
    note = f"{subtitle}. Error bar: ±1 std of log RIR over seeds; floor: ε = 10<sup>−6</sup>"
    title = f"From the released to the corrected protocol ({_count(epochs)} at the start)"
    finish(figure, title, note, height=190 + 34 * len(rows))
    figure.update_layout(barmode="overlay", bargap=0.3, margin_b=95)
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0.0, "yanchor": "bottom"}
    return figure.update_layout(legend=legend | {"yref": "container", "title": {"text": ""}})


def _axis(rows: pd.DataFrame) -> dict[str, Any]:
    """Fit an axis to RIR = 1, the bars, their error bars and texts; label it at 1, 2, 5 or at decades."""
    low = min(0.0, rows["start"].min(), (rows["end"] - rows["spread"]).min())
    high = max(0.0, rows["start"].max(), (rows["end"] + rows["spread"]).max())
    width = max(high - low, 0.1)
    bounds = [low - 0.04 * width, high + 0.3 * width]
    decades = range(math.floor(bounds[0]), math.ceil(bounds[1]) + 1)
    ticks = {d + math.log10(m): f"{m * 10.0**d:g}" for d in decades for m in (1, 2, 5)}
    if width >= 2:
        ticks = {
            float(d): str(10**d) if 0 <= d <= 2 else f"10<sup>{str(d).replace('-', '−')}</sup>"
            for d in decades
            if d % math.ceil(width / 6) == 0
        }
    return {"range": bounds, "tickvals": list(ticks), "ticktext": list(ticks.values())}


def _count(epochs: int) -> str:
    """Return a number of epochs in words."""
    return f"{epochs} epoch{'s' if epochs > 1 else ''}"
