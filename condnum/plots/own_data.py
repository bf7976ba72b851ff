"""The figure of notebook 5: two spectra, how they lie to each other, and what a probe would cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.style import log_axis, overlap_map
from condnum.plots.theme import BLUE, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.own_data import OwnData

#: Norm ratios below this are not drawn, so that a task solved at once does not flatten the others.
RATIO_FLOOR = 1e-7
#: The spectra are drawn down to this share of the largest eigenvalue; null directions lie on the floor.
SPECTRUM_FLOOR = 1e-18

_PANELS = ("spectra of K<sub>P</sub> and K<sub>H</sub>", "overlaps |q<sub>P,i</sub>ᵀq<sub>H,j</sub>|²",
           "predicted probe")  # fmt: skip


def own_data_figure(result: OwnData) -> Any:
    """Draw what is known about a pair of feature matrices."""
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(
        rows=1, cols=3, column_widths=[0.35, 0.27, 0.38], horizontal_spacing=0.09, subplot_titles=_PANELS
    )
    low, high = _add_spectra(figure, result)
    _add_overlaps(figure, result)
    _add_probes(figure, result)
    P, H = result.pretrain.compact, result.harmful.compact
    subtitle = (
        f"compact κ(K<sub>P</sub>) = {P.value:.3g} at rank {P.rank}, κ(K<sub>H</sub>) = {H.value:.3g} at "
        f"rank {H.rank}, of D = {P.dimension}; random labels"
    )
    teaching_layout(figure, result.title, subtitle, height=500)
    figure.update_xaxes(title_text="index i", range=[0, P.dimension + 1], col=1)
    decades = max(1, int(np.ceil(np.log10(high / low) / 6)))
    figure.update_yaxes(
        type="log", range=[np.log10(low), np.log10(high)], dtick=decades,
        title_text="eigenvalue σ<sub>i</sub>",
        tickfont_size=POWER_SIZE, col=1,
    )  # fmt: skip
    figure.update_xaxes(title_text="j of K<sub>H</sub>", constrain="domain", col=2)
    figure.update_yaxes(
        title_text="i of K<sub>P</sub>",
        autorange="reversed",
        constrain="domain",
        scaleanchor="x2",
        constraintoward="bottom",
        domain=[0, 0.84],
        col=2,
    )
    figure.update_xaxes(
        **log_axis("step t (left edge: t = 0)", result.probes.steps), tickfont_size=POWER_SIZE, col=3
    )
    figure.update_yaxes(
        type="log", range=[np.log10(RATIO_FLOOR), 0.3], dtick=1, title_text="norm ratio (Eq. 16)",
        tickfont_size=POWER_SIZE, col=3,
    )  # fmt: skip
    return figure


def _add_spectra(figure: Any, result: OwnData) -> tuple[float, float]:
    """Draw both spectra with their tolerances and ε; return the range of the axis."""
    top = max(float(task.sigma[0]) for task in (result.pretrain, result.harmful))
    lowest = min(task.tolerance for task in (result.pretrain, result.harmful))
    low, high = max(lowest / 30, top * SPECTRUM_FLOOR), top * 5
    D = result.pretrain.compact.dimension
    for name, task, color, symbol in (
        ("K<sub>P</sub>", result.pretrain, BLUE, "circle"),
        ("K<sub>H</sub>", result.harmful, ORANGE, "diamond-open"),
    ):
        figure.add_scatter(
            x=np.arange(1, D + 1), y=np.maximum(task.sigma, low), mode="markers", name=name, showlegend=False,
            marker={"color": color, "size": 8, "symbol": symbol, "line": {"color": color, "width": 2}},
            customdata=task.sigma, hovertemplate="σ<sub>%{x}</sub> = %{customdata:.3e}", row=1, col=1,
        )  # fmt: skip
    for name, level, color, dash in (
        ("rank tolerance", max(t.tolerance for t in (result.pretrain, result.harmful)), PURPLE, "dash"),
        ("ridge ε", result.ridge, NEUTRAL, "dot"),
    ):
        figure.add_scatter(
            x=[0.5, D + 0.5], y=[level, level], mode="lines", name=name,
            line={"color": color, "dash": dash, "width": 2}, hovertemplate="%{y:.3e}", row=1, col=1,
        )  # fmt: skip
    return low, high


def _add_overlaps(figure: Any, result: OwnData) -> None:
    """Draw the overlaps of the eigenvectors, in blocks where there are many."""
    figure.add_heatmap(
        **overlap_map(
            result.overlaps, result.pretrain.compact.dimension,
            x=0.475, len=0.22, y=1.0, yanchor="top", ypad=0,
        ), row=1, col=2,
    )  # fmt: skip


def _add_probes(figure: Any, result: OwnData) -> None:
    """Draw the four probes and the goal."""
    steps = result.probes.steps
    ratios = np.maximum(result.probes.norm_ratio, RATIO_FLOOR * 0.1)
    lines = (
        ("D<sub>P</sub> as is", BLUE, "solid"),
        ("D<sub>P</sub> after θ*", BLUE, "dash"),
        ("D<sub>H</sub> as is", ORANGE, "solid"),
        ("D<sub>H</sub> after θ*", ORANGE, "dash"),
    )
    for (name, color, dash), ratio in zip(lines, ratios, strict=True):
        figure.add_scatter(
            x=np.maximum(steps, 0.7), y=ratio, mode="lines", name=name,
            line={"color": color, "dash": dash, "width": 3}, hovertemplate="t = %{x:,.0f}: %{y:.2e}",
            row=1, col=3,
        )  # fmt: skip
    figure.add_scatter(
        x=[0.7, steps[-1]], y=[result.goal, result.goal], mode="lines", name="goal",
        line={"color": NEUTRAL, "dash": "longdash", "width": 2}, hovertemplate="goal %{y:.1e}", row=1, col=3,
    )  # fmt: skip
