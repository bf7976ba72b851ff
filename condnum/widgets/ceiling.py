"""The explorers of notebook 4: the ceiling in the plane of the two ratios, and what a ridge does to it."""

from __future__ import annotations

import math

import pandas as pd

from condnum.extras import require
from condnum.plots.ceiling_plane import ceiling_plane_figure
from condnum.plots.ridge_ceiling import ridge_ceiling_figure
from condnum.plots.style import num
from condnum.teaching.ceiling import PATH_STEPS, SLACK, CeilingDemo, ceiling_demo
from condnum.teaching.quadratic import SPECTRUM_SHAPES
from condnum.teaching.ridge_ceiling import RidgeCeiling, ridge_ceiling_demo
from condnum.teaching.two_tasks import NULL_KINDS
from condnum.widgets.controls import Choice, LogSlider, Slider, Stepper
from condnum.widgets.explorer import Explorer

traitlets = require("traitlets", "notebooks")

_SHAPES = {"clusters": "two clusters", "outlier": "one small outlier"}
_NULLS = {
    "none": "in no task",
    "both": "in both tasks",
    "harmful": "in the harmful task",
    "pretrain": "in pre-training",
}


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
    """How much immunization two tasks allow, and how much of it Algorithm 1 finds.

    Args:
        **settings: `kappa_pretrain`, `kappa_harmful`, `angle`, `dimension`, `shape`, `null`, `ratio`,
            `learning_rate`, `step`.

    Raises:
        UnknownNameError: Another setting.
    """

    kappa_pretrain = traitlets.Float(100.0, min=1.0, max=100.0, help="κ(K_P) of the pre-training task.")
    kappa_harmful = traitlets.Float(10.0, min=1.0, max=100.0, help="κ(K_H) of the harmful task.")
    angle = traitlets.Float(
        45.0,
        min=0.0,
        max=90.0,
        help="0°: large directions in common; 90°: the largest is the other's smallest.",
    )
    dimension = traitlets.Int(4, min=3, max=12, help="Number D of features.")
    shape = traitlets.Enum(list(SPECTRUM_SHAPES), "geometric", help="How both spectra are spread.")
    null = traitlets.Enum(list(NULL_KINDS), "none", help="Where the last feature is always zero.")
    ratio = traitlets.Float(1.0, min=0.1, max=10.0, help="λ_H‖g_H‖ over λ_P‖g_P‖ at step 0.")
    learning_rate = traitlets.Float(0.3, min=0.05, max=1.0, help="Constant step size of Algorithm 1.")
    step = traitlets.Int(PATH_STEPS, min=0, max=PATH_STEPS, help="Step of Algorithm 1 that is marked.")

    controls = (
        LogSlider("kappa_pretrain", "κ of K_P"),
        LogSlider("kappa_harmful", "κ of K_H"),
        Slider("angle", "angle of K_H to K_P", "degrees"),
        Slider("dimension", "dimension D", "features"),
        Choice("shape", "both spectra", labels=_SHAPES),
        Choice("null", "last feature dead", labels=_NULLS),
        LogSlider("ratio", "weight ratio of R_ill"),
        Slider("learning_rate", "step size η", step=0.05),
        Stepper("step", "step t", interval=120),
    )
    compute = staticmethod(ceiling_demo)
    figure = staticmethod(ceiling_plane_figure)
    data = staticmethod(ceiling_table)
    reading = staticmethod(ceiling_reading)


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
    """What ε does to the ceiling, with and without null spaces.

    Args:
        **settings: `ridge`, `null`, `kappa_pretrain`, `kappa_harmful`, `angle`.

    Raises:
        UnknownNameError: Another setting.
    """

    ridge = traitlets.Float(1e-3, min=1e-8, max=10.0, help="ε of the ridge convention, and of K + εI.")
    null = traitlets.Enum(list(NULL_KINDS), "pretrain", help="Where the last feature is always zero.")
    kappa_pretrain = traitlets.Float(100.0, min=1.0, max=100.0, help="κ(K_P) on the features in use.")
    kappa_harmful = traitlets.Float(10.0, min=1.0, max=100.0, help="κ(K_H) on the features in use.")
    angle = traitlets.Float(45.0, min=0.0, max=90.0, help="Between the eigenbases, as above.")

    controls = (
        LogSlider("ridge", "ridge ε"),
        Choice("null", "last feature dead", labels=_NULLS),
        LogSlider("kappa_pretrain", "κ of K_P"),
        LogSlider("kappa_harmful", "κ of K_H"),
        Slider("angle", "angle of K_H to K_P", "degrees"),
    )
    compute = staticmethod(ridge_ceiling_demo)
    figure = staticmethod(ridge_ceiling_figure)
    data = staticmethod(ridge_table)
    reading = staticmethod(ridge_reading)
