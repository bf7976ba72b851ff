"""Figures of notebook 3: many steps of a regularizer, R_ill against κ, and both terms of Algorithm 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from condnum.extras import require
from condnum.plots.style import num
from condnum.plots.theme import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.joint_steps import JointSteps
from condnum.teaching.regularizer_paths import RegularizerPath, ValuePlane

#: Values of a spectrum that get a line of their own; the explorer's dimension ends there.
MOST_LINES = 8

_NAMES = {"well": "R<sub>well</sub>", "ill": "R<sub>ill</sub>"}


def regularizer_path_figure(run: RegularizerPath) -> Any:
    """Draw a spectrum under many steps, beside κ and the regularizer's value."""
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(
        rows=1, cols=2, horizontal_spacing=0.1,
        subplot_titles=("spectrum of H(θ<sub>t</sub>)", "κ and the regularizer"),
    )  # fmt: skip
    t = np.arange(len(run.sigma))
    k = run.sigma.shape[1]
    lines = [(f"σ<sub>{i + 1}</sub>", run.sigma[:, i], NEUTRAL, 2.0) for i in range(1, k - 1)]
    lines += [("", np.full(len(t), np.nan), NEUTRAL, 2.0)] * (MOST_LINES - 2 - len(lines))
    ends = (("σ<sub>1</sub>", run.sigma[:, 0], BLUE, 3.5), ("σ<sub>k</sub>", run.sigma[:, -1], ORANGE, 3.5))
    for number, (name, values, color, width) in enumerate((*lines, *ends)):
        figure.add_scatter(
            x=t, y=values, mode="lines", name=name if color != NEUTRAL else f"between {number + 2}",
            line={"color": color, "width": width}, showlegend=color != NEUTRAL,
            hovertemplate=f"t = %{{x}}: {name} = %{{y:.4g}}<extra></extra>", row=1, col=1,
        )  # fmt: skip
    right: dict[str, Any] = {"row": 1, "col": 2}
    figure.add_scatter(
        x=t, y=run.kappa, mode="lines", name="κ(H(θ<sub>t</sub>))", line={"color": GREEN, "width": 3.5},
        hovertemplate="t = %{x}: κ = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    wrong = np.flatnonzero(run.wrong_way) + 1
    figure.add_scatter(
        x=wrong, y=run.kappa[wrong], mode="markers", name="κ went the wrong way",
        marker={"symbol": "x", "size": 8, "color": ORANGE},
        hovertemplate="t = %{x}: κ = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    share = run.value / run.value[0]
    figure.add_scatter(
        x=t, y=np.where(share > 0, share, np.nan), mode="lines",
        name=f"{_NAMES[run.regularizer]} over its start",
        line={"color": PURPLE, "width": 2.5, "dash": "dash"},
        hovertemplate="t = %{x}: %{y:.4g} of the start<extra></extra>", **right,
    )  # fmt: skip
    last = len(t) - 1
    rule = "within the bound" if run.sizes == "bound" else "of constant size"
    kappas = f"κ = {num(run.kappa[0], 4)} → {num(run.kappa[-1], 4)}"
    title = f"{last} steps of {_NAMES[run.regularizer]} {rule}: {kappas}"
    teaching_layout(figure, title, height=540)
    figure.update_xaxes(title_text="step t", range=[0, max(last, 10)])
    figure.update_yaxes(
        title_text="σ<sub>i</sub>", **_log_axis(run.sigma), row=1, col=1
    )  # fmt: skip
    figure.update_yaxes(
        title_text="κ; share of R at the start", **_log_axis(np.concatenate([run.kappa, share])), **right
    )  # fmt: skip
    return figure


def value_plane_figure(plane: ValuePlane) -> Any:
    """Draw three families of spectra in the plane of κ and R_ill.

    Args:
        plane: Of `teaching.regularizer_paths.value_plane`.

    Returns:
        A plotly figure: three curves from one point.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    go = require("plotly.graph_objects", "viz")
    figure = go.Figure()
    looks = {
        "vanishing": ("(1, ½, σ), σ → 0", ORANGE, "solid"),
        "scaled": ("c · (1, ½, 0.1), c → ∞", BLUE, "dash"),
        "descended": ("steps of R<sub>ill</sub> of constant size", GREEN, "dot"),
    }
    for family, (kappa, value) in plane.curves.items():
        name, color, dash = looks[family]
        figure.add_scatter(
            x=kappa, y=value, mode="lines", name=name, line={"color": color, "width": 4, "dash": dash},
            hovertemplate="κ = %{x:.4g}, R = %{y:.4g}",
        )  # fmt: skip
    kappa, value = plane.curves["scaled"]
    figure.add_scatter(
        x=kappa[:1], y=value[:1], mode="markers", name="(1, ½, 0.1)",
        marker={"symbol": "star", "size": 17, "color": PURPLE}, hovertemplate="κ = %{x:.4g}, R = %{y:.4g}",
    )  # fmt: skip
    note = "Orange: κ → ∞ and R<sub>ill</sub> stays at 4.8. Blue: R<sub>ill</sub> → 0 and κ stays at 10."
    teaching_layout(figure, "R<sub>ill</sub> does not know κ", note)
    powers = {"type": "log", "dtick": 1, "exponentformat": "power", "tickfont_size": POWER_SIZE}
    figure.update_xaxes(title_text="κ(S)", range=[0.5, 6.1], **powers)
    figure.update_yaxes(title_text="R<sub>ill</sub>(S)", range=[-5.6, 1.3], **powers)
    return figure


def joint_steps_figure(run: JointSteps) -> Any:
    """Draw both κ's under both terms, beside the plane of Definition 3.1."""
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(
        rows=1, cols=2, column_widths=[0.56, 0.44], horizontal_spacing=0.1,
        subplot_titles=("condition numbers along the run", "immunized? Definition 3.1"),
    )  # fmt: skip
    t = np.arange(len(run.kappa_pretrain))
    lines = (
        ("κ(H<sub>P</sub>)", run.kappa_pretrain, BLUE, "solid", 3.5),
        ("R<sub>well</sub> alone", run.well_alone, BLUE, "dot", 2.0),
        ("κ(H<sub>H</sub>)", run.kappa_harmful, ORANGE, "solid", 3.5),
        ("R<sub>ill</sub> alone", run.ill_alone, ORANGE, "dot", 2.0),
    )
    for name, values, color, dash, width in lines:
        figure.add_scatter(
            x=t, y=values, mode="lines", name=name, line={"color": color, "dash": dash, "width": width},
            hovertemplate="t = %{x}: κ = %{y:.4g}", row=1, col=1,
        )  # fmt: skip
    rises, falls = (np.flatnonzero(steps) + 1 for steps in (run.pretrain_rises, run.harmful_falls))
    figure.add_scatter(
        x=np.concatenate([rises, falls]),
        y=np.concatenate([run.kappa_pretrain[rises], run.kappa_harmful[falls]]), mode="markers",
        name="wrong way, within both bounds", marker={"symbol": "x", "size": 8, "color": PURPLE},
        hovertemplate="t = %{x}: κ = %{y:.4g}<extra></extra>", row=1, col=1,
    )  # fmt: skip
    _add_verdict(figure, run)
    rir = run.ratio_harmful[-1] / run.ratio_pretrain[-1]
    title = f"Algorithm 1 with both terms, t = {len(t) - 1}: RIR = {num(rir)} of at most {num(run.rir_max)}"
    teaching_layout(figure, title, height=540)
    top = max(3.0, math.log10(max(line[1].max() for line in lines)) + 0.2)
    powers = {"type": "log", "dtick": 1, "exponentformat": "power", "tickfont_size": POWER_SIZE}
    figure.update_xaxes(title_text="step t", range=[0, max(10, len(t) - 1)], row=1, col=1)
    figure.update_yaxes(title_text="κ", range=[-0.1, top], **powers, row=1, col=1)
    return figure


def _add_verdict(figure: Any, run: JointSteps) -> None:
    """Add the plane of (ii) and (i), the panel on the right."""
    right: dict[str, Any] = {"row": 1, "col": 2, "showlegend": False}
    x, y = run.ratio_pretrain, run.ratio_harmful
    low, high = math.log10(min(x.min(), y.min(), 0.05)) - 0.2, math.log10(max(x.max(), y.max(), 100)) + 0.2
    least, most = 10**low, 10**high
    figure.add_scatter(
        x=[least, 1, 1, least], y=[1, 1, most, most], mode="lines", fill="toself", line={"width": 0},
        fillcolor="rgba(0, 158, 115, 0.18)", hoverinfo="skip", name="(i) > 1 and (ii) ≤ 1", **right,
    )  # fmt: skip
    figure.add_scatter(
        x=[least, most], y=[run.rir_max * least, run.rir_max * most], mode="lines",
        line={"color": NEUTRAL, "width": 2, "dash": "dash"}, name="RIR<sub>max</sub>",
        hovertemplate="(i)/(ii) = RIR<sub>max</sub><extra></extra>", **(right | {"showlegend": True}),
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=y, mode="lines+markers", name="path", line={"color": GREEN, "width": 2}, marker={"size": 5},
        customdata=np.arange(len(x)),
        hovertemplate="t = %{customdata}: (ii) = %{x:.3g}, (i) = %{y:.3g}<extra></extra>",
        **right,
    )  # fmt: skip
    figure.add_scatter(
        x=[x[0], x[-1]], y=[y[0], y[-1]], mode="markers", name="first and last",
        marker={"symbol": ["circle-open", "star"], "size": [13, 17], "color": GREEN, "line": {"width": 2}},
        hovertemplate="(ii) = %{x:.3g}, (i) = %{y:.3g}<extra></extra>", **right,
    )  # fmt: skip
    powers = {"type": "log", "range": [low, high], "exponentformat": "power", "tickfont_size": POWER_SIZE}
    figure.update_xaxes(
        title_text="(ii) κ(H<sub>P</sub>)/κ(K<sub>P</sub>), ≤ 1 wanted", dtick=1, **powers, row=1, col=2
    )
    figure.update_yaxes(
        title_text="(i) κ(H<sub>H</sub>)/κ(K<sub>H</sub>), > 1 wanted", dtick=1, **powers, row=1, col=2
    )


def _log_axis(values: Any) -> dict[str, Any]:
    """Return a logarithmic axis that holds all positive values, with a readable number of ticks."""
    positive = np.asarray(values)[np.asarray(values) > 0]
    low, high = max(math.log10(positive.min()), -16.0) - 0.2, math.log10(positive.max()) + 0.2
    ticks: Any = "D2" if high - low < 2 else 1 if high - low < 7 else 4
    return {
        "type": "log", "range": [low, high], "dtick": ticks, "exponentformat": "power",
        "tickfont_size": POWER_SIZE,
    }  # fmt: skip
