"""Notebook 3: many steps of one regularizer, and what its value says about κ."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import Choice, Explorer, ExplorerResult, Slider, with_controls
from condnum.lessons.frame.sheet import Sheet
from condnum.lessons.regularizers import (
    BEND,
    BEND_HELP,
    KAPPA,
    NAMES,
    REGULARIZER_LABELS,
    RegularizerName,
    annihilating_step,
    bent_spectrum,
    kappas,
    next_spectrum,
    of_spectrum,
)
from condnum.numbers import num
from condnum.page.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE
from condnum.theory.regularizers import well_step_bound

_PATH_STEPS = 100
#: Values of a spectrum, each with a line of its own.
MOST_LINES = 8
#: Beyond this κ the smallest value is round-off of the largest.
LARGEST_KAPPA = 1e12
#: Change of log κ that is not round-off.
MOVED = 1e-12


def largest_safe_step(regularizer: RegularizerName, sigma: Floats) -> float:
    """Return the step below which κ moves as promised and no value is annihilated; 0 where there is none.

    That is bound (1) of Theorem 4.3 for R_well, and η₀, less than half of bound (2), for R_ill.
    """
    if of_spectrum(regularizer, sigma).multiplicity > 1:
        return 0.0
    return float(well_step_bound(sigma)) if regularizer == "well" else annihilating_step("ill", sigma)


@lru_cache(maxsize=256)  # of states of an explorer that differ in the other task alone
def descended(regularizer: RegularizerName, sigma: tuple[float, ...], eta: float, steps: int) -> Floats:
    """Return a spectrum under steps of constant size, `(steps + 1, k)`, every row descending."""
    path = [np.array(sigma)]
    for _ in range(steps):
        path.append(np.sort(next_spectrum(path[-1], eta, regularizer))[::-1])
    return np.array(path)


@dataclass(frozen=True)
class RegularizerPath(ExplorerResult):
    """A spectrum under many steps of one regularizer."""

    regularizer: RegularizerName
    sizes: str
    sigma: Floats  # (T + 1, k), every row descending
    eta: Floats  # (T,) step sizes
    kappa: Floats  # (T + 1,)
    value: Floats  # (T + 1,) the regularizer
    end: str  # `steps`; `repeated`: the pushed value met its neighbor; `round_off`: κ > LARGEST_KAPPA

    @property
    def wrong_way(self) -> NDArray[np.bool_]:
        """Steps in which κ moved against the regularizer's purpose by more than round-off, `(T,)`."""
        change = np.diff(np.log(self.kappa))
        return (change if self.regularizer == "well" else -change) > MOVED

    def figure(self) -> Any:
        """Draw a spectrum under many steps, beside κ and the regularizer's value."""
        sheet = Sheet("spectrum of H(θ<sub>t</sub>)", "κ and the regularizer")
        left, right = sheet.panels
        t, k, name = np.arange(len(self.sigma)), self.sigma.shape[1], NAMES[self.regularizer]
        for i in range(1, MOST_LINES - 1):  # as many lines for every k
            line = self.sigma[:, i] if i < k - 1 else np.full(len(t), np.nan)
            hover = f"t = %{{x}}: σ<sub>{i + 1}</sub> = %{{y:.4g}}<extra></extra>"
            left.line(f"between {i + 1}", t, line, NEUTRAL, width=2, hover=hover, legend=False)
        for end, line, color in (("1", self.sigma[:, 0], BLUE), ("k", self.sigma[:, -1], ORANGE)):
            hover = f"t = %{{x}}: σ<sub>{end}</sub> = %{{y:.4g}}<extra></extra>"
            left.line(f"σ<sub>{end}</sub>", t, line, color, width=3.5, hover=hover)
        hover = "t = %{x}: κ = %{y:.4g}<extra></extra>"
        right.line("κ(H(θ<sub>t</sub>))", t, self.kappa, GREEN, width=3.5, hover=hover)
        wrong = np.flatnonzero(self.wrong_way) + 1
        right.marks("κ went the wrong way", wrong, self.kappa[wrong], "x", 8, ORANGE, hover=hover)
        share = self.value / self.value[0]
        shown, hover = np.where(share > 0, share, np.nan), "t = %{x}: %{y:.4g} of the start<extra></extra>"
        right.line(f"{name} over its start", t, shown, PURPLE, "dash", width=2.5, hover=hover)
        for panel, text, drawn in (
            (left, "σ<sub>i</sub>", self.sigma),
            (right, "κ; R over its initial value", np.append(self.kappa, share)),
        ):
            decades = np.log10(drawn[drawn > 0])
            low, high = max(decades.min(), -16.0) - 0.2, decades.max() + 0.2
            ticks = "D2" if high - low < 2 else 1 if high - low < 7 else 4
            panel.x("step t", 0, max(t[-1], 10))
            panel.y(text, low, high, log=True, dtick=ticks)
        rule = "within the bound" if self.sizes == "bound" else "of constant size"
        ends = f"κ = {num(self.kappa[0], 4)} → {num(self.kappa[-1], 4)}"
        return sheet.finish(f"{t[-1]} steps of {name} {rule}: {ends}")

    def caption(self) -> str:
        """Say whether κ was monotone, and where the path ended."""
        wrong, last, well = int(self.wrong_way.sum()), len(self.eta), self.regularizer == "well"
        way = "fall" if well else "rise"
        kept = f"In {wrong} of {last} steps κ does not {way}." if wrong else f"Every step lets κ {way}."
        if self.end == "repeated":
            pair = "σ<sub>1</sub> and σ<sub>2</sub>" if well else "the two smallest values"
            return (
                f"{kept} At t = {last}, {pair} are equal: Theorem 4.3 does not apply there, the bound is 0, "
                f"and κ stays at {num(self.kappa[-1])}. A monotone κ need not converge to 1."
            )
        if self.end == "round_off":
            beyond = "the next step would exceed the range of float64: κ is above 10<sup>12</sup>."
            return f"{kept} At t = {last} {beyond}"
        grown, left = self.sigma[-1, 0] / self.sigma[0, 0], self.value[-1] / self.value[0]
        return f"{kept} σ<sub>1</sub> ends at {num(grown)} of its start, R at {num(left)}."


@with_controls(
    regularizer=Choice("regularizer", "Regularizer that is descended.", REGULARIZER_LABELS),
    sizes=Choice(
        "step sizes",
        "How η is chosen in each step.",
        {"bound": "fraction of the bound at each t", "constant": "constant η"},
    ),
    share=Slider("fraction of the bound", "η over the largest safe step.", 0.01, 0.99, log=True, step=0.05),
    kappa=Slider("κ at the start", "Initial condition number.", *KAPPA, log=True, step=0.05),
    dimension=Slider("dimension k = D", "Number of singular values.", 2, MOST_LINES, advanced=True),
    bend=Slider("crowding of σ", BEND_HELP, *BEND, log=True, step=0.05, marks=3),
)
def regularizer_path(
    *,
    regularizer: RegularizerName = "well",
    sizes: Literal["bound", "constant"] = "bound",
    share: float = 0.2,
    kappa: float = 10.0,
    dimension: int = 6,
    bend: float = 1.0,
    steps: int = _PATH_STEPS,
) -> RegularizerPath:
    """Follow a spectrum through many steps."""
    sigma, etas, end = [bent_spectrum(kappa=kappa, dimension=dimension, bend=bend)], [], "steps"
    eta = share * largest_safe_step(regularizer, sigma[0])
    for _ in range(steps):
        if eta == 0:
            end = "repeated"
            break
        moved = np.sort(next_spectrum(sigma[-1], eta, regularizer))[::-1]
        if moved[0] > LARGEST_KAPPA * moved[-1]:
            end = "round_off"
            break
        sigma.append(moved)
        etas.append(eta)
        if sizes == "bound":
            eta = share * largest_safe_step(regularizer, moved)
    path = np.array(sigma)
    R = _values(regularizer, path)
    return RegularizerPath(regularizer, sizes, path, np.array(etas), kappas(path), R, end)


class RegularizerPathExplorer(Explorer):
    """Many steps of one regularizer: the spectrum, κ and R along the path."""

    compute = staticmethod(regularizer_path)


def value_plane() -> dict[str, tuple[Floats, Floats]]:
    """Return κ and R_ill along three ways from (1, ½, 0.1), against Theorem 4.1 (1): R_ill = 0 iff κ = ∞."""
    start = np.array([1.0, 0.5, 0.1])
    vanishing = np.tile(start, (121, 1))
    vanishing[:, 2] = np.geomspace(0.1, 1e-6, 121)
    constant = descended("ill", tuple(start.tolist()), 0.5 * largest_safe_step("ill", start), 400)
    families = {
        "(1, ½, σ), σ → 0": vanishing,
        "c · (1, ½, 0.1), c → ∞": np.geomspace(1, 1e3, 121)[:, None] * start,
        "steps of R<sub>ill</sub> of constant size": constant,
    }
    return {name: (kappas(spectra), _values("ill", spectra)) for name, spectra in families.items()}


def _values(regularizer: RegularizerName, spectra: Floats) -> Floats:
    """Return the regularizer of each spectrum `(T, k)`."""
    return np.array([float(of_spectrum(regularizer, sigma).value) for sigma in spectra])
