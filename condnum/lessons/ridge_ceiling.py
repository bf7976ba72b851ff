"""Notebook 4: what a ridge ε does to the ceiling, with and without null spaces.

There are two ways to let ε in, and they answer different questions. `K + εI` changes the *data*: the
ceiling of `rir_ceiling` for such tasks is always finite. The `ridge` convention changes the
*measure*: `κ_ε = (σ_1 + ε)/(σ_D + ε)` of the Hessian, with weight decay ε in the attacker's loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.errors import require
from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, POWER_SIZE, PURPLE, num, teaching_layout
from condnum.lessons.condition_number import SpectrumShape
from condnum.lessons.two_tasks import ATTACK_STEPS, Attack, NullKind, two_tasks
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


def ridge_ceiling_demo(
    *,
    ridge: float = 1e-3,
    null: NullKind = "pretrain",
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
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
    tasks: tuple[float, float, float, int, SpectrumShape, NullKind],
) -> tuple[NDArray[np.float64], ...]:
    """Return K_P, K_H, θ* and the three curves, which do not depend on the ε in view."""
    names = ("kappa_pretrain", "kappa_harmful", "angle", "dimension", "shape", "null")
    K_P, K_H = two_tasks(**dict(zip(names, tasks, strict=True)))  # type: ignore[arg-type]
    theta = optimal_immunizer(K_P, K_H)
    epsilons = RIDGES.tolist()
    of_data = np.array([rir_ceiling(K_P, K_H, ridge=e).value for e in epsilons])
    of_measure = np.array([ridge_convention_ceiling(K_P, K_H, ridge=e) for e in epsilons])
    attained = np.array(
        [relative_immunization_ratio(theta, K_P, K_H, convention="ridge", ridge=e).rir for e in epsilons]
    )
    return K_P, K_H, np.asarray(theta), of_data, of_measure, attained


# Figures of notebook 4: ceilings against ε, and attackers whom the ceiling does not bound.


#: Decades of RIR in sight.
_RIR_DECADES = (-1.0, 8.0)
#: Share of the excess loss at which a curve ends.
_LEAST_LOSS = 1e-12
_NULL_TITLES = {
    "none": "no null space",
    "both": "one feature dead in both tasks",
    "harmful": "one feature dead in D<sub>H</sub> alone",
    "pretrain": "one feature dead in D<sub>P</sub> alone",
}


def ridge_ceiling_figure(demo: RidgeCeiling) -> Any:
    """Draw what ε does to the ceiling."""
    go = require("plotly.graph_objects", "viz")
    figure = go.Figure()
    finite = math.isfinite(demo.compact)
    level = np.full(2, demo.compact if finite else np.nan)
    lines: tuple[tuple[str, Any, Any, str, str], ...] = (
        ("compact ceiling", RIDGES[[0, -1]], level, ORANGE, "solid"),
        ("ceiling of K + εI", demo.ridges, demo.of_data, PURPLE, "dash"),
        ("bound on RIR<sub>ε</sub>", demo.ridges, demo.of_measure, GREEN, "longdash"),
        ("RIR<sub>ε</sub> of θ*", demo.ridges, demo.attained, BLUE, "solid"),
    )
    for name, x, y, color, dash in lines:
        figure.add_scatter(
            x=x, y=y, mode="lines", name=name, line={"color": color, "dash": dash, "width": 3},
            hovertemplate="ε = %{x:.3g}: %{y:.4g}",
        )  # fmt: skip
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
    figure.update_xaxes(tickfont_size=POWER_SIZE)
    figure.update_yaxes(tickfont_size=POWER_SIZE)
    return figure


def attacks_figure(runs: Sequence[Attack]) -> Any:
    """Draw the excess loss of an attacker through several extractors.

    Args:
        runs: Of `teaching.whitening.attacks`, up to four.

    Returns:
        A plotly figure: a curve each; the marker is the first step.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    go = require("plotly.graph_objects", "viz")
    figure = go.Figure()
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
    figure.update_xaxes(tickfont_size=POWER_SIZE)
    figure.update_yaxes(tickfont_size=POWER_SIZE)
    return figure
