"""Where blocks of rows come from: the interface, rows in memory, and what every kind of file shares."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from condnum.errors import CondnumError, DataFormatError, DataNotFoundError


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

    def blocks(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield blocks of exactly `size` rows from row `start` on; the last one may be shorter."""

    def check_unchanged(self) -> None:
        """Raise DataFormatError if the file is not the one that was opened."""


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows of a matrix in memory."""

    values: NDArray[Any]  # (N, D)
    name: str
    named: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """`x0`, `x1` and so on."""
        return position_names(self.values.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""
        return self.values.dtype

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.values)

    def blocks(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield views; see `RowSource`."""
        for begin in range(start, self.count, size):
            yield self.values[begin : begin + size]

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
    """Refuse what is no matrix.

    Args:
        shape: Of an array in a file.
        path: The file, for the message.

    Raises:
        DataFormatError: Not two-dimensional, or empty.
    """
    if len(shape) != 2 or 0 in shape:
        raise DataFormatError(
            f"{path} holds an array of shape {shape}; features are a matrix (N, D), one row a sample: "
            "reshape it, images for example by X.reshape(len(X), -1)."
        )


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn what goes wrong on a disk or in a file into our words."""
    try:
        yield
    except CondnumError:
        raise  # some of them are OSErrors too, and say more
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataFormatError(f"{path} is damaged ({error}); write it again.") from error
    except ValueError as error:  # pandas', Arrow's and unicode errors
        raise DataFormatError(
            f"{path} is not a table of numbers ({' '.join(str(error).split())}); "
            "drop or encode columns of text."
        ) from error
    except OSError as error:
        raise DataNotFoundError(f"cannot read {path}: {error.strerror or error}; check the path.") from error


def position_names(count: int) -> tuple[str, ...]:
    """Return the names of columns that have none.

    Examples:
        >>> position_names(2)
        ('x0', 'x1')
    """
    return tuple(f"x{i}" for i in range(count))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (-1, -1, -1)
    return (status.st_size, status.st_mtime_ns, status.st_ino)
