"""Tables as feature matrices: text, parquet files and data frames, which pandas reads in frames of some rows.

The index that pandas writes beside a table is not a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.errors import DataFormatError, require

#: Rows that tell the types of columns.
_ROWS = 100
#: What pandas calls a first column without a name.
_UNNAMED = "Unnamed: 0"

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
    """Read text as `pandas.read_csv` does: commas between cells, names in the first line."""

    def frames(size: int, used: Sequence[int]) -> Iterator[pd.DataFrame]:
        with pd.read_csv(path, chunksize=size) as chunks:
            for chunk in chunks:
                yield chunk.iloc[:, list(used)]

    head = pd.read_csv(path, nrows=_ROWS)
    names = ", ".join(map(str, head.columns[:5])) + ", …" * (head.shape[1] > 5)
    note = f"{path}: {head.shape[1]} column(s), named by the first line: {names}."
    return open_frames(frames, head, str(path), rows=None if len(head) else 0, notes=[note])


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
    first = int(names[:1] == [_UNNAMED])
    if first:
        notes = (*notes, f"{source}: the first column has no name; it is the index, and is left out.")
    places = range(first, len(names))
    known = [found.dtype for i in places if (found := _numbers(head.iloc[:, i])) is not None]
    stored = np.result_type(np.float16, *known)

    def read(size: int, kept: Sequence[int]) -> Iterator[NDArray[Any]]:
        used = [places[i] for i in kept]
        for frame in frames(size, used):
            columns = [_numbers(frame.iloc[:, at]) for at in range(len(used))]
            wrong = [names[i] for i, found in zip(used, columns, strict=True) if found is None]
            if wrong:
                raise DataFormatError(
                    f"{source}: {len(wrong)} column(s) do not hold numbers: {', '.join(wrong[:5])}; leave "
                    "them out (drop), or give one column per number (identifiers, labels and dates are not "
                    "features)."
                )
            yield np.stack(columns, axis=1).astype(stored, copy=False)  # type: ignore[arg-type]

    def column() -> pd.Series:
        return pd.concat(list(frames(1 << 16, places)), ignore_index=True).iloc[:, 0]

    alone = column if len(places) == 1 else None
    return Opened(read, (rows, len(places)), stored, tuple(names[first:]), tuple(notes), column=alone)


def _numbers(column: pd.Series) -> NDArray[Any] | None:
    """Return a column as floats `(n,)`, NaN for missing ones; None if it holds anything but numbers."""
    kind = getattr(column.dtype, "numpy_dtype", column.dtype)  # of pandas' own types
    if kind.kind not in "fiub":
        return None
    return column.to_numpy(dtype=kind if kind.kind == "f" else np.float64, na_value=np.nan)
