"""Notebook 1: gradient descent on a quadratic, and what κ does to it; `e_t = w_t − w*` is the error."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.lessons.frame.explorer import Choice, Explorer, ExplorerResult, Slider, with_controls
from condnum.lessons.frame.own import Own, Tried
from condnum.lessons.frame.sheet import Sheet
from condnum.numbers import num
from condnum.page.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, log_axis
from condnum.probing import ProbeCurve, linear_probe
from condnum.probing.probe import log_spaced
from condnum.theory.task import Task

SpectrumShape = Literal["geometric", "linear", "clusters", "outlier"]
Floats = NDArray[np.float64]

SHAPE_LABELS = {"clusters": "two clusters", "outlier": "one small outlier"}
#: Steps that the 2-D and the D-dimensional figure follow.
ZIGZAG_STEPS, SPECTRUM_STEPS = 40, 1000
#: Nothing below this is drawn; the axes stay where they are while a slider moves.
_ZIGZAG_FLOOR, _SPECTRUM_FLOOR = 1e-8, 1e-32
#: The plane is shown from −_FLAT to _FLAT and from −_STEEP to _STEEP; the path starts at distance 1.
_FLAT, _STEEP = 1.1, 0.72


def norm_bound(kappa: float, steps: NDArray[np.int64]) -> Floats:
    r"""Right-hand side of Eq. 2, :math:`(1 - 1/\kappa)^t`; also for exact line search, by Cauchy–Schwarz."""
    return np.asarray((1 - 1 / kappa) ** steps, dtype=np.float64)


def kantorovich_bound(kappa: float, steps: NDArray[np.int64]) -> Floats:
    r"""Kantorovich's bound :math:`((\kappa-1)/(\kappa+1))^{2t}` on excess loss; line search attains it."""
    return np.asarray(((kappa - 1) / (kappa + 1)) ** (2 * steps), dtype=np.float64)


def ratio_lines(
    panel: Any, steps: NDArray[np.int64], floor: float, *ratios: tuple[str, Any, str, str, float]
) -> None:
    """Draw fractions of the start; zero, and what lies far below the frame, no logarithmic axis can show."""
    for name, values, color, dash, width in ratios:
        shown = np.where(values > floor * 1e-3, values, np.nan)
        panel.line(name, steps, shown, color, dash, width=width, hover="t = %{x:,d}: %{y:.3e}")


@dataclass(frozen=True)
class Zigzag(ExplorerResult):
    """Gradient descent in the plane, with the two bounds."""

    kappa: float  # κ = σ₁/σ₂, with σ₁ = 1
    rule: str  # "exact", "constant", or what else steps
    step: int  # the step that the reader looks at
    path: Floats  # (T + 1, 2) w_t − w* in the eigenbasis: steep, flat; ‖w_0 − w*‖ = 1
    norm_ratio: Floats  # (T + 1,) Eq. 16
    energy_ratio: Floats  # (T + 1,) excess loss over that at the start
    norm_bound: Floats  # (T + 1,) Eq. 2
    energy_bound: Floats  # (T + 1,) Kantorovich

    def figure(self) -> Any:
        """Draw the path in the plane beside the two ratios and their bounds."""
        titles = ("contours of L(w), path w<sub>0</sub> … w<sub>t</sub>", "distance to the optimum")
        sheet = Sheet(*titles, column_widths=[0.56, 0.44])
        plane, right = sheet.panels
        sigma, shown = np.array([1.0, 1 / self.kappa]), self.path[: self.step + 1]
        corner = _FLAT**2 * sigma[1] + _STEEP**2  # energy in the corner of the panel
        levels = np.geomspace(1, 1e-4, 9) * corner
        contours(plane, "contour lines", levels, sigma, NEUTRAL, width=1, opacity=0.6, legend=False)
        here = [float(shown[-1] ** 2 @ sigma)]
        contours(plane, "contour through w<sub>t</sub>", here, sigma, GREEN, "dot", width=2)
        hover = "w<sub>%{customdata}</sub> = (%{x:.4g}, %{y:.4g})<extra></extra>"
        path = {"customdata": np.arange(len(shown)), "hover": hover, "legend": False}
        plane.line("iterates", shown[:, 1], shown[:, 0], BLUE, width=2.5, size=8, **path)
        plane.marks("w*", [0.0], [0.0], "star", 15, ORANGE, hover="the minimizer w*<extra></extra>")
        t = np.arange(len(self.path))
        ratio_lines(
            right,
            t,
            _ZIGZAG_FLOOR,
            ("norm bound, Eq. 2: (1 − 1/κ)<sup>t</sup>", self.norm_bound, BLUE, "dash", 2),
            ("energy bound: ((κ − 1)/(κ + 1))<sup>2t</sup>", self.energy_bound, ORANGE, "dash", 2),
            ("norm ratio ‖w<sub>t</sub> − w*‖²", self.norm_ratio, BLUE, "solid", 3),
            ("energy ratio (excess loss)", self.energy_ratio, ORANGE, "dot", 3),
        )
        ends = np.array([self.norm_ratio[self.step], self.energy_ratio[self.step]])
        ends[ends <= _ZIGZAG_FLOOR * 1e-3] = np.nan
        right.marks("shown step", [self.step] * 2, ends, "circle", [17, 9], [BLUE, ORANGE], legend=False)
        frame = {"constrain": "domain"}  # keeps the ranges whatever the shape of the window
        plane.x("along the flat axis u<sub>2</sub>", -_FLAT, _FLAT, **frame)
        plane.y("along the steep axis u<sub>1</sub>", -_STEEP, _STEEP, scaleanchor="x", **frame)
        right.x("step t", 0, t[-1])
        right.y("fraction of the initial value", math.log10(_ZIGZAG_FLOOR), 0.3, log=True)
        rules = {"exact": "exact line search", "constant": "constant step 1/σ<sub>1</sub>"}
        rule = rules.get(self.rule, self.rule)
        return sheet.finish(f"Gradient descent with {rule}, κ = {num(self.kappa)}, t = {self.step}")

    def caption(self) -> str:
        """Say how fast it is, and how that compares with the worst case."""
        contraction, worst = float(self.energy_ratio[1]), float(self.energy_bound[1])
        left, allowed = num(self.norm_ratio[self.step]), num(self.norm_bound[self.step])
        if contraction < 1e-15:
            return "The first gradient points straight at w*: one step arrives, whatever κ is."
        if self.rule == "constant":
            return (
                f"With the constant step 1/σ<sub>1</sub>, {self.step} steps leave {left} "
                f"of the squared distance; Eq. 2 allows {allowed}."
            )
        attained = abs(contraction / worst - 1) < 1e-9
        compared = "exactly Kantorovich's worst case" if attained else f"the worst case is {worst:.4f}"
        if contraction > worst and not attained:
            compared = f"more than exact line search in its worst case, {worst:.4f}"
        return (
            f"{'Every' if self.rule == 'exact' else 'The first'} step leaves {contraction:.4f} of the excess "
            f"loss, {compared}. "
            f"After {self.step} steps: {left} of the squared distance; Eq. 2 allows {allowed}."
        )


def exact_line_search(e: Floats, H: Floats) -> Floats:
    """Return `e − αg` with `g = He`, `α = gᵀg/gᵀHg`."""
    g = H @ e
    return e - (g @ g) / (g @ (H @ g)) * g


@with_controls(
    kappa=Slider("condition number κ", "Condition number σ₁/σ₂ of H (Eq. 1).", 1, 1000, log=True, marks=7),
    angle=Slider("start angle φ (degrees)", "Of the first gradient to the steep axis; 45° is worst.", 0, 90),
    rule=Choice(
        "step size", "How it is chosen.", {"exact": "exact line search", "constant": "constant, 1/σ₁"}
    ),
    step=Slider("step t", "Number of steps drawn in the plane.", 0, ZIGZAG_STEPS, play=400, marks=20),
)
def zigzag(
    *,
    kappa: float = 10.0,
    angle: float = 45.0,
    rule: Literal["exact", "constant"] = "exact",
    step: int = 5,
    steps: int = ZIGZAG_STEPS,
    descend: Callable[[Floats, Floats], Floats] = exact_line_search,
) -> Zigzag:
    """Run gradient descent on `H = diag(1, 1/κ)` in the plane; the first gradient has the angle φ.

    Exact line search contracts the energy in every step by `(κ−1)²/((κ + tan²φ)(κ + cot²φ))`. `descend`
    takes `e_t` and H to `e_{t+1}`.
    """
    sigma, phi = np.array([1.0, 1 / kappa]), np.deg2rad(angle)
    gradient = np.array([np.cos(phi), np.sin(phi)])
    gradient[np.abs(gradient) < np.finfo(np.float64).eps] = 0  # cos 90° is 6e-17
    path = [gradient / sigma / np.linalg.norm(gradient / sigma)]
    for _ in range(steps):
        e = path[-1]
        g = sigma * e
        if rule == "constant" or g @ (sigma * g) == 0:  # at the minimum there is no direction
            path.append(e - g)
        else:
            path.append(descend(e, np.diag(sigma)))
    points, t = np.array(path), np.arange(steps + 1)
    energy, norm = points**2 @ sigma, (points**2).sum(axis=1)
    bounds = norm_bound(kappa, t), kantorovich_bound(kappa, t)
    named = f"your {descend.name}" if isinstance(descend, Tried) and not descend.agrees else rule
    return Zigzag(kappa, named, min(step, steps), points, norm, energy / energy[0], *bounds)


class GradientDescentExplorer(Explorer):
    """The zig-zag of gradient descent in the plane, and what κ has to do with it."""

    compute = staticmethod(zigzag)
    own = Own("descend", exact_line_search)


def contours(
    panel: Any, name: str, energies: Any, sigma: Floats, color: str, dash: str = "solid", **look: Any
) -> None:
    """Draw the ellipses `eᵀHe = energy` of `H = diag(σ)` as one trace; the flat axis lies horizontally."""
    around = np.append(np.linspace(0, 2 * np.pi, 121), np.nan)  # a gap between two ellipses
    radii = np.sqrt(np.asarray(energies)[:, None, None] / sigma)
    steep, flat = (radii * np.stack([np.sin(around), np.cos(around)], axis=1)).reshape(-1, 2).T
    panel.line(name, flat, steep, color, dash, hoverinfo="skip", **look)


def contours_figure(axes_ratio: float) -> Any:
    """Draw contour lines of a quadratic in the plane, to scale, with half-axes `axes_ratio` : 1."""
    sheet = Sheet()
    (plane,) = sheet.panels
    energies = np.array([0.25, 0.5, 0.75, 1.0]) ** 2
    contours(plane, "contours", energies, np.array([1.0, axes_ratio**-2]), BLUE, width=2, legend=False)
    plane.marks("w*", [0.0], [0.0], "star", 12, ORANGE, legend=False)
    plane.x("along the flat axis u<sub>2</sub>", constrain="domain", dtick=1)
    plane.y("along u<sub>1</sub>", scaleanchor="x", dtick=1)
    title = f"Contours of L(w), half-axes {num(axes_ratio)} : 1"
    return sheet.finish(title, height=340, margin={"b": 60})


def spectrum(shape: SpectrumShape, dimension: int, kappa: float) -> Floats:
    """Return a descending spectrum `(D,)` from σ₁ = 1 down to σ_D = 1/κ."""
    if shape == "geometric":
        return np.geomspace(1.0, 1 / kappa, dimension)
    if shape == "linear":
        return np.linspace(1.0, 1 / kappa, dimension)
    large = (dimension + 1) // 2 if shape == "clusters" else dimension - 1
    return np.where(np.arange(dimension) < large, 1.0, 1 / kappa)


@dataclass(frozen=True)
class SpectrumDescent(ExplorerResult):
    """Exact line search in D dimensions, with the two bounds."""

    kappa: float
    sigma: Floats  # (D,) descending
    curve: ProbeCurve  # norm ratio (Eq. 16) and excess loss at the recorded steps
    norm_bound: Floats  # (T,) Eq. 2
    energy_bound: Floats  # (T,) Kantorovich
    round_off: float  # (κ·eps)², the norm ratio at which a float64 gradient is noise

    def figure(self) -> Any:
        """Draw a spectrum beside the convergence that it allows."""
        sheet = Sheet("spectrum of H", "exact line search", column_widths=[0.36, 0.64])
        left, right = sheet.panels
        index, t = np.arange(1, len(self.sigma) + 1), self.curve.steps[1:]
        hover = "σ<sub>%{x}</sub> = %{y:.3e}<extra></extra>"
        left.marks("σ<sub>i</sub>", index, self.sigma, "circle", 8, GREEN, hover=hover, legend=False)
        ratio_lines(
            right,
            t,
            _SPECTRUM_FLOOR,
            ("norm bound, Eq. 2", self.norm_bound[1:], BLUE, "dash", 2),
            ("energy bound (Kantorovich)", self.energy_bound[1:], ORANGE, "dash", 2),
            ("norm ratio, Eq. 16", self.curve.norm_ratio[1:], BLUE, "solid", 3),
            ("energy ratio (excess loss)", self.curve.excess_loss[1:], ORANGE, "dot", 3),
            ("float64 round-off, (κ·eps)²", np.full(len(t), self.round_off), PURPLE, "longdash", 2),
        )
        left.x("index i")
        left.y("σ<sub>i</sub>", min(-6.3, math.log10(self.sigma[-1]) - 0.3), 0.3, log=True)
        right.x(**log_axis("step t", t))
        right.y("fraction of the initial value", math.log10(_SPECTRUM_FLOOR), 1, log=True, dtick=4)
        title = f"Exact line search in D = {len(self.sigma)} dimensions, κ = {num(self.kappa)}"
        return sheet.finish(title)

    def caption(self) -> str:
        """Say how many steps a millionth took, and how many Eq. 2 allows."""
        steps, stop = self.curve.steps, int(self.curve.stopped_at)
        took, allowed = (steps[ratio <= 1e-6] for ratio in (self.curve.norm_ratio, self.norm_bound))
        last = f"{steps[-1]:,d} steps"
        reached = f"reached after {took[0]:,d} steps" if len(took) else f"not reached within {last}"
        granted = f"{allowed[0]:,d}" if len(allowed) else f"more than {steps[-1]:,d}"
        end = f" At step {stop:,d} only float64 round-off is left of the gradient, and the curve is flat."
        text = f"A millionth of the squared distance is {reached}; "
        text += f"the bound of Eq. 2 reaches it after {granted} steps."
        return text + (end if stop >= 0 else "")


@with_controls(
    kappa=Slider("condition number κ", "Largest over smallest σ of H (Eq. 1).", 1, 1e6, log=True, marks=7),
    dimension=Slider("dimension D (features)", "Number of features.", 2, 256),
    shape=Choice("spectrum", "How the singular values are spread.", SHAPE_LABELS),
    start=Choice("start", "Where the descent starts.", {"worst": "the worst one"}),
)
def spectrum_descent(
    *,
    kappa: float = 100.0,
    dimension: int = 32,
    shape: SpectrumShape = "geometric",
    start: Literal["worst", "random"] = "random",
    steps: int = SPECTRUM_STEPS,
) -> SpectrumDescent:
    """Run `linear_probe` on the diagonal Hessian of a chosen spectrum."""
    sigma = spectrum(shape, dimension, kappa)
    ends = np.isin(np.arange(dimension), [0, dimension - 1]) / sigma
    solution = ends if start == "worst" else np.random.default_rng(0).normal(size=dimension)
    task = Task.of_covariance(np.diag(sigma), sigma * solution)
    curve = linear_probe(None, task, steps=steps, record=log_spaced(steps, 200))
    return _with_bounds(kappa, sigma, curve)


def descent_of(X: Floats, y: Floats, *, steps: int = SPECTRUM_STEPS) -> SpectrumDescent:
    """Follow exact line search on a reader's features `(N, D)` and targets `(N,)`; σ is over σ₁."""
    curve = linear_probe(None, Task.of(X, y), steps=steps, record=log_spaced(steps, 200))
    kappa, sigma = float(curve.condition), np.linalg.svd(X, compute_uv=False) ** 2
    sigma = sigma[: int(curve.rank)] / sigma[0]
    return _with_bounds(kappa, sigma, curve)


def _with_bounds(kappa: float, sigma: Floats, curve: ProbeCurve) -> SpectrumDescent:
    bounds = norm_bound(kappa, curve.steps), kantorovich_bound(kappa, curve.steps)
    return SpectrumDescent(kappa, sigma, curve, *bounds, float((kappa * np.finfo(np.float64).eps) ** 2))


class SpectrumDescentExplorer(Explorer):
    """Exact line search in D dimensions: κ bounds it, the whole spectrum decides."""

    compute = staticmethod(spectrum_descent)
