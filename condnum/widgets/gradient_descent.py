"""The explorers of notebook 1: the zig-zag in the plane, and exact line search on a chosen spectrum."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.extras import require
from condnum.plots.quadratic import AXES_SCALES, spectrum_descent_figure, zigzag_figure
from condnum.plots.style import num
from condnum.teaching.quadratic import (
    SPECTRUM_SHAPES,
    START_KINDS,
    STEP_RULES,
    ZIGZAG_STEPS,
    SpectrumDescent,
    Zigzag,
    spectrum_descent,
    zigzag,
)
from condnum.widgets.controls import Choice, LogSlider, Slider, Stepper
from condnum.widgets.explorer import Explorer

traitlets = require("traitlets", "notebooks")


def zigzag_table(run: Zigzag) -> pd.DataFrame:
    """Return iterates, ratios and bounds, one row a step."""
    columns = {"steep": run.path[:, 0], "flat": run.path[:, 1]}
    columns |= {"norm_ratio": run.norm_ratio, "norm_bound": run.norm_bound}
    columns |= {"energy_ratio": run.energy_ratio, "energy_bound": run.energy_bound}
    return pd.DataFrame(columns).rename_axis("step").reset_index()


def zigzag_reading(run: Zigzag) -> str:
    """Say how fast it is, and how that compares with the worst case."""
    worst = float(run.energy_bound[1])
    if run.contraction < 1e-15:
        return "The first gradient points straight at w*: one step arrives, whatever κ is."
    if run.rule == "constant":
        return (
            f"With the constant step 1/σ<sub>1</sub>, {run.step} steps leave {num(run.norm_ratio[run.step])} "
            f"of the squared distance; Eq. 2 allows {num(run.norm_bound[run.step])}."
        )
    attained = run.contraction > worst * (1 - 1e-9)
    compared = "exactly Kantorovich's worst case" if attained else f"the worst case is {worst:.4f}"
    return (
        f"Every step leaves {run.contraction:.4f} of the excess loss, {compared}. "
        f"After {run.step} steps: {num(run.norm_ratio[run.step])} of the squared distance; "
        f"Eq. 2 allows {num(run.norm_bound[run.step])}."
    )


class GradientDescentExplorer(Explorer):
    """The zig-zag of gradient descent in the plane, and what κ has to do with it.

    Args:
        **settings: `kappa`, `angle`, `rule`, `step`, `axes`.

    Raises:
        UnknownNameError: Another setting.
    """

    kappa = traitlets.Float(10.0, min=1.0, max=1000.0, help="Condition number σ₁/σ₂ of H (Eq. 1).")
    angle = traitlets.Float(
        45.0, min=0.0, max=90.0, help="Between the first gradient and the steep axis; 45° is the worst."
    )
    rule = traitlets.Enum(list(STEP_RULES), "exact", help="How the step size is chosen.")
    step = traitlets.Int(5, min=0, max=ZIGZAG_STEPS, help="Steps drawn in the plane.")
    axes = traitlets.Enum(list(AXES_SCALES), "equal", help="Equal shows right angles; stretched, the path.")

    controls = (
        LogSlider("kappa", "condition number κ"),
        Slider("angle", "start angle φ", "degrees"),
        Choice("rule", "step size", labels={"exact": "exact line search", "constant": "constant, 1/σ₁"}),
        Stepper("step", "step t"),
        Choice("axes", "scale of the axes", labels={"equal": "equal", "fit": "stretched to the path"}),
    )
    view_settings = ("axes",)
    compute = staticmethod(zigzag)
    figure = staticmethod(zigzag_figure)
    data = staticmethod(zigzag_table)
    reading = staticmethod(zigzag_reading)


def spectrum_table(run: SpectrumDescent) -> pd.DataFrame:
    """Return ratios and bounds, one row a recorded step."""
    columns = {"step": run.curve.steps, "norm_ratio": run.curve.norm_ratio, "norm_bound": run.norm_bound}
    return pd.DataFrame(columns | {"energy_ratio": run.curve.excess_loss, "energy_bound": run.energy_bound})


def spectrum_reading(run: SpectrumDescent) -> str:
    """Say how many steps it took, and how many Eq. 2 allows."""
    took, allowed = (_first_below(1e-6, run.curve.steps, y) for y in (run.curve.norm_ratio, run.norm_bound))
    last = run.curve.steps[-1]
    reached = f"after {took} steps" if took else f"not within {last:,d} steps"
    granted = f"grants {allowed}" if allowed else f"grants more than {last:,d}"
    stop = int(run.curve.stopped_at)
    end = f" At step {stop:,d} the gradient is float64 round-off, and the curve is flat." if stop >= 0 else ""
    return f"A millionth of the squared distance is reached {reached}; Eq. 2 {granted}.{end}"


def _first_below(goal: float, steps: NDArray[np.int64], values: NDArray[np.float64]) -> str:
    """Return the first recorded step at which the values have fallen to the goal, in words."""
    reached = np.flatnonzero(values <= goal)
    return f"{steps[reached[0]]:,d}" if len(reached) else ""


class SpectrumDescentExplorer(Explorer):
    """Exact line search in D dimensions: κ bounds it, the whole spectrum decides.

    Args:
        **settings: `shape`, `dimension`, `kappa`, `start`.

    Raises:
        UnknownNameError: Another setting.
    """

    shape = traitlets.Enum(list(SPECTRUM_SHAPES), "geometric", help="How σ₁ … σ_D are spread.")
    dimension = traitlets.Int(32, min=2, max=256, help="Number D of features.")
    kappa = traitlets.Float(100.0, min=1.0, max=1e6, help="Condition number σ₁/σ_D of H (Eq. 1).")
    start = traitlets.Enum(list(START_KINDS), "random", help="Where the descent starts.")

    controls = (
        LogSlider("kappa", "condition number κ"),
        Slider("dimension", "dimension D", "features"),
        Choice("shape", "spectrum", labels={"clusters": "two clusters", "outlier": "one small outlier"}),
        Choice("start", "start", labels={"worst": "the worst one"}),
    )
    compute = staticmethod(spectrum_descent)
    figure = staticmethod(spectrum_descent_figure)
    data = staticmethod(spectrum_table)
    reading = staticmethod(spectrum_reading)
