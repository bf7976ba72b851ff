"""Notebook 4: what a ridge ε does to the ceiling, with and without null spaces.

There are two ways to let ε in, and they answer different questions. `K + εI` changes the *data*: the
ceiling of `rir_ceiling` for such tasks is always finite. The `ridge` convention changes the
*measure*: `κ_ε = (σ_1 + ε)/(σ_D + ε)` of the Hessian, with weight decay ε in the attacker's loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, num
from condnum.lessons.condition_number import Floats
from condnum.lessons.explorer import Explorer, Shown, Slider, checked
from condnum.lessons.sheet import Sheet, log
from condnum.lessons.two_tasks import TASKS, NullKind, two_tasks
from condnum.theory.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio

#: The ridges ε that the figure shows; the tasks' largest eigenvalue is 1.
RIDGES = np.geomspace(1e-8, 10.0, 28)
NULL_TITLES = {
    "none": "no null space",
    "both": "one feature dead in both tasks",
    "harmful": "one feature dead in D<sub>H</sub> alone",
    "pretrain": "one feature dead in D<sub>P</sub> alone",
}


@dataclass(frozen=True)
class RidgeCeiling(Shown):
    """Ceilings and the RIR of θ* as functions of ε."""

    null: NullKind
    ridge: float  # the ε that the reader looks at
    compact: float  # ceiling without ε, infinite if the harmful task has a direction of its own
    of_data: Floats  # (R,) ceiling of K_P + εI, K_H + εI, at `RIDGES`
    of_measure: Floats  # (R,) upper bound on RIR in the ridge convention, ‖θ‖_F² = D
    attained: Floats  # (R,) RIR of θ* = K_P^{-1/2} in the ridge convention
    at_ridge: Immunization  # of θ* in the ridge convention
    at_compact: Immunization  # of θ* in the compact convention

    def figure(self) -> Any:
        """Draw what ε does to the ceiling."""
        sheet, finite = Sheet(), math.isfinite(self.compact)
        (panel,) = sheet.panels
        level, hover = [self.compact if finite else np.nan] * 2, {"hover": "ε = %{x:.3g}: %{y:.4g}"}
        panel.line("compact ceiling", RIDGES[[0, -1]], level, ORANGE, **hover)
        panel.line("ceiling of K + εI", RIDGES, self.of_data, PURPLE, "dash", **hover)
        panel.line("bound on RIR<sub>ε</sub>", RIDGES, self.of_measure, GREEN, "longdash", **hover)
        panel.line("RIR<sub>ε</sub> of θ*", RIDGES, self.attained, BLUE, **hover)
        stem = [self.ridge] * 2, [0.1, self.at_ridge.rir]
        point = {"marker": {"size": [0, 13], "color": BLUE, "opacity": 1}, **hover}
        panel.line("chosen ε", *stem, NEUTRAL, "dot", width=2, size=13, **point)
        panel.axes(log("ridge ε (largest eigenvalues are 1)", -8, 1), log("RIR", -1, 8))
        compact = num(self.compact, 4) if finite else "infinite"
        return sheet.finish(f"Ceilings with {NULL_TITLES[self.null]}: compact {compact}")

    def reading(self) -> str:
        """Say what one θ* is worth in the two conventions."""
        tiny, limit = self.of_data[0], self.compact
        if math.isinf(limit):
            tale = "The compact ceiling is infinite; with ε it is finite, and grows like 1/ε² as ε falls."
        elif abs(tiny / limit - 1) < 0.01:
            tale = "As ε falls, both ceilings tend to the compact one."
        else:
            ends = f"{num(tiny, 4)}, <i>not</i> to the compact {num(limit, 4)}"
            tale = f"As ε falls, the ceiling of K + εI tends to {ends}."
        kappa = f"RIR<sub>ε</sub> = {num(self.at_ridge.rir, 4)} at ε = {num(self.ridge)}"
        best = "The same θ* = K<sub>P</sub><sup>−1/2</sup>"
        return f"{best}: RIR = {num(self.at_compact.rir, 4)} (compact), {kappa}. {tale}"

    def table(self) -> pd.DataFrame:
        """Return the curves, one row an ε."""
        columns = {"ridge": RIDGES, "ceiling_of_data": self.of_data, "bound_of_measure": self.of_measure}
        return pd.DataFrame(columns | {"rir_of_optimum": self.attained, "compact_ceiling": self.compact})


@checked(ridge=Slider("ridge ε", "ε of the ridge convention, and of K + εI.", 1e-8, 10, log=True), **TASKS)
def ridge_ceiling_demo(
    *,
    ridge: float = 1e-3,
    null: NullKind = "pretrain",
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
) -> RidgeCeiling:
    """Compare the ceiling of the compact convention with the two that know a ridge."""
    K_P, K_H, theta, of_data, of_measure, attained = _curves(kappa_pretrain, kappa_harmful, angle, null)
    at_ridge = relative_immunization_ratio(theta, K_P, K_H, convention="ridge", ridge=ridge)
    at_compact, limit = relative_immunization_ratio(theta, K_P, K_H), rir_ceiling(K_P, K_H).value
    return RidgeCeiling(null, ridge, limit, of_data, of_measure, attained, at_ridge, at_compact)


@lru_cache(maxsize=64)
def _curves(kappa_pretrain: float, kappa_harmful: float, angle: float, null: NullKind) -> tuple[Floats, ...]:
    """Return K_P, K_H, θ* and the three curves, which do not depend on the ε in view."""
    K_P, K_H = two_tasks(kappa_pretrain, kappa_harmful, angle, null=null)
    theta = np.asarray(optimal_immunizer(K_P, K_H))
    curves = [
        (
            rir_ceiling(K_P, K_H, ridge=ridge).value,
            ridge_convention_ceiling(K_P, K_H, ridge=ridge),
            relative_immunization_ratio(theta, K_P, K_H, convention="ridge", ridge=ridge).rir,
        )
        for ridge in RIDGES.tolist()
    ]
    return K_P, K_H, theta, *np.array(curves).T


class RidgeCeilingExplorer(Explorer):
    """What ε does to the ceiling, with and without null spaces."""

    compute = staticmethod(ridge_ceiling_demo)
