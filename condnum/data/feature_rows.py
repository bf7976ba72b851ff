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
    size = max(SAMPLE_ROWS, SAMPLE_BYTES // (8 * D))
    sums = _RowSums(stream, targets, shift, size, seed)
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
    """The sums over the rows so far, about the shift where products are meant."""

    def __init__(
        self, stream: FeatureStream, targets: NDArray[Any] | None, shift: Float64Array, size: int, seed: int
    ) -> None:
        """Begin with no rows; standardizing cancels unless the shift `(D,)` is near them."""
        self.stream, self.targets, self.shift, self.size, self.seed = stream, targets, shift, size, seed
        D, y = stream.dimension, targets
        self.width = 0 if y is None else int(y.max()) + 1 if y.dtype.kind == "i" else y.shape[1]
        self.complete = np.empty(0, dtype=bool)
        self.gaps, self.rows = np.zeros(D, np.int64), 0
        self.mean, self.squares = np.zeros((2, D))  # squared deviations from the mean
        self.products, self.moment = np.zeros((D, D)), np.zeros((D, self.width))
        self.answers, self.energy = np.zeros(self.width), 0.0  # Σ y, Σ y²
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
        Y = np.zeros((len(X), self.width))
        if self.targets is not None and len(self.complete) <= len(self.targets):
            Y = one_hot(self.targets[places], self.width)
        rows, mean = max(self.rows + len(X), 1), X.mean(axis=0) if len(X) else np.zeros(X.shape[1])
        apart = mean - self.mean
        with np.errstate(all="ignore"):  # squares beyond float64 are refused in the end
            self.squares += ((X - mean) ** 2).sum(axis=0)
            self.squares += apart**2 * (self.rows * len(X) / rows)
            near = X - self.shift if self.shift.any() else X
            self.products += near.T @ near  # NumPy takes the symmetric product, half the work
            self.moment += near.T @ Y
        self.mean = self.mean + apart * (len(X) / rows)
        self.rows += len(X)
        self.answers += Y.sum(axis=0)
        self.energy += float((Y**2).sum())
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
        large = ~np.isfinite(self.squares) | ~np.isfinite(self.products.diagonal())
        if large.any():
            raise DataFormatError(
                f"{stream.source} holds numbers so large that their squares overflow float64 (above 1e154), "
                f"in column '{stream.columns[int(large.argmax())]}' for example; rescale such columns, "
                "or drop them."
            )
        variance = self.squares / self.rows
        deviation = np.where(constant_columns(self.mean, variance, self.rows), 0.0, np.sqrt(variance))
        K, moment = self.products, self.moment
        if standardize:
            apart, scale = self.mean - self.shift, np.where(deviation == 0, np.inf, deviation)
            K = (K - self.rows * np.outer(apart, apart)) / np.outer(scale, scale)
            moment = (moment - np.outer(apart, self.answers)) / scale[:, None]
        return TaskRows(
            stream, self.complete, self.gaps, self.mean, deviation, K,
            None if self.targets is None else moment, self.energy, self.drawn[2], self.drawn[1], standardize,
        )  # fmt: skip
