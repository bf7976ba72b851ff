"""What an audit is given: blocks of rows become two tasks and a drawn sample, files become extractors.

One pass over the rows is enough, as all that is kept of them are factors, sums and a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import TargetKind, check_same_names, extractor_affine
from condnum.data.files import FeaturesLike, FeatureStream, TargetsLike, as_stream, read_targets
from condnum.data.task_pair import Float64Array, constant_columns
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, RankError, check_known
from condnum.estimators.extractor import Extractor
from condnum.progress import report_event
from condnum.theory.task import Task

#: A sample has at least so many rows, or as many as fit into so much memory.
SAMPLE_ROWS, SAMPLE_BYTES = 5_000, 32 << 20
#: Ends the seeds of the sample and of the groups, so that no other stream of random numbers is the same one.
_SAMPLE_SEED, _GROUP_SEED = 71, 73
#: Groups of the jackknife.
GROUPS = 10
#: Widest rows whose groups are kept: ten factors and the rows that wait for them take 1 GB there.
_WIDEST_GROUPS = 2_048
#: What is said of rows that are left out.
MISSING = "missing entries"


@dataclass(frozen=True, eq=False)
class FeaturePair:
    """Inputs of a pre-training and a harmful task over the same D columns."""

    benign: TaskRows
    harmful: TaskRows
    notes: tuple[str, ...]  # what was done to the data, in sentences


@dataclass(frozen=True, eq=False)
class TaskRows:
    """What one pass leaves, over the complete rows where nothing else is said; X is standardized if asked."""

    stream: FeatureStream
    complete: NDArray[np.bool_]  # (all rows of the file,) those without missing entries
    gaps: NDArray[np.int64]  # (D,) missing entries
    mean: Float64Array  # (D,) as in the file, like the next one
    deviation: Float64Array  # (D,) of the population; exactly 0 for a constant column
    task: Task  # of X and, where there are any, targets
    drawn: Float64Array  # (n, D) rows as in the file, drawn without replacement, in their order
    places: NDArray[np.int64]  # (n,) their positions among all rows of the file
    standardized: bool
    groups: tuple[Tensor, ...] = ()  # factors of [1 | X − shift] of ten groups; none where rows are few
    shift: Tensor = field(default_factory=lambda: torch.zeros(0))  # (D,)

    @property
    def rows(self) -> int:
        """Number of complete rows N."""
        return int(self.complete.sum())

    @cached_property
    def sample(self) -> Float64Array:
        """The rows `drawn` of X."""
        return self._scaled(self.drawn)

    def array(self) -> Float64Array:
        """Return X `(N, D)`, read again into memory."""
        return self._scaled(self.stream.array())

    def leave_outs(self) -> Iterator[Tensor]:
        """Yield the rows without one group each, as rows `(r, D)` with the products that N of them have."""
        after = [self.groups[-1][:0]]
        for factor in self.groups[:0:-1]:
            after.append(_factor(after[-1], factor))
        before = after[0]
        for own in self.groups:
            F = _factor(before, after.pop())
            before = _factor(before, own)
            one = F[:1, :1]
            X = F[:, 1:] + F[:, :1] * self.shift
            if self.standardized:  # by means and deviations of their own
                spread = F[1:, 1:].square().sum(dim=0).sqrt() / one.abs()
                flat = torch.from_numpy(self.deviation == 0)
                X = F[1:, 1:] / torch.where(flat, torch.inf, spread)
            yield X * (self.rows**0.5 / one.abs())

    def _scaled(self, X: Float64Array) -> Float64Array:
        """Standardize rows of the file where that was asked for; constant columns become zeros."""
        if not self.standardized:
            return X
        flat = self.deviation == 0
        return np.where(flat, 0.0, (X - self.mean) / np.where(flat, 1.0, self.deviation))


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
    sigma = torch.linalg.svdvals(task.products[0]).square()
    spectrum = torch.nn.functional.pad(sigma, (0, task.dimension - len(sigma))).tolist()
    return TaskFacts(name, stream.source, found.rows, task.dimension, stream.stored_eps, spectrum, task.rank)


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
            f"{P.source} has {len(first)} columns and {H.source} has {len(second)}: both tasks share "
            "one feature space. Give both the same columns, or use files with column names (csv, "
            "parquet), so that columns can be matched."
        )
    elif P.named != H.named:
        notes.append("Only one file names its columns; they are matched by position.")
    return P.select(first), H.select(second), list(dict.fromkeys(notes))


def read_answers(
    benign: FeaturesLike,
    harmful: FeaturesLike,
    y_benign: TargetsLike | None,
    y_harmful: TargetsLike | None,
    kind: TargetKind,
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Read targets, by default those named `y` in an .npz file of features, and say what was understood."""
    answers, notes = dict[str, NDArray[Any]](), list[str]()
    for name, X, y in (("y_benign", benign, y_benign), ("y_harmful", harmful, y_harmful)):
        given = X if y is None and _holds_targets(X) else y
        if given is not None:
            answers[name], said = read_targets(given, kind=kind, name=name)
            notes.extend(said)
    return answers, notes


def _holds_targets(X: Any) -> bool:
    if not isinstance(X, str | os.PathLike) or Path(X).suffix.lower() != ".npz":
        return False
    with np.load(Path(X).expanduser(), allow_pickle=False) as file:
        return "y" in file.files and len(file.files) > 1


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
    """Read both matrices once: drop rows with gaps, sum K.

    Targets are labels `(N,)` or numbers `(N, m)` of all rows.
    """
    said, read = list(notes), list[TaskRows]()
    for task, stream, y in (("D_P", benign, y_benign), ("D_H", harmful, y_harmful)):
        found = read_rows(stream, targets=y, standardize=standardize, seed=seed)
        read.append(found)
        total, rows, D = len(found.complete), found.rows, stream.dimension
        if rows < total:
            worst = [i for i in np.argsort(-found.gaps)[:3] if found.gaps[i]]
            where = ", ".join(f"{stream.columns[i]}: {found.gaps[i]:,d}" for i in worst)
            verb = ("has", "is") if total - rows == 1 else ("have", "are")
            said.append(
                f"{task}: {total - rows:,d} of {total:,d} rows {verb[0]} {MISSING} and {verb[1]} left out "
                f"({where})."
            )
        if rows < D:
            said.append(
                f"{task} has fewer rows than columns ({rows:,d} < {D:,d}): its rank is at most {rows:,d}, "
                "and κ describes this sample, not the task."
            )
        flat = [stream.columns[i] for i in np.flatnonzero(found.deviation == 0)]
        if flat:
            named = ", ".join(flat[:5]) + ", …" * (len(flat) > 5)
            said.append(f"{task} has {len(flat)} constant column(s) ({named}).")
    if standardize:
        said.append("Columns are standardized, each task with its own mean and standard deviation.")
    return FeaturePair(read[0], read[1], tuple(said))


def read_rows(
    stream: FeatureStream,
    *,
    targets: NDArray[Any] | None = None,
    standardize: bool = False,
    seed: int = 0,
) -> TaskRows:
    """Read all rows once; `targets` are labels `(N,)` or numbers `(N, m)`, one per row of the file."""
    sums = _RowSums(stream, targets, seed)
    for block in stream.blocks():
        sums.add(block)
        report_event(stage=f"rows of {Path(stream.source).name}", step=len(sums.complete))
    return sums.finished(standardize)


def _complete(block: NDArray[Any]) -> tuple[NDArray[np.bool_], Float64Array]:
    """Return which rows have no gaps, and these rows."""
    with np.errstate(all="ignore"):  # what float64 cannot hold becomes infinite, and is refused
        X = np.asarray(block, dtype=np.float64)
    if not np.isnan(X.min(initial=np.inf)):
        return np.ones(len(X), dtype=bool), X
    kept = np.asarray(~np.isnan(X).any(axis=1))
    return kept, X[kept]


def _factor(*parts: Tensor) -> Tensor:
    return torch.linalg.qr(torch.cat(parts), mode="r").R


class _Groups:
    """Factors of groups of rows, drawn at random; rows wait until there are enough for a factorization."""

    def __init__(self, first: Float64Array, seed: int) -> None:
        self.first, self.seed, self.rows = first.copy(), seed, 0
        self.factors = [torch.zeros(0, 1 + len(first), dtype=torch.float64)] * GROUPS
        self.waiting: list[tuple[NDArray[np.int64], Tensor]] = []

    def add(self, X: Float64Array) -> None:
        order = np.random.default_rng([self.seed, self.rows, _GROUP_SEED]).permutation(len(X))
        drawn = (self.rows + order) % GROUPS  # groups of equal size, whatever the blocks
        self.waiting.append((drawn, torch.from_numpy(X - self.first)))
        self.rows += len(X)
        if sum(len(drawn) for drawn, _ in self.waiting) >= GROUPS * X.shape[1]:
            self.take()

    def take(self) -> None:
        """Extend the factors by the rows that wait."""
        group = np.concatenate([drawn for drawn, _ in self.waiting])
        X = torch.cat([X for _, X in self.waiting])
        for g in range(GROUPS):
            own = X[torch.from_numpy(np.flatnonzero(group == g))]
            self.factors[g] = _factor(self.factors[g], torch.cat([own.new_ones(len(own), 1), own], dim=1))
        self.waiting = []

    def finished(self) -> tuple[Tensor, ...]:
        """Return the factors, where nine tenths of the rows are at least twice as many as columns."""
        if self.rows * (GROUPS - 1) < 2 * GROUPS * len(self.first) or self.rows < 2 * GROUPS:
            return ()
        if self.waiting:
            self.take()
        return tuple(self.factors)


class _RowSums:
    """What is kept of the rows so far."""

    def __init__(self, stream: FeatureStream, targets: NDArray[Any] | None, seed: int) -> None:
        """Begin with no rows."""
        self.stream, self.targets, self.seed = stream, targets, seed
        D = stream.dimension
        self.size = max(SAMPLE_ROWS, SAMPLE_BYTES // (8 * D))
        self.kind: TargetKind = (
            "classification" if getattr(targets, "dtype", float) == np.int64 else "regression"
        )
        self.task: Task | None = None
        self.groups: _Groups | None = None
        self.complete = np.empty(0, dtype=bool)
        self.gaps, self.rows = np.zeros(D, np.int64), 0
        self.mean, self.squares = np.zeros((2, D))  # squared deviations from the mean
        # Random numbers, places and rows: those with the smallest numbers are the sample.
        self.drawn: tuple[Any, ...] = np.empty(0), np.empty(0, np.int64), np.empty((0, D))

    def add(self, block: NDArray[Any]) -> None:
        """Add the rows that follow; means by Chan, Golub and LeVeque (1983)."""
        kept, X = _complete(block)
        start = len(self.complete)
        places = start + np.flatnonzero(kept)
        if not np.isfinite(X).all():
            row, column = np.argwhere(np.isinf(X))[0]
            raise DataFormatError(
                f"{self.stream.source} holds infinite values, the first in data row {places[row] + 1:,d}, "
                f"column '{self.stream.columns[column]}'; replace them, or drop these rows."
            )
        self.complete = np.concatenate([self.complete, kept])
        if not kept.all():
            self.gaps += np.isnan(block.astype(np.float64)).sum(axis=0)
        if not len(X):
            return
        mean, before = X.mean(axis=0), self.rows
        self.rows += len(X)
        apart = mean - self.mean
        with np.errstate(all="ignore"):  # squares beyond float64 are refused
            self.squares += ((X - mean) ** 2).sum(axis=0) + apart**2 * (before * len(X) / self.rows)
            self.mean = self.mean + apart * (len(X) / self.rows)
            large = ~np.isfinite(self.squares + self.rows * self.mean**2)
        if large.any():
            raise DataFormatError(
                f"{self.stream.source} holds numbers so large that their squares overflow float64 (above "
                f"1e154), in column '{self.stream.columns[int(large.argmax())]}' for example; rescale such "
                "columns, or drop them."
            )
        if self.targets is None or len(self.complete) <= len(self.targets):
            y = None if self.targets is None else self.targets[places]
            of = Task.of if self.task is None else self.task.extended
            self.task = of(X, y, kind=self.kind, name=self.stream.source)
        if X.shape[1] <= _WIDEST_GROUPS:
            self.groups = self.groups or _Groups(X[0], self.seed)
            self.groups.add(X)
        keys = np.random.default_rng([self.seed, start, _SAMPLE_SEED]).random(len(X))
        drawn = tuple(np.concatenate(pair) for pair in zip(self.drawn, (keys, places, X), strict=True))
        if len(drawn[0]) > self.size:
            best = np.sort(np.argpartition(drawn[0], self.size)[: self.size])
            drawn = tuple(part[best] for part in drawn)
        self.drawn = drawn

    def finished(self, standardize: bool) -> TaskRows:
        """Return what the sums say of X, or refuse it."""
        stream, total = self.stream, len(self.complete)
        if self.targets is not None and len(self.targets) != total:
            raise InvalidInputError(
                f"{stream.source} has {total:,d} rows, but there are {len(self.targets):,d} targets; give "
                f"one target for each row, in the same order.{''.join(f' {note}' for note in stream.notes)}"
            )
        if self.rows < 2:
            empty = [f"'{stream.columns[i]}'" for i in np.argsort(-self.gaps)[:5] if 2 * self.gaps[i] > total]
            where = f" (mostly empty: {', '.join(empty)})" if empty else ""
            raise InvalidInputError(
                f"{stream.source} has {self.rows} row(s) without missing entries, out of {total:,d}; at "
                f"least 2 are needed: impute them, or drop the columns that are mostly empty{where}."
            )
        variance = self.squares / self.rows
        deviation = np.where(constant_columns(self.mean, variance, self.rows), 0.0, np.sqrt(variance))
        assert self.task is not None  # there are rows
        task = replace(self.task, eps=max(stream.stored_eps, self.task.eps))
        if standardize:
            scale = torch.from_numpy(np.where(deviation == 0, np.inf, deviation))
            task = task.mapped(torch.from_numpy(self.mean), scale)
        about = (
            self.complete,
            self.gaps,
            self.mean,
            deviation,
            task,
            self.drawn[2],
            self.drawn[1],
            standardize,
        )
        groups = self.groups
        return TaskRows(
            stream, *about, *((groups.finished(), torch.from_numpy(groups.first)) if groups else ())
        )


def read_extractors(
    theta: Any, dimension: int, columns: Sequence[str] | None = None, reserved: Sequence[str] = ()
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read extractors, match their names to the columns, and check that they fit.

    Return their matrices in the stored types, from which κ follows, and what attackers meet: the same, or the
    layers and estimators as they are. The product of two layers keeps more than they pass on.
    """
    found, maps = dict[str, NDArray[Any]](), dict[str, Any]()
    given = theta if isinstance(theta, Mapping) else {} if theta is None else {"theta": theta}
    if isinstance(theta, str | Path) and (stem := Path(theta).stem) not in reserved:
        given = {stem: theta}
    for name, value in given.items():
        if name in reserved:
            raise InvalidInputError(
                f"the name '{name}' is that of an extractor of the audit; choose another."
            )
        layer, called = value, name
        if isinstance(value, str | Path):
            layer = _saved_estimator(value)
            called = f"{type(layer).__name__}.load({str(value)!r})"
        if not isinstance(layer, str | Path):
            maps[name], (layer, _) = layer, extractor_affine(layer, called, columns)
        stream = as_stream(layer, name=name)
        stored = stream.dtype.newbyteorder("=")
        known = stored in (np.float16, np.float32, np.float64)
        matrix = stream.array(gaps="refuse").astype(stored if known else np.float64)
        if len(matrix) != dimension:
            hint = "; it looks transposed: save θ.T" if matrix.shape[1] == dimension else ""
            said = "".join(f" {note}" for note in stream.notes)
            raise InvalidInputError(
                f"{name} has shape {matrix.shape}, but the features have D = {dimension} columns: θ must be "
                f"(D, D_hid), the features of an attacker are Xθ{hint}.{said}"
            )
        if not matrix.any():
            raise RankError(f"{name} is the zero matrix: no features are extracted, and κ is undefined.")
        found[name] = matrix
        if not hasattr(maps.get(name), "to_linear") and not isinstance(maps.get(name), nn.Module):
            maps[name] = matrix
    return found, maps


def _saved_estimator(path: str | Path) -> Any:
    """Return the `Immunizer` or `Eraser` that `save` wrote, or the path of any other file."""
    if Path(path).suffix.lower() == ".safetensors":
        with suppress(DataFormatError, DataNotFoundError):
            return Extractor.load(Path(path).expanduser())
    return path
