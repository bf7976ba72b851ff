"""Notebook 4: what a ridge ε does to the ceiling, with and without null spaces.

There are two ways to let ε in, and they answer different questions. `K + εI` changes the *data*: the
ceiling of `rir_ceiling` for such tasks is always finite. The `ridge` convention changes the
*measure*: `κ_ε = (σ_1 + ε)/(σ_D + ε)` of the Hessian, with weight decay ε in the attacker's loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, add_line, empty, num, teaching_layout
from condnum.lessons.condition_number import SpectrumShape
from condnum.lessons.explorer import Angle, Between, Choice, Explorer, LogSlider, Slider, checked
from condnum.lessons.two_tasks import NULL_LABELS, NullKind, TaskKappa, Tasks, two_tasks
from condnum.theory.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio

#: The ridges ε that the figure shows; the tasks' largest eigenvalue is 1.
RIDGES = np.geomspace(1e-8, 10.0, 28)


@dataclass(frozen=True)
class RidgeCeiling:
    """Ceilings and the RIR of θ* as functions of ε."""

    null: NullKind
    ridge: float  # the ε that the reader looks at
    compact: float  # ceiling without ε, infinite if the harmful task has a direction of its own
    ridges: NDArray[np.float64]  # (R,)
    of_data: NDArray[np.float64]  # (R,) ceiling of K_P + εI, K_H + εI
    of_measure: NDArray[np.float64]  # (R,) upper bound on RIR in the ridge convention, ‖θ‖_F² = D
    attained: NDArray[np.float64]  # (R,) RIR of θ* = K_P^{-1/2} in the ridge convention
    at_ridge: Immunization  # of θ* in the ridge convention
    at_compact: Immunization  # of θ* in the compact convention


@checked
def ridge_ceiling_demo(
    *,
    ridge: Annotated[float, Between(1e-8, 10)] = 1e-3,
    null: NullKind = "pretrain",
    kappa_pretrain: TaskKappa = 100.0,
    kappa_harmful: TaskKappa = 10.0,
    angle: Angle = 45.0,
    dimension: int = 4,
    shape: SpectrumShape = "geometric",
) -> RidgeCeiling:
    """Compare the ceiling of the compact convention with the two that know a ridge.

    Examples:
        >>> demo = ridge_ceiling_demo(null="pretrain")
        >>> demo.compact, bool(np.isfinite(demo.of_data).all())
        (inf, True)
    """
    tasks = (kappa_pretrain, kappa_harmful, angle, dimension, shape, null)
    K_P, K_H, theta, of_data, of_measure, attained = _curves(tasks)
    return RidgeCeiling(
        null, ridge, rir_ceiling(K_P, K_H).value, RIDGES, of_data, of_measure, attained,
        at_ridge=relative_immunization_ratio(theta, K_P, K_H, convention="ridge", ridge=ridge),
        at_compact=relative_immunization_ratio(theta, K_P, K_H),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _curves(
    tasks: Tasks,
) -> tuple[NDArray[np.float64], ...]:
    """Return K_P, K_H, θ* and the three curves, which do not depend on the ε in view."""
    K_P, K_H = two_tasks(*tasks)
    theta = optimal_immunizer(K_P, K_H)
    epsilons = RIDGES.tolist()
    of_data = np.array([rir_ceiling(K_P, K_H, ridge=e).value for e in epsilons])
    of_measure = np.array([ridge_convention_ceiling(K_P, K_H, ridge=e) for e in epsilons])
    attained = np.array(
        [relative_immunization_ratio(theta, K_P, K_H, convention="ridge", ridge=e).rir for e in epsilons]
    )
    return K_P, K_H, np.asarray(theta), of_data, of_measure, attained


#: Decades of RIR in sight.
_RIR_DECADES = (-1.0, 8.0)
_NULL_TITLES = {
    "none": "no null space",
    "both": "one feature dead in both tasks",
    "harmful": "one feature dead in D<sub>H</sub> alone",
    "pretrain": "one feature dead in D<sub>P</sub> alone",
}


def ridge_ceiling_figure(demo: RidgeCeiling) -> Any:
    """Draw what ε does to the ceiling."""
    figure = empty()
    finite = math.isfinite(demo.compact)
    level = np.full(2, demo.compact if finite else np.nan)
    lines: tuple[tuple[str, Any, Any, str, str], ...] = (
        ("compact ceiling", RIDGES[[0, -1]], level, ORANGE, "solid"),
        ("ceiling of K + εI", demo.ridges, demo.of_data, PURPLE, "dash"),
        ("bound on RIR<sub>ε</sub>", demo.ridges, demo.of_measure, GREEN, "longdash"),
        ("RIR<sub>ε</sub> of θ*", demo.ridges, demo.attained, BLUE, "solid"),
    )
    for name, x, y, color, dash in lines:
        add_line(figure, name, x, y, color, dash, hovertemplate="ε = %{x:.3g}: %{y:.4g}")
    figure.add_scatter(
        x=[demo.ridge] * 2, y=[10.0 ** _RIR_DECADES[0], demo.at_ridge.rir], mode="lines+markers",
        name="chosen ε", line={"color": NEUTRAL, "width": 2, "dash": "dot"},
        marker={"size": [0, 13], "color": BLUE, "opacity": 1},
        hovertemplate="ε = %{x:.3g}: RIR<sub>ε</sub>(θ*) = %{y:.4g}<extra></extra>",
    )  # fmt: skip
    compact = num(demo.compact, 4) if finite else "infinite"
    teaching_layout(figure, f"Ceilings with {_NULL_TITLES[demo.null]}: compact {compact}", height=520)
    figure.update_xaxes(type="log", range=[-8, 1], dtick=1, title_text="ridge ε (largest eigenvalues are 1)")
    figure.update_yaxes(type="log", range=_RIR_DECADES, dtick=1, title_text="RIR")
    return figure


def ridge_table(demo: RidgeCeiling) -> pd.DataFrame:
    """Return the curves, one row an ε."""
    columns = {"ridge": demo.ridges, "ceiling_of_data": demo.of_data, "bound_of_measure": demo.of_measure}
    return pd.DataFrame(columns | {"rir_of_optimum": demo.attained, "compact_ceiling": demo.compact})


def ridge_reading(demo: RidgeCeiling) -> str:
    """Say what one θ* is worth in the two conventions."""
    tiny, limit = demo.of_data[0], demo.compact
    if math.isinf(limit):
        tale = "The compact ceiling is infinite; with ε it is finite, and grows like 1/ε² as ε falls."
    elif abs(tiny / limit - 1) < 0.01:
        tale = "As ε falls, both ceilings tend to the compact one."
    else:
        tale = f"As ε falls, the ceiling of K + εI tends to {num(tiny, 4)}, "
        tale += f"<i>not</i> to the compact {num(limit, 4)}."
    kappa = f"RIR<sub>ε</sub> = {num(demo.at_ridge.rir, 4)} at ε = {num(demo.ridge)}"
    best = "The same θ* = K<sub>P</sub><sup>−1/2</sup>"
    return f"{best}: RIR = {num(demo.at_compact.rir, 4)} (compact), {kappa}. {tale}"


class RidgeCeilingExplorer(Explorer):
    """What ε does to the ceiling, with and without null spaces."""

    controls = (
        LogSlider("ridge", "ridge ε", "ε of the ridge convention, and of K + εI."),
        Choice("null", "last feature dead", "Where the last feature is always zero.", labels=NULL_LABELS),
        LogSlider("kappa_pretrain", "κ of K_P", "κ(K_P) on the features in use."),
        LogSlider("kappa_harmful", "κ of K_H", "κ(K_H) on the features in use."),
        Slider("angle", "angle of K_H to K_P", "Between the eigenbases, as above.", "degrees"),
    )
    compute = staticmethod(ridge_ceiling_demo)
    figure = staticmethod(ridge_ceiling_figure)
    data = staticmethod(ridge_table)
    reading = staticmethod(ridge_reading)
