"""Waterfalls of log RIR: what each switch of a protocol adds or takes, in both conventions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from condnum.errors import InvalidInputError
from condnum.figures.style import BLUE, NEUTRAL, ORANGE, finish, num, panels

#: Panels, left to right; short, for narrow screens.
_PANELS = {"ridge": "floor", "compact": "compact"}
_READING = "Error bar: ±1 std of log RIR over seeds; floor: ε = 10<sup>−6</sup>"
_RISES, _FALLS, _ENDS = "RIR rises", "RIR falls", "RIR itself"


def waterfall_figure(
    waterfall: pd.DataFrame, subtitle: str, *, epochs: int, titles: Mapping[str, str]
) -> Any:
    """Draw the path from the release to the corrected protocol, one switch more in each row.

    Args:
        waterfall: Of `waterfall_tables.waterfall_table`.
        subtitle: The data set.
        epochs: Of the release, at the start of the path.
        titles: Switches in words.

    Returns:
        A plotly figure, a panel per convention: bars float from RIR before to RIR after; error bars are one
        standard deviation of log RIR over seeds.

    Raises:
        InvalidInputError: The table has no such path.
        MissingExtraError: Plotly is missing.
    """
    table = _of(waterfall, "cumulative", epochs)
    last = int(table["index"].max())
    labels = {
        int(row["index"]): (
            f"released, {_count(epochs)}"
            if row["index"] == 0
            else f"+ {titles.get(row['switch'], row['switch'])}"
        )
        for row in table.to_dict("records")
    }
    labels[last + 1] = "corrected"
    figure = _panels()
    for column, convention in enumerate(_PANELS, start=1):
        rows = table[table["convention"] == convention].sort_values("index")
        level = rows["log10_rir"].to_numpy()
        spread = rows["log10_rir_std"].fillna(0.0).to_numpy()
        names = [labels[int(index)] for index in rows["index"]]
        ends = ([names[0], labels[last + 1]], [level[0], level[-1]], [spread[0], spread[-1]])
        _add_bars(
            figure, column, *ends, base=np.zeros(2), texts=[_rir(level[0]), _rir(level[-1])], kind=_ENDS
        )
        steps = list(zip(names[1:], level[:-1], level[1:], spread[1:], strict=True))
        for kind, chosen in ((_RISES, lambda a, b: b >= a), (_FALLS, lambda a, b: b < a)):
            part = [step for step in steps if chosen(step[1], step[2])]
            _add_bars(
                figure, column, [step[0] for step in part], [step[2] - step[1] for step in part],
                [step[3] for step in part], base=np.array([step[1] for step in part]),
                texts=[_factor(step[2] - step[1]) for step in part], kind=kind,
            )  # fmt: skip
        _set_range(figure, column, rows, 0.0)
    figure.update_yaxes(categoryorder="array", categoryarray=[labels[i] for i in sorted(labels)][::-1])
    note = f"{subtitle}. {_READING}"
    title = f"From the released to the corrected protocol ({_count(epochs)} at the start)"
    return _finished(figure, title, note, rows=len(labels))


def alone_figure(waterfall: pd.DataFrame, subtitle: str, *, epochs: int, titles: Mapping[str, str]) -> Any:
    """Draw the release with one switch turned at a time.

    Args:
        waterfall: Of `waterfall_tables.waterfall_table`.
        subtitle: The data set.
        epochs: Of the release.
        titles: Switches in words.

    Returns:
        A plotly figure, a panel per convention: every bar starts at the release.

    Raises:
        InvalidInputError: The table has no such path.
        MissingExtraError: Plotly is missing.
    """
    table = _of(waterfall, "alone", epochs)
    start = _of(waterfall, "cumulative", epochs)
    order = ["released", *(titles.get(name, name) for name in dict.fromkeys(table["switch"]))]
    figure = _panels()
    for column, convention in enumerate(_PANELS, start=1):
        rows = table[table["convention"] == convention].sort_values("index")
        released = start[(start["convention"] == convention) & (start["index"] == 0)].iloc[0]
        base = float(released["log10_rir"])
        _add_bars(
            figure, column, order[:1], [base], [np.nan_to_num(released["log10_rir_std"])], base=np.zeros(1),
            texts=[_rir(base)], kind=_ENDS,
        )  # fmt: skip
        for kind, part in (
            (_RISES, rows[rows["log10_rir"] >= base]),
            (_FALLS, rows[rows["log10_rir"] < base]),
        ):
            change = part["log10_rir"].to_numpy() - base
            _add_bars(
                figure, column, [titles.get(name, name) for name in part["switch"]], change,
                part["log10_rir_std"].fillna(0.0), base=np.full(len(part), base),
                texts=[_factor(step) for step in change], kind=kind,
            )  # fmt: skip
        figure.add_vline(x=base, line_color=NEUTRAL, line_width=1, line_dash="dot", row=1, col=column)
        _set_range(figure, column, rows, base)
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    note = f"{subtitle}. {_READING}"
    title = f"One switch at a time, the rest as released ({_count(epochs)})"
    return _finished(figure, title, note, rows=len(order))


def _of(waterfall: pd.DataFrame, path: str, epochs: int) -> pd.DataFrame:
    """Return one path."""
    table = waterfall[(waterfall["path"] == path) & (waterfall["start_epochs"] == epochs)]
    if table.empty:
        known = sorted({int(start) for start in waterfall["start_epochs"]})
        raise InvalidInputError(
            f"the waterfall has no path '{path}' from {epochs} epochs; it has epochs {known or 'of none'}."
        )
    return table


def _panels() -> Any:
    """Return an empty figure with a panel per convention on one vertical axis."""
    figure = panels(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=list(_PANELS.values())
    )
    figure.update_xaxes(title_text="RIR", zeroline=True, zerolinecolor=NEUTRAL)
    figure.update_layout(barmode="overlay", bargap=0.3)
    return figure


def _finished(figure: Any, title: str, note: str, *, rows: int) -> Any:
    """Give a waterfall its title, height and legend."""
    finish(figure, title, note, height=190 + 34 * rows)
    figure.update_layout(
        legend={
            "title": {"text": ""}, "orientation": "h", "x": 0, "xanchor": "left",
            "y": 0.0, "yanchor": "bottom", "yref": "container",
        },
        margin_b=95,
    )  # fmt: skip
    return figure


def _set_range(figure: Any, column: int, rows: pd.DataFrame, base: float) -> None:
    """Fit an axis to RIR = 1, the bars, their error bars and texts; label it at 1, 2, 5 or at decades."""
    spread = rows["log10_rir_std"].fillna(0.0)
    low = min(0.0, base, float((rows["log10_rir"] - spread).min()))
    high = max(0.0, base, float((rows["log10_rir"] + spread).max()))
    width = max(high - low, 0.1)
    bounds = [low - 0.04 * width, high + 0.3 * width]
    decades = range(math.floor(bounds[0]), math.ceil(bounds[1]) + 1)
    step = max(1, math.ceil(width / 6))
    ticks = [float(d) for d in decades if d % step == 0]
    texts = [_power(d) for d in decades if d % step == 0]
    if width < 2:
        fine = [(d, m) for d in decades for m in (1, 2, 5)]
        ticks, texts = [d + math.log10(m) for d, m in fine], [f"{m * 10.0**d:g}" for d, m in fine]
    figure.update_xaxes(range=bounds, tickvals=ticks, ticktext=texts, row=1, col=column)


def _power(decade: int) -> str:
    """Return a power of ten for an axis."""
    return str(10**decade) if 0 <= decade <= 2 else f"10<sup>{str(decade).replace('-', '−')}</sup>"


def _count(epochs: int) -> str:
    """Return a number of epochs in words."""
    return f"{epochs} epoch{'s' if epochs > 1 else ''}"


def _add_bars(
    figure: Any, column: int, names: Any, change: Any, spread: Any, *, base: Any, texts: Any, kind: str
) -> None:
    """Add floating bars of one kind; colour and hatching both tell rises from falls."""
    if not len(names):
        return
    color, shape = {_RISES: (BLUE, ""), _FALLS: (ORANGE, "/"), _ENDS: (NEUTRAL, "")}[kind]
    figure.add_bar(
        y=list(names), x=np.asarray(change, dtype=np.float64), base=np.asarray(base, dtype=np.float64),
        orientation="h", name=kind, legendgroup=kind, showlegend=column == 1,
        marker={"color": color, "pattern": {"shape": shape, "solidity": 0.35}},
        error_x={"type": "data", "array": np.asarray(spread, dtype=np.float64), "thickness": 1.3, "width": 3},
        text=list(texts), textposition="none",
        hovertemplate="%{y}: %{text}<extra></extra>", row=1, col=column,
    )  # fmt: skip
    ends = np.asarray(base, dtype=np.float64) + np.asarray(change, dtype=np.float64)
    far = np.maximum(ends + np.asarray(spread, dtype=np.float64), np.asarray(base, dtype=np.float64))
    figure.add_scatter(
        y=list(names), x=far, mode="text", text=[f"  {text}" for text in texts], textposition="middle right",
        textfont={"size": 11}, hoverinfo="skip", showlegend=False, legendgroup=kind, cliponaxis=False,
        row=1, col=column,
    )  # fmt: skip


def _rir(log10: float) -> str:
    """Return RIR for people, to three digits."""
    return num(10**log10, 3)


def _factor(change: float) -> str:
    """Return what RIR is multiplied by, for people, to two digits."""
    return f"× {num(10**change, 2)}" if math.isfinite(change) else "?"
