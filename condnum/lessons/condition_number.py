r"""Notebook 1: gradient descent on a quadratic, and what the condition number does to it.

All of it is about :math:`L(w) = \tfrac12 (w - w^*)^\top H (w - w^*)` with
:math:`\sigma_1 \ge \dots \ge \sigma_D > 0` the spectrum of `H`, :math:`\kappa = \sigma_1/\sigma_D`
(Eq. 1) and the error :math:`e_t = w_t - w^*`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, require
from condnum.figures.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    PURPLE,
    add_line,
    empty,
    log_axis,
    num,
    panels,
    teaching_layout,
)
from condnum.lessons.explorer import Angle, Between, Choice, Explorer, LogSlider, Slider, Stepper, checked
from condnum.probing import ProbeCurve, linear_probe
from condnum.probing.line_search import log_spaced_steps

StepRule = Literal["exact", "constant"]
SpectrumShape = Literal["geometric", "linear", "clusters", "outlier"]
StartKind = Literal["worst", "random"]
Precision = Literal["float32", "float64"]
#: Scales of the plane.
AxesScale = Literal["equal", "fit"]

SHAPE_LABELS = {"clusters": "two clusters", "outlier": "one small outlier"}

#: Steps that the 2-D and the D-dimensional figure follow.
ZIGZAG_STEPS, SPECTRUM_STEPS = 40, 1000


#: σ₁/σ_D.
Kappa = Annotated[float, Between(1, 1e300)]


@checked
def norm_bound(kappa: Kappa, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""Right-hand side of Eq. 2, :math:`(1 - 1/\kappa)^t`, for :math:`\|e_t\|^2/\|e_0\|^2`.

    It holds for the constant step :math:`1/\sigma_1`, and for exact line search as well:
    :math:`\alpha\,g^\top g \le e^\top He` (Cauchy–Schwarz) gives
    :math:`\|e_+\|^2 \le \|e\|^2 - \alpha\, e^\top He \le (1 - 1/\kappa)\|e\|^2`.

    Examples:
        >>> norm_bound(2.0, np.arange(3)).tolist()
        [1.0, 0.5, 0.25]
    """
    return np.asarray((1 - 1 / kappa) ** steps, dtype=np.float64)


@checked
def kantorovich_bound(kappa: Kappa, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    r"""Kantorovich's bound :math:`((\kappa-1)/(\kappa+1))^{2t}` for :math:`e_t^\top He_t/e_0^\top He_0`.

    The energy :math:`e^\top He` is twice the excess loss. Exact line search attains the bound.

    Examples:
        >>> kantorovich_bound(3.0, np.arange(3)).tolist()
        [1.0, 0.25, 0.0625]
    """
    return np.asarray(((kappa - 1) / (kappa + 1)) ** (2 * steps), dtype=np.float64)


@dataclass(frozen=True)
class Zigzag:
    """Gradient descent in the plane, with the two bounds."""

    kappa: float  # κ = σ₁/σ₂, with σ₁ = 1
    angle: float  # degrees between the first gradient and the steep axis
    rule: StepRule
    step: int  # the step that the reader looks at
    path: NDArray[np.float64]  # (T + 1, 2) w_t − w* in the eigenbasis: steep, flat; ‖w_0 − w*‖ = 1
    norm_ratio: NDArray[np.float64]  # (T + 1,) Eq. 16
    energy_ratio: NDArray[np.float64]  # (T + 1,) excess loss over that at the start
    norm_bound: NDArray[np.float64]  # (T + 1,) Eq. 2
    energy_bound: NDArray[np.float64]  # (T + 1,) Kantorovich

    @property
    def contraction(self) -> float:
        """Energy after the first step over that before it; 0 when one step arrives."""
        return float(self.energy_ratio[1])


@checked
def zigzag(
    *,
    kappa: Annotated[float, Between(1, 1000)] = 10.0,
    angle: Angle = 45.0,
    rule: StepRule = "exact",
    step: Annotated[int, Between(0, ZIGZAG_STEPS)] = 5,
    steps: int = ZIGZAG_STEPS,
) -> Zigzag:
    r"""Run gradient descent on the quadratic with `H = diag(1, 1/κ)` in the plane.

    The start is given by the direction of its gradient, :math:`He_0 \propto (\cos φ, \sin φ)`. Exact line
    search, :math:`α = g^\top g / g^\top Hg`, then contracts the energy in *every* step by
    :math:`(κ-1)^2 / ((κ + \tan^2φ)(κ + \cot^2φ))`: 0 at φ = 0° and 90°, and Kantorovich's
    :math:`((κ-1)/(κ+1))^2` at 45°.

    Args:
        kappa: κ, from 1 to 1,000.
        angle: φ in degrees, from 0 to 90.
        rule: `exact` line search, or `constant`: α = 1/σ₁, the step of Eq. 2.
        step: The step to mark; the last one if there are fewer.
        steps: Steps to run.

    Returns:
        Path, ratios and bounds, from step 0.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such rule.

    Examples:
        >>> run = zigzag(kappa=3.0, angle=45.0, steps=5)
        >>> np.round(run.energy_ratio[:3], 12).tolist()
        [1.0, 0.25, 0.0625]
    """
    sigma = np.array([1.0, 1 / kappa])
    phi = np.deg2rad(angle)
    gradient = np.array([np.cos(phi), np.sin(phi)])
    gradient[np.abs(gradient) < np.finfo(np.float64).eps] = 0  # cos 90° is 6e-17
    path = np.empty((steps + 1, 2))
    path[0] = gradient / sigma
    path[0] /= np.linalg.norm(path[0])
    for row in range(steps):
        g = sigma * path[row]
        curvature = g @ (sigma * g)
        alpha = 1.0 if rule == "constant" or curvature == 0 else (g @ g) / curvature
        path[row + 1] = (1 - alpha * sigma) * path[row]
    t = np.arange(steps + 1)
    energy = (path**2) @ sigma
    return Zigzag(
        kappa, angle, rule, min(step, steps), path,
        norm_ratio=(path**2).sum(axis=1),
        energy_ratio=energy / energy[0],
        norm_bound=norm_bound(kappa, t),
        energy_bound=kantorovich_bound(kappa, t),
    )  # fmt: skip


@checked
def spectrum(
    shape: SpectrumShape, dimension: Annotated[int, Between(2, math.inf)], kappa: Kappa
) -> NDArray[np.float64]:
    """Return a descending spectrum from σ₁ = 1 down to σ_D = 1/κ.

    Args:
        shape: `geometric` or `linear` in between; `clusters`: one half at each end; `outlier`: all at 1
            but the last.
        dimension: D ≥ 2.
        kappa: κ ≥ 1.

    Returns:
        `(D,)`.

    Raises:
        InvalidInputError: D < 2 or κ < 1.
        UnknownNameError: No such shape.

    Examples:
        >>> spectrum("linear", 3, 2.0).tolist()
        [1.0, 0.75, 0.5]
        >>> spectrum("outlier", 3, 4.0).tolist()
        [1.0, 1.0, 0.25]
    """
    low, D = 1 / kappa, dimension
    if shape == "geometric":
        return np.geomspace(1.0, low, D)
    if shape == "linear":
        return np.linspace(1.0, low, D)
    if shape == "clusters":
        return np.where(np.arange(D) < (D + 1) // 2, 1.0, low)
    return np.where(np.arange(D) < D - 1, 1.0, low)


@dataclass(frozen=True)
class SpectrumDescent:
    """Exact line search in D dimensions, with the two bounds."""

    shape: SpectrumShape
    start: StartKind
    kappa: float
    sigma: NDArray[np.float64]  # (D,) descending
    curve: ProbeCurve  # norm ratio (Eq. 16) and excess loss at the recorded steps
    norm_bound: NDArray[np.float64]  # (T,) Eq. 2
    energy_bound: NDArray[np.float64]  # (T,) Kantorovich
    round_off: float  # (κ·eps)², the norm ratio at which a float64 gradient is noise


@checked
def spectrum_descent(
    *,
    shape: SpectrumShape = "geometric",
    dimension: Annotated[int, Between(2, 256)] = 32,
    kappa: Annotated[float, Between(1, 1e6)] = 100.0,
    start: StartKind = "random",
    steps: int = SPECTRUM_STEPS,
    seed: int = 0,
) -> SpectrumDescent:
    r"""Run `linear_probe` on the diagonal Hessian of a chosen spectrum.

    Examples:
        >>> run = spectrum_descent(kappa=3.0, start="worst", steps=2)
        >>> np.round(run.curve.excess_loss, 12).tolist()
        [1.0, 0.25, 0.0625]
    """
    sigma = spectrum(shape, dimension, kappa)
    if start == "worst":
        solution = np.zeros(dimension)
        solution[0], solution[-1] = 1 / sigma[0], 1 / sigma[-1]
    else:
        solution = np.random.default_rng(seed).normal(size=dimension)
    K = np.diag(sigma)
    record = log_spaced_steps(steps, 200)
    curve = linear_probe(np.eye(dimension), K, K @ solution, steps=steps, record=record)
    return SpectrumDescent(
        shape, start, kappa, sigma, curve,
        norm_bound=norm_bound(kappa, curve.steps),
        energy_bound=kantorovich_bound(kappa, curve.steps),
        round_off=float((kappa * np.finfo(np.float64).eps) ** 2),
    )  # fmt: skip


@dataclass(frozen=True)
class Plateau:
    """Exact line search in one floating-point format, run until it no longer improves."""

    precision: str
    kappa: float
    steps: NDArray[np.int64]  # (T,)
    norm_ratio: NDArray[np.float64]  # (T,) ‖w_t − w*‖² / ‖w_0 − w*‖² (Eq. 16)
    round_off: float  # (κ·eps)²


@checked
def plateau(kappa: float, precision: Precision = "float64", *, dimension: int = 8, seed: int = 0) -> Plateau:
    r"""Run exact line search on :math:`Hw = b` in a chosen precision until it stops improving.

    `H` is dense, a random rotation of a geometric spectrum with :math:`σ_1 = 1`; the start is the worst
    one. Storing `b` rounds it by `eps` of its size already, and :math:`H^{-1}` turns that into an error
    of up to `κ·eps` in `w`: the norm ratio levels off at or below about :math:`(κ\,\mathrm{eps})^2`, whatever
    the number of steps.

    Args:
        kappa: κ > 1.
        precision: `float32` or `float64`.
        dimension: D ≥ 2.
        seed: Of the rotation.

    Returns:
        The curve at log-spaced steps, and the level of round-off.

    Raises:
        InvalidInputError: κ is not above 1, or D < 2.
        UnknownNameError: Another precision.

    Examples:
        >>> run = plateau(100.0, "float32")
        >>> bool(run.norm_ratio[-1] < run.round_off < 1e-4 * run.norm_ratio[0])
        True
    """
    if not kappa > 1:
        raise InvalidInputError(f"kappa must be above 1, got {kappa}: at κ = 1 one step arrives.")
    sigma = spectrum("geometric", dimension, kappa)
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    ends = np.zeros(dimension)
    ends[[0, -1]] = 1 / sigma[[0, -1]]
    solution = (Q @ ends) / np.linalg.norm(ends)
    H = (Q * sigma) @ Q.T
    round_off = float(kappa * np.finfo(precision).eps) ** 2
    # Kantorovich's rate per step would take log(round_off)/log(rate) steps; half as many again show it.
    rate = ((kappa - 1) / (kappa + 1)) ** 2
    recorded = log_spaced_steps(10 + math.ceil(1.5 * math.log(round_off) / math.log(rate)), 300)
    norm_ratio = _descend(H.astype(precision), (H @ solution).astype(precision), solution, recorded)
    return Plateau(precision, kappa, recorded, norm_ratio, round_off)


def _descend(
    H: NDArray[np.floating],
    b: NDArray[np.floating],
    solution: NDArray[np.float64],
    recorded: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the norm ratio at the recorded steps, computed as a data-space program would, from w₀ = 0."""
    w = np.zeros_like(b)
    ratio = np.empty(len(recorded))
    column = 0
    for step in range(recorded[-1] + 1):
        if step == recorded[column]:
            ratio[column] = ((w - solution) ** 2).sum()
            column += 1
        g = H @ w - b
        curvature = g @ (H @ g)
        if curvature > 0:
            w = w - (g @ g) / curvature * g
    return ratio / ratio[0]


#: Nothing below this is drawn; the axes stay where they are while a slider moves.
ZIGZAG_FLOOR, SPECTRUM_FLOOR = 1e-8, 1e-32
#: The plane is shown from −FLAT to FLAT and from −STEEP to STEEP; the path starts at distance 1.
FLAT, STEEP = 1.1, 0.72
#: Contour lines lie at these shares of the largest energy in sight.
_LEVELS = np.geomspace(1, 1e-4, 9)
_CIRCLE = np.linspace(0, 2 * np.pi, 121)


@checked
def zigzag_figure(run: Zigzag, *, axes: AxesScale = "equal") -> Any:
    """Draw the path in the plane beside the two ratios and their bounds."""
    titles = ("contours of L(w), path w<sub>0</sub> … w<sub>t</sub>", "distance to the optimum")
    figure = panels(cols=2, column_widths=[0.56, 0.44], horizontal_spacing=0.1, subplot_titles=titles)
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
        add_line(
            figure, name, t, _visible(values, ZIGZAG_FLOOR), color, dash, width=width,
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
    figure = panels(
        cols=2, column_widths=[0.36, 0.64], horizontal_spacing=0.1,
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
        add_line(
            figure, name, t[1:], _visible(values[1:], SPECTRUM_FLOOR), color, dash, width=width,
            hovertemplate="t = %{x:,d}: %{y:.3e}", row=1, col=2,
        )  # fmt: skip
    title = f"Exact line search in D = {len(run.sigma)} dimensions, κ = {num(run.kappa)}"
    teaching_layout(figure, title, height=540)
    figure.update_xaxes(title_text="index i", col=1)
    figure.update_yaxes(type="log", range=[-6.3, 0.3], dtick=1, title_text="σ<sub>i</sub>", col=1)
    figure.update_xaxes(**log_axis("step t", t), col=2)
    floor = float(np.log10(SPECTRUM_FLOOR))
    figure.update_yaxes(type="log", range=[floor, 1], dtick=4, title_text="share of the start", col=2)
    return figure


def plateau_figure(runs: Sequence[Plateau]) -> Any:
    """Draw where exact line search stops improving, per κ and precision.

    Args:
        runs: Of `plateau`; one colour a κ, up to four.

    Returns:
        A plotly figure: a curve a run, and its level of round-off where the curve ends.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    figure = empty()
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


def zigzag_table(run: Zigzag) -> pd.DataFrame:
    """Return iterates, ratios and bounds, one row a step."""
    columns = {"steep": run.path[:, 0], "flat": run.path[:, 1]}
    columns |= {"norm_ratio": run.norm_ratio, "norm_bound": run.norm_bound}
    columns |= {"energy_ratio": run.energy_ratio, "energy_bound": run.energy_bound}
    return pd.DataFrame(columns).rename_axis("step").reset_index()


def zigzag_reading(run: Zigzag) -> str:
    """Say how fast it is, and how that compares with the worst case."""
    worst = float(run.energy_bound[1])
    if run.contraction < 1e-15:
        return "The first gradient points straight at w*: one step arrives, whatever κ is."
    if run.rule == "constant":
        return (
            f"With the constant step 1/σ<sub>1</sub>, {run.step} steps leave {num(run.norm_ratio[run.step])} "
            f"of the squared distance; Eq. 2 allows {num(run.norm_bound[run.step])}."
        )
    attained = run.contraction > worst * (1 - 1e-9)
    compared = "exactly Kantorovich's worst case" if attained else f"the worst case is {worst:.4f}"
    return (
        f"Every step leaves {run.contraction:.4f} of the excess loss, {compared}. "
        f"After {run.step} steps: {num(run.norm_ratio[run.step])} of the squared distance; "
        f"Eq. 2 allows {num(run.norm_bound[run.step])}."
    )


class GradientDescentExplorer(Explorer):
    """The zig-zag of gradient descent in the plane, and what κ has to do with it."""

    controls = (
        LogSlider("kappa", "condition number κ", "Condition number σ₁/σ₂ of H (Eq. 1)."),
        Slider(
            "angle", "start angle φ", "Between the first gradient and the steep axis; 45° is the worst.",
            "degrees",
        ),
        Choice(
            "rule", "step size", "How the step size is chosen.",
            labels={"exact": "exact line search", "constant": "constant, 1/σ₁"},
        ),
        Stepper("step", "step t", "Steps drawn in the plane."),
        Choice(
            "axes", "scale of the axes", "Equal shows right angles; stretched, the path.",
            labels={"fit": "stretched to the path"},
        ),
    )  # fmt: skip
    compute = staticmethod(zigzag)
    figure = staticmethod(zigzag_figure)
    data = staticmethod(zigzag_table)
    reading = staticmethod(zigzag_reading)


def spectrum_table(run: SpectrumDescent) -> pd.DataFrame:
    """Return ratios and bounds, one row a recorded step."""
    columns = {"step": run.curve.steps, "norm_ratio": run.curve.norm_ratio, "norm_bound": run.norm_bound}
    return pd.DataFrame(columns | {"energy_ratio": run.curve.excess_loss, "energy_bound": run.energy_bound})


def spectrum_reading(run: SpectrumDescent) -> str:
    """Say how many steps it took, and how many Eq. 2 allows."""
    took, allowed = (_first_below(1e-6, run.curve.steps, y) for y in (run.curve.norm_ratio, run.norm_bound))
    last = run.curve.steps[-1]
    reached = f"after {took} steps" if took else f"not within {last:,d} steps"
    granted = f"grants {allowed}" if allowed else f"grants more than {last:,d}"
    stop = int(run.curve.stopped_at)
    end = f" At step {stop:,d} the gradient is float64 round-off, and the curve is flat." if stop >= 0 else ""
    return f"A millionth of the squared distance is reached {reached}; Eq. 2 {granted}.{end}"


def _first_below(goal: float, steps: NDArray[np.int64], values: NDArray[np.float64]) -> str:
    """Return the first recorded step at which the values have fallen to the goal, in words."""
    reached = np.flatnonzero(values <= goal)
    return f"{steps[reached[0]]:,d}" if len(reached) else ""


class SpectrumDescentExplorer(Explorer):
    """Exact line search in D dimensions: κ bounds it, the whole spectrum decides."""

    controls = (
        LogSlider("kappa", "condition number κ", "Condition number σ₁/σ_D of H (Eq. 1)."),
        Slider("dimension", "dimension D", "Number D of features.", "features"),
        Choice("shape", "spectrum", "How σ₁ … σ_D are spread.", labels=SHAPE_LABELS),
        Choice("start", "start", "Where the descent starts.", labels={"worst": "the worst one"}),
    )
    compute = staticmethod(spectrum_descent)
    figure = staticmethod(spectrum_descent_figure)
    data = staticmethod(spectrum_table)
    reading = staticmethod(spectrum_reading)
