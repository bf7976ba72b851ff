"""Lesson 4: how much immunization is possible, in the plane of the two ratios of Eq. 15."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

from condnum.errors import InvalidInputError
from condnum.lessons.condition_number import Floats, spectrum
from condnum.lessons.draw import Panel, figure, plotly_figure
from condnum.lessons.explore import Choice, Log, Slider, explore
from condnum.methods import immunize
from condnum.methods.algorithm1 import Ours
from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.page.look import BLUE, GREEN, LIMIT, NEUTRAL, ORANGE, PURPLE, translucent
from condnum.probing import ProbeCurve, linear_probe
from condnum.theory.kappa import RATIO_TOLERANCE, relative_immunization_ratio
from condnum.theory.limits import (
    FeasibleRegion,
    extractor_ratios,
    feasible_region,
    immunizer_family,
    max_rir,
    max_rir_immunizer,
    pareto_immunizer,
)
from condnum.theory.task import Task

#: Which task does not use the last feature.
NullKind = Literal["none", "both", "harmful", "benign"]
NULLS: dict[str, NullKind] = {
    "in no task": "none",
    "in both tasks": "both",
    "in the harmful task": "harmful",
    "in pre-training": "benign",
}
#: Steps of Algorithm 1 and of exact line search that are followed.
PATH_STEPS, ATTACK_STEPS = 100, 2000
#: A path ends where κ exceeds this: from there its smallest eigenvalue is round-off.
_LOST_KAPPA = 1e20
#: Drawn this far beyond the corners of the region: more than the largest κ that `extractor_ratios` trusts.
_FAR = 1e32
_PLANE = (10**-2.3, 10**2.3), (10**-2.3, 10**4.3)


def two_tasks(
    kappa_benign: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 4,
    null: NullKind = "none",
) -> tuple[Floats, Floats]:
    """Return `diag(γ_P)` and `Q diag(γ_H) Qᵀ`; Q turns the planes of the i-th and i-th last eigenvectors."""
    turned = dimension - (null != "none")
    if turned < 2:
        least = 2 + dimension - turned
        raise InvalidInputError(f"dimension must be at least {least} with null='{null}', got {dimension}.")
    gamma_P, gamma_H = (spectrum("geometric", turned, kappa) for kappa in (kappa_benign, kappa_harmful))
    Q, first, phi = np.eye(turned), np.arange(turned // 2), np.deg2rad(angle)
    last = turned - 1 - first
    Q[first, first] = Q[last, last] = np.cos(phi)
    Q[last, first], Q[first, last] = np.sin(phi), -np.sin(phi)
    tasks = [np.diag(gamma_P), (Q * gamma_H) @ Q.T]
    if null != "none":
        tasks = [np.pad(K, (0, 1)) for K in tasks]
        for K, kappa, own in zip(tasks, (kappa_benign, kappa_harmful), ("benign", "harmful"), strict=True):
            K[-1, -1] = 0.0 if null in ("both", own) else kappa**-0.5
    return tasks[0], tasks[1]


class FromIdentity(Ours):
    """Algorithm 1 that starts at the raw inputs, θ₀ = I, where (i) = (ii) = 1."""

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return I."""
        return {"theta": torch.eye(problem.dimension, dtype=torch.float64)}


def algorithm1_path(K_P: Floats, K_H: Floats, *, ratio: float = 1.0, learning_rate: float = 0.3) -> Floats:
    """Return (ii) and (i) along plain descent from θ = I without targets, `(T + 1, 2)`."""
    problem = ImmunizationProblem.from_covariances(K_P, K_H)
    options: dict[str, Any] = {"steps": PATH_STEPS, "record_every": 1, "optimizer": "gd"}
    options |= {"schedule": "constant", "learning_rate": learning_rate, "ratio": ratio}
    history = immunize(problem, FromIdentity(), **options).history
    kappa = np.stack([history["kappa_benign"], history["kappa_harmful"]], axis=1)
    lost = np.flatnonzero((kappa > _LOST_KAPPA).any(axis=1))
    return np.asarray(kappa[: lost[0] if len(lost) else None] / kappa[0])


@dataclass(frozen=True, eq=False)
class Tasks:
    """Two tasks, and what neither the step nor the reader's θ changes."""

    K_P: Floats  # (D, D)
    K_H: Floats  # (D, D)
    region: FeasibleRegion
    family: Floats  # (n, 2) (ii) and (i) along K_P^(-s/2), from I to θ*
    front: Floats  # (2,) of the library's θ on the Pareto front
    path: Floats  # (T + 1, 2) of Algorithm 1

    @classmethod
    def of(cls, K_P: Floats, K_H: Floats) -> "Tasks":
        """Follow Algorithm 1 on two covariances."""
        P, H = Task.of_covariance(K_P), Task.of_covariance(K_H)
        region, family = feasible_region(P, H), [*immunizer_family(P, np.linspace(0, 1, 21).tolist())]
        if math.isinf(region.limit.value):  # null(K_P) then gains 100-fold
            family += [max_rir(P, gain) for gain in np.geomspace(1, 100, 9).tolist()]
        between = np.array([extractor_ratios(theta, P, H) for theta in family])
        # Where all eigenvalues are equal, R_ill has no gradient.
        path = np.ones((1, 2)) if H.kappa <= 1 + RATIO_TOLERANCE else algorithm1_path(K_P, K_H)
        return cls(K_P, K_H, region, between, ratios_of(pareto_immunizer(K_P, K_H), K_P, K_H), path)


@lru_cache(maxsize=64)
def _tasks_of(*settings: Any) -> Tasks:
    return Tasks.of(*two_tasks(*settings))


@explore(
    kappa_harmful=Log(1, 100, stops=[1, 10, 100], label="κ of K<sub>H</sub>"),
    angle=Slider(0, 90, stops=[0, 45, 90], label="angle of the eigenbases (degrees)"),
    null=Choice(NULLS, label="last feature dead"),
    t=Slider(0, PATH_STEPS, stops=[0, 1, 3, 10, 30, 100], play=400, label="step t of Algorithm 1"),
    kappa_benign=Log(1, 100, label="κ of K<sub>P</sub>", live=True),
    D=Slider(3, 12, label="dimension D", live=True),
    presets={
        "Proportional tasks": {"angle": 0, "kappa_harmful": 100.0, "null": "none"},
        "No limit": {"null": "benign"},
    },
)
def limit_explorer(
    kappa_harmful: float = 10.0,
    angle: int = 45,
    null: NullKind = "none",
    t: int = PATH_STEPS,
    kappa_benign: float = 100.0,
    D: int = 4,
    extractor: Callable[[Floats, Floats], Any] = pareto_immunizer,
) -> tuple[list[Panel], str]:
    """How much immunization two tasks allow, and how much of it Algorithm 1 finds."""
    return limit_panels(_tasks_of(kappa_benign, kappa_harmful, angle, D, null), t, extractor)


def limit_of(K_P: Floats, K_H: Floats) -> Any:
    """Place two tasks of a reader's, covariances `(D, D)`, in the plane, as `limit_explorer` does."""
    tasks = Tasks.of(np.asarray(K_P, np.float64), np.asarray(K_H, np.float64))
    panels, sentence = limit_panels(tasks, PATH_STEPS, pareto_immunizer)
    return plotly_figure(figure(panels, sentence))


def ratios_of(theta: Any, K_P: Floats, K_H: Floats) -> Floats:
    """Return (ii) and (i) of an extractor `(D, m)`, over the ranks of H."""
    theta = np.asarray(theta, dtype=np.float64)
    if theta.ndim != 2 or len(theta) != len(K_P):
        shape = f"θ must have a row for each of the {len(K_P)} features, got shape {theta.shape}"
        raise InvalidInputError(f"{shape}; return a matrix such as K_P^(-1/2).")
    found = relative_immunization_ratio(theta, K_P, K_H)
    return np.array([found.benign_ratio, found.harmful_ratio])


def limit_panels(tasks: Tasks, t: int, extractor: Callable[[Floats, Floats], Any]) -> tuple[list[Panel], str]:
    """Draw what is possible in the (ii)/(i) plane, how far Algorithm 1 gets, and where an extractor lies."""
    region, path, K_P, K_H = tasks.region, tasks.path, tasks.K_P, tasks.K_H
    value, star, chosen = region.limit.value, tasks.family[20], tasks.front
    if extractor is not pareto_immunizer:
        chosen = ratios_of(extractor(K_P, K_H), K_P, K_H)
    shown, rir = min(t, len(path) - 1), path[:, 1] / path[:, 0]
    names = [
        f"({i}) = κ(H<sub>{task}</sub>(θ)) / κ(H<sub>{task}</sub>(I))"
        for i, task in (("ii", "P"), ("i", "H"))
    ]
    plane = Panel("the two ratios of Eq. 15", x=names[0], y=names[1], log="xy", width=1.5)
    plane.limits = [*_PLANE]
    draw_region(plane, region)
    pair, line = "(ii) = %{x:.4g}, (i) = %{y:.4g}", tasks.family
    plane.line("I … θ*: K<sub>P</sub><sup>−s/2</sup>", line[:, 0], line[:, 1], GREEN, "dash", hover=pair)
    plane.line("Algorithm 1", path[:, 0], path[:, 1], BLUE, hover=pair)
    for name, (x, y), color, symbol, size, listed in (
        ("θ* = K<sub>P</sub><sup>−1/2</sup>", star, ORANGE, "star", 17, True),
        ("diamond: θ of the cell", chosen, PURPLE, "diamond-open", 13, True),
        ("step t", path[shown], BLUE, "circle", 13, False),
    ):
        plane.marks(name, [x], [y], color, symbol, size=size, hover=pair, legend=listed)
    right = Panel("RIR = (i)/(ii)", x="step t", xlim=(0, PATH_STEPS + 3), ylim=(0.1, _PLANE[1][1]), log="y")
    level = [value if math.isfinite(value) else np.nan] * 2
    right.line("limit", [0, PATH_STEPS], level, LIMIT, width=3.5, legend=False)
    right.line("RIR", np.arange(len(path)), rir, BLUE, legend=False)
    right.marks("step t", [shown], rir[[shown]], BLUE, size=13, legend=False)
    words = f"The diamond lies at (i) = {num(chosen[1], 4)}, (ii) = {num(chosen[0], 4)}. "
    if len(path) == 1:
        words += "κ(K<sub>H</sub>) = 1: R<sub>ill</sub> (Eq. 12) is infinite, and Algorithm 1 cannot start. "
    else:
        ended = ", where its path ends: the step size is too large" if shown < t else ""
        words += f"After {shown} steps of Algorithm 1 RIR = {num(rir[shown], 4)}{ended}"
        words += f", {num(100 * rir[shown] / value)} % of the limit. " if math.isfinite(value) else ". "
    if math.isinf(value):
        words += "D<sub>P</sub> never sees one feature: θ scales it freely, and RIR has no limit."
    else:
        words += f"RIR<sub>max</sub> = {num(value, 4)}, also the largest (i) with (ii) ≤ 1."
    for panel in (plane, right):
        panel.follow()
    return [plane, right], words


def draw_region(panel: Panel, region: FeasibleRegion) -> None:
    """Draw the success quadrant of Definition 3.1, what no θ reaches, and the Pareto front."""
    wall = 1 / region.kappa_benign  # left of θ*
    knee = region.kappa_pencil / region.kappa_benign  # where the least (i) turns
    far = max(_FAR * wall, _FAR * knee)
    top, bottom = max(_FAR**2, far), 1 / _FAR / region.kappa_harmful
    lower, upper = np.array([far, max(knee, wall), wall]), np.array([wall, far])
    x = np.concatenate([lower, upper, [wall / _FAR, wall / _FAR, far]])
    y = np.concatenate([region.lowest(lower), np.minimum(region.highest(upper), top), [top, bottom, bottom]])
    corner, high = 1 / _FAR**2, _FAR**2
    outline: dict[str, Any] = {"line": {"color": GREEN, "width": 1, "dash": "dot"}}
    panel.area("immunized", [corner, 1, 1, corner], [1, 1, high, high], translucent(GREEN, 0.14), **outline)
    panel.area("no θ reaches", x, y, translucent(NEUTRAL, 0.45))
    start = region.start[0]
    ray = np.array([start, _FAR * start]) if math.isfinite(region.limit.value) else np.full(2, np.nan)
    panel.line("Pareto front", ray, region.highest(ray), LIMIT, width=3.5, hoverinfo="skip")


@dataclass(frozen=True)
class Attack:
    """A linear probe on the harmful task with one set of features."""

    name: str  # of the features
    kappa: float  # κ of the probe's Hessian
    curve: ProbeCurve  # excess loss of exact line search

    def steps_to(self, share: float) -> int | None:
        """Return the first step with at most this fraction of the initial excess loss, or None."""
        reached = np.flatnonzero(self.curve.excess_loss <= share)
        return int(self.curve.steps[reached[0]]) if len(reached) else None


def attacks(*, angle: float = 45.0) -> list[Attack]:
    """Probe a harmful task, D = 16, through four extractors; the third has κ of θ*, all else at the top."""
    K_P, K_H = two_tasks(angle=angle, dimension=16)
    best = np.asarray(max_rir_immunizer(K_P))
    mu, V = np.linalg.eigh(best.T @ K_H @ best)
    extractors = {
        "raw inputs, θ = I": np.eye(16),
        "θ*": best,
        "same κ, other eigenvalues at the top": best @ (V * np.append(1.0, np.sqrt(mu[-1] / mu[1:]))) @ V.T,
        "θ*, whitened by the attacker": best @ V / np.sqrt(mu),  # from the attacker's own features alone
    }
    task, found = Task.of_covariance(K_H, K_H @ np.random.default_rng(0).normal(size=16)), []
    for name, theta in extractors.items():
        curve = linear_probe(theta, task, steps=ATTACK_STEPS)
        found.append(Attack(name, float(np.linalg.cond(theta.T @ K_H @ theta)), curve))
    return found
