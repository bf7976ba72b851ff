"""Tables as feature matrices: text, parquet files and data frames, read as pandas reads them.

A table is read in frames of some rows. Where nothing else is said, its columns are those of pandas; the index
that pandas writes beside a table is not a feature, and a column of vectors counts as that many columns.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import DataFormatError, require

#: How compressed text is opened.
UNPACK: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: The beginning of a text by which it is recognized, in characters and in rows.
_BEGINNING, _ROWS = 4 << 20, 100
#: Separators in the order in which they are tried; a blank stands for any white space.
_SEPARATORS = "\t;|, "
#: Words for a missing entry, beside an empty cell.
_MISSING = {"", "nan", "na", "n/a", "#n/a", "null", "none"}
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
#: What pandas calls a column without a name.
_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)?|__index_level_\d+__")

#: Blocks of about so many rows, of the columns at some positions.
Reader: TypeAlias = Callable[[int, Sequence[int]], Iterator[NDArray[Any]]]
Frames: TypeAlias = Callable[[int, Sequence[int]], Iterator[pd.DataFrame]]


@dataclass(frozen=True)
class Opened:
    """What the beginning of a file, or a value in memory, says."""

    read: Reader
    shape: tuple[Any, ...]  # (N, D), N None where only reading tells
    dtype: np.dtype[Any]  # the stored type; float64 for text
    names: tuple[str, ...] = ()  # of the columns; none if there are none
    notes: tuple[str, ...] = ()  # what was understood, in sentences
    eps: float | None = None  # of the stored type, where NumPy has no such type
    column: Callable[[], pd.Series] | None = None  # the only column of a table, whatever it holds
    lazy: Any = None  # a dask array


def open_text(path: Path) -> Opened:
    """Recognize separator, names and decimal commas by the first lines, and leave the rest to pandas.

    The first line holds names unless all its cells are numbers. At least two different whole numbers, as
    pandas writes them for columns without names, are names as well. Lines above it that start with # are
    comments.
    """
    unpack = UNPACK.get(path.suffix.lower(), open)
    with unpack(path, "rb") as stream:
        encoding = "utf-16" if stream.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    with unpack(path, "rt", encoding=encoding, errors="replace", newline="") as stream:
        text = stream.read(_BEGINNING)
    if "\0" in text:
        raise ValueError("it holds bytes that are no text")
    lines = text.splitlines(keepends=True)
    if len(text) == _BEGINNING and len(lines) > 1:
        lines.pop()  # it may have been cut
    above = next((at for at, line in enumerate(lines) if line.strip() and line[0] != "#"), len(lines))
    body = [line for line in lines[above:] if line.strip()]
    if not body:
        raise DataFormatError(f"{path} is empty; expected a line for each row.")
    separator, cells = _split_alike(body)
    first, D = cells[0], max(map(len, cells[:2]))
    named, notes = _are_names(first), list[str]()
    if all(map(_is_number, first)):
        shown = ", ".join(first[:5]) + ", …" * (len(first) > 5)
        said = "is taken for the names of columns" if named else "is data: the file has no line of names"
        notes.append(f"{path}: the first line ({shown}) {said}.")
    names = [""] * (D - len(first)) + first if named else [f"x{i}" for i in range(D)]
    commas = [cell for row in cells for cell in row if _DECIMAL_COMMA.fullmatch(cell)]
    layout: dict[str, Any] = {
        "sep": r"\s+" if separator == " " else separator,
        # "1,234" between commas is rather a thousand than a decimal number
        "decimal": "," if any(separator != "," or cell[-4:-3] != "," for cell in commas) else ".",
        "header": None,
        "names": range(D),
        "index_col": False,
        "skiprows": above + named,
        "skipinitialspace": True,
        "encoding": encoding,
        "encoding_errors": "replace",
    }

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        with pd.read_csv(path, chunksize=size, **layout) as chunks:
            for chunk in chunks:
                if chunk.empty:
                    raise DataFormatError(f"{path} is empty: no row follows its first line.")
                yield chunk.iloc[:, list(used)]

    opened = open_frames(frames, pd.DataFrame(np.empty((0, D)), columns=names), str(path), notes=notes)
    return opened if named else replace(opened, names=())


def _split_alike(lines: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Find the separator that gives all rows as many cells; the first may lack one, a name for the index."""
    for separator in _SEPARATORS:
        text = "".join(lines)
        if separator == " ":
            text = "\n".join(" ".join(line.split()) for line in lines)
        rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
        cells = [[cell.strip() for cell in row] for row in islice(rows, _ROWS)]
        widths = {len(row) for row in cells[1:] or cells}
        if len(widths) == 1 and max(widths) > 1 and max(widths) - len(cells[0]) in (0, 1):
            return separator, cells
    return ",", [[cell.strip() for cell in row] for row in islice(csv.reader(lines), _ROWS)]


def _is_number(cell: str) -> bool:
    try:
        return float(cell.replace(",", ".")) is not None
    except ValueError:
        return cell.lower() in _MISSING


def _are_names(cells: Sequence[str]) -> bool:
    """Tell whether a line holds names: not all are numbers, or all are different whole numbers."""
    own = [cell for at, cell in enumerate(cells) if at or cell]  # that of the index is empty
    codes = all(re.fullmatch(r"[+-]?\d+", cell) for cell in own) and len(set(own)) == len(own)
    return not all(map(_is_number, own)) or (codes and len(cells) > 1)


def open_parquet(path: Path) -> Opened:
    """Read a table by row groups; the index that pandas stores is not a feature."""
    parquet = require("pyarrow.parquet", "notebooks")
    with parquet.ParquetFile(path) as file:
        count, names = file.metadata.num_rows, [field.name for field in file.schema_arrow]
        stored = json.loads((file.schema_arrow.metadata or {}).get(b"pandas", b"{}"))
        first = next(file.iter_batches(_ROWS), None)
        head = (file.schema_arrow.empty_table() if first is None else first).to_pandas(ignore_metadata=True)

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        chosen = [names[i] for i in used]
        with parquet.ParquetFile(path, memory_map=False) as file:
            for batch in file.iter_batches(size, columns=chosen):
                yield batch.to_pandas(ignore_metadata=True)[chosen]

    index = [name for name in stored.get("index_columns", ()) if isinstance(name, str)]
    return open_frames(frames, head, str(path), rows=count, index=index)


def open_frame(frame: pd.DataFrame, name: str) -> Opened:
    """Read a data frame in memory."""

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        return (frame.iloc[at : at + size, list(used)] for at in range(0, len(frame), size))

    return open_frames(frames, frame, name, rows=len(frame))


def open_frames(
    frames: Frames,
    head: pd.DataFrame,
    source: str,
    *,
    rows: int | None = None,
    index: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Opened:
    """Describe a table by its first rows; the index of a data frame that was written with it is no column."""
    names = [str(name) for name in head.columns]
    places = [i for i, name in enumerate(names) if name not in index]
    first = next((at for at, i in enumerate(places) if not _UNNAMED.fullmatch(names[i])), 0)
    if first:
        notes = (*notes, f"{source}: the first column has no name; it is the index, and is left out.")
    places = places[first:]
    vectors = {i: _first_vector(head.iloc[:, i]) for i in places}
    widths = [1 if (vector := vectors[i]) is None else len(vector) for i in places]
    owners = np.repeat(places, widths)  # (D,) position of the column that holds each feature
    called: list[str] = []
    for i, width in zip(places, widths, strict=True):
        own = names[i] or f"Unnamed: {i}"
        called += [own] if vectors[i] is None else [f"{own}[{k}]" for k in range(width)]
    stored = np.result_type(np.float16, *(_stored(head.iloc[:, i], vectors[i]) for i in places))

    def read(size: int, kept: Sequence[int]) -> Iterator[NDArray[Any]]:
        used = np.unique(owners[kept])
        order = np.searchsorted(np.flatnonzero(np.isin(owners, used)), kept)
        for frame in frames(size, used.tolist()):
            columns = [_numbers(frame.iloc[:, at], vectors[i]) for at, i in enumerate(used)]
            wrong = {names[i]: cell for i, cell in zip(used, columns, strict=True) if isinstance(cell, str)}
            if wrong:
                raise DataFormatError(_no_numbers(source, wrong))
            yield np.concatenate(columns, axis=1)[:, order].astype(stored, copy=False)

    def column() -> pd.Series:
        return pd.concat(list(frames(1 << 16, places)), ignore_index=True).iloc[:, 0]

    alone = column if len(owners) == 1 else None
    return Opened(read, (rows, len(owners)), stored, tuple(called), tuple(notes), column=alone)


def _no_numbers(source: str, wrong: dict[str, str]) -> str:
    """Name the columns that hold no numbers."""
    name, cell = next(iter(wrong.items()))
    shown = ", ".join(list(wrong)[:5]) + ", …" * (len(wrong) > 5)
    advice = "leave them out (drop) or encode them (identifiers and labels are not features)."
    if cell.startswith("["):
        advice = "vectors need one length, in a parquet file or a matrix (numpy.save)."
    return (
        f"{source}: {len(wrong)} column(s) do not hold numbers: {shown} ('{name}' holds '{cell}'); {advice}"
    )


def _first_vector(column: pd.Series) -> NDArray[Any] | None:
    """Return the first cell of a column of vectors, None for any other column."""
    cell = next((cell for cell in column if cell is not None), None) if column.dtype == object else None
    return np.asarray(cell) if isinstance(cell, list | tuple | np.ndarray) else None


def _stored(column: pd.Series, vector: NDArray[Any] | None) -> np.dtype[Any]:
    """Return the floating type that holds a column's numbers; the smallest for text and dates."""
    kind = column.dtype if vector is None else vector.dtype
    kind = getattr(kind, "numpy_dtype", kind)  # of pandas' own types
    text = isinstance(next(iter(column.dropna()), None), str)
    smallest = text or (vector is None and column.dtype.kind in "mM")
    return kind if kind.kind == "f" else np.dtype(np.float16 if smallest else np.float64)


def _numbers(column: pd.Series, vector: NDArray[Any] | None) -> NDArray[Any] | str:
    """Return a column as numbers `(n, width)`, NaN for missing ones, or the first cell that is no number."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=_stored(column, None), na_value=np.nan)[:, None]
    cells = column.astype(object)[column.notna()]
    try:
        if vector is not None:
            missing = np.full(len(vector), np.nan)
            rows = [missing if np.ndim(cell) == 0 else cell for cell in column]
            return np.array(rows, dtype=_stored(column, vector)).reshape(len(rows), len(vector))
        found = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    except (TypeError, ValueError):
        found = pd.Series(np.nan, cells.index)
    if isinstance(column.dtype, pd.CategoricalDtype) or column.dtype.kind in "mM":
        found[:] = np.nan  # a code or a date is not a measurement
    wrong = cells[found.isna()]
    return found.reindex(column.index).to_numpy()[:, None] if wrong.empty else str(wrong.iloc[0])[:40]
