"""Where blocks of rows come from: the interface, rows in memory, and what every kind of file shares."""

from __future__ import annotations

import csv
import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from condnum.errors import CondnumError, DataFormatError, DataNotFoundError

#: No file with more columns is opened: one covariance of them would take 8 TiB.
MAX_COLUMNS = 1 << 20

#: Longest first line of a table in CSV: a million names of sixteen characters.
MAX_LINE = 16 << 20

#: How the readers of archives and tables say that a file is not what it claims to be.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    csv.Error,
    EOFError,
    OverflowError,
    NotImplementedError,  # a kind of compression or of column that they do not have
    RuntimeError,  # an archive with a password
)


class RowSource(Protocol):
    """Something that hands out rows of a matrix in blocks."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the D columns."""

    @property
    def named(self) -> bool:
        """Whether the file has names."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored type."""

    @property
    def count(self) -> int | None:
        """Number of rows, where it is known."""

    def blocks(self, start: int, size: int, order: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Yield blocks of `size` rows from row `start` on, of some columns; only the last may be shorter."""

    def check_unchanged(self) -> None:
        """Raise DataFormatError if the file is not the one that was opened."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows of a matrix in memory."""

    values: NDArray[Any]  # (N, D)
    name: str
    columns: tuple[str, ...] = ()  # names, where there are any

    @property
    def named(self) -> bool:
        """Whether the columns have names."""
        return bool(self.columns)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, or `x0`, `x1` and so on."""
        return self.columns or position_names(self.values.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""
        return self.values.dtype

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.values)

    def blocks(self, start: int, size: int, order: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Yield views where all columns are kept; see `RowSource`."""
        for begin in range(start, self.count, size):
            yield in_order(self.values[begin : begin + size], order)

    def check_unchanged(self) -> None:
        """Memory has no time of change."""


@dataclass(frozen=True, eq=False)
class FileRows:
    """A file with what tells whether it changed."""

    path: Path
    names: tuple[str, ...]
    named: bool
    dtype: np.dtype[Any]
    count: int | None
    stamp: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stamp", _stamp(self.path))

    def check_unchanged(self) -> None:
        """Compare size, time of change and inode with those at opening."""
        if _stamp(self.path) != self.stamp:
            raise DataFormatError(
                f"{self.path} changed while it was read (its size, time of change or identity is another "
                "one): wait until whoever writes it is done, and run again."
            )


def stored_epsilon(dtype: np.dtype[Any]) -> float:
    """Return the machine epsilon of a stored type; integers and booleans count as float64.

    Examples:
        >>> stored_epsilon(np.dtype(np.float32)) == 2.0**-23, stored_epsilon(np.dtype(int)) == 2.0**-52
        (True, True)
    """
    return float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)


def check_shape(shape: tuple[int, ...], path: Path) -> None:
    """Refuse what is no matrix."""
    if len(shape) != 2 or 0 in shape:
        raise DataFormatError(
            f"{path} holds an array of shape {shape}; features are a matrix (N, D), one row a sample: "
            "reshape it, images for example by X.reshape(len(X), -1)."
        )
    if shape[1] > MAX_COLUMNS:
        raise DataFormatError(
            f"{path} has {shape[1]:,d} columns, above the {MAX_COLUMNS:,d} that are ever read; is it "
            "transposed? Features are a matrix (N, D), one row a sample."
        )


def in_order(block: NDArray[Any], order: Sequence[int]) -> NDArray[Any]:
    """Return the columns of a block that are kept; a block of which all are is not copied."""
    return block if tuple(order) == tuple(range(block.shape[1])) else block[:, list(order)]


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn what goes wrong on a disk or in a file into our words."""
    if path.is_dir():
        raise DataFormatError(f"{path} is a folder; give a file in it (.npy, .npz, .csv or .parquet).")
    try:
        yield
    except CondnumError:
        raise  # some of them are OSErrors too, and say more
    except _DAMAGE as error:
        raise DataFormatError(f"{path} is damaged ({_reason(error)}); write it again.") from error
    except ValueError as error:  # pandas', Arrow's and unicode errors
        raise DataFormatError(
            f"{path} is not a table of numbers ({_reason(error)}); drop or encode columns of text."
        ) from error
    except OSError as error:
        if error.errno is None:  # not the disk's: a parser's word for content that it cannot read
            raise DataFormatError(f"{path} is damaged ({_reason(error)}); write it again.") from error
        raise DataNotFoundError(f"cannot read {path}: {error.strerror or error}; check the path.") from error


def first_line(path: Path) -> list[str]:
    """Return the cells of the first line of a table in CSV."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        beginning = stream.read(MAX_LINE)
    if len(beginning) == MAX_LINE and not {"\n", "\r"} & set(beginning):
        raise DataFormatError(
            f"{path} has no end of a line in its first {MAX_LINE / 2**20:.0f} MiB; a table in CSV has a "
            "line for each row."
        )
    return next(csv.reader(io.StringIO(beginning, newline="")), [])


def position_names(count: int) -> tuple[str, ...]:
    """Return the names of columns that have none.

    Examples:
        >>> position_names(2)
        ('x0', 'x1')
    """
    return tuple(f"x{i}" for i in range(count))


def _reason(error: Exception) -> str:
    """Return what an error says in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (-1, -1, -1)
    return (status.st_size, status.st_mtime_ns, status.st_ino)
