r"""Notebook 3: one preconditioned step of R_well or R_ill on a chosen spectrum, and its step-size bounds.

With the preconditioner of Theorem 4.3 a step keeps the singular vectors of :math:`H(\theta)`, so that a
spectrum is all there is to choose: :math:`\sigma_i' = \sigma_i(1 - 2\eta g_i)^2`, with :math:`g_i` the
signed singular values of :math:`\nabla_HR`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import InvalidInputError
from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, add_line, num, panels, teaching_layout
from condnum.lessons.explorer import Between, Choice, Explorer, LogSlider, Preset, Slider, checked
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient
from condnum.theory.spectra import default_rtol
from condnum.theory.steps import ill_spectrum_step, ill_step_bound, well_spectrum_step, well_step_bound

RegularizerName = Literal["well", "ill"]
#: κ of a chosen spectrum, and its crowding.
Kappa = Annotated[float, Between(10**0.05, 1e4)]
Bend = Annotated[float, Between(10**-0.7, 10**0.7)]
#: Steps η/η₀ between which the curve κ(η) is computed, and how many.
STEP_RANGE, CURVE_POINTS = (10**-1.6, 10**1.6), 401


def bent_spectrum(
    *, kappa: float, dimension: int, bend: float = 1.0, top: float = 1.0
) -> NDArray[np.float64]:
    r"""Return a strictly falling spectrum with chosen ends and a chosen crowding in between.

    .. math:: \sigma_i = \sigma_1\,\kappa^{-x_i^b}, \quad x_i = \frac{i-1}{k-1}

    Examples:
        >>> bent_spectrum(kappa=16.0, dimension=3, top=4.0).tolist()
        [4.0, 1.0, 0.25]
        >>> bent_spectrum(kappa=16.0, dimension=3, bend=2.0).tolist()
        [1.0, 0.5, 0.0625]
    """
    if dimension < 2:
        raise InvalidInputError(f"dimension must be at least 2, got {dimension}.")
    if not (kappa > 1 and math.isfinite(kappa)):
        raise InvalidInputError(f"kappa must be above 1 and finite, got {kappa}: both ends must be unique.")
    for name, value in (("bend", bend), ("top", top)):
        if not (value > 0 and math.isfinite(value)):
            raise InvalidInputError(f"{name} must be positive and finite, got {value}.")
    x = np.linspace(0.0, 1.0, dimension)
    return np.asarray(top * kappa ** -(x**bend), dtype=np.float64)


@dataclass(frozen=True)
class RegularizerStep:
    """One step of a regularizer, the curve κ(η) that it lies on, and both bounds."""

    regularizer: RegularizerName
    step: float  # η/η₀
    eta: float  # η
    unit: float  # η₀, the step that sends the pushed value (well: σ₁; ill: σ_k) exactly to 0
    sigma: NDArray[np.float64]  # (k,) before the step, descending
    gradient: NDArray[np.float64]  # (k,) g_i, signed singular values of ∇_H R
    next_sigma: NDArray[np.float64]  # (k,) where each σ_i goes; perhaps out of order
    value: float  # R before
    next_value: float  # R after, at the same dimension; ill: inf for a flat spectrum or rank 1
    kappa: float  # κ before
    next_kappa: float  # κ over all k values after; inf where one is annihilated
    next_rank: int  # numerical rank after
    printed: float  # bound on η as the paper prints it; may be negative or inf
    corrected: float  # bound on η as corrected; inf for ill at k = 2
    curve_steps: NDArray[np.float64]  # (n,) η/η₀
    curve: NDArray[np.float64]  # (n,) κ after a step of that size; inf at an annihilation

    @property
    def promised(self) -> NDArray[np.bool_]:
        """Where on the curve κ moves as Theorem 4.3 says, `(n,)`: down for well, up for ill."""
        return self.curve < self.kappa if self.regularizer == "well" else self.curve > self.kappa

    @property
    def keeps_promise(self) -> bool:
        """Whether this step moves κ as Theorem 4.3 says."""
        lower, higher = self.next_kappa < self.kappa, self.next_kappa > self.kappa
        return lower if self.regularizer == "well" else higher


@checked
def regularizer_step(
    *,
    regularizer: RegularizerName = "well",
    step: Annotated[float, Between(*STEP_RANGE)] = 0.3,
    kappa: Kappa = 10.0,
    dimension: Annotated[int, Between(2, 64)] = 8,
    bend: Bend = 1.0,
    top: Annotated[float, Between(0.01, 100)] = 1.0,
) -> RegularizerStep:
    r"""Take one step of size :math:`\eta = s\,\eta_0` on a `bent_spectrum`.

    The unit :math:`\eta_0 = 1/(2g)`, `g` the gradient's entry at the pushed value, is
    :math:`1/(2(1-\frac1D)\sigma_1)` for R_well and :math:`\rho^2/(2(1-\frac1k)\sigma_k)` for R_ill, with
    :math:`\rho = 1/R_{ill}`. In this unit nothing depends on the scale of the spectrum, except the
    printed bound (2) of Theorem 4.3.

    Args:
        regularizer: `well` or `ill`.
        step: s = η/η₀, from 1/40 to 40.
        kappa: κ of the spectrum, from 1.12 to 10,000.
        dimension: k = D, from 2 to 64.
        bend: Crowding of the spectrum, see `bent_spectrum`.
        top: σ₁, from 0.01 to 100.

    Returns:
        The step, the curve κ(η) and both bounds.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such regularizer.

    Examples:
        >>> run = regularizer_step(regularizer="well", step=1.0, kappa=4.0, dimension=2, top=4.0)
        >>> run.eta, run.printed, run.corrected
        (0.25, 0.5, 0.125)
        >>> run.next_sigma.tolist(), run.next_kappa, run.next_rank
        ([0.0, 1.5625], inf, 1)
    """
    sigma = bent_spectrum(kappa=kappa, dimension=dimension, bend=bend, top=top)
    S = np.diag(sigma)
    if regularizer == "well":
        evidence, pushed = r_well_gradient(S), 0
        printed, corrected = well_step_bound(sigma, source="printed"), well_step_bound(sigma)
    else:
        evidence, pushed = r_ill_gradient(S), -1
        printed, corrected = ill_step_bound(sigma, source="printed"), ill_step_bound(sigma)
    g = np.diag(evidence.gradient)
    unit = float(1 / (2 * g[pushed]))
    moved = next_spectrum(regularizer, sigma, step * unit)
    steps = np.geomspace(*STEP_RANGE, CURVE_POINTS)
    rank = int((moved > default_rtol(len(moved)) * moved.max()).sum())
    after = np.diag(np.sort(moved)[::-1])
    return RegularizerStep(
        regularizer, step, step * unit, unit, sigma, g, moved,
        value=float(evidence.value),
        next_value=float(r_well(after) if regularizer == "well" else r_ill(after)),
        kappa=float(sigma[0] / sigma[-1]),
        next_kappa=float(kappas(moved)),
        next_rank=rank,
        printed=float(printed),
        corrected=float(corrected),
        curve_steps=steps,
        curve=_curve(regularizer, sigma, steps * unit),
    )  # fmt: skip


@checked
def counter_example(regularizer: RegularizerName) -> dict[str, Any]:
    """Return settings of `regularizer_step` for which a printed bound of Theorem 4.3 fails.

    Args:
        regularizer: `well`: σ = (4, 1) at half the printed bound; `ill`: σ = (2.15920825, 1.9376387,
            1.32386916) at 0.8063 of the printed bound.

    Returns:
        Keyword arguments.

    Raises:
        UnknownNameError: No such regularizer.

    Examples:
        >>> run = regularizer_step(**counter_example("ill"))
        >>> round(run.eta / run.printed, 12), round(run.kappa, 3), round(run.next_kappa, 3)
        (0.8063, 1.631, 1.562)
    """
    if regularizer == "well":
        return {"regularizer": "well", "step": 1.0, "kappa": 4.0, "dimension": 2, "bend": 1.0, "top": 4.0}
    sigma = np.array([2.15920825, 1.9376387, 1.32386916])
    kappa = float(sigma[0] / sigma[2])
    bend = math.log2(math.log(kappa) / math.log(sigma[0] / sigma[1]))  # the middle value has x = ½
    shape: dict[str, float | int] = {"kappa": kappa, "dimension": 3, "bend": bend, "top": float(sigma[0])}
    unit = 1 / (2 * np.diag(r_ill_gradient(np.diag(sigma)).gradient)[-1])
    step = 0.8063 * ill_step_bound(sigma, source="printed") / unit
    return {"regularizer": "ill", "step": float(step), **shape}


def next_spectrum(
    regularizer: RegularizerName, sigma: NDArray[np.float64], eta: float
) -> NDArray[np.float64]:
    """Return where each value of a spectrum goes, `(..., k)`.

    Examples:
        >>> next_spectrum("ill", np.array([3.0, 1.0]), 1.0)
        array([9.1875, 0.5625])
    """
    move = well_spectrum_step if regularizer == "well" else ill_spectrum_step
    return np.asarray(move(sigma, eta), dtype=np.float64)


def kappas(spectra: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return max/min over the last axis, inf where the smallest is round-off of the largest.

    Examples:
        >>> kappas(np.array([[1.0, 4.0], [0.0, 2.0]])).tolist()
        [4.0, inf]
    """
    high, low = spectra.max(axis=-1), spectra.min(axis=-1)
    gone = low <= default_rtol(spectra.shape[-1]) * high
    return np.where(gone, np.inf, high / np.where(gone, 1.0, low))


def _curve(
    regularizer: RegularizerName, sigma: NDArray[np.float64], etas: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return κ after a step of each size.

    κ(σ′) depends on η and the scale c of σ through ηc (well) or η/c³ (ill) alone, so that one batch of
    scaled spectra with η = 1 does what a call for each η would.
    """
    scales = etas if regularizer == "well" else etas ** (-1 / 3)
    return kappas(next_spectrum(regularizer, scales[:, None] * sigma, 1.0))


#: Scales of the curve κ(η).
KappaScale = Literal["decades", "near"]
#: Decades of κ shown above the start, and the window about it in the scale `near`.
DECADES, NEAR = {"well": 2.0, "ill": 4.0}, (0.8, 1.3)

NAMES = {"well": "R<sub>well</sub>", "ill": "R<sub>ill</sub>"}
_BAND = "rgba(46, 134, 200, 0.16)"


@checked
def regularizer_step_figure(run: RegularizerStep, *, scale: KappaScale = "decades") -> Any:
    """Draw the gradient, the spectrum before and after a step, and κ after a step of any size.

    κ is shown over decades, or on a linear scale near κ before the step.
    """
    figure = panels(
        rows=2, cols=2, column_widths=[0.4, 0.6], row_heights=[0.66, 0.34], horizontal_spacing=0.1,
        vertical_spacing=0.17, specs=[[{}, {"rowspan": 2}], [{}, None]],
        subplot_titles=("spectrum: ○ before, ◆ after the step", "κ after a step of size η",
                        "gradient g<sub>i</sub>"),
    )  # fmt: skip
    _add_spectrum(figure, run)
    _add_curve(figure, run, scale)
    after = num(run.next_kappa, 4)
    title = f"One step of {NAMES[run.regularizer]}: η = {num(run.eta)}, κ = {num(run.kappa, 4)} → {after}"
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
    add_line(
        figure, "moves", np.stack([index, index, gaps], axis=1).ravel(),
        np.stack([before, after, gaps], axis=1).ravel(), NEUTRAL, width=1.5, hoverinfo="skip", **top,
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
        row=1, col=1,
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
    add_line(
        figure, "κ before", [least, most], [run.kappa] * 2, NEUTRAL, "dot", width=2, hoverinfo="skip",
        **right,
    )  # fmt: skip
    shown = np.where(np.isfinite(run.curve), np.minimum(run.curve, 10 * window[1]), 10 * window[1])
    verb = "falls" if run.regularizer == "well" else "rises"
    for name, mask, color, dash in (
        (f"κ {verb}, as promised", run.promised, GREEN, "solid"),
        ("κ goes the wrong way", ~run.promised, ORANGE, "solid"),
    ):
        add_line(
            figure, name, run.curve_steps, np.where(_widened(mask), shown, np.nan), color, dash, width=3.5,
            hovertemplate="η = %{x:.3g} η₀: κ = %{y:.4g}", **right,
        )  # fmt: skip
    for name, place, color, dash in (
        ("printed bound", printed, ORANGE, "dash"),
        ("corrected bound", corrected, BLUE, "solid"),
    ):
        there = [place] * 2 if least <= place <= most else [np.nan] * 2
        add_line(
            figure, name, there, [floor, window[1]], color, dash, width=2.5,
            hovertemplate=f"{name}: %{{x:.3g}} η₀", **right,
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
    figure.update_yaxes(title_text="κ(H(θ′))", **axis, **right)


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


LABELS = {"well": "R_well, lowers κ", "ill": "R_ill, raises κ"}
BEND_HELP = "1: geometric; above: most values crowd near σ₁; below: near σ_k."


def step_table(run: RegularizerStep) -> pd.DataFrame:
    """Return the curve κ(η), one row a step size."""
    columns = {"step_over_unit": run.curve_steps, "eta": run.curve_steps * run.unit}
    return pd.DataFrame(columns | {"kappa": run.curve, "as_promised": run.promised})


def step_reading(run: RegularizerStep) -> str:
    """Say what the step does to κ and R, and what both bounds say about it."""
    name = f"R<sub>{run.regularizer}</sub>"
    if math.isinf(run.next_kappa):
        which = "σ<sub>1</sub>" if run.regularizer == "well" else "σ<sub>k</sub>"
        moved = (
            f"{which} is annihilated (rank {len(run.sigma)} → {run.next_rank}): κ → ∞ from both "
            "sides, and a compact κ (Eq. 1) would leave the zero out."
        )
    else:
        verb = "falls" if run.next_kappa < run.kappa else "rises"
        moved = f"κ {verb} from {num(run.kappa, 4)} to {num(run.next_kappa, 4)}"
        moved += "." if run.keeps_promise else ": <b>the wrong way</b>."
    return f"{moved} {name}: {num(run.value)} → {num(run.next_value)}. {_bounds(run)}"


def _bounds(run: RegularizerStep) -> str:
    """Say on which side of both bounds the step lies."""
    if run.printed < 0:
        printed = "the printed bound is negative (no step at all)"
    else:
        printed = f"{_side(run.eta, run.printed)} the printed bound, {num(run.printed)}"
    corrected = f"{_side(run.eta, run.corrected)} the corrected one, {num(run.corrected)}"
    if math.isinf(run.corrected):
        corrected = "the corrected one allows every step (k = 2)"
    return f"η = {num(run.eta)}: {printed}; {corrected}."


def _side(eta: float, bound: float) -> str:
    """Say where η lies."""
    return "within" if eta < bound else "beyond"


class RegularizerExplorer(Explorer):
    """One step of R_well or R_ill on a chosen spectrum, and κ(η) with both bounds of Theorem 4.3."""

    controls = (
        Choice("regularizer", "regularizer", "R_well (Eq. 3) or R_ill (Eq. 12).", labels=LABELS),
        LogSlider("step", "step size η", "η₀ sends σ₁ (well) or σ_k (ill) exactly to 0.", "in η₀", step=0.01),
        LogSlider("kappa", "condition number κ", "Condition number σ₁/σ_k of H (Eq. 1).", step=0.01),
        Slider("dimension", "dimension k = D", "Number k = D of singular values."),
        LogSlider("bend", "crowding of σ", BEND_HELP, step=0.01),
        LogSlider("top", "scale σ₁", "Largest singular value: the scale of H.", step=0.01),
        Choice("scale", "scale of κ", "Scale of κ in the figure.", labels={"near": "close to the start"}),
    )
    presets = (
        Preset(
            "Counter-example to printed bound (1)",
            "σ = (4, 1), half the printed bound",
            {**counter_example("well"), "scale": "decades"},
        ),
        Preset(
            "Counter-example to printed bound (2)",
            "σ = (2.16, 1.94, 1.32), 0.81 of the printed bound",
            {**counter_example("ill"), "scale": "near"},
        ),
    )
    compute = staticmethod(regularizer_step)
    figure = staticmethod(regularizer_step_figure)
    data = staticmethod(step_table)
    reading = staticmethod(step_reading)
