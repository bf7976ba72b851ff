r"""Notebook 2: turn the singular vectors of θ away from the eigenvectors of K, and test Proposition 3.2.

With :math:`\theta = U\Sigma V^\top` and :math:`K = Q\Gamma Q^\top`. Nothing that is measured depends on
the basis of the features or of the data, so `Q = I` and `V = I` here: :math:`\theta = U\Sigma`,
:math:`K = \Gamma`, and `U` is the rotation itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.stats import ortho_group

from condnum.errors import require
from condnum.figures.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    PURPLE,
    add_line,
    num,
    panels,
    teaching_layout,
    translucent,
)
from condnum.lessons.condition_number import SHAPE_LABELS, SpectrumShape, spectrum
from condnum.lessons.explorer import Angle, Between, Choice, Explorer, LogSlider, Preset, Slider, checked
from condnum.theory.alignment import Alignment, alignment
from condnum.theory.spectra import default_rtol

Rotation = Literal["ends", "neighbours", "random", "haar"]
Pairing = Literal["same", "opposite"]

ROTATIONS: tuple[Rotation, ...] = get_args(Rotation)


@checked
def rotation_matrix(
    rotation: Rotation, dimension: Annotated[int, Between(2, math.inf)], angle: Angle, seed: int = 0
) -> NDArray[np.float64]:
    r"""Return a rotation of a chosen size.

    Examples:
        >>> rotation_matrix("ends", 3, 90.0).round(12) + 0.0  # the last axis goes to minus the first
        array([[ 0.,  0., -1.],
               [ 0.,  1.,  0.],
               [ 1.,  0.,  0.]])
    """
    if rotation == "haar":
        return np.asarray(ortho_group.rvs(dimension, random_state=np.random.default_rng(seed)))
    phi = np.deg2rad(angle)
    if rotation == "random":
        return np.asarray(expm(phi * _unit_antisymmetric(dimension, seed)))
    R, last = np.eye(dimension), dimension - 1 if rotation == "ends" else 1
    R[0, 0] = R[last, last] = np.cos(phi)
    R[last, 0], R[0, last] = np.sin(phi), -np.sin(phi)
    return R


@lru_cache(maxsize=8)
def _unit_antisymmetric(dimension: int, seed: int) -> NDArray[np.float64]:
    """Return a Gaussian antisymmetric matrix of spectral norm 1."""
    G = np.random.default_rng(seed).normal(size=(dimension, dimension))
    A = G - G.T
    return np.asarray(A / np.linalg.norm(A, ord=2))


@dataclass(frozen=True)
class RotatedAlignment:
    """θ and K with chosen spectra and a chosen angle between them, and Proposition 3.2 measured on them."""

    rotation: Rotation
    pairing: Pairing
    angle: float  # φ, degrees
    theta: NDArray[np.float64]  # (D, D) UΣ
    covariance: NDArray[np.float64]  # (D, D) K, diagonal and descending: Q = I
    diagonal_overlap: float  # mean of |u_iᵀq_i|² over the pairs that lie on each other at φ = 0
    alignment: Alignment  # Eq. 10 beside the truth

    @property
    def exact(self) -> bool:
        """Whether Eq. 10 is exact up to the round-off of the products in H."""
        return self.alignment.misalignment <= 4 * default_rtol(len(self.theta))

    @property
    def sorted_prediction(self) -> NDArray[np.float64]:
        """Eq. 10 in descending order, `(D,)`."""
        return np.sort(self.alignment.predicted)[::-1]


@checked
def rotated_alignment(
    *,
    angle: Angle = 0.0,
    rotation: Rotation = "random",
    pairing: Pairing = "same",
    dimension: Annotated[int, Between(2, 64)] = 8,
    data_kappa: Annotated[float, Between(1, 1e4)] = 100.0,
    data_spectrum: SpectrumShape = "geometric",
    theta_kappa: Annotated[float, Between(1, 30)] = 3.0,
    theta_spectrum: SpectrumShape = "geometric",
    seed: Annotated[int, Between(0, 200)] = 0,
) -> RotatedAlignment:
    r"""Build `θ = UΣ` and `K = Γ`, with `U` a rotation of `Q = I`, and compare Eq. 10 with the truth.

    Args:
        angle: φ in degrees, from 0 (aligned) to 90.
        rotation: Which rotation, see `rotation_matrix`.
        pairing: At φ = 0, `same`: :math:`u_i = q_i`, large with large; `opposite`:
            :math:`u_i = q_{D+1-i}`, large with small.
        dimension: D, from 2 to 64.
        data_kappa: κ(K), from 1 to 10,000.
        data_spectrum: Shape of the eigenvalues γ of K, from 1 to 1/κ(K).
        theta_kappa: κ(θ), from 1 to 30.
        theta_spectrum: Shape of the singular values of θ, from 1 to 1/κ(θ).
        seed: Of a random rotation or a Haar draw.

    Returns:
        The matrices and what `alignment` says of them.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such rotation, pairing or shape.

    Examples:
        >>> rotated_alignment(angle=0.0).exact
        True
        >>> run = rotated_alignment(angle=45.0, dimension=2, data_kappa=3.0, theta_kappa=2.0)
        >>> (12 * run.alignment.predicted).round(3).tolist()  # the diagonal of [[8, 2], [2, 2]]
        [8.0, 2.0]
        >>> (12 * run.alignment.spectrum).round(3).tolist()  # its eigenvalues, 5 ± √13
        [8.606, 1.394]
    """
    U = rotation_matrix(rotation, dimension, angle, seed)
    diagonal = float(np.mean(np.diag(U) ** 2))
    if pairing == "opposite":
        U = U[:, ::-1]
    theta = U * spectrum(theta_spectrum, dimension, theta_kappa)
    K = np.diag(spectrum(data_spectrum, dimension, data_kappa))
    return RotatedAlignment(rotation, pairing, angle, theta, K, diagonal, alignment(theta, K))


@dataclass(frozen=True)
class AlignmentSweep:
    """How Proposition 3.2 fares as U turns away from Q, or over many Haar draws of U."""

    rotation: Rotation
    angles: NDArray[np.float64]  # (A,) degrees; without meaning for `haar`
    diagonal_overlap: NDArray[np.float64]  # (A,) mean of |u_iᵀq_i|²
    misalignment: NDArray[np.float64]  # (A,)
    condition_ratio: NDArray[np.float64]  # (A,) κ of Eq. 10 over the true κ, ≤ 1


def alignment_sweep(angles: Sequence[float], *, rotation: Rotation = "random") -> AlignmentSweep:
    """Measure overlaps, misalignment and the error of κ at each angle, else as `rotated_alignment` does.

    Args:
        angles: `(A,)` degrees, from 0 to 90; for the rotation `haar` only their number counts, a draw each.
        rotation: Which rotation.

    Returns:
        One value of each an angle.

    Raises:
        InvalidInputError: An angle is out of its range.
        UnknownNameError: No such rotation.

    Examples:
        >>> alignment_sweep([0.0, 90.0], rotation="ends").condition_ratio.round(9).tolist()
        [1.0, 1.0]
        >>> bool(abs(alignment_sweep([0.0] * 200, rotation="haar").diagonal_overlap.mean() - 1 / 8) < 0.01)
        True
    """
    runs = [
        rotated_alignment(angle=angle, rotation=rotation, seed=seed if rotation == "haar" else 0)
        for seed, angle in enumerate(angles)
    ]
    return AlignmentSweep(
        rotation,
        np.asarray(angles, dtype=np.float64),
        np.array([run.diagonal_overlap for run in runs]),
        np.array([run.alignment.misalignment for run in runs]),
        np.array([run.alignment.condition_ratio for run in runs]),
    )


@lru_cache(maxsize=64)
def haar_overlap_band(dimension: int, draws: int = 200) -> tuple[float, float]:
    """Return what the middle 90 % of Haar draws have as mean diagonal overlap; its expectation is 1/D.

    Examples:
        >>> low, high = haar_overlap_band(64)
        >>> low < 1 / 64 < high
        True
    """
    U = ortho_group.rvs(dimension, size=draws, random_state=np.random.default_rng(0))
    overlaps = np.mean(np.diagonal(U, axis1=1, axis2=2) ** 2, axis=1)
    low, high = np.quantile(overlaps, [0.05, 0.95])
    return float(low), float(high)


#: Shares of the window's width: heatmap, spectra, partial sums.
_DOMAINS = ([0.0, 0.235], [0.4, 0.675], [0.765, 1.0])
_ROTATIONS = {
    "ends": "plane of q<sub>1</sub> and q<sub>D</sub>",
    "neighbours": "plane of q<sub>1</sub> and q<sub>2</sub>",
    "random": "random, by at most φ",
}
_PANELS = (
    "overlaps |u<sub>i</sub><sup>⊤</sup>q<sub>j</sub>|²",
    "singular values of H",
    "their partial sums",
)
_LOOKS = {"random": (BLUE, "solid"), "ends": (ORANGE, "dash"), "neighbours": (GREEN, "dot")}


def alignment_figure(run: RotatedAlignment) -> Any:
    """Draw the overlaps, Eq. 10 beside the true spectrum, and their partial sums."""
    go = require("plotly.graph_objects", "viz")
    result, D = run.alignment, len(run.theta)
    figure = go.Figure(data=[_overlaps(run), *_spectra(run), *_partial_sums(run)], layout=_axes(run))
    title = (
        f"Misalignment {_tidy(run):.3f}: κ of Eq. 10 = {num(result.predicted_condition, 4)}, "
        f"κ(H) = {num(result.true_condition, 4)}"
    )
    turned = "a Haar draw" if run.rotation == "haar" else f"φ = {num(run.angle)}°"
    return teaching_layout(figure, f"D = {D}, {turned}. {title}", height=540)


def _axes(run: RotatedAlignment) -> dict[str, Any]:
    """Return axes and titles of the three panels, set at once: plotly checks every change by itself."""
    D, lowest = len(run.theta), float(np.log10(run.alignment.ostrowski_lower[-1]))
    each = max(1, round(D / 8))
    spectra = {
        "type": "log", "range": [1.08 * lowest - 0.1, 0.15 - 0.05 * lowest],
        "dtick": max(1, round(-lowest / 5)),
        "title": {"text": "σ<sub>i</sub> over σ<sub>θ,1</sub>² γ<sub>1</sub>", "standoff": 4},
    }  # fmt: skip
    rows = {
        "title": {"text": "i of u<sub>i</sub>, singular vectors of θ"},
        "range": [D + 0.5, 0.5], "tick0": 1, "dtick": each,
    }  # fmt: skip
    shares = {"title": {"text": "share of the trace of H", "standoff": 4}, "range": [0, 1.03], "dtick": 0.2}
    columns = (
        ("j of q<sub>j</sub>, eigenvectors of K", [0.5, D + 0.5], 1, rows),
        ("index i, largest first", [0.5, D + 0.5], 1, spectra),
        ("number m of terms", [0, D], 0, shares),
    )
    layout: dict[str, Any] = {"annotations": [], "legend": {"traceorder": "normal"}}
    for number, (text, limits, first, vertical) in enumerate(columns, 1):
        name, domain = "" if number == 1 else str(number), _DOMAINS[number - 1]
        layout[f"xaxis{name}"] = {
            "domain": domain, "anchor": f"y{name}", "title": {"text": text}, "range": limits,
            "tick0": first, "dtick": each,
        }  # fmt: skip
        layout[f"yaxis{name}"] = vertical | {"anchor": f"x{name}"}
        layout["annotations"].append({
            "text": _PANELS[number - 1], "x": sum(domain) / 2, "y": 1, "xref": "paper", "yref": "paper",
            "xanchor": "center", "yanchor": "bottom", "showarrow": False, "font": {"size": 16},
        })  # fmt: skip
    return layout


def _tidy(run: RotatedAlignment) -> float:
    """Return the misalignment, without the round-off of an exact case."""
    return 0.0 if run.exact else run.alignment.misalignment


def _overlaps(run: RotatedAlignment) -> dict[str, Any]:
    """Return the heatmap; each of its rows and columns adds up to 1."""
    index = np.arange(1, len(run.theta) + 1)
    return {
        "type": "heatmap", "name": "overlaps", "x": index, "y": index, "z": run.alignment.overlaps,
        "zmin": 0, "zmax": 1, "colorscale": "Cividis",
        "colorbar": {
            "x": _DOMAINS[0][1] + 0.004, "xanchor": "left", "thickness": 12, "len": 1.0, "dtick": 0.2,
            "tickfont": {"size": 12}, "outlinewidth": 0, "y": 0.5, "yanchor": "middle",
        },
        "hovertemplate": "i = %{y}, j = %{x}: %{z:.4f}<extra></extra>",
    }  # fmt: skip


def _spectra(run: RotatedAlignment) -> list[dict[str, Any]]:
    """Return Ostrowski's bounds, the truth and the sorted prediction."""
    result = run.alignment
    place: dict[str, Any] = {"x": np.arange(1, len(run.theta) + 1), "xaxis": "x2", "yaxis": "y2"}
    edge = {"color": NEUTRAL, "width": 1}
    return [
        {
            "y": result.ostrowski_lower, "mode": "lines", "line": edge, "showlegend": False,
            "name": "Ostrowski, lower", "hovertemplate": "at least %{y:.3e}", **place,
        },
        {
            "y": result.ostrowski_upper, "mode": "lines", "line": edge, "fill": "tonexty",
            "fillcolor": translucent(NEUTRAL, 0.25), "name": "Ostrowski's bounds",
            "hovertemplate": "at most %{y:.3e}", **place,
        },
        {
            "y": result.spectrum, "mode": "lines+markers", "name": "truth: spectrum of H",
            "line": {"color": BLUE, "width": 2}, "marker": {"size": 10},
            "hovertemplate": "σ<sub>%{x}</sub> = %{y:.3e}", **place,
        },
        {
            "y": run.sorted_prediction, "mode": "lines+markers", "name": "Eq. 10, sorted",
            "line": {"color": ORANGE, "width": 2, "dash": "dash"},
            "marker": {"symbol": "x", "size": 9}, "hovertemplate": "Eq. 10: %{y:.3e}", **place,
        },
    ]  # fmt: skip


def _partial_sums(run: RotatedAlignment) -> list[dict[str, Any]]:
    """Return both partial sums and the gap between them."""
    result = run.alignment
    total = result.true_partial_sums[-1]
    place: dict[str, Any] = {"x": np.arange(len(run.theta) + 1), "xaxis": "x3", "yaxis": "y3"}
    place |= {"hovertemplate": "m = %{x}: %{y:.4f}"}
    return [
        {
            "y": np.append(0.0, result.predicted_partial_sums / total), "mode": "lines", "showlegend": False,
            "name": "sums of Eq. 10", "line": {"color": ORANGE, "width": 2.5, "dash": "dash"}, **place,
        },
        {
            "y": np.append(0.0, result.true_partial_sums / total), "mode": "lines", "name": "gap of the sums",
            "line": {"color": BLUE, "width": 2.5}, "fill": "tonexty", "showlegend": False,
            "fillcolor": translucent(PURPLE, 0.45), **place,
        },
    ]  # fmt: skip


def alignment_sweep_figure(sweeps: Sequence[AlignmentSweep]) -> Any:
    """Draw the diagonal overlap, the misalignment, and how much too small Eq. 10 makes κ, against the angle.

    Args:
        sweeps: Of `alignment_sweep`, one a rotation; that of Haar draws has no angle and
            becomes a band.

    Returns:
        A plotly figure: three panels; in each a curve a rotation, and the median and the middle 90 % of the
        Haar draws.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    titles = ("mean overlap |u<sub>i</sub><sup>⊤</sup>q<sub>i</sub>|²", "misalignment", "κ of Eq. 10 / κ(H)")
    figure = panels(cols=3, horizontal_spacing=0.09, subplot_titles=titles)
    for sweep in sweeps:
        measures = (sweep.diagonal_overlap, sweep.misalignment, sweep.condition_ratio)
        for column, values in enumerate(measures, 1):
            place = {"row": 1, "col": column, "showlegend": column == 1}
            if sweep.rotation == "haar":
                low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
                draws = f"{len(values)} Haar draws: median, middle 90 %"
                figure.add_scatter(
                    x=[0, 90, 90, 0], y=[low, low, high, high], fill="toself", mode="none", showlegend=False,
                    fillcolor=translucent(PURPLE, 0.3), hoverinfo="skip", legendgroup="haar",
                    name=draws, row=1, col=column,
                )  # fmt: skip
                add_line(
                    figure, draws, [0, 90], [middle] * 2, PURPLE, "longdash", width=2, legendgroup="haar",
                    hovertemplate="median %{y:.3f}", **place,
                )  # fmt: skip
                continue
            color, dash = _LOOKS[sweep.rotation]
            add_line(
                figure, _ROTATIONS[sweep.rotation], sweep.angles, values, color, dash,
                legendgroup=sweep.rotation, hovertemplate="φ = %{x}°: %{y:.3f}", **place,
            )  # fmt: skip
    teaching_layout(figure, "Away from alignment: Eq. 10 never overestimates κ", height=500)
    figure.update_xaxes(title_text="angle φ of U to Q (degrees)", range=[0, 90], dtick=30)
    figure.update_yaxes(range=[0, 1.04], dtick=0.2)
    figure.update_yaxes(rangemode="tozero", autorange=True, dtick=0.1, col=2)
    return figure


def alignment_table(run: RotatedAlignment) -> pd.DataFrame:
    """Return spectra, bounds, partial sums and overlaps, one row an index i."""
    result = run.alignment
    columns = {"theta_singular_value": result.theta_singular_values}
    columns |= {"covariance_eigenvalue": result.covariance_eigenvalues, "predicted": result.predicted}
    columns |= {"predicted_sorted": run.sorted_prediction, "spectrum": result.spectrum}
    columns |= {"ostrowski_lower": result.ostrowski_lower, "ostrowski_upper": result.ostrowski_upper}
    columns |= {"predicted_partial_sum": result.predicted_partial_sums}
    columns |= {"true_partial_sum": result.true_partial_sums}
    columns |= {f"overlap_{j}": column for j, column in enumerate(np.asarray(result.overlaps).T, 1)}
    return pd.DataFrame(columns, index=pd.RangeIndex(1, len(run.theta) + 1, name="i")).reset_index()


def alignment_reading(run: RotatedAlignment) -> str:
    """Say whether Eq. 10 holds here, by how much it fails, and what holds all the same."""
    result = run.alignment
    true = "majorisation and Ostrowski's bounds hold" if result.majorised and result.ostrowski_holds else (
        "<b>a check of the theory fails by round-off</b>"
    )  # fmt: skip
    if run.exact:
        verdict = "U diagonalises K: <b>Eq. 10 is exact</b>"
        if not np.array_equal(np.argsort(-result.predicted, kind="stable"), np.arange(len(run.theta))):
            verdict += ", though not in the order of θ's singular values"
    else:
        share = f"its κ is {result.condition_ratio:.1%} of the true one"
        verdict = f"<b>Eq. 10 is not the spectrum</b>: {share}; {true}"
    if not result.u_unique:
        verdict += ". θ has repeated singular values: U is one of many, and so is what Eq. 10 says"
    elif not result.q_unique:
        verdict += (
            ". K has repeated eigenvalues: the overlaps with those q<sub>j</sub> are one choice of many"
        )
    low, high = haar_overlap_band(len(run.theta))
    return (
        f"{verdict}. Mean overlap |u<sub>i</sub><sup>⊤</sup>q<sub>i</sub>|² {run.diagonal_overlap:.3f}; "
        f"of Haar draws, 90 % lie in {low:.3f} … {high:.3f}."
    )


class AlignmentExplorer(Explorer):
    """Proposition 3.2 with chosen spectra of θ and K, and a chosen angle of U to Q."""

    controls = (
        Slider("angle", "angle of U to Q", "Of the singular vectors of θ to K's; 0: aligned.", "degrees"),
        Choice(
            "rotation", "rotation", "Which of the u_i turn.",
            labels={
                "ends": "plane of q₁ and q_D", "neighbours": "plane of q₁ and q₂",
                "random": "random, by at most the angle", "haar": "Haar draw (generic, no angle)",
            },
        ),
        # 3 and 100 both lie on (about) a mark
        LogSlider("data_kappa", "κ(K)", "κ(K), largest over smallest eigenvalue γ.", step=1 / 44),
        Choice("data_spectrum", "spectrum of K", "How γ₁ … γ_D are spread.", labels=SHAPE_LABELS),
        Slider("theta_kappa", "κ(θ)", "κ(θ), largest over smallest singular value.", step=0.5),
        Choice(
            "theta_spectrum", "spectrum of θ", "How the singular values of θ are spread.", labels=SHAPE_LABELS
        ),
        Slider("dimension", "dimension D", "Number D of features.", "features"),
        Choice(
            "pairing", "aligned means", "Which u_i lies on which q_j at the angle 0.",
            labels={"same": "u_i = q_i", "opposite": "u_i = q_(D+1-i), opposite order"},
        ),
        Slider("seed", "random draw no.", "Another random rotation or Haar draw."),
    )  # fmt: skip
    presets = (
        Preset("Aligned: Eq. 10 is exact", "Angle 0", {"angle": 0.0, "rotation": "random"}),
        Preset(
            "By hand: D = 2, Eq. 10 fails",
            "θ = UΣ with Σ = diag(1, 1/2), K = diag(1, 1/3), 45°: proportional to [[8, 2], [2, 2]]",
            {
                "angle": 45.0, "rotation": "random", "dimension": 2, "pairing": "same", "data_kappa": 3.0,
                "data_spectrum": "geometric", "theta_kappa": 2.0, "theta_spectrum": "geometric", "seed": 0,
            },
        ),
        Preset(
            "Generic: a Haar draw",
            "U uniform among all orthogonal matrices: overlaps of about 1/D",
            {"rotation": "haar", "dimension": 8, "data_kappa": 100.0, "theta_kappa": 3.0},
        ),
        Preset(
            "By at most 90°: not generic",
            "exp(φA): only some vectors turn by the whole φ, the rest by less",
            {"angle": 90.0, "rotation": "random", "dimension": 8, "data_kappa": 100.0, "theta_kappa": 3.0},
        ),
    )  # fmt: skip
    compute = staticmethod(rotated_alignment)
    figure = staticmethod(alignment_figure)
    data = staticmethod(alignment_table)
    reading = staticmethod(alignment_reading)
