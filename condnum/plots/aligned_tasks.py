"""Figure of notebook 2: κ of both tasks, and RIR, along a path of θ for two aligned tasks."""

from __future__ import annotations

from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.style import num
from condnum.plots.theme import BLUE, GREEN, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.aligned_tasks import AlignedTasks


def aligned_tasks_figure(run: AlignedTasks) -> Any:
    """Draw both condition numbers beside RIR and its ceiling, along `θ_s = K_P^{-s/2}`.

    Args:
        run: Of `teaching.aligned_tasks.aligned_tasks`.

    Returns:
        A plotly figure: κ(H_P), κ(H_H), the two at s; RIR, its ceiling, RIR at s.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    subplots = require("plotly.subplots", "viz")
    titles = ("condition numbers of the two probes", "relative immunization ratio")
    figure = subplots.make_subplots(rows=1, cols=2, horizontal_spacing=0.1, subplot_titles=titles)
    here = run.immunization
    s, at = run.exponents, [run.exponent]
    left: tuple[tuple[str, Any, str, str], ...] = (
        ("κ(H<sub>P</sub>), pre-training", run.pretrain_condition, BLUE, "solid"),
        ("κ(H<sub>H</sub>), harmful", run.harmful_condition, ORANGE, "dash"),
    )
    for name, values, color, dash in left:
        figure.add_scatter(
            x=s, y=values, mode="lines", name=name, line={"color": color, "dash": dash, "width": 3},
            hovertemplate="s = %{x:.3f}: %{y:.4g}", row=1, col=1,
        )  # fmt: skip
    both = [here.pretrain_after.value, here.harmful_after.value]
    figure.add_scatter(
        x=at * 2, y=both, mode="markers", name="shown s", showlegend=False,
        marker={"size": 14, "color": [BLUE, ORANGE]}, hovertemplate="κ = %{y:.4g}", row=1, col=1,
    )  # fmt: skip
    figure.add_scatter(
        x=s, y=run.ratios, mode="lines", name="RIR, Eq. 15", line={"color": GREEN, "width": 3},
        hovertemplate="s = %{x:.3f}: %{y:.4g}", row=1, col=2,
    )  # fmt: skip
    figure.add_scatter(
        x=[0.0, 1.0], y=[run.ceiling] * 2, mode="lines", name="ceiling of RIR",
        line={"color": PURPLE, "dash": "longdash", "width": 2.5}, hovertemplate="at most %{y:.4g}",
        row=1, col=2,
    )  # fmt: skip
    figure.add_scatter(
        x=at, y=[here.rir], mode="markers", name="RIR at s", showlegend=False,
        marker={"size": 14, "color": GREEN}, hovertemplate="RIR = %{y:.4g}", row=1, col=2,
    )  # fmt: skip
    title = (
        f"s = {num(run.exponent)}: κ(H<sub>P</sub>) {num(run.pretrain_kappa)} → {num(both[0])}, "
        f"κ(H<sub>H</sub>) {num(run.harmful_kappa)} → {num(both[1])}"
    )
    teaching_layout(figure, title, height=520)
    figure.update_xaxes(
        title_text="exponent s: θ = I at 0, θ = K<sub>P</sub><sup>−1/2</sup> at 1", range=[-0.03, 1.03]
    )
    ratios = [*run.ratios, run.ceiling, 1.0]
    tops = max(*run.pretrain_condition, *run.harmful_condition), max(ratios)
    bottoms = 1.0, min(ratios)
    for column, (bottom, top) in enumerate(zip(bottoms, tops, strict=True), 1):
        low, high = np.log10(bottom), np.log10(max(top, 10.0))
        room = 0.08 * (high - low)
        figure.update_yaxes(
            type="log", range=[low - room, high + room], dtick=1, tickfont_size=POWER_SIZE, col=column
        )
    figure.update_yaxes(title_text="κ", col=1)
    figure.update_yaxes(title_text="RIR", col=2)
    return figure
