"""Lesson 1: gradient descent on a quadratic, and what κ does to it; `e_t = w_t − w*` is the error."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.lessons.draw import Panel, figure, plotly_figure
from condnum.lessons.explore import Log, Slider, explore
from condnum.numbers import num
from condnum.page.look import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE

Floats = NDArray[np.float64]
SpectrumShape = Literal["geometric", "linear", "clusters", "outlier"]

#: Steps that the figures in the plane and in D dimensions follow.
ZIGZAG_STEPS, SPECTRUM_STEPS = 40, 1000
#: The plane is shown from −_FLAT to _FLAT and from −_STEEP to _STEEP; the path starts at distance 1.
_FLAT, _STEEP = 1.1, 0.72
_ROUND_OFF = np.finfo(np.float64).eps


def norm_bound(kappa: float, steps: Any) -> Floats:
    r"""Right-hand side of Eq. 2, :math:`(1 - 1/\kappa)^t`; also for exact line search, by Cauchy–Schwarz."""
    return np.asarray((1 - 1 / kappa) ** steps, dtype=np.float64)


def kantorovich_bound(kappa: float, steps: Any) -> Floats:
    r"""Kantorovich's bound :math:`((\kappa-1)/(\kappa+1))^{2t}` on excess loss; line search attains it."""
    return np.asarray(((kappa - 1) / (kappa + 1)) ** (2 * steps), dtype=np.float64)


def exact_line_search(e: Floats, H: Floats) -> Floats:
    """Return `e − αg` with `g = He`, `α = gᵀg/gᵀHg`."""
    g = H @ e
    return e - (g @ g) / (g @ (H @ g)) * g


def constant_step(e: Floats, H: Floats) -> Floats:
    """Return `e − He/σ₁` for σ₁ = 1."""
    return e - H @ e


def path_of(
    descend: Callable[[Floats, Floats], Floats], H: Floats, start: Floats, steps: int
) -> tuple[Floats, Floats, Floats]:
    """Return errors `(T + 1, D)`, norm ratio (Eq. 16) and energy ratio `(T + 1,)`; what has arrived rests."""
    path, g = [start], H @ start
    size = np.linalg.norm(g)
    for _ in range(steps):
        g = H @ path[-1]
        # Below round-off of H(w − w*) there is no direction.
        arrived = np.linalg.norm(g) <= _ROUND_OFF * size
        path.append(path[-1] if arrived else descend(path[-1], H))
    errors = np.array(path)
    norm, energy = (errors**2).sum(axis=1), np.einsum("ti,ij,tj->t", errors, H, errors)
    return errors, norm / norm[0], energy / energy[0]


def zigzag_path(
    kappa: float, angle: float, steps: int, descend: Callable[[Floats, Floats], Floats] = exact_line_search
) -> tuple[Floats, Floats, Floats]:
    """Run `descend` on `H = diag(1, 1/κ)`; the first gradient has an angle in degrees to the steep axis.

    Exact line search contracts the energy in every step by `(κ−1)²/((κ + tan²φ)(κ + cot²φ))`.
    """
    phi, sigma = np.deg2rad(angle), np.array([1.0, 1 / kappa])
    gradient = np.array([np.cos(phi), np.sin(phi)]).round(15)  # cos 90° is 6e-17
    start = gradient / sigma
    return path_of(descend, np.diag(sigma), start / np.linalg.norm(start), steps)


@explore(
    kappa=Log(1, 1000, stops=[1, 3, 10, 30, 100, 1000], label="condition number κ"),
    angle=Slider(0, 90, stops=[0, 15, 30, 45, 90], label="start angle φ (degrees)", help="45° is worst."),
    rule={"exact line search": "exact", "constant step 1/σ₁": "constant"},
    t=Slider(0, ZIGZAG_STEPS, stops=[0, 1, 2, 3, 5, 10, 20, 40], play=500, label="step t"),
    presets={
        "Worst start, κ = 100": {"kappa": 100.0, "angle": 45, "t": 40},
        "One step": {"kappa": 100.0, "angle": 0, "t": 1},
    },
)
def zigzag(
    kappa: float = 10.0,
    angle: int = 45,
    rule: str = "exact",
    t: int = 5,
    descend: Callable[[Floats, Floats], Floats] = exact_line_search,
) -> tuple[list[Panel], str]:
    """The zig-zag of gradient descent in the plane, and what κ has to do with it."""
    step = descend if rule == "exact" else constant_step
    path, norm, energy = zigzag_path(kappa, angle, ZIGZAG_STEPS, step)
    steps, bound = np.arange(ZIGZAG_STEPS + 1), norm_bound(kappa, np.arange(ZIGZAG_STEPS + 1))
    flat, steep = "along the flat axis u<sub>2</sub>", "along the steep axis u<sub>1</sub>"
    plane = Panel(
        "contours of L(w), path w<sub>0</sub> … w<sub>t</sub>", x=flat, y=steep,
        xlim=(-_FLAT, _FLAT), ylim=(-_STEEP, _STEEP), equal=True, width=1.25,
    )  # fmt: skip
    corner = _FLAT**2 / kappa + _STEEP**2
    contours(plane, np.geomspace(1, 1e-4, 9) * corner, kappa, NEUTRAL, width=1, opacity=0.6)
    contours(plane, [path[t] @ (path[t] * [1, 1 / kappa])], kappa, GREEN, dash="dot", width=2)
    plane.line("path", path[: t + 1, 1], path[: t + 1, 0], BLUE, width=2.5, size=8, legend=False)
    plane.marks("w*", [0], [0], ORANGE, "star", size=15, legend=False)
    # Whole decades, of which κ = 1,000 needs one: in 40 steps little is gained.
    least = max(-8, min(-1, math.floor(40 * math.log10(max(float(kantorovich_bound(kappa, 1)), 1e-9)))))
    right = Panel("distance to the optimum", x="step t", y="fraction of the start", log="y")
    right.limits = [(0, ZIGZAG_STEPS), (10.0**least, 2)]
    hover = "t = %{x}: %{y:.3e}"
    right.line("Eq. 2: (1 − 1/κ)<sup>t</sup>", steps, shown(bound), BLUE, "dash", width=2, hover=hover)
    right.line(
        "Kantorovich", steps, shown(kantorovich_bound(kappa, steps)), ORANGE, "dash", width=2, hover=hover
    )
    right.line("‖w<sub>t</sub> − w*‖²", steps, shown(norm), BLUE, hover=hover)
    right.line("excess loss", steps, shown(energy), ORANGE, "dot", hover=hover)
    right.marks("step t", [t, t], shown(np.array([norm[t], energy[t]])), PURPLE, size=11, legend=False)
    left = f"After {t} steps {num(norm[t])} of the squared distance is left; Eq. 2 allows {num(bound[t])}."
    if energy[1] < 1e-15:
        return [plane, right], "The first gradient points straight at w*: one step arrives, whatever κ is."
    worst = float(kantorovich_bound(kappa, 1))
    if rule == "constant":
        return [plane, right], f"κ = {num(kappa)}, constant step 1/σ<sub>1</sub>. {left}"
    compared = (
        "exactly Kantorovich's worst case" if abs(energy[1] / worst - 1) < 1e-9 else f"at worst {worst:.4f}"
    )
    return [
        plane,
        right,
    ], f"κ = {num(kappa)}: the first step leaves {energy[1]:.4f} of the excess loss, {compared}. {left}"


def shown(values: Floats) -> Floats:
    """Return fractions of the start; what lies far below the frame is a gap: no logarithmic axis shows it."""
    return np.where(values > 1e-36, values, np.nan)


def contours(panel: Panel, energies: Any, kappa: float, color: str, dash: str = "solid", **look: Any) -> None:
    """Draw the ellipses `eᵀHe = energy` of `H = diag(1, 1/κ)` as one line; the flat axis lies level.

    Points lie evenly on the part that is seen: at κ = 1,000 that is a sliver of the ellipse.
    """
    half = np.sqrt(np.asarray(energies)[:, None] * [kappa, 1.0]) + 1e-300  # along the flat and the steep axis
    end = np.arcsin(np.minimum(1.0, 1.5 * _FLAT / half[:, :1]))
    turn = end * np.append(np.linspace(-1, 1, 61), np.nan)
    x, y = half[:, :1] * np.sin(turn), half[:, 1:] * np.cos(turn)
    x, y = np.concatenate([x, x], axis=1).ravel(), np.concatenate([y, -y], axis=1).ravel()
    panel.line("contours", x, y, color, dash, legend=False, hoverinfo="skip", **look)


def contours_figure(axes_ratio: float) -> Any:
    """Draw contour lines of a quadratic in the plane, to scale, with half-axes `axes_ratio` : 1."""
    turn = np.append(np.linspace(0, 2 * np.pi, 181), np.nan)
    radii = np.array([0.25, 0.5, 0.75, 1.0])[:, None]
    x, y = (radii * axes_ratio * np.cos(turn)).ravel(), (radii * np.sin(turn)).ravel()
    plane = Panel(x="along the flat axis u<sub>2</sub>", y="along u<sub>1</sub>", equal=True)
    plane.line("contours", x, y, BLUE, width=2, legend=False).marks(
        "w*", [0], [0], ORANGE, "star", legend=False
    )
    return plotly_figure(figure([plane], f"Contours of L(w), half-axes {num(axes_ratio)} : 1", height=320))


def spectrum(shape: SpectrumShape, dimension: int, kappa: float) -> Floats:
    """Return a descending spectrum `(D,)` from σ₁ = 1 down to σ_D = 1/κ."""
    if shape == "geometric":
        return np.geomspace(1.0, 1 / kappa, dimension)
    if shape == "linear":
        return np.linspace(1.0, 1 / kappa, dimension)
    large = (dimension + 1) // 2 if shape == "clusters" else dimension - 1
    return np.where(np.arange(dimension) < large, 1.0, 1 / kappa)


@explore(
    kappa=Log(1, 1e6, stops=[1, 10, 100, 1e4, 1e6], label="condition number κ"),
    D=Slider(2, 256, stops=[2, 8, 32, 128], label="dimension D"),
    shape={
        "geometric": "geometric",
        "linear": "linear",
        "two clusters": "clusters",
        "one small outlier": "outlier",
    },
    start={"random": "random", "the worst": "worst"},
)
def spectrum_descent(
    kappa: float = 100.0, D: int = 32, shape: SpectrumShape = "geometric", start: str = "random"
) -> tuple[list[Panel], str]:
    """Exact line search in D dimensions: κ bounds it, the whole spectrum decides."""
    sigma = spectrum(shape, D, kappa)
    solution = np.random.default_rng(0).normal(size=D)
    if start == "worst":
        solution = np.isin(np.arange(D), [0, D - 1]) / sigma
    return spectrum_panels(sigma, solution)


def spectrum_panels(sigma: Floats, solution: Floats) -> tuple[list[Panel], str]:
    """Follow exact line search from 0 to a solution in the eigenbasis, on a spectrum `(D,)` from 1 to 1/κ."""
    kappa, e, ratios = float(sigma[0] / sigma[-1]), solution.copy(), list[tuple[float, float]]()
    first = np.linalg.norm(sigma * e)
    for _ in range(SPECTRUM_STEPS + 1):
        ratios.append((float(e @ e), float(e @ (sigma * e))))
        g = sigma * e
        if np.linalg.norm(g) > _ROUND_OFF * first:
            e = e - (g @ g) / (g @ (sigma * g)) * g
    norm, energy = np.array(ratios).T / np.array(ratios[0])[:, None]
    t = np.unique(np.geomspace(1, SPECTRUM_STEPS, 120).astype(int))
    index, D = np.arange(1, len(sigma) + 1), len(sigma)
    left = Panel("spectrum of H", x="index i", y="σ<sub>i</sub>", xlim=(0, D + 1), log="y", width=0.6,
                 ylim=(5e-7, 2))  # fmt: skip
    left.marks(
        "σ<sub>i</sub>", index, sigma, GREEN, size=7, hover="σ<sub>%{x}</sub> = %{y:.3e}", legend=False
    )
    right = Panel("exact line search", x="step t", y="fraction of the start", log="xy",
                  xlim=(1, SPECTRUM_STEPS), ylim=(1e-32, 10))  # fmt: skip
    hover = "t = %{x:,d}: %{y:.3e}"
    right.line("Eq. 2", t, shown(norm_bound(kappa, t)), BLUE, "dash", width=2, hover=hover)
    right.line("Kantorovich", t, shown(kantorovich_bound(kappa, t)), ORANGE, "dash", width=2, hover=hover)
    right.line("‖w<sub>t</sub> − w*‖²", t, shown(norm[t]), BLUE, hover=hover)
    right.line("excess loss", t, shown(energy[t]), ORANGE, "dot", hover=hover)
    right.line(
        "round-off, (κ·eps)²",
        [1, SPECTRUM_STEPS],
        [(kappa * _ROUND_OFF) ** 2] * 2,
        PURPLE,
        "longdash",
        width=2,
    )
    took = np.flatnonzero(norm <= 1e-6)
    reached = f"after {took[0]:,d} steps" if len(took) else f"not within {SPECTRUM_STEPS:,d} steps"
    promised = math.ceil(math.log(1e-6) / math.log1p(-1 / kappa)) if kappa > 1 else 1
    words = f"κ = {num(kappa)}: a millionth of the squared distance is left {reached}; "
    return [left, right], f"{words}Eq. 2 promises it after {promised:,d}."


def descent_of(X: Any, y: Any) -> Any:
    """Follow exact line search on a reader's features `(N, D)` and targets `(N,)`; σ is over σ₁."""
    U, s, _ = np.linalg.svd(np.asarray(X, dtype=np.float64), full_matrices=False)
    kept = s > max(np.shape(X)) * _ROUND_OFF * s[0]
    solution = (U.T @ np.asarray(y, dtype=np.float64))[kept] / s[kept]
    return plotly_figure(figure(*spectrum_panels((s[kept] / s[0]) ** 2, solution)))
