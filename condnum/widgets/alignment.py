"""The explorers of notebook 2: Proposition 3.2 as U turns away from Q, and two perfectly aligned tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from condnum.extras import require
from condnum.plots.aligned_tasks import aligned_tasks_figure
from condnum.plots.alignment import alignment_figure
from condnum.plots.style import num
from condnum.teaching.aligned_tasks import AlignedTasks, aligned_tasks
from condnum.teaching.alignment import (
    PAIRINGS,
    ROTATIONS,
    RotatedAlignment,
    haar_overlap_band,
    rotated_alignment,
)
from condnum.teaching.quadratic import SPECTRUM_SHAPES
from condnum.widgets.controls import Choice, LogSlider, Slider
from condnum.widgets.explorer import Explorer

ipywidgets = require("ipywidgets", "notebooks")
traitlets = require("traitlets", "notebooks")

_SHAPES = {"clusters": "two clusters", "outlier": "one small outlier"}
#: Settings one click away, per explorer: label, tooltip, traits.
_ALIGNMENT_PRESETS = (
    ("Aligned: Eq. 10 is exact", "Angle 0", {"angle": 0.0, "rotation": "random"}),
    (
        "By hand: D = 2, Eq. 10 fails",
        "θ = UΣ with Σ = diag(1, 1/2), K = diag(1, 1/3), 45°: proportional to [[8, 2], [2, 2]]",
        {
            "angle": 45.0, "rotation": "random", "dimension": 2, "pairing": "same", "data_kappa": 3.0,
            "data_spectrum": "geometric", "theta_kappa": 2.0, "theta_spectrum": "geometric", "seed": 0,
        },
    ),
    (
        "Generic: a Haar draw",
        "U uniform among all orthogonal matrices: overlaps of about 1/D",
        {"rotation": "haar", "dimension": 8, "data_kappa": 100.0, "theta_kappa": 3.0},
    ),
    (
        "By at most 90°: not generic",
        "exp(φA): only some vectors turn by the whole φ, the rest by less",
        {"angle": 90.0, "rotation": "random", "dimension": 8, "data_kappa": 100.0, "theta_kappa": 3.0},
    ),
)  # fmt: skip
_TASK_PRESETS = (
    (
        "Counter-example to the remark",
        "K_P = diag(100, 1), K_H = diag(2, 1), θ = K_P^(-1/2)",
        {"pretrain_kappa": 100.0, "harmful_kappa": 2.0, "exponent": 1.0},
    ),
    (
        "Where the remark is right",
        "K_H = K_P: one and the same task",
        {"pretrain_kappa": 100.0, "harmful_kappa": 100.0, "exponent": 1.0},
    ),
)


def _add_presets(explorer: Explorer, presets: tuple[tuple[str, str, dict[str, Any]], ...]) -> None:
    """Add a row of buttons below the controls; each sets several traits and draws once."""
    row = []
    for label, tip, settings in presets:
        button = ipywidgets.Button(description=label, tooltip=tip, layout={"width": "auto"})
        button.on_click(partial(explorer._run, label, partial(explorer.change, **settings)))
        explorer.buttons[label] = button
        row.append(button)
    panel = explorer.children[0]
    panel.children = (*panel.children, ipywidgets.Box(row, layout={"flex_flow": "row wrap", "width": "100%"}))


def alignment_table(run: RotatedAlignment) -> pd.DataFrame:
    """Return spectra, bounds, partial sums and overlaps, one row an index i."""
    result = run.alignment
    columns = {"theta_singular_value": result.theta_singular_values}
    columns |= {"covariance_eigenvalue": result.covariance_eigenvalues, "predicted": result.predicted}
    columns |= {"predicted_sorted": run.sorted_prediction, "spectrum": result.spectrum}
    columns |= {"ostrowski_lower": result.ostrowski_lower, "ostrowski_upper": result.ostrowski_upper}
    columns |= {"predicted_partial_sum": result.predicted_partial_sums}
    columns |= {"true_partial_sum": result.true_partial_sums}
    columns |= {f"overlap_{j}": column for j, column in enumerate(np.asarray(result.overlaps).T, 1)}
    return pd.DataFrame(columns, index=pd.RangeIndex(1, len(run.theta) + 1, name="i")).reset_index()


def alignment_reading(run: RotatedAlignment) -> str:
    """Say whether Eq. 10 holds here, by how much it fails, and what holds all the same."""
    result = run.alignment
    true = "majorisation and Ostrowski's bounds hold" if result.majorised and result.ostrowski_holds else (
        "<b>a check of the theory fails by round-off</b>"
    )  # fmt: skip
    if run.exact:
        verdict = "U diagonalises K: <b>Eq. 10 is exact</b>"
        if not np.array_equal(np.argsort(-result.predicted, kind="stable"), np.arange(len(run.theta))):
            verdict += ", though not in the order of θ's singular values"
    else:
        share = f"its κ is {result.condition_ratio:.1%} of the true one"
        verdict = f"<b>Eq. 10 is not the spectrum</b>: {share}; {true}"
    if not result.u_unique:
        verdict += ". θ has repeated singular values: U is one of many, and so is what Eq. 10 says"
    elif not result.q_unique:
        verdict += (
            ". K has repeated eigenvalues: the overlaps with those q<sub>j</sub> are one choice of many"
        )
    low, high = haar_overlap_band(len(run.theta))
    return (
        f"{verdict}. Mean overlap |u<sub>i</sub><sup>⊤</sup>q<sub>i</sub>|² {run.diagonal_overlap:.3f}; "
        f"of Haar draws, 90 % lie in {low:.3f} … {high:.3f}."
    )


class AlignmentExplorer(Explorer):
    """Proposition 3.2 with chosen spectra of θ and K, and a chosen angle of U to Q.

    Args:
        **settings: `angle`, `rotation`, `dimension`, `pairing`, `data_kappa`, `data_spectrum`, `theta_kappa`,
            `theta_spectrum`, `seed`.

    Raises:
        UnknownNameError: Another setting.
    """

    angle = traitlets.Float(0.0, min=0.0, max=90.0, help="Of the singular vectors of θ to K's; 0: aligned.")
    rotation = traitlets.Enum(list(ROTATIONS), "random", help="Which of the u_i turn.")
    dimension = traitlets.Int(8, min=2, max=64, help="Number D of features.")
    pairing = traitlets.Enum(list(PAIRINGS), "same", help="Which u_i lies on which q_j at the angle 0.")
    data_kappa = traitlets.Float(100.0, min=1.0, max=1e4, help="κ(K), largest over smallest eigenvalue γ.")
    data_spectrum = traitlets.Enum(list(SPECTRUM_SHAPES), "geometric", help="How γ₁ … γ_D are spread.")
    theta_kappa = traitlets.Float(3.0, min=1.0, max=30.0, help="κ(θ), largest over smallest singular value.")
    theta_spectrum = traitlets.Enum(
        list(SPECTRUM_SHAPES), "geometric", help="How the singular values of θ are spread."
    )
    seed = traitlets.Int(0, min=0, max=20, help="Another random rotation or Haar draw.")

    controls = (
        Slider("angle", "angle of U to Q", "degrees"),
        Choice(
            "rotation", "rotation",
            labels={
                "ends": "plane of q₁ and q_D", "neighbours": "plane of q₁ and q₂",
                "random": "random, by at most the angle", "haar": "Haar draw (generic, no angle)",
            },
        ),
        LogSlider("data_kappa", "κ(K)", step=1 / 44),  # 3 and 100 both lie on (about) a mark
        Choice("data_spectrum", "spectrum of K", labels=_SHAPES),
        Slider("theta_kappa", "κ(θ)", step=0.5),
        Choice("theta_spectrum", "spectrum of θ", labels=_SHAPES),
        Slider("dimension", "dimension D", "features"),
        Choice(
            "pairing", "aligned means",
            labels={"same": "u_i = q_i", "opposite": "u_i = q_(D+1-i), opposite order"},
        ),
        Slider("seed", "random draw no."),
    )  # fmt: skip
    compute = staticmethod(rotated_alignment)
    figure = staticmethod(alignment_figure)
    data = staticmethod(alignment_table)
    reading = staticmethod(alignment_reading)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _add_presets(self, _ALIGNMENT_PRESETS)


def aligned_tasks_table(run: AlignedTasks) -> pd.DataFrame:
    """Return both condition numbers and RIR along the path, one row an exponent."""
    columns = {"s": run.exponents, "kappa_pretrain": run.pretrain_condition}
    return pd.DataFrame(columns | {"kappa_harmful": run.harmful_condition, "rir": run.ratios})


def aligned_tasks_reading(run: AlignedTasks) -> str:
    """Say whether θ immunizes at the shown exponent."""
    here = run.immunization
    both = (
        f"(i) = {num(here.harmful_ratio, 4)}, (ii) = {num(here.pretrain_ratio, 4)}, RIR = {num(here.rir, 4)}"
    )
    if run.exponent == 0:
        return f"θ = I, nothing is changed yet: {both}. The ceiling is {num(run.ceiling, 4)}: raise s."
    if not here.success:
        limit = f"No θ has an RIR above {num(run.ceiling, 4)}"
        return f"{both}: <b>not immunized</b> by (i) &gt; 1 and (ii) ≤ 1. {limit}."
    attained = (
        "which is the ceiling" if here.rir > run.ceiling * (1 - 1e-9) else f"of at most {num(run.ceiling, 4)}"
    )
    return f"{both}, {attained}: <b>immunized</b>, though the singular vectors align perfectly."


class AlignedTasksExplorer(Explorer):
    """Two tasks with the same singular vectors in the same order, and a θ that immunizes them.

    Args:
        **settings: `exponent`, `pretrain_kappa`, `harmful_kappa`.

    Raises:
        UnknownNameError: Another setting.
    """

    exponent = traitlets.Float(0.0, min=0.0, max=1.0, help="s of θ = K_P^(-s/2).")
    pretrain_kappa = traitlets.Float(100.0, min=1.0, max=1000.0, help="κ(K_P).")
    harmful_kappa = traitlets.Float(2.0, min=1.0, max=1000.0, help="κ(K_H).")

    controls = (
        Slider("exponent", "exponent s", step=0.05),
        LogSlider("pretrain_kappa", "κ(K_P), pre-training"),
        LogSlider("harmful_kappa", "κ(K_H), harmful"),
    )
    compute = staticmethod(aligned_tasks)
    figure = staticmethod(aligned_tasks_figure)
    data = staticmethod(aligned_tasks_table)
    reading = staticmethod(aligned_tasks_reading)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _add_presets(self, _TASK_PRESETS)
