"""Rows of NumPy's files, `.npy` by position and `.npz` from the start."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from condnum.data.row_sources import ArrayRows, FileRows, check_shape, position_names, readable
from condnum.errors import DataFormatError, UnknownNameError


@dataclass(frozen=True, eq=False)
class NpyRows(FileRows):
    """An array of `numpy.save`, read by position; Fortran order column by column."""

    offset: int
    fortran: bool

    def blocks(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Read blocks; see `RowSource`."""
        N, D = self.count or 0, len(self.names)
        with readable(self.path), self.path.open("rb", buffering=0) as stream:
            for begin in range(start, N, size):
                rows = min(size, N - begin)
                if not self.fortran:
                    stream.seek(self.offset + begin * D * self.dtype.itemsize)
                    yield self._read(stream, rows * D).reshape(rows, D)
                    continue
                block = np.empty((rows, D), dtype=self.dtype)
                for column in range(D):
                    stream.seek(self.offset + (column * N + begin) * self.dtype.itemsize)
                    block[:, column] = self._read(stream, rows)
                yield block

    def _read(self, stream: IO[bytes], count: int) -> NDArray[Any]:
        """Read `count` entries into memory of their own."""
        return _read_exactly(stream, np.empty(count, dtype=self.dtype), self.path)


@dataclass(frozen=True, eq=False)
class NpzRows(FileRows):
    """One array of an archive, read from the start, as a compressed stream must be."""

    member: str
    fortran: bool

    def blocks(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Read blocks; see `RowSource`."""
        N, D = self.count or 0, len(self.names)
        with readable(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
            _npy_header(stream, self.path)
            if self.fortran:  # columns come one after the other: there is no block without the whole
                whole = _read_exactly(stream, np.empty(N * D, dtype=self.dtype), self.path).reshape(D, N).T
                yield from ArrayRows(whole, str(self.path)).blocks(start, size)
                return
            for begin in range(0, N, size):
                rows = min(size, N - begin)
                block = _read_exactly(stream, np.empty(rows * D, dtype=self.dtype), self.path)
                if begin >= start:
                    yield block.reshape(rows, D)


def open_npy(path: Path, key: str | None) -> NpyRows:
    """Open an array of `numpy.save`; only its header is read.

    Args:
        path: The file.
        key: Not used.

    Returns:
        Its rows.

    Raises:
        DataFormatError: Not a matrix of real numbers, or cut off.
    """
    with path.open("rb") as stream:
        shape, fortran, dtype = _npy_header(stream, path)
        offset = stream.tell()
    promised = offset + shape[0] * shape[1] * dtype.itemsize
    if path.stat().st_size < promised:
        raise DataFormatError(
            f"{path} is cut off: its header promises {promised:,d} bytes, it has {path.stat().st_size:,d}; "
            "copy it again."
        )
    return NpyRows(path, position_names(shape[1]), False, dtype, shape[0], offset, fortran)


def open_npz(path: Path, key: str | None) -> NpzRows:
    """Open one array of an archive; only its header is read.

    Args:
        path: The file.
        key: Which array; may be None if there is one.

    Returns:
        Its rows.

    Raises:
        DataFormatError: Several arrays and no key, or not a matrix of real numbers.
        UnknownNameError: No such array.
    """
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info.filename for info in archive.infolist()}
        if key is None and len(members) != 1:
            raise DataFormatError(
                f"{path} holds {len(members)} arrays ({', '.join(members)}); say which by key=."
            )
        name = next(iter(members)) if key is None else key
        if name not in members:
            raise UnknownNameError(f"array of {path}", name, members)
        with archive.open(members[name]) as stream:
            shape, fortran, dtype = _npy_header(stream, path)
    return NpzRows(path, position_names(shape[1]), False, dtype, shape[0], members[name], fortran)


def _npy_header(stream: IO[bytes], path: Path) -> tuple[tuple[int, int], bool, np.dtype[Any]]:
    """Read the header of an array of numbers; leave the stream at its first entry."""
    try:
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version[0] == 1 else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise DataFormatError(f"{path} is not a NumPy file ({error}); write it with numpy.save.") from error
    if dtype.kind not in "fiub":
        raise DataFormatError(
            f"{path} holds entries of type '{dtype}'; features are real numbers: save X.astype(float). "
            "Pickled objects are never loaded."
        )
    check_shape(shape, path)
    return (int(shape[0]), int(shape[1])), bool(fortran), dtype


def _read_exactly(stream: IO[bytes], into: NDArray[Any], path: Path) -> NDArray[Any]:
    """Fill an array from a stream, which may hand out less at a time."""
    view, done = into.view(np.uint8).data, 0
    while done < len(view):
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise DataFormatError(f"{path} ends before its last row; it is cut off, or being written.")
        done += got
    return into
