"""Notebook 4: how much immunization is possible, in the plane of the two ratios of Eq. 15.

What is possible at all is `condnum.theory.pareto`'s; here some extractors are placed in it, and the path of
Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.figures.limits import add_region
from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, add_line, num, panels, teaching_layout
from condnum.lessons.condition_number import SHAPE_LABELS, SpectrumShape
from condnum.lessons.explorer import Angle, Between, Choice, Explorer, LogSlider, Slider, Stepper, checked
from condnum.lessons.two_tasks import NULL_LABELS, NullKind, TaskKappa, Tasks, two_tasks
from condnum.methods.algorithm1 import Ours
from condnum.methods.descent import descend
from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.theory.ceiling import optimal_immunizer
from condnum.theory.pareto import FeasibleRegion, feasible_region, immunizer_family
from condnum.theory.spectra import CovarianceRange, covariance_factor

#: Steps of Algorithm 1 that the figure follows, and random extractors that test the ceiling.
PATH_STEPS, RANDOM_EXTRACTORS = 100, 90
#: Relative error that a κ of this size may have from round-off: κ(M) ≤ 1e4 and eps = 2e-16.
SLACK = 1e-9
#: A path ends where κ exceeds this: from there its smallest eigenvalue is round-off.
LARGEST_KAPPA = 1e20


@dataclass(frozen=True)
class Plane(FeasibleRegion):
    """Two tasks in the (ii)/(i) plane: what is possible, and where some extractors lie."""

    optimum: NDArray[np.float64]  # (2,) (ii) and (i) at θ* = K_P^{-1/2}
    family: NDArray[np.float64]  # (F, 2) at K_P^{-s/2}, s from 0 to 1; then free scaling, if there is any
    cloud: NDArray[np.float64]  # (n, 2) at random extractors

    @property
    def cloud_share(self) -> float:
        """Largest RIR of the random extractors, as a share of the ceiling; 0 where that is infinite."""
        return float((self.cloud[:, 1] / self.cloud[:, 0]).max() / self.ceiling.value)


@dataclass(frozen=True)
class CeilingDemo:
    """The plane, and the path of Algorithm 1 in it."""

    plane: Plane
    step: int  # the step that the reader looks at
    path: NDArray[np.float64]  # (T + 1, 2) (ii) and (i) after each step, from θ = I
    rir: NDArray[np.float64]  # (T + 1,) (i)/(ii)
    stop_reason: str  # "diverged" if the step size was too large, and the path ends early

    @property
    def shown(self) -> int:
        """The step that can be shown: the last one, if the path ended before `step`."""
        return min(self.step, len(self.path) - 1)


class FromIdentity(Ours):
    """Algorithm 1 that starts at the raw inputs, θ₀ = I, where (i) = (ii) = 1."""

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return I."""
        return {"theta": torch.eye(problem.dimension, dtype=torch.float64)}


@checked
def ceiling_demo(
    *,
    kappa_pretrain: TaskKappa = 100.0,
    kappa_harmful: TaskKappa = 10.0,
    angle: Angle = 45.0,
    dimension: Annotated[int, Between(3, 12)] = 4,
    shape: SpectrumShape = "geometric",
    null: NullKind = "none",
    ratio: Annotated[float, Between(0.1, 10)] = 1.0,
    learning_rate: Annotated[float, Between(0.05, 1)] = 0.3,
    step: Annotated[int, Between(0, PATH_STEPS)] = PATH_STEPS,
) -> CeilingDemo:
    """Place the ceiling, θ*, a path of Algorithm 1 and random extractors in the (ii)/(i) plane.

    The path is plain gradient descent on the two regularizers with Algorithm 1's preconditioner and
    λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at the start, from θ = I and without a supervised loss (no targets).

    Examples:
        Aligned spectra with one shape: κ(M) = 100/10, and RIR_max = 10·100/10.

        >>> demo = ceiling_demo(kappa_pretrain=100.0, kappa_harmful=10.0, angle=0.0, step=0)
        >>> round(demo.plane.ceiling.value, 9), demo.rir[0].round(9)
        (100.0, np.float64(1.0))
    """
    tasks = (kappa_pretrain, kappa_harmful, angle, dimension, shape, null)
    path, reason = _path(tasks, ratio, learning_rate)
    return CeilingDemo(_plane(tasks), step, path, path[:, 1] / path[:, 0], reason)


@lru_cache(maxsize=64)
def _plane(tasks: Tasks) -> Plane:
    """Return what does not depend on the path."""
    K_P, K_H = two_tasks(*tasks)
    region = feasible_region(K_P, K_H)
    factors = [covariance_factor(torch.from_numpy(K)).numpy() for K in (K_P, K_H)]
    start = np.array([_kappa(np.eye(len(K_P)), B) for B in factors])

    def ratios(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (ii) and (i) of a batch."""
        return _frozen(np.stack([_kappa(theta, B) for B in factors], axis=-1) / start)

    optimum = np.asarray(optimal_immunizer(K_P, K_H))
    return Plane(
        **vars(region),
        optimum=ratios(optimum),
        family=ratios(_family(K_P, K_H, free=math.isinf(region.ceiling.value))),
        cloud=ratios(_random_extractors(optimum, K_H)),
    )


@lru_cache(maxsize=64)
def _path(tasks: Tasks, ratio: float, learning_rate: float) -> tuple[NDArray[np.float64], str]:
    """Return (ii) and (i) along Algorithm 1, `(T + 1, 2)`, and why it stopped."""
    problem = ImmunizationProblem.from_covariances(*two_tasks(*tasks))
    method = FromIdentity()
    settings = method.defaults.with_overrides(
        optimizer="gd", schedule="constant", learning_rate=learning_rate, ratio=ratio,
        steps=PATH_STEPS, record_every=1,
    )  # fmt: skip
    run = descend(problem, method, settings, seed=0)
    kappa = np.stack([run.history["kappa_pretrain"], run.history["kappa_harmful"]], axis=1)
    lost = np.flatnonzero((kappa > LARGEST_KAPPA).any(axis=1))
    if len(lost):
        kappa = kappa[: lost[0]]
    reason = "diverged" if len(lost) else run.stop_reason
    return _frozen(kappa / kappa[0]), reason


def _family(K_P: NDArray[np.float64], K_H: NDArray[np.float64], *, free: bool) -> NDArray[np.float64]:
    """Return `K_P^{-s/2}`, s from 0 to 1, `(F, D, D)`; with `free`, null(K_P) then gains 100-fold."""
    family = immunizer_family(
        CovarianceRange.of(torch.from_numpy(K_P)), np.linspace(0, 1, 21).tolist()
    ).numpy()
    if not free:
        return family
    scaled = [optimal_immunizer(K_P, K_H, null_gain=g) for g in np.geomspace(1, 100, 9).tolist()]
    return np.concatenate([family, np.stack(scaled)])


def _random_extractors(optimum: NDArray[np.float64], K_H: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `(n, D, D)` extractors: Gaussian ones, some around θ*, some around the front."""
    n, D = RANDOM_EXTRACTORS // 3, len(optimum)
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(3, n, D, D))
    size = np.geomspace(3e-3, 3, n)[:, None, None]
    powers = generator.uniform(-0.5, 1.5, size=(n, 1))
    mu, V = np.linalg.eigh(optimum @ K_H @ optimum)
    along = (V * (np.maximum(mu, SLACK * mu[-1]) ** (powers / 2))[:, None, :]) @ V.T
    near, beside = np.eye(D) + size * noise[1], np.eye(D) + size * noise[2]
    return np.concatenate([noise[0], optimum @ near, optimum @ along @ beside])


def _kappa(theta: NDArray[np.float64], factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return κ of `H(θ)` over the rank of K, `(...)`: invertible extractors keep that rank.

    As `hessian_spectrum` does, but by NumPy: torch wakes its threads for a batch of tiny matrices.
    """
    sigma = np.linalg.svd(factor @ theta, compute_uv=False)
    return np.asarray((sigma[..., 0] / sigma[..., -1]) ** 2)


def _frozen(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an array that a reader of the cache cannot change."""
    values.flags.writeable = False
    return values


#: Decades of (ii) and (i) in sight; they do not move with the sliders, κ up to 100 fits.
PRETRAIN_DECADES, HARMFUL_DECADES, RIR_DECADES = (-2.3, 2.3), (-2.3, 4.3), (-1.0, 4.3)


def ceiling_plane_figure(demo: CeilingDemo) -> Any:
    """Draw what is possible in the (ii)/(i) plane, and how far Algorithm 1 gets."""
    figure = panels(
        cols=2, column_widths=[0.6, 0.4], horizontal_spacing=0.11,
        subplot_titles=("the two ratios of Eq. 15", "RIR = (i)/(ii) along Algorithm 1"),
    )  # fmt: skip
    add_region(figure, demo.plane, row=1, col=1)
    _add_extractors(figure, demo)
    _add_rir(figure, demo)
    value = demo.plane.ceiling.value
    ceiling = f"RIR<sub>max</sub> = {num(value, 4)}" if math.isfinite(value) else "RIR has no ceiling"
    teaching_layout(figure, f"How much immunization is possible: {ceiling}", height=530)
    figure.update_layout(margin_b=140)
    log: dict[str, Any] = {"type": "log", "dtick": 1}
    figure.update_xaxes(
        range=PRETRAIN_DECADES, title_text="(ii) = κ(H<sub>P</sub>(θ)) / κ(H<sub>P</sub>(I))", col=1, **log
    )
    figure.update_yaxes(
        range=HARMFUL_DECADES, title_text="(i) = κ(H<sub>H</sub>(θ)) / κ(H<sub>H</sub>(I))", col=1, **log
    )
    figure.update_xaxes(range=[0, PATH_STEPS], title_text="step t", col=2)
    figure.update_yaxes(range=RIR_DECADES, title_text="RIR", col=2, **log)
    return figure


def _add_extractors(figure: Any, demo: CeilingDemo) -> None:
    """Add points of the plane: random ones, the family, the path, I, θ* and the shown step."""
    plane = demo.plane
    left: dict[str, Any] = {"row": 1, "col": 1}
    pair = "(ii) = %{x:.4g}, (i) = %{y:.4g}"
    figure.add_scatter(
        x=plane.cloud[:, 0], y=plane.cloud[:, 1], mode="markers", name=f"{len(plane.cloud)} random θ",
        marker={"size": 5, "color": PURPLE, "opacity": 0.75}, hovertemplate=pair, **left,
    )  # fmt: skip
    add_line(
        figure, "K<sub>P</sub><sup>−s/2</sup>, from I to θ*", plane.family[:, 0], plane.family[:, 1], GREEN,
        "dash", hovertemplate=pair, **left,
    )  # fmt: skip
    add_line(
        figure, "Algorithm 1", demo.path[:, 0], demo.path[:, 1], BLUE, customdata=np.arange(len(demo.path)),
        hovertemplate="t = %{customdata}: " + pair, **left,
    )  # fmt: skip
    marks = (
        ("θ = I", [1.0], [1.0], "x", 11, NEUTRAL),
        ("θ* = K<sub>P</sub><sup>−1/2</sup>", plane.optimum[:1], plane.optimum[1:], "star", 17, ORANGE),
        ("shown step", *demo.path[demo.shown, :, None], "circle", 13, BLUE),
    )
    for name, x, y, symbol, size, color in marks:
        figure.add_scatter(
            x=x, y=y, mode="markers", name=name, showlegend=symbol != "circle",
            marker={"symbol": symbol, "size": size, "color": color}, hovertemplate=pair, **left,
        )  # fmt: skip


def _add_rir(figure: Any, demo: CeilingDemo) -> None:
    """Add the right panel: RIR of each step, the ceiling and the shown step."""
    right: dict[str, Any] = {"row": 1, "col": 2, "showlegend": False}
    value = demo.plane.ceiling.value
    add_line(
        figure, "RIR<sub>max</sub>", [0, PATH_STEPS], [value if math.isfinite(value) else np.nan] * 2, ORANGE,
        width=3.5, hovertemplate="ceiling %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    add_line(
        figure, "RIR of Algorithm 1", np.arange(len(demo.rir)), demo.rir, BLUE,
        hovertemplate="t = %{x}: RIR = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    figure.add_scatter(
        x=[demo.shown], y=[demo.rir[demo.shown]], mode="markers", name="RIR at the shown step",
        marker={"size": 13, "color": BLUE}, hovertemplate="t = %{x}: RIR = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip


def ceiling_table(demo: CeilingDemo) -> pd.DataFrame:
    """Return every point of the plane."""
    plane = demo.plane
    points = {
        "algorithm_1": demo.path,
        "family": plane.family,
        "optimum": plane.optimum[None],
        "random": plane.cloud,
    }
    parts = []
    for kind, pairs in points.items():
        part = pd.DataFrame(pairs, columns=["pretrain_ratio", "harmful_ratio"])
        part.insert(0, "step", range(len(part)) if kind == "algorithm_1" else None)
        part.insert(0, "kind", kind)
        parts.append(part.astype({"step": "Int64"}))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(rir=table["harmful_ratio"] / table["pretrain_ratio"])


def ceiling_reading(demo: CeilingDemo) -> str:
    """Say how far Algorithm 1 got, and whether a random extractor got further than the ceiling."""
    plane, t = demo.plane, demo.shown
    reached, limit = float(demo.rir[t]), plane.ceiling.value
    ended = (
        f" The step size is too large: the path ends at step {t}." if demo.stop_reason == "diverged" else ""
    )
    if math.isinf(limit):
        return (
            f"After {t} steps RIR = {num(reached, 4)}.{ended} The harmful task uses a feature that "
            "D<sub>P</sub> never sees: θ may scale it freely, and RIR grows without end (dashed line, up)."
        )
    beyond = int((plane.cloud[:, 1] > plane.highest(plane.cloud[:, 0]) * (1 + SLACK)).sum())
    return (
        f"After {t} steps RIR = {num(reached, 4)}, {num(100 * reached / limit)} % of the ceiling.{ended} "
        f"θ* has (i) = {num(plane.optimum[1], 4)} at (ii) = {num(plane.optimum[0])}; the largest (i) with "
        f"(ii) ≤ 1 is {num(limit, 4)}. Of {len(plane.cloud)} random θ, {beyond or 'none'} lies beyond the "
        f"front; the closest reaches {num(100 * plane.cloud_share, 4)} % of the ceiling."
    )


class CeilingExplorer(Explorer):
    """How much immunization two tasks allow, and how much of it Algorithm 1 finds."""

    controls = (
        LogSlider("kappa_pretrain", "κ of K_P", "κ(K_P) of the pre-training task."),
        LogSlider("kappa_harmful", "κ of K_H", "κ(K_H) of the harmful task."),
        Slider(
            "angle", "angle of K_H to K_P",
            "0°: large directions in common; 90°: the largest is the other's smallest.", "degrees",
        ),
        Slider("dimension", "dimension D", "Number D of features.", "features"),
        Choice("shape", "both spectra", "How both spectra are spread.", labels=SHAPE_LABELS),
        Choice("null", "last feature dead", "Where the last feature is always zero.", labels=NULL_LABELS),
        LogSlider("ratio", "weight ratio of R_ill", "λ_H‖g_H‖ over λ_P‖g_P‖ at step 0."),
        Slider("learning_rate", "step size η", "Constant step size of Algorithm 1.", step=0.05),
        Stepper("step", "step t", "Step of Algorithm 1 that is marked.", interval=120),
    )  # fmt: skip
    compute = staticmethod(ceiling_demo)
    figure = staticmethod(ceiling_plane_figure)
    data = staticmethod(ceiling_table)
    reading = staticmethod(ceiling_reading)
