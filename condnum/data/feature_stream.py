"""Feature matrices that need not fit in memory: read in blocks of rows, by explicit reads.

A memory map would count every page that it has touched as resident memory, and end the process where a file
is cut while it is read; here a block is read into a buffer of its own and freed. Nothing in a file is
executed, and a file that changes while it is read is noticed by its size, its time of change and its inode.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.task_pair import FloatArray
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    check_known,
    require,
)

#: A block holds at most this much, counted as float32: large enough for matrix products at full speed.
BLOCK_BYTES = 128 << 20
#: Rows of a block of narrow features.
MAX_BLOCK_ROWS = 65_536
#: Widest features that are accepted unless the caller says otherwise.
MAX_DIMENSION = 20_000
#: Largest matrix, as float64, that is taken into memory whole unless the caller says otherwise: 1 GiB.
MAX_BYTES = 1 << 30
#: Largest array in Fortran order that is taken out of an archive whole.
WHOLE_BYTES = 256 << 20
#: Longest first line of a table in CSV: a million names of sixteen characters.
MAX_LINE = 16 << 20

#: How readers of arrays, archives and tables say that a file is not what it claims to be.
_DAMAGE = (
    ValueError,  # pandas', Arrow's and unicode errors among them
    TypeError,
    SyntaxError,
    RuntimeError,  # an archive with a password, or a kind of compression that is not there
    EOFError,
    OverflowError,
    struct.error,
    tokenize.TokenError,
    csv.Error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)

Columns: TypeAlias = "list[int] | slice"
#: Blocks from one on, of so many rows, of some columns; only the last block may be shorter.
Reader: TypeAlias = Callable[[int, int, Columns], Iterator[NDArray[Any]]]
#: What the beginning of a file says: a reader, N (None where only reading tells) and D, the stored type, and
#: the names of the columns (none if the file has none).
Opened: TypeAlias = tuple[Reader, tuple[Any, ...], np.dtype[Any], tuple[str, ...]]


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
    centre: FloatArray | None = None  # (D,) is subtracted, where columns are standardised
    scale: FloatArray | None = None  # (D,) divides; 0 turns a constant column into zeros

    @property
    def dimension(self) -> int:
        """Number of columns D."""
        return len(self.columns)

    @property
    def stored_eps(self) -> float:
        """Machine epsilon of the stored type; integers and booleans count as float64."""
        return float(np.finfo(self.dtype if self.dtype.kind == "f" else np.float64).eps)

    @property
    def block_rows(self) -> int:
        """Rows of a block: a power of two that depends on the width alone: every reader has the same grid."""
        fitting = max(1, BLOCK_BYTES // (4 * self.width))
        return int(min(MAX_BLOCK_ROWS, 2 ** (fitting.bit_length() - 1)))

    def raw_blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of rows in the stored type, rows with gaps and all, as they are in the file."""
        path = Path(self.source).expanduser()
        whole = self.order == tuple(range(self.width))  # a block of which all columns are kept is not copied
        with readable(path) if self.stamp else nullcontext():
            blocks = self.read(first, self.block_rows, slice(None) if whole else list(self.order))
            for block in islice(blocks, None if last is None else last - first):
                yield block
                if self.stamp and _stamp(path) != self.stamp:
                    raise DataFormatError(
                        f"{path} changed while it was read (its size, time of change or identity is another "
                        "one): wait until whoever writes it is done, and run again."
                    )

    def blocks(self, first: int = 0, last: int | None = None) -> Iterator[NDArray[Any]]:
        """Read blocks of complete rows, standardised where that was asked for; else as `raw_blocks`."""
        for block in self.raw_blocks(first, last):
            if block.dtype.kind == "f" and np.isnan(block.min()):
                block = block[~np.isnan(block).any(axis=1)]
            if self.centre is not None and self.scale is not None:
                flat = self.scale == 0
                block = np.where(flat, 0.0, (block - self.centre) / np.where(flat, 1.0, self.scale))
            yield block

    def array(self, max_bytes: int = MAX_BYTES) -> FloatArray:
        """Return all complete rows in memory."""
        parts, size = [np.empty((0, self.dimension))], 0
        for block in self.blocks():
            size += 8 * block.size
            if size > max_bytes:
                raise DataFormatError(
                    f"{self.source} takes more than {max_bytes / 2**20:,.1f} MiB as float64; take fewer rows "
                    "(κ is that of a sample anyway) or fewer columns, or run condnum audit, which reads "
                    "it in blocks."
                )
            parts.append(np.asarray(block, dtype=np.float64))
        return np.concatenate(parts)

    def select(self, columns: Sequence[str]) -> FeatureStream:
        """Return a stream of some of the columns, in the order asked for."""
        place = dict(zip(self.columns, self.order, strict=True))
        return replace(self, columns=tuple(columns), order=tuple(place[name] for name in columns))


def open_feature_stream(
    path: str | os.PathLike[str], *, key: str | None = None, max_dimension: int = MAX_DIMENSION
) -> FeatureStream:
    r"""Open a feature matrix for reading in blocks; the file's ending says how.

    `.npy` is read by position (either order of memory), `.parquet` by row groups, `.csv` and `.npz` from
    the start. A CSV is separated by commas and has a line of names unless every cell of its first line is a
    number; empty cells and NA are NaN. Nothing in a file is executed: pickles are refused.
    """
    file = Path(path).expanduser()
    with readable(file):
        if file.suffix.lower() not in OPENERS:
            raise DataFormatError(
                f"{path} ends in '{file.suffix}', which is no table of features; save it as one of "
                f"{', '.join(OPENERS)}."
            )
        return _stream(str(path), OPENERS[file.suffix.lower()](file, key), max_dimension, _stamp(file))


def array_stream(
    features: NDArray[Any],
    *,
    name: str = "features",
    columns: Sequence[str] = (),
    max_dimension: int = MAX_DIMENSION,
) -> FeatureStream:
    """Return a stream over a matrix in memory.

    Examples:
        >>> next(array_stream(np.eye(3)).select(["x2", "x0"]).blocks())
        array([[0., 1.],
               [0., 0.],
               [1., 0.]])
    """
    X = np.asarray(features)
    return _stream(name, (_slices(X), X.shape, X.dtype, tuple(columns)), max_dimension, None)


#: A matrix, where to find one, or a stream of one.
FeaturesLike = str | os.PathLike[str] | NDArray[Any] | FeatureStream


def as_stream(features: FeaturesLike, *, name: str = "features", **options: Any) -> FeatureStream:
    """Return a stream of features, wherever they are; of an array `name` is the source."""
    if isinstance(features, FeatureStream):
        return features
    if isinstance(features, str | os.PathLike):
        return open_feature_stream(features, **options)
    return array_stream(features, name=name, max_dimension=options.get("max_dimension", MAX_DIMENSION))


def _stream(
    source: str, opened: Opened, max_dimension: int, stamp: tuple[int, int, int] | None
) -> FeatureStream:
    """Refuse what is no matrix of numbers, and say how columns without names are called."""
    read, shape, dtype, names = opened
    error = InvalidInputError if stamp is None else DataFormatError
    if 0 in shape:
        raise error(f"{source} is empty: its shape is {shape}; see how it was written, and write it again.")
    if len(shape) != 2 or dtype.kind not in "fiub":
        raise error(
            f"{source} holds an array of shape {shape} and type {dtype}; features are a matrix (N, D) of "
            "real numbers, one row a sample: save X.astype(float), images as X.reshape(len(X), -1)."
        )
    N, D = shape
    if max_dimension < D:
        gib = 8 * D**2 / 2**30
        raise InvalidInputError(
            f"{source} has D = {D:,d} columns, above the limit of {max_dimension:,d}. One covariance "
            f"takes {gib:.1f} GiB in float64, those of an audit with their eigenvectors about {6 * gib:.0f} "
            "GiB, and an eigendecomposition takes time in D³. Project the features to fewer columns, or "
            "raise the limit (max_dimension=, --max-dimension) on a machine that has this memory."
        )
    columns = names or tuple(f"x{i}" for i in range(D))
    if len(set(columns)) < D:
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InvalidInputError(f"{source} has the column '{twice}' twice; rename or drop one.")
    return FeatureStream(source, read, columns, tuple(range(D)), D, bool(names), dtype, N, stamp)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what tells whether a file changed."""
    try:
        status = os.stat(path)
    except OSError:
        return (-1, -1, -1)
    return (status.st_size, status.st_mtime_ns, status.st_ino)


@contextmanager
def readable(path: Path) -> Generator[None]:
    """Turn what goes wrong on a disk or in a file into our words."""
    if path.is_dir():
        raise DataFormatError(f"{path} is a folder; give a file in it (.npy, .npz, .csv or .parquet).")
    try:
        yield
    except CondnumError:
        raise  # some of them are OSErrors or ValueErrors too, and say more
    except (OSError, *_DAMAGE) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataNotFoundError(
                f"cannot read {path}: {error.strerror or error}; check the path."
            ) from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataFormatError(
            f"{path} is damaged, or not what its ending says ({reason}); write it again, in numbers only."
        ) from error


# Arrays of NumPy: `.npy` by position, `.npz` from the start.


def _slices(X: NDArray[Any]) -> Reader:
    return lambda first, size, kept: (X[at : at + size, kept] for at in range(first * size, len(X), size))


def mapped_array(path: Path) -> NDArray[Any]:
    """Map an array of `numpy.save`, of which only the header is read; NumPy checks the file's size."""
    try:
        with np.errstate(all="ignore"):  # sizes that lie may overflow, and are refused all the same
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except _DAMAGE as error:
        reason = " ".join(str(error).split())
        if "pickle" in reason or "objects" in reason:  # NumPy's words recommend to load it unsafely
            reason = "it is of another kind, or holds Python objects"
        raise DataFormatError(
            f"{path} is not a whole NumPy file ({reason}): copy it again, or write it with numpy.save. "
            "Pickled objects are never loaded."
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataFormatError(f"{path} is an archive of numpy.savez; let its name end in .npz.")
    return array


def _open_npy(path: Path, _: str | None) -> Opened:
    array = mapped_array(path)
    shape, dtype, offset = array.shape, array.dtype, array.offset  # type: ignore[attr-defined]
    fortran = not array.flags.c_contiguous

    def entries(place: int, count: int) -> NDArray[Any]:
        found = np.fromfile(path, dtype, count, offset=offset + place * dtype.itemsize)
        if len(found) < count:
            raise EOFError("it ends before its last row")
        return found

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        N, D = shape
        for begin in range(first * size, N, size):
            rows = min(size, N - begin)
            if fortran:  # column by column
                places = np.arange(D)[kept].tolist()
                yield np.stack([entries(place * N + begin, rows) for place in places], axis=1)
            else:
                yield entries(begin * D, rows * D).reshape(rows, D)[:, kept]

    return read, shape, dtype, ()


@contextmanager
def archived_array(
    path: Path, key: str | None
) -> Generator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype[Any]]]:
    """Open one array of `numpy.savez` at its first entry, with its shape, its order and its type."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if key is None and len(members) != 1:
            shown = ", ".join(list(members)[:8]) + (", …" if len(members) > 8 else "")
            raise DataFormatError(f"{path} holds {len(members)} arrays ({shown}); say which by key=.")
        name = next(iter(members)) if key is None else key
        check_known(f"array of {path}", name, members)
        with archive.open(members[name]) as stream:
            first = np.lib.format.read_magic(stream) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(stream)
            if dtype.hasobject:
                raise ValueError("it holds Python objects, and pickled objects are never loaded")
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > members[name].file_size:
                raise ValueError(f"it is too short for an array of shape {shape}")
            yield stream, shape, bool(fortran), dtype


def whole_array(path: Path, key: str | None, limit: int, advice: str, kinds: str = "fiub") -> NDArray[Any]:
    """Take one array of an archive into memory, if it is no larger than the limit."""
    with archived_array(path, key) as (stream, shape, fortran, dtype):
        if math.prod(shape) * dtype.itemsize > limit or dtype.kind not in kinds or not dtype.itemsize:
            raise DataFormatError(f"{path} holds an array of shape {shape} and type {dtype}; {advice}")
        flat = np.frombuffer(stream.read(math.prod(shape) * dtype.itemsize), dtype)
        return flat.reshape(shape, order="F" if fortran else "C")


def _open_npz(path: Path, key: str | None) -> Opened:
    with archived_array(path, key) as (_, shape, fortran, dtype):
        pass
    if fortran:
        advice = (
            "its columns come one after the other (Fortran order), and an archive cannot be read by rows "
            "then; save numpy.ascontiguousarray(X), or save it with numpy.save."
        )
        return _slices(whole_array(path, key, WHOLE_BYTES, advice)), shape, dtype, ()

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        with archived_array(path, key) as (stream, (N, D), _, dtype):
            for begin in range(0, N, size):  # a compressed stream has no middle
                rows = min(size, N - begin)
                block = np.frombuffer(stream.read(rows * D * dtype.itemsize), dtype).reshape(rows, D)
                if begin >= first * size:
                    yield block[:, kept]

    return read, shape, dtype, ()


# Tables: `.csv` parsed from the start, `.parquet` by row groups.


def _text_error(source: object, names: Sequence[str], example: str) -> DataFormatError:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return DataFormatError(
        f"{source}: {len(names)} column(s) do not hold numbers: {shown} ({example}); leave them out (drop) "
        "or encode them (identifiers and labels are not features)."
    )


def first_line(path: Path) -> list[str]:
    """Return the cells of the first line of a table in CSV."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        beginning = stream.read(MAX_LINE)
    if len(beginning) == MAX_LINE and not {"\n", "\r"} & set(beginning):
        raise DataFormatError(
            f"{path} has no end of a line in its first {MAX_LINE / 2**20:.0f} MiB; a table in CSV has a "
            "line for each row."
        )
    cells = next(csv.reader(io.StringIO(beginning, newline="")), [])
    if not cells:
        raise DataFormatError(f"{path} is empty; a table has a line for each row.")
    return cells


def all_numbers(cells: Sequence[str]) -> bool:
    """Tell whether a line holds numbers only, and thus no names."""
    try:
        return all(float(cell) is not None for cell in cells)
    except ValueError:
        return False


def _open_csv(path: Path, _: str | None) -> Opened:
    cells = first_line(path)
    for sign, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        apart = ",".join(cells).split(sign)
        numbers = all_numbers([cell.replace(",", ".") for cell in apart])
        if len(apart) > 1 and (len(cells) == 1 or numbers):
            raise DataFormatError(
                f"{path} separates its cells by {word}; write it with commas and decimal points: "
                f"pandas.read_csv({path.name!r}, sep={sign!r}, decimal=',').to_csv('commas.csv', "
                "index=False)."
            )
    names = () if all_numbers(cells) else tuple(cell.strip() for cell in cells)
    called = np.array(names or [f"x{i}" for i in range(len(cells))], dtype=object)

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        # pandas, not Arrow: Arrow takes the types of all rows from those of the first block.
        frames = pd.read_csv(
            path, header=0 if names else None, encoding="utf-8-sig", skipinitialspace=True, chunksize=size,
            index_col=False, low_memory=False,
        )  # fmt: skip
        with frames:
            for frame in islice(frames, first, None):
                if not len(frame):  # a line of names alone
                    return
                chosen = frame.iloc[:, kept]
                values = chosen.apply(pd.to_numeric, errors="coerce")
                text = (values.isna() & chosen.notna()).to_numpy()
                if text.any():
                    column = int(text.any(axis=0).argmax())
                    row, wrong = int(text[:, column].argmax()), called[kept][text.any(axis=0)].tolist()
                    cell = f"'{str(chosen.iloc[row, column])[:40]}'"
                    where = f"data row {int(frame.index[row]) + 1} of '{wrong[0]}'"
                    raise _text_error(path, wrong, f"{where} is {cell}")
                yield values.to_numpy(dtype=np.float64)

    return read, (None, len(cells)), np.dtype(np.float64), names


def _open_parquet(path: Path, _: str | None) -> Opened:
    parquet, types = require("pyarrow.parquet", "notebooks"), require("pyarrow.types", "notebooks")
    with parquet.ParquetFile(path) as file:
        count = file.metadata.num_rows
        # pandas' index is no feature.
        kinds = [(c.name, c.type) for c in file.schema_arrow if not c.name.startswith("__index_level_")]
    numeric = (types.is_floating, types.is_integer, types.is_boolean)
    text = {name: str(kind) for name, kind in kinds if not any(known(kind) for known in numeric)}
    floats = (kind.to_pandas_dtype() for _, kind in kinds if types.is_floating(kind))
    whole = (np.float64 for name, kind in kinds if name not in text and not types.is_floating(kind))
    stored, names = np.result_type(np.float16, *floats, *whole), [name for name, _ in kinds]

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        chosen = np.array(names, dtype=object)[kept].tolist()
        wrong = [name for name in chosen if name in text]
        if wrong:
            raise _text_error(path, wrong, f"'{wrong[0]}' is of type {text[wrong[0]]}")
        with parquet.ParquetFile(path, memory_map=False) as file:
            metadata = file.metadata
            ends = np.cumsum([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
            groups = np.flatnonzero(ends > first * size).tolist()  # from the one with the first row on
            if not groups:
                return
            skip = first * size - (int(ends[groups[0] - 1]) if groups[0] else 0)
            waiting = np.empty((0, len(chosen)), stored)
            for batch in file.iter_batches(size, row_groups=groups, columns=chosen):
                columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in chosen]
                rows = np.stack([column.astype(stored) for column in columns], axis=1)[skip:]
                skip = max(0, skip - batch.num_rows)
                waiting = np.concatenate([waiting, rows]) if len(waiting) else rows
                while len(waiting) >= size:
                    yield waiting[:size]
                    waiting = waiting[size:]
            if len(waiting):
                yield waiting

    return read, (count, len(names)), stored, tuple(names)


OPENERS: dict[str, Callable[[Path, str | None], Opened]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".csv": _open_csv,
    ".parquet": _open_parquet,
}
