"""Rows of tables, `.csv` parsed from the start and `.parquet` by row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.row_sources import FileRows, check_shape, first_line, position_names, readable
from condnum.errors import DataFormatError
from condnum.extras import require

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
