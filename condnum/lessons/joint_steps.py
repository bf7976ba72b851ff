"""Notebook 3: Algorithm 1 with both regularizers, where the guarantees of Theorem 4.3 stop adding up."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.figures.style import BLUE, GREEN, NEUTRAL, ORANGE, PURPLE, num, translucent
from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import Explorer, ExplorerResult, Slider, with_controls
from condnum.lessons.frame.sheet import Sheet
from condnum.lessons.regularizer_paths import (
    LARGEST_KAPPA,
    MOVED,
    descended,
    largest_safe_step,
    pushed_is_unique,
)
from condnum.lessons.regularizers import RegularizerName, bent_spectrum, kappas
from condnum.lessons.two_tasks import two_tasks
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.regularizers import r_ill_gradient, r_well_gradient
from condnum.theory.spectra import hessian
from condnum.theory.steps import ill_step_bound, well_step_bound

JOINT_STEPS = 30


@dataclass(frozen=True)
class JointSteps(ExplorerResult):
    """A run with both terms, beside what each term alone does to its own κ."""

    eta_pretrain: float  # η_P
    K_P: Floats  # (D, D)
    K_H: Floats  # (D, D)
    theta: Floats  # (D, D) after the last step
    kappa_pretrain: Floats  # (T + 1,) κ(H_P(θ_t)), both terms
    kappa_harmful: Floats  # (T + 1,) κ(H_H(θ_t)), both terms
    well_alone: Floats  # (T + 1,) κ(H_P) under R_well alone
    ill_alone: Floats  # (T + 1,) κ(H_H) under R_ill alone
    within: NDArray[np.bool_]  # (T,) steps where η_P and η_H are below their corrected bounds at θ_t
    rir_max: float  # the ceiling of RIR over all invertible θ

    @property
    def ratio_harmful(self) -> Floats:
        """(i) of Definition 3.1, κ(H_H(θ_t))/κ(K_H), `(T + 1,)`: above 1 is wanted."""
        return self.kappa_harmful / self.kappa_harmful[0]

    @property
    def ratio_pretrain(self) -> Floats:
        """(ii) of Definition 3.1, κ(H_P(θ_t))/κ(K_P), `(T + 1,)`: at most 1 is wanted."""
        return self.kappa_pretrain / self.kappa_pretrain[0]

    @property
    def pretrain_rises(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_P) rises all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_pretrain)) > MOVED)

    @property
    def harmful_falls(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_H) falls all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_harmful)) < -MOVED)

    def figure(self) -> Any:
        """Draw both κ's under both terms, beside the plane of Definition 3.1."""
        titles = ("condition numbers along the run", "immunized? Definition 3.1")
        sheet = Sheet(*titles, column_widths=[0.56, 0.44])
        left, right = sheet.panels
        t, told = np.arange(len(self.kappa_pretrain)), {"hover": "t = %{x}: κ = %{y:.4g}"}
        left.line("κ(H<sub>P</sub>)", t, self.kappa_pretrain, BLUE, width=3.5, **told)
        left.line("R<sub>well</sub> alone", t, self.well_alone, BLUE, "dot", width=2, **told)
        left.line("κ(H<sub>H</sub>)", t, self.kappa_harmful, ORANGE, width=3.5, **told)
        left.line("R<sub>ill</sub> alone", t, self.ill_alone, ORANGE, "dot", width=2, **told)
        rises, falls = (np.flatnonzero(steps) + 1 for steps in (self.pretrain_rises, self.harmful_falls))
        wrong = np.append(rises, falls), np.append(self.kappa_pretrain[rises], self.kappa_harmful[falls])
        left.marks("wrong way, within both bounds", *wrong, "x", 8, PURPLE, **told)
        ii, i = self.ratio_pretrain, self.ratio_harmful
        low, high = math.log10(min(*ii, *i, 0.05)) - 0.2, math.log10(max(*ii, *i, 100)) + 0.2
        least, most = 10**low, 10**high
        wanted = [least, 1, 1, least], [1, 1, most, most]
        right.area("(i) > 1 and (ii) ≤ 1", *wanted, translucent(GREEN, 0.18), legend=False)
        limit = [least, most], [self.rir_max * least, self.rir_max * most]
        told = {"hover": "(i)/(ii) = RIR<sub>max</sub><extra></extra>"}
        right.line("RIR<sub>max</sub>", *limit, NEUTRAL, "dash", width=2, **told)
        pair = "(ii) = %{x:.3g}, (i) = %{y:.3g}<extra></extra>"
        named = {"customdata": t, "hover": "t = %{customdata}: " + pair, "legend": False}
        right.line("path", ii, i, GREEN, width=2, size=5, **named)
        rim = {"hover": pair, "marker": {"line": {"width": 2}}, "legend": False}
        ends = ii[[0, -1]], i[[0, -1]]
        right.marks("first and last", *ends, ["circle-open", "star"], [13, 17], GREEN, **rim)
        drawn = (self.kappa_pretrain, self.well_alone, self.kappa_harmful, self.ill_alone)
        top = max(3.0, math.log10(np.max(drawn)) + 0.2)
        left.x("step t", 0, max(10, t[-1]))
        left.y("κ", -0.1, top, log=True)
        right.x("(ii) κ(H<sub>P</sub>)/κ(K<sub>P</sub>), ≤ 1 wanted", low, high, log=True)
        right.y("(i) κ(H<sub>H</sub>)/κ(K<sub>H</sub>), > 1 wanted", low, high, log=True)
        rir = f"RIR = {num(i[-1] / ii[-1])} of at most {num(self.rir_max)}"
        return sheet.finish(f"Algorithm 1 with both terms, t = {t[-1]}: {rir}")

    def caption(self) -> str:
        """Say how often both promises were broken, and whether the end is immunized."""
        counted = self.pretrain_rises, self.harmful_falls, self.within
        rises, falls, within = (int(steps.sum()) for steps in counted)
        i, ii = self.ratio_harmful[-1], self.ratio_pretrain[-1]
        verdict = "immunized" if i > 1 and ii <= 1 else "<b>not immunized</b>"
        return (
            f"{within} of {len(self.within)} steps are within both corrected bounds. In {rises} of these, "
            f"κ(H<sub>P</sub>) still rises, in {falls} κ(H<sub>H</sub>) falls. "
            f"At the end (i) = {num(i)}, (ii) = {num(ii)}: {verdict} by (i) > 1 and (ii) ≤ 1."
        )


def joint_step(theta: Floats, H_P: Floats, H_H: Floats, eta_P: float, eta_H: float) -> Floats:
    """Return line 6 of Algorithm 1 without the supervised loss: `K⁻¹∇_θ R(H(θ)) = 2θ∇_H R`."""
    well, ill = r_well_gradient(H_P).gradient, r_ill_gradient(H_H, rank=len(H_H)).gradient
    return np.asarray(theta - 2 * theta @ (eta_P * well + eta_H * ill))


_decades = partial(Slider, log=True, step=0.05, marks=4)
_SHARE = "Step size over the corrected bound at θ = I."


@with_controls(
    angle=Slider("angle of the tasks (degrees)", "0: same order of axes; 90: opposite order.", 0, 90),
    dimension=Slider("dimension D", "Number of features.", 2, 16, advanced=True),
    share_well=_decades("η<sub>P</sub> over its bound", _SHARE, 0.01, 0.99, advanced=True),
    share_ill=_decades("η<sub>H</sub> over its bound", _SHARE, 0.001, 0.99),
    kappa_pretrain=_decades("κ(K<sub>P</sub>)", "Condition number of the benign task.", 10**0.05, 1000),
    kappa_harmful=_decades("κ(K<sub>H</sub>)", "Condition number of the harmful task.", 10**0.05, 1000),
)
def joint_steps(
    *,
    angle: float = 15.0,
    dimension: int = 4,
    share_well: float = 0.5,
    share_ill: float = 0.1,
    kappa_pretrain: float = 20.0,
    kappa_harmful: float = 5.0,
    steps: int = JOINT_STEPS,
) -> JointSteps:
    """Run Algorithm 1 by plain descent from θ = I without loss, until a κ exceeds `LARGEST_KAPPA`."""
    K_P, K_H = two_tasks(kappa_pretrain, kappa_harmful, angle, dimension)
    sigma_P, sigma_H = (bent_spectrum(kappa=k, dimension=dimension) for k in (kappa_pretrain, kappa_harmful))
    eta_P = share_well * largest_safe_step("well", sigma_P)
    eta_H = share_ill * largest_safe_step("ill", sigma_H)
    theta, H_P, H_H, spectra = np.eye(dimension), K_P, K_H, [(sigma_P, sigma_H)]
    for _ in range(steps):
        moved = joint_step(theta, H_P, H_H, eta_P, eta_H)
        H_P, H_H = (np.asarray(hessian(moved, K), dtype=np.float64) for K in (K_P, K_H))
        P, H = (np.asarray(np.linalg.eigvalsh(matrix)[::-1]) for matrix in (H_P, H_H))
        if any(sigma[0] > max(LARGEST_KAPPA * sigma[-1], 1) for sigma in (P, H)):
            break
        theta = moved
        spectra.append((P, H))
    P, H = (np.array(side) for side in zip(*spectra, strict=True))
    within = np.ones(len(P) - 1, dtype=bool)  # the theorem is silent where the pushed value is repeated
    runs: tuple[tuple[RegularizerName, Any, float, Floats], ...] = (
        ("well", well_step_bound, eta_P, P),
        ("ill", ill_step_bound, eta_H, H),
    )
    for regularizer, bound, eta, sigma in runs:
        unique = pushed_is_unique(regularizer, sigma[:-1])
        within &= unique
        if unique.any():
            within[unique] &= eta < bound(sigma[:-1][unique])
    well_alone, ill_alone = (
        kappas(descended(name, tuple(sigma[0].tolist()), eta, len(P) - 1)) for name, _, eta, sigma in runs
    )
    limit = rir_ceiling(K_P, K_H).value
    return JointSteps(eta_P, K_P, K_H, theta, kappas(P), kappas(H), well_alone, ill_alone, within, limit)


class JointStepsExplorer(Explorer):
    """Algorithm 1 with both regularizers on two small tasks, where the guarantees stop adding up."""

    compute = staticmethod(joint_steps)
