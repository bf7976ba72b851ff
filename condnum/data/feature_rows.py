"""One pass over the rows of a feature matrix: what its columns hold, its covariance, and a sample of rows.

All of it is a sum over rows, so blocks add up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.arrays import TargetKind
from condnum.data.files import FeatureStream
from condnum.data.task_pair import Float64Array, constant_columns
from condnum.errors import DataFormatError, InvalidInputError
from condnum.theory.task import Task

#: A sample has at least so many rows, or as many as fit into so much memory.
SAMPLE_ROWS, SAMPLE_BYTES = 5_000, 32 << 20
#: Ends the seeds of the sample, so that no other stream of random numbers is the same one.
_SAMPLE_SEED = 71


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

    def _scaled(self, X: Float64Array) -> Float64Array:
        """Standardize rows of the file where that was asked for; constant columns become zeros."""
        if not self.standardized:
            return X
        flat = self.deviation == 0
        return np.where(flat, 0.0, (X - self.mean) / np.where(flat, 1.0, self.deviation))


def read_rows(
    stream: FeatureStream,
    *,
    targets: NDArray[Any] | None = None,
    standardize: bool = False,
    seed: int = 0,
) -> TaskRows:
    """Read all rows once; `targets` are labels `(N,)` or numbers `(N, m)`, one per row of the file."""
    size = max(SAMPLE_ROWS, SAMPLE_BYTES // (8 * stream.dimension))
    sums = _RowSums(stream, targets, size, seed)
    for block in stream.blocks():
        sums.add(block)
    return sums.finished(standardize)


def _complete(block: NDArray[Any]) -> tuple[NDArray[np.bool_], Float64Array]:
    """Return which rows have no gaps, and these rows."""
    with np.errstate(all="ignore"):  # what float64 cannot hold becomes infinite, and is refused
        X = np.asarray(block, dtype=np.float64)
    if not np.isnan(X.min(initial=np.inf)):
        return np.ones(len(X), dtype=bool), X
    kept = np.asarray(~np.isnan(X).any(axis=1))
    return kept, X[kept]


def _least(size: int, keys: Any, places: Any, X: Any) -> tuple[Any, Any, Any]:
    """Keep the rows with the smallest keys, in their order."""
    if len(keys) <= size:
        return keys, places, X
    best = np.sort(np.argpartition(keys, size)[:size])
    return keys[best], places[best], X[best]


class _RowSums:
    """What is kept of the rows so far."""

    def __init__(self, stream: FeatureStream, targets: NDArray[Any] | None, size: int, seed: int) -> None:
        """Begin with no rows."""
        self.stream, self.targets, self.size, self.seed = stream, targets, size, seed
        D = stream.dimension
        self.kind: TargetKind = (
            "classification" if getattr(targets, "dtype", float) == np.int64 else "regression"
        )
        self.task: Task | None = None
        self.complete = np.empty(0, dtype=bool)
        self.gaps, self.rows = np.zeros(D, np.int64), 0
        self.mean, self.squares = np.zeros((2, D))  # squared deviations from the mean
        # Random numbers, places and rows: those with the smallest numbers are the sample.
        self.drawn: tuple[Any, Any, Any] = np.empty(0), np.empty(0, np.int64), np.empty((0, D))

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
        rows, mean = max(self.rows + len(X), 1), X.mean(axis=0) if len(X) else np.zeros(X.shape[1])
        apart = mean - self.mean
        with np.errstate(all="ignore"):  # squares beyond float64 are refused in the end
            self.squares += ((X - mean) ** 2).sum(axis=0)
            self.squares += apart**2 * (self.rows * len(X) / rows)
        self.mean = self.mean + apart * (len(X) / rows)
        self.rows += len(X)
        with np.errstate(all="ignore"):
            large = ~np.isfinite(self.squares + self.rows * self.mean**2)
        if large.any():
            raise DataFormatError(
                f"{self.stream.source} holds numbers so large that their squares overflow float64 (above "
                f"1e154), in column '{self.stream.columns[int(large.argmax())]}' for example; rescale such "
                "columns, or drop them."
            )
        if len(X) and (self.targets is None or len(self.complete) <= len(self.targets)):
            y = None if self.targets is None else self.targets[places]
            of = Task.of if self.task is None else self.task.extended
            self.task = of(X, y, kind=self.kind, name=self.stream.source)
        keys = np.random.default_rng([self.seed, start, _SAMPLE_SEED]).random(len(X))
        drawn = (np.concatenate(pair) for pair in zip(self.drawn, (keys, places, X), strict=True))
        self.drawn = _least(self.size, *drawn)

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
        about = self.complete, self.gaps, self.mean, deviation
        return TaskRows(stream, *about, task, self.drawn[2], self.drawn[1], standardize)
