"""Rows of tables, `.csv` parsed from the start and `.parquet` by row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.row_sources import FileRows, check_shape, first_line, position_names, readable
from condnum.errors import DataFormatError
from condnum.extras import require


@dataclass(frozen=True, eq=False)
class CsvRows(FileRows):
    """A table in CSV, parsed in blocks from the start."""

    def blocks(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Parse blocks; see `RowSource`."""
        with readable(self.path):
            frames = pd.read_csv(
                self.path, header=0 if self.named else None, encoding="utf-8-sig", skipinitialspace=True,
                chunksize=size, dtype=np.float64, index_col=False,
                skiprows=range(int(self.named), start + int(self.named)),
            )  # fmt: skip
            with frames:
                for frame in frames:
                    yield frame.to_numpy()


@dataclass(frozen=True, eq=False)
class ParquetRows(FileRows):
    """A table in parquet, read by row groups."""

    def blocks(self, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Read blocks; see `RowSource`."""
        parquet = require("pyarrow.parquet", "notebooks")
        with readable(self.path), parquet.ParquetFile(self.path, memory_map=False) as file:
            yield from _regrouped(self._groups(file, start, size), size)

    def _groups(self, file: Any, start: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield what the row groups hold from row `start` on, a batch at a time."""
        seen = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if seen + rows > start:
                position = seen
                for batch in file.iter_batches(size, row_groups=[group], columns=list(self.names)):
                    values = np.stack(
                        [c.to_numpy(zero_copy_only=False).astype(self.dtype) for c in batch.columns], axis=1
                    )
                    yield values[max(0, start - position) :]
                    position += len(values)
            seen += rows


def open_csv(path: Path, key: str | None) -> CsvRows:
    """Open a table in CSV; only its header is read.

    Args:
        path: The file.
        key: Not used.

    Returns:
        Its rows.

    Raises:
        DataFormatError: The file is empty.
    """
    first = first_line(path)
    if not first:
        raise DataFormatError(f"{path} is empty; a table has a line for each row.")
    check_shape((1, len(first)), path)
    named = not all(_is_number(cell) for cell in first)
    names = tuple(cell.strip() for cell in first) if named else position_names(len(first))
    return CsvRows(path, names, named, np.dtype(np.float64), None)


def open_parquet(path: Path, key: str | None) -> ParquetRows:
    """Open a table in parquet; only its header is read.

    Args:
        path: The file.
        key: Not used.

    Returns:
        Its rows.

    Raises:
        DataFormatError: Columns that are no numbers, or no rows.
        MissingExtraError: pyarrow is not installed.
    """
    parquet = require("pyarrow.parquet", "notebooks")
    with parquet.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    # pandas' index is no feature.
    columns = [column for column in schema if not column.name.startswith("__index_level_")]
    kinds = []
    for column in columns:
        try:
            dtype = np.dtype(column.type.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            dtype = np.dtype(object)
        if dtype.kind not in "fiub":
            raise DataFormatError(
                f"{path}: the column '{column.name}' holds {column.type}, no numbers; drop or encode it "
                "(identifiers and labels are not features)."
            )
        kinds.append(dtype if dtype.kind == "f" else np.dtype(np.float64))
    check_shape((rows, len(kinds)), path)
    return ParquetRows(path, tuple(c.name for c in columns), True, np.result_type(*kinds), rows)


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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
