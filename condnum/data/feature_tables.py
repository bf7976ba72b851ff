"""Tables as feature matrices: text, parquet files and data frames, which pandas reads in frames of some rows.

The index that pandas writes beside a table is not a feature.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import DataFormatError, require

#: Separators of text; the first one that the first line has is taken.
_SEPARATORS = "\t;,"
#: So much of the first line is looked at.
_LINE_BYTES = 1 << 20
#: Rows that tell the types of columns.
_ROWS = 100
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


def open_text(path: Path) -> Opened:
    """Read text as pandas does; the first line holds names unless all its cells are numbers.

    0, 1, 2, … are names, too: pandas writes them for columns without names.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline(_LINE_BYTES)
    separator = next((own for own in _SEPARATORS if own in line), ",")
    layout: dict[str, Any] = {"sep": separator, "skipinitialspace": True, "encoding_errors": "replace"}
    first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **layout)
    cells = first.iloc[0].tolist()
    counted = len(cells) > 1 and cells == [str(i) for i in range(len(cells))]
    named, notes = counted or not all(map(_is_number, cells)), list[str]()
    if counted or not named:
        shown = ", ".join(cells[:5]) + ", …" * (len(cells) > 5)
        said = "is taken for the names of columns" if named else "is data: the file has no line of names"
        notes.append(f"{path}: the first line ({shown}) {said}.")
    layout["header"] = 0 if named else None

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        with pd.read_csv(path, chunksize=size, **layout) as chunks:
            for chunk in chunks:
                yield chunk.iloc[:, list(used)]

    head = pd.read_csv(path, nrows=_ROWS, **layout)
    opened = open_frames(frames, head, str(path), rows=None if len(head) else 0, notes=notes)
    return opened if named else replace(opened, names=())


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def open_parquet(path: Path) -> Opened:
    """Read a table by row groups; the index that pandas stores is not a feature."""
    parquet = require("pyarrow.parquet", "notebooks")
    with parquet.ParquetFile(path) as file:
        first = next(file.iter_batches(_ROWS), None)
        head = (file.schema_arrow.empty_table() if first is None else first).to_pandas()
        rows = file.metadata.num_rows

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        chosen = [str(head.columns[i]) for i in used]
        with parquet.ParquetFile(path, memory_map=False) as file:
            for batch in file.iter_batches(size, columns=chosen):
                yield batch.to_pandas(ignore_metadata=True)[chosen]

    return open_frames(frames, head, str(path), rows=rows)


def open_frame(frame: pd.DataFrame, name: str) -> Opened:
    """Read a data frame in memory."""

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        return (frame.iloc[at : at + size, list(used)] for at in range(0, len(frame), size))

    return open_frames(frames, frame.head(_ROWS), name, rows=len(frame))


def open_frames(
    frames: Frames,
    head: pd.DataFrame,
    source: str,
    *,
    rows: int | None = None,
    notes: Sequence[str] = (),
) -> Opened:
    """Describe a table by its first rows; a first column without a name is an index, and no feature."""
    names = [str(name) for name in head.columns]
    first = next((at for at, name in enumerate(names) if not _UNNAMED.fullmatch(name)), 0)
    if first:
        notes = (*notes, f"{source}: the first column has no name; it is the index, and is left out.")
    places = range(first, len(names))
    known = [found.dtype for i in places if not isinstance(found := _numbers(head.iloc[:, i]), str)]
    stored = np.result_type(np.float16, *known)

    def read(size: int, kept: Sequence[int]) -> Iterator[NDArray[Any]]:
        used = [places[i] for i in kept]
        for frame in frames(size, used):
            columns = [_numbers(frame.iloc[:, at]) for at in range(len(used))]
            wrong = {names[i]: cell for i, cell in zip(used, columns, strict=True) if isinstance(cell, str)}
            if wrong:
                name, cell = next(iter(wrong.items()))
                raise DataFormatError(
                    f"{source}: {len(wrong)} column(s) do not hold numbers: {', '.join([*wrong][:5])} "
                    f"('{name}' holds '{cell}'); leave them out (drop), or give one column per number "
                    "(identifiers, labels and dates are not features; in text, cells are separated by comma, "
                    "tab or ;, and decimals have a point)."
                )
            yield np.stack(columns, axis=1).astype(stored, copy=False)

    def column() -> pd.Series:
        return pd.concat(list(frames(1 << 16, places)), ignore_index=True).iloc[:, 0]

    alone = column if len(places) == 1 else None
    called = tuple(names[i] or f"Unnamed: {i}" for i in places)
    return Opened(read, (rows, len(places)), stored, called, tuple(notes), column=alone)


def _numbers(column: pd.Series) -> NDArray[Any] | str:
    """Return a column as floats `(n,)`, NaN for missing ones, or the first cell that is no number."""
    kind = getattr(column.dtype, "numpy_dtype", column.dtype)  # of pandas' own types
    if kind.kind in "fiub":
        return column.to_numpy(dtype=kind if kind.kind == "f" else np.float64, na_value=np.nan)
    cells = column.astype(object)[column.notna()]
    found = pd.Series(np.nan, cells.index)
    if kind.kind == "O" and not isinstance(column.dtype, pd.CategoricalDtype):  # a code is not a measurement
        with suppress(TypeError, ValueError):
            found = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    wrong = cells[found.isna()]
    return found.reindex(column.index).to_numpy() if wrong.empty else str(wrong.iloc[0])[:40]
