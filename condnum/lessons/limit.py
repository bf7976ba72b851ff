"""Notebook 4: how much immunization is possible, in the plane of the two ratios of Eq. 15."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from condnum.errors import InvalidInputError
from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import Explorer, ExplorerResult, Slider, with_controls
from condnum.lessons.frame.own import Own, Tried
from condnum.lessons.frame.sheet import Sheet
from condnum.lessons.two_tasks import TASK_CONTROLS, NullKind, TwoTasks, two_tasks
from condnum.methods import immunize
from condnum.methods.algorithm1 import Ours
from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem
from condnum.numbers import num
from condnum.page.style import BLUE, GREEN, LIMIT, NEUTRAL, ORANGE, PURPLE, translucent
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.limits import (
    FeasibleRegion,
    extractor_ratios,
    feasible_region,
    immunizer_family,
    max_rir,
    pareto_immunizer,
)
from condnum.theory.task import Task

#: Steps of Algorithm 1 that the figure follows.
PATH_STEPS = 100
#: Relative error that a κ of this size may have from round-off: κ(M) ≤ 1e4 and eps = 2e-16.
SLACK = 1e-9
#: Why there is no path from a harmful task that has one eigenvalue only.
_CANNOT_START = (
    " κ(K<sub>H</sub>) = 1: at θ = I the non-zero eigenvalues of H<sub>H</sub> are all equal, and "
    "R<sub>ill</sub> (Eq. 12) is infinite, without a gradient. Algorithm 1 cannot start at any step size."
)
#: A path ends where κ exceeds this: from there its smallest eigenvalue is round-off.
_LOST_KAPPA = 1e20
#: Drawn this far beyond the corners of the region: more than the largest κ that `extractor_ratios` trusts.
_FAR = 1e32


#: Takes two covariances `(D, D)` to θ `(D, m)`.
Extractor = Callable[[Floats, Floats], Any]


@dataclass(frozen=True)
class Plane(FeasibleRegion):
    """Two tasks in the (ii)/(i) plane: what is possible, and where some extractors lie."""

    optimum: Floats  # (2,) (ii) and (i) at θ* = K_P^{-1/2}
    family: Floats  # (F, 2) at K_P^{-s/2}, s from 0 to 1; then free scaling, if there is any
    chosen: Floats  # (2,) at the extractor to take, or the reader's
    whose: str  # name of that


@dataclass(frozen=True)
class LimitDemo(ExplorerResult):
    """The plane, and the path of Algorithm 1 in it."""

    plane: Plane
    step: int  # the step that the reader looks at
    path: Floats  # (T + 1, 2) (ii) and (i) after each step, from θ = I
    stop_reason: str  # "diverged": the step size was too large, the path ends early; "flat": it cannot start
    fixed: bool = True  # whether κ's up to 100 fit into axes that do not move with the sliders

    @property
    def shown(self) -> int:
        """The step that can be shown: the last one, if the path ended before `step`."""
        return min(self.step, len(self.path) - 1)

    @property
    def rir(self) -> Floats:
        """(i)/(ii) along the path, `(T + 1,)`."""
        return np.asarray(self.path[:, 1] / self.path[:, 0])

    def figure(self) -> Any:
        """Draw what is possible in the (ii)/(i) plane, and how far Algorithm 1 gets."""
        titles = ("the two ratios of Eq. 15", "RIR = (i)/(ii) along Algorithm 1")
        sheet = Sheet(*titles, gap=0.11, column_widths=[0.6, 0.4])
        left, right = sheet.panels
        plane, value, t = self.plane, self.plane.limit.value, np.arange(len(self.path))
        finite, pair = math.isfinite(value), "(ii) = %{x:.4g}, (i) = %{y:.4g}"
        sheet.traces += region_traces(plane)
        left.line("K<sub>P</sub><sup>−s/2</sup>, from I to θ*", *plane.family.T, GREEN, "dash", hover=pair)
        left.line("Algorithm 1", *self.path.T, BLUE, customdata=t, hover="t = %{customdata}: " + pair)
        left.marks("θ = I", [1.0], [1.0], "x", 11, NEUTRAL, hover=pair)
        best = "θ* = K<sub>P</sub><sup>−1/2</sup>"
        left.marks(best, *plane.optimum[:, None], "star", 17, ORANGE, hover=pair)
        ring = {"marker": {"line": {"width": 3}}}
        left.marks(plane.whose, *plane.chosen[:, None], "diamond-open", 13, PURPLE, hover=pair, **ring)
        here = self.path[self.shown, :, None]
        left.marks("shown step", *here, "circle", 13, BLUE, hover=pair, legend=False)
        limit = [value if finite else np.nan] * 2
        hidden = {"hover": "t = %{x}: RIR = %{y:.4g}<extra></extra>", "legend": False}
        right.line("RIR<sub>max</sub>", [0, PATH_STEPS], limit, ORANGE, width=3.5, **hidden)
        right.line("RIR of Algorithm 1", t, self.rir, BLUE, **hidden)
        at = [self.shown], self.rir[[self.shown]]
        right.marks("RIR at the shown step", *at, "circle", 13, BLUE, **hidden)
        places = np.log10(np.concatenate([self.path, plane.optimum[None], plane.chosen[None]]))
        low, high = np.array([-2.3, -2.3]), np.array([2.3, 4.3])
        if not self.fixed:
            low, high = np.minimum(low, places.min(axis=0) - 0.3), np.maximum(high, places.max(axis=0) + 0.3)
        left.x("(ii) = κ(H<sub>P</sub>(θ)) / κ(H<sub>P</sub>(I))", low[0], high[0], log=True)
        left.y("(i) = κ(H<sub>H</sub>(θ)) / κ(H<sub>H</sub>(I))", low[1], high[1], log=True)
        right.x("step t", 0, PATH_STEPS)
        right.y("RIR", -1.0, high[1], log=True)
        said = f"RIR<sub>max</sub> = {num(value, 4)}" if finite else "RIR has no limit"
        title = f"How much immunization is possible: {said}"
        return sheet.finish(title, margin={"b": 118})

    def caption(self) -> str:
        """Say how far Algorithm 1 got, and what the theoretical limit is."""
        plane, t, limit = self.plane, self.shown, self.plane.limit.value
        reached, diamond = float(self.rir[t]), [num(value, 4) for value in plane.chosen]
        ended = {
            "diverged": f" The step size is too large: the path ends at step {t}.",
            "flat": _CANNOT_START,
        }
        why = ended.get(self.stop_reason, "")
        if math.isinf(limit):
            return (
                f"After {t} steps RIR = {num(reached, 4)}.{why} The harmful task uses a feature that "
                "D<sub>P</sub> never sees: θ can scale it freely, and RIR grows without bound (dashed line)."
            )
        return (
            f"The diamond lies at (i) = {diamond[1]}, (ii) = {diamond[0]}. "
            f"After {t} steps RIR = {num(reached, 4)}, {num(100 * reached / limit)} % of the limit.{why} "
            f"θ* has (i) = {num(plane.optimum[1], 4)} at (ii) = {num(plane.optimum[0])}; the largest (i) "
            f"with (ii) ≤ 1 is {num(limit, 4)}."
        )


class FromIdentity(Ours):
    """Algorithm 1 that starts at the raw inputs, θ₀ = I, where (i) = (ii) = 1."""

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return I."""
        return {"theta": torch.eye(problem.dimension, dtype=torch.float64)}


@with_controls(
    **TASK_CONTROLS,
    dimension=Slider("dimension D (features)", "Number of features.", 3, 12, advanced=True),
    ratio=Slider(
        "weight ratio of R<sub>ill</sub>",
        "Initial ratio of λ‖g‖, ill to well.",
        0.1,
        10,
        log=True,
        advanced=True,
    ),
    learning_rate=Slider("step size η", "Constant step of Algorithm 1.", 0.05, 1, step=0.05, advanced=True),
    step=Slider("step t", "Step of Algorithm 1 to mark.", 0, PATH_STEPS, play=120, marks=8),
)
def limit_demo(
    *,
    kappa_benign: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 4,
    null: NullKind = "none",
    ratio: float = 1.0,
    learning_rate: float = 0.3,
    step: int = PATH_STEPS,
    extractor: Extractor = pareto_immunizer,
) -> LimitDemo:
    """Place the limit, θ* and a path of Algorithm 1 by plain descent, from θ = I and without targets."""
    tasks = (kappa_benign, kappa_harmful, angle, dimension, null)
    path = _path_of_two(tasks, ratio, learning_rate)
    return LimitDemo(_plane(*two_tasks(*tasks), extractor), step, *path)


def limit_of(K_P: Floats, K_H: Floats, *, extractor: Extractor = pareto_immunizer) -> LimitDemo:
    """Place two tasks of a reader's, covariances `(D, D)`, in the plane, as `limit_demo` does."""
    K_P, K_H = np.asarray(K_P, np.float64), np.asarray(K_H, np.float64)
    return LimitDemo(_plane(K_P, K_H, extractor), PATH_STEPS, *_path(K_P, K_H, 1.0, 0.3), fixed=False)


def ratios_of(theta: Floats, K_P: Floats, K_H: Floats) -> Floats:
    """Return (ii) and (i) of an extractor `(D, m)`, `(2,)`, over the ranks of H."""
    if theta.ndim != 2 or len(theta) != len(K_P):
        shape = f"θ must have a row for each of the {len(K_P)} features, got shape {theta.shape}"
        raise InvalidInputError(f"{shape}; return a matrix such as K_P^(-1/2).")
    found = relative_immunization_ratio(theta, K_P, K_H)
    return np.array([found.benign_ratio, found.harmful_ratio])


def _plane(K_P: Floats, K_H: Floats, extractor: Extractor) -> Plane:
    """Return what does not depend on the path."""
    P, H = Task.of_covariance(K_P), Task.of_covariance(K_H)
    chosen, whose = ratios_of(extractor(K_P, K_H), K_P, K_H), "pareto, (ii) just below 1"
    whose = f"your {extractor.name}" if isinstance(extractor, Tried) else whose
    region, optimum = feasible_region(P, H), max_rir(P)
    family = [*immunizer_family(P, np.linspace(0, 1, 21).tolist())]
    if math.isinf(region.limit.value):  # null(K_P) then gains 100-fold
        family += [max_rir(P, gain) for gain in np.geomspace(1, 100, 9).tolist()]
    ratios = [extractor_ratios(theta, P, H) for theta in (optimum, *family)]
    own: dict[str, Any] = {"chosen": chosen, "whose": whose}
    return Plane(**vars(region), optimum=np.array(ratios[0]), family=np.array(ratios[1:]), **own)


@lru_cache(maxsize=64)
def _path_of_two(tasks: TwoTasks, ratio: float, learning_rate: float) -> tuple[Floats, str]:
    if tasks[1] <= 1 + SLACK:  # a gradient would be that of round-off
        return np.ones((1, 2)), "flat"
    return _path(*two_tasks(*tasks), ratio, learning_rate)


def _path(K_P: Floats, K_H: Floats, ratio: float, learning_rate: float) -> tuple[Floats, str]:
    """Return (ii) and (i) along Algorithm 1, `(T + 1, 2)`, and why it stopped."""
    problem, method = ImmunizationProblem.from_covariances(K_P, K_H), FromIdentity()
    plain: dict[str, Any] = {
        "optimizer": "gd",
        "schedule": "constant",
        "steps": PATH_STEPS,
        "record_every": 1,
    }
    run = immunize(problem, method, learning_rate=learning_rate, ratio=ratio, **plain)
    kappa = np.stack([run.history["kappa_benign"], run.history["kappa_harmful"]], axis=1)
    lost = np.flatnonzero((kappa > _LOST_KAPPA).any(axis=1))
    path, reason = (kappa[: lost[0]], "diverged") if len(lost) else (kappa, run.stop_reason)
    ratios = path / kappa[0]
    ratios.flags.writeable = False  # it is remembered
    return ratios, reason


class LimitExplorer(Explorer):
    """How much immunization two tasks allow, and how much of it Algorithm 1 finds."""

    compute = staticmethod(limit_demo)
    own = Own("extractor", pareto_immunizer, ratios_of)  # θ times any rotation is as good


def region_traces(region: FeasibleRegion) -> list[dict[str, Any]]:
    """Return the success quadrant of Definition 3.1, what no θ reaches, and the Pareto front."""
    # The outline of what is impossible: left of θ*, above the limit, below the least (i).
    wall = 1 / region.kappa_benign
    knee = region.kappa_pencil / region.kappa_benign  # where the least (i) turns
    far = max(_FAR * wall, _FAR * knee)
    top = max(_FAR**2, far)
    bottom = 1 / _FAR / region.kappa_harmful
    lower, upper = np.array([far, max(knee, wall), wall]), np.array([wall, far])
    x = np.concatenate([lower, upper, [wall / _FAR, wall / _FAR, far]])
    y = np.concatenate([region.lowest(lower), np.minimum(region.highest(upper), top), [top, bottom, bottom]])
    start = region.start[0]
    ray = np.array([start, _FAR * start]) if math.isfinite(region.limit.value) else np.full(2, np.nan)
    traces: list[dict[str, Any]] = [
        {
            "name": "immunized: (i) > 1, (ii) ≤ 1",
            "x": np.array([1 / _FAR**2, 1, 1, 1 / _FAR**2]),
            "y": np.array([1, 1, _FAR**2, _FAR**2]),
            "fill": "toself",
            "fillcolor": translucent(GREEN, 0.14),
            "line": {"color": GREEN, "width": 1, "dash": "dot"},
        },
        {
            "name": "unreachable",
            "x": x,
            "y": y,
            "fill": "toself",
            "fillcolor": translucent(NEUTRAL, 0.45),
            "line": {"width": 0},
        },
        {
            "name": "Pareto front: RIR = RIR<sub>max</sub>",
            "x": ray,
            "y": region.highest(ray),
            "line": {"color": LIMIT, "width": 3.5},
        },
    ]
    return [{"type": "scatter", "mode": "lines", "hoverinfo": "skip", **trace} for trace in traces]
