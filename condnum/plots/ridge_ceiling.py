"""Figures of notebook 4: ceilings against ε, and attackers whom the ceiling does not bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.style import num
from condnum.plots.theme import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.ridge_ceiling import RIDGES, RidgeCeiling
from condnum.teaching.whitening import ATTACK_STEPS, Attack

#: Decades of RIR in sight.
_RIR_DECADES = (-1.0, 8.0)
#: Share of the excess loss at which a curve ends.
_LEAST_LOSS = 1e-12
_NULL_TITLES = {
    "none": "no null space",
    "both": "one feature dead in both tasks",
    "harmful": "one feature dead in D<sub>H</sub> alone",
    "pretrain": "one feature dead in D<sub>P</sub> alone",
}


def ridge_ceiling_figure(demo: RidgeCeiling) -> Any:
    """Draw what ε does to the ceiling."""
    go = require("plotly.graph_objects", "viz")
    figure = go.Figure()
    finite = math.isfinite(demo.compact)
    level = np.full(2, demo.compact if finite else np.nan)
    lines: tuple[tuple[str, Any, Any, str, str], ...] = (
        ("compact ceiling", RIDGES[[0, -1]], level, ORANGE, "solid"),
        ("ceiling of K + εI", demo.ridges, demo.of_data, PURPLE, "dash"),
        ("bound on RIR<sub>ε</sub>", demo.ridges, demo.of_measure, GREEN, "longdash"),
        ("RIR<sub>ε</sub> of θ*", demo.ridges, demo.attained, BLUE, "solid"),
    )
    for name, x, y, color, dash in lines:
        figure.add_scatter(
            x=x, y=y, mode="lines", name=name, line={"color": color, "dash": dash, "width": 3},
            hovertemplate="ε = %{x:.3g}: %{y:.4g}",
        )  # fmt: skip
    figure.add_scatter(
        x=[demo.ridge] * 2, y=[10.0 ** _RIR_DECADES[0], demo.at_ridge.rir], mode="lines+markers",
        name="chosen ε", line={"color": NEUTRAL, "width": 2, "dash": "dot"},
        marker={"size": [0, 13], "color": BLUE, "opacity": 1},
        hovertemplate="ε = %{x:.3g}: RIR<sub>ε</sub>(θ*) = %{y:.4g}<extra></extra>",
    )  # fmt: skip
    compact = num(demo.compact, 4) if finite else "infinite"
    teaching_layout(figure, f"Ceilings with {_NULL_TITLES[demo.null]}: compact {compact}", height=520)
    figure.update_xaxes(type="log", range=[-8, 1], dtick=1, title_text="ridge ε (largest eigenvalues are 1)")
    figure.update_yaxes(type="log", range=_RIR_DECADES, dtick=1, title_text="RIR")
    figure.update_xaxes(tickfont_size=POWER_SIZE)
    figure.update_yaxes(tickfont_size=POWER_SIZE)
    return figure


def attacks_figure(runs: Sequence[Attack]) -> Any:
    """Draw the excess loss of an attacker through several extractors.

    Args:
        runs: Of `teaching.whitening.attacks`, up to four.

    Returns:
        A plotly figure: a curve each; the marker is the first step.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    go = require("plotly.graph_objects", "viz")
    figure = go.Figure()
    looks = ((NEUTRAL, "solid"), (ORANGE, "solid"), (PURPLE, "dash"), (BLUE, "dot"))
    for run, (color, dash) in zip(runs, looks, strict=False):
        share = np.maximum(run.curve.excess_loss, _LEAST_LOSS)
        kept = int(np.argmax(share <= _LEAST_LOSS)) or len(share) - 1
        t = run.curve.steps[1 : kept + 1]
        figure.add_scatter(
            x=t, y=share[1 : kept + 1], mode="lines+markers" if len(t) < 5 else "lines",
            name=f"{run.name} (κ = {num(run.kappa)})", line={"color": color, "dash": dash, "width": 3},
            marker={"size": 13}, hovertemplate="t = %{x:,d}: %{y:.2e}",
        )  # fmt: skip
    note = "Share of the excess loss that is left after t steps; curves end at 10<sup>−12</sup>"
    teaching_layout(figure, "An attacker on the harmful task", note)
    figure.update_xaxes(
        type="log", range=[-0.05, math.log10(ATTACK_STEPS)], dtick=1, title_text="step t of exact line search"
    )
    figure.update_yaxes(
        type="log", range=[math.log10(_LEAST_LOSS) - 0.5, 0.3], dtick=2, title_text="excess loss"
    )
    figure.update_xaxes(tickfont_size=POWER_SIZE)
    figure.update_yaxes(tickfont_size=POWER_SIZE)
    return figure
