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
from condnum.errors import DataFormatError, InvalidInputError

#: A block holds at most this much, counted as float32: large enough for matrix products at full speed.
BLOCK_BYTES = 128 << 20
#: Rows of a block of narrow features.
MAX_BLOCK_ROWS = 65_536
#: Widest features that are accepted unless the caller says otherwise.
MAX_DIMENSION = 20_000

_OPENERS: dict[str, Callable[[Path, str | None], RowSource]] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".csv": open_csv,
    ".parquet": open_parquet,
}


@dataclass(frozen=True, eq=False)
class FeatureStream:
    """A feature matrix X as a sequence of blocks of rows; it can be read any number of times."""

    rows: RowSource  # where blocks come from
    columns: tuple[str, ...]  # D names, of the columns that are kept, in their order
    named: bool  # whether the file named its columns
    stored_eps: float  # machine epsilon of the stored type; that of float64 for integers and text
    source: str  # the path as given, or a name
    order: tuple[int, ...] | None = None  # positions of the kept columns in the file; None: all

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

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of rows in the stored type.

        Args:
            first: Index of the first block.
            last: Index behind the last block; None reads to the end.

        Yields:
            `(block_rows, D)`, fewer rows in the last block of the file.

        Raises:
            DataFormatError: The file changed while it was read, or is damaged.
        """
        for index, block in enumerate(
            self.rows.blocks(first * self.block_rows, self.block_rows), start=first
        ):
            if last is not None and index >= last:
                return
            yield block if self.order is None else block[:, self.order]
            self.rows.check_unchanged()
        self.rows.check_unchanged()

    def select(self, columns: Sequence[str]) -> FeatureStream:
        """Return a stream of some of the columns, in the order asked for.

        Args:
            columns: Names among `columns`, each once.

        Returns:
            A new stream of the same rows.

        Examples:
            >>> stream = array_stream(np.array([[1.0, 2.0, 3.0]])).select(["x2", "x0"])
            >>> next(stream.blocks())
            array([[3., 1.]])
        """
        if tuple(columns) == self.columns:
            return self
        before = self.order or tuple(range(self.dimension))
        place = {name: before[i] for i, name in enumerate(self.columns)}
        return replace(self, columns=tuple(columns), order=tuple(place[name] for name in columns))


def open_feature_stream(
    path: str | os.PathLike[str], *, key: str | None = None, max_dimension: int = MAX_DIMENSION
) -> FeatureStream:
    r"""Open a feature matrix for reading in blocks; the file's ending says how.

    `.npy` is read by position (either order of memory), `.parquet` by row groups, `.csv` and `.npz` from
    the start. As `read_feature_table`, but without a limit on the number of rows.

    Args:
        path: The file; `~` is expanded.
        key: Which array of an `.npz`; may be left out if it holds one.
        max_dimension: Largest D: a covariance takes 8·D² bytes.

    Returns:
        The stream; nothing but the header is read yet.

    Raises:
        DataNotFoundError: No such file, or it cannot be read.
        DataFormatError: Another ending, a damaged file, a pickle, or not a matrix of real numbers.
        UnknownNameError: A key that the file does not have.
        MissingExtraError: A parquet file without pyarrow.
        InvalidInputError: More columns than `max_dimension`, or a column name that occurs twice.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder) / "X.npy", np.ones((5, 2), np.float32))
        ...     stream = open_feature_stream(Path(folder) / "X.npy")
        ...     [block.shape for block in stream.blocks()], stream.stored_eps == 2.0**-23
        ([(5, 2)], True)
    """
    file = Path(path).expanduser()
    if file.suffix.lower() not in _OPENERS:
        raise DataFormatError(
            f"{path} ends in '{file.suffix}', which is no table of features; save it as one of "
            f"{', '.join(_OPENERS)}."
        )
    with readable(file):
        rows = _OPENERS[file.suffix.lower()](file, key)
    return _stream(rows, str(path), max_dimension)


def array_stream(
    features: NDArray[Any], *, name: str = "features", max_dimension: int = MAX_DIMENSION
) -> FeatureStream:
    """Return a stream over a matrix in memory.

    Args:
        features: `(N, D)` of real numbers.
        name: For messages.
        max_dimension: As for `open_feature_stream`.

    Returns:
        The stream.

    Raises:
        InvalidInputError: Not a matrix of real numbers, empty, or too wide.

    Examples:
        >>> array_stream(np.eye(3)).columns
        ('x0', 'x1', 'x2')
    """
    X = np.asarray(features)
    if X.ndim != 2 or 0 in X.shape or X.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"{name} must be a matrix (N, D) of real numbers, got shape {X.shape} of {X.dtype}."
        )
    return _stream(ArrayRows(X, name), name, max_dimension)


def match_streams(
    pretrain: FeatureStream, harmful: FeatureStream
) -> tuple[FeatureStream, FeatureStream, list[str]]:
    """Bring two streams to the same columns: by name when both files name them, else by position.

    Args:
        pretrain: Inputs of the pre-training task.
        harmful: Inputs of the harmful task.

    Returns:
        Both streams over the same D columns, and a sentence for each thing that had to be done for it.

    Raises:
        InvalidInputError: Different numbers of columns that cannot be matched by name, or none in common.

    Examples:
        >>> P, H = array_stream(np.eye(3)), array_stream(np.ones((4, 3)))
        >>> match_streams(P, H)[2]
        []
    """
    P, H = pretrain, harmful
    if not (P.named and H.named):
        if P.dimension != H.dimension:
            raise InvalidInputError(
                f"{P.source} has {P.dimension} columns and {H.source} has {H.dimension}: both tasks share "
                "one feature space. Give both the same columns, or name them (csv, parquet), so that they "
                "can be matched."
            )
        mixed = P.named != H.named
        return P, H, ["Only one file names its columns; they are matched by position."] if mixed else []
    shared = [name for name in P.columns if name in set(H.columns)]
    if not shared:
        raise InvalidInputError(
            f"{P.source} and {H.source} have no column in common (the first starts with '{P.columns[0]}', "
            f"the other with '{H.columns[0]}'); is one of the files without a line of names?"
        )
    notes = []
    for stream in (P, H):
        alone = [name for name in stream.columns if name not in set(shared)]
        if alone:
            shown = ", ".join(alone[:5]) + (", …" if len(alone) > 5 else "")
            notes.append(f"{len(alone)} column(s) that only {stream.source} has are left out ({shown}).")
    return P.select(shared), H.select(shared), notes


def refuse_non_finite(stream: FeatureStream) -> None:
    """Read a stream once more to say which of its rows are not finite.

    Args:
        stream: Whose sums came out as NaN or infinity.

    Raises:
        DataFormatError: Always: with the number of such rows, the first one, and columns that are empty.
    """
    wrong, first, seen = 0, -1, 0
    filled = np.zeros(stream.dimension, dtype=bool)
    for block in stream.blocks():
        finite = np.isfinite(block) if block.dtype.kind == "f" else np.ones(block.shape, dtype=bool)
        bad = np.flatnonzero(~finite.all(axis=1))
        if len(bad) and first < 0:
            first = seen + int(bad[0])
        wrong, seen = wrong + len(bad), seen + len(block)
        filled |= finite.any(axis=0)
    empty = [name for name, some in zip(stream.columns, filled, strict=True) if not some]
    if empty:
        shown = ", ".join(empty[:5]) + (", …" if len(empty) > 5 else "")
        raise DataFormatError(
            f"{stream.source} has {len(empty)} empty column(s) ({shown}): no entry of them is a finite "
            "number; leave them out."
        )
    if wrong:
        raise DataFormatError(
            f"{stream.source} has {wrong:,d} of {seen:,d} rows with NaN or infinite entries, the first is "
            f"row {first:,d} (counted from 0); impute or drop these rows."
        )
    raise DataFormatError(
        f"{stream.source} holds numbers so large that their squares overflow float64 (above 1e154); "
        "rescale them."
    )


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
    return FeatureStream(rows, rows.names, rows.named, stored_epsilon(rows.dtype), source)
