"""Feature matrices that need not fit in memory: read in blocks of rows, by explicit reads.

A memory map would count every page that it has touched as resident memory, and end the process where a file
is cut while it is read; here a block is read into a buffer of its own and freed. A file that changes while
it is read is noticed by its size, its time of change and its inode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.feature_files import OPENERS, Opened, Reader, open_value
from condnum.data.task_pair import Float64Array
from condnum.errors import CondnumError, DataFormatError, DataNotFoundError, InvalidInputError

#: A block holds at most this much, counted as float32: large enough for matrix products at full speed.
BLOCK_BYTES = 128 << 20
#: Rows of a block of narrow features.
MAX_BLOCK_ROWS = 65_536
#: Largest matrix, as float64, that is taken into memory whole: 1 GiB.
WHOLE_BYTES = 1 << 30
#: Widest features that are accepted.
MAX_FEATURES = 20_000


@dataclass(frozen=True, eq=False)
class FeatureStream:
    """A feature matrix X as a sequence of blocks of rows; it can be read any number of times.

    Rows with missing entries (NaN) are left out wherever rows are read, but for `raw_blocks`.
    """

    source: str  # the path as given, or a name
    read: Reader
    columns: tuple[str, ...]  # D names, of the columns that are kept, in their order
    order: tuple[int, ...]  # positions of the kept columns in the file
    width: int  # columns of the file
    named: bool  # whether the file named its columns
    dtype: np.dtype[Any]  # the stored type; float64 for text
    count: int | None  # rows; None where only reading tells
    stamp: tuple[int, int, int] | None  # of the file when it was opened; None: rows in memory
    stored_eps: float  # machine epsilon of the stored type; integers and booleans count as float64
    notes: tuple[str, ...] = ()  # what was understood of the file, in sentences
    column: Callable[[], pd.Series] | None = None  # the only column of a table, text or not
    centre: Float64Array | None = None  # (D,) is subtracted, where columns are standardized
    scale: Float64Array | None = None  # (D,) divides; 0 turns a constant column into zeros

    @property
    def dimension(self) -> int:
        """Number of columns D."""
        return len(self.columns)

    @property
    def block_rows(self) -> int:
        """Rows of a block: a power of two that depends on the width alone: every reader has the same grid."""
        fitting = max(1, BLOCK_BYTES // (4 * self.width))
        return int(min(MAX_BLOCK_ROWS, 2 ** (fitting.bit_length() - 1)))

    def raw_blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of rows in the stored type, rows with gaps and all, as they are in the file."""
        path = Path(self.source).expanduser()
        whole = self.order == tuple(range(self.width))  # a block of which all columns are kept is not copied
        with _readable(path) if self.stamp else nullcontext():
            blocks = self.read(first, self.block_rows, slice(None) if whole else list(self.order))
            for block in islice(blocks, None if last is None else last - first):
                yield block
                if self.stamp and _stamp(path) != self.stamp:
                    raise DataFormatError(
                        f"{path} changed while it was read (its size, modification time or identity "
                        "differs): wait until it is written completely, and run again."
                    )

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of complete rows, standardized where that was asked for; else as `raw_blocks`."""
        for block in self.raw_blocks(first, last):
            if block.dtype.kind == "f" and np.isnan(block.min()):
                block = block[~np.isnan(block).any(axis=1)]
            if self.centre is not None and self.scale is not None:
                flat = self.scale == 0
                block = np.where(flat, 0.0, (block - self.centre) / np.where(flat, 1.0, self.scale))
            yield block

    def array(self, *, gaps: Literal["drop", "refuse"] = "drop") -> Float64Array:
        """Return the rows in memory: the complete ones, or all of them, which then have to be finite."""
        parts, size = [np.empty((0, self.dimension))], 0
        for block in self.blocks() if gaps == "drop" else self.raw_blocks():
            size += 8 * block.size
            if size > WHOLE_BYTES:
                raise DataFormatError(
                    f"{self.source} takes more than {WHOLE_BYTES >> 20:,d} MiB as float64; use fewer rows "
                    "or columns, or run condnum audit, which reads the file in blocks."
                )
            with np.errstate(all="ignore"):  # numbers beyond float64 become infinite
                parts.append(np.asarray(block, dtype=np.float64))
        X = np.concatenate(parts)
        if gaps == "refuse" and not np.isfinite(X).all():
            first = int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise InvalidInputError(
                f"{self.source} has NaN or infinite entries, the first in row {first}; drop or replace them."
            )
        return X

    def targets(self) -> NDArray[Any] | pd.Series:
        """Return targets as they are stored: finite numbers `(N, m)`, or one column of integers or text."""
        if self.column is not None:
            with _readable(Path(self.source)) if self.stamp else nullcontext():
                column = self.column()
            if not pd.api.types.is_float_dtype(column):
                return column
        numbers = self.array(gaps="refuse")
        return numbers.astype(np.int64) if self.column is None and self.dtype.kind in "iub" else numbers

    def select(self, columns: Sequence[str]) -> FeatureStream:
        """Return a stream of some of the columns, in the order asked for."""
        place = dict(zip(self.columns, self.order, strict=True))
        return replace(self, columns=tuple(columns), order=tuple(place[name] for name in columns))


#: A matrix of any kind (array, tensor, data frame, sparse), where to find one, or a stream of one.
FeaturesLike = Any


def as_stream(
    features: FeaturesLike,
    *,
    name: str = "features",
    columns: Sequence[str] = (),
    key: str | None = None,
    vector: bool = False,
) -> FeatureStream:
    """Return a stream of features, wherever they are; with `vector`, `(N,)` numbers count as one column.

    An array in memory is called by `name`, its columns by `columns`; `key` names an array of an archive.
    """
    if isinstance(features, FeatureStream):
        return features
    if not isinstance(features, str | os.PathLike):
        opened = open_value(features, name, vector)
        return _stream(name, replace(opened, names=tuple(columns) or opened.names), None)
    file = Path(features).expanduser()
    with _readable(file):
        ending = next((own for own in OPENERS if file.name.lower().endswith(own)), None)
        if ending is None:
            raise DataFormatError(
                f"{features} ends in '{file.suffix}', which is not a supported format; read it with the "
                "library that wrote it, and save it with DataFrame.to_parquet or numpy.save. Formats: "
                f"{', '.join(OPENERS)}."
            )
        return _stream(str(features), OPENERS[ending](file, key, vector), _stamp(file))


def _stream(source: str, opened: Opened, stamp: tuple[int, int, int] | None) -> FeatureStream:
    """Refuse what is not a matrix of numbers, and say how columns without names are called."""
    shape, dtype, names = opened.shape, opened.dtype, opened.names
    error = InvalidInputError if stamp is None else DataFormatError
    if 0 in shape:
        raise error(f"{source} is empty: its shape is {shape}; check how it was written, and write it again.")
    if len(shape) != 2 or dtype.kind not in "fiub":
        raise error(
            f"{source} holds an array of shape {shape} and type {dtype}; expected a matrix (N, D) of "
            "real numbers with one row per sample: save X.astype(float), images as X.reshape(len(X), -1)."
        )
    N, D = shape
    if D > MAX_FEATURES:
        raise InvalidInputError(
            f"{source} has D = {D:,d} columns, above the limit of {MAX_FEATURES:,d}. One covariance takes "
            f"{8 * D**2 / 2**30:.1f} GiB in float64, and an audit "
            "needs six of them: project the features to fewer columns."
        )
    columns = names or tuple(f"x{i}" for i in range(D))
    if len(set(columns)) < D:
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InvalidInputError(f"{source} has the column '{twice}' twice; rename or drop one.")
    eps = opened.eps or float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)
    return FeatureStream(
        source, opened.read, columns, tuple(range(D)), D, bool(names), dtype, N, stamp, eps, opened.notes,
        opened.column,
    )  # fmt: skip


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what tells whether a file changed."""
    try:
        status = os.stat(path)
    except OSError:
        return (-1, -1, -1)
    return (status.st_size, status.st_mtime_ns, status.st_ino)


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Turn whatever readers of arrays, archives and tables raise about a damaged file into our words."""
    if path.is_dir():
        raise DataFormatError(f"{path} is a folder; give a file in it, such as a .npy, .csv or .parquet.")
    try:
        yield
    except (CondnumError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataNotFoundError(
                f"cannot read {path}: {error.strerror or error}; check the path."
            ) from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataFormatError(
            f"{path} is damaged or does not match its extension "
            f"({reason}); write it again, with numbers only."
        ) from error
