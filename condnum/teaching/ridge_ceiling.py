r"""Notebook 4: what a ridge ε does to the ceiling, with and without null spaces.

There are two ways to let ε in, and they answer different questions. `K + εI` changes the *data*: the
ceiling of `condnum.ceiling.rir_ceiling` for such tasks is always finite. The `ridge` convention changes the
*measure*: `κ_ε = (σ_1 + ε)/(σ_D + ε)` of the Hessian, with weight decay ε in the attacker's loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from condnum.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.immunization import Immunization, relative_immunization_ratio
from condnum.teaching.quadratic import SpectrumShape
from condnum.teaching.two_tasks import NullKind, two_tasks

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
