"""Notebook 2: two tasks whose singular vectors align perfectly, and a θ that immunizes all the same.

The remark after Proposition 3.2 says that none exists. With K_P = diag(κ_P, 1), K_H = diag(κ_H, 1) and
`θ_s = K_P^{-s/2}`, κ(H_P) = κ_P^{1−s} and κ(H_H) = max(κ_H κ_P^{−s}, κ_P^s/κ_H).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from condnum.figures.style import BLUE, GREEN, ORANGE, PURPLE
from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import Explorer, ExplorerResult, Preset, Slider, with_controls
from condnum.lessons.frame.sheet import Sheet
from condnum.numbers import num
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio
from condnum.theory.spectra import condition_number, hessian

#: Exponents s at which the path is drawn.
EXPONENTS = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class AlignedTasks(ExplorerResult):
    """The path `θ_s = K_P^{-s/2}` for two diagonal tasks, and the point on it that the reader looks at."""

    exponent: float  # the s that the reader looks at
    pretrain_condition: Floats  # (S,) κ(H_P(θ_s)) at `EXPONENTS`
    harmful_condition: Floats  # (S,) κ(H_H(θ_s))
    immunization: Immunization  # (i), (ii) and RIR at `exponent`
    ceiling: float  # the largest RIR of any invertible θ

    @property
    def ratios(self) -> Floats:
        """RIR (Eq. 15) along the path, `(S,)`."""
        quotient = self.harmful_condition / self.pretrain_condition
        return quotient / quotient[0]

    def figure(self) -> Any:
        """Draw both condition numbers beside RIR and its theoretical limit, along `θ_s = K_P^{-s/2}`."""
        sheet = Sheet("condition numbers of the two probes", "relative immunization ratio")
        left, right = sheet.panels
        here, s, hover = self.immunization, [self.exponent], "s = %{x:.3f}: %{y:.4g}"
        P, H = here.pretrain_after.value, here.harmful_after.value
        left.line("κ(H<sub>P</sub>), pre-training", EXPONENTS, self.pretrain_condition, BLUE, hover=hover)
        left.line("κ(H<sub>H</sub>), harmful", EXPONENTS, self.harmful_condition, ORANGE, "dash", hover=hover)
        point = {"hover": "%{y:.4g}", "legend": False}
        left.marks("shown s", s * 2, [P, H], "circle", 14, [BLUE, ORANGE], **point)
        right.line("RIR, Eq. 15", EXPONENTS, self.ratios, GREEN, hover=hover)
        level = {"width": 2.5, "hover": "at most %{y:.4g}"}
        right.line("ceiling of RIR", [0.0, 1.0], [self.ceiling] * 2, PURPLE, "longdash", **level)
        right.marks("RIR at s", s, [here.rir], "circle", 14, GREEN, **point)
        drawn = {
            "κ": [*self.pretrain_condition, *self.harmful_condition, 1.0],
            "RIR": [*self.ratios, self.ceiling, 1.0],
        }
        for panel, (name, values) in zip(sheet.panels, drawn.items(), strict=True):
            low, high = np.log10(min(values)), np.log10(max(*values, 10.0))
            room = 0.08 * (high - low)
            panel.x("exponent s: θ = I at 0, θ = K<sub>P</sub><sup>−1/2</sup> at 1", -0.03, 1.03)
            panel.y(name, low - room, high + room, log=True)
        start = num(here.pretrain_before.value), num(here.harmful_before.value)
        title = f"s = {num(self.exponent)}: κ(H<sub>P</sub>) {start[0]} → {num(P)}, κ(H<sub>H</sub>) "
        return sheet.finish(f"{title}{start[1]} → {num(H)}")

    def caption(self) -> str:
        """Say whether θ immunizes at the shown exponent."""
        here, limit = self.immunization, num(self.ceiling, 4)
        ratios = f"(i) = {num(here.harmful_ratio, 4)}, (ii) = {num(here.pretrain_ratio, 4)}"
        both = f"{ratios}, RIR = {num(here.rir, 4)}"
        if self.exponent == 0:
            return f"θ = I, nothing is changed yet: {both}. The theoretical limit is {limit}: raise s."
        if not here.success:
            verdict = "<b>not immunized</b> by (i) &gt; 1 and (ii) ≤ 1"
            return f"{both}: {verdict}. No θ has an RIR above {limit}."
        at_most = here.rir <= self.ceiling * (1 - 1e-9)
        attained = f"of at most {limit}" if at_most else "which is the theoretical limit"
        immunized = "<b>immunized</b>, though the singular vectors align perfectly"
        return f"{both}, {attained}: {immunized}. {here.slowed}"


_kappa = partial(Slider, low=1, high=1000, log=True, marks=7)


@with_controls(
    exponent=Slider("exponent s", "θ is the pre-training K to the power −s/2.", 0, 1, step=0.05, marks=21),
    pretrain_kappa=_kappa("κ(K<sub>P</sub>), pre-training", "Condition number of the pre-training data."),
    harmful_kappa=_kappa("κ(K<sub>H</sub>), harmful", "Condition number of the harmful data."),
)
def aligned_tasks(
    *, exponent: float = 0.0, pretrain_kappa: float = 100.0, harmful_kappa: float = 2.0
) -> AlignedTasks:
    """Walk along `θ_s = K_P^{-s/2}` with `K_P = diag(κ_P, 1)` and `K_H = diag(κ_H, 1)`, s from 0 to 1."""
    K_P, K_H = np.diag([pretrain_kappa, 1.0]), np.diag([harmful_kappa, 1.0])
    *path, theta = (np.diag(np.diag(K_P) ** (-s / 2)) for s in [*EXPONENTS, exponent])
    P, H = (np.array([condition_number(hessian(of, K)).value for of in path]) for K in (K_P, K_H))
    measured = relative_immunization_ratio(theta, K_P, K_H)
    return AlignedTasks(exponent, P, H, measured, rir_ceiling(K_P, K_H).value)


class AlignedTasksExplorer(Explorer):
    """Two tasks with the same singular vectors in the same order, and a θ that immunizes them."""

    compute = staticmethod(aligned_tasks)
    presets = (
        Preset(
            "Counter-example to the remark",
            "K = diag(100, 1) and diag(2, 1), s = 1",
            {"pretrain_kappa": 100.0, "harmful_kappa": 2.0, "exponent": 1.0},
        ),
        Preset(
            "Where the remark is right",
            "The same task twice",
            {"pretrain_kappa": 100.0, "harmful_kappa": 100.0, "exponent": 1.0},
        ),
    )
