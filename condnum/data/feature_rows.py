"""One pass over the rows of a feature matrix: what its columns hold, its covariance, and a sample of rows.

All of it is a sum over rows, so blocks add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.feature_stream import FeatureStream
from condnum.data.task_pair import Float64Array, constant_columns
from condnum.errors import DataFormatError, InvalidInputError

#: A sample has at least so many rows, or as many as fit into so much memory,
SAMPLE_ROWS, SAMPLE_BYTES = 5_000, 32 << 20
#: or so many per column, as resampling needs, where they fit into this.
SAMPLE_ROWS_PER_COLUMN, MOST_BYTES = 10, 384 << 20
#: Ends the seeds of the sample, so that no other stream of random numbers is the same one.
_SAMPLE_SEED = 71


@dataclass(frozen=True, eq=False)
class TaskRows:
    """What one pass leaves, over the complete rows where nothing else is said; X is standardized if asked."""

    stream: FeatureStream
    complete: NDArray[np.bool_]  # (all rows of the file,) those without missing entries
    gaps: NDArray[np.int64]  # (D,) missing entries
    mean: Float64Array  # (D,) as in the file, like the next four
    deviation: Float64Array  # (D,) of the population; exactly 0 for a constant column
    smallest: Float64Array  # (D,)
    largest: Float64Array  # (D,)
    covariance: Float64Array  # (D, D) K = XᵀX, neither centered nor normalized (Eq. 9)
    moment: Float64Array | None  # (D, m) XᵀY, where there are targets
    energy: float  # ‖Y‖²
    drawn: Float64Array  # (n, D) rows as in the file, drawn without replacement, in their order
    places: NDArray[np.int64]  # (n,) their positions among all rows of the file
    standardized: bool

    @property
    def rows(self) -> int:
        """Number of complete rows N."""
        return int(self.complete.sum())

    @cached_property
    def stored_eps(self) -> float:
        """Machine epsilon of the stored numbers; float64 may hold numbers of a float32 file."""
        single, short = self.drawn.astype(np.float32), np.frexp(self.drawn)[0] * 2**16
        rounded = bool((single == self.drawn).all()) and not bool((short == np.rint(short)).all())
        return max(self.stream.stored_eps, 2.0**-23 if rounded else 0.0)

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


def one_hot(targets: NDArray[Any], classes: int) -> Float64Array:
    """Return labels as one column per class, the targets of a least-squares probe; numbers as they are."""
    return targets if targets.dtype.kind == "f" else np.eye(classes)[targets]


@dataclass(frozen=True, eq=False)
class _Reading:
    """What is read of each row."""

    stream: FeatureStream
    targets: NDArray[Any] | None  # labels `(N,)` or numbers `(N, m)` of all rows of the file
    shift: Float64Array  # (D,) subtracted in products: standardizing cancels unless rows are near it
    size: int  # of the sample
    seed: int

    @property
    def width(self) -> int:
        """Columns of the targets of a least-squares probe."""
        y = self.targets
        return 0 if y is None else int(y.max()) + 1 if y.dtype.kind == "i" else y.shape[1]


def read_rows(
    stream: FeatureStream,
    *,
    targets: NDArray[Any] | None = None,
    standardize: bool = False,
    seed: int = 0,
) -> TaskRows:
    """Read all rows once; `targets` are labels `(N,)` or numbers `(N, m)`, one per row of the file."""
    D = stream.dimension
    shift = np.zeros(D)
    if standardize:
        first = next((rows for block in stream.blocks() if len(rows := _complete(block)[1])), shift[None])
        shift = first.mean(axis=0)
    wide = min(SAMPLE_ROWS_PER_COLUMN * D, MOST_BYTES // (8 * D))
    size = max(SAMPLE_ROWS, SAMPLE_BYTES // (8 * D), wide)
    task = _Reading(stream, targets, shift, size, seed)
    sums: _RowSums | None = None
    for block in stream.blocks():
        part = _RowSums.of(block, 0 if sums is None else len(sums.complete), task)
        sums = part if sums is None else sums.merged(part, task)
    if sums is None:
        raise InvalidInputError(f"{stream.source} has no rows.")
    return _finished(sums, task, standardize)


def _complete(block: NDArray[Any]) -> tuple[NDArray[np.bool_], Float64Array]:
    """Return which rows have no gaps, and these rows."""
    with np.errstate(all="ignore"):  # what float64 cannot hold becomes infinite, and is refused
        X = np.asarray(block, dtype=np.float64)
    if not np.isnan(X.min(initial=np.inf)):
        return np.ones(len(X), dtype=bool), X
    kept = np.asarray(~np.isnan(X).any(axis=1))
    return kept, X[kept]


@dataclass(frozen=True, eq=False)
class _RowSums:
    """The sums over some rows that follow each other, about the shift where products are meant."""

    complete: NDArray[np.bool_]
    gaps: NDArray[np.int64]
    rows: int
    mean: Float64Array
    squares: Float64Array  # (D,) squared deviations from the mean
    smallest: Float64Array
    largest: Float64Array
    products: Float64Array  # (D, D)
    moment: Float64Array  # (D, m)
    answers: Float64Array  # (m,) Σ y
    energy: float
    keys: Float64Array  # random numbers: the rows with the smallest are the sample
    places: NDArray[np.int64]
    sample: Float64Array

    @classmethod
    def of(cls, block: NDArray[Any], start: int, task: _Reading) -> _RowSums:
        """Sum over a block of rows, the first of which is that at `start` in the file."""
        kept, X = _complete(block)
        places, D, m = start + np.flatnonzero(kept), block.shape[1], task.width
        if not np.isfinite(X).all():
            row, column = np.argwhere(np.isinf(X))[0]
            raise DataFormatError(
                f"{task.stream.source} holds infinite values, the first in data row {places[row] + 1:,d}, "
                f"column '{task.stream.columns[column]}'; replace them, or drop these rows."
            )
        gaps = np.zeros(D, np.int64) if kept.all() else np.isnan(block.astype(np.float64)).sum(axis=0)
        mean = X.mean(axis=0) if len(X) else np.zeros(D)
        Y = np.zeros((len(X), m))
        if task.targets is not None and start + len(kept) <= len(task.targets):
            Y = one_hot(task.targets[places], m)
        with np.errstate(all="ignore"):  # squares beyond float64 are refused in the end
            squares = ((X - mean) ** 2).sum(axis=0)
            near = X - task.shift if task.shift.any() else X
            products = near.T @ near  # NumPy takes the symmetric product, half the work
            moment = near.T @ Y
        extremes = X.min(axis=0, initial=np.inf), X.max(axis=0, initial=-np.inf)
        keys = np.random.default_rng([task.seed, start, _SAMPLE_SEED]).random(len(X))
        return cls(
            kept, gaps, len(X), mean, squares, *extremes, products, moment, Y.sum(axis=0),
            float((Y**2).sum()), *_least(task.size, keys, places, X),
        )  # fmt: skip

    def merged(self, other: _RowSums, task: _Reading) -> _RowSums:
        """Add the sums over the rows that follow; means by Chan, Golub and LeVeque (1983)."""
        rows, apart = max(self.rows + other.rows, 1), other.mean - self.mean
        drawn = (
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("keys", "places", "sample")
        )
        return _RowSums(
            np.concatenate([self.complete, other.complete]),
            self.gaps + other.gaps,
            self.rows + other.rows,
            self.mean + apart * (other.rows / rows),
            self.squares + other.squares + apart**2 * (self.rows * other.rows / rows),
            np.minimum(self.smallest, other.smallest),
            np.maximum(self.largest, other.largest),
            self.products + other.products,
            self.moment + other.moment,
            self.answers + other.answers,
            self.energy + other.energy,
            *_least(task.size, *drawn),
        )


def _least(size: int, keys: Any, places: Any, X: Any) -> tuple[Any, Any, Any]:
    """Keep the rows with the smallest keys, in their order."""
    if len(keys) <= size:
        return keys, places, X
    best = np.sort(np.argpartition(keys, size)[:size])
    return keys[best], places[best], X[best]


def _finished(sums: _RowSums, task: _Reading, standardize: bool) -> TaskRows:
    """Return what the sums say of X, or refuse it."""
    stream, total = task.stream, len(sums.complete)
    if task.targets is not None and len(task.targets) != total:
        raise InvalidInputError(
            f"{stream.source} has {total:,d} rows, but there are {len(task.targets):,d} targets; give "
            f"one target for each row, in the same order.{''.join(f' {note}' for note in stream.notes)}"
        )
    if sums.rows < 2:
        empty = [f"'{stream.columns[i]}'" for i in np.argsort(-sums.gaps)[:5] if 2 * sums.gaps[i] > total]
        where = f" (mostly empty: {', '.join(empty)})" if empty else ""
        raise InvalidInputError(
            f"{stream.source} has {sums.rows} row(s) without missing entries, out of {total:,d}; at "
            f"least 2 are needed: impute them, or drop the columns that are mostly empty{where}."
        )
    large = ~np.isfinite(sums.squares) | ~np.isfinite(sums.products.diagonal())
    if large.any():
        raise DataFormatError(
            f"{stream.source} holds numbers so large that their squares overflow float64 (above 1e154), in "
            f"column '{stream.columns[int(large.argmax())]}' for example; rescale or drop such columns."
        )
    variance = sums.squares / sums.rows
    deviation = np.where(constant_columns(sums.mean, variance, sums.rows), 0.0, np.sqrt(variance))
    K, moment = sums.products, sums.moment
    if standardize:
        apart, scale = sums.mean - task.shift, np.where(deviation == 0, np.inf, deviation)
        K = (K - sums.rows * np.outer(apart, apart)) / np.outer(scale, scale)
        moment = (moment - np.outer(apart, sums.answers)) / scale[:, None]
    return TaskRows(
        stream, sums.complete, sums.gaps, sums.mean, deviation, sums.smallest, sums.largest, K,
        None if task.targets is None else moment, sums.energy, sums.sample, sums.places, standardize,
    )  # fmt: skip
