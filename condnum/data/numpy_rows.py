"""Rows of NumPy's files, `.npy` by position and `.npz` from the start."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.npy_header import array_member, fill_exactly, read_npy_header
from condnum.data.row_sources import ArrayRows, FileRows, check_shape, in_order, position_names, readable
from condnum.errors import DataFormatError

#: Largest array in Fortran order that is taken out of an archive whole.
WHOLE_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class NpyRows(FileRows):
    """An array of `numpy.save`, read by position; Fortran order column by column."""

    offset: int
    fortran: bool

    def blocks(self, start: int, size: int, order: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Read blocks; see `RowSource`."""
        N, D = self.count or 0, len(self.names)
        with readable(self.path), self.path.open("rb", buffering=0) as stream:
            for begin in range(start, N, size):
                rows = min(size, N - begin)
                if not self.fortran:
                    stream.seek(self.offset + begin * D * self.dtype.itemsize)
                    yield in_order(self._read(stream, rows * D).reshape(rows, D), order)
                    continue
                block = np.empty((rows, len(order)), dtype=self.dtype)
                for place, column in enumerate(order):
                    stream.seek(self.offset + (column * N + begin) * self.dtype.itemsize)
                    block[:, place] = self._read(stream, rows)
                yield block

    def _read(self, stream: IO[bytes], count: int) -> NDArray[Any]:
        """Read `count` entries into memory of their own."""
        return _read_exactly(stream, np.empty(count, dtype=self.dtype), self.path)


@dataclass(frozen=True, eq=False)
class NpzRows(FileRows):
    """One array of an archive, read from the start, as a compressed stream must be."""

    member: str
    fortran: bool

    def blocks(self, start: int, size: int, order: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Read blocks; see `RowSource`."""
        N, D = self.count or 0, len(self.names)
        with readable(self.path), zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
            read_npy_header(stream, archive.getinfo(self.member).file_size, self.path)
            if self.fortran:  # columns come one after the other: there is no block without the whole
                whole = _read_exactly(stream, np.empty(N * D, dtype=self.dtype), self.path).reshape(D, N).T
                yield from ArrayRows(whole, str(self.path)).blocks(start, size, order)
                return
            for begin in range(0, N, size):
                rows = min(size, N - begin)
                block = _read_exactly(stream, np.empty(rows * D, dtype=self.dtype), self.path)
                if begin >= start:
                    yield in_order(block.reshape(rows, D), order)


def open_npy(path: Path, key: str | None) -> NpyRows:
    """Open an array of `numpy.save`; only its header is read."""
    with path.open("rb") as stream:
        found = read_npy_header(stream, path.stat().st_size, path)
    check_shape(found.shape, path)
    N, D = found.shape
    return NpyRows(path, position_names(D), False, found.dtype, N, found.offset, found.fortran)


def open_npz(path: Path, key: str | None) -> NpzRows:
    """Open one array of an archive; only its header is read."""
    with zipfile.ZipFile(path) as archive:
        member = array_member(archive, path, key)
        with archive.open(member) as stream:
            found = read_npy_header(stream, member.file_size, path)
    check_shape(found.shape, path)
    if found.fortran and found.size * found.dtype.itemsize > WHOLE_BYTES:
        raise DataFormatError(
            f"{path} holds its columns one after the other (Fortran order), and a compressed file "
            "cannot be read by rows then; save numpy.ascontiguousarray(X), or save it with numpy.save."
        )
    N, D = found.shape
    return NpzRows(path, position_names(D), False, found.dtype, N, member.filename, found.fortran)


def _read_exactly(stream: IO[bytes], into: NDArray[Any], path: Path) -> NDArray[Any]:
    """Fill an array from a stream and return it."""
    fill_exactly(stream, into, path)
    return into
