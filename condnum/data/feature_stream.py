"""Feature matrices that need not fit in memory: arrays and tables, read in blocks of rows.

`.npy`, `.parquet` and `.csv` are read in blocks; `.npz`, `.pt` and `.safetensors` are taken into memory.
Nothing in a file is executed: pickles are refused.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.arrays import TargetKind, as_array, as_targets, storage_eps
from condnum.data.feature_tables import Opened, Reader, open_frame, open_parquet, open_text
from condnum.data.task_pair import Float64Array
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    require,
)

#: A block holds at most this much, counted as float32: large enough for matrix products at full speed.
BLOCK_BYTES = 16 << 20
#: Rows of a block of narrow features.
MAX_BLOCK_ROWS = 65_536
#: Widest features that are accepted.
MAX_FEATURES = 20_000

#: A matrix of any kind (array, tensor, data frame), where to find one, or a stream of one.
FeaturesLike = Any
#: Targets of any kind (array, tensor, series, text), or where to find some.
TargetsLike = Any


@dataclass(frozen=True, eq=False)
class FeatureStream:
    """A feature matrix X as a sequence of blocks of rows; it can be read any number of times."""

    source: str  # the path as given, or a name
    read: Reader
    columns: tuple[str, ...]  # D names, of the columns that are kept, in their order
    order: tuple[int, ...]  # positions of the kept columns in the file
    named: bool  # whether the file named its columns
    dtype: np.dtype[Any]  # the stored type; float64 for text
    is_file: bool
    stored_eps: float  # machine epsilon of the stored type; integers and booleans count as float64
    notes: tuple[str, ...] = ()  # what was understood of the file, in sentences
    column: Callable[[], pd.Series] | None = None  # the only column of a table, text or not

    @property
    def dimension(self) -> int:
        """Number of columns D."""
        return len(self.columns)

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Read blocks of rows in the stored type, as they are: NaN where an entry is missing."""
        rows = max(1, min(MAX_BLOCK_ROWS, BLOCK_BYTES // (4 * self.dimension)))
        with self._readable():
            yield from self.read(rows, list(self.order))

    def array(self, *, gaps: Literal["drop", "refuse"] = "drop") -> Float64Array:
        """Return the rows in memory: the complete ones, or all of them, which then have to be finite."""
        with np.errstate(all="ignore"):  # numbers beyond float64 become infinite
            parts = [np.asarray(block, dtype=np.float64) for block in self.blocks()]
        X = np.concatenate([np.empty((0, self.dimension)), *parts])
        if gaps == "drop":
            return X[~np.isnan(X).any(axis=1)]
        if not np.isfinite(X).all():
            first = int(np.flatnonzero(~np.isfinite(X).all(axis=1))[0])
            raise InvalidInputError(
                f"{self.source} has NaN or infinite entries, the first in row {first}; drop or replace them."
            )
        return X

    def targets(self) -> NDArray[Any] | pd.Series:
        """Return targets as they are stored: finite numbers `(N, m)`, or one column of integers or text."""
        if self.column is not None:
            with self._readable():
                column = self.column()
            if not pd.api.types.is_float_dtype(column):
                return column
        numbers = self.array(gaps="refuse")
        return numbers.astype(np.int64) if self.column is None and self.dtype.kind in "iub" else numbers

    def select(self, columns: Sequence[str]) -> FeatureStream:
        """Return a stream of some of the columns, in the order asked for."""
        place = dict(zip(self.columns, self.order, strict=True))
        return replace(self, columns=tuple(columns), order=tuple(place[name] for name in columns))

    def _readable(self) -> Any:
        return _readable(Path(self.source)) if self.is_file else nullcontext()


def as_stream(features: FeaturesLike, *, name: str = "features", vector: bool = False) -> FeatureStream:
    """Return a stream of features, wherever they are; with `vector`, `(N,)` numbers count as one column.

    An array in memory is called by `name`.
    """
    if isinstance(features, FeatureStream):
        return features
    if not isinstance(features, str | os.PathLike):
        return _stream(name, open_value(features, name, vector), is_file=False)
    file = Path(features).expanduser()
    with _readable(file):
        ending = file.suffix.lower()
        if ending not in OPENERS:
            raise DataFormatError(
                f"{features} ends in '{file.suffix}', which is not a supported format; read it with the "
                "library that wrote it, and save it with DataFrame.to_parquet or numpy.save. Formats: "
                f"{', '.join(OPENERS)}."
            )
        return _stream(str(file), OPENERS[ending](file, vector), is_file=True)


def read_targets(
    value: TargetsLike, *, kind: TargetKind = "auto", name: str = "targets"
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read labels, numbered from 0 in ascending order, or numbers `(N, m)`, and what was understood."""
    stream = as_stream(value, name=name, vector=True)
    return as_targets(stream.targets(), name, kind)[0], stream.notes


def _stream(source: str, opened: Opened, *, is_file: bool) -> FeatureStream:
    """Refuse what is not a matrix of numbers, and say how columns without names are called."""
    shape, dtype, names = opened.shape, opened.dtype, opened.names
    error = DataFormatError if is_file else InvalidInputError
    if 0 in shape:
        raise error(f"{source} is empty: its shape is {shape}; check how it was written, and write it again.")
    if len(shape) != 2 or dtype.kind not in "fiub":
        raise error(
            f"{source} holds an array of shape {shape} and type {dtype}; expected a matrix (N, D) of "
            "real numbers with one row per sample: save X.astype(float), images as X.reshape(len(X), -1)."
        )
    D = shape[1]
    if D > MAX_FEATURES:
        raise InvalidInputError(
            f"{source} has D = {D:,d} columns, above the limit of {MAX_FEATURES:,d}. One covariance takes "
            f"{8 * D**2 / 2**30:.1f} GiB in float64, and an audit "
            "needs six of them: project the features to fewer columns."
        )
    columns = names or tuple(f"x{i}" for i in range(D))
    if len(set(columns)) < D:
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InvalidInputError(f"{source} has the column '{twice}' twice; rename or drop one.")
    eps = opened.eps or float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)
    return FeatureStream(
        source, opened.read, columns, tuple(range(D)), bool(names), dtype, is_file, eps, opened.notes,
        opened.column,
    )  # fmt: skip


@contextmanager
def _readable(path: Path) -> Generator[None]:
    """Turn whatever readers of arrays and tables raise about a damaged file into our words."""
    if path.is_dir():
        raise DataFormatError(f"{path} is a folder; give a file in it, such as a .npy, .csv or .parquet.")
    try:
        yield
    except CondnumError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataNotFoundError(
                f"cannot read {path}: {error.strerror or error}; check the path."
            ) from error
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataFormatError(
            f"{path} is damaged or does not match its extension "
            f"({reason}); write it again, with numbers only."
        ) from error


# What can be opened.


def open_value(value: Any, name: str, vector: bool = False) -> Opened:
    """Open an array, a tensor or a data frame; with `vector`, also text."""
    if hasattr(value, "to_pandas"):  # of Arrow and Polars
        value = value.to_pandas()
    if isinstance(value, pd.Series):
        value = value.to_frame()
    if isinstance(value, pd.DataFrame):
        return open_frame(value, name)
    array = as_array(value, name)
    array = array[:, None] if vector and array.ndim == 1 else array
    if vector and array.dtype.kind in "OUS":
        return replace(open_frame(pd.DataFrame(array), name), names=())

    def read(size: int, kept: Sequence[int]) -> Iterator[NDArray[Any]]:
        return (array[at : at + size][:, kept] for at in range(0, len(array), size))

    eps = storage_eps(value) if isinstance(value, torch.Tensor) else None
    return Opened(read, array.shape, array.dtype, eps=eps)


def _open_npy(path: Path, vector: bool) -> Opened:
    """Map an array, which checks its header against the file's size; its rows are then read by position."""

    def mapped() -> NDArray[Any]:
        try:
            with np.errstate(all="ignore"):  # sizes that lie may overflow, and are refused all the same
                array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "pickle" in str(error):  # NumPy recommends to load it unsafely
                raise ValueError("it has another format, or holds Python objects") from error
            raise
        if not isinstance(array, np.ndarray):
            array.close()
            raise DataFormatError(f"{path} is a file of numpy.savez; rename it to end in .npz.")
        return array

    array = mapped()
    shape = array.shape
    if array.dtype.kind in "US":
        return open_value(np.array(array), str(path), vector)

    def read(size: int, kept: Sequence[int]) -> Iterator[NDArray[Any]]:
        for begin in range(0, shape[0], size):
            # Mapped anew for each block: no page that was touched stays, and a file cut short is noticed.
            rows = mapped()[begin : begin + size]
            rows = rows.reshape(len(rows), -1)
            yield np.array(rows if len(kept) == rows.shape[1] == kept[-1] + 1 else rows[:, kept])

    return Opened(read, (*shape, 1) if vector and len(shape) == 1 else shape, array.dtype)


def _archive(arrays_of: Callable[[Path], Mapping[str, Any]]) -> Callable[[Path, bool], Opened]:
    """Open the only array of a file, or its only matrix (for targets, its only vector)."""

    def opened(path: Path, vector: bool) -> Opened:
        arrays = arrays_of(path)
        fitting = [*arrays]
        if len(fitting) > 1:
            shapes = {name: tuple(of.shape) for name, of in arrays.items()}
            fitting = [
                n for n, of in shapes.items() if len(of) in (1, 2) and (of[1:] in ((), (1,))) == vector
            ]
        what = "targets" if vector else "features"
        if len(fitting) != 1:
            shown = ", ".join([*arrays][:8]) + (", …" if len(arrays) > 8 else "")
            raise DataFormatError(
                f"{path} holds {len(arrays)} arrays ({shown}), of which {len(fitting)} may be the {what}; "
                "save that array alone."
            )
        found = open_value(arrays[fitting[0]], str(path), vector)
        return replace(found, notes=(f"{path}: {fitting[0]} is taken for the {what}.",) * (len(arrays) > 1))

    return opened


def _npz(path: Path) -> Mapping[str, Any]:
    """Take the arrays of `numpy.savez` into memory."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _torch(path: Path) -> Mapping[str, Any]:
    """Load a tensor, or the tensors of a dictionary."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataFormatError(
            f"{path} holds Python objects, which are not loaded as that can run code; save the tensor alone: "
            f"torch.save(X, {path.name!r})."
        ) from error
    named = value.items() if isinstance(value, Mapping) else [("X", value)]
    tensors = {str(name): of for name, of in named if isinstance(of, torch.Tensor)}
    if not tensors:
        raise DataFormatError(f"{path} holds no tensor; save one: torch.save(X, {path.name!r}).")
    return tensors


def _safetensors(path: Path) -> Mapping[str, Any]:
    return require("safetensors.torch", "deep").load_file(path)


#: How a file is opened, by its ending; the truth asks for targets.
OPENERS: dict[str, Callable[[Path, bool], Opened]] = {
    ".npy": _open_npy,
    ".npz": _archive(_npz),
    ".pt": _archive(_torch),
    ".safetensors": _archive(_safetensors),
    ".parquet": lambda path, _: open_parquet(path),
    ".csv": lambda path, _: open_text(path),
}
