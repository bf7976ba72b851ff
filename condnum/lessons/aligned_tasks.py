r"""Notebook 2: two tasks whose singular vectors align perfectly, and a θ that immunizes all the same.

The remark after Proposition 3.2 says that none exists. With :math:`K_P = \mathrm{diag}(\kappa_P, 1)` and
:math:`K_H = \mathrm{diag}(\kappa_H, 1)`, both sorted in the same order, the path
:math:`\theta_s = K_P^{-s/2}` from I to :math:`K_P^{-1/2}` has

.. math:: \kappa(H_P) = \kappa_P^{1-s}, \qquad
          \kappa(H_H) = \max(\kappa_H\,\kappa_P^{-s},\ \kappa_P^{s}/\kappa_H).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.figures.style import BLUE, GREEN, ORANGE, PURPLE, add_line, num, panels, teaching_layout
from condnum.lessons.explorer import Between, Explorer, LogSlider, Preset, Slider, checked
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio
from condnum.theory.spectra import condition_number, hessian

#: Exponents s at which the path is drawn.
EXPONENTS = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class AlignedTasks:
    """The path `θ_s = K_P^{-s/2}` for two diagonal tasks, and the point on it that the reader looks at."""

    pretrain_kappa: float  # κ(K_P)
    harmful_kappa: float  # κ(K_H)
    exponent: float  # the s that the reader looks at
    exponents: NDArray[np.float64]  # (S,) from 0 to 1
    pretrain_condition: NDArray[np.float64]  # (S,) κ(H_P(θ_s))
    harmful_condition: NDArray[np.float64]  # (S,) κ(H_H(θ_s))
    immunization: Immunization  # (i), (ii) and RIR at `exponent`
    ceiling: float  # the largest RIR of any invertible θ

    @property
    def ratios(self) -> NDArray[np.float64]:
        """RIR (Eq. 15) along the path, `(S,)`."""
        start = self.harmful_kappa / self.pretrain_kappa
        return self.harmful_condition / self.pretrain_condition / start


@checked
def aligned_tasks(
    *,
    pretrain_kappa: Annotated[float, Between(1, 1000)] = 100.0,
    harmful_kappa: Annotated[float, Between(1, 1000)] = 2.0,
    exponent: Annotated[float, Between(0, 1)] = 0.0,
) -> AlignedTasks:
    r"""Walk along `θ_s = K_P^{-s/2}` with `K_P = diag(κ_P, 1)` and `K_H = diag(κ_H, 1)`.

    Args:
        pretrain_kappa: :math:`\kappa_P`, from 1 to 1,000.
        harmful_kappa: :math:`\kappa_H`, likewise.
        exponent: s from 0 (θ = I) to 1 (θ whitens the pre-training task).

    Returns:
        Both condition numbers along the path, Definition 3.1 at s, and the ceiling.

    Raises:
        InvalidInputError: An argument is out of its range.

    Examples:
        >>> run = aligned_tasks(exponent=1.0)  # κ(H_P) falls 100 -> 1, κ(H_H) rises 2 -> 50
        >>> run.pretrain_condition[[0, -1]].round(9).tolist()
        [100.0, 1.0]
        >>> run.harmful_condition[[0, -1]].round(9).tolist()
        [2.0, 50.0]
        >>> round(run.ceiling, 6)
        2500.0
    """
    K_P, K_H = np.diag([pretrain_kappa, 1.0]), np.diag([harmful_kappa, 1.0])
    conditions = np.array([[_kappa(K, K_P, s) for K in (K_P, K_H)] for s in EXPONENTS])
    return AlignedTasks(
        pretrain_kappa, harmful_kappa, exponent, EXPONENTS, conditions[:, 0], conditions[:, 1],
        immunization=relative_immunization_ratio(_theta(K_P, exponent), K_P, K_H),
        ceiling=rir_ceiling(K_P, K_H).value,
    )  # fmt: skip


def _theta(K_P: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return `K_P^{-s/2}` of a diagonal matrix."""
    return np.diag(np.diag(K_P) ** (-exponent / 2))


def _kappa(K: NDArray[np.float64], K_P: NDArray[np.float64], exponent: float) -> float:
    """Return κ(θ_sᵀKθ_s)."""
    return float(condition_number(hessian(_theta(K_P, exponent), K)))


def aligned_tasks_figure(run: AlignedTasks) -> Any:
    """Draw both condition numbers beside RIR and its ceiling, along `θ_s = K_P^{-s/2}`."""
    titles = ("condition numbers of the two probes", "relative immunization ratio")
    figure = panels(cols=2, horizontal_spacing=0.1, subplot_titles=titles)
    here = run.immunization
    s, at = run.exponents, [run.exponent]
    left: tuple[tuple[str, Any, str, str], ...] = (
        ("κ(H<sub>P</sub>), pre-training", run.pretrain_condition, BLUE, "solid"),
        ("κ(H<sub>H</sub>), harmful", run.harmful_condition, ORANGE, "dash"),
    )
    for name, values, color, dash in left:
        add_line(figure, name, s, values, color, dash, hovertemplate="s = %{x:.3f}: %{y:.4g}", row=1, col=1)
    both = [here.pretrain_after.value, here.harmful_after.value]
    figure.add_scatter(
        x=at * 2, y=both, mode="markers", name="shown s", showlegend=False,
        marker={"size": 14, "color": [BLUE, ORANGE]}, hovertemplate="κ = %{y:.4g}", row=1, col=1,
    )  # fmt: skip
    add_line(
        figure, "RIR, Eq. 15", s, run.ratios, GREEN, hovertemplate="s = %{x:.3f}: %{y:.4g}", row=1, col=2
    )
    add_line(
        figure, "ceiling of RIR", [0.0, 1.0], [run.ceiling] * 2, PURPLE, "longdash", width=2.5,
        hovertemplate="at most %{y:.4g}", row=1, col=2,
    )  # fmt: skip
    figure.add_scatter(
        x=at, y=[here.rir], mode="markers", name="RIR at s", showlegend=False,
        marker={"size": 14, "color": GREEN}, hovertemplate="RIR = %{y:.4g}", row=1, col=2,
    )  # fmt: skip
    title = (
        f"s = {num(run.exponent)}: κ(H<sub>P</sub>) {num(run.pretrain_kappa)} → {num(both[0])}, "
        f"κ(H<sub>H</sub>) {num(run.harmful_kappa)} → {num(both[1])}"
    )
    teaching_layout(figure, title, height=520)
    figure.update_xaxes(
        title_text="exponent s: θ = I at 0, θ = K<sub>P</sub><sup>−1/2</sup> at 1", range=[-0.03, 1.03]
    )
    ratios = [*run.ratios, run.ceiling, 1.0]
    tops = max(*run.pretrain_condition, *run.harmful_condition), max(ratios)
    bottoms = 1.0, min(ratios)
    for column, (bottom, top) in enumerate(zip(bottoms, tops, strict=True), 1):
        low, high = np.log10(bottom), np.log10(max(top, 10.0))
        room = 0.08 * (high - low)
        figure.update_yaxes(type="log", range=[low - room, high + room], dtick=1, col=column)
    figure.update_yaxes(title_text="κ", col=1)
    figure.update_yaxes(title_text="RIR", col=2)
    return figure


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
    """Two tasks with the same singular vectors in the same order, and a θ that immunizes them."""

    controls = (
        Slider("exponent", "exponent s", "s of θ = K_P^(-s/2).", step=0.05),
        LogSlider("pretrain_kappa", "κ(K_P), pre-training", "κ(K_P)."),
        LogSlider("harmful_kappa", "κ(K_H), harmful", "κ(K_H)."),
    )
    presets = (
        Preset(
            "Counter-example to the remark",
            "K_P = diag(100, 1), K_H = diag(2, 1), θ = K_P^(-1/2)",
            {"pretrain_kappa": 100.0, "harmful_kappa": 2.0, "exponent": 1.0},
        ),
        Preset(
            "Where the remark is right",
            "K_H = K_P: one and the same task",
            {"pretrain_kappa": 100.0, "harmful_kappa": 100.0, "exponent": 1.0},
        ),
    )
    compute = staticmethod(aligned_tasks)
    figure = staticmethod(aligned_tasks_figure)
    data = staticmethod(aligned_tasks_table)
    reading = staticmethod(aligned_tasks_reading)
