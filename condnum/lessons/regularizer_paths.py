"""Notebook 3: many steps of one regularizer, and what its value says about κ.

Monotone is not convergent: under steps within the bound of Theorem 4.3 (1) κ falls for ever, and may
still come to rest above 1, because the bound goes to 0 where σ₂ has grown up to σ₁.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.figures.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    PURPLE,
    add_line,
    empty,
    num,
    panels,
    teaching_layout,
)
from condnum.lessons.explorer import Angle, Between, Choice, Explorer, LogSlider, Slider, checked
from condnum.lessons.regularizers import (
    BEND_HELP,
    LABELS,
    NAMES,
    Bend,
    Kappa,
    RegularizerName,
    bent_spectrum,
    kappas,
    next_spectrum,
)
from condnum.lessons.two_tasks import two_tasks
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.regularizers import r_ill, r_ill_from_pair, r_well_from_pair
from condnum.theory.spectra import default_rtol, hessian
from condnum.theory.steps import ill_step, ill_step_bound, well_step, well_step_bound

StepSizes = Literal["bound", "constant"]
#: η over the largest step with a promise.
Share = Annotated[float, Between(0.01, 0.99)]
PathEnd = Literal["steps", "repeated", "round_off"]

PATH_STEPS, JOINT_STEPS = 100, 30
#: Values of a spectrum, each with a line of its own.
MOST_LINES = 8
#: Beyond this κ the smallest value is round-off of the largest.
LARGEST_KAPPA = 1e12


@dataclass(frozen=True)
class RegularizerPath:
    """A spectrum under many steps of one regularizer."""

    regularizer: RegularizerName
    sizes: StepSizes
    share: float
    sigma: NDArray[np.float64]  # (T + 1, k), every row descending
    eta: NDArray[np.float64]  # (T,) step sizes
    kappa: NDArray[np.float64]  # (T + 1,)
    value: NDArray[np.float64]  # (T + 1,) the regularizer
    end: PathEnd  # `repeated`: the pushed value met its neighbour; `round_off`: κ > LARGEST_KAPPA

    @property
    def wrong_way(self) -> NDArray[np.bool_]:
        """Steps in which κ moved against the regularizer's purpose by more than round-off, `(T,)`."""
        change = np.diff(np.log(self.kappa))
        return (change if self.regularizer == "well" else -change) > 1e-12


@checked
def regularizer_path(
    *,
    regularizer: RegularizerName = "well",
    sizes: StepSizes = "bound",
    share: Share = 0.2,
    kappa: Kappa = 10.0,
    dimension: Annotated[int, Between(2, MOST_LINES)] = 6,
    bend: Bend = 1.0,
    top: float = 1.0,
    steps: int = PATH_STEPS,
) -> RegularizerPath:
    r"""Follow a spectrum through many steps.

    Examples:
        >>> path = regularizer_path(kappa=10.0, dimension=6, share=0.05)
        >>> bool((np.diff(path.kappa) < 0).all()), path.end, round(float(path.kappa[-1]), 2)
        (True, 'repeated', 6.64)
    """
    sigma = [bent_spectrum(kappa=kappa, dimension=dimension, bend=bend, top=top)]
    first = share * largest_safe_step(regularizer, sigma[0])
    etas: list[float] = []
    end: PathEnd = "steps"
    for _ in range(steps):
        eta = first if sizes == "constant" else share * largest_safe_step(regularizer, sigma[-1])
        if eta == 0:
            end = "repeated"
            break
        moved = np.sort(next_spectrum(regularizer, sigma[-1], eta))[::-1]
        if moved[0] > LARGEST_KAPPA * moved[-1]:
            end = "round_off"
            break
        sigma.append(moved)
        etas.append(eta)
    spectra = np.array(sigma)
    return RegularizerPath(
        regularizer, sizes, share, spectra, np.array(etas), kappas(spectra), values(regularizer, spectra), end
    )


def largest_safe_step(regularizer: RegularizerName, sigma: NDArray[np.float64]) -> float:
    r"""Return the step size below which κ moves as promised and no value is annihilated.

    For R_well it is the corrected bound of Theorem 4.3 (1); for R_ill :math:`\eta_0 =
    \rho^2/(2(1-\frac1k)\sigma_k)`, which is less than half the corrected bound (2).

    Examples:
        >>> largest_safe_step("well", np.array([4.0, 1.0])), largest_safe_step("ill", np.array([3.0, 1.0]))
        (0.125, 4.0)
        >>> largest_safe_step("well", np.array([4.0, 4.0, 1.0]))
        0.0
    """
    k = len(sigma)
    if not pushed_is_unique(regularizer, sigma):
        return 0.0
    if regularizer == "well":
        return float(well_step_bound(sigma))
    rho = 1 / r_ill(np.diag(sigma), rank=k)
    return float(rho**2 / (2 * (1 - 1 / k) * sigma[-1]))


def pushed_is_unique(regularizer: RegularizerName, spectra: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell whether the value that a regularizer pushes is unique, as Theorem 4.3 asks.

    The tolerance is twice that of the bounds in `condnum.theory.steps`, so that rounding cannot let a
    spectrum pass here and be refused there.

    Examples:
        >>> pushed_is_unique("well", np.array([[4.0, 1.0, 1.0], [4.0, 4.0, 1.0]])).tolist()
        [True, False]
    """
    first, neighbour = (0, 1) if regularizer == "well" else (-1, -2)
    gap = np.abs(spectra[..., first] - spectra[..., neighbour])
    return np.asarray(gap > 2 * default_rtol(spectra.shape[-1]) * spectra[..., 0])


def values(regularizer: RegularizerName, spectra: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a regularizer of every spectrum.

    Examples:
        >>> values("ill", np.array([[3.0, 1.0], [6.0, 2.0]])).round(12).tolist()
        [0.5, 0.125]
    """
    sigma = torch.tensor(np.ascontiguousarray(spectra))
    H, k = torch.diag_embed(sigma), sigma.shape[-1]
    if regularizer == "well":
        return np.asarray(r_well_from_pair(H, sigma[..., 0], k))
    return np.asarray(r_ill_from_pair(H, sigma[..., -1], k))


@dataclass(frozen=True)
class ValuePlane:
    """Three families of spectra in the plane of κ and R_ill."""

    vanishing: NDArray[np.float64]  # (n, 3) spectra (1, ½, σ) with σ → 0
    scaled: NDArray[np.float64]  # (n, 3) spectra c·(1, ½, 0.1) with growing c
    descended: NDArray[np.float64]  # (n, 3) steps of R_ill of constant size from (1, ½, 0.1)

    @property
    def curves(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """κ and R_ill `(n,)` of each family, by its name."""
        families = {"vanishing": self.vanishing, "scaled": self.scaled, "descended": self.descended}
        return {name: (kappas(sigma), values("ill", sigma)) for name, sigma in families.items()}


def value_plane(points: int = 121, steps: int = 400, share: float = 0.5) -> ValuePlane:
    r"""Return three ways to leave the spectrum (1, ½, 0.1), none of which ties R_ill to κ.

    Theorem 4.1 (1) says :math:`R_{ill}(S) = 0` iff :math:`\kappa(S) = \infty`. But σ → 0 in (1, ½, σ) sends
    κ to ∞ and R_ill to 4.8, and S → cS sends R_ill to 0 at fixed κ.

    Args:
        points: Spectra in the first two families.
        steps: Steps of the third.
        share: Its step size over `largest_safe_step` at the start.

    Returns:
        The spectra of each family.

    Examples:
        >>> kappa, value = value_plane().curves["vanishing"]
        >>> f"{kappa[-1]:.0e}", round(float(value[-1]), 9)
        ('1e+06', 4.8)
        >>> kappa, value = value_plane().curves["scaled"]
        >>> round(float(kappa[-1]), 9), bool(value[-1] < 1e-5)
        (10.0, True)
    """
    start = np.array([1.0, 0.5, 0.1])
    vanishing = np.tile(start, (points, 1))
    vanishing[:, 2] = np.geomspace(0.1, 1e-6, points)
    scaled = np.geomspace(1, 1e3, points)[:, None] * start
    path, eta = [start], share * largest_safe_step("ill", start)
    for _ in range(steps):
        path.append(np.sort(next_spectrum("ill", path[-1], eta))[::-1])
    return ValuePlane(vanishing, scaled, np.array(path))


@dataclass(frozen=True)
class JointSteps:
    """A run with both terms, beside what each term alone does to its own κ."""

    eta_pretrain: float  # η_P
    eta_harmful: float  # η_H
    K_P: NDArray[np.float64]  # (D, D)
    K_H: NDArray[np.float64]  # (D, D)
    theta: NDArray[np.float64]  # (D, D) after the last step
    kappa_pretrain: NDArray[np.float64]  # (T + 1,) κ(H_P(θ_t)), both terms
    kappa_harmful: NDArray[np.float64]  # (T + 1,) κ(H_H(θ_t)), both terms
    well_alone: NDArray[np.float64]  # (T + 1,) κ(H_P) under R_well alone
    ill_alone: NDArray[np.float64]  # (T + 1,) κ(H_H) under R_ill alone
    within: NDArray[np.bool_]  # (T,) steps where η_P and η_H are below their corrected bounds at θ_t
    rir_max: float  # the ceiling of RIR over all invertible θ

    @property
    def ratio_harmful(self) -> NDArray[np.float64]:
        """(i) of Definition 3.1, κ(H_H(θ_t))/κ(K_H), `(T + 1,)`: above 1 is wanted."""
        return self.kappa_harmful / self.kappa_harmful[0]

    @property
    def ratio_pretrain(self) -> NDArray[np.float64]:
        """(ii) of Definition 3.1, κ(H_P(θ_t))/κ(K_P), `(T + 1,)`: at most 1 is wanted."""
        return self.kappa_pretrain / self.kappa_pretrain[0]

    @property
    def pretrain_rises(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_P) rises all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_pretrain)) > 1e-12)

    @property
    def harmful_falls(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_H) falls all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_harmful)) < -1e-12)


@checked
def joint_steps(
    *,
    angle: Angle = 15.0,
    share_well: Share = 0.5,
    share_ill: Annotated[float, Between(0.001, 0.99)] = 0.1,
    kappa_pretrain: Annotated[float, Between(10**0.05, 1000)] = 20.0,
    kappa_harmful: Annotated[float, Between(10**0.05, 1000)] = 5.0,
    dimension: Annotated[int, Between(2, 16)] = 4,
    steps: int = JOINT_STEPS,
) -> JointSteps:
    r"""Run Algorithm 1 by plain gradient descent from θ = I, with both regularizers and no loss.

    Both covariances have geometric spectra with σ₁ = 1.

    Args:
        angle: Degrees between the eigenvectors of both tasks, see `two_tasks`.
        share_well: η_P as a share of the corrected bound (1) at θ = I.
        share_ill: η_H as a share of `largest_safe_step` of R_ill at θ = I.
        kappa_pretrain: κ(K_P), from 1.12 to 1,000.
        kappa_harmful: κ(K_H), likewise.
        dimension: D, from 2 to 16.
        steps: T; fewer are taken where a κ exceeds `LARGEST_KAPPA` or θ diverges.

    Returns:
        Both κ's along the run, and along the runs of one term alone.

    Raises:
        InvalidInputError: An argument is out of its range.

    Examples:
        >>> run = joint_steps(angle=0.0, steps=20)
        >>> bool(run.harmful_falls.any()), bool((np.diff(run.ill_alone) > 0).all())
        (True, True)
    """
    K_P, K_H = two_tasks(
        kappa_pretrain=kappa_pretrain, kappa_harmful=kappa_harmful, angle=angle, dimension=dimension
    )
    sigma_P = bent_spectrum(kappa=kappa_pretrain, dimension=dimension)
    sigma_H = bent_spectrum(kappa=kappa_harmful, dimension=dimension)
    eta_P = share_well * largest_safe_step("well", sigma_P)
    eta_H = share_ill * largest_safe_step("ill", sigma_H)
    theta, spectra = np.eye(dimension), [(sigma_P, sigma_H)]
    for _ in range(steps):
        moved = joint_step(theta, K_P, K_H, eta_P, eta_H)
        pair = (_spectrum(moved, K_P), _spectrum(moved, K_H))
        if any(values[0] > LARGEST_KAPPA * max(float(values[-1]), 1 / LARGEST_KAPPA) for values in pair):
            break
        theta = moved
        spectra.append(pair)
    P, H = (np.array(side) for side in zip(*spectra, strict=True))
    return JointSteps(
        eta_P, eta_H, K_P, K_H, theta,
        kappa_pretrain=kappas(P),
        kappa_harmful=kappas(H),
        well_alone=_alone("well", sigma_P, eta_P, len(P) - 1),
        ill_alone=_alone("ill", sigma_H, eta_H, len(H) - 1),
        within=_within("well", eta_P, P[:-1]) & _within("ill", eta_H, H[:-1]),
        rir_max=float(rir_ceiling(K_P, K_H)),
    )  # fmt: skip


def joint_step(
    theta: NDArray[np.float64],
    K_P: NDArray[np.float64],
    K_H: NDArray[np.float64],
    eta_pretrain: float,
    eta_harmful: float,
) -> NDArray[np.float64]:
    r"""Return line 6 of Algorithm 1 without the supervised loss.

    .. math:: \theta' = \theta - \eta_P K_P^{-1}\nabla_\theta R_{well}(H_P(\theta))
        - \eta_H K_H^{-1}\nabla_\theta R_{ill}(H_H(\theta))

    Examples:
        >>> joint_step(np.eye(2), np.diag([4.0, 1.0]), np.diag([3.0, 1.0]), 0.1, 1.0)
        array([[1.35, 0.  ],
               [0.  , 0.85]])
    """
    rank = theta.shape[1]
    moved = well_step(theta, K_P, eta_pretrain) + ill_step(theta, K_H, eta_harmful, rank=rank)
    return np.asarray(moved - theta)


def _spectrum(theta: NDArray[np.float64], K: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the spectrum of H(θ), descending."""
    return np.asarray(np.linalg.eigvalsh(hessian(theta, K))[::-1])


def _within(regularizer: RegularizerName, eta: float, spectra: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each spectrum `(T, k)` whether η is below the corrected bound of Theorem 4.3, `(T,)`.

    The theorem is silent where the pushed value is repeated: False there.
    """
    unique = pushed_is_unique(regularizer, spectra)
    bounds = np.zeros(len(spectra))
    if unique.any():
        chosen = spectra[unique]
        bounds[unique] = well_step_bound(chosen) if regularizer == "well" else ill_step_bound(chosen)
    return np.asarray(eta < bounds)


def _alone(
    regularizer: RegularizerName, sigma: NDArray[np.float64], eta: float, steps: int
) -> NDArray[np.float64]:
    """Return κ `(steps + 1,)` under one term alone."""
    found = [sigma]
    for _ in range(steps):
        found.append(np.sort(next_spectrum(regularizer, found[-1], eta))[::-1])
    return kappas(np.array(found))


def regularizer_path_figure(run: RegularizerPath) -> Any:
    """Draw a spectrum under many steps, beside κ and the regularizer's value."""
    figure = panels(
        cols=2, horizontal_spacing=0.1,
        subplot_titles=("spectrum of H(θ<sub>t</sub>)", "κ and the regularizer"),
    )  # fmt: skip
    t = np.arange(len(run.sigma))
    k = run.sigma.shape[1]
    lines = [(f"σ<sub>{i + 1}</sub>", run.sigma[:, i], NEUTRAL, 2.0) for i in range(1, k - 1)]
    lines += [("", np.full(len(t), np.nan), NEUTRAL, 2.0)] * (MOST_LINES - 2 - len(lines))
    ends = (("σ<sub>1</sub>", run.sigma[:, 0], BLUE, 3.5), ("σ<sub>k</sub>", run.sigma[:, -1], ORANGE, 3.5))
    for number, (name, values, color, width) in enumerate((*lines, *ends)):
        add_line(
            figure, name if color != NEUTRAL else f"between {number + 2}", t, values, color, width=width,
            showlegend=color != NEUTRAL, hovertemplate=f"t = %{{x}}: {name} = %{{y:.4g}}<extra></extra>",
            row=1, col=1,
        )  # fmt: skip
    right: dict[str, Any] = {"row": 1, "col": 2}
    add_line(
        figure, "κ(H(θ<sub>t</sub>))", t, run.kappa, GREEN, width=3.5,
        hovertemplate="t = %{x}: κ = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    wrong = np.flatnonzero(run.wrong_way) + 1
    figure.add_scatter(
        x=wrong, y=run.kappa[wrong], mode="markers", name="κ went the wrong way",
        marker={"symbol": "x", "size": 8, "color": ORANGE},
        hovertemplate="t = %{x}: κ = %{y:.4g}<extra></extra>", **right,
    )  # fmt: skip
    share = run.value / run.value[0]
    add_line(
        figure, f"{NAMES[run.regularizer]} over its start", t, np.where(share > 0, share, np.nan), PURPLE,
        "dash", width=2.5, hovertemplate="t = %{x}: %{y:.4g} of the start<extra></extra>", **right,
    )  # fmt: skip
    last = len(t) - 1
    rule = "within the bound" if run.sizes == "bound" else "of constant size"
    kappas = f"κ = {num(run.kappa[0], 4)} → {num(run.kappa[-1], 4)}"
    title = f"{last} steps of {NAMES[run.regularizer]} {rule}: {kappas}"
    teaching_layout(figure, title, height=540)
    figure.update_xaxes(title_text="step t", range=[0, max(last, 10)])
    figure.update_yaxes(
        title_text="σ<sub>i</sub>", **_log_axis(run.sigma), row=1, col=1
    )  # fmt: skip
    figure.update_yaxes(
        title_text="κ; share of R at the start", **_log_axis(np.concatenate([run.kappa, share])), **right
    )  # fmt: skip
    return figure


def value_plane_figure(plane: ValuePlane) -> Any:
    """Draw three families of spectra in the plane of κ and R_ill.

    Args:
        plane: Of `value_plane`.

    Returns:
        A plotly figure: three curves from one point.

    Raises:
        MissingExtraError: Plotly is missing.
    """
    figure = empty()
    looks = {
        "vanishing": ("(1, ½, σ), σ → 0", ORANGE, "solid"),
        "scaled": ("c · (1, ½, 0.1), c → ∞", BLUE, "dash"),
        "descended": ("steps of R<sub>ill</sub> of constant size", GREEN, "dot"),
    }
    for family, (kappa, value) in plane.curves.items():
        name, color, dash = looks[family]
        add_line(figure, name, kappa, value, color, dash, width=4, hovertemplate="κ = %{x:.4g}, R = %{y:.4g}")
    kappa, value = plane.curves["scaled"]
    figure.add_scatter(
        x=kappa[:1], y=value[:1], mode="markers", name="(1, ½, 0.1)",
        marker={"symbol": "star", "size": 17, "color": PURPLE}, hovertemplate="κ = %{x:.4g}, R = %{y:.4g}",
    )  # fmt: skip
    note = "Orange: κ → ∞ and R<sub>ill</sub> stays at 4.8. Blue: R<sub>ill</sub> → 0 and κ stays at 10."
    teaching_layout(figure, "R<sub>ill</sub> does not know κ", note)
    powers = {"type": "log", "dtick": 1}
    figure.update_xaxes(title_text="κ(S)", range=[0.5, 6.1], **powers)
    figure.update_yaxes(title_text="R<sub>ill</sub>(S)", range=[-5.6, 1.3], **powers)
    return figure


def joint_steps_figure(run: JointSteps) -> Any:
    """Draw both κ's under both terms, beside the plane of Definition 3.1."""
    figure = panels(
        cols=2, column_widths=[0.56, 0.44], horizontal_spacing=0.1,
        subplot_titles=("condition numbers along the run", "immunized? Definition 3.1"),
    )  # fmt: skip
    t = np.arange(len(run.kappa_pretrain))
    lines = (
        ("κ(H<sub>P</sub>)", run.kappa_pretrain, BLUE, "solid", 3.5),
        ("R<sub>well</sub> alone", run.well_alone, BLUE, "dot", 2.0),
        ("κ(H<sub>H</sub>)", run.kappa_harmful, ORANGE, "solid", 3.5),
        ("R<sub>ill</sub> alone", run.ill_alone, ORANGE, "dot", 2.0),
    )
    for name, values, color, dash, width in lines:
        add_line(
            figure, name, t, values, color, dash, width=width, hovertemplate="t = %{x}: κ = %{y:.4g}", row=1,
            col=1,
        )  # fmt: skip
    rises, falls = (np.flatnonzero(steps) + 1 for steps in (run.pretrain_rises, run.harmful_falls))
    figure.add_scatter(
        x=np.concatenate([rises, falls]),
        y=np.concatenate([run.kappa_pretrain[rises], run.kappa_harmful[falls]]), mode="markers",
        name="wrong way, within both bounds", marker={"symbol": "x", "size": 8, "color": PURPLE},
        hovertemplate="t = %{x}: κ = %{y:.4g}<extra></extra>", row=1, col=1,
    )  # fmt: skip
    _add_verdict(figure, run)
    rir = run.ratio_harmful[-1] / run.ratio_pretrain[-1]
    title = f"Algorithm 1 with both terms, t = {len(t) - 1}: RIR = {num(rir)} of at most {num(run.rir_max)}"
    teaching_layout(figure, title, height=540)
    top = max(3.0, math.log10(max(line[1].max() for line in lines)) + 0.2)
    powers = {"type": "log", "dtick": 1}
    figure.update_xaxes(title_text="step t", range=[0, max(10, len(t) - 1)], row=1, col=1)
    figure.update_yaxes(title_text="κ", range=[-0.1, top], **powers, row=1, col=1)
    return figure


def _add_verdict(figure: Any, run: JointSteps) -> None:
    """Add the plane of (ii) and (i), the panel on the right."""
    right: dict[str, Any] = {"row": 1, "col": 2, "showlegend": False}
    x, y = run.ratio_pretrain, run.ratio_harmful
    low, high = math.log10(min(x.min(), y.min(), 0.05)) - 0.2, math.log10(max(x.max(), y.max(), 100)) + 0.2
    least, most = 10**low, 10**high
    figure.add_scatter(
        x=[least, 1, 1, least], y=[1, 1, most, most], mode="lines", fill="toself", line={"width": 0},
        fillcolor="rgba(0, 158, 115, 0.18)", hoverinfo="skip", name="(i) > 1 and (ii) ≤ 1", **right,
    )  # fmt: skip
    add_line(
        figure, "RIR<sub>max</sub>", [least, most], [run.rir_max * least, run.rir_max * most], NEUTRAL,
        "dash", width=2, hovertemplate="(i)/(ii) = RIR<sub>max</sub><extra></extra>",
        **right | {"showlegend": True},
    )  # fmt: skip
    figure.add_scatter(
        x=x, y=y, mode="lines+markers", name="path", line={"color": GREEN, "width": 2}, marker={"size": 5},
        customdata=np.arange(len(x)),
        hovertemplate="t = %{customdata}: (ii) = %{x:.3g}, (i) = %{y:.3g}<extra></extra>",
        **right,
    )  # fmt: skip
    figure.add_scatter(
        x=[x[0], x[-1]], y=[y[0], y[-1]], mode="markers", name="first and last",
        marker={"symbol": ["circle-open", "star"], "size": [13, 17], "color": GREEN, "line": {"width": 2}},
        hovertemplate="(ii) = %{x:.3g}, (i) = %{y:.3g}<extra></extra>", **right,
    )  # fmt: skip
    powers = {"type": "log", "range": [low, high]}
    figure.update_xaxes(
        title_text="(ii) κ(H<sub>P</sub>)/κ(K<sub>P</sub>), ≤ 1 wanted", dtick=1, **powers, row=1, col=2
    )
    figure.update_yaxes(
        title_text="(i) κ(H<sub>H</sub>)/κ(K<sub>H</sub>), > 1 wanted", dtick=1, **powers, row=1, col=2
    )


def _log_axis(values: Any) -> dict[str, Any]:
    """Return a logarithmic axis that holds all positive values, with a readable number of ticks."""
    positive = np.asarray(values)[np.asarray(values) > 0]
    low, high = max(math.log10(positive.min()), -16.0) - 0.2, math.log10(positive.max()) + 0.2
    ticks: Any = "D2" if high - low < 2 else 1 if high - low < 7 else 4
    return {
        "type": "log", "range": [low, high], "dtick": ticks,
    }  # fmt: skip


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
    """Many steps of one regularizer: the spectrum, κ and R along the path."""

    controls = (
        Choice("regularizer", "regularizer", "R_well (Eq. 3) or R_ill (Eq. 12).", labels=LABELS),
        Choice(
            "sizes", "step sizes", "How η is chosen at every step.",
            labels={"bound": "share of the bound, each t", "constant": "constant η"},
        ),
        LogSlider("share", "share of the bound", "η over the largest step with a promise.", step=0.05),
        LogSlider("kappa", "κ at the start", "Condition number at the start.", step=0.05),
        Slider("dimension", "dimension k = D", "Number k = D of singular values."),
        LogSlider("bend", "crowding of σ", BEND_HELP, step=0.05),
    )  # fmt: skip
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
    """Algorithm 1 with both regularizers on two small tasks, where the guarantees stop adding up."""

    controls = (
        Slider(
            "angle", "angle of the tasks",
            "0: both tasks order the same axes alike; 90: in opposite order.", "degrees", continuous=False,
        ),
        Slider("dimension", "dimension D", "Number D of features.", continuous=False),
        LogSlider(
            "share_well", "η_P over its bound", "η_P over the corrected bound at θ = I.", step=0.05,
            continuous=False,
        ),
        LogSlider(
            "share_ill", "η_H over its bound", "η_H over its largest safe step at θ = I.", step=0.05,
            continuous=False,
        ),
        LogSlider("kappa_pretrain", "κ(K_P)", "κ(K_P).", step=0.05, continuous=False),
        LogSlider("kappa_harmful", "κ(K_H)", "κ(K_H).", step=0.05, continuous=False),
    )  # fmt: skip
    compute = staticmethod(joint_steps)
    figure = staticmethod(joint_steps_figure)
    data = staticmethod(joint_table)
    reading = staticmethod(joint_reading)
