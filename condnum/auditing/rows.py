"""What an audit is given: blocks of rows become two tasks and a drawn sample, files become extractors.

One pass over the rows is enough, as all that is kept of them are factors and a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import TargetKind, as_tensor, check_same_names, extractor_affine
from condnum.data.files import FeaturesLike, FeatureStream, TargetsLike, as_stream, read_targets
from condnum.data.task_pair import Float64Array, constant_columns
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, check_known
from condnum.estimators.extractor import Extractor
from condnum.progress import report_event
from condnum.theory.task import Task

#: Rows that are drawn, for attackers and what they are compared to.
SAMPLE_ROWS = 5_000
#: Ends the seeds of the sample and of the groups, so that no other stream of random numbers is the same one.
_SAMPLE_SEED, _GROUP_SEED = 71, 73
#: Groups of the jackknife, and the widest rows that have them: their factors take 0.4 GB and half a minute.
GROUPS, WIDEST_GROUPS = 10, 1_024


@dataclass(frozen=True, eq=False)
class FeaturePair:
    """Inputs of a pre-training and a harmful task over the same D columns."""

    benign: TaskRows
    harmful: TaskRows
    notes: tuple[str, ...]  # what was done to the data, in sentences


@dataclass(frozen=True, eq=False)
class TaskRows:
    """What one pass leaves of the complete rows X, standardized if asked."""

    stream: FeatureStream
    task: Task  # of X and, where there are any, targets
    sample: Float64Array  # (n, D) rows drawn without replacement, in their order
    places: NDArray[np.int64]  # (n,) their positions among all rows of the file
    gaps: NDArray[np.int64]  # (D,) missing entries of all rows of the file
    total: int  # all rows of the file
    constant: NDArray[np.bool_]  # (D,) columns that vary by no more than round-off
    groups: Sequence[Task]  # ten random groups of rows; none where rows are few or wide
    standardized: bool

    def leave_outs(self) -> Iterator[Tensor]:
        """Yield the rows without one group each, as rows `(r, D)` with the products that N of them have."""
        parts = [torch.cat([of.factor[:, :1], of.products[0]], dim=1) for of in self.groups]
        for g in range(len(parts)):
            F = torch.linalg.qr(torch.cat(parts[:g] + parts[g + 1 :]), mode="r").R
            share = F[0, 0].square() / self.task.rows
            X = F[:, 1:]
            if self.standardized:  # by means and deviations of their own
                spread = F[1:, 1:].square().sum(dim=0).sqrt() / F[0, 0].abs()
                X = F[1:, 1:] / torch.where(torch.from_numpy(self.constant), torch.inf, spread)
            yield X / share.sqrt()


@dataclass(frozen=True, eq=False)
class TaskFacts:
    """One task's features."""

    name: str  # D_P or D_H
    source: str
    rows: int  # N
    dimension: int  # D
    stored_eps: float
    spectrum: Sequence[float]  # (D,) eigenvalues of K, descending
    rank: int


def task_facts(name: str, found: TaskRows) -> TaskFacts:
    """Read what the factor says about a task's rank."""
    task, stream = found.task, found.stream
    values = torch.nn.functional.pad(task.values, (0, task.dimension - task.rank)).tolist()
    return TaskFacts(name, stream.source, task.rows, task.dimension, stream.stored_eps, values, task.rank)


def open_pair(
    benign: FeaturesLike, harmful: FeaturesLike, *, drop: str = ""
) -> tuple[FeatureStream, FeatureStream, list[str]]:
    """Open two matrices, reading nothing but headers, and bring them to the same columns, with notes.

    Columns are matched by name, or else by position.
    """
    P, H = as_stream(benign, name="benign"), as_stream(harmful, name="harmful")
    dropped = [name.strip() for name in drop.split(",") if name.strip()]
    notes = [*P.notes, *H.notes]
    for name in dropped:
        check_known("column to leave out (drop)", name, dict.fromkeys(P.columns + H.columns))
    first, second = ([name for name in stream.columns if name not in dropped] for stream in (P, H))
    if not (first and second):
        raise InvalidInputError(f"drop={drop} leaves no column; drop fewer of them.")
    if P.named and H.named:
        check_same_names(P.source, first, H.source, second)
        second = first
    elif len(first) != len(second):
        raise InvalidInputError(
            f"{P.source} has {len(first)} columns and {H.source} has {len(second)}: both tasks share one "
            "feature space. Give both the same columns, or use files with column names (csv, parquet), so "
            "that columns can be matched."
        )
    elif P.named != H.named:
        notes.append("Only one file names its columns; they are matched by position.")
    return P.select(first), H.select(second), list(dict.fromkeys(notes))


def read_answers(
    kind: TargetKind, **given: tuple[FeaturesLike, TargetsLike | None]
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Read targets, by default those named `y` in an .npz file of features, and say what was understood."""
    answers, notes = dict[str, NDArray[Any]](), list[str]()
    for name, (X, y) in given.items():
        if y is None and isinstance(X, str | os.PathLike) and Path(X).suffix.lower() == ".npz":
            with np.load(Path(X).expanduser(), allow_pickle=False) as file:
                y = X if "y" in file.files and len(file.files) > 1 else None
        if y is not None:
            answers[name], said = read_targets(y, kind=kind, name=name)
            notes.extend(said)
    return answers, notes


def look_at(
    benign: FeatureStream,
    harmful: FeatureStream,
    notes: Sequence[str] = (),
    *,
    standardize: bool = False,
    y_benign: NDArray[Any] | None = None,
    y_harmful: NDArray[Any] | None = None,
    seed: int = 0,
) -> FeaturePair:
    """Read both matrices once; targets are labels `(N,)` or numbers `(N, m)` of all rows."""
    said, read = list(notes), list[TaskRows]()
    for task, stream, y in (("D_P", benign, y_benign), ("D_H", harmful, y_harmful)):
        found = read_rows(stream, targets=y, standardize=standardize, seed=seed)
        read.append(found)
        rows, D = found.task.rows, stream.dimension
        if missing := found.total - rows:
            worst = [i for i in np.argsort(-found.gaps)[:3] if found.gaps[i]]
            where = ", ".join(f"{stream.columns[i]}: {found.gaps[i]:,d}" for i in worst)
            has, be = ("has", "is") if missing == 1 else ("have", "are")
            said.append(
                f"{task}: {missing:,d} of {found.total:,d} rows {has} missing entries and {be} left out "
                f"({where})."
            )
        if rows < D:
            said.append(
                f"{task} has fewer rows than columns ({rows:,d} < {D:,d}): its rank is at most {rows:,d}, "
                "and κ describes this sample, not the task."
            )
        if flat := [stream.columns[i] for i in np.flatnonzero(found.constant)]:
            named = ", ".join(flat[:5]) + ", …" * (len(flat) > 5)
            said.append(f"{task} has {len(flat)} constant column(s) ({named}).")
    if standardize:
        said.append("Columns are standardized, each task with its own mean and standard deviation.")
    return FeaturePair(read[0], read[1], tuple(said))


def read_rows(
    stream: FeatureStream, *, targets: NDArray[Any] | None = None, standardize: bool = False, seed: int = 0
) -> TaskRows:
    """Read all rows once; `targets` are labels `(N,)` or numbers `(N, m)`, one per row of the file."""
    kind: TargetKind = "classification" if getattr(targets, "dtype", None) == np.int64 else "regression"
    D, total, task = stream.dimension, 0, None
    gaps = np.zeros(D, np.int64)
    parts: list[Task | None] = [None] * (GROUPS if D <= WIDEST_GROUPS else 0)
    # Random numbers, places and rows: those with the smallest numbers are the sample.
    drawn: Sequence[Any] = np.empty(0), np.empty(0, np.int64), np.empty((0, D))
    for block in _blocks(stream):
        missing = np.isnan(block)
        kept = ~missing.any(axis=1)
        places, X = total + np.flatnonzero(kept), block if kept.all() else block[kept]
        gaps += missing.sum(axis=0)
        total += len(block)
        report_event(stage=f"rows of {Path(stream.source).name}", step=total)
        if not len(X) or (targets is not None and len(targets) < total):
            continue
        _check_finite(stream, X, places)
        y = None if targets is None else targets[places]
        start = 0 if task is None else task.rows
        task = _extended(task, X, y, kind=kind, name=stream.source)
        order = np.random.default_rng([seed, start, _GROUP_SEED]).permutation(len(X))
        group = (start + order) % GROUPS  # groups of equal size, whatever the blocks
        parts = [_extended(of, X[group == g], name=stream.source) for g, of in enumerate(parts)]
        keys = np.random.default_rng([seed, start, _SAMPLE_SEED]).random(len(X))
        drawn = [np.concatenate(pair) for pair in zip(drawn, (keys, places, X), strict=True)]
        if len(drawn[0]) > SAMPLE_ROWS:
            best = np.sort(np.argpartition(drawn[0], SAMPLE_ROWS)[:SAMPLE_ROWS])
            drawn = [part[best] for part in drawn]
    if targets is not None and len(targets) != total:
        raise InvalidInputError(
            f"{stream.source} has {total:,d} rows, but there are {len(targets):,d} targets; give one target "
            f"for each row, in the same order.{''.join(f' {note}' for note in stream.notes)}"
        )
    if task is None or task.rows < 2:
        empty = [f"'{stream.columns[i]}'" for i in np.argsort(-gaps)[:5] if 2 * gaps[i] > total]
        where = f" (mostly empty: {', '.join(empty)})" if empty else ""
        raise InvalidInputError(
            f"{stream.source} has {0 if task is None else 1} row(s) without missing entries, out of "
            f"{total:,d}; at least 2 are needed: impute them, or drop the columns that are mostly "
            f"empty{where}."
        )
    enough = task.rows * (GROUPS - 1) >= 2 * GROUPS * max(D, GROUPS)  # nine tenths of the rows
    groups = [of for of in parts if of is not None and enough]
    variance = (task.factor[1:, 1 : 1 + D].square().sum(dim=0) / task.rows).numpy()
    constant = constant_columns(task.mean.numpy(), variance, task.rows)
    task, sample = replace(task, eps=max(stream.stored_eps, task.eps)), drawn[2]
    if standardize:
        mean, scale = task.mean, torch.from_numpy(np.where(constant, np.inf, np.sqrt(variance)))
        task, *groups = (of.mapped(mean, scale) for of in (task, *groups))
        sample = (sample - mean.numpy()) / scale.numpy()
    return TaskRows(stream, task, sample, drawn[1], gaps, total, constant, groups, standardize)


def _blocks(stream: FeatureStream) -> Iterator[Float64Array]:
    """Yield rows in float64, so many at once that a factorization of each of ten groups of them pays."""
    waiting, least = list[Float64Array](), 2 * GROUPS * stream.dimension * (stream.dimension <= WIDEST_GROUPS)
    for block in stream.blocks():
        with np.errstate(all="ignore"):  # what float64 cannot hold becomes infinite, and is refused
            waiting.append(np.asarray(block, dtype=np.float64))
        if sum(map(len, waiting)) >= least:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _check_finite(stream: FeatureStream, X: Float64Array, places: NDArray[np.int64]) -> None:
    if not np.isfinite(X).all():
        row, column = np.argwhere(np.isinf(X))[0]
        raise DataFormatError(
            f"{stream.source} holds infinite values, the first in data row {places[row] + 1:,d}, column "
            f"'{stream.columns[column]}'; replace them, or drop these rows."
        )


def _extended(task: Task | None, X: Float64Array, y: Any = None, **how: Any) -> Task | None:
    return (Task.of if task is None else task.extended)(X, y, **how) if len(X) else task


def read_extractors(
    theta: Any, dimension: int, columns: Sequence[str] | None = None, reserved: Sequence[str] = ()
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read extractors, match their names to the columns, and check that they fit.

    Return their matrices in the stored types, from which κ follows, and what attackers meet: the same, or the
    layers and estimators as they are. The product of two layers keeps more than they pass on.
    """
    matrices, maps = dict[str, NDArray[Any]](), dict[str, Any]()
    given = theta if isinstance(theta, Mapping) else {} if theta is None else {"theta": theta}
    if isinstance(theta, str | Path) and (stem := Path(theta).stem) not in reserved:
        given = {stem: theta}
    for name, value in given.items():
        if name in reserved:
            raise InvalidInputError(
                f"the name '{name}' is that of an extractor of the audit; choose another."
            )
        of, called = value, name
        if isinstance(value, str | Path) and Path(value).suffix.lower() == ".safetensors":
            called = f"the extractor of {value}"
            with suppress(DataFormatError, DataNotFoundError):  # it may hold an array as well
                of = Extractor.load(Path(value).expanduser())
        layer = of if isinstance(of, str | Path) else extractor_affine(of, called, columns)[0]
        matrix = np.concatenate([*as_stream(layer, name=name).blocks()])
        as_tensor(matrix, name, ndim=2)
        if len(matrix) != dimension:
            hint = "; it looks transposed: save θ.T" if matrix.shape[1] == dimension else ""
            raise InvalidInputError(
                f"{name} has shape {matrix.shape}, but the features have D = {dimension} columns: θ must be "
                f"(D, D_hid), the features of an attacker are Xθ{hint}."
            )
        matrices[name] = matrix
        maps[name] = of if hasattr(of, "to_linear") or isinstance(of, nn.Module) else matrix
    return matrices, maps
