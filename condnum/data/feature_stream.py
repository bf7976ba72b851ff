"""Feature matrices that need not fit in memory: read in blocks of rows, by explicit reads.

A memory map would count every page that it has touched as resident memory; here a block is read into a
buffer of its own and freed. Nothing in a file is executed, and a file that changes while it is read is
noticed by its size, its time of change and its inode.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pandas as pd
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from condnum.data.task_pair import FloatArray
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    UnknownNameError,
    require,
)

# Where blocks of rows come from: the interface, rows in memory, and what every kind of file shares.


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


# The header of a NumPy array, read with suspicion: are there as many bytes as it promises?


#: An archive that unpacks to more than this is looked at: arrays of real measurements shrink by less than
#: `BOMB_RATIO`, and deflate can do at most 1032.
BOMB_BYTES, BOMB_RATIO = 64 << 20, 200

#: Versions of the format; numpy.save writes the first that can hold the header.
_VERSIONS = ((1, 0), (2, 0), (3, 0))

#: Longest header that is read; NumPy itself refuses to parse more than 10,000 characters.
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class NpyHeader:
    """What the header of an array says."""

    shape: tuple[int, ...]
    fortran: bool  # columns come one after the other
    dtype: np.dtype[Any]
    offset: int  # of the first entry

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def read_npy_header(stream: IO[bytes], size: int, path: Path, kinds: str = "fiub") -> NpyHeader:
    """Read the header of an array; leave the stream at its first entry.

    Examples:
        >>> import io
        >>> stream = io.BytesIO()
        >>> np.save(stream, np.zeros((2, 3)))
        >>> size = stream.seek(0, 2)
        >>> _ = stream.seek(0)
        >>> read_npy_header(stream, size, Path("X.npy")).shape
        (2, 3)
    """
    try:
        version = npy_format.read_magic(stream)
        _check_version(version)
        header = _header(stream, 2 if version[0] == 1 else 4)
        read = npy_format.read_array_header_1_0 if version[0] == 1 else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(io.BytesIO(header))
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataFormatError(f"{path} is not a NumPy file ({reason}); write it with numpy.save.") from error
    if dtype.kind not in kinds or dtype.hasobject or not dtype.itemsize:
        raise DataFormatError(
            f"{path} holds entries of type '{dtype}'; features are real numbers: save X.astype(float). "
            "Pickled objects are never loaded."
        )
    found = NpyHeader(tuple(int(n) for n in shape), bool(fortran), dtype, stream.tell())
    promised = found.offset + found.size * dtype.itemsize
    if min(found.shape, default=0) < 0 or promised > size:
        raise DataFormatError(
            f"{path} is cut off: its header promises {promised:,d} bytes for an array of shape "
            f"{found.shape}, it has {size:,d}; copy it again."
        )
    return found


def _check_version(version: tuple[int, int]) -> None:
    """Refuse a version that NumPy does not write."""
    if version not in _VERSIONS:
        raise ValueError(f"format version {version[0]}.{version[1]}")


def read_npy(stream: IO[bytes], header: NpyHeader, path: Path) -> NDArray[Any]:
    """Read the entries that follow a header."""
    flat = np.empty(header.size, dtype=header.dtype)
    fill_exactly(stream, flat, path)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def fill_exactly(stream: IO[bytes], into: NDArray[Any], path: Path) -> None:
    """Fill an array from a stream, which may hand out less at a time."""
    view, done = into.view(np.uint8).data if into.size else memoryview(b""), 0
    while done < len(view):
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise DataFormatError(f"{path} ends before its last row; it is cut off, or being written.")
        done += got


def _header(stream: IO[bytes], width: int) -> bytes:
    """Return the length field and the text of a header, which is not read if it is absurdly long."""
    field = stream.read(width)
    length = int.from_bytes(field, "little")
    if length > _MAX_HEADER:
        raise ValueError(f"a header of {length:,d} bytes")
    return field + stream.read(length)


def array_member(archive: zipfile.ZipFile, path: Path, key: str | None) -> zipfile.ZipInfo:
    """Find an array in an archive of `numpy.savez`."""
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if key is None and len(members) != 1:
        shown = ", ".join(list(members)[:8]) + (", …" if len(members) > 8 else "")
        raise DataFormatError(f"{path} holds {len(members)} arrays ({shown}); say which by key=.")
    name = next(iter(members)) if key is None else key
    if name not in members:
        raise UnknownNameError(f"array of {path}", name, members)
    check_expansion(members[name].file_size, path.stat().st_size, path)
    return members[name]


def check_expansion(unpacked: int, stored: int, path: Path) -> None:
    """Refuse a file that unpacks to far more than a file of measurements does.

    Examples:
        >>> check_expansion(10**10, 10**6, Path("zeros.npz"))
        Traceback (most recent call last):
            ...
        condnum.errors.DataFormatError: zeros.npz takes 1.0 MB and would unpack to 10,000.0 MB, ...
    """
    if unpacked > max(BOMB_BYTES, BOMB_RATIO * stored):
        raise DataFormatError(
            f"{path} takes {stored / 1e6:.1f} MB and would unpack to {unpacked / 1e6:,.1f} MB, which no "
            "measurements do: it is damaged, made to fill the memory, or holds one value over and over. "
            "Save what you trust without compression, with numpy.save."
        )


# Rows of NumPy's files, `.npy` by position and `.npz` from the start.


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


# Rows of tables, `.csv` parsed from the start and `.parquet` by row groups.


#: What to do about a column of text.
LEAVE_OUT = "leave them out (drop) or encode them (identifiers and labels are not features)."


@dataclass(frozen=True, eq=False)
class CsvRows(FileRows):
    """A table in CSV, parsed in blocks from the start."""

    def blocks(self, start: int, size: int, order: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Parse blocks; see `RowSource`."""
        with readable(self.path):
            frames = pd.read_csv(
                self.path, header=0 if self.named else None, encoding="utf-8-sig", skipinitialspace=True,
                chunksize=size, index_col=False, low_memory=False,
                skiprows=range(int(self.named), start + int(self.named)),
            )  # fmt: skip
            with frames:
                for frame in filter(len, frames):  # a line of names alone is an empty frame
                    yield self._numbers(frame.iloc[:, list(order)], order)

    def _numbers(self, frame: pd.DataFrame, order: Sequence[int]) -> NDArray[np.float64]:
        """Return cells as numbers; name the columns that hold text, with a cell of the first."""
        text = []
        for place, column in enumerate(order):
            values = frame.iloc[:, place]
            if not pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
                words = values[values.notna() & pd.to_numeric(values, errors="coerce").isna()]
                text += [(self.names[column], words)] if len(words) else []
        if text:
            names = ", ".join(name for name, _ in text[:5]) + (", …" if len(text) > 5 else "")
            cell = text[0][1]
            raise DataFormatError(
                f"{self.path}: {len(text)} column(s) do not hold numbers: {names} (data row "
                f"{int(cell.index[0]) + 1} of '{text[0][0]}' is '{str(cell.iloc[0])[:40]}'); {LEAVE_OUT}"
            )
        return np.column_stack(
            [np.asarray(pd.to_numeric(frame.iloc[:, i]), dtype=np.float64) for i in range(len(order))]
        )


@dataclass(frozen=True, eq=False)
class ParquetRows(FileRows):
    """A table in parquet, read by row groups."""

    text: Mapping[str, str]  # columns that hold no numbers, with their types

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse columns of text; unlike those of a CSV they are known from the header."""
        wrong = [name for name in names if name in self.text]
        if wrong:
            shown = ", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else "")
            raise DataFormatError(
                f"{self.path}: {len(wrong)} column(s) do not hold numbers: {shown} ('{wrong[0]}' is of type "
                f"{self.text[wrong[0]]}); {LEAVE_OUT}"
            )

    def blocks(self, start: int, size: int, order: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Read blocks; see `RowSource`."""
        names = [self.names[i] for i in order]
        self.check_columns(names)
        parquet = require("pyarrow.parquet", "notebooks")
        with readable(self.path), parquet.ParquetFile(self.path, memory_map=False) as file:
            yield from _regrouped(self._groups(file, start, size, names), size)

    def _groups(self, file: Any, start: int, size: int, names: list[str]) -> Iterator[NDArray[Any]]:
        """Yield what the row groups hold from row `start` on, a batch at a time."""
        seen = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if seen + rows > start:
                position = seen
                for batch in file.iter_batches(size, row_groups=[group], columns=names):
                    columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in names]
                    values = np.stack([column.astype(self.dtype) for column in columns], axis=1)
                    yield values[max(0, start - position) :]
                    position += len(values)
            seen += rows


def open_csv(path: Path, key: str | None) -> CsvRows:
    """Open a table in CSV; only its header is read."""
    first = first_line(path)
    if not first:
        raise DataFormatError(f"{path} is empty; a table has a line for each row.")
    _check_commas(first, path)
    check_shape((1, len(first)), path)
    named = not all(_is_number(cell) for cell in first)
    names = tuple(cell.strip() for cell in first) if named else position_names(len(first))
    return CsvRows(path, names, named, np.dtype(np.float64), None)


def open_parquet(path: Path, key: str | None) -> ParquetRows:
    """Open a table in parquet; only its header is read."""
    parquet = require("pyarrow.parquet", "notebooks")
    with parquet.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    # pandas' index is no feature.
    columns = [column for column in schema if not column.name.startswith("__index_level_")]
    kinds, text = [], {}
    for column in columns:
        try:
            dtype = np.dtype(column.type.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            dtype = np.dtype(object)
        if dtype.kind not in "fiub":
            text[column.name] = str(column.type)
            continue
        kinds.append(dtype if dtype.kind == "f" else np.dtype(np.float64))
    check_shape((rows, len(columns)), path)
    stored = np.result_type(*kinds) if kinds else np.dtype(np.float64)
    return ParquetRows(path, tuple(c.name for c in columns), True, stored, rows, text)


def _regrouped(parts: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """Cut a sequence of blocks of any length into blocks of `size` rows."""
    waiting: list[NDArray[Any]] = []
    for part in parts:
        waiting.append(part)
        while sum(map(len, waiting)) >= size:
            joined = np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
            yield joined[:size]
            waiting = [joined[size:]]
    if sum(map(len, waiting)):
        yield np.concatenate(waiting)


def _check_commas(first: Sequence[str], path: Path) -> None:
    """Recognise a table with other separators by its first line, which falls apart at them."""
    line = ",".join(first)
    for sign, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        cells = line.split(sign)
        if len(cells) > 1 and (len(first) == 1 or all(_is_number(cell.replace(",", ".")) for cell in cells)):
            raise DataFormatError(
                f"{path} separates its cells by {name}; write it with commas and decimal points: "
                f"pandas.read_csv({path.name!r}, sep={sign!r}, decimal=',').to_csv('commas.csv', "
                "index=False)."
            )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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
