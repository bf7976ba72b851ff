"""Two tasks with chosen spectra, a chosen angle between their eigenbases, and a null space if wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.errors import InvalidInputError
from condnum.figures.style import BLUE, NEUTRAL, ORANGE, PURPLE, empty, num, teaching_layout
from condnum.lessons.condition_number import SpectrumShape, spectrum
from condnum.lessons.explorer import Angle, Between, checked
from condnum.probing import ProbeCurve, linear_probe
from condnum.theory.ceiling import optimal_immunizer
from condnum.theory.spectra import covariance_factor

#: Which task does not use the last feature.
NullKind = Literal["none", "both", "harmful", "pretrain"]
NULL_LABELS = {
    "none": "in no task",
    "both": "in both tasks",
    "harmful": "in the harmful task",
    "pretrain": "in pre-training",
}
#: Arguments of `two_tasks`, to be remembered by.
Tasks = tuple[float, float, float, int, SpectrumShape, NullKind]
#: κ of a task that a slider offers.
TaskKappa = Annotated[float, Between(1, 100)]


@checked
def two_tasks(
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: Angle = 45.0,
    dimension: int = 4,
    shape: SpectrumShape = "geometric",
    null: NullKind = "none",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `K_P = diag(γ_P)` and `K_H = Q diag(γ_H) Qᵀ`.

    Q turns the plane of the i-th and the i-th last eigenvector by `angle`, for every i: at 0° both tasks
    have their large directions in common, at 90° the largest direction of one is the smallest of the other.
    With a null space the last feature is kept out of this. A task that uses it has the geometric mean of its
    extreme eigenvalues there, so that κ stays as chosen.

    Args:
        kappa_pretrain: κ(K_P) ≥ 1.
        kappa_harmful: κ(K_H) ≥ 1.
        angle: Degrees, from 0 to 90.
        dimension: D ≥ 2; ≥ 3 with a null space.
        shape: Of both spectra, see `spectrum`.
        null: The task, or both, whose covariance is zero in the last feature.

    Returns:
        Two `(D, D)` covariances with largest eigenvalue 1.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such shape or kind of null space.

    Examples:
        >>> K_P, K_H = two_tasks(kappa_pretrain=4.0, kappa_harmful=2.0, angle=90.0, dimension=2)
        >>> np.diag(K_P).tolist(), np.diag(K_H).round(12).tolist()
        ([1.0, 0.25], [0.5, 1.0])
    """
    turned = dimension - (null != "none")
    if turned < 2:
        raise InvalidInputError(
            f"dimension must be at least {2 + dimension - turned} with null space '{null}', got {dimension}."
        )
    gamma_P, gamma_H = (spectrum(shape, turned, kappa) for kappa in (kappa_pretrain, kappa_harmful))
    Q, first = np.eye(turned), np.arange(turned // 2)
    last, phi = turned - 1 - first, np.deg2rad(angle)
    Q[first, first] = Q[last, last] = np.cos(phi)
    Q[last, first], Q[first, last] = np.sin(phi), -np.sin(phi)
    K_P, K_H = np.diag(gamma_P), (Q * gamma_H) @ Q.T
    if null == "none":
        return K_P, K_H
    return (
        _extended(K_P, 0.0 if null in ("both", "pretrain") else kappa_pretrain**-0.5),
        _extended(K_H, 0.0 if null in ("both", "harmful") else kappa_harmful**-0.5),
    )


def _extended(K: NDArray[np.float64], value: float) -> NDArray[np.float64]:
    """Append a feature that is uncorrelated with the others."""
    return np.pad(K, (0, 1)) + np.diag([0.0] * len(K) + [value])


#: Steps of exact line search that are followed, and the share of the excess loss at which a curve ends.
ATTACK_STEPS, _LEAST_LOSS = 2000, 1e-12


@dataclass(frozen=True)
class Attack:
    """A linear probe on the harmful task with one set of features."""

    name: str  # of the features
    kappa: float  # κ of the probe's Hessian
    spectrum: NDArray[np.float64]  # (D,) descending
    curve: ProbeCurve  # excess loss of exact line search

    def steps_to(self, share: float) -> int | None:
        """Return the first step with at most this share of the initial excess loss, or None."""
        reached = np.flatnonzero(self.curve.excess_loss <= share)
        return int(self.curve.steps[reached[0]]) if len(reached) else None


def whiten(theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return `θV Σ^{-1/2}` for `θᵀKθ = VΣVᵀ`: features whose covariance is the identity.

    It takes nothing but the features of the attacker's own data.

    Examples:
        >>> theta = whiten(np.diag([0.1, 1.0]), np.diag([2.0, 1.0]))
        >>> np.abs(theta.T @ np.diag([2.0, 1.0]) @ theta).round(12)
        array([[1., 0.],
               [0., 1.]])
    """
    B = covariance_factor(torch.from_numpy(theta.T @ covariance @ theta)).numpy()
    return np.asarray(theta @ (B / (B**2).sum(axis=1, keepdims=True)).T)


def attacks(
    *,
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 16,
    shape: SpectrumShape = "geometric",
    seed: int = 0,
) -> list[Attack]:
    """Probe one harmful task through four feature extractors, from a start at 0.

    The targets are `y = X_Hβ` with Gaussian β, the same for all. θ*, rotated, has one κ and many spectra
    between the extremes: the third extractor keeps κ(H_H) and moves every other eigenvalue to the top.

    Args:
        kappa_pretrain: κ(K_P) ≥ 1, see `two_tasks`.
        kappa_harmful: κ(K_H) ≥ 1.
        angle: Degrees between the eigenbases.
        dimension: D.
        shape: Of both spectra.
        seed: Of β.

    Returns:
        Raw inputs, θ*, the same κ with another spectrum, and θ* whitened by the attacker.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such shape.

    Examples:
        >>> raw, immunized, same_kappa, whitened = attacks()
        >>> whitened.steps_to(1e-6), immunized.steps_to(1e-6) > raw.steps_to(1e-6)
        (1, True)
    """
    K_P, K_H = two_tasks(
        kappa_pretrain=kappa_pretrain,
        kappa_harmful=kappa_harmful,
        angle=angle,
        dimension=dimension,
        shape=shape,
    )
    best = np.asarray(optimal_immunizer(K_P, K_H))
    extractors = {
        "raw inputs, θ = I": np.eye(dimension),
        "θ*": best,
        "same κ, rest of the spectrum at the top": best @ _lift(best.T @ K_H @ best),
        "θ*, whitened by the attacker": whiten(best, K_H),
    }
    moment = K_H @ np.random.default_rng(seed).normal(size=dimension)
    return [_attack(name, theta, K_H, moment) for name, theta in extractors.items()]


def _attack(
    name: str, theta: NDArray[np.float64], K: NDArray[np.float64], moment: NDArray[np.float64]
) -> Attack:
    """Probe with exact line search."""
    sigma = np.linalg.eigvalsh(theta.T @ K @ theta)[::-1].astype(np.float64)
    curve = linear_probe(theta, K, moment, steps=ATTACK_STEPS)
    return Attack(name, float(sigma[0] / sigma[-1]), sigma, curve)


def _lift(H: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return S with `SᵀHS` of H's extremes and every other eigenvalue at the largest."""
    sigma, V = np.linalg.eigh(H)
    gain = np.sqrt(sigma[-1] / sigma)
    gain[0] = 1.0
    return (V * gain) @ V.T


def attacks_figure(runs: Sequence[Attack]) -> Any:
    """Draw the excess loss of an attacker through several extractors.

    Args:
        runs: Of `attacks`, up to four.

    Returns:
        A plotly figure: a curve each; the marker is the first step.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    figure = empty()
    looks = ((NEUTRAL, "solid"), (ORANGE, "solid"), (PURPLE, "dash"), (BLUE, "dot"))
    for run, (color, dash) in zip(runs, looks, strict=False):
        share = np.maximum(run.curve.excess_loss, _LEAST_LOSS)
        kept = int(np.argmax(share <= _LEAST_LOSS)) or len(share) - 1
        t = run.curve.steps[1 : kept + 1]
        figure.add_scatter(
            x=t, y=share[1 : kept + 1], mode="lines+markers" if len(t) < 5 else "lines",
            name=f"{run.name} (κ = {num(run.kappa)})", line={"color": color, "dash": dash, "width": 3},
            marker={"size": 13}, hovertemplate="t = %{x:,d}: %{y:.2e}",
        )  # fmt: skip
    note = "Share of the excess loss that is left after t steps; curves end at 10<sup>−12</sup>"
    teaching_layout(figure, "An attacker on the harmful task", note)
    figure.update_xaxes(
        type="log", range=[-0.05, math.log10(ATTACK_STEPS)], dtick=1, title_text="step t of exact line search"
    )
    figure.update_yaxes(
        type="log", range=[math.log10(_LEAST_LOSS) - 0.5, 0.3], dtick=2, title_text="excess loss"
    )
    return figure
