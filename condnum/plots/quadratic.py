"""Figures of notebook 1: the zig-zag, a spectrum with its convergence, and where float64 ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.errors import UnknownNameError
from condnum.extras import require
from condnum.plots.style import log_axis, num
from condnum.plots.theme import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.quadratic import SpectrumDescent, Zigzag
from condnum.teaching.round_off import Plateau

#: Nothing below this is drawn; the axes stay where they are while a slider moves.
ZIGZAG_FLOOR, SPECTRUM_FLOOR = 1e-8, 1e-32
#: The plane is shown from −FLAT to FLAT and from −STEEP to STEEP; the path starts at distance 1.
FLAT, STEEP = 1.1, 0.72
#: Contour lines lie at these shares of the largest energy in sight.
_LEVELS = np.geomspace(1, 1e-4, 9)
#: Scales of the plane.
AxesScale = Literal["equal", "fit"]
AXES_SCALES: tuple[AxesScale, ...] = ("equal", "fit")
_CIRCLE = np.linspace(0, 2 * np.pi, 121)


def zigzag_figure(run: Zigzag, *, axes: AxesScale = "equal") -> Any:
    """Draw the path in the plane beside the two ratios and their bounds."""
    if axes not in AXES_SCALES:
        raise UnknownNameError("scale of the axes", axes, AXES_SCALES)
    subplots = require("plotly.subplots", "viz")
    titles = ("contours of L(w), path w<sub>0</sub> … w<sub>t</sub>", "distance to the optimum")
    figure = subplots.make_subplots(
        rows=1, cols=2, column_widths=[0.56, 0.44], horizontal_spacing=0.1, subplot_titles=titles
    )
    _add_plane(figure, run)
    _add_ratios(figure, run)
    rule = "exact line search" if run.rule == "exact" else "constant step 1/σ<sub>1</sub>"
    teaching_layout(figure, f"Gradient descent with {rule}, κ = {num(run.kappa)}, t = {run.step}", height=540)
    height, anchor = (STEEP, "x") if axes == "equal" else (1.25 * max(abs(run.path[0, 0]), 1e-3), False)
    plane = {"constrain": "domain", "col": 1}  # keeps the ranges whatever the shape of the window
    figure.update_xaxes(range=[-FLAT, FLAT], title_text="along the flat axis u<sub>2</sub>", **plane)
    figure.update_yaxes(
        range=[-height, height], scaleanchor=anchor, title_text="along the steep axis u<sub>1</sub>", **plane
    )
    figure.update_xaxes(title_text="step t", range=[0, len(run.path) - 1], col=2)
    floor = float(np.log10(ZIGZAG_FLOOR))
    figure.update_yaxes(type="log", dtick=1, range=[floor, 0.3], title_text="share of the start", col=2)
    figure.update_yaxes(tickfont_size=POWER_SIZE, col=2)
    return figure


def contours_figure(axes_ratio: float) -> Any:
    """Draw contour lines of a quadratic in the plane, to scale.

    Args:
        axes_ratio: Of the half-axes of each contour, long over short; √κ.

    Returns:
        A plotly figure.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    go = require("plotly.graph_objects", "viz")
    lines = [_ellipse(share**2, np.array([1.0, axes_ratio**-2])) for share in (0.25, 0.5, 0.75, 1.0)]
    figure = go.Figure()
    figure.add_scatter(
        **_closed(lines), mode="lines", line={"color": BLUE, "width": 2}, name="contours", showlegend=False
    )
    figure.add_scatter(
        x=[0.0], y=[0.0], mode="markers", name="w*", marker={"symbol": "star", "size": 12, "color": ORANGE},
        showlegend=False,
    )  # fmt: skip
    teaching_layout(figure, f"Contours of L(w), half-axes {num(axes_ratio)} : 1", height=340)
    figure.update_xaxes(title_text="along the flat axis u<sub>2</sub>", constrain="domain", dtick=1)
    figure.update_yaxes(title_text="along u<sub>1</sub>", scaleanchor="x", dtick=1)
    return figure.update_layout(margin_b=60)


def _add_plane(figure: Any, run: Zigzag) -> None:
    """Add the left panel; the flat axis lies horizontally."""
    sigma = np.array([1.0, 1 / run.kappa])
    corner = FLAT**2 * sigma[1] + STEEP**2  # energy in the corner of the panel
    lines = [_ellipse(level * corner, sigma) for level in _LEVELS]
    shown = run.path[: run.step + 1]
    through = _ellipse(float((shown[-1] ** 2) @ sigma), sigma)
    left: dict[str, Any] = {"row": 1, "col": 1, "showlegend": False}
    figure.add_scatter(
        **_closed(lines), mode="lines", line={"color": NEUTRAL, "width": 1}, opacity=0.6,
        hoverinfo="skip", name="contour lines", **left,
    )  # fmt: skip
    figure.add_scatter(
        **_closed([through]), mode="lines", line={"color": GREEN, "width": 2, "dash": "dot"},
        hoverinfo="skip", name="contour through w<sub>t</sub>", **(left | {"showlegend": True}),
    )  # fmt: skip
    figure.add_scatter(
        x=shown[:, 1], y=shown[:, 0], mode="lines+markers", name="iterates",
        line={"color": BLUE, "width": 2.5}, marker={"size": 8}, customdata=np.arange(len(shown)),
        hovertemplate="w<sub>%{customdata}</sub> = (%{x:.4g}, %{y:.4g})<extra></extra>", **left,
    )  # fmt: skip
    figure.add_scatter(
        x=[0.0], y=[0.0], mode="markers", name="w*", marker={"symbol": "star", "size": 15, "color": ORANGE},
        hovertemplate="the minimiser w*<extra></extra>", **(left | {"showlegend": True}),
    )  # fmt: skip


def _add_ratios(figure: Any, run: Zigzag) -> None:
    """Add the right panel: two measured ratios, two bounds, the shown step."""
    t = np.arange(len(run.path))
    right: dict[str, Any] = {"row": 1, "col": 2}
    lines = (
        ("norm bound, Eq. 2: (1 − 1/κ)<sup>t</sup>", run.norm_bound, BLUE, "dash", 2.0),
        ("energy bound: ((κ − 1)/(κ + 1))<sup>2t</sup>", run.energy_bound, ORANGE, "dash", 2.0),
        ("norm ratio ‖w<sub>t</sub> − w*‖²", run.norm_ratio, BLUE, "solid", 3.0),
        ("energy ratio (excess loss)", run.energy_ratio, ORANGE, "dot", 3.0),
    )
    for name, values, color, dash, width in lines:
        figure.add_scatter(
            x=t, y=_visible(values, ZIGZAG_FLOOR), mode="lines", name=name,
            line={"color": color, "dash": dash, "width": width},
            hovertemplate="t = %{x}: %{y:.3e}", **right,
        )  # fmt: skip
    here = np.array([run.norm_ratio[run.step], run.energy_ratio[run.step]])
    figure.add_scatter(
        x=[run.step] * 2, y=_visible(here, ZIGZAG_FLOOR), mode="markers", showlegend=False,
        name="shown step", marker={"size": [17, 9], "color": [BLUE, ORANGE]},
        hovertemplate="t = %{x}: %{y:.3e}", **right,
    )  # fmt: skip


def spectrum_descent_figure(run: SpectrumDescent) -> Any:
    """Draw a spectrum beside the convergence that it allows."""
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(
        rows=1, cols=2, column_widths=[0.36, 0.64], horizontal_spacing=0.1,
        subplot_titles=("spectrum of H", "exact line search"),
    )  # fmt: skip
    figure.add_scatter(
        x=np.arange(1, len(run.sigma) + 1), y=run.sigma, mode="markers", name="σ<sub>i</sub>",
        showlegend=False, marker={"color": GREEN, "size": 8},
        hovertemplate="σ<sub>%{x}</sub> = %{y:.3e}<extra></extra>", row=1, col=1,
    )  # fmt: skip
    t = run.curve.steps
    lines: tuple[tuple[str, Any, str, str, float], ...] = (
        ("norm bound, Eq. 2", run.norm_bound, BLUE, "dash", 2.0),
        ("energy bound (Kantorovich)", run.energy_bound, ORANGE, "dash", 2.0),
        ("norm ratio, Eq. 16", run.curve.norm_ratio, BLUE, "solid", 3.0),
        ("energy ratio (excess loss)", run.curve.excess_loss, ORANGE, "dot", 3.0),
        ("float64 round-off, (κ·eps)²", np.full(len(t), run.round_off), PURPLE, "longdash", 2.0),
    )
    for name, values, color, dash, width in lines:
        figure.add_scatter(
            x=t[1:], y=_visible(values[1:], SPECTRUM_FLOOR), mode="lines", name=name,
            line={"color": color, "dash": dash, "width": width},
            hovertemplate="t = %{x:,d}: %{y:.3e}", row=1, col=2,
        )  # fmt: skip
    title = f"Exact line search in D = {len(run.sigma)} dimensions, κ = {num(run.kappa)}"
    teaching_layout(figure, title, height=540)
    figure.update_xaxes(title_text="index i", col=1)
    figure.update_yaxes(type="log", range=[-6.3, 0.3], dtick=1, title_text="σ<sub>i</sub>", col=1)
    figure.update_xaxes(**log_axis("step t", t), col=2)
    floor = float(np.log10(SPECTRUM_FLOOR))
    figure.update_yaxes(type="log", range=[floor, 1], dtick=4, title_text="share of the start", col=2)
    figure.update_yaxes(tickfont_size=POWER_SIZE)
    figure.update_xaxes(tickfont_size=POWER_SIZE, selector={"type": "log"})
    return figure


def plateau_figure(runs: Sequence[Plateau]) -> Any:
    """Draw where exact line search stops improving, per κ and precision.

    Args:
        runs: Of `teaching.round_off.plateau`; one colour a κ, up to four.

    Returns:
        A plotly figure: a curve a run, and its level of round-off where the curve ends.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    go = require("plotly.graph_objects", "viz")
    figure = go.Figure()
    kappas = sorted({run.kappa for run in runs})
    colors = dict(zip(kappas, (BLUE, ORANGE, GREEN, PURPLE), strict=False))
    dashes = {"float64": "solid", "float32": "dot"}
    for run in runs:
        look = {"color": colors[run.kappa], "width": 2.5}
        figure.add_scatter(
            x=run.steps[1:], y=run.norm_ratio[1:], mode="lines",
            name=f"κ = {num(run.kappa)}, {run.precision}",
            line=look | {"dash": dashes[run.precision]}, hovertemplate="t = %{x:,d}: %{y:.2e}",
        )  # fmt: skip
        figure.add_scatter(
            x=run.steps[-1:], y=[run.round_off], mode="markers", showlegend=False, name="(κ·eps)²",
            marker={"symbol": "diamond", "size": 12, "color": look["color"]},
            hovertemplate=f"(κ·eps)² = %{{y:.2e}}, κ = {num(run.kappa)}, {run.precision}<extra></extra>",
        )  # fmt: skip
    note = "Diamonds: (κ·eps)², the square of the relative error that rounding H and b alone can cause in w"
    teaching_layout(figure, "Where the arithmetic ends", note)
    steps = np.concatenate([run.steps for run in runs])
    figure.update_xaxes(**log_axis("step t of exact line search", steps))
    figure.update_yaxes(**log_axis("norm ratio", np.concatenate([run.norm_ratio for run in runs])))
    figure.update_yaxes(tickfont_size=POWER_SIZE)
    figure.update_xaxes(tickfont_size=POWER_SIZE, selector={"type": "log"})
    return figure


def _ellipse(energy: float, sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the contour line `eᵀHe = energy`, `(n, 2)`: steep, flat."""
    radii = np.sqrt(energy / sigma)
    return np.stack([radii[0] * np.sin(_CIRCLE), radii[1] * np.cos(_CIRCLE)], axis=1)


def _closed(lines: Sequence[NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Join closed lines into the coordinates of one trace, with gaps between them."""
    gap = np.full((1, 2), np.nan)
    joined = np.concatenate([part for line in lines for part in (line, gap)])
    return {"x": joined[:, 1], "y": joined[:, 0]}


def _visible(values: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Leave out what no logarithmic axis can show: zero, and what lies far below the frame."""
    return np.where(values > floor * 1e-3, values, np.nan)
