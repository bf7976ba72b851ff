"""Figures of the experiment on erasure: harmful score left against benign score kept, and κ against steps."""

from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import GREY, express, finish, log_axis

#: Families of extractors, in the words of the legend and in its order.
FAMILIES = {
    "raw": "raw features",
    "control": "control: shuffled targets erased",
    "path": "path to erasure, s from 1 to 0",
    "rank": "erasure of k directions",
    "floor": "erasure, weak directions too",
    "iterated": "iterated erasure",
    "front": "conditioning: closed forms",
}
_SYMBOLS = ["circle", "x", "diamond", "square", "triangle-down", "triangle-up", "star"]
_LOOK = {
    "color": "family",
    "symbol": "family",
    "symbol_sequence": _SYMBOLS,
    "category_orders": {"family": [*FAMILIES.values()]},
    "facet_col": "pair",
    "hover_name": "extractor",
}


def erasure_front(summary: pd.DataFrame, subtitle: str) -> Any:
    """Draw what the best linear attacker keeps of its score against what the benign task keeps of its own."""
    points = summary.assign(family=summary["family"].map(FAMILIES))
    wrap = min(3, points["pair"].nunique())
    figure = express(
        "scatter", points, x="pretrain_linear_kept", y="harmful_linear_kept", facet_col_wrap=wrap,
        error_x="pretrain_linear_kept_pm", error_y="harmful_linear_kept_pm", facet_col_spacing=0.04,
        facet_row_spacing=0.12, **_LOOK,
    )  # fmt: skip
    figure.update_traces(marker_size=10, error_x_thickness=1, error_y_thickness=1)
    for axis in (figure.add_hline, figure.add_vline):
        axis(1, line={"color": GREY, "dash": "dot", "width": 1})
    figure.add_hline(0, line={"color": GREY, "width": 1})
    figure.update_xaxes(range=[-0.25, 1.15], title_text="").update_yaxes(range=[-0.55, 1.25], title_text="")
    figure.update_xaxes(title_text="benign score kept", row=1)  # plotly express counts rows from below
    figure.update_yaxes(title_text="harmful score left", col=1)
    rows = -(-points["pair"].nunique() // wrap)
    note = (
        f"{subtitle}<br>Score above chance, as a share of that on raw features, on rows that nobody trained "
        "on; bars: 95 % t-intervals over splits. Erasure goes down, its price goes to the left."
    )
    finish(figure, "What is left of the harmful task, and what it costs", note, height=190 + 300 * rows)
    return figure.update_layout(legend_title_text="extractor (click to toggle)")


def kappa_against_steps(summary: pd.DataFrame, subtitle: str) -> Any:
    """Draw how many times as many steps the actual probe needs, against the ratio (i) of κ's."""
    raw = summary[summary["family"] == "raw"].set_index("pair")["harmful_steps"]
    points = summary.assign(
        family=summary["family"].map(FAMILIES), steps=summary["harmful_steps"] / summary["pair"].map(raw)
    )
    known = points[np.isfinite(points["steps"]) & np.isfinite(points["harmful_ratio"])]
    figure = express(
        "scatter", known, x="harmful_ratio", y="steps", facet_col_wrap=3, facet_col_spacing=0.04, **_LOOK
    )
    figure.update_traces(marker_size=10)
    low, high = 10.0 ** np.floor(np.log10(known["harmful_ratio"].min())), known["harmful_ratio"].max()
    line = {"x": [low, high], "y": [low, high], "mode": "lines", "line": {"color": GREY, "dash": "dot"}}
    figure.add_scatter(**line, name="as κ says", row="all", col="all", showlegend=False, hoverinfo="skip")
    figure.update_xaxes(**log_axis("", known["harmful_ratio"])).update_yaxes(**log_axis("", known["steps"]))
    figure.update_xaxes(title_text="(i): κ(H<sub>H</sub>) over that of raw features", row=1)
    figure.update_yaxes(title_text="steps over those on raw", col=1)
    rows = -(-known["pair"].nunique() // 3)
    note = (
        f"{subtitle}<br>Gradient descent with step 1/σ₁ to 1 % of the excess loss, median over splits. "
        "Dotted: steps grow as κ does. Extractors that put 1 % out of reach have no number of steps and are "
        "left out."
    )
    finish(figure, "What κ says, and what the actual probe needs", note, height=190 + 300 * rows)
    return figure.update_layout(legend_title_text="extractor (click to toggle)")
