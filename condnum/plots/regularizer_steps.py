"""Figure of notebook 3: one step of a regularizer, and the curve κ(η) with both bounds of Theorem 4.3."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.errors import UnknownNameError
from condnum.extras import require
from condnum.plots.style import num
from condnum.plots.theme import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, teaching_layout
from condnum.teaching.regularizers import STEP_RANGE, RegularizerStep

#: Scales of the curve κ(η).
KappaScale = Literal["decades", "near"]
KAPPA_SCALES: tuple[KappaScale, ...] = ("decades", "near")
#: Decades of κ shown above the start, and the window about it in the scale `near`.
DECADES, NEAR = {"well": 2.0, "ill": 4.0}, (0.8, 1.3)

_NAMES = {"well": "R<sub>well</sub>", "ill": "R<sub>ill</sub>"}
_BAND = "rgba(46, 134, 200, 0.16)"


def regularizer_step_figure(run: RegularizerStep, *, scale: KappaScale = "decades") -> Any:
    """Draw the gradient, the spectrum before and after a step, and κ after a step of any size.

    Args:
        run: Of `teaching.regularizers.regularizer_step`.
        scale: Of κ: `decades`, or `near`: a linear window about κ before the step.

    Returns:
        A plotly figure: spectrum before and after; gradient; κ(η) where Theorem 4.3 keeps its word and where
        it does not, κ before, both bounds, the chosen step.

    Raises:
        UnknownNameError: No such scale.
        MissingExtraError: Plotly is missing.
    """
    if scale not in KAPPA_SCALES:
        raise UnknownNameError("scale of κ", scale, KAPPA_SCALES)
    subplots = require("plotly.subplots", "viz")
    figure = subplots.make_subplots(
        rows=2, cols=2, column_widths=[0.4, 0.6], row_heights=[0.66, 0.34], horizontal_spacing=0.1,
        vertical_spacing=0.17, specs=[[{}, {"rowspan": 2}], [{}, None]],
        subplot_titles=("spectrum: ○ before, ◆ after the step", "κ after a step of size η",
                        "gradient g<sub>i</sub>"),
    )  # fmt: skip
    _add_spectrum(figure, run)
    _add_curve(figure, run, scale)
    after = num(run.next_kappa, 4)
    title = f"One step of {_NAMES[run.regularizer]}: η = {num(run.eta)}, κ = {num(run.kappa, 4)} → {after}"
    teaching_layout(figure, title, height=580)
    return figure


def _add_spectrum(figure: Any, run: RegularizerStep) -> None:
    """Add spectrum and gradient, the two panels on the left."""
    index = np.arange(1, len(run.sigma) + 1)
    low = math.log10(run.sigma[-1]) - 1.0
    high = max(math.log10(run.sigma[0]) + 1.0, math.ceil(math.log10(run.next_sigma.max())) + 0.1)
    before, after = run.sigma, _inside(run.next_sigma, low, high)
    top: dict[str, Any] = {"row": 1, "col": 1, "showlegend": False}
    gaps = np.full(len(index), np.nan)
    figure.add_scatter(
        x=np.stack([index, index, gaps], axis=1).ravel(), y=np.stack([before, after, gaps], axis=1).ravel(),
        mode="lines", line={"color": NEUTRAL, "width": 1.5}, hoverinfo="skip", name="moves", **top,
    )  # fmt: skip
    figure.add_scatter(
        x=index, y=before, mode="markers", name="before",
        marker={"symbol": "circle-open", "color": GREEN, "size": 11, "line": {"width": 2}},
        hovertemplate="σ<sub>%{x}</sub> = %{y:.4g}<extra>before</extra>", **top,
    )  # fmt: skip
    figure.add_scatter(
        x=index, y=after, mode="markers", name="after", customdata=run.next_sigma,
        marker={"symbol": "diamond", "color": PURPLE, "size": 9},
        hovertemplate="σ<sub>%{x}</sub>′ = %{customdata:.4g}<extra>after</extra>", **top,
    )  # fmt: skip
    figure.add_bar(
        x=index, y=run.gradient / np.abs(run.gradient).max(), marker={"color": PURPLE, "line": {"width": 0}},
        name="g<sub>i</sub>", customdata=run.gradient, showlegend=False,
        hovertemplate="g<sub>%{x}</sub> = %{customdata:.4g}<extra></extra>", row=2, col=1,
    )  # fmt: skip
    span = [0.4, len(index) + 0.6]
    every = 1 if len(index) <= 10 else 10
    figure.update_xaxes(range=span, dtick=every, showticklabels=False, row=1, col=1)
    figure.update_xaxes(range=span, dtick=every, title_text="index i", row=2, col=1)
    figure.update_yaxes(
        type="log", range=[low, high], dtick=1 if high - low < 5 else 2, title_text="σ<sub>i</sub>",
        tickfont_size=POWER_SIZE, row=1, col=1,
    )  # fmt: skip
    figure.update_yaxes(range=[-1.1, 1.1], dtick=1, title_text="over max |g|", row=2, col=1)


def _add_curve(figure: Any, run: RegularizerStep, scale: KappaScale) -> None:
    """Add κ(η), the panel on the right; η is in units of η₀."""
    if scale == "decades":
        window = (1.0, run.kappa * 10 ** DECADES[run.regularizer])
        axis: dict[str, Any] = {"type": "log", "range": [-0.05, math.log10(window[1])], "dtick": 1}
    else:
        window = (NEAR[0] * run.kappa, NEAR[1] * run.kappa)
        axis = {"type": "linear", "range": list(window), "dtick": _tick((window[1] - window[0]) / 8)}
    right: dict[str, Any] = {"row": 1, "col": 2}
    printed, corrected = run.printed / run.unit, run.corrected / run.unit
    least, most = STEP_RANGE
    floor = 0.5 if scale == "decades" else window[0]
    edge = min(max(corrected, least), most)
    figure.add_scatter(
        x=[least, edge, edge, least], y=[floor, floor, window[1], window[1]], mode="lines", fill="toself",
        fillcolor=_BAND, line={"width": 0}, hoverinfo="skip", name="below the corrected bound",
        showlegend=False, **right,
    )  # fmt: skip
    figure.add_scatter(
        x=[least, most], y=[run.kappa] * 2, mode="lines", name="κ before", hoverinfo="skip",
        line={"color": NEUTRAL, "width": 2, "dash": "dot"}, **right,
    )  # fmt: skip
    shown = np.where(np.isfinite(run.curve), np.minimum(run.curve, 10 * window[1]), 10 * window[1])
    verb = "falls" if run.regularizer == "well" else "rises"
    for name, mask, color, dash in (
        (f"κ {verb}, as promised", run.promised, GREEN, "solid"),
        ("κ goes the wrong way", ~run.promised, ORANGE, "solid"),
    ):
        figure.add_scatter(
            x=run.curve_steps, y=np.where(_widened(mask), shown, np.nan), mode="lines", name=name,
            line={"color": color, "width": 3.5, "dash": dash}, hovertemplate="η = %{x:.3g} η₀: κ = %{y:.4g}",
            **right,
        )  # fmt: skip
    for name, place, color, dash in (
        ("printed bound", printed, ORANGE, "dash"),
        ("corrected bound", corrected, BLUE, "solid"),
    ):
        there = [place] * 2 if least <= place <= most else [np.nan] * 2
        figure.add_scatter(
            x=there, y=[floor, window[1]], mode="lines", name=name,
            line={"color": color, "width": 2.5, "dash": dash}, hovertemplate=f"{name}: %{{x:.3g}} η₀",
            **right,
        )  # fmt: skip
    beyond = "triangle-up" if run.next_kappa > window[1] else "triangle-down"
    inside = window[0] <= run.next_kappa <= window[1]
    edge_share = 0.8 if scale == "decades" else 0.99
    height = run.next_kappa if inside else min(run.next_kappa, window[1] * edge_share)
    figure.add_scatter(
        x=[run.step], y=[max(height, window[0])], mode="markers", name="this step", showlegend=False,
        marker={"symbol": "diamond" if inside else beyond, "size": 15, "color": PURPLE},
        hovertemplate="η = %{x:.3g} η₀<extra></extra>",
        **right,
    )  # fmt: skip
    unit = "1/(2(1 − 1/D)σ<sub>1</sub>)" if run.regularizer == "well" else "ρ²/(2(1 − 1/k)σ<sub>k</sub>)"
    figure.update_xaxes(
        type="log", range=[math.log10(least), math.log10(most)], tickvals=[0.03, 0.1, 0.3, 1, 3, 10, 30],
        title_text=f"η / η<sub>0</sub>, η<sub>0</sub> = {unit} = {num(run.unit)}", **right,
    )  # fmt: skip
    figure.update_yaxes(title_text="κ(H(θ′))", tickfont_size=POWER_SIZE, **axis, **right)


def _tick(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, … (times a power of ten) that is not below a distance."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _inside(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Put values beyond a panel (a zero, say) on its edge."""
    return np.clip(values, 10.0 ** (low + 0.04), 10.0 ** (high - 0.04))


def _widened(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Add one point on the right of each run, so that two complementary lines meet."""
    return mask | np.concatenate([[False], mask[:-1]])
