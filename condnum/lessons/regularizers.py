r"""Lesson 3: steps of R_well or R_ill on a chosen spectrum, and their step-size bounds.

With the preconditioner of Theorem 4.3 a step keeps the singular vectors of :math:`H(\theta)`, so that a
spectrum is all there is to choose: :math:`\sigma_i' = \sigma_i(1 - 2\eta g_i)^2`, with :math:`g_i` the
signed singular values of :math:`\nabla_HR`.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from condnum.lessons.condition_number import Floats
from condnum.lessons.draw import Panel
from condnum.lessons.explore import Choice, Log, explore
from condnum.numbers import num
from condnum.page.look import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, translucent
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
REGULARIZERS: dict[str, RegularizerName] = {"well: lowers κ (Eq. 3)": "well", "ill: raises κ (Eq. 12)": "ill"}
#: Spectra of one step, by what they are called; the last two refute the printed bounds.
SPECTRA = {
    "eight values, κ = 10": np.geomspace(10, 1, 8),
    "eight values, κ = 1,000": np.geomspace(1000, 1, 8),
    "(4, 1)": np.array([4.0, 1.0]),
    "(2.16, 1.94, 1.32)": np.array([2.15920825, 1.9376387, 1.32386916]),
}
_NAMES = {"well": "R<sub>well</sub>", "ill": "R<sub>ill</sub>"}
#: Steps η/η₀ of the curve κ(η), and decades of κ shown above the start.
STEPS, _DECADES = np.geomspace(10**-1.6, 10**1.6, 161), {"well": 2.0, "ill": 4.0}
#: Steps of a path; beyond this κ the smallest value is round-off of the largest.
PATH_STEPS, LARGEST_KAPPA = 100, 1e12


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


def _share_of_printed(share: float) -> float:
    """Return a share of the printed bound (2) at the last of `SPECTRA`, in units of η₀."""
    sigma = SPECTRA["(2.16, 1.94, 1.32)"]
    return float(share * ill_step_bound(sigma, bound="published") / annihilating_step("ill", sigma))


@explore(
    regularizer=Choice(REGULARIZERS, label="regularizer"),
    spectrum=Choice([*SPECTRA], label="spectrum σ"),
    step=Log(STEPS[0], STEPS[-1], stops=[0.03, 0.1, 0.3, 0.6, 1, 1.5, 3, 10, 30], label="step η/η₀"),
    scale=Log(0.01, 100, stops=[0.01, 1, 100], label="scale of σ"),
    presets={
        "Counter-example to printed bound (1)": {"spectrum": "(4, 1)", "step": 1.0},
        "Counter-example to printed bound (2)": {
            "spectrum": "(2.16, 1.94, 1.32)", "regularizer": "ill", "step": _share_of_printed(0.8063),
        },
    },
)  # fmt: skip
def one_step(
    regularizer: RegularizerName = "well",
    spectrum: str = "eight values, κ = 10",
    step: float = 0.3,
    scale: float = 1.0,
    move: Callable[[Floats, float, RegularizerName], Floats] = next_spectrum,
) -> tuple[list[Panel], str]:
    """One step of R_well or R_ill on a chosen spectrum, and κ(η) with both bounds of Theorem 4.3.

    In units of η₀, which sends the pushed value to 0, nothing depends on the scale but the printed bound (2).
    """
    sigma, well = scale * SPECTRA[spectrum], regularizer == "well"
    unit, kappa = annihilating_step(regularizer, sigma), float(kappas(sigma))
    bound = well_step_bound if well else ill_step_bound
    moved, index = np.asarray(move(sigma, step * unit, regularizer)), np.arange(1, len(sigma) + 1)
    after = float(kappas(moved))
    low, high = sigma[-1] / 10, sigma[0] * 10
    left = Panel("○ before, ◆ after the step", x="index i", y="σ<sub>i</sub>", log="y", width=0.7,
                 xlim=(0.4, len(sigma) + 0.6), ylim=(low, high))  # fmt: skip
    shown, gaps = np.clip(moved, 1.1 * low, high / 1.1), np.full(len(sigma), np.nan)  # a zero is on the edge
    along, up = (np.stack(parts, axis=1).ravel() for parts in ((index, index, gaps), (sigma, shown, gaps)))
    left.line("moves", along, up, NEUTRAL, width=1.5, legend=False, hoverinfo="skip")
    left.marks(
        "before", index, sigma, GREEN, "circle-open", legend=False, hover="σ<sub>%{x}</sub> = %{y:.4g}"
    )
    left.marks("after", index, shown, PURPLE, "diamond", legend=False, hover="σ<sub>%{x}</sub>′ = %{y:.4g}")
    near = kappa < 2  # the printed bound (2) fails by a few percent
    bottom, top = (0.8 * kappa, 1.3 * kappa) if near else (1.0, kappa * 10 ** _DECADES[regularizer])
    words = "η in units of η<sub>0</sub>, which sends the pushed value to 0"
    right = Panel("κ after a step of size η", x=words, y="κ(H(θ′))", log="x" if near else "xy")
    right.limits = [(STEPS[0], STEPS[-1]), (bottom, top)]
    printed, corrected = (float(bound(sigma, bound=of)) / unit for of in ("published", "corrected"))
    edge = min(max(corrected, STEPS[0]), STEPS[-1])
    right.area("below the corrected bound", [STEPS[0], edge, edge, STEPS[0]], [bottom, bottom, top, top],
               translucent(BLUE, 0.16), legend=False)  # fmt: skip
    if move is next_spectrum:  # what a call for each η would do
        slopes = of_spectrum(regularizer, sigma).slopes.numpy()
        curve = kappas(sigma * (1 - 2 * (STEPS * unit)[:, None] * slopes) ** 2)
    else:
        curve = kappas(np.array([move(sigma, eta, regularizer) for eta in (STEPS * unit).tolist()]))
    kept = curve < kappa if well else curve > kappa
    for name, mask, color in (("κ moves as promised", kept, GREEN), ("κ goes the wrong way", ~kept, ORANGE)):
        meeting = mask | np.append(False, mask[:-1])  # the two lines meet
        line = np.where(meeting, np.minimum(curve, 10 * top), np.nan)
        right.line(name, STEPS, line, color, width=3.5, hover="η = %{x:.3g} η₀: κ = %{y:.4g}")
    right.line("κ before", STEPS[[0, -1]], [kappa] * 2, NEUTRAL, "dot", width=2)
    for name, place, color, dash in (
        ("printed bound", printed, ORANGE, "dash"),
        ("corrected", corrected, BLUE, "solid"),
    ):
        there = [place if STEPS[0] <= place <= STEPS[-1] else np.nan] * 2
        right.line(name, there, [bottom, top], color, dash, width=2.5, hover=f"{name}: %{{x:.3g}} η₀")
    right.marks(
        "this step", [step], [min(max(after, bottom), 0.95 * top)], PURPLE, "diamond", size=14, legend=False
    )
    return [left, right], one_step_words(regularizer, kappa, after, step, printed, corrected)


def one_step_words(
    regularizer: RegularizerName, before: float, after: float, step: float, printed: float, corrected: float
) -> str:
    """Say what the step does to κ, and what both bounds, in units of η₀, say about it."""
    if math.isinf(after):
        which = "σ<sub>1</sub>" if regularizer == "well" else "σ<sub>k</sub>"
        moved = f"{which} becomes 0: κ → ∞ from both sides."
    else:
        falls = after < before
        moved = f"κ {'falls' if falls else 'rises'} from {num(before, 4)} to {num(after, 4)}"
        moved += "." if falls == (regularizer == "well") else ": <b>the wrong way</b>."
    said = [
        f"{'within' if step < bound else 'beyond'} the {name}, {num(bound)} η<sub>0</sub>"
        for name, bound in (("printed bound", printed), ("corrected one", corrected))
    ]
    if printed < 0:
        said[0] = "the printed bound is negative, so that it allows no step"
    if math.isinf(corrected):
        said[1] = "the corrected one allows every step (k = 2)"
    return f"{moved} η = {num(step)} η<sub>0</sub>: {said[0]}; {said[1]}."


def largest_safe_step(regularizer: RegularizerName, sigma: Floats) -> float:
    """Return the step below which κ moves as promised and no value is annihilated; 0 where there is none.

    That is bound (1) of Theorem 4.3 for R_well, and η₀, less than half of bound (2), for R_ill.
    """
    if of_spectrum(regularizer, sigma).multiplicity > 1:
        return 0.0
    return float(well_step_bound(sigma)) if regularizer == "well" else annihilating_step("ill", sigma)


def path_of_steps(
    regularizer: RegularizerName, sigma: Floats, share: float, steps: int, *, constant: bool
) -> tuple[Floats, str]:
    """Return a spectrum under many steps, `(T + 1, k)`, rows descending, and why it ended before `steps`."""
    path, eta = [sigma], share * largest_safe_step(regularizer, sigma)
    for _ in range(steps):
        if eta == 0:
            return np.array(path), "repeated"
        moved = np.sort(next_spectrum(path[-1], eta, regularizer))[::-1]
        if moved[0] > LARGEST_KAPPA * moved[-1]:
            return np.array(path), "round-off"
        path.append(moved)
        if not constant:
            eta = share * largest_safe_step(regularizer, moved)
    return np.array(path), ""


@explore(
    regularizer=Choice(REGULARIZERS, label="regularizer"),
    constant=Choice({"fraction of bound at each t": False, "constant η": True}, label="step sizes"),
    share=Log(0.01, 0.99, stops=[0.05, 0.2, 0.9], label="fraction of the bound"),
    kappa=Log(1.2, 1e4, stops=[10, 1e3], label="κ at the start"),
    k=Choice([3, 6], label="values k"),
    presets={
        "Monotone, yet κ stays above 1": {},
        "Over the bound, and further": {"constant": True},
        "Rᵢₗₗ, constant η": {"regularizer": "ill", "constant": True},
    },
)
def many_steps(
    regularizer: RegularizerName = "well",
    constant: bool = False,
    share: float = 0.2,
    kappa: float = 10.0,
    k: int = 6,
) -> tuple[list[Panel], str]:
    """Many steps of one regularizer: the spectrum, κ and R along the path."""
    path, end = path_of_steps(
        regularizer, np.geomspace(1, 1 / kappa, k), share, PATH_STEPS, constant=constant
    )
    t, ratio, name = np.arange(len(path)), kappas(path), _NAMES[regularizer]
    R = np.array([float(of_spectrum(regularizer, sigma).value) for sigma in path])
    change = np.diff(np.log(ratio))
    wrong = np.flatnonzero((change if regularizer == "well" else -change) > 1e-12) + 1  # more than round-off
    last = len(path) - 1
    along: dict[str, Any] = {"x": "step t", "log": "y", "xlim": (0, max(last, 10))}
    left = Panel("spectrum of H(θ<sub>t</sub>)", y="σ<sub>i</sub>", **along)
    right = Panel("κ and the regularizer", **along)
    for i in range(k):
        color = BLUE if i == 0 else ORANGE if i == k - 1 else NEUTRAL
        words = "σ<sub>1</sub>" if i == 0 else "σ<sub>k</sub>"
        left.line(
            words,
            t,
            path[:, i],
            color,
            "solid",
            width=3.5 if color != NEUTRAL else 2,
            legend=color != NEUTRAL,
        )
    right.line("κ(H(θ<sub>t</sub>))", t, ratio, GREEN, width=3.5, hover="t = %{x}: κ = %{y:.4g}")
    right.marks("κ went the wrong way", wrong, ratio[wrong], ORANGE, "x", size=8)
    left_over = np.where(R > 0, R / R[0], np.nan)
    right.line(f"{name} over its start", t, left_over, PURPLE, "dash", width=2.5, hover="t = %{x}: %{y:.4g}")
    way = "fall" if regularizer == "well" else "rise"
    kept = f"In {len(wrong)} of {last} steps κ does not {way}" if len(wrong) else f"Every step lets κ {way}"
    kept += f": from {num(ratio[0], 4)} to {num(ratio[-1], 4)}. "
    if end == "repeated":
        pair = "σ<sub>1</sub> and σ<sub>2</sub>" if regularizer == "well" else "the two smallest values"
        return [left, right], f"{kept}At t = {last}, {pair} are equal: the bound is 0, and κ stays."
    if end:
        return [left, right], f"{kept}The next step, t = {last + 1}, would exceed the range of float64."
    grown = (
        f"σ<sub>1</sub> ends at {num(path[-1, 0] / path[0, 0])} of its start, {name} at {num(R[-1] / R[0])}."
    )
    return [left, right], kept + grown


def value_plane() -> dict[str, tuple[Floats, Floats]]:
    """Return κ and R_ill along three ways from (1, ½, 0.1), against Theorem 4.1 (1): R_ill = 0 iff κ = ∞."""
    start = np.array([1.0, 0.5, 0.1])
    vanishing = np.tile(start, (121, 1))
    vanishing[:, 2] = np.geomspace(0.1, 1e-6, 121)
    families = {
        "(1, ½, σ), σ → 0: κ → ∞, R<sub>ill</sub> → 4.8": vanishing,
        "c · (1, ½, 0.1), c → ∞: R<sub>ill</sub> → 0, κ stays": np.geomspace(1, 1e3, 121)[:, None] * start,
        "steps of R<sub>ill</sub> of constant size": path_of_steps("ill", start, 0.5, 400, constant=True)[0],
    }
    return {
        name: (kappas(spectra), np.array([float(of_spectrum("ill", sigma).value) for sigma in spectra]))
        for name, spectra in families.items()
    }
