"""Fig. 2: RIR over ordered pairs of digits, as heatmaps with a panel per method."""

import math
import textwrap
from typing import Any

import numpy as np
import pandas as pd

from condnum.page.style import empty, finish, method_style, panels, square
from condnum.numbers import num

_RATIOS = ["harmful_ratio", "benign_ratio", "rir"]

#: Name and unit of each measure.
_MEASURES = {
    ("ridge", "unit"): "ridge κ, ‖θ‖ = √D",
    ("ridge", "as_trained"): "ridge κ, θ as trained",
    ("compact", "unit"): "compact κ",
}

#: Closed forms, whose RIR is of another order of magnitude: they may exceed the color scale.
_BEYOND = ("max_rir", "pareto")

#: Side of a panel of ten digits in pixels; the gap between rows holds a panel's title, ticks and axis title.
_PANEL, _GAP, _BOTTOM = 405, 130, 62

#: Up to so many pairs are columns of one map of the methods; ten digits would leave it empty.
FEW = 20

#: Characters of the subtitle that fit above one and two columns of panels.
_LINE = {1: 88, 2: 120}


def pair_heatmaps(
    results: pd.DataFrame, subtitle: str, *, convention: str = "ridge", theta_scale: str = "unit"
) -> Any:
    """Draw Fig. 2: ln RIR of every ordered pair of digits, in colors that all methods of the table share.

    Rows are pre-training digits, columns harmful digits; a cell is the mean of ln RIR over seeds.
    A cross marks a pair that fails Definition 3.1 in any seed, which a blue cell can do as well:
    RIR > 1 is not enough. A panel's title gives the mean RIR over pairs ± its standard deviation
    over seeds, as in Table 2, and the median. The heatmaps' `customdata` holds (pre-training digit,
    harmful digit). A few pairs are the columns of one map, whose rows are the methods.
    """
    table = results[(results["convention"] == convention) & (results["theta_scale"] == theta_scale)]
    names = list(dict.fromkeys(table["method"]))
    cells = pair_cells(table)
    # ColorBrewer's RdBu, safe for the common kinds of color blindness: blue immunizes, red fails.
    limit, bar = color_limit(cells), {"title": {"text": "ln RIR"}, "thickness": 16}
    scale = {"colorscale": "RdBu", "cmin": -limit, "cmax": limit, "cmid": 0, "colorbar": bar}
    pairs = cells[["benign_digit", "harmful_digit"]].drop_duplicates()
    title = f"ln RIR of {len(pairs)} of 90 pairs of digits"
    note = (
        f"{subtitle}. Measured with {_MEASURES[convention, theta_scale]}. Blue: RIR > 1, red: RIR < 1; "
        "cells: mean of ln RIR over seeds; ✕\u00a0fails Definition 3.1 in at least one seed. Methods: mean "
        "RIR over pairs ± std over seeds, median, and the pairs that succeed in every seed"
    )
    titles = [panel_title(table, cells, name) for name in names]
    if len(pairs) <= FEW:
        order = pd.MultiIndex.from_frame(pairs)
        z, text, hover = (
            cells.pivot(index="method", columns=[*pairs], values=name).reindex(index=names, columns=order)
            for name in ("log_rir", "text", "hover")
        )
        figure = empty().add_heatmap(
            z=z.clip(-1e3, 1e3), x=[f"{P} → {H}" for P, H in order], y=titles, text=text, hovertext=hover,
            texttemplate="%{text}", hovertemplate="%{hovertext}<extra></extra>", hoverongaps=False,
            coloraxis="coloraxis", textfont={"size": 12}, xgap=1, ygap=1,
        )  # fmt: skip
        finish(figure, title, note, height=210 + 58 * len(names))
        figure.update_xaxes(type="category", tickangle=0, title_text="D<sub>P</sub> → D<sub>H</sub>")
        figure.update_yaxes(autorange="reversed", ticks="", showgrid=False)
        return figure.update_layout(margin_l=190, coloraxis=scale)
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    digits = cells[["benign_digit", "harmful_digit"]]
    low, high = digits.min(axis=None), digits.max(axis=None)
    side = max(_PANEL * (high - low + 1) // 10, 120)  # digits without a pair at the ends are left out
    inner = rows * side + (rows - 1) * _GAP
    figure = panels(
        rows=rows, cols=columns, subplot_titles=titles,
        horizontal_spacing=0.08, vertical_spacing=_GAP / inner if rows > 1 else 0,
    )  # fmt: skip
    shown = np.arange(low, high + 1)
    for index, name in enumerate(names):
        own = cells[cells["method"] == name]
        z, text, hover = on_grid(own, shown, "log_rir", "text", "hover")
        row, column = index // columns + 1, index % columns + 1
        figure.add_heatmap(
            z=z, x=shown, y=shown, text=text, texttemplate="%{text}",
            hovertext=hover, hovertemplate="%{hovertext}<extra></extra>", hoverongaps=False,
            customdata=np.stack(np.meshgrid(shown, shown, indexing="ij"), axis=-1),
            coloraxis="coloraxis", textfont={"size": 12}, xgap=1, ygap=1, row=row, col=column,
        )  # fmt: skip
        panel = figure.get_subplot(row, column)
        if column == 1:
            panel.yaxis.title = {"text": "pre-training digit D<sub>P</sub>", "standoff": 6}
        if index + columns >= len(names):
            panel.xaxis.title = {"text": "harmful digit D<sub>H</sub>", "standoff": 6}
    top = 102 + 22 * len(textwrap.wrap(note, _LINE[columns]))
    finish(figure, title, note, height=top + _BOTTOM + inner, width=_LINE[columns])
    plain = {"dtick": 1, "tick0": 0, "ticks": "", "showgrid": False, "zeroline": False, "showline": False}
    figure.update_xaxes(range=[low - 0.5, high + 0.5], **plain)
    figure.update_yaxes(range=[high + 0.5, low - 0.5], **plain)  # 0 on top
    square(figure).update_annotations(font_size=14)
    bar |= {"len": side, "lenmode": "pixels"}
    return figure.update_layout(margin={"t": top, "b": _BOTTOM, "l": 60, "r": 90}, coloraxis=scale)


def pair_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method and pair: means of logarithms over seeds, successes, and what a cell says."""
    with np.errstate(divide="ignore"):
        logs = np.log(table[_RATIOS].astype(float))
    pairs = table.assign(**logs, success=table["success"] == 1)  # a missing verdict is not a success
    cells = pairs.groupby(["method", "benign_digit", "harmful_digit"], sort=False, as_index=False).agg(
        log_rir=("rir", "mean"), log_harmful=("harmful_ratio", "mean"),
        log_benign=("benign_ratio", "mean"), successes=("success", "sum"), seeds=("success", "size"),
    )  # fmt: skip
    cells["failed"] = cells["successes"] < cells["seeds"]
    cells["text"] = cells["log_rir"].map(number_text) + cells["failed"].map({True: "<sup>✕</sup>", False: ""})
    cells["hover"] = [
        f"<b>D<sub>P</sub>: digit {cell.benign_digit}, D<sub>H</sub>: digit {cell.harmful_digit}</b><br>"
        f"{method_style(cell.method).label}: Definition 3.1 succeeds in {cell.successes} of {cell.seeds}<br>"
        f"(i) {num(np.exp(cell.log_harmful))}, (ii) {num(np.exp(cell.log_benign))}, "
        f"RIR {num(np.exp(cell.log_rir))}"
        for cell in cells.itertuples()
    ]
    return cells


def color_limit(cells: pd.DataFrame) -> float:
    """Return the end of the color scale that all methods share, or all but the closed forms."""
    ours = cells[~cells["method"].isin(_BEYOND)]
    means = (cells if ours.empty else ours)["log_rir"].abs()
    return float(np.nan_to_num(means[np.isfinite(means)].max())) or 1.0


def on_grid(cells: pd.DataFrame, digits: Any, *columns: str) -> list[Any]:
    """Return columns of a method's cells as tables, rows for pre-training digits; gaps are NaN or empty."""
    index = pd.MultiIndex.from_product([digits, digits])
    found = cells.set_index(["benign_digit", "harmful_digit"]).reindex(index)
    found["log_rir"] = found["log_rir"].clip(-1e3, 1e3)  # of ∞ nothing would be drawn
    found = found.fillna({"text": "", "hover": ""})
    return [found[name].to_numpy().reshape(len(digits), -1) for name in columns]


def panel_title(table: pd.DataFrame, cells: pd.DataFrame, method: str) -> str:
    """Return mean RIR over pairs ± std over seeds, its median, and the pairs that succeed in every seed."""
    own = table[table["method"] == method]
    means = own.groupby("seed")["rir"].mean()
    failed = cells.loc[cells["method"] == method, "failed"]
    with np.errstate(invalid="ignore"):  # of ∞ there is no deviation
        spread = f" ± {num(means.std(), 2)}" if len(means) > 1 else " (one seed)"
    found = f"RIR {num(means.mean(), 4)}{spread}, median {num(own['rir'].median())}"
    return f"<b>{method_style(method).label}</b><br>{found}<br>success {(~failed).sum()} of {len(failed)}"


def number_text(value: float) -> str:
    """Return ln RIR as a cell shows it.

    Examples:
        >>> [number_text(v) for v in (4.2481, -0.01, -2.0, float("inf"))]
        ['4.2', '0.0', '−2.0', '∞']
    """
    text = "∞" if np.isinf(value) else f"{abs(round(value, 1)):.1f}"
    return f"−{text}" if round(value, 1) < 0 else text
