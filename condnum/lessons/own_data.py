"""Lesson 5: what two feature matrices say without labels; probes are predicted for y = Xw*, w* Gaussian."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import pandas as pd
import torch

from condnum.auditing.rows import look_at, open_pair
from condnum.data import digit_pair, load_diabetes_tasks, load_small_digits
from condnum.errors import InvalidInputError
from condnum.lessons.condition_number import Floats
from condnum.lessons.draw import Panel
from condnum.lessons.explore import Check, Choice, Log, explore
from condnum.numbers import num
from condnum.page.look import BLUE, NEUTRAL, ORANGE, PURPLE, in_blocks, overlap_heatmap
from condnum.page.tables import formula_html
from condnum.probing.filters import Modes
from condnum.probing.probe import ProbeCurve, log_spaced, probe_curves
from condnum.theory.kappa import RATIO_TOLERANCE, kappa
from condnum.theory.limits import RirLimit, limit_of, max_rir, max_rir_immunizer, ridge_convention_limit
from condnum.theory.task import Task

#: Widest features that the lesson takes: each eigendecomposition takes seconds from there on.
WIDEST = 2048
#: Steps that probes are followed, and the norm ratio down to which they are drawn.
PROBE_STEPS, RATIO_FLOOR = 1000, 1e-7
#: Rows and columns of the map of overlaps: of more directions, rows are averaged and columns summed.
OVERLAP_BLOCKS = 64
#: Eigenvalues are drawn down to this fraction of the largest; null directions lie on the floor.
SPECTRUM_FLOOR = 1e-18


@dataclass(frozen=True)
class Tables:
    """Two tables of features; they are equal if the contents are, so that a changed array is read again."""

    X_P: Any = field(compare=False)
    X_H: Any = field(compare=False)
    drop: str
    contents: str

    @classmethod
    def of(cls, X_P: Any, X_H: Any, drop: str = "") -> Tables:
        """Take arrays, data frames or paths of files, or None twice for the diabetes patients."""
        if (X_P is None) != (X_H is None):
            raise InvalidInputError("one of X_P and X_H is None; give both, or neither for the example.")
        seen = list[Any]()
        for name, X in (("X_P", X_P), ("X_H", X_H)):
            if isinstance(X, list | tuple) and any(isinstance(one, str | os.PathLike) for one in X):
                join = "np.concatenate([np.load(path) for path in paths])"
                raise InvalidInputError(f"{name} is a list of paths; give one path, or one table: {join}.")
            file = Path(X).expanduser() if isinstance(X, str | os.PathLike) else None
            seen.append([X, file.stat().st_mtime_ns] if file and file.is_file() else X)
        return cls(X_P, X_H, drop, joblib.hash(seen))


@lru_cache(maxsize=1)
def digit_tables() -> Tables:
    """Return the digits 4 and 7 in 8×8 pixels."""
    pair = digit_pair(load_small_digits(), 4, 7)
    return Tables.of(pair.X_P, pair.X_H)


@lru_cache(maxsize=8)
def read(tables: Tables, standardize: bool = False) -> tuple[Task, Task, tuple[str, ...]]:
    """Return both tasks, and what was done to their rows."""
    X_P, X_H = tables.X_P, tables.X_H
    if X_P is None:
        pair = load_diabetes_tasks()
        X_P, X_H = (pd.DataFrame(X, columns=[*pair.feature_names]) for X in (pair.X_P, pair.X_H))
    found = open_pair(X_P, X_H, drop=tables.drop)
    if (D := found[0].dimension) > WIDEST:
        fix = "leave some out, or run condnum audit, which takes more"
        raise InvalidInputError(f"X_P has {D:,d} columns, above the limit of {WIDEST:,d}; {fix}.")
    rows = look_at(*found, standardize=standardize)
    return rows.benign.task, rows.harmful.task, rows.notes


@lru_cache(maxsize=8)
def overlap_blocks(tables: Tables, standardize: bool) -> Floats:
    """Return the overlaps |q_Piᵀq_Hj|² of both tasks' eigenvectors (Proposition 3.2), of many in blocks."""
    Q_P, Q_H = (torch.cat([of.vectors, of.null_basis], dim=1) for of in read(tables, standardize)[:2])
    overlaps = (Q_P.mT @ Q_H).square().numpy()
    return np.asarray(in_blocks(overlaps, OVERLAP_BLOCKS))


def probes_of(P: Task, H: Task, theta: Any) -> ProbeCurve:
    """Probe D_P as it is, D_P through θ, D_H as it is, D_H through θ, for labels y = Xw*."""
    solution = torch.from_numpy(np.random.default_rng(0).normal(size=P.dimension))
    modes = []
    for task in (P, H):  # targets Xw* are SVᵀw* in the basis of X
        probed = task.aimed_at((task.root @ solution)[:, None])
        modes += [Modes.of(probed.raw), Modes.of(probed.through(theta))]
    return probe_curves(modes, log_spaced(PROBE_STEPS, 110))


@lru_cache(maxsize=32)
def _measured(tables: Tables, standardize: bool, tolerance: float) -> tuple[Task, Task, RirLimit, ProbeCurve]:
    """Return tasks cut at a rank tolerance, their limit, and probes before and after θ*."""
    P, H = (replace(of, eps=max(of.eps, tolerance / of.dimension)) for of in read(tables, standardize)[:2])
    return P, H, limit_of(P, H), probes_of(P, H, max_rir(P))


@explore(
    data=Choice({"X_P, X_H (else diabetes)": "own", "digits 4 and 7, 8×8": "digits"}, label="tables"),
    standardize=Check(label="standardize (each task)", help="Columns have mean 0 and standard deviation 1."),
    tolerance=Log(1e-16, 0.1, stops=[1e-16, 1e-4, 3e-3, 0.01, 0.1], label="rank tolerance (× σ<sub>1</sub>)",
                  help="Singular values of X above it count; it is at least D·eps of the stored type."),
    ridge=Log(1e-9, 1e3, stops=[1e-6, 1e-2, 1, 100], label="ridge ε (units of K)"),
    goal=Log(1e-6, 0.5, label="goal (norm ratio)", help="What a probe must reach (Eq. 16).", live=True),
    presets={"Digits": {"data": "digits"}, "A coarse rank": {"data": "digits", "tolerance": 0.01}},
)  # fmt: skip
def own_data(
    data: Literal["own", "digits"] = "own",
    standardize: bool = False,
    tolerance: float = 1e-16,
    ridge: float = 1e-6,
    goal: float = 1e-3,
    X_P: Any = None,
    X_H: Any = None,
    drop: str = "",
    immunizer: Callable[[Floats], Any] = max_rir_immunizer,
) -> tuple[list[Panel], str, pd.DataFrame]:
    """Condition numbers, ranks, alignment, theoretical limit and probe cost of two feature matrices."""
    tables = digit_tables() if data == "digits" else Tables.of(X_P, X_H, drop)
    P, H, limit, probes = _measured(tables, standardize, tolerance)
    if immunizer is not max_rir_immunizer and P.rank == P.dimension:
        probes = probes_of(P, H, np.asarray(immunizer(P.covariance.numpy()), dtype=np.float64))
    whole = [replace(of, eps=0.0) for of in (P, H)]  # eigenvalues below the tolerance are drawn, too
    left = spectra(whole, max((of.rtol * float(of.sigma[0])) ** 2 for of in (P, H)), ridge)
    middle = Panel("overlaps |q<sub>P,i</sub>ᵀq<sub>H,j</sub>|²", x="j of K<sub>H</sub>", equal=True,
                   y="i of K<sub>P</sub>", width=0.75)  # fmt: skip
    heat = overlap_heatmap(overlap_blocks(tables, standardize), P.dimension)
    middle.heat("overlaps", heat.pop("z"), hover=heat.pop("hovertemplate"), **heat)
    right = Panel("predicted probe", x="step t (left edge: t = 0)", y="norm ratio (Eq. 16)", log="xy",
                  xlim=(0.7, PROBE_STEPS), ylim=(RATIO_FLOOR, 2), width=1.1)  # fmt: skip
    steps, ratios = np.maximum(probes.steps, 0.7), np.maximum(probes.norm_ratio, RATIO_FLOOR * 0.1)
    for task, color, two in zip("PH", (BLUE, ORANGE), (ratios[:2], ratios[2:]), strict=True):
        for when, dash, ratio in zip(("as is", "after θ*"), ("solid", "dash"), two, strict=True):
            right.line(f"D<sub>{task}</sub> {when}", steps, ratio, color, dash, hover="t = %{x:,}: %{y:.2e}")
    right.line("goal", [0.7, PROBE_STEPS], [goal] * 2, NEUTRAL, "longdash", width=2, legend=False)
    notes = [own_words(limit, probes, ridge_convention_limit(P, H, ridge=ridge), ridge)]
    notes += map(formula_html, read(tables, standardize)[2])
    if own := limit.harmful_only_dimension:
        notes.append(f"X<sub>H</sub> excites {own} direction(s) that X<sub>P</sub> does not: θ scales them "
                     "freely, a property of null spaces that does not guarantee protection.")  # fmt: skip
    return [left, middle, right], "<br>".join(notes), own_table(P, H, probes, ridge, goal)


def spectra(tasks: list[Task], tolerance: float, ridge: float) -> Panel:
    """Draw two spectra, with the rank tolerance and the ridge."""
    values = [np.pad(of.values.numpy(), (0, of.dimension - of.rank)) for of in tasks]
    D, top = len(values[0]), max(float(of[0]) for of in values)
    low = max(min(float(of[-1]) for of in values) / 100, top * SPECTRUM_FLOOR)
    panel = Panel("spectra of K<sub>P</sub>, K<sub>H</sub>", x="index i", y="σ<sub>i</sub>",
                  log="y", xlim=(0, D + 1), ylim=(low, top * 5))  # fmt: skip
    for name, drawn, color, width in zip("PH", values, (BLUE, ORANGE), (4, 1.5), strict=True):
        panel.line(f"K<sub>{name}</sub>", np.arange(1, D + 1), np.maximum(drawn, low), color, "solid",
                   width=width, size=2 + width, legend=False, customdata=drawn,
                   hover="σ<sub>%{x}</sub> = %{customdata:.3e}")  # fmt: skip
    panel.line("rank tolerance", [0.5, D + 0.5], [tolerance] * 2, PURPLE, "dash", width=2, hover="%{y:.3e}")
    return panel.line("ridge ε", [0.5, D + 0.5], [ridge] * 2, NEUTRAL, "dot", width=2, hover="%{y:.3e}")


def own_words(limit: RirLimit, probes: ProbeCurve, bound: float, ridge: float) -> str:
    """Say what is possible, and whether the θ with the largest RIR makes D_H harder."""
    raw_P, P, raw_H, H = probes.condition
    most = f"≤ {num(limit.value, 4)}" if math.isfinite(limit.value) else "has no limit"
    words = f"<b>RIR {most}</b> (compact), ≤ {num(bound)} with ε = {num(ridge)}. θ* takes κ(H<sub>P</sub>) "
    words += f"from {num(raw_P)} to {num(P)} and κ(H<sub>H</sub>) from {num(raw_H)} to {num(H)}"
    if H / raw_H <= 1 + RATIO_TOLERANCE:
        return f"{words}: it falls as well, so D<sub>H</sub> is no harder to probe."
    return f"{words}, (i) = {num(H / raw_H)}."


def own_table(P: Task, H: Task, probes: ProbeCurve, ridge: float, goal: float) -> pd.DataFrame:
    """Return the numbers of both tasks as words."""
    reached = probes.norm_ratio <= goal
    first = np.where(reached.any(axis=1), probes.steps[reached.argmax(axis=1)], -1)
    cost = [f"more than {PROBE_STEPS:,d}" if step < 0 else f"{step:,d}" for step in first.tolist()]
    table = {"task": ["rows", "rank", "κ, compact", "κ, ridge ε", "steps, as is", "steps, after θ*"]}
    for name, of, steps in (("pre-training P", P, cost[:2]), ("harmful H", H, cost[2:])):
        kappas = [num(kappa(of.raw, "compact").value, 4), num(kappa(of.raw, "ridge", ridge=ridge).value, 4)]
        table[name] = [f"{of.rows:,d}", f"{of.rank} of {of.dimension}", *kappas, *steps]
    return pd.DataFrame(table)
