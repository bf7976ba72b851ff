r"""Notebook 3: one preconditioned step of R_well or R_ill on a chosen spectrum, and its step-size bounds.

With the preconditioner of Theorem 4.3 a step keeps the singular vectors of :math:`H(\theta)`, so that a
spectrum is all there is to choose: :math:`\sigma_i' = \sigma_i(1 - 2\eta g_i)^2`, with :math:`g_i` the
signed singular values of :math:`\nabla_HR`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import (
    Choice,
    Explorer,
    ExplorerResult,
    Preset,
    Slider,
    with_controls,
)
from condnum.lessons.frame.own import Own
from condnum.lessons.frame.sheet import Sheet
from condnum.numbers import num
from condnum.page.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, translucent
from condnum.theory.regularizers import (
    SpectralRegularizer,
    ill_of_spectrum,
    ill_spectrum_step,
    ill_step_bound,
    well_of_spectrum,
    well_spectrum_step,
    well_step_bound,
)
from condnum.theory.task import rank_tolerance

RegularizerName = Literal["well", "ill"]
NAMES = {"well": "R<sub>well</sub>", "ill": "R<sub>ill</sub>"}
REGULARIZER_LABELS = {"well": "well: lowers κ (Eq. 3)", "ill": "ill: raises κ (Eq. 12)"}
BEND_HELP = "1: geometric; above 1, most values are near σ₁; below 1, near σₖ."
#: κ of a chosen spectrum, and its crowding.
KAPPA, BEND = (10**0.05, 1e4), (10**-0.7, 10**0.7)
#: Steps η/η₀ between which the curve κ(η) is computed, and how many.
STEP_RANGE, CURVE_POINTS = (10**-1.6, 10**1.6), 401
#: Decades of κ shown above the start, and the window about it in the scale `near`.
_DECADES, _NEAR = {"well": 2.0, "ill": 4.0}, (0.8, 1.3)


def bent_spectrum(*, kappa: float, dimension: int, bend: float = 1.0, top: float = 1.0) -> Floats:
    """Return a strictly falling spectrum: `σ_i = σ₁ κ^(−x_i^b)` with `x_i = (i−1)/(k−1)`."""
    x = np.linspace(0.0, 1.0, dimension)
    return np.asarray(top * kappa ** -(x**bend), dtype=np.float64)


def of_spectrum(regularizer: RegularizerName, sigma: Floats) -> SpectralRegularizer:
    """Return a regularizer of a descending spectrum `(k,)`, with its slopes g_i."""
    spectrum = torch.from_numpy(np.ascontiguousarray(sigma))
    return well_of_spectrum(spectrum, len(sigma)) if regularizer == "well" else ill_of_spectrum(spectrum)


def next_spectrum(sigma: Floats, eta: float, regularizer: RegularizerName) -> Floats:
    """Return where each value of a spectrum goes, `(k,)`."""
    move = well_spectrum_step if regularizer == "well" else ill_spectrum_step
    return np.asarray(move(sigma, eta), dtype=np.float64)


def annihilating_step(regularizer: RegularizerName, sigma: Floats) -> float:
    """Return η₀ = 1/(2g), which sends the pushed value, σ₁ (well) or σ_k (ill), exactly to 0."""
    return float(1 / (2 * of_spectrum(regularizer, sigma).slopes[0 if regularizer == "well" else -1]))


def kappas(spectra: Floats) -> Floats:
    """Return max/min over the last axis, inf where the smallest is round-off of the largest."""
    high, low = spectra.max(axis=-1), spectra.min(axis=-1)
    gone = low <= rank_tolerance(spectra.shape[-1]) * high
    return np.where(gone, np.inf, high / np.where(gone, 1.0, low))


@dataclass(frozen=True)
class RegularizerStep(ExplorerResult):
    """One step of a regularizer, the curve κ(η) that it lies on, and both bounds."""

    regularizer: RegularizerName
    scale: str  # of κ in the figure: over decades, or linear near κ before the step
    step: float  # η/η₀
    unit: float  # η₀, the step that sends the pushed value (well: σ₁; ill: σ_k) exactly to 0
    sigma: Floats  # (k,) before the step, descending
    gradient: Floats  # (k,) g_i, signed singular values of ∇_H R
    next_sigma: Floats  # (k,) where each σ_i goes; perhaps out of order
    value: float  # R before
    next_value: float  # R after, at the same dimension; ill: inf for a flat spectrum or rank 1
    kappa: float  # κ before
    next_kappa: float  # κ over all k values after; inf where one is annihilated
    printed: float  # bound on η as the paper prints it; may be negative or inf
    corrected: float  # bound on η as corrected; inf for ill at k = 2
    curve_steps: Floats  # (n,) η/η₀
    curve: Floats  # (n,) κ after a step of that size; inf at an annihilation

    @property
    def eta(self) -> float:
        """The step size η."""
        return self.step * self.unit

    @property
    def promised(self) -> Any:
        """Where on the curve κ moves as Theorem 4.3 says, `(n,)`: down for well, up for ill."""
        return self.curve < self.kappa if self.regularizer == "well" else self.curve > self.kappa

    @property
    def keeps_promise(self) -> bool:
        """Whether this step moves κ as Theorem 4.3 says."""
        lower, higher = self.next_kappa < self.kappa, self.next_kappa > self.kappa
        return lower if self.regularizer == "well" else higher

    def figure(self) -> Any:
        """Draw the gradient, the spectrum before and after a step, and κ after a step of any size."""
        titles = "spectrum: ○ before, ◆ after the step", "κ after a step of size η", "gradient g<sub>i</sub>"
        specs: list[list[Any]] = [[{}, {"rowspan": 2}], [{}, None]]
        sizes = {"column_widths": [0.4, 0.6], "row_heights": [0.66, 0.34], "vertical_spacing": 0.17}
        sheet = Sheet(*titles, grid={"rows": 2, "cols": 2, "specs": specs, **sizes})
        spectrum, curve, gradient = sheet.panels
        self._draw_spectrum(spectrum, gradient)
        self._draw_curve(curve)
        moved = f"η = {num(self.eta)}, κ = {num(self.kappa, 4)} → {num(self.next_kappa, 4)}"
        return sheet.finish(f"One step of {NAMES[self.regularizer]}: {moved}")

    def _draw_spectrum(self, top: Any, bottom: Any) -> None:
        """Draw the spectrum before and after the step, and the gradient below it."""
        index, hidden = np.arange(1, len(self.sigma) + 1), {"legend": False}
        low = math.log10(self.sigma[-1]) - 1.0
        high = max(math.log10(self.sigma[0]) + 1.0, math.ceil(math.log10(self.next_sigma.max())) + 0.1)
        after = np.clip(self.next_sigma, 10.0 ** (low + 0.04), 10.0 ** (high - 0.04))  # a zero is on the edge
        gaps = np.full(len(index), np.nan)
        stems = ((index, index, gaps), (self.sigma, after, gaps))
        moves = (np.stack(parts, axis=1).ravel() for parts in stems)
        top.line("moves", *moves, NEUTRAL, width=1.5, hoverinfo="skip", **hidden)
        hover = "σ<sub>%{x}</sub> = %{y:.4g}<extra>before</extra>"
        ring = {"marker": {"line": {"width": 2}}, "hover": hover}
        top.marks("before", index, self.sigma, "circle-open", 11, GREEN, **ring, **hidden)
        data = {"customdata": self.next_sigma, "hover": "σ<sub>%{x}</sub>′ = %{customdata:.4g}"}
        top.marks("after", index, after, "diamond", 9, PURPLE, **data, **hidden)
        data = {"customdata": self.gradient, "hover": "g<sub>%{x}</sub> = %{customdata:.4g}"}
        shares, bar = self.gradient / np.abs(self.gradient).max(), {"color": PURPLE, "line": {"width": 0}}
        bottom.trace("g<sub>i</sub>", index, shares, type="bar", marker=bar, **data, **hidden)
        along = {"range": [0.4, len(index) + 0.6], "dtick": 1 if len(index) <= 10 else 10}
        ticks = 1 if high - low < 5 else 2
        top.x("", showticklabels=False, **along)
        top.y("σ<sub>i</sub>", low, high, log=True, dtick=ticks)
        bottom.x("index i", **along)
        bottom.y("over max |g|", -1.1, 1.1, dtick=1)

    def _draw_curve(self, panel: Any) -> None:
        """Draw κ(η) with both bounds; η is in units of η₀."""
        (least, most), well, decades = STEP_RANGE, self.regularizer == "well", self.scale == "decades"
        if decades:
            floor, bottom, top = 0.5, 1.0, self.kappa * 10 ** _DECADES[self.regularizer]
            panel.y("κ(H(θ′))", -0.05, math.log10(top), log=True)
        else:
            bottom, top = _NEAR[0] * self.kappa, _NEAR[1] * self.kappa
            floor = bottom
            panel.y("κ(H(θ′))", floor, top, nticks=9)
        corrected = self.corrected / self.unit
        edge = min(max(corrected, least), most)
        shaded = [least, edge, edge, least], [floor, floor, top, top]
        panel.area("below the corrected bound", *shaded, translucent(BLUE, 0.16), legend=False)
        level = {"width": 2, "hoverinfo": "skip"}
        panel.line("κ before", [least, most], [self.kappa] * 2, NEUTRAL, "dot", **level)
        shown, hover = np.minimum(self.curve, 10 * top), "η = %{x:.3g} η₀: κ = %{y:.4g}"
        for name, mask, color in (
            (f"κ {'falls' if well else 'rises'}, as promised", self.promised, GREEN),
            ("κ goes the wrong way", ~self.promised, ORANGE),
        ):
            meeting = mask | np.append(False, mask[:-1])  # the two lines meet
            values = np.where(meeting, shown, np.nan)
            panel.line(name, self.curve_steps, values, color, width=3.5, hover=hover)
        for name, place, color, dash in (
            ("printed bound", self.printed / self.unit, ORANGE, "dash"),
            ("corrected bound", corrected, BLUE, "solid"),
        ):
            there = [place if least <= place <= most else np.nan] * 2
            panel.line(name, there, [floor, top], color, dash, width=2.5, hover=f"{name}: %{{x:.3g}} η₀")
        height = self.next_kappa
        symbol = "diamond" if bottom <= height <= top else "triangle-up" if height > top else "triangle-down"
        if symbol != "diamond":
            height = max(min(height, top * (0.8 if decades else 0.99)), bottom)
        hover = "η = %{x:.3g} η₀<extra></extra>"
        panel.marks("this step", [self.step], [height], symbol, 15, PURPLE, hover=hover, legend=False)
        unit = "1/(2(1 − 1/D)σ<sub>1</sub>)" if well else "ρ²/(2(1 − 1/k)σ<sub>k</sub>)"
        title = f"η / η<sub>0</sub>, η<sub>0</sub> = {unit} = {num(self.unit)}"
        places = [0.03, 0.1, 0.3, 1, 3, 10, 30]
        panel.x(title, math.log10(least), math.log10(most), log=True, tickvals=places)

    def caption(self) -> str:
        """Say what the step does to κ and R, and what both bounds say about it."""
        if math.isinf(self.next_kappa):
            which = "σ<sub>1</sub>" if self.regularizer == "well" else "σ<sub>k</sub>"
            moved = f"{which} becomes 0: κ → ∞ from both sides; a compact κ (Eq. 1) would ignore the zero."
        else:
            verb = "falls" if self.next_kappa < self.kappa else "rises"
            moved = f"κ {verb} from {num(self.kappa, 4)} to {num(self.next_kappa, 4)}"
            moved += "." if self.keeps_promise else ": <b>the wrong way</b>."
        printed, corrected = (
            f"{'within' if self.eta < bound else 'beyond'} the {name}, {num(bound)}"
            for name, bound in (("printed bound", self.printed), ("corrected one", self.corrected))
        )
        if self.printed < 0:
            printed = "the printed bound is negative (no step is allowed)"
        if math.isinf(self.corrected):
            corrected = "the corrected one allows every step (k = 2)"
        values = f"{NAMES[self.regularizer]}: {num(self.value)} → {num(self.next_value)}"
        return f"{moved} {values}. η = {num(self.eta)}: {printed}; {corrected}."


@with_controls(
    regularizer=Choice("regularizer", "Regularizer that is descended.", REGULARIZER_LABELS),
    step=Slider(
        "step size η (in η₀)",
        "η₀ sends σ₁ (well) or σₖ (ill) exactly to 0.",
        *STEP_RANGE,
        log=True,
        step=0.01,
        marks=25,
    ),
    kappa=Slider("condition number κ", "Condition number σ₁/σₖ of H (Eq. 1).", *KAPPA, log=True, step=0.01),
    dimension=Slider("dimension k = D", "Number of singular values.", 2, 64, advanced=True),
    bend=Slider("crowding of σ", BEND_HELP, *BEND, log=True, step=0.01, advanced=True),
    top=Slider("scale σ₁", "Largest singular value.", 0.01, 100, log=True, step=0.01, advanced=True),
    scale=Choice("scale of κ", "Scale of κ in the figure.", {"near": "close to the start"}, advanced=True),
)
def regularizer_step(
    *,
    regularizer: RegularizerName = "well",
    step: float = 0.3,
    kappa: float = 10.0,
    dimension: int = 8,
    bend: float = 1.0,
    top: float = 1.0,
    scale: Literal["decades", "near"] = "decades",
    move: Callable[[Floats, float, RegularizerName], Floats] = next_spectrum,
) -> RegularizerStep:
    """Take one step of size `η = s·η₀` on a `bent_spectrum`; η₀ = 1/(2g) sends the pushed value to 0.

    In this unit nothing depends on the scale of the spectrum, except the printed bound (2) of Theorem 4.3.
    """
    sigma = bent_spectrum(kappa=kappa, dimension=dimension, bend=bend, top=top)
    found, unit = of_spectrum(regularizer, sigma), annihilating_step(regularizer, sigma)
    moved, steps = move(sigma, step * unit, regularizer), np.geomspace(*STEP_RANGE, CURVE_POINTS)
    bound = well_step_bound if regularizer == "well" else ill_step_bound
    if move is next_spectrum:  # what a call for each η would do
        curve = sigma * (1 - 2 * (steps * unit)[:, None] * found.slopes.numpy()) ** 2
    else:
        curve = np.array([move(sigma, eta, regularizer) for eta in (steps * unit).tolist()])
    return RegularizerStep(
        regularizer, scale, step, unit, sigma,
        gradient=found.slopes.numpy(),
        next_sigma=moved,
        value=float(found.value),
        next_value=float(of_spectrum(regularizer, np.sort(moved)[::-1]).value),
        kappa=float(sigma[0] / sigma[-1]),
        next_kappa=float(kappas(moved)),
        printed=float(bound(sigma, bound="published")),
        corrected=float(bound(sigma)),
        curve_steps=steps,
        curve=kappas(curve),
    )  # fmt: skip


def counter_example(regularizer: RegularizerName) -> dict[str, Any]:
    """Return settings of `regularizer_step` for which a printed bound of Theorem 4.3 fails."""
    if regularizer == "well":
        return {"regularizer": "well", "step": 1.0, "kappa": 4.0, "dimension": 2, "bend": 1.0, "top": 4.0}
    sigma = np.array([2.15920825, 1.9376387, 1.32386916])
    kappa = float(sigma[0] / sigma[2])
    bend = math.log2(math.log(kappa) / math.log(sigma[0] / sigma[1]))  # the middle value has x = ½
    step = 0.8063 * ill_step_bound(sigma, bound="published") / annihilating_step("ill", sigma)
    shape = {"kappa": kappa, "dimension": 3, "bend": bend, "top": float(sigma[0])}
    return {"regularizer": "ill", "step": step, **shape}


class RegularizerExplorer(Explorer):
    """One step of R_well or R_ill on a chosen spectrum, and κ(η) with both bounds of Theorem 4.3."""

    compute = staticmethod(regularizer_step)
    own = Own("move", next_spectrum)
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
