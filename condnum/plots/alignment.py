"""Figures of notebook 2: overlaps, Eq. 10 beside the truth, majorisation; and the way out of alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.style import num, translucent
from condnum.plots.theme import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.alignment import AlignmentSweep, RotatedAlignment

#: Shares of the window's width: heatmap, spectra, partial sums.
_DOMAINS = ([0.0, 0.235], [0.4, 0.675], [0.765, 1.0])
_ROTATIONS = {
    "ends": "plane of q<sub>1</sub> and q<sub>D</sub>",
    "neighbours": "plane of q<sub>1</sub> and q<sub>2</sub>",
    "random": "random, by at most φ",
}
_PANELS = (
    "overlaps |u<sub>i</sub><sup>⊤</sup>q<sub>j</sub>|²",
    "singular values of H",
    "their partial sums",
)
_LOOKS = {"random": (BLUE, "solid"), "ends": (ORANGE, "dash"), "neighbours": (GREEN, "dot")}


def alignment_figure(run: RotatedAlignment) -> Any:
    """Draw the overlaps, Eq. 10 beside the true spectrum, and their partial sums."""
    go = require("plotly.graph_objects", "viz")
    result, D = run.alignment, len(run.theta)
    figure = go.Figure(data=[_overlaps(run), *_spectra(run), *_partial_sums(run)], layout=_axes(run))
    title = (
        f"Misalignment {_tidy(run):.3f}: κ of Eq. 10 = {num(result.predicted_condition, 4)}, "
        f"κ(H) = {num(result.true_condition, 4)}"
    )
    turned = "a Haar draw" if run.rotation == "haar" else f"φ = {num(run.angle)}°"
    return teaching_layout(figure, f"D = {D}, {turned}. {title}", height=540)


def _axes(run: RotatedAlignment) -> dict[str, Any]:
    """Return axes and titles of the three panels, set at once: plotly checks every change by itself."""
    D, lowest = len(run.theta), float(np.log10(run.alignment.ostrowski_lower[-1]))
    each = max(1, round(D / 8))
    spectra = {
        "type": "log", "range": [1.08 * lowest - 0.1, 0.15 - 0.05 * lowest],
        "dtick": max(1, round(-lowest / 5)),
        "title": {"text": "σ<sub>i</sub> over σ<sub>θ,1</sub>² γ<sub>1</sub>", "standoff": 4},
        "tickfont": {"size": POWER_SIZE},
    }  # fmt: skip
    rows = {
        "title": {"text": "i of u<sub>i</sub>, singular vectors of θ"},
        "range": [D + 0.5, 0.5], "tick0": 1, "dtick": each,
    }  # fmt: skip
    shares = {"title": {"text": "share of the trace of H", "standoff": 4}, "range": [0, 1.03], "dtick": 0.2}
    columns = (
        ("j of q<sub>j</sub>, eigenvectors of K", [0.5, D + 0.5], 1, rows),
        ("index i, largest first", [0.5, D + 0.5], 1, spectra),
        ("number m of terms", [0, D], 0, shares),
    )
    layout: dict[str, Any] = {"annotations": [], "legend": {"traceorder": "normal"}}
    for number, (text, limits, first, vertical) in enumerate(columns, 1):
        name, domain = "" if number == 1 else str(number), _DOMAINS[number - 1]
        layout[f"xaxis{name}"] = {
            "domain": domain, "anchor": f"y{name}", "title": {"text": text}, "range": limits,
            "tick0": first, "dtick": each,
        }  # fmt: skip
        layout[f"yaxis{name}"] = vertical | {"anchor": f"x{name}"}
        layout["annotations"].append({
            "text": _PANELS[number - 1], "x": sum(domain) / 2, "y": 1, "xref": "paper", "yref": "paper",
            "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 16},
        })  # fmt: skip
    return layout


def _tidy(run: RotatedAlignment) -> float:
    """Return the misalignment, without the round-off of an exact case."""
    return 0.0 if run.exact else run.alignment.misalignment


def _overlaps(run: RotatedAlignment) -> dict[str, Any]:
    """Return the heatmap; each of its rows and columns adds up to 1."""
    index = np.arange(1, len(run.theta) + 1)
    return {
        "type": "heatmap", "name": "overlaps", "x": index, "y": index, "z": run.alignment.overlaps,
        "zmin": 0, "zmax": 1, "colorscale": "Cividis",
        "colorbar": {
            "x": _DOMAINS[0][1] + 0.004, "xanchor": "left", "thickness": 12, "len": 1.0, "dtick": 0.2,
            "tickfont": {"size": 12}, "outlinewidth": 0, "y": 0.5, "yanchor": "middle",
        },
        "hovertemplate": "i = %{y}, j = %{x}: %{z:.4f}<extra></extra>",
    }  # fmt: skip


def _spectra(run: RotatedAlignment) -> list[dict[str, Any]]:
    """Return Ostrowski's bounds, the truth and the sorted prediction."""
    result = run.alignment
    place: dict[str, Any] = {"x": np.arange(1, len(run.theta) + 1), "xaxis": "x2", "yaxis": "y2"}
    edge = {"color": NEUTRAL, "width": 1}
    return [
        {
            "y": result.ostrowski_lower, "mode": "lines", "line": edge, "showlegend": False,
            "name": "Ostrowski, lower", "hovertemplate": "at least %{y:.3e}", **place,
        },
        {
            "y": result.ostrowski_upper, "mode": "lines", "line": edge, "fill": "tonexty",
            "fillcolor": translucent(NEUTRAL, 0.25), "name": "Ostrowski's bounds",
            "hovertemplate": "at most %{y:.3e}", **place,
        },
        {
            "y": result.spectrum, "mode": "lines+markers", "name": "truth: spectrum of H",
            "line": {"color": BLUE, "width": 2}, "marker": {"size": 10},
            "hovertemplate": "σ<sub>%{x}</sub> = %{y:.3e}", **place,
        },
        {
            "y": run.sorted_prediction, "mode": "lines+markers", "name": "Eq. 10, sorted",
            "line": {"color": ORANGE, "width": 2, "dash": "dash"},
            "marker": {"symbol": "x", "size": 9}, "hovertemplate": "Eq. 10: %{y:.3e}", **place,
        },
    ]  # fmt: skip


def _partial_sums(run: RotatedAlignment) -> list[dict[str, Any]]:
    """Return both partial sums and the gap between them."""
    result = run.alignment
    total = result.true_partial_sums[-1]
    place: dict[str, Any] = {"x": np.arange(len(run.theta) + 1), "xaxis": "x3", "yaxis": "y3"}
    place |= {"hovertemplate": "m = %{x}: %{y:.4f}"}
    return [
        {
            "y": np.append(0.0, result.predicted_partial_sums / total), "mode": "lines", "showlegend": False,
            "name": "sums of Eq. 10", "line": {"color": ORANGE, "width": 2.5, "dash": "dash"}, **place,
        },
        {
            "y": np.append(0.0, result.true_partial_sums / total), "mode": "lines", "name": "gap of the sums",
            "line": {"color": BLUE, "width": 2.5}, "fill": "tonexty", "showlegend": False,
            "fillcolor": translucent(PURPLE, 0.45), **place,
        },
    ]  # fmt: skip


def alignment_sweep_figure(sweeps: Sequence[AlignmentSweep]) -> Any:
    """Draw the diagonal overlap, the misalignment, and how much too small Eq. 10 makes κ, against the angle.

    Args:
        sweeps: Of `teaching.alignment.alignment_sweep`, one a rotation; that of Haar draws has no angle and
            becomes a band.

    Returns:
        A plotly figure: three panels; in each a curve a rotation, and the median and the middle 90 % of the
        Haar draws.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    subplots = require("plotly.subplots", "viz")
    titles = ("mean overlap |u<sub>i</sub><sup>⊤</sup>q<sub>i</sub>|²", "misalignment", "κ of Eq. 10 / κ(H)")
    figure = subplots.make_subplots(rows=1, cols=3, horizontal_spacing=0.09, subplot_titles=titles)
    for sweep in sweeps:
        measures = (sweep.diagonal_overlap, sweep.misalignment, sweep.condition_ratio)
        for column, values in enumerate(measures, 1):
            place = {"row": 1, "col": column, "showlegend": column == 1}
            if sweep.rotation == "haar":
                low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
                draws = f"{len(values)} Haar draws: median, middle 90 %"
                figure.add_scatter(
                    x=[0, 90, 90, 0], y=[low, low, high, high], fill="toself", mode="none", showlegend=False,
                    fillcolor=translucent(PURPLE, 0.3), hoverinfo="skip", legendgroup="haar",
                    name=draws, row=1, col=column,
                )  # fmt: skip
                figure.add_scatter(
                    x=[0, 90], y=[middle] * 2, mode="lines", line={"color": PURPLE, "dash": "longdash"},
                    name=draws, legendgroup="haar", hovertemplate="median %{y:.3f}", **place,
                )  # fmt: skip
                continue
            color, dash = _LOOKS[sweep.rotation]
            figure.add_scatter(
                x=sweep.angles, y=values, mode="lines", name=_ROTATIONS[sweep.rotation],
                legendgroup=sweep.rotation, line={"color": color, "dash": dash, "width": 3},
                hovertemplate="φ = %{x}°: %{y:.3f}", **place,
            )  # fmt: skip
    teaching_layout(figure, "Away from alignment: Eq. 10 never overestimates κ", height=500)
    figure.update_xaxes(title_text="angle φ of U to Q (degrees)", range=[0, 90], dtick=30)
    figure.update_yaxes(range=[0, 1.04], dtick=0.2)
    figure.update_yaxes(rangemode="tozero", autorange=True, dtick=0.1, col=2)
    return figure
