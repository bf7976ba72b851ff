"""A feature matrix from a file of the reader's own: npy, npz, csv or parquet, read with suspicion.

Nothing in a file is executed (no pickles), and nothing is allocated before its size is known: what a
header promises is compared with the limit and with the bytes that are there.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from condnum.data.task_pair import FloatArray, read_only
from condnum.errors import CondnumError, DataFormatError, DataNotFoundError, UnknownNameError
from condnum.extras import require

#: Largest file, and largest matrix as float64, that is read unless the caller says otherwise: 1 GiB.
MAX_BYTES = 1 << 30


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
    with _readable(path):
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
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if key is None and len(members) != 1:
            raise DataFormatError(
                f"{file} holds {len(members)} arrays ({', '.join(members)}); say which by key=."
            )
        name = next(iter(members)) if key is None else key
        if name not in members:
            raise UnknownNameError(f"array of {file}", name, members)
        _check_size(members[name].file_size, limit, f"{file}, array '{name}', unpacked")
        with archive.open(members[name]) as stream:
            return _npy(stream, members[name].file_size, limit, file)


def _npy(stream: IO[bytes], size: int, limit: int, path: Path) -> _Content:
    """Read an array after its header has been checked against the bytes that follow it."""
    try:
        version = npy_format.read_magic(stream)
        header = npy_format.read_array_header_1_0 if version[0] == 1 else npy_format.read_array_header_2_0
        shape, _, dtype = header(stream)
        if dtype.kind not in "fiub":
            raise DataFormatError(
                f"{path} holds entries of type '{dtype}'; features are real numbers: "
                "save X.astype(float). Pickled objects are never loaded."
            )
        count = int(np.prod([int(n) for n in shape], dtype=object))
        _check_size(8 * count, limit, f"{path} as float64")
        if count * dtype.itemsize > size - stream.tell():
            raise DataFormatError(
                f"{path} is cut off: its header promises {count:,d} entries; copy it again."
            )
        stream.seek(0)
        values = npy_format.read_array(stream, allow_pickle=False)
    except ValueError as error:
        if isinstance(error, DataFormatError):
            raise
        raise DataFormatError(f"{path} is not a NumPy file ({error}); write it with numpy.save.") from error
    return values, None, _eps(dtype)


def _read_csv(file: Path, key: str | None, limit: int) -> _Content:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = next(csv.reader(stream), [])
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
    lib = require("pyarrow", "notebooks")
    with file.open("rb"):  # say "no such file" in our words, not in pyarrow's
        pass
    try:
        metadata = parquet.ParquetFile(file).metadata
        _check_size(8 * metadata.num_rows * metadata.num_columns, limit, f"{file} as float64")
        frame = parquet.read_table(file).to_pandas()
    except lib.ArrowException as error:
        raise DataFormatError(f"{file} is not a parquet file ({error}); write it again.") from error
    return _frame(frame, file, limit)


def _frame(frame: pd.DataFrame, path: Path, limit: int) -> _Content:
    """Turn a frame of numbers into a matrix; name the columns that are none."""
    _check_size(8 * frame.size, limit, f"{path} as float64")
    text = [str(c) for c in frame.columns if not pd.api.types.is_numeric_dtype(frame[c].dtype)]
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


@contextmanager
def _readable(path: object) -> Generator[None]:
    """Turn what goes wrong on a disk or in an archive into our words."""
    try:
        yield
    except CondnumError:
        raise  # some of them are OSErrors too, and say more
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataFormatError(f"{path} is damaged ({error}); write it again.") from error
    except OSError as error:
        raise DataNotFoundError(f"cannot read {path}: {error.strerror or error}; check the path.") from error


def _check_size(size: int, limit: int, what: object) -> None:
    if size > limit:
        raise DataFormatError(
            f"{what} takes {size / 2**20:,.1f} MiB, above the limit of {limit / 2**20:,.1f} MiB; take fewer "
            "rows (κ is that of a sample anyway) or fewer columns, or raise the limit."
        )


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
