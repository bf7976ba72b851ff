"""A feature matrix from a file of the reader's own: npy, npz, csv or parquet, read with suspicion.

Nothing in a file is executed (no pickles), and nothing is allocated before its size is known: what a
header promises is compared with the limit and with the bytes that are there.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.npy_header import array_member, check_expansion, read_npy, read_npy_header
from condnum.data.row_sources import check_shape, first_line, readable
from condnum.data.task_arrays import FloatArray, read_only
from condnum.errors import DataFormatError, UnknownNameError
from condnum.extras import require

#: Largest file, and largest matrix as float64, that is read unless the caller says otherwise: 1 GiB.
MAX_BYTES = 1 << 30

#: Most columns of a table in CSV or parquet; a million of them take the parser minutes.
MAX_WIDTH = 20_000


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """A feature matrix X with what is known about its origin; entries may be NaN."""

    features: FloatArray  # (N, D), read-only
    columns: tuple[str, ...]  # D names; "x0", "x1", … where the file has none
    named: bool  # whether the file named its columns
    stored_eps: float  # machine epsilon of the stored type; that of float64 for integers and text
    source: str  # the path as given

    @property
    def rows(self) -> int:
        """Number of rows N."""
        return len(self.features)

    @property
    def dimension(self) -> int:
        """Number of columns D."""
        return int(self.features.shape[1])


def read_feature_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    key: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> FeatureTable:
    r"""Read a feature matrix, one row a sample; the file's ending says how.

    `.npy` and `.npz` hold a real `(N, D)` array. `.csv` is separated by commas, with a line of names
    unless every cell of its first line is a number; empty cells and NA are NaN. `.parquet` needs
    pyarrow. Booleans count as 0 and 1; text does not count as features and is refused by name.

    Args:
        path: The file; `~` is expanded.
        columns: Which columns to keep, in this order; default all.
        key: Which array of an `.npz`; may be left out if it holds one.
        max_bytes: Limit on the file and on the matrix as float64.

    Returns:
        The matrix in float64, with the names of its columns.

    Raises:
        DataNotFoundError: No such file, or it cannot be read.
        DataFormatError: Another ending, a damaged file, a pickle, too large, not a matrix of real
            numbers, infinite entries, or no row or column at all.
        UnknownNameError: A column or key that the file does not have.
        MissingExtraError: A parquet file without pyarrow.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "X.csv"
        ...     _ = path.write_text("length,width\n1,2\n3,\n")
        ...     table = read_feature_table(path)
        >>> table.columns, table.features.tolist()
        (('length', 'width'), [[1.0, 2.0], [3.0, nan]])
    """
    file = Path(path).expanduser()
    ending = file.suffix.lower()
    if ending not in READERS:
        raise DataFormatError(
            f"{path} ends in '{ending}', which is no table of features; save it as one of "
            f"{', '.join(READERS)}."
        )
    with readable(file):
        _check_size(file.stat().st_size, max_bytes, path)
        values, names, eps = READERS[ending](file, key, max_bytes)
    if values.ndim != 2 or 0 in values.shape:
        raise DataFormatError(
            f"{path} holds an array of shape {values.shape}; features are a matrix (N, D), one row a sample: "
            "reshape it, images for example by X.reshape(len(X), -1)."
        )
    named = names is not None
    columns_read = tuple(names) if names is not None else tuple(f"x{i}" for i in range(values.shape[1]))
    _check_finite(values, columns_read, path)
    table = FeatureTable(read_only(values, str(path)), columns_read, named, eps, str(path))
    return table if columns is None else select_columns(table, columns)


def select_columns(table: FeatureTable, columns: Sequence[str]) -> FeatureTable:
    """Return a table with some of its columns, in the order asked for.

    Args:
        table: Any.
        columns: Names among `table.columns`.

    Returns:
        A new table.

    Raises:
        UnknownNameError: The table has no such column.
    """
    for name in columns:
        if name not in table.columns:
            raise UnknownNameError(f"column of {table.source}", name, table.columns)
    order = [table.columns.index(name) for name in columns]
    kept = read_only(table.features[:, order], table.source)
    return FeatureTable(kept, tuple(columns), table.named, table.stored_eps, table.source)


_Content = tuple[NDArray[Any], Sequence[str] | None, float]  # values, names, epsilon of the stored type


def _read_npy(file: Path, key: str | None, limit: int) -> _Content:
    with file.open("rb") as stream:
        return _npy(stream, file.stat().st_size, limit, file)


def _read_npz(file: Path, key: str | None, limit: int) -> _Content:
    with zipfile.ZipFile(file) as archive:
        member = array_member(archive, file, key)
        _check_size(member.file_size, limit, f"{file}, array '{member.filename}', unpacked")
        with archive.open(member) as stream:
            return _npy(stream, member.file_size, limit, file)


def _npy(stream: IO[bytes], size: int, limit: int, path: Path) -> _Content:
    """Read an array after its header has been checked against the bytes that follow it."""
    header = read_npy_header(stream, size, path)
    _check_size(8 * header.size, limit, f"{path} as float64")
    check_shape(header.shape, path)
    return _as_float64(read_npy(stream, header, path)), None, _eps(header.dtype)


def _read_csv(file: Path, key: str | None, limit: int) -> _Content:
    try:
        first = first_line(file)
        _check_width(len(first), file)
        headless = bool(first) and all(_is_number(cell) for cell in first)
        frame = pd.read_csv(file, header=None if headless else 0, encoding="utf-8-sig", skipinitialspace=True)
    except (ValueError, csv.Error) as error:  # pandas' and unicode errors are ValueErrors
        raise DataFormatError(
            f"{file} is not a table in CSV ({str(error).strip()}); separate cells by commas, in UTF-8."
        ) from error
    values, names, eps = _frame(frame, file, limit)
    return values, None if headless else names, eps


def _read_parquet(file: Path, key: str | None, limit: int) -> _Content:
    parquet = require("pyarrow.parquet", "notebooks")
    with file.open("rb"):  # say "no such file" in our words, not in pyarrow's
        pass
    metadata = parquet.ParquetFile(file).metadata
    _check_width(metadata.num_columns, file)
    size = 8 * metadata.num_rows * metadata.num_columns
    _check_size(size, limit, f"{file} as float64")
    check_expansion(size, file.stat().st_size, file)
    return _frame(parquet.read_table(file).to_pandas(), file, limit)


def _frame(frame: pd.DataFrame, path: Path, limit: int) -> _Content:
    """Turn a frame of numbers into a matrix; name the columns that are none."""
    _check_size(8 * frame.size, limit, f"{path} as float64")
    kinds = zip(frame.columns, frame.dtypes, strict=True)
    text = [str(column) for column, dtype in kinds if not pd.api.types.is_numeric_dtype(dtype)]
    if text:
        shown = ", ".join(text[:5]) + (", …" if len(text) > 5 else "")
        raise DataFormatError(
            f"{path}: {len(text)} column(s) do not hold numbers: {shown}; drop or encode them "
            "(identifiers and labels are not features)."
        )
    dtypes = [getattr(d, "numpy_dtype", d) for d in frame.dtypes]
    eps = max((_eps(np.dtype(d)) for d in dtypes), default=_eps(np.dtype(float)))
    values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
    return values, [str(name) for name in frame.columns], eps


#: How a file with each ending is read.
READERS: dict[str, Callable[[Path, str | None, int], _Content]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _check_size(size: int, limit: int, what: object) -> None:
    if size > limit:
        raise DataFormatError(
            f"{what} takes {size / 2**20:,.1f} MiB, above the limit of {limit / 2**20:,.1f} MiB; take fewer "
            "rows (κ is that of a sample anyway) or fewer columns, or raise the limit."
        )


def _check_width(columns: int, path: object) -> None:
    if columns > MAX_WIDTH:
        raise DataFormatError(
            f"{path} has {columns:,d} columns, above the limit of {MAX_WIDTH:,d} for a table with "
            "names, which is read column by column; is it transposed? Save wide features with numpy.save."
        )


def _as_float64(values: NDArray[Any]) -> FloatArray:
    """Convert numbers; those beyond float64 become infinite, which is refused with their place."""
    with np.errstate(all="ignore"):
        return np.asarray(values, dtype=np.float64)


def _check_finite(values: NDArray[Any], columns: tuple[str, ...], path: object) -> None:
    infinite = np.argwhere(np.isinf(values))
    if len(infinite):
        row, column = infinite[0]
        raise DataFormatError(
            f"{path} holds {len(infinite)} infinite value(s), the first in data row {row + 1}, column "
            f"'{columns[column]}'; replace them, or drop these rows."
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _eps(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)
