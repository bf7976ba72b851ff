"""The explorers of notebook 3: one step of a regularizer, many steps, and Algorithm 1 with both terms."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from condnum.extras import require
from condnum.plots.regularizer_paths import MOST_LINES, joint_steps_figure, regularizer_path_figure
from condnum.plots.regularizer_steps import KAPPA_SCALES, regularizer_step_figure
from condnum.plots.style import num
from condnum.teaching.joint_steps import JointSteps, joint_steps
from condnum.teaching.regularizer_paths import STEP_SIZES, RegularizerPath, regularizer_path
from condnum.teaching.regularizers import (
    REGULARIZERS,
    STEP_RANGE,
    RegularizerStep,
    counter_example,
    regularizer_step,
)
from condnum.widgets.controls import Choice, LogSlider, Slider
from condnum.widgets.explorer import Explorer

ipywidgets = require("ipywidgets", "notebooks")
traitlets = require("traitlets", "notebooks")

_LABELS = {"well": "R_well, lowers κ", "ill": "R_ill, raises κ"}
_BEND_HELP = "1: geometric; above: most values crowd near σ₁; below: near σ_k."


def step_table(run: RegularizerStep) -> pd.DataFrame:
    """Return the curve κ(η), one row a step size."""
    columns = {"step_over_unit": run.curve_steps, "eta": run.curve_steps * run.unit}
    return pd.DataFrame(columns | {"kappa": run.curve, "as_promised": run.promised})


def step_reading(run: RegularizerStep) -> str:
    """Say what the step does to κ and R, and what both bounds say about it."""
    name = f"R<sub>{run.regularizer}</sub>"
    if math.isinf(run.next_kappa):
        which = "σ<sub>1</sub>" if run.regularizer == "well" else "σ<sub>k</sub>"
        moved = (
            f"{which} is annihilated (rank {len(run.sigma)} → {run.next_rank}): κ → ∞ from both "
            "sides, and a compact κ (Eq. 1) would leave the zero out."
        )
    else:
        verb = "falls" if run.next_kappa < run.kappa else "rises"
        moved = f"κ {verb} from {num(run.kappa, 4)} to {num(run.next_kappa, 4)}"
        moved += "." if run.keeps_promise else ": <b>the wrong way</b>."
    return f"{moved} {name}: {num(run.value)} → {num(run.next_value)}. {_bounds(run)}"


def _bounds(run: RegularizerStep) -> str:
    """Say on which side of both bounds the step lies."""
    if run.printed < 0:
        printed = "the printed bound is negative (no step at all)"
    else:
        printed = f"{_side(run.eta, run.printed)} the printed bound, {num(run.printed)}"
    corrected = f"{_side(run.eta, run.corrected)} the corrected one, {num(run.corrected)}"
    if math.isinf(run.corrected):
        corrected = "the corrected one allows every step (k = 2)"
    return f"η = {num(run.eta)}: {printed}; {corrected}."


def _side(eta: float, bound: float) -> str:
    """Say where η lies."""
    return "within" if eta < bound else "beyond"


class RegularizerExplorer(Explorer):
    """One step of R_well or R_ill on a chosen spectrum, and κ(η) with both bounds of Theorem 4.3.

    Args:
        **settings: `regularizer`, `step`, `kappa`, `dimension`, `bend`, `top`, `scale`.

    Raises:
        UnknownNameError: Another setting.
    """

    regularizer = traitlets.Enum(list(REGULARIZERS), "well", help="R_well (Eq. 3) or R_ill (Eq. 12).")
    step = traitlets.Float(
        0.3, min=STEP_RANGE[0], max=STEP_RANGE[1], help="η₀ sends σ₁ (well) or σ_k (ill) exactly to 0."
    )
    kappa = traitlets.Float(10.0, min=10**0.05, max=1e4, help="Condition number σ₁/σ_k of H (Eq. 1).")
    dimension = traitlets.Int(8, min=2, max=64, help="Number k = D of singular values.")
    bend = traitlets.Float(1.0, min=10**-0.7, max=10**0.7, help=_BEND_HELP)
    top = traitlets.Float(1.0, min=0.01, max=100.0, help="Largest singular value: the scale of H.")
    scale = traitlets.Enum(list(KAPPA_SCALES), "decades", help="Scale of κ in the figure.")

    controls = (
        Choice("regularizer", "regularizer", labels=_LABELS),
        LogSlider("step", "step size η", "in η₀", step=0.01),
        LogSlider("kappa", "condition number κ", step=0.01),
        Slider("dimension", "dimension k = D"),
        LogSlider("bend", "crowding of σ", step=0.01),
        LogSlider("top", "scale σ₁", step=0.01),
        Choice("scale", "scale of κ", labels={"near": "close to the start"}),
    )
    view_settings = ("scale",)
    compute = staticmethod(regularizer_step)
    figure = staticmethod(regularizer_step_figure)
    data = staticmethod(step_table)
    reading = staticmethod(step_reading)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        presets = {
            "Counter-example to printed bound (1)": {**counter_example("well"), "scale": "decades"},
            "Counter-example to printed bound (2)": {**counter_example("ill"), "scale": "near"},
        }
        for label, values in presets.items():
            button = ipywidgets.Button(description=label, layout={"width": "290px"})
            button.on_click(partial(self._run, label, partial(self.change, **values)))
            self.buttons[label] = button
        row = ipywidgets.Box([self.buttons[label] for label in presets], layout={"flex_flow": "row wrap"})
        self.children = [self.children[0], row, *self.children[1:]]


def path_table(run: RegularizerPath) -> pd.DataFrame:
    """Return the path, one row a step."""
    columns = {"eta": np.append(run.eta, np.nan), "kappa": run.kappa, "value": run.value}
    columns |= {f"sigma_{i + 1}": run.sigma[:, i] for i in range(run.sigma.shape[1])}
    return pd.DataFrame(columns).rename_axis("step").reset_index()


def path_reading(run: RegularizerPath) -> str:
    """Say whether κ was monotone, and where the path ended."""
    wrong = int(run.wrong_way.sum())
    way = "fall" if run.regularizer == "well" else "rise"
    kept = (
        f"Every step lets κ {way}." if wrong == 0 else f"In {wrong} of {len(run.eta)} steps κ does not {way}."
    )
    if run.end == "repeated":
        pair = "σ<sub>1</sub> and σ<sub>2</sub>" if run.regularizer == "well" else "the two smallest values"
        return (
            f"{kept} At t = {len(run.eta)}, {pair} are equal: Theorem 4.3 is silent there, the bound is 0, "
            f"and κ rests at {num(run.kappa[-1])}. Monotone is not convergent."
        )
    if run.end == "round_off":
        return f"{kept} At t = {len(run.eta)} the next step would leave float64: κ beyond 10<sup>12</sup>."
    grown = run.sigma[-1, 0] / run.sigma[0, 0]
    return (
        f"{kept} σ<sub>1</sub> ends at {num(grown)} of its start, R at {num(run.value[-1] / run.value[0])}."
    )


class RegularizerPathExplorer(Explorer):
    """Many steps of one regularizer: the spectrum, κ and R along the path.

    Args:
        **settings: `regularizer`, `sizes`, `share`, `kappa`, `dimension`, `bend`.

    Raises:
        UnknownNameError: Another setting.
    """

    regularizer = traitlets.Enum(list(REGULARIZERS), "well", help="R_well (Eq. 3) or R_ill (Eq. 12).")
    sizes = traitlets.Enum(list(STEP_SIZES), "bound", help="How η is chosen at every step.")
    share = traitlets.Float(0.2, min=0.01, max=0.99, help="η over the largest step with a promise.")
    kappa = traitlets.Float(10.0, min=10**0.05, max=1e4, help="Condition number at the start.")
    dimension = traitlets.Int(6, min=2, max=MOST_LINES, help="Number k = D of singular values.")
    bend = traitlets.Float(1.0, min=10**-0.7, max=10**0.7, help=_BEND_HELP)

    controls = (
        Choice("regularizer", "regularizer", labels=_LABELS),
        Choice(
            "sizes", "step sizes", labels={"bound": "share of the bound, each t", "constant": "constant η"}
        ),
        LogSlider("share", "share of the bound", step=0.05),
        LogSlider("kappa", "κ at the start", step=0.05),
        Slider("dimension", "dimension k = D"),
        LogSlider("bend", "crowding of σ", step=0.05),
    )
    compute = staticmethod(regularizer_path)
    figure = staticmethod(regularizer_path_figure)
    data = staticmethod(path_table)
    reading = staticmethod(path_reading)


def joint_table(run: JointSteps) -> pd.DataFrame:
    """Return the run with both terms, one row a step."""
    columns: dict[str, Any] = {"kappa_pretrain": run.kappa_pretrain, "well_alone": run.well_alone}
    columns |= {"kappa_harmful": run.kappa_harmful, "ill_alone": run.ill_alone}
    columns |= {"i": run.ratio_harmful, "ii": run.ratio_pretrain}
    columns |= {"within_both_bounds": [*run.within.tolist(), None]}
    return pd.DataFrame(columns).rename_axis("step").reset_index()


def joint_reading(run: JointSteps) -> str:
    """Say how often both promises were broken, and whether the end is immunized."""
    rises, falls = int(run.pretrain_rises.sum()), int(run.harmful_falls.sum())
    kept = (
        f"{int(run.within.sum())} of {len(run.within)} steps are within both corrected bounds; in {rises} of "
        f"these κ(H<sub>P</sub>) rises all the same, in {falls} κ(H<sub>H</sub>) falls."
    )
    i, ii = run.ratio_harmful[-1], run.ratio_pretrain[-1]
    verdict = "immunized" if i > 1 and ii <= 1 else "<b>not immunized</b>"
    return f"{kept} At the end (i) = {num(i)}, (ii) = {num(ii)}: {verdict} by (i) > 1 and (ii) ≤ 1."


class JointStepsExplorer(Explorer):
    """Algorithm 1 with both regularizers on two small tasks, where the guarantees stop adding up.

    Args:
        **settings: `angle`, `share_well`, `share_ill`, `kappa_pretrain`, `kappa_harmful`, `dimension`.

    Raises:
        UnknownNameError: Another setting.
    """

    angle = traitlets.Float(
        15.0, min=0.0, max=90.0, help="0: both tasks order the same axes alike; 90: in opposite order."
    )
    dimension = traitlets.Int(4, min=2, max=16, help="Number D of features.")
    share_well = traitlets.Float(0.5, min=0.01, max=0.99, help="η_P over the corrected bound at θ = I.")
    share_ill = traitlets.Float(0.1, min=0.001, max=0.99, help="η_H over its largest safe step at θ = I.")
    kappa_pretrain = traitlets.Float(20.0, min=10**0.05, max=1000.0, help="κ(K_P).")
    kappa_harmful = traitlets.Float(5.0, min=10**0.05, max=1000.0, help="κ(K_H).")

    controls = (
        Slider("angle", "angle of the tasks", "degrees", continuous=False),
        Slider("dimension", "dimension D", continuous=False),
        LogSlider("share_well", "η_P over its bound", step=0.05, continuous=False),
        LogSlider("share_ill", "η_H over its bound", step=0.05, continuous=False),
        LogSlider("kappa_pretrain", "κ(K_P)", step=0.05, continuous=False),
        LogSlider("kappa_harmful", "κ(K_H)", step=0.05, continuous=False),
    )
    compute = staticmethod(joint_steps)
    figure = staticmethod(joint_steps_figure)
    data = staticmethod(joint_table)
    reading = staticmethod(joint_reading)
