"""Notebook 2: turn the singular vectors of θ away from the eigenvectors of K, and test Proposition 3.2.

Nothing measured depends on the bases of features and data: Q = V = I here, and U is the rotation itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from scipy.linalg import expm
from scipy.stats import ortho_group

from condnum.lessons.condition_number import Floats, spectrum
from condnum.lessons.frame.explorer import (
    Choice,
    Explorer,
    ExplorerResult,
    Preset,
    Slider,
    with_controls,
)
from condnum.lessons.frame.own import Own, Tried
from condnum.lessons.frame.sheet import Sheet
from condnum.numbers import num
from condnum.page.style import BLUE, NEUTRAL, ORANGE, PURPLE, translucent
from condnum.theory.alignment import Alignment, alignment
from condnum.theory.task import rank_tolerance

Rotation = Literal["ends", "random", "haar"]

ROTATIONS: tuple[Rotation, ...] = get_args(Rotation)
#: Which of them an angle turns, and which are drawn at random.
TURNED, DRAWN = {"rotation": ("ends", "random")}, {"rotation": ("random", "haar")}


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
    """Return what the middle 90 % of 200 Haar draws have as mean diagonal overlap, expected to be 1/D."""
    if dimension > 128:  # draws take seconds: by the normal law, of variance 2/(D²(D + 2))
        half = 1.6449 * math.sqrt(2 / (dimension + 2)) / dimension
        return 1 / dimension - half, 1 / dimension + half
    U = ortho_group.rvs(dimension, size=200, random_state=np.random.default_rng(0))
    overlaps = np.mean(np.diagonal(U, axis1=1, axis2=2) ** 2, axis=1)
    low, high = np.quantile(overlaps, [0.05, 0.95])
    return float(low), float(high)


@dataclass(frozen=True)
class RotatedAlignment(ExplorerResult):
    """θ and K with chosen spectra and a chosen angle between them, and Proposition 3.2 measured on them."""

    turned: str  # φ in words
    theta: Floats  # (D, D) UΣ
    diagonal_overlap: float  # mean of |u_iᵀq_i|² over the pairs that lie on each other at φ = 0
    alignment: Alignment  # Eq. 10 beside the truth
    whose: str = "Eq. 10"  # or the name of what predicts in its place

    @property
    def exact(self) -> bool:
        """Whether Eq. 10 is exact up to the round-off of the products in H."""
        return self.alignment.misalignment <= 4 * rank_tolerance(len(self.theta))

    @property
    def sorted_prediction(self) -> Floats:
        """Eq. 10 in descending order, `(D,)`."""
        return np.sort(self.alignment.predicted)[::-1]

    def figure(self) -> Any:
        """Draw the overlaps, Eq. 10 beside the true spectrum, and their partial sums."""
        result, D = self.alignment, len(self.theta)
        titles = ("overlaps |u<sub>i</sub><sup>⊤</sup>q<sub>j</sub>|²", "singular values of H")
        sheet = Sheet(*titles, "their partial sums", gap=0.16, column_widths=[0.3, 0.37, 0.33])
        overlaps, spectra, sums = sheet.panels
        index, terms = np.arange(1, D + 1), np.arange(D + 1)
        bar = {"x": 0.208, "xanchor": "left", "thickness": 10, "dtick": 0.5, "tickfont": {"size": 11}}
        hover = "i = %{y}, j = %{x}: %{z:.4f}<extra></extra>"
        heat = {"type": "heatmap", "zmin": 0, "zmax": 1, "colorscale": "Cividis", "showlegend": None}
        overlaps.trace("overlaps", index, index, z=result.overlaps, colorbar=bar, hover=hover, **heat)
        lower, upper, band = result.ostrowski_lower, result.ostrowski_upper, translucent(NEUTRAL, 0.25)
        fill = {"hover": "at least %{y:.3e}", "legend": False}
        spectra.line("Ostrowski, lower", index, lower, NEUTRAL, width=1, **fill)
        fill = {"hover": "at most %{y:.3e}", "fill": "tonexty", "fillcolor": band}
        spectra.line("Ostrowski's bounds", index, upper, NEUTRAL, width=1, **fill)
        hover = "σ<sub>%{x}</sub> = %{y:.3e}"
        spectra.line("truth: spectrum of H", index, result.spectrum, BLUE, width=2, size=10, hover=hover)
        cross = {"marker": {"symbol": "x"}, "size": 9, "width": 2, "hover": "Eq. 10: %{y:.3e}"}
        spectra.line("Eq. 10, sorted", index, self.sorted_prediction, ORANGE, "dash", **cross)
        total, below = result.spectrum.sum(), {"hover": "m = %{x}: %{y:.4f}", "legend": False}
        parts = self.sorted_prediction, result.spectrum
        predicted, true = (np.append(0.0, part.cumsum() / total) for part in parts)
        sums.line("sums of Eq. 10", terms, predicted, ORANGE, "dash", width=2.5, **below)
        fill = {"fill": "tonexty", "fillcolor": translucent(PURPLE, 0.45)}
        sums.line("gap of the sums", terms, true, BLUE, width=2.5, **fill, **below)
        lowest, each = float(np.log10(lower[-1])), {"dtick": max(1, round(D / 8))}
        along = {"range": [0.5, D + 0.5], "tick0": 1, **each}
        overlaps.x("j of q<sub>j</sub>, eigenvectors of K", **along)
        overlaps.y("i of u<sub>i</sub>, singular vectors of θ", **along | {"range": [D + 0.5, 0.5]})
        spectra.x("index i, largest first", **along)
        low, high, ticks = 1.08 * lowest - 0.1, 0.15 - 0.05 * lowest, max(1, round(-lowest / 5))
        spectra.y("σ<sub>i</sub> over σ<sub>θ,1</sub>² γ<sub>1</sub>", low, high, log=True, dtick=ticks)
        sums.x("number m of terms", 0, D, **each)
        sums.y("fraction of the trace of H", 0, 1.03, dtick=0.2)
        said, real = (num(of, 4) for of in (result.predicted_condition, result.true_condition))
        kappas = f"κ of {self.whose} = {said}, κ(H) = {real}"
        misalignment = 0.0 if self.exact else result.misalignment  # without the round-off of an exact case
        title = f"D = {D}, {self.turned}. Misalignment {misalignment:.3f}: {kappas}"
        return sheet.finish(title)

    def caption(self) -> str:
        """Say whether Eq. 10 holds here, by how much it fails, and what holds all the same."""
        result = self.alignment
        order = np.argsort(-result.predicted, kind="stable")
        if self.whose != "Eq. 10":
            verdict = f"The κ of {self.whose} is {result.condition_ratio:.1%} of the true one"
        elif self.exact:
            verdict = "U diagonalizes K: <b>Eq. 10 is exact</b>"
            if not np.array_equal(order, np.arange(len(self.theta))):
                verdict += ", though not in the order of θ's singular values"
        else:
            share = f"its κ is {result.condition_ratio:.1%} of the true one"
            true = "majorization and Ostrowski's bounds hold"
            verdict = f"<b>Eq. 10 is not the spectrum</b>: {share}; {true}"
        if not result.u_unique:
            verdict += ". θ has repeated singular values, so U and the prediction of Eq. 10 are not unique"
        low, high = haar_overlap_band(len(self.theta))
        return (
            f"{verdict}. Mean overlap |u<sub>i</sub><sup>⊤</sup>q<sub>i</sub>|² {self.diagonal_overlap:.3f}; "
            f"of Haar draws, 90 % lie in {low:.3f} … {high:.3f}."
        )


def eq10(theta: Floats, K: Floats) -> Floats:
    """Return Eq. 10, in the order of θ's singular values."""
    return np.asarray(alignment(theta, K).predicted)


@with_controls(
    angle=Slider(
        "angle of U to Q (degrees)",
        "Angle between the singular vectors of θ and K; 0 means aligned.",
        0,
        90,
        marks=19,
        only=TURNED,
    ),
    rotation=Choice(
        "rotation",
        "Which of the uᵢ are rotated.",
        {
            "ends": "plane of q₁ and q_D",
            "random": "random, by at most the angle",
            "haar": "Haar draw (generic, no angle)",
        },
    ),
    # 3 and 100 both lie on (about) a mark
    data_kappa=Slider("κ(K)", "κ(K), largest over smallest eigenvalue γ.", 1, 1e4, log=True, step=1 / 44),
    theta_kappa=Slider("κ(θ)", "κ(θ), largest over smallest singular value.", 1, 30, step=0.5, advanced=True),
    dimension=Slider("dimension D (features)", "Number of features.", 2, 64, advanced=True),
    pairing=Choice(
        "aligned means",
        "Which uᵢ coincides with which qⱼ at the angle 0.",
        {"same": "uᵢ = qᵢ", "opposite": "opposite order"},
        advanced=True,
    ),
    seed=Slider("random draw no.", "Chooses another random draw of U.", 0, 200, advanced=True, only=DRAWN),
)
def rotated_alignment(
    *,
    angle: float = 0.0,
    rotation: Rotation = "random",
    data_kappa: float = 100.0,
    theta_kappa: float = 3.0,
    dimension: int = 8,
    pairing: Literal["same", "opposite"] = "same",
    seed: int = 0,
    predict: Callable[[Floats, Floats], Floats] = eq10,
) -> RotatedAlignment:
    """Build `θ = UΣ` and `K = Γ`, with `U` a rotation of `Q = I`, and compare Eq. 10 with the truth."""
    U = rotation_matrix(rotation, dimension, angle=angle, seed=seed)
    theta = U[:, :: 1 if pairing == "same" else -1] * spectrum("geometric", dimension, theta_kappa)
    K = np.diag(spectrum("geometric", dimension, data_kappa))
    turned = "a Haar draw" if rotation == "haar" else f"φ = {num(angle)}°"
    found = _predicted(theta, K, predict)
    whose = f"your {predict.name}" if isinstance(predict, Tried) and not predict.agrees else "Eq. 10"
    return RotatedAlignment(turned, theta, float(np.mean(np.diag(U) ** 2)), found, whose)


def alignment_of(theta: Floats, K: Floats, *, predict: Callable[[Floats, Floats], Floats] = eq10) -> Any:
    """Compare Eq. 10 with the truth for a reader's θ `(D, D)` and K `(D, D)`."""
    found = _predicted(np.asarray(theta, np.float64), np.asarray(K, np.float64), predict)
    overlap = float(np.mean(np.diag(found.overlaps)))
    return RotatedAlignment("your θ and K", np.asarray(theta, np.float64), overlap, found)


def _predicted(theta: Floats, K: Floats, predict: Callable[[Floats, Floats], Floats]) -> Alignment:
    """Return the truth beside what `predict` says."""
    found = alignment(theta, K)
    if predict is eq10:
        return found
    sigma = predict(theta, K)
    kappa = float(sigma.max() / sigma.min()) if sigma.min() > 0 else math.inf
    return replace(found, predicted=sigma, predicted_condition=kappa)


class AlignmentExplorer(Explorer):
    """Proposition 3.2 with chosen spectra of θ and K, and a chosen angle of U to Q."""

    compute = staticmethod(rotated_alignment)
    own = Own("predict", eq10, lambda sigma, *_: np.sort(sigma))
    presets = (
        Preset("Aligned: Eq. 10 is exact", "Angle 0", {"angle": 0.0, "rotation": "random"}),
        Preset(
            "By hand: D = 2, Eq. 10 fails",
            "θ = UΣ with Σ = diag(1, 1/2), K = diag(1, 1/3), 45°: proportional to [[8, 2], [2, 2]]",
            {
                "angle": 45.0,
                "rotation": "random",
                "dimension": 2,
                "pairing": "same",
                "seed": 0,
                "data_kappa": 3.0,
                "theta_kappa": 2.0,
            },
        ),
        Preset(
            "Generic: a Haar draw",
            "U uniform among all orthogonal matrices: overlaps of about 1/D",
            {"rotation": "haar", "dimension": 8, "data_kappa": 100.0, "theta_kappa": 3.0},
        ),
        Preset(
            "Random by at most 90°: not generic",
            "exp(φA): only some vectors turn by the whole φ, the rest by less",
            {"angle": 90.0, "rotation": "random", "dimension": 8, "data_kappa": 100.0, "theta_kappa": 3.0},
        ),
    )
