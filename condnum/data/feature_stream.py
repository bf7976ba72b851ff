r"""Feature matrices that need not fit in memory: read in blocks of rows, by explicit reads.

A memory map would count every page that it has touched as resident memory; here a block is read into a
buffer of its own and freed. Nothing in a file is executed, and a file that changes while it is read is
noticed by its size, its time of change and its inode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.numpy_rows import open_npy, open_npz
from condnum.data.row_sources import ArrayRows, RowSource, readable, stored_epsilon
from condnum.data.table_rows import open_csv, open_parquet
from condnum.data.task_arrays import FloatArray
from condnum.errors import DataFormatError, InvalidInputError

#: A block holds at most this much, counted as float32: large enough for matrix products at full speed.
BLOCK_BYTES = 128 << 20
#: Rows of a block of narrow features.
MAX_BLOCK_ROWS = 65_536
#: Widest features that are accepted unless the caller says otherwise.
MAX_DIMENSION = 20_000

#: Largest matrix, as float64, that is taken into memory whole unless the caller says otherwise: 1 GiB.
MAX_BYTES = 1 << 30

OPENERS: dict[str, Callable[[Path, str | None], RowSource]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".csv": open_csv,
    ".parquet": open_parquet,
}


@dataclass(frozen=True, eq=False)
class FeatureStream:
    """A feature matrix X as a sequence of blocks of rows; it can be read any number of times.

    Rows with missing entries (NaN) are left out wherever rows are read, but for `raw_blocks`.
    """

    rows: RowSource  # where blocks come from
    columns: tuple[str, ...]  # D names, of the columns that are kept, in their order
    named: bool  # whether the file named its columns
    stored_eps: float  # machine epsilon of the stored type; that of float64 for integers and text
    source: str  # the path as given, or a name
    order: tuple[int, ...]  # positions of the kept columns in the file
    centre: FloatArray | None = None  # (D,) is subtracted, where columns are standardised
    scale: FloatArray | None = None  # (D,) divides; 0 turns a constant column into zeros

    @property
    def dimension(self) -> int:
        """Number of columns D."""
        return len(self.columns)

    @property
    def count(self) -> int | None:
        """Number of rows N; None where only reading tells."""
        return self.rows.count

    @property
    def block_rows(self) -> int:
        """Rows of a block: a power of two that depends on D alone, so that every reader has the same grid.

        Examples:
            >>> array_stream(np.zeros((3, 512))).block_rows
            65536
        """
        fitting = max(1, BLOCK_BYTES // (4 * len(self.rows.names)))
        return int(min(MAX_BLOCK_ROWS, 2 ** (fitting.bit_length() - 1)))

    def raw_blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of rows in the stored type, rows with gaps and all, as they are in the file."""
        blocks = self.rows.blocks(first * self.block_rows, self.block_rows, self.order)
        for index, block in enumerate(blocks, start=first):
            if last is not None and index >= last:
                return
            yield block
            self.rows.check_unchanged()
        self.rows.check_unchanged()

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of complete rows, standardised where that was asked for; else as `raw_blocks`.

        Examples:
            >>> X = np.array([[1.0, 2.0], [np.nan, 3.0]])
            >>> next(array_stream(X).blocks()).tolist()
            [[1.0, 2.0]]
        """
        for block in self.raw_blocks(first, last):
            if block.dtype.kind == "f" and np.isnan(block.min()):
                block = block[~np.isnan(block).any(axis=1)]
            if self.centre is not None and self.scale is not None:
                flat = self.scale == 0
                block = np.where(flat, 0.0, (block - self.centre) / np.where(flat, 1.0, self.scale))
            yield block

    def array(self, max_bytes: int = MAX_BYTES) -> FloatArray:
        """Return all complete rows in memory."""
        parts, size = [], 0
        for block in self.blocks():
            size += 8 * block.size
            if size > max_bytes:
                raise DataFormatError(
                    f"{self.source} takes more than {max_bytes / 2**20:,.1f} MiB as float64; take fewer rows "
                    "(κ is that of a sample anyway) or fewer columns, or run condnum audit, which reads "
                    "it in "
                    "blocks."
                )
            parts.append(np.asarray(block, dtype=np.float64))
        return np.concatenate(parts) if parts else np.empty((0, self.dimension))

    def select(self, columns: Sequence[str]) -> FeatureStream:
        """Return a stream of some of the columns, in the order asked for.

        Examples:
            >>> stream = array_stream(np.array([[1.0, 2.0, 3.0]])).select(["x2", "x0"])
            >>> next(stream.blocks())
            array([[3., 1.]])
        """
        if tuple(columns) == self.columns:
            return self
        place = dict(zip(self.columns, self.order, strict=True))
        return replace(self, columns=tuple(columns), order=tuple(place[name] for name in columns))


def open_feature_stream(
    path: str | os.PathLike[str], *, key: str | None = None, max_dimension: int = MAX_DIMENSION
) -> FeatureStream:
    r"""Open a feature matrix for reading in blocks; the file's ending says how.

    `.npy` is read by position (either order of memory), `.parquet` by row groups, `.csv` and `.npz` from
    the start. A CSV is separated by commas and has a line of names unless every cell of its first line is a
    number; empty cells and NA are NaN. Nothing in a file is executed: pickles are refused.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder) / "X.npy", np.ones((5, 2), np.float32))
        ...     stream = open_feature_stream(Path(folder) / "X.npy")
        ...     [block.shape for block in stream.blocks()], stream.stored_eps == 2.0**-23
        ([(5, 2)], True)
    """
    file = Path(path).expanduser()
    with readable(file):
        if file.suffix.lower() not in OPENERS:
            raise DataFormatError(
                f"{path} ends in '{file.suffix}', which is no table of features; save it as one of "
                f"{', '.join(OPENERS)}."
            )
        rows = OPENERS[file.suffix.lower()](file, key)
    return _stream(rows, str(path), max_dimension)


def array_stream(
    features: NDArray[Any],
    *,
    name: str = "features",
    columns: Sequence[str] = (),
    max_dimension: int = MAX_DIMENSION,
) -> FeatureStream:
    """Return a stream over a matrix in memory.

    Examples:
        >>> array_stream(np.eye(3)).columns
        ('x0', 'x1', 'x2')
    """
    X = np.asarray(features)
    if X.ndim != 2 or 0 in X.shape or X.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{name} must be a matrix (N, D) of real numbers, got shape {X.shape} of {X.dtype}."
        )
    return _stream(ArrayRows(X, name, tuple(columns)), name, max_dimension)


def _stream(rows: RowSource, source: str, max_dimension: int) -> FeatureStream:
    """Check names and width of an open source."""
    D = len(rows.names)
    if max_dimension < D:
        gib = 8 * D**2 / 2**30
        raise InvalidInputError(
            f"{source} has D = {D:,d} columns, above the limit of {max_dimension:,d}. One covariance "
            f"takes {gib:.1f} GiB in float64, those of an audit with their eigenvectors about {6 * gib:.0f} "
            "GiB, and an eigendecomposition takes time in D³. Project the features to fewer columns, or "
            "raise the limit (max_dimension=, --max-dimension) on a machine that has this memory."
        )
    if len(set(rows.names)) < D:
        twice = next(name for name in rows.names if rows.names.count(name) > 1)
        raise InvalidInputError(f"{source} has the column '{twice}' twice; rename or drop one.")
    return FeatureStream(rows, rows.names, rows.named, stored_epsilon(rows.dtype), source, tuple(range(D)))
