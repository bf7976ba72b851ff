"""Lesson 2: turn the singular vectors of θ away from the eigenvectors of K, and test Proposition 3.2.

Nothing measured depends on the bases of features and data: Q = V = I here, and U is the rotation itself.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from scipy.linalg import expm
from scipy.stats import ortho_group

from condnum.lessons.condition_number import Floats, spectrum
from condnum.lessons.draw import Panel, figure, plotly_figure
from condnum.lessons.explore import Choice, Log, Slider, explore
from condnum.numbers import num
from condnum.page.look import BLUE, NEUTRAL, ORANGE, PURPLE, overlap_heatmap, translucent
from condnum.theory.alignment import Alignment, alignment
from condnum.theory.task import rank_tolerance

Rotation = Literal["ends", "random", "haar"]
ROTATIONS: tuple[Rotation, ...] = get_args(Rotation)
_ROTATIONS: dict[str, Rotation] = {
    "random, by at most the angle": "random",
    "plane of q₁ and q_D": "ends",
    "Haar draw (generic, no angle)": "haar",
}
#: What a spectrum of H is divided by.
UNIT = "σ<sub>i</sub> / σ<sub>θ,1</sub>²γ<sub>1</sub>"


def rotation_matrix(rotation: Rotation, dimension: int, *, angle: float = 0.0, seed: int = 0) -> Floats:
    """Return a rotation by an angle in degrees, or a Haar draw, which has none."""
    generator, phi = np.random.default_rng(seed), np.deg2rad(angle)
    if rotation == "haar":
        return np.asarray(ortho_group.rvs(dimension, random_state=generator))
    if rotation == "random":
        G = generator.normal(size=(dimension, dimension))
        return np.asarray(expm(phi / np.linalg.norm(G - G.T, ord=2) * (G - G.T)))
    R = np.eye(dimension)
    R[0, 0] = R[-1, -1] = np.cos(phi)
    R[-1, 0], R[0, -1] = np.sin(phi), -np.sin(phi)
    return R


@lru_cache(maxsize=64)
def haar_overlap_band(dimension: int) -> tuple[float, float]:
    """Return what the middle 90 % of Haar draws have as mean diagonal overlap, expected to be 1/D.

    Of few dimensions by 200 draws; of many by the normal law, of variance 2/(D²(D + 2)).
    """
    if dimension > 16:
        half = 1.6449 * math.sqrt(2 / (dimension + 2)) / dimension
        return 1 / dimension - half, 1 / dimension + half
    U = ortho_group.rvs(dimension, size=200, random_state=np.random.default_rng(0))
    low, high = np.quantile(np.mean(np.diagonal(U, axis1=1, axis2=2) ** 2, axis=1), [0.05, 0.95])
    return float(low), float(high)


def rotated(
    rotation: Rotation = "random",
    angle: float = 0.0,
    *,
    dimension: int = 8,
    data_kappa: float = 100.0,
    theta_kappa: float = 3.0,
    seed: int = 0,
    reverse: bool = False,
) -> tuple[Floats, Floats, Floats]:
    """Return `U`, `θ = UΣ` and `K = Γ` of geometric spectra; `reverse` turns the order of θ's values over."""
    U = rotation_matrix(rotation, dimension, angle=angle, seed=seed)
    theta = U[:, :: -1 if reverse else 1] * spectrum("geometric", dimension, theta_kappa)
    return U, theta, np.diag(spectrum("geometric", dimension, data_kappa))


def eq10(theta: Floats, K: Floats) -> Floats:
    """Return Eq. 10, in the order of θ's singular values."""
    return np.asarray(alignment(theta, K).predicted)


@explore(
    angle=Slider(0, 90, stops=[0, 5, 15, 30, 45, 60, 75, 90], label="angle of U to Q (degrees)"),
    rotation=Choice(_ROTATIONS, label="rotation"),
    data_kappa=Log(1, 1e4, stops=[1, 3, 100, 1e4], label="κ(K)"),
    D=Slider(2, 64, stops=[2, 8, 32], label="dimension D"),
    theta_kappa=Slider(1.0, 30.0, label="κ(θ)", live=True),
    reverse=Choice({"same order": False, "opposite order": True}, label="aligned means", live=True),
    seed=Slider(0, 200, label="random draw", live=True),
    presets={
        "Aligned: Eq. 10 is exact": {"angle": 0},
        "D = 2 at 45°": {"angle": 45, "rotation": "ends", "D": 2, "data_kappa": 3.0},
        "Generic: a Haar draw": {"rotation": "haar"},
        "Random by at most 90°: not generic": {"angle": 90},
    },
)
def turned(
    angle: float = 45,
    rotation: Rotation = "random",
    data_kappa: float = 100.0,
    D: int = 8,
    theta_kappa: float = 2.0,
    reverse: bool = False,
    seed: int = 0,
    predict: Callable[[Floats, Floats], Floats] = eq10,
) -> tuple[list[Panel], str]:
    """Proposition 3.2 with chosen spectra of θ and K, and a chosen angle of U to Q."""
    spectra: dict[str, Any] = {"data_kappa": data_kappa, "theta_kappa": theta_kappa, "reverse": reverse}
    U, theta, K = rotated(rotation, angle, dimension=D, seed=seed, **spectra)
    low, high = haar_overlap_band(D)
    mean = f"Mean overlap |u<sub>i</sub><sup>⊤</sup>q<sub>i</sub>|² {np.mean(np.diag(U) ** 2):.2f}; "
    panels, words = alignment_panels(theta, K, predict)
    return panels, f"{words} {mean}of Haar draws, 90 % lie in {low:.2f} … {high:.2f}."


def alignment_of(theta: Floats, K: Floats, *, predict: Callable[[Floats, Floats], Floats] = eq10) -> Any:
    """Compare Eq. 10 with the truth for a reader's θ `(D, D)` and K `(D, D)`."""
    panels, words = alignment_panels(np.asarray(theta, np.float64), np.asarray(K, np.float64), predict)
    return plotly_figure(figure(panels, words))


def alignment_panels(
    theta: Floats, K: Floats, predict: Callable[[Floats, Floats], Floats]
) -> tuple[list[Panel], str]:
    """Draw the overlaps, Eq. 10 beside the true spectrum, and their partial sums; say how far it fails."""
    result, sigma, D = alignment(theta, K), np.sort(predict(theta, K))[::-1], len(theta)
    index, terms, edge = np.arange(1, D + 1), np.arange(D + 1), (0.5, D + 0.5)
    heading = "overlaps |u<sub>i</sub><sup>⊤</sup>q<sub>j</sub>|²"
    overlaps = Panel(heading, x="j of q<sub>j</sub> of K", y="i of u<sub>i</sub> of θ", width=0.75)
    heat = overlap_heatmap(result.overlaps, D)
    overlaps.heat("overlaps", hover=heat.pop("hovertemplate"), **heat)
    floor = float(result.ostrowski_lower[-1])
    spectra = Panel("singular values of H", x="index i, largest first", y=UNIT,
                    xlim=edge, ylim=(floor**1.08 / 1.3, 1.4 * floor**-0.05), log="y")  # fmt: skip
    around = np.concatenate([result.ostrowski_lower, result.ostrowski_upper[::-1]])
    spectra.area("Ostrowski", np.concatenate([index, index[::-1]]), around, translucent(NEUTRAL, 0.25))
    spectra.line("truth", index, result.spectrum, BLUE, width=2, size=10, hover="σ<sub>%{x}</sub> = %{y:.3e}")
    spectra.line("Eq. 10, sorted", index, sigma, ORANGE, "dash", width=2, size=7, hover="Eq. 10: %{y:.3e}")
    sums = Panel("their partial sums", x="number m of terms", y="fraction of the trace of H",
                 xlim=(0, D), ylim=(0, 1.03))  # fmt: skip
    predicted, true = (
        np.append(0.0, one.cumsum() / result.spectrum.sum()) for one in (sigma, result.spectrum)
    )
    both = np.concatenate([true, predicted[::-1]])
    sums.area("gap", np.concatenate([terms, terms[::-1]]), both, translucent(PURPLE, 0.45), legend=False)
    hover: dict[str, Any] = {"hover": "m = %{x}: %{y:.4f}", "width": 2.5, "legend": False}
    sums.line("sums of Eq. 10", terms, predicted, ORANGE, "dash", **hover)
    sums.line("sums of the truth", terms, true, BLUE, **hover)
    return [overlaps, spectra, sums], alignment_words(result, sigma)


def alignment_words(result: Alignment, sigma: Floats) -> str:
    """Say whether Eq. 10 holds, and by how much it fails."""
    kappa = float(sigma[0] / sigma[-1]) if sigma[-1] > 0 else math.inf
    if result.misalignment <= 4 * rank_tolerance(len(sigma)):  # up to the round-off of the products in H
        order = np.argsort(-result.predicted, kind="stable")
        swapped = "" if (order == np.arange(len(order))).all() else ", though not in the order of θ's values"
        words = f"U diagonalizes K: <b>Eq. 10 is exact</b>{swapped}, κ(H) = {num(result.true_condition, 4)}."
    else:
        share = f"{kappa / result.true_condition:.1%} of the true one, {num(result.true_condition, 4)}"
        words = f"<b>Eq. 10 is not the spectrum</b>: its κ = {num(kappa, 4)} is {share}. "
        words += f"Misalignment {result.misalignment:.2f}."
    unique = "" if result.u_unique else " θ has repeated singular values, so U and Eq. 10 are not unique."
    return words + unique
