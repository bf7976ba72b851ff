"""Figure of notebook 4: the (ii)/(i) plane with its ceiling, and RIR along Algorithm 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.region import add_region
from condnum.plots.style import num
from condnum.plots.theme import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.ceiling import PATH_STEPS, CeilingDemo

#: Decades of (ii) and (i) in sight; they do not move with the sliders, κ up to 100 fits.
PRETRAIN_DECADES, HARMFUL_DECADES, RIR_DECADES = (-2.3, 2.3), (-2.3, 4.3), (-1.0, 4.3)


def ceiling_plane_figure(demo: CeilingDemo) -> Any:
    """Draw what is possible in the (ii)/(i) plane, and how far Algorithm 1 gets."""
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(
        rows=1, cols=2, column_widths=[0.6, 0.4], horizontal_spacing=0.11,
        subplot_titles=("the two ratios of Eq. 15", "RIR = (i)/(ii) along Algorithm 1"),
    )  # fmt: skip
    add_region(figure, demo.plane, row=1, col=1)
    _add_extractors(figure, demo)
    _add_rir(figure, demo)
    value = demo.plane.ceiling.value
    ceiling = f"RIR<sub>max</sub> = {num(value, 4)}" if math.isfinite(value) else "RIR has no ceiling"
    teaching_layout(figure, f"How much immunization is possible: {ceiling}", height=530)
    figure.update_layout(margin_b=140)
    log: dict[str, Any] = {"type": "log", "dtick": 1, "tickfont_size": POWER_SIZE}
    figure.update_xaxes(
        range=PRETRAIN_DECADES, title_text="(ii) = κ(H<sub>P</sub>(θ)) / κ(H<sub>P</sub>(I))", col=1, **log
    )
    figure.update_yaxes(
        range=HARMFUL_DECADES, title_text="(i) = κ(H<sub>H</sub>(θ)) / κ(H<sub>H</sub>(I))", col=1, **log
    )
    figure.update_xaxes(range=[0, PATH_STEPS], title_text="step t", col=2)
    figure.update_yaxes(range=RIR_DECADES, title_text="RIR", col=2, **log)
    return figure


def _add_extractors(figure: Any, demo: CeilingDemo) -> None:
    """Add points of the plane: random ones, the family, the path, I, θ* and the shown step."""
    plane, left = demo.plane, {"row": 1, "col": 1}
    pair = "(ii) = %{x:.4g}, (i) = %{y:.4g}"
    figure.add_scatter(
        x=plane.cloud[:, 0], y=plane.cloud[:, 1], mode="markers", name=f"{len(plane.cloud)} random θ",
        marker={"size": 5, "color": PURPLE, "opacity": 0.75}, hovertemplate=pair, **left,
    )  # fmt: skip
    figure.add_scatter(
        x=plane.family[:, 0], y=plane.family[:, 1], mode="lines",
        name="K<sub>P</sub><sup>−s/2</sup>, from I to θ*",
        line={"color": GREEN, "width": 3, "dash": "dash"}, hovertemplate=pair, **left,
    )  # fmt: skip
    figure.add_scatter(
        x=demo.path[:, 0], y=demo.path[:, 1], mode="lines", name="Algorithm 1",
        line={"color": BLUE, "width": 3},
        customdata=np.arange(len(demo.path)), hovertemplate="t = %{customdata}: " + pair, **left,
    )  # fmt: skip
    marks = (
        ("θ = I", [1.0], [1.0], "x", 11, NEUTRAL),
        ("θ* = K<sub>P</sub><sup>−1/2</sup>", plane.optimum[:1], plane.optimum[1:], "star", 17, ORANGE),
        ("shown step", *demo.path[demo.shown, :, None], "circle", 13, BLUE),
    )
    for name, x, y, symbol, size, color in marks:
        figure.add_scatter(
            x=x, y=y, mode="markers", name=name, showlegend=symbol != "circle",
            marker={"symbol": symbol, "size": size, "color": color}, hovertemplate=pair, **left,
        )  # fmt: skip


def _add_rir(figure: Any, demo: CeilingDemo) -> None:
    """Add the right panel: RIR of each step, the ceiling and the shown step."""
    right: dict[str, Any] = {"row": 1, "col": 2, "showlegend": False}
    value = demo.plane.ceiling.value
    figure.add_scatter(
        x=[0, PATH_STEPS], y=[value if math.isfinite(value) else np.nan] * 2, mode="lines",
        name="RIR<sub>max</sub>", line={"color": ORANGE, "width": 3.5},
        hovertemplate="ceiling %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    figure.add_scatter(
        x=np.arange(len(demo.rir)), y=demo.rir, mode="lines", name="RIR of Algorithm 1",
        line={"color": BLUE, "width": 3}, hovertemplate="t = %{x}: RIR = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    figure.add_scatter(
        x=[demo.shown], y=[demo.rir[demo.shown]], mode="markers", name="RIR at the shown step",
        marker={"size": 13, "color": BLUE}, hovertemplate="t = %{x}: RIR = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
