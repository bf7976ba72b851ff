"""Notebook 5: what the covariances of two feature matrices say; probes are predicted for random labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch

from condnum.auditing.rows import FeaturePair, TaskFacts, look_at, open_pair, task_facts
from condnum.data import digit_pair, load_diabetes_tasks, load_small_digits
from condnum.data.files import FeaturesLike, as_stream
from condnum.errors import InvalidInputError, RankError
from condnum.lessons.alignment_training import in_blocks
from condnum.lessons.condition_number import Floats
from condnum.lessons.frame.explorer import (
    Check,
    Choice,
    Explorer,
    ExplorerResult,
    Slider,
    with_controls,
)
from condnum.lessons.frame.own import Own
from condnum.lessons.frame.sheet import Sheet
from condnum.numbers import num
from condnum.page.style import BLUE, NEUTRAL, ORANGE, PURPLE, log_axis, overlap_heatmap
from condnum.page.tables import as_html, formula_html
from condnum.probing.filters import Modes
from condnum.probing.probe import ProbeCurve, log_spaced, probe_curves
from condnum.theory.alignment import alignment
from condnum.theory.kappa import RATIO_TOLERANCE, Convention, kappa
from condnum.theory.limits import limit_of, max_rir, ridge_convention_limit, rir_limit
from condnum.theory.task import Task, rank_tolerance

Example = Literal["diabetes", "digits"]
#: Widest features that lesson 5 takes: each eigendecomposition takes seconds from there on.
_MAX_DIMENSION = 2048
#: Steps that probes are followed.
_PROBE_STEPS = 1000
#: Norm ratios below this are not drawn, so that a task solved at once does not flatten the others.
_RATIO_FLOOR = 1e-7
#: Rows and columns of the map of overlaps; more directions are averaged in blocks.
OVERLAP_BLOCKS = 64
#: The spectra are drawn down to this fraction of the largest eigenvalue; null directions lie on the floor.
_SPECTRUM_FLOOR = 1e-18


@dataclass(frozen=True, eq=False)
class OwnPair:
    """A pair in memory, and what no slider changes."""

    title: str
    pair: FeaturePair
    K_P: Floats  # (D, D)
    K_H: Floats  # (D, D)
    overlaps: Floats  # (m, m) |q_Piᵀq_Hj|², summed over blocks if D is large


@dataclass(frozen=True, eq=False)
class OwnTables:
    """A reader's two tables of features: arrays, or paths of files."""

    benign: FeaturesLike
    harmful: FeaturesLike
    drop: str = ""  # names of columns to leave out, comma-separated

    @property
    def title(self) -> str:
        """The names of the files, or of the arrays."""
        given = {"X_P": self.benign, "X_H": self.harmful}
        return " and ".join(Path(X).name if isinstance(X, str) else name for name, X in given.items())


@lru_cache(maxsize=4)
def _looked_at(tables: OwnTables | None, example: Example, standardize: bool) -> OwnPair:
    """Read two tables, once."""
    if tables:
        title = tables.title
        if "" in [X for X in (tables.benign, tables.harmful) if isinstance(X, str)]:
            raise InvalidInputError("the path of X_P or X_H is empty; give both, or neither for the example.")
        found = open_pair(tables.benign, tables.harmful, drop=tables.drop)
        if found[0].dimension > _MAX_DIMENSION:
            wide = f"{title}: {found[0].dimension:,d} columns, above the limit of {_MAX_DIMENSION:,d}"
            raise InvalidInputError(f"{wide}; drop some, or run condnum audit.")
    else:
        title, task = (
            ("Example: diabetes patients in two groups", load_diabetes_tasks())
            if example == "diabetes"
            else ("Example: the digits 4 and 7 in 8×8 pixels", digit_pair(load_small_digits(), 4, 7))
        )
        frames = (pd.DataFrame(X, columns=[*task.feature_names]) for X in (task.X_P, task.X_H))
        P, H = (as_stream(table, name=task.name) for table in frames)
        found = open_pair(P, H)
    pair = look_at(*found, standardize=standardize)
    tasks = pair.benign.task, pair.harmful.task
    for name, own in zip(("K_P", "K_H"), tasks, strict=True):
        if not own.products[0].any():
            raise RankError(f"{name} has rank 0: all entries of X are zero (standardized constants are).")
    K_P, K_H = (own.covariance.numpy() for own in tasks)
    return OwnPair(title + ", standardized" * standardize, pair, K_P, K_H, overlap_blocks(K_P, K_H))


def overlap_blocks(K_P: Floats, K_H: Floats) -> Floats:
    r"""Return the overlaps :math:`|q_{P,i}^\top q_{H,j}|^2` of both tasks' eigenvectors (Proposition 3.2).

    Of more than `OVERLAP_BLOCKS` directions, rows are averaged and columns summed in as many blocks.
    """
    # Q_P as the U of an invertible θ: adding to the diagonal keeps eigenvectors and their order.
    theta = K_P + np.trace(K_P) / len(K_P) * np.eye(len(K_P))
    return in_blocks(np.asarray(alignment(theta, K_H).overlaps), OVERLAP_BLOCKS)


@dataclass(frozen=True, eq=False)
class TaskSpectrum(TaskFacts):
    """What the audit says of one task's features, and κ in both conventions."""

    tolerance: float  # rtol·σ₁: eigenvalues above it count
    compact: float  # σ₁/σ_k, with the rank k
    ridge: float  # (σ₁ + ε)/(σ_D + ε)

    @classmethod
    def of(cls, facts: TaskFacts, task: Task, ridge: float) -> TaskSpectrum:
        """Read both κ's off a task."""
        compact, ridged = (kappa(task.raw, of, ridge=ridge).value for of in get_args(Convention))
        least = (rank_tolerance(task.dimension, task.eps) * float(task.sigma[0])) ** 2
        return cls(**vars(facts) | {"rank": task.rank}, tolerance=least, compact=compact, ridge=ridged)


@dataclass(frozen=True, eq=False)
class OwnData(ExplorerResult):
    """Everything notebook 5 says about a pair of feature matrices."""

    own: OwnPair
    benign: TaskSpectrum
    harmful: TaskSpectrum
    misalignment: float  # of Eq. 10 at θ*: 0 if K_P and K_H share their eigenvectors
    limit: float  # RIR_max, compact; may be infinite
    harmful_only: int  # directions that X_H excites and X_P does not
    probes: ProbeCurve  # (4, T) D_P as it is, D_P at θ*, D_H as it is, D_H at θ*
    ridge_limit: float  # upper bound on RIR in the ridge convention, at unit scale
    ridge: float  # ε
    goal: float  # the norm ratio to reach

    @property
    def harmful_ratio(self) -> float:
        """(i) of Definition 3.1 at θ*: κ(H_H(θ*)) / κ(K_H), compact."""
        return float(self.probes.condition[3] / self.probes.condition[2])

    @property
    def benign_ratio(self) -> float:
        """(ii) of Definition 3.1 at θ*: κ(H_P(θ*)) / κ(K_P), compact."""
        return float(self.probes.condition[1] / self.probes.condition[0])

    @property
    def costs(self) -> tuple[int, ...]:
        """Recorded step at which each of the four probes has reached the goal; −1 where it has not."""
        reached = self.probes.norm_ratio <= self.goal
        first = np.where(reached.any(axis=1), self.probes.steps[reached.argmax(axis=1)], -1)
        return tuple(first.tolist())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers fragile, in sentences."""
        found = [*self.own.pair.notes]
        if self.harmful_only:
            found.append(
                f"X_H excites {self.harmful_only} direction(s) that X_P does not: θ can scale them freely, "
                "which makes the compact limit infinite. This is a property of the null spaces and does "
                "not guarantee protection."
            )
        return tuple(found)

    def figure(self) -> Any:
        """Draw both spectra, the overlaps of the eigenvectors and the four probes."""
        titles = ("spectra of K<sub>P</sub> and K<sub>H</sub>", "overlaps |q<sub>P,i</sub>ᵀq<sub>H,j</sub>|²")
        sheet = Sheet(*titles, "predicted probe", gap=0.125, column_widths=[0.35, 0.27, 0.38])
        left, middle, right = sheet.panels
        both, D = (self.benign, self.harmful), self.benign.dimension
        top, limits = max(task.spectrum[0] for task in both), [task.tolerance for task in both]
        low = max(min(limits) / 30, top * _SPECTRUM_FLOOR)
        hover = "σ<sub>%{x}</sub> = %{customdata:.3e}"
        for name, task, color, symbol in (
            ("K<sub>P</sub>", self.benign, BLUE, "circle"),
            ("K<sub>H</sub>", self.harmful, ORANGE, "diamond-open"),
        ):
            index, shown = np.arange(1, D + 1), np.maximum(task.spectrum, low)
            data = {"customdata": np.asarray(task.spectrum), "hover": hover, "legend": False}
            edge = {"line": {"color": color, "width": 2}}
            left.marks(name, index, shown, symbol, 8, color, marker=edge, **data)
        for name, level, color, dash in (
            ("rank tolerance", max(limits), PURPLE, "dash"),
            ("ridge ε", self.ridge, NEUTRAL, "dot"),
        ):
            left.line(name, [0.5, D + 0.5], [level] * 2, color, dash, width=2, hover="%{y:.3e}")
        least, most = np.log10([low, top * 5])
        left.x("index i", 0, D + 1)
        ticks = max(1, int(np.ceil((most - least) / 6)))
        left.y("eigenvalue σ<sub>i</sub>", least, most, log=True, dtick=ticks)
        bar = {"x": 0.475, "len": 0.22, "y": 1.0, "yanchor": "top", "ypad": 0}
        heat = overlap_heatmap(self.own.overlaps, D, **bar)
        heat |= {"type": "heatmap", "hover": heat.pop("hovertemplate"), "showlegend": None}
        middle.trace("overlaps", heat.pop("x"), heat.pop("y"), **heat)
        square = {"constrain": "domain", "scaleanchor": "x2", "constraintoward": "bottom"}
        middle.x("j of K<sub>H</sub>", constrain="domain")
        middle.y("i of K<sub>P</sub>", autorange="reversed", domain=[0, 0.84], **square)
        ratios, steps = np.maximum(self.probes.norm_ratio, _RATIO_FLOOR * 0.1), self.probes.steps
        looks = [(BLUE, "solid"), (BLUE, "dash"), (ORANGE, "solid"), (ORANGE, "dash")]
        names = [f"D<sub>{task}</sub> {when}" for task in "PH" for when in ("as is", "after θ*")]
        for name, ratio, look in zip(names, ratios, looks, strict=True):
            right.line(name, np.maximum(steps, 0.7), ratio, *look, hover="t = %{x:,.0f}: %{y:.2e}")
        goal = [0.7, steps[-1]], [self.goal] * 2
        right.line("goal", *goal, NEUTRAL, "longdash", width=2, hover="goal %{y:.1e}")
        right.x(**log_axis("step t (left edge: t = 0)", steps))
        right.y("norm ratio (Eq. 16)", np.log10(_RATIO_FLOOR), 0.3, log=True)
        kappas = [
            f"κ(K<sub>{task}</sub>) = {num(of.compact)} at rank {of.rank}"
            for task, of in zip("PH", both, strict=True)
        ]
        return sheet.finish(self.own.title, f"compact {', '.join(kappas)}, of D = {D}; random labels")

    def caption(self) -> str:
        """Put the numbers into a table, and verdict and warnings below it."""
        costs = [f"more than {self.probes.steps[-1]:,d}" if n < 0 else f"{n:,d}" for n in self.costs]
        table = {"task": ["rows", "rank", "κ, compact", "κ, ridge ε", "steps, as is", "steps, after θ*"]}
        columns = ("pre-training P", self.benign, costs[:2]), ("harmful H", self.harmful, costs[2:])
        for name, of, steps in columns:
            rank, kappas = f"{of.rank} of {of.dimension}", [num(kappa, 4) for kappa in (of.compact, of.ridge)]
            table[name] = [f"{of.rows:,d}", rank, *kappas, *steps]
        moved = "rises"
        if self.harmful_ratio <= 1 + RATIO_TOLERANCE:
            moved = "falls as well, so D<sub>H</sub> is no harder to probe"
        P, H = self.probes.condition[[1, 3]]
        verdict = (
            f"<b>RIR ≤ {num(self.limit, 4)}</b> (compact), ≤ {num(self.ridge_limit)} with ε = "
            f"{num(self.ridge)}. θ* takes κ(H<sub>P</sub>) to {num(P)} (ii = {num(self.benign_ratio)}) "
            f"and κ(H<sub>H</sub>) to {num(H, 4)} (i = {num(self.harmful_ratio)}): it {moved}. "
            f"Misalignment of Eq. 10 at θ*: {self.misalignment:.2f}."
        )
        notes = "".join(f"<li>{formula_html(note)}</li>" for note in self.warnings)
        return (
            f'<div class="condnum-wide">{as_html(pd.DataFrame(table))}<p>{verdict}</p><ul>{notes}</ul></div>'
        )


def largest_rir(K_P: Floats, K_H: Floats) -> float:
    """Return the theoretical limit of RIR for two invertible covariances."""
    return rir_limit(K_P, K_H).value


@with_controls(
    example=Choice(
        "example",
        "What is shown unless the cell has tables of your own.",
        {"digits": "digits 4 and 7", "diabetes": "diabetes, 2 groups"},
    ),
    standardize=Check("standardize (each task)", "Give columns mean 0 and standard deviation 1."),
    ridge=Slider("ridge ε (units of K)", "ε of the ridge convention.", 1e-9, 1e3, log=True, marks=7),
    tolerance=Slider(
        "rank tolerance (× that of the stored numbers)",
        "Singular values of X above this multiple of D·eps·σ₁ count, with eps of the stored type.",
        1e-2,
        1e10,
        log=True,
        step=0.25,
        marks=7,
    ),
    goal=Slider("goal (norm ratio)", "Norm ratio (Eq. 16) that the probe must reach.", 1e-6, 0.5, log=True),
)
def own_data(
    *,
    tables: OwnTables | None = None,
    example: Example = "diabetes",
    standardize: bool = False,
    ridge: float = 1e-6,
    tolerance: float = 1.0,
    goal: float = 1e-3,
    limit: Callable[[Floats, Floats], Any] = largest_rir,
) -> OwnData:
    """Analyse `tables`, or an example; probes are predicted for `y = Xw*` with Gaussian w*."""
    own = _looked_at(tables, example, standardize)
    tasks = [replace(of.task, eps=of.task.eps * tolerance) for of in (own.pair.benign, own.pair.harmful)]
    least = rank_tolerance(len(own.K_P), max(task.eps for task in tasks))
    if least >= 0.5:
        raise InvalidInputError(
            f"the rank tolerance is {num(least)} σ₁, above most singular values; lower it."
        )
    facts, found, misalignment, probes = _measured(own, tolerance)
    if {one.rank for one in tasks} == {len(own.K_P)} and limit is not largest_rir:  # both invertible
        found = replace(found, value=float(limit(own.K_P, own.K_H)))
    P, H = (TaskSpectrum.of(about, task, ridge) for about, task in zip(facts, tasks, strict=True))
    bound = ridge_convention_limit(*tasks, ridge=ridge)
    own_only = found.harmful_only_dimension
    return OwnData(own, P, H, misalignment, found.value, own_only, probes, bound, ridge=ridge, goal=goal)


@lru_cache(maxsize=8)
def _measured(own: OwnPair, tolerance: float) -> tuple[Any, ...]:
    """Return what neither ε nor the goal changes: facts, the limit, misalignment at θ*, probes."""
    rows, solution = (own.pair.benign, own.pair.harmful), np.random.default_rng(0).normal(size=len(own.K_P))
    # All eigenvalues, also those below the stored type's tolerance, are drawn.
    whole = (replace(of, task=replace(of.task, eps=0.0)) for of in rows)
    facts = [task_facts(name, of) for name, of in zip(("K_P", "K_H"), whole, strict=True)]
    P, H = (replace(of.task, eps=of.task.eps * tolerance) for of in rows)
    limit, theta = limit_of(P, H), max_rir(P)
    modes = []
    for task in (P, H):  # of targets Xw, which are the coordinates SVᵀw in the basis of X
        along = task.root @ torch.from_numpy(solution)[:, None]
        probed = task.aimed_at(along)
        modes += [Modes.of(probed.raw), Modes.of(probed.through(theta))]
    probes = probe_curves(modes, log_spaced(_PROBE_STEPS, 200))
    return facts, limit, alignment(theta, H).misalignment, probes


class OwnDataExplorer(Explorer):
    """Condition numbers, ranks, alignment, theoretical limit and probe cost of two feature matrices."""

    compute = staticmethod(own_data)
    own = Own("limit", largest_rir)
    fixed = ("tables",)
