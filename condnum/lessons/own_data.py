r"""Notebook 5: what condition numbers say about two feature matrices of the reader's own.

All of it follows from the two covariances :math:`K_P = X_P^\top X_P` and :math:`K_H = X_H^\top X_H`
(Eq. 9); no labels are read. What needs labels, the cost of a probe, is predicted for random ones.
"""

from __future__ import annotations

import html
import tempfile
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit import measures
from condnum.audit.moments import NEAR
from condnum.audit.tables import columns_html
from condnum.data.digits import digit_pair, load_diabetes_tasks, load_small_digits
from condnum.data.feature_pair import FeaturePair, look_at, match_streams, open_pair
from condnum.data.feature_stream import OPENERS, FeatureStream, array_stream
from condnum.data.task_pair import FloatArray
from condnum.errors import DataFormatError, InvalidInputError, RankError, require
from condnum.figures.style import (
    BLUE,
    NEUTRAL,
    ORANGE,
    PURPLE,
    add_line,
    log_axis,
    num,
    overlap_map,
    panels,
    teaching_layout,
)
from condnum.lessons.explorer import (
    CONTROL_WIDTH,
    Between,
    Check,
    Choice,
    Control,
    Explorer,
    LogSlider,
    checked,
)
from condnum.probing import ProbeCurve, linear_probe
from condnum.probing.line_search import log_spaced_steps
from condnum.theory.alignment import alignment
from condnum.theory.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.spectra import (
    ConditionNumber,
    Convention,
    CovarianceRange,
    condition_from_spectrum,
    covariance,
    default_rtol,
    singular_values,
)

Example = Literal["diabetes", "digits"]
#: Steps that the predicted probe may take.
ProbeSteps = Literal[1000, 10000]
#: Widest features that lesson 5 takes: each eigendecomposition takes seconds from there on.
MAX_DIMENSION = 2048


@dataclass(frozen=True, eq=False)
class OwnPair:
    """A pair in memory."""

    title: str
    pair: FeaturePair
    X_P: FloatArray  # (N_P, D), complete rows, standardised if that was asked for
    X_H: FloatArray  # (N_H, D)


@checked
def own_pair(
    pretrain: str, harmful: str, example: Example, *, key: str = "", drop: str = "", standardise: bool = False
) -> OwnPair:
    """Return the pair of two files, or the example; each version of a file is read once.

    Examples:
        >>> own_pair("", "", "digits").X_P.shape
        (179, 64)
    """
    if bool(pretrain) != bool(harmful):
        missing, given, field = ("X_P", "X_H", "pretrain") if not pretrain else ("X_H", "X_P", "harmful")
        error = InvalidInputError(
            f"{given} is there, {missing} is still missing: give both, or neither for the example."
        )
        error.field = field
        raise error
    stamps = tuple(_stamp(path) for path in (pretrain, harmful))
    return _looked_at(pretrain, harmful, stamps, example, key, drop, standardise)


def _stamp(path: str) -> tuple[int, int]:
    """Return what changes when a file is written again; a missing one is the reader's to report."""
    try:
        status = Path(path).expanduser().stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _looked_at(
    pretrain: str, harmful: str, _: object, example: Example, key: str, drop: str, standardise: bool
) -> OwnPair:
    """Read two files, once for each version of them."""
    if pretrain:
        title = f"{Path(pretrain).name} and {Path(harmful).name}"
        P, H, notes = open_pair(pretrain, harmful, key=key, drop=drop, max_dimension=MAX_DIMENSION)
    else:
        title, *streams = _example(example)
        P, H, notes = match_streams(streams[0], streams[1], drop=drop)
    pair = look_at(P, H, notes, standardise=standardise)
    title = f"{title}, standardised" if standardise else title
    return OwnPair(title, pair, pair.pretrain.array(), pair.harmful.array())


def _example(name: Example) -> tuple[str, FeatureStream, FeatureStream]:
    """Return an embedded pair as a reader's files would be."""
    if name == "diabetes":
        task = load_diabetes_tasks()
        title = "Example: diabetes patients in two groups"
    else:
        task = digit_pair(load_small_digits(), 4, 7)
        title = "Example: the digits 4 and 7 in 8×8 pixels"
    P, H = (array_stream(X, name=task.name, columns=task.feature_names) for X in (task.X_P, task.X_H))
    return title, P, H


@dataclass(frozen=True, eq=False)
class TaskSpectrum:
    """One task's covariance: its spectrum, and κ in both conventions."""

    rows: int  # N
    sigma: NDArray[np.float64]  # (D,) eigenvalues of K, descending, below the tolerance too
    compact: ConditionNumber  # σ₁/σ_k, with the rank k
    ridge: ConditionNumber  # (σ₁ + ε)/(σ_D + ε)
    tolerance: float  # rtol·σ₁: eigenvalues above it count
    near: int  # eigenvalues within a factor `NEAR` of the tolerance, which decide the rank


@dataclass(frozen=True, eq=False)
class OwnData:
    """Everything notebook 5 says about a pair of feature matrices."""

    title: str
    columns: pd.DataFrame  # of `FeaturePair`: scale of each of the D columns, and what it looks like
    pretrain: TaskSpectrum
    harmful: TaskSpectrum
    overlaps: NDArray[np.float64]  # (m, m) |q_Piᵀq_Hj|², summed over blocks if D > MAP_SIZE
    misalignment: float  # of Eq. 10 at θ*: 0 if K_P and K_H share their eigenvectors
    ceiling: float  # RIR_max, compact; may be infinite
    harmful_only: int  # directions that X_H excites and X_P does not
    ridge_limit: float  # upper bound on RIR in the ridge convention, in the unit gauge
    ridge: float  # ε
    goal: float  # the norm ratio to reach
    probes: ProbeCurve  # (4, T) D_P as it is, D_P at θ*, D_H as it is, D_H at θ*
    warnings: tuple[str, ...]

    @property
    def harmful_ratio(self) -> float:
        """(i) of Definition 3.1 at θ*: κ(H_H(θ*)) / κ(K_H), compact."""
        return float(self.probes.condition[3] / self.probes.condition[2])

    @property
    def pretrain_ratio(self) -> float:
        """(ii) of Definition 3.1 at θ*: κ(H_P(θ*)) / κ(K_P), compact."""
        return float(self.probes.condition[1] / self.probes.condition[0])

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """Recorded step at which each probe has reached the goal; −1 where it has not."""
        reached = self.probes.norm_ratio <= self.goal
        first = np.where(reached.any(axis=1), self.probes.steps[reached.argmax(axis=1)], -1)
        return int(first[0]), int(first[1]), int(first[2]), int(first[3])


@checked
def own_data(
    *,
    pretrain: str = "",
    harmful: str = "",
    example: Example = "diabetes",
    key: str = "",
    drop: str = "",
    standardise: bool = False,
    ridge: Annotated[float, Between(1e-9, 1e3)] = 1e-6,
    tolerance: Annotated[float, Between(1e-2, 1e10)] = 1.0,
    goal: Annotated[float, Between(1e-6, 0.5)] = 1e-3,
    steps: ProbeSteps = 1000,
    seed: int = 0,
) -> OwnData:
    r"""Analyse two feature matrices: κ's, ranks, alignment, ceiling, predicted probe cost, warnings.

    The probe's cost is that of gradient descent with exact line search from zero to the norm ratio
    `goal` (Eq. 16), for labels :math:`y = X w^*` with Gaussian :math:`w^*`: of features as they are, and
    of features after :math:`\theta^* = K_P^{-1/2}`, which attains the ceiling.

    Args:
        pretrain: Path of X_P, see `open_feature_stream`; empty together with `harmful`: the example.
        harmful: Path of X_H.
        example: `diabetes` (D = 8, two groups of patients) or `digits` (D = 64, the digits 4 and 7).
        key: Which array of an `.npz`; two names with a comma between are those of either file.
        drop: Columns to leave out, separated by commas.
        standardise: Each task's columns to mean 0 and deviation 1, as the paper does with the house prices.
        ridge: ε of the ridge convention, in the units of K.
        tolerance: Multiplies the rank tolerance `D·eps` of the stored type.
        goal: Norm ratio, from 1e-6 to 0.5.
        steps: The longest probe that is simulated.
        seed: Of the random labels.

    Returns:
        Spectra, overlaps, ceiling, probe curves and warnings.

    Raises:
        InvalidInputError: A number out of its range.
        CondnumError: As `own_pair`.
        RankError: A matrix of zeros, or tasks without a common direction.

    Examples:
        >>> result = own_data(example="diabetes")
        >>> result.pretrain.rows, result.harmful.rows, len(result.columns)
        (235, 207, 8)
        >>> result.costs[1]  # at θ*, κ(H_P) = 1: one step
        1
    """
    own = own_pair(pretrain, harmful, example, key=key, drop=drop, standardise=standardise)
    core = _core(own, tolerance, steps, seed)
    P = _task(len(own.X_P), core.geometry.sigma_P, core.rtol, ridge)
    H = _task(len(own.X_H), core.geometry.sigma_H, core.rtol, ridge)
    limit = ridge_convention_ceiling(core.range_P, core.range_H, ridge=ridge, rtol=core.rtol)
    notes = (*own.pair.notes, *_warnings(P, H, core.harmful_only))
    return OwnData(
        own.title, own.pair.columns, P, H, core.geometry.overlaps, core.misalignment, core.ceiling,
        core.harmful_only,
        limit, ridge, goal, core.probes, notes,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Geometry:
    """What the rank tolerance does not change either."""

    K_P: NDArray[np.float64]  # (D, D)
    K_H: NDArray[np.float64]  # (D, D)
    sigma_P: torch.Tensor  # (D,) descending
    sigma_H: torch.Tensor  # (D,)
    overlaps: NDArray[np.float64]


@lru_cache(maxsize=4)
def _geometry(own: OwnPair) -> _Geometry:
    """Form both covariances, their spectra and the overlaps of their eigenvectors."""
    K_P, K_H = np.asarray(covariance(own.X_P)), np.asarray(covariance(own.X_H))
    for name, K in (("K_P", K_P), ("K_H", K_H)):
        if not K.any():
            raise RankError(
                f"{name} has rank 0: every entry of X is zero (standardising does that to constants)."
            )
    return _Geometry(K_P, K_H, _spectrum(own.X_P), _spectrum(own.X_H), measures.overlap_map(K_P, K_H))


@dataclass(frozen=True, eq=False)
class _Core:
    """What neither ε nor the goal changes."""

    rtol: float
    geometry: _Geometry
    range_P: CovarianceRange
    range_H: CovarianceRange
    misalignment: float
    ceiling: float
    harmful_only: int
    probes: ProbeCurve


@lru_cache(maxsize=8)
def _core(own: OwnPair, tolerance: float, steps: int, seed: int) -> _Core:
    """Decompose a pair; remembered, so that sliders of ε and of the goal need not wait for it."""
    D = len(own.pair.columns)
    eps = max(own.pair.pretrain.stored_eps, own.pair.harmful.stored_eps)
    rtol = default_rtol(D, eps) * tolerance
    if rtol >= 1:
        raise InvalidInputError(f"the rank tolerance is {num(rtol)} times σ₁, above everything; lower it.")
    geometry = _geometry(own)
    K_P, K_H = geometry.K_P, geometry.K_H
    range_P = CovarianceRange.of(torch.from_numpy(K_P), rtol=rtol, name="K_P")
    range_H = CovarianceRange.of(torch.from_numpy(K_H), rtol=rtol, name="K_H")
    ceiling = rir_ceiling(range_P, range_H, rtol=rtol)
    theta = np.asarray(optimal_immunizer(K_P, K_H, rtol=rtol))
    solution = np.random.default_rng(seed).normal(size=D)
    probes = linear_probe(
        np.stack([np.eye(D), theta, np.eye(D), theta]),
        np.stack([K_P, K_P, K_H, K_H]),
        np.stack([K @ solution for K in (K_P, K_P, K_H, K_H)])[..., None],
        steps=steps, record=log_spaced_steps(steps, 200), rtol=rtol,
    )  # fmt: skip
    return _Core(
        rtol, geometry, range_P, range_H,
        misalignment=alignment(theta, K_H).misalignment,
        ceiling=ceiling.value,
        harmful_only=ceiling.harmful_only_dimension,
        probes=probes,
    )  # fmt: skip


def _spectrum(X: NDArray[np.float64]) -> torch.Tensor:
    """Return all D eigenvalues of `XᵀX`, descending; those beyond N are zero."""
    values = singular_values(torch.tensor(X), kind="features")
    return torch.nn.functional.pad(values, (0, X.shape[1] - len(values)))


def _task(rows: int, sigma: torch.Tensor, rtol: float, ridge: float) -> TaskSpectrum:
    """Return κ in both conventions, and how firm the rank is."""
    D = len(sigma)

    def kappa(convention: Convention) -> ConditionNumber:
        value, largest, smallest, rank = condition_from_spectrum(
            sigma, convention=convention, rtol=rtol, ridge=ridge, dimension=D
        )
        return ConditionNumber(float(value), float(largest), float(smallest), int(rank), D, convention)

    limit = rtol * float(sigma[0])
    near = int(((sigma > limit / NEAR) & (sigma < limit * NEAR)).sum())
    return TaskSpectrum(rows, sigma.numpy(), kappa("compact"), kappa("ridge"), limit, near)


def _warnings(P: TaskSpectrum, H: TaskSpectrum, harmful_only: int) -> list[str]:
    """Say what makes the numbers fragile, in sentences."""
    notes = []
    for name, task in (("K_P", P), ("K_H", H)):
        k, D = int(task.compact.rank), task.compact.dimension
        if k < D:
            notes.append(f"{name} has rank {k} of {D}: compact κ leaves {D - k} null direction(s) out.")
        if task.near:
            notes.append(
                f"{name}: {task.near} eigenvalue(s) lie within a factor {num(NEAR, 6)} of the "
                "rank tolerance; the "
                "rank, and with it compact κ, is decided by round-off. Move the tolerance and see."
            )
    if harmful_only:
        notes.append(
            f"X_H excites {harmful_only} direction(s) that X_P does not: θ can scale them freely, which "
            "makes the compact ceiling infinite. That is a statement on null spaces, not a promise."
        )
    return notes


#: Norm ratios below this are not drawn, so that a task solved at once does not flatten the others.
RATIO_FLOOR = 1e-7
#: The spectra are drawn down to this share of the largest eigenvalue; null directions lie on the floor.
SPECTRUM_FLOOR = 1e-18

_PANELS = ("spectra of K<sub>P</sub> and K<sub>H</sub>", "overlaps |q<sub>P,i</sub>ᵀq<sub>H,j</sub>|²",
           "predicted probe")  # fmt: skip


def own_data_figure(result: OwnData) -> Any:
    """Draw what is known about a pair of feature matrices."""
    figure = panels(cols=3, column_widths=[0.35, 0.27, 0.38], horizontal_spacing=0.09, subplot_titles=_PANELS)
    low, high = _add_spectra(figure, result)
    _add_overlaps(figure, result)
    _add_probes(figure, result)
    P, H = result.pretrain.compact, result.harmful.compact
    subtitle = (
        f"compact κ(K<sub>P</sub>) = {num(P.value)} at rank {P.rank}, κ(K<sub>H</sub>) = {num(H.value)} at "
        f"rank {H.rank}, of D = {P.dimension}; random labels"
    )
    teaching_layout(figure, result.title, subtitle, height=500)
    figure.update_xaxes(title_text="index i", range=[0, P.dimension + 1], col=1)
    decades = max(1, int(np.ceil(np.log10(high / low) / 6)))
    figure.update_yaxes(
        type="log", range=[np.log10(low), np.log10(high)], dtick=decades,
        title_text="eigenvalue σ<sub>i</sub>",
        col=1,
    )  # fmt: skip
    figure.update_xaxes(title_text="j of K<sub>H</sub>", constrain="domain", col=2)
    figure.update_yaxes(
        title_text="i of K<sub>P</sub>",
        autorange="reversed",
        constrain="domain",
        scaleanchor="x2",
        constraintoward="bottom",
        domain=[0, 0.84],
        col=2,
    )
    figure.update_xaxes(**log_axis("step t (left edge: t = 0)", result.probes.steps), col=3)
    figure.update_yaxes(
        type="log", range=[np.log10(RATIO_FLOOR), 0.3], dtick=1, title_text="norm ratio (Eq. 16)",
        col=3,
    )  # fmt: skip
    return figure


def _add_spectra(figure: Any, result: OwnData) -> tuple[float, float]:
    """Draw both spectra with their tolerances and ε; return the range of the axis."""
    top = max(float(task.sigma[0]) for task in (result.pretrain, result.harmful))
    lowest = min(task.tolerance for task in (result.pretrain, result.harmful))
    low, high = max(lowest / 30, top * SPECTRUM_FLOOR), top * 5
    D = result.pretrain.compact.dimension
    for name, task, color, symbol in (
        ("K<sub>P</sub>", result.pretrain, BLUE, "circle"),
        ("K<sub>H</sub>", result.harmful, ORANGE, "diamond-open"),
    ):
        figure.add_scatter(
            x=np.arange(1, D + 1), y=np.maximum(task.sigma, low), mode="markers", name=name, showlegend=False,
            marker={"color": color, "size": 8, "symbol": symbol, "line": {"color": color, "width": 2}},
            customdata=task.sigma, hovertemplate="σ<sub>%{x}</sub> = %{customdata:.3e}", row=1, col=1,
        )  # fmt: skip
    for name, level, color, dash in (
        ("rank tolerance", max(t.tolerance for t in (result.pretrain, result.harmful)), PURPLE, "dash"),
        ("ridge ε", result.ridge, NEUTRAL, "dot"),
    ):
        add_line(
            figure, name, [0.5, D + 0.5], [level, level], color, dash, width=2, hovertemplate="%{y:.3e}",
            row=1, col=1,
        )  # fmt: skip
    return low, high


def _add_overlaps(figure: Any, result: OwnData) -> None:
    """Draw the overlaps of the eigenvectors, in blocks where there are many."""
    figure.add_heatmap(
        **overlap_map(
            result.overlaps, result.pretrain.compact.dimension,
            x=0.475, len=0.22, y=1.0, yanchor="top", ypad=0,
        ), row=1, col=2,
    )  # fmt: skip


def _add_probes(figure: Any, result: OwnData) -> None:
    """Draw the four probes and the goal."""
    steps = result.probes.steps
    ratios = np.maximum(result.probes.norm_ratio, RATIO_FLOOR * 0.1)
    lines = (
        ("D<sub>P</sub> as is", BLUE, "solid"),
        ("D<sub>P</sub> after θ*", BLUE, "dash"),
        ("D<sub>H</sub> as is", ORANGE, "solid"),
        ("D<sub>H</sub> after θ*", ORANGE, "dash"),
    )
    for (name, color, dash), ratio in zip(lines, ratios, strict=True):
        add_line(
            figure, name, np.maximum(steps, 0.7), ratio, color, dash, hovertemplate="t = %{x:,.0f}: %{y:.2e}",
            row=1, col=3,
        )  # fmt: skip
    add_line(
        figure, "goal", [0.7, steps[-1]], [result.goal, result.goal], NEUTRAL, "longdash", width=2,
        hovertemplate="goal %{y:.1e}", row=1, col=3,
    )  # fmt: skip


ipywidgets = require("ipywidgets", "notebooks")

#: Largest upload. Jupyter's connection breaks off above 10 MiB; larger files are read from a path.
UPLOAD_BYTES = 8 << 20


@dataclass(frozen=True)
class PathField(Control):
    """A line of text for a path, taken over on Enter."""

    hint: str = "path, then Enter; empty: the example"

    def widget(self, trait: Any, **common: Any) -> Any:
        """Return the field, which waits for Enter: half a path is no file."""
        return ipywidgets.Text(continuous_update=False, placeholder=self.hint, **common)


def own_data_table(result: OwnData) -> pd.DataFrame:
    """Return spectra and probe curves in long form."""
    parts = [
        pd.DataFrame({"quantity": name, "x": range(1, len(task.sigma) + 1), "value": task.sigma})
        for name, task in (("sigma_P", result.pretrain), ("sigma_H", result.harmful))
    ]
    names = ("ratio_P", "ratio_P_immunized", "ratio_H", "ratio_H_immunized")
    for name, ratio in zip(names, result.probes.norm_ratio, strict=True):
        parts.append(pd.DataFrame({"quantity": name, "x": result.probes.steps, "value": ratio}))
    return pd.concat(parts, ignore_index=True)


def own_data_reading(result: OwnData) -> str:
    """Put the numbers into a table and the warnings below it."""
    heads = ("task", "N × D", "rank", "κ, compact", "κ, ridge ε", "steps, as is", "steps, after θ*")
    costs, last = result.costs, int(result.probes.steps[-1])
    rows = []
    for name, task, (raw, immunized) in (
        ("pre-training P", result.pretrain, costs[:2]),
        ("harmful H", result.harmful, costs[2:]),
    ):
        cells = (
            name, f"{task.rows:,d} × {len(result.columns)}", f"{task.compact.rank}",
            num(task.compact.value, 4), num(task.ridge.value, 4), _steps(raw, last),
            _steps(immunized, last),
        )  # fmt: skip
        rows.append("".join(f'<td style="padding:1px 14px 1px 0">{cell}</td>' for cell in cells))
    head = "".join(f'<th style="text-align:left;padding:1px 14px 1px 0">{text}</th>' for text in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<table style="line-height:1.5"><tr>{head}</tr>{body}</table>'
    numbers = f'<div style="overflow-x:auto;max-width:85vw">{table}</div>'
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in result.warnings)
    return (
        f"{numbers}<p style='margin:6px 0'>{_verdict(result)}</p><ul style='margin:0'>{notes}</ul>"
        f"{columns_html(result.columns)}"
    )


def _verdict(result: OwnData) -> str:
    """Say what the ceiling and θ* promise, and what not."""
    rises = "rises" if result.harmful_ratio > 1 else "falls as well, so D<sub>H</sub> is no harder to probe"
    return (
        f"<b>RIR ≤ {num(result.ceiling, 4)}</b> (compact), ≤ {num(result.ridge_limit)} with ε = "
        f"{num(result.ridge)}. "
        f"θ* takes κ(H<sub>P</sub>) to {num(result.probes.condition[1])} (ii = {num(result.pretrain_ratio)}) "
        f"and κ(H<sub>H</sub>) to {num(result.probes.condition[3], 4)} (i = {num(result.harmful_ratio)}): "
        f"it {rises}. "
        f"Misalignment of Eq. 10 at θ*: {result.misalignment:.2f}."
    )


def _steps(count: int, last: int) -> str:
    """Word a number of steps."""
    return f"more than {last:,d}" if count < 0 else f"{count:,d}"


class OwnDataExplorer(Explorer):
    """Condition numbers, ranks, alignment, ceiling and probe cost of two feature matrices."""

    controls = (
        PathField(
            "pretrain", "X_P from path", "Features of the pre-training task: npy, npz, csv or parquet."
        ),
        PathField("harmful", "X_H from path", "Features of the harmful task, the same columns."),
        PathField(
            "drop", "leave out", "Names of columns to leave out, with commas between.", "columns",
            hint="label, id; then Enter",
        ),
        PathField(
            "key", "array", "Which array of an npz; two names with a comma: of X_P and of X_H.", "of npz",
            hint="name, or two with a comma; then Enter",
        ),
        Choice(
            "example", "example", "Shown while both paths are empty.",
            labels={"digits": "digits 4 and 7", "diabetes": "diabetes, 2 groups"},
        ),
        Check("standardise", "standardise", "Each task's columns to mean 0 and deviation 1.", "each task"),
        LogSlider("ridge", "ridge ε", "ε of the ridge convention, in the units of K.", "units of K"),
        LogSlider(
            "tolerance", "rank tolerance",
            "Eigenvalues above this multiple of D·eps·σ₁ count for the rank.", "× D·eps",
            step=0.25, continuous=False,
        ),
        LogSlider("goal", "goal", "Norm ratio (Eq. 16) that the probe must reach.", "norm ratio"),
        Choice(
            "steps", "probe at most", "The longest probe; more takes longer.", "steps",
            labels={n: f"{n:,d}" for n in get_args(ProbeSteps)},
        ),
    )  # fmt: skip
    compute = staticmethod(own_data)
    figure = staticmethod(own_data_figure)
    data = staticmethod(own_data_table)
    reading = staticmethod(own_data_reading)

    def _panel(self) -> Any:
        """Put an upload button beside either path, and a red line below each field of text."""
        panel = super()._panel()
        self._folder = tempfile.TemporaryDirectory(prefix="condnum-upload-")  # goes with the explorer
        self.uploads = {}  # the upload button of each trait
        self.alerts = {trait: ipywidgets.HTML() for trait in ("pretrain", "harmful", "drop", "key")}
        for trait, label in (("pretrain", "Upload X_P"), ("harmful", "Upload X_H")):
            button = ipywidgets.FileUpload(
                accept=",".join(OPENERS), multiple=False, description=label, layout={"width": "auto"},
                tooltip=f"{', '.join(OPENERS)} up to {UPLOAD_BYTES >> 20} MiB; larger files by their path",
            )  # fmt: skip
            button.observe(partial(self._on_upload, trait), "value")
            self.uploads[trait] = button
        fields = [
            ipywidgets.VBox(
                [box, *([self.uploads[trait]] if trait in self.uploads else []), self.alerts[trait]],
                layout={"width": f"{CONTROL_WIDTH}px", "max_width": "100%"},
            )
            for trait, box in self.inputs.items()
            if trait in self.alerts
        ]
        panel.children = [*fields, *panel.children[len(fields) :]]
        return panel

    def receive(self, trait: str, name: str, content: bytes) -> None:
        """Take over a file: keep it in a folder of this explorer's and look at it."""
        if len(content) > UPLOAD_BYTES:
            error = DataFormatError(
                f"{name} has {len(content) / 2**20:.1f} MiB; uploads go through Jupyter's connection and end "
                f"at {UPLOAD_BYTES >> 20} MiB: put the file where the kernel runs and give its path."
            )
            error.field = trait
            raise error
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))  # the same name twice is two files
        path = folder / (Path(name.replace("\\", "/")).name or "upload")
        path.write_bytes(content)
        setattr(self, trait, str(path))

    def _on_upload(self, trait: str, change: Any) -> None:
        """Receive what the button holds, with errors in sight."""
        taken = False
        with self._visible_errors("the upload is not shown"):
            for file in change["new"]:
                self.receive(trait, file["name"], bytes(file["content"]))
            taken = True
        if not taken:
            self._blank()
