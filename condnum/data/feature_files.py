"""How each kind of file holds a feature matrix, read in blocks of rows: `.npy`, `.npz`, `.csv`, `.parquet`.

`.npy` is read by position, `.parquet` by row groups, `.csv` from the start, and an array of an `.npz` is
taken into memory. Nothing in a file is executed: pickles are refused.
"""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from condnum.errors import DataFormatError, check_known, require

#: Largest array of an archive, which is taken into memory whole.
ARCHIVE_BYTES = 512 << 20
#: Longest line of a table in CSV: a million cells of sixteen characters.
MAX_LINE = 16 << 20

Columns: TypeAlias = "list[int] | slice"
#: Blocks from one on, of so many rows, of some columns; only the last block may be shorter.
Reader: TypeAlias = Callable[[int, int, Columns], Iterator[NDArray[Any]]]
#: What the beginning of a file says: a reader, N (None where only reading tells) and D, the stored type, and
#: the names of the columns (none if the file has none).
Opened: TypeAlias = tuple[Reader, tuple[Any, ...], np.dtype[Any], tuple[str, ...]]


def row_slices(X: NDArray[Any]) -> Reader:
    """Return a reader of a matrix in memory."""
    return lambda first, size, kept: (X[at : at + size, kept] for at in range(first * size, len(X), size))


def _mapped(path: Path) -> NDArray[Any]:
    """Map an array, which checks its header against the file's size."""
    with np.errstate(all="ignore"):  # sizes that lie may overflow, and are refused all the same
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "pickle" in str(error):  # NumPy recommends to load it unsafely
                raise ValueError("it has another format, or holds Python objects") from error
            raise
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataFormatError(f"{path} is an archive of numpy.savez; rename it to end in .npz.")
    return array


def _open_npy(path: Path, _: str | None) -> Opened:
    """Take the header of an array; its rows are then read by position."""
    array = _mapped(path)
    shape = array.shape

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        for begin in range(first * size, shape[0], size):
            # Mapped anew for each block: no page that was touched stays, and a file cut short is noticed.
            rows = _mapped(path)[begin : begin + size]
            yield np.array(rows.reshape(len(rows), -1)[:, kept])

    return read, shape, array.dtype, ()


def _open_npz(path: Path, key: str | None) -> Opened:
    """Take one array of an archive into memory."""
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if key is None and len(members) != 1:
            shown = ", ".join(list(members)[:8]) + (", …" if len(members) > 8 else "")
            raise DataFormatError(f"{path} holds {len(members)} arrays ({shown}); choose one with key=.")
        name = next(iter(members)) if key is None else key
        check_known(f"array of {path}", name, members)
        if members[name].file_size > ARCHIVE_BYTES:
            raise DataFormatError(
                f"{path} holds {members[name].file_size >> 20:,d} MiB, above the limit of "
                f"{ARCHIVE_BYTES >> 20:,d} MiB for archives; save it "
                "with numpy.save, which can be read in blocks."
            )
        unpacked = Path(folder) / "array.npy"
        with archive.open(members[name]) as packed, unpacked.open("wb") as stream:
            shutil.copyfileobj(packed, stream)
        X = np.array(_mapped(unpacked))
    return row_slices(X[:, None] if X.ndim == 1 else X), X.shape, X.dtype, ()


def _text_error(source: object, names: Sequence[str], example: str) -> DataFormatError:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return DataFormatError(
        f"{source}: {len(names)} column(s) do not hold numbers: {shown} ({example}); leave them out (drop) "
        "or encode them (identifiers and labels are not features)."
    )


def _regrouped(
    batches: Iterable[Any], names: Sequence[str], dtype: np.dtype[Any], skip: int, size: int
) -> Iterator[NDArray[Any]]:
    """Turn Arrow's batches of any length, without the first `skip` rows, into blocks of `size` rows."""
    waiting = np.empty((0, len(names)), dtype)
    for batch in batches:
        columns = [batch.column(name).to_numpy(zero_copy_only=False).astype(dtype) for name in names]
        rows = np.stack(columns, axis=1)[skip:]
        skip = max(0, skip - batch.num_rows)
        waiting = np.concatenate([waiting, rows]) if len(waiting) else rows
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if len(waiting):
        yield waiting


def _all_numbers(cells: Sequence[str]) -> bool:
    """Tell whether a line holds numbers only, and thus no names."""
    try:
        return all(float(cell) is not None for cell in cells)
    except ValueError:
        return False


def _open_csv(path: Path, _: str | None) -> Opened:
    """Read a table separated by commas; its first line holds names unless all cells of it are numbers."""
    arrow, tables = require("pyarrow", "notebooks"), require("pyarrow.csv", "notebooks")
    with path.open(encoding="utf-8-sig", newline="") as stream:
        cells = next(csv.reader([stream.readline(MAX_LINE)]), [])
    if not cells:
        raise DataFormatError(f"{path} is empty; expected a line for each row.")
    sign = next((sign for sign in ";\t|" if len(cells) == 1 and sign in cells[0]), "")
    if sign:
        raise DataFormatError(
            f"{path} uses {sign!r} as a separator; convert it to commas and decimal points: "
            f"pandas.read_csv({path.name!r}, sep={sign!r}, decimal=',').to_csv('commas.csv', index=False)."
        )
    names = () if _all_numbers(cells) else tuple(cell.strip() for cell in cells)
    called = list(names) or [f"x{i}" for i in range(len(cells))]
    layout = tables.ReadOptions(
        column_names=called, skip_rows_after_names=int(bool(names)), block_size=MAX_LINE
    )

    def read(first: int, size: int, kept: Columns) -> Iterator[NDArray[Any]]:
        chosen = np.array(called, dtype=object)[kept].tolist()
        with tables.open_csv(path, layout) as inferred:
            truths = {field.name for field in inferred.schema if field.type == arrow.bool_()}
        types = {name: arrow.bool_() if name in truths else arrow.float64() for name in chosen}
        options = tables.ConvertOptions(column_types=types, include_columns=chosen)
        try:
            with tables.open_csv(path, layout, convert_options=options) as batches:
                yield from _regrouped(batches, chosen, np.dtype(np.float64), first * size, size)
        except arrow.ArrowInvalid as error:
            wrong = re.search(r"column #(\d+): .*invalid value '(.*)'", str(error), re.DOTALL)
            if wrong is None:
                raise
            name = called[int(wrong[1])]
            raise _text_error(path, [name], f"'{name}' holds '{wrong[2][:40]}'") from error

    return read, (None, len(cells)), np.dtype(np.float64), names


def _open_parquet(path: Path, _: str | None) -> Opened:
    """Read a table by row groups; pandas' index is not a feature."""
    parquet, types = require("pyarrow.parquet", "notebooks"), require("pyarrow.types", "notebooks")
    with parquet.ParquetFile(path) as file:
        count = file.metadata.num_rows
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
            batches = file.iter_batches(size, row_groups=groups, columns=chosen)
            yield from _regrouped(batches, chosen, stored, skip, size)

    return read, (count, len(names)), stored, tuple(names)


#: How a file is opened, by its ending; the word names an array of an archive.
OPENERS: dict[str, Callable[[Path, str | None], Opened]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".csv": _open_csv,
    ".parquet": _open_parquet,
}
