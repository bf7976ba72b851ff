"""Figures of the experiment on erasure: harmful score left against benign score kept, and κ against steps."""

from typing import Any

import numpy as np
import pandas as pd

from condnum.page.style import (
    DOTTED,
    GREY,
    NEUTRAL,
    add_line,
    empty,
    express,
    finish,
    log_axis,
    method_style,
)
from condnum.probing import AttackReport

#: Families of extractors, in the words of the legend and in its order.
FAMILIES = {
    "raw": "raw features",
    "control": "control: shuffled targets erased",
    "path": "path to erasure, s from 1 to 0",
    "rank": "erasure of k directions",
    "erase": "erasure",
    "iterated": "iterated erasure",
    "front": "conditioning: closed forms",
}
_SYMBOLS = ["circle", "x", "diamond", "square", "triangle-down", "triangle-up", "star"]

#: Panels beside each other.
_WRAP = 3

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
    figure = express(
        "scatter", points, x="benign_linear_kept", y="harmful_linear_kept", facet_col_wrap=_WRAP,
        error_x="benign_linear_kept_pm", error_y="harmful_linear_kept_pm", facet_col_spacing=0.05, **_LOOK,
    )  # fmt: skip
    figure.update_traces(marker_size=10, error_x_thickness=1, error_y_thickness=1)
    for level in (0, 1):
        figure.add_hline(level, line=DOTTED)
        figure.add_vline(level, line=DOTTED)
    half = points["benign_linear_kept_pm"].fillna(0)
    kept = points["benign_linear_kept"].to_numpy() + np.outer([-1, 1], half)
    low, high = max(-0.3, kept.min()), min(1.2, kept.max())  # else a cheap erasure is one clump
    room = 0.06 * max(high - low, 0.02)
    figure.update_xaxes(range=[low - room, high + room], title_text="", showticklabels=True)
    figure.update_yaxes(range=[-0.6, 1.3], title_text="")
    figure.update_xaxes(title_text="benign score kept", row=1)  # plotly express counts rows from below
    figure.update_yaxes(title_text="harmful score left", col=1)
    note = (
        f"{subtitle}<br>Score above chance, as a fraction of that on raw features, on rows not used for "
        "training; bars: 95 % t-intervals over splits. Erasure "
        "moves points down; its cost moves them to the left."
    )
    return _finished(
        figure, "How much of the harmful task remains, and the cost to the benign task", note, points
    )


def kappa_against_steps(summary: pd.DataFrame, subtitle: str) -> Any:
    """Draw how many times as many steps the actual probe needs, against the ratio (i) of κ's."""
    raw = summary[summary["family"] == "raw"].set_index("pair")["harmful_steps"]
    points = summary.assign(
        family=summary["family"].map(FAMILIES), steps=summary["harmful_steps"] / summary["pair"].map(raw)
    )
    known = points[np.isfinite(points["steps"]) & np.isfinite(points["harmful_ratio"])]
    figure = express(
        "scatter", known, x="harmful_ratio", y="steps", facet_col_wrap=_WRAP, facet_col_spacing=0.05, **_LOOK
    )
    figure.update_traces(marker_size=10)
    ends = [known["harmful_ratio"].min(), known["harmful_ratio"].max()]
    for trace in {trace.xaxis: trace for trace in figure.data}.values():  # one line a panel
        axes = {"xaxis": trace.xaxis, "yaxis": trace.yaxis, "showlegend": trace.xaxis == "x"}
        line = {"color": GREY, "dash": "dot"}
        figure.add_scatter(x=ends, y=ends, mode="lines", line=line, name="if steps grew as κ", **axes)
    figure.update_xaxes(**log_axis("", known["harmful_ratio"]), showticklabels=True)
    figure.update_yaxes(**log_axis("", known["steps"]))
    figure.update_xaxes(title_text="(i): κ(H<sub>H</sub>) over that of raw features", row=1)
    figure.update_yaxes(title_text="steps over those on raw", col=1)
    note = (
        f"{subtitle}<br>Gradient descent with step 1/σ₁ to 1 % of the excess loss, median over splits. "
        "Extractors on which no number of steps reaches 1 % are omitted."
    )
    return _finished(figure, "Steps predicted by κ, and steps of an actual probe", note, known)


def attack_steps_figure(report: AttackReport, subtitle: str, chance: float) -> Any:
    """Draw the accuracy of gradient descent against its steps, and that of a solver as a level."""
    curves = report.curves.dropna(subset="accuracy")
    last = int(curves["step"].max())
    figure = empty()
    for name in report.extractors["extractor"]:
        label, color, _ = method_style(name)
        own = curves[curves["extractor"] == name].set_index("attacker")
        descent, solved = own.loc[["gd"]].query("step > 0"), own.loc[["closed_form"], "accuracy"].iloc[-1]
        x, y = [*descent["step"], last], [*descent["accuracy"], descent["accuracy"].iloc[-1]]
        color = NEUTRAL if name == report.baseline else color
        add_line(figure, f"{label}: gradient descent", x, y, color)
        add_line(figure, f"{label}: closed form", [1, last], [solved] * 2, color, "dash", width=2)
    add_line(figure, "chance", [1, last], [chance] * 2, GREY, "dot", width=1)
    figure.update_xaxes(**log_axis("step of gradient descent", [1, last]))
    figure.update_yaxes(title_text="accuracy on fresh examples", range=[0, 1.02])
    note = (
        f"{subtitle}<br>The attacker learns the harmful classes by least squares: gradient descent with the "
        "best step of a grid (solid) or the closed form (dashed)."
    )
    return finish(figure, "Slowed or stopped? What the attacker learns", note, legend="extractor: attacker")


def _finished(figure: Any, title: str, note: str, points: pd.DataFrame) -> Any:
    """Finish panels of pairs, with the legend below them."""
    height = 250 + 300 * -(-points["pair"].nunique() // _WRAP)
    finish(figure, title, note, height=height, legend="")
    below = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0}
    return figure.update_layout(legend=below, margin_b=150)
