"""Notebook 3: many steps of one regularizer, and what its value says about κ.

Monotone is not convergent: under steps within the bound of Theorem 4.3 (1) κ falls for ever, and may
still come to rest above 1, because the bound goes to 0 where σ₂ has grown up to σ₁.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, num, translucent
from condnum.lessons.condition_number import Floats
from condnum.lessons.explorer import Choice, Explorer, Shown, Slider, checked
from condnum.lessons.regularizers import (
    BEND,
    BEND_HELP,
    KAPPA,
    NAMES,
    REGULARIZER_LABELS,
    RegularizerName,
    bent_spectrum,
    kappas,
    next_spectrum,
)
from condnum.lessons.sheet import Sheet
from condnum.lessons.two_tasks import two_tasks
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well_gradient
from condnum.theory.spectra import default_rtol, hessian
from condnum.theory.steps import ill_step_bound, well_step_bound

_PATH_STEPS, JOINT_STEPS = 100, 30
#: Values of a spectrum, each with a line of its own.
MOST_LINES = 8
#: Beyond this κ the smallest value is round-off of the largest.
LARGEST_KAPPA = 1e12
#: Change of log κ that is no round-off.
MOVED = 1e-12


def largest_safe_step(regularizer: RegularizerName, sigma: Floats) -> float:
    r"""Return the step size below which κ moves as promised and no value is annihilated.

    For R_well it is the corrected bound of Theorem 4.3 (1); for R_ill :math:`\eta_0 =
    \rho^2/(2(1-\frac1k)\sigma_k)`, which is less than half the corrected bound (2).
    """
    if not pushed_is_unique(regularizer, sigma):
        return 0.0
    if regularizer == "well":
        return float(well_step_bound(sigma))
    k = len(sigma)
    return float(1 / r_ill(np.diag(sigma), rank=k) ** 2 / (2 * (1 - 1 / k) * sigma[-1]))


def pushed_is_unique(regularizer: RegularizerName, spectra: Floats) -> NDArray[np.bool_]:
    """Tell whether the value that a regularizer pushes is unique, as Theorem 4.3 asks.

    The tolerance is twice that of the bounds in `condnum.theory.steps`, so that rounding cannot let a
    spectrum pass here and be refused there.
    """
    first, neighbour = (0, 1) if regularizer == "well" else (-1, -2)
    gap = np.abs(spectra[..., first] - spectra[..., neighbour])
    return np.asarray(gap > 2 * default_rtol(spectra.shape[-1]) * spectra[..., 0])


def values(regularizer: RegularizerName, spectra: Floats) -> Floats:
    """Return a regularizer of every spectrum."""
    mean_square = np.square(spectra).mean(axis=-1) / 2
    if regularizer == "well":
        return np.asarray(spectra[..., 0] ** 2 / 2 - mean_square)
    with np.errstate(divide="ignore"):  # infinite where a spectrum is flat
        return np.asarray(1 / (mean_square - spectra[..., -1] ** 2 / 2))


@lru_cache(maxsize=256)  # of states of an explorer that differ in the other task alone
def descended(regularizer: RegularizerName, sigma: tuple[float, ...], eta: float, steps: int) -> Floats:
    """Return a spectrum under steps of constant size, `(steps + 1, k)`, every row descending."""
    path = [np.array(sigma)]
    for _ in range(steps):
        path.append(np.sort(next_spectrum(regularizer, path[-1], eta))[::-1])
    return np.array(path)


@dataclass(frozen=True)
class RegularizerPath(Shown):
    """A spectrum under many steps of one regularizer."""

    regularizer: RegularizerName
    sizes: str
    sigma: Floats  # (T + 1, k), every row descending
    eta: Floats  # (T,) step sizes
    kappa: Floats  # (T + 1,)
    value: Floats  # (T + 1,) the regularizer
    end: str  # `steps`; `repeated`: the pushed value met its neighbour; `round_off`: κ > LARGEST_KAPPA

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
            (right, "κ; share of R at the start", np.append(self.kappa, share)),
        ):
            decades = np.log10(drawn[drawn > 0])
            low, high = max(decades.min(), -16.0) - 0.2, decades.max() + 0.2
            ticks = "D2" if high - low < 2 else 1 if high - low < 7 else 4
            panel.x("step t", 0, max(t[-1], 10))
            panel.y(text, low, high, log=True, dtick=ticks)
        rule = "within the bound" if self.sizes == "bound" else "of constant size"
        ends = f"κ = {num(self.kappa[0], 4)} → {num(self.kappa[-1], 4)}"
        return sheet.finish(f"{t[-1]} steps of {name} {rule}: {ends}")

    def reading(self) -> str:
        """Say whether κ was monotone, and where the path ended."""
        wrong, last, well = int(self.wrong_way.sum()), len(self.eta), self.regularizer == "well"
        way = "fall" if well else "rise"
        kept = f"In {wrong} of {last} steps κ does not {way}." if wrong else f"Every step lets κ {way}."
        if self.end == "repeated":
            pair = "σ<sub>1</sub> and σ<sub>2</sub>" if well else "the two smallest values"
            return (
                f"{kept} At t = {last}, {pair} are equal: Theorem 4.3 is silent there, the bound is 0, "
                f"and κ rests at {num(self.kappa[-1])}. Monotone is not convergent."
            )
        if self.end == "round_off":
            return f"{kept} At t = {last} the next step would leave float64: κ beyond 10<sup>12</sup>."
        grown, left = self.sigma[-1, 0] / self.sigma[0, 0], self.value[-1] / self.value[0]
        return f"{kept} σ<sub>1</sub> ends at {num(grown)} of its start, R at {num(left)}."


@checked(
    regularizer=Choice("regularizer", "Which one is descended.", REGULARIZER_LABELS),
    sizes=Choice(
        "step sizes",
        "How η is chosen at every step.",
        {"bound": "share of the bound, each t", "constant": "constant η"},
    ),
    share=Slider(
        "share of the bound", "η over the largest step with a promise.", 0.01, 0.99, log=True, step=0.05
    ),
    kappa=Slider("κ at the start", "Condition number at the start.", *KAPPA, log=True, step=0.05),
    dimension=Slider("dimension k = D", "Number k = D of singular values.", 2, MOST_LINES, advanced=True),
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
        moved = np.sort(next_spectrum(regularizer, sigma[-1], eta))[::-1]
        if moved[0] > LARGEST_KAPPA * moved[-1]:
            end = "round_off"
            break
        sigma.append(moved)
        etas.append(eta)
        if sizes == "bound":
            eta = share * largest_safe_step(regularizer, moved)
    path = np.array(sigma)
    return RegularizerPath(
        regularizer, sizes, path, np.array(etas), kappas(path), values(regularizer, path), end
    )


class RegularizerPathExplorer(Explorer):
    """Many steps of one regularizer: the spectrum, κ and R along the path."""

    compute = staticmethod(regularizer_path)


def value_plane(points: int = 121, steps: int = 400) -> dict[str, tuple[Floats, Floats]]:
    r"""Return κ and R_ill along three ways to leave the spectrum (1, ½, 0.1), none of which ties the two.

    Theorem 4.1 (1) says :math:`R_{ill}(S) = 0` iff :math:`\kappa(S) = \infty`. But σ → 0 in (1, ½, σ) sends
    κ to ∞ and R_ill to 4.8, and S → cS sends R_ill to 0 at fixed κ. The third way are steps of R_ill of
    constant size.

    Examples:
        >>> kappa, value = value_plane()["vanishing"]
        >>> f"{kappa[-1]:.0e}", round(float(value[-1]), 9)
        ('1e+06', 4.8)
        >>> kappa, value = value_plane()["scaled"]
        >>> round(float(kappa[-1]), 9), bool(value[-1] < 1e-5)
        (10.0, True)
    """
    start = np.array([1.0, 0.5, 0.1])
    vanishing = np.tile(start, (points, 1))
    vanishing[:, 2] = np.geomspace(0.1, 1e-6, points)
    families = {
        "vanishing": vanishing,
        "scaled": np.geomspace(1, 1e3, points)[:, None] * start,
        "descended": descended("ill", tuple(start.tolist()), 0.5 * largest_safe_step("ill", start), steps),
    }
    return {name: (kappas(sigma), values("ill", sigma)) for name, sigma in families.items()}


def value_plane_figure(curves: Mapping[str, tuple[Floats, Floats]]) -> Any:
    """Draw the three families of `value_plane` in the plane of κ and R_ill."""
    sheet = Sheet()
    (panel,) = sheet.panels
    looks = {
        "vanishing": ("(1, ½, σ), σ → 0", ORANGE, "solid"),
        "scaled": ("c · (1, ½, 0.1), c → ∞", BLUE, "dash"),
        "descended": ("steps of R<sub>ill</sub> of constant size", GREEN, "dot"),
    }
    hover = "κ = %{x:.4g}, R = %{y:.4g}"
    for family, (name, color, dash) in looks.items():
        panel.line(name, *curves[family], color, dash, width=4, hover=hover)
    start = (curve[:1] for curve in curves["scaled"])
    panel.marks("(1, ½, 0.1)", *start, "star", 17, PURPLE, hover=hover)
    panel.x("κ(S)", 0.5, 6.1, log=True)
    panel.y("R<sub>ill</sub>(S)", -5.6, 1.3, log=True)
    note = "Orange: κ → ∞ and R<sub>ill</sub> stays at 4.8. Blue: R<sub>ill</sub> → 0 and κ stays at 10."
    return sheet.finish("R<sub>ill</sub> does not know κ", note)


@dataclass(frozen=True)
class JointSteps(Shown):
    """A run with both terms, beside what each term alone does to its own κ."""

    eta_pretrain: float  # η_P
    K_P: Floats  # (D, D)
    K_H: Floats  # (D, D)
    theta: Floats  # (D, D) after the last step
    kappa_pretrain: Floats  # (T + 1,) κ(H_P(θ_t)), both terms
    kappa_harmful: Floats  # (T + 1,) κ(H_H(θ_t)), both terms
    well_alone: Floats  # (T + 1,) κ(H_P) under R_well alone
    ill_alone: Floats  # (T + 1,) κ(H_H) under R_ill alone
    within: NDArray[np.bool_]  # (T,) steps where η_P and η_H are below their corrected bounds at θ_t
    rir_max: float  # the ceiling of RIR over all invertible θ

    @property
    def ratio_harmful(self) -> Floats:
        """(i) of Definition 3.1, κ(H_H(θ_t))/κ(K_H), `(T + 1,)`: above 1 is wanted."""
        return self.kappa_harmful / self.kappa_harmful[0]

    @property
    def ratio_pretrain(self) -> Floats:
        """(ii) of Definition 3.1, κ(H_P(θ_t))/κ(K_P), `(T + 1,)`: at most 1 is wanted."""
        return self.kappa_pretrain / self.kappa_pretrain[0]

    @property
    def pretrain_rises(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_P) rises all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_pretrain)) > MOVED)

    @property
    def harmful_falls(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_H) falls all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_harmful)) < -MOVED)

    def figure(self) -> Any:
        """Draw both κ's under both terms, beside the plane of Definition 3.1."""
        titles = ("condition numbers along the run", "immunized? Definition 3.1")
        sheet = Sheet(*titles, column_widths=[0.56, 0.44])
        left, right = sheet.panels
        t, told = np.arange(len(self.kappa_pretrain)), {"hover": "t = %{x}: κ = %{y:.4g}"}
        left.line("κ(H<sub>P</sub>)", t, self.kappa_pretrain, BLUE, width=3.5, **told)
        left.line("R<sub>well</sub> alone", t, self.well_alone, BLUE, "dot", width=2, **told)
        left.line("κ(H<sub>H</sub>)", t, self.kappa_harmful, ORANGE, width=3.5, **told)
        left.line("R<sub>ill</sub> alone", t, self.ill_alone, ORANGE, "dot", width=2, **told)
        rises, falls = (np.flatnonzero(steps) + 1 for steps in (self.pretrain_rises, self.harmful_falls))
        wrong = np.append(rises, falls), np.append(self.kappa_pretrain[rises], self.kappa_harmful[falls])
        left.marks("wrong way, within both bounds", *wrong, "x", 8, PURPLE, **told)
        ii, i = self.ratio_pretrain, self.ratio_harmful
        low, high = math.log10(min(*ii, *i, 0.05)) - 0.2, math.log10(max(*ii, *i, 100)) + 0.2
        least, most = 10**low, 10**high
        wanted = [least, 1, 1, least], [1, 1, most, most]
        right.area("(i) > 1 and (ii) ≤ 1", *wanted, translucent(GREEN, 0.18), legend=False)
        limit = [least, most], [self.rir_max * least, self.rir_max * most]
        told = {"hover": "(i)/(ii) = RIR<sub>max</sub><extra></extra>"}
        right.line("RIR<sub>max</sub>", *limit, NEUTRAL, "dash", width=2, **told)
        pair = "(ii) = %{x:.3g}, (i) = %{y:.3g}<extra></extra>"
        named = {"customdata": t, "hover": "t = %{customdata}: " + pair, "legend": False}
        right.line("path", ii, i, GREEN, width=2, size=5, **named)
        rim = {"hover": pair, "marker": {"line": {"width": 2}}, "legend": False}
        ends = ii[[0, -1]], i[[0, -1]]
        right.marks("first and last", *ends, ["circle-open", "star"], [13, 17], GREEN, **rim)
        drawn = (self.kappa_pretrain, self.well_alone, self.kappa_harmful, self.ill_alone)
        top = max(3.0, math.log10(np.max(drawn)) + 0.2)
        left.x("step t", 0, max(10, t[-1]))
        left.y("κ", -0.1, top, log=True)
        right.x("(ii) κ(H<sub>P</sub>)/κ(K<sub>P</sub>), ≤ 1 wanted", low, high, log=True)
        right.y("(i) κ(H<sub>H</sub>)/κ(K<sub>H</sub>), > 1 wanted", low, high, log=True)
        rir = f"RIR = {num(i[-1] / ii[-1])} of at most {num(self.rir_max)}"
        return sheet.finish(f"Algorithm 1 with both terms, t = {t[-1]}: {rir}")

    def reading(self) -> str:
        """Say how often both promises were broken, and whether the end is immunized."""
        rises, falls, within = (
            int(steps.sum()) for steps in (self.pretrain_rises, self.harmful_falls, self.within)
        )
        i, ii = self.ratio_harmful[-1], self.ratio_pretrain[-1]
        verdict = "immunized" if i > 1 and ii <= 1 else "<b>not immunized</b>"
        return (
            f"{within} of {len(self.within)} steps are within both corrected bounds; in {rises} of "
            f"these κ(H<sub>P</sub>) rises all the same, in {falls} κ(H<sub>H</sub>) falls. "
            f"At the end (i) = {num(i)}, (ii) = {num(ii)}: {verdict} by (i) > 1 and (ii) ≤ 1."
        )


def joint_step(theta: Floats, H_P: Floats, H_H: Floats, eta_P: float, eta_H: float) -> Floats:
    r"""Return line 6 of Algorithm 1 without the supervised loss, from both Hessians at θ.

    .. math:: \theta' = \theta - \eta_P K_P^{-1}\nabla_\theta R_{well}(H_P(\theta))
        - \eta_H K_H^{-1}\nabla_\theta R_{ill}(H_H(\theta)),
        \quad K^{-1}\nabla_\theta R(H(\theta)) = 2\theta\nabla_H R
    """
    well, ill = r_well_gradient(H_P).gradient, r_ill_gradient(H_H, rank=len(H_H)).gradient
    return np.asarray(theta - 2 * theta @ (eta_P * well + eta_H * ill))


_DECADES: dict[str, Any] = {"log": True, "step": 0.05}


@checked(
    angle=Slider("angle of the tasks (degrees)", "0: axes in one order; 90: in opposite.", 0, 90),
    dimension=Slider("dimension D", "Number D of features.", 2, 16, advanced=True),
    share_well=Slider(
        "η<sub>P</sub> over its bound",
        "The corrected one, at θ = I.",
        0.01,
        0.99,
        advanced=True,
        **_DECADES,
    ),
    share_ill=Slider(
        "η<sub>H</sub> over its bound",
        "The safe step at θ = I.",
        0.001,
        0.99,
        marks=4,
        **_DECADES,
    ),
    kappa_pretrain=Slider("κ(K<sub>P</sub>)", "Of the benign task.", 10**0.05, 1000, marks=4, **_DECADES),
    kappa_harmful=Slider("κ(K<sub>H</sub>)", "Of the harmful task.", 10**0.05, 1000, marks=4, **_DECADES),
)
def joint_steps(
    *,
    angle: float = 15.0,
    dimension: int = 4,
    share_well: float = 0.5,
    share_ill: float = 0.1,
    kappa_pretrain: float = 20.0,
    kappa_harmful: float = 5.0,
    steps: int = JOINT_STEPS,
) -> JointSteps:
    """Run Algorithm 1 by plain gradient descent from θ = I, with both regularizers and no loss.

    Both covariances have geometric spectra with σ₁ = 1, see `two_tasks`. Fewer steps are taken where a κ
    exceeds `LARGEST_KAPPA` or θ diverges.

    Examples:
        >>> run = joint_steps(angle=0.0, steps=20)
        >>> bool(run.harmful_falls.any()), bool((np.diff(run.ill_alone) > 0).all())
        (True, True)
    """
    K_P, K_H = two_tasks(kappa_pretrain, kappa_harmful, angle, dimension)
    sigma_P, sigma_H = (bent_spectrum(kappa=k, dimension=dimension) for k in (kappa_pretrain, kappa_harmful))
    eta_P = share_well * largest_safe_step("well", sigma_P)
    eta_H = share_ill * largest_safe_step("ill", sigma_H)
    theta, H_P, H_H, spectra = np.eye(dimension), K_P, K_H, [(sigma_P, sigma_H)]
    for _ in range(steps):
        moved = joint_step(theta, H_P, H_H, eta_P, eta_H)
        H_P, H_H = (np.asarray(hessian(moved, K), dtype=np.float64) for K in (K_P, K_H))
        P, H = (np.asarray(np.linalg.eigvalsh(matrix)[::-1]) for matrix in (H_P, H_H))
        if any(sigma[0] > max(LARGEST_KAPPA * sigma[-1], 1) for sigma in (P, H)):
            break
        theta = moved
        spectra.append((P, H))
    P, H = (np.array(side) for side in zip(*spectra, strict=True))
    within = np.ones(len(P) - 1, dtype=bool)  # the theorem is silent where the pushed value is repeated
    runs: tuple[tuple[RegularizerName, Any, float, Floats], ...] = (
        ("well", well_step_bound, eta_P, P),
        ("ill", ill_step_bound, eta_H, H),
    )
    for regularizer, bound, eta, sigma in runs:
        unique = pushed_is_unique(regularizer, sigma[:-1])
        within &= unique
        if unique.any():
            within[unique] &= eta < bound(sigma[:-1][unique])
    well_alone, ill_alone = (
        kappas(descended(name, tuple(sigma[0].tolist()), eta, len(P) - 1)) for name, _, eta, sigma in runs
    )
    limit = rir_ceiling(K_P, K_H).value
    return JointSteps(eta_P, K_P, K_H, theta, kappas(P), kappas(H), well_alone, ill_alone, within, limit)


class JointStepsExplorer(Explorer):
    """Algorithm 1 with both regularizers on two small tasks, where the guarantees stop adding up."""

    compute = staticmethod(joint_steps)
