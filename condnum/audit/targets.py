"""Targets of a task: numbers of a regression or labels of a classification, one for each row."""

from __future__ import annotations

import os
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.npy_header import array_member, read_npy, read_npy_header
from condnum.data.row_sources import first_line, readable
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError
from condnum.extras import require

Kind = Literal["auto", "regression", "classification"]
KINDS: tuple[Kind, ...] = ("auto", "regression", "classification")

#: Whole numbers with at most so many different values are taken for labels.
MOST_CLASSES = 100

#: Largest array of targets that is read.
MAX_BYTES = 256 << 20

TargetsLike = str | os.PathLike[str] | NDArray[Any]


def read_targets(value: TargetsLike, *, kind: Kind = "auto", name: str = "targets") -> NDArray[Any]:
    """Read targets; labels are numbered from 0 in sorted order.

    Examples:
        >>> read_targets(np.array(["cat", "dog", "cat"]))
        array([0, 1, 0])
        >>> read_targets(np.array([0.5, 1.5])).shape
        (2, 1)
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of targets", kind, KINDS)
    Y = _loaded(Path(value).expanduser()) if isinstance(value, str | os.PathLike) else np.asarray(value)
    if Y.ndim == 2 and Y.shape[1] == 1:
        Y = Y[:, 0]
    if Y.ndim not in (1, 2) or not Y.size:
        raise InvalidInputError(f"{name} must be (N,) or (N, m), one for each row, got shape {Y.shape}.")
    if Y.dtype.kind == "O":
        Y = _words(Y, name)
    if kind == "classification" or (kind == "auto" and _are_labels(Y)):
        if Y.ndim != 1:
            raise InvalidInputError(f"{name} of a classification must be (N,) labels, got shape {Y.shape}.")
        return np.asarray(np.unique(Y, return_inverse=True)[1], dtype=np.int64)
    if Y.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} holds {Y.dtype}, no numbers; a regression needs numbers.")
    with np.errstate(all="ignore"):  # what does not fit becomes infinite, and is refused below
        Y = Y.astype(np.float64).reshape(len(Y), -1)
    if not np.isfinite(Y).all():
        first = int(np.flatnonzero(~np.isfinite(Y).all(axis=1))[0])
        raise InvalidInputError(
            f"{name} has NaN or infinite values, the first in row {first}; drop such rows."
        )
    return Y


def _words(Y: NDArray[Any], name: str) -> NDArray[Any]:
    """Return objects of a table as words, or as numbers where they are none; refuse empty cells and lists."""
    for row, value in enumerate(Y.reshape(-1)):
        if not isinstance(value, str | bool | int | float | np.generic | Decimal) or value != value:
            raise InvalidInputError(
                f"{name} has {type(value).__name__} {str(value)[:40]!r} among its values (number {row}); "
                "a label is a word or a number, one for each row: fill or drop empty cells."
            )
    if any(isinstance(value, str) for value in Y.reshape(-1)):
        return Y.astype(str)
    return Y.astype(np.float64)


def one_hot(targets: NDArray[Any]) -> NDArray[np.float64]:
    """Return labels as one column a class, the targets of a least-squares probe; numbers as they are.

    Examples:
        >>> one_hot(np.array([0, 2, 1]))
        array([[1., 0., 0.],
               [0., 0., 1.],
               [0., 1., 0.]])
    """
    if targets.dtype.kind == "f":
        return np.asarray(targets, dtype=np.float64)
    return np.eye(int(targets.max()) + 1)[targets]


def _are_labels(Y: NDArray[Any]) -> bool:
    """Tell labels from numbers."""
    if Y.dtype.kind in "OUSb":
        return True
    if Y.dtype.kind not in "fiu" or Y.ndim != 1 or not np.isfinite(Y).all() or (np.round(Y) != Y).any():
        return False
    return len(np.unique(Y)) <= min(MOST_CLASSES, max(2, len(Y) // 5))


def _array(stream: IO[bytes], size: int, path: Path) -> NDArray[Any]:
    """Read an array of numbers or words after a look at its header."""
    header = read_npy_header(stream, size, path, kinds="fiubSU")
    if header.size * header.dtype.itemsize > MAX_BYTES:
        raise DataFormatError(
            f"{path} holds an array of shape {header.shape} and type {header.dtype}; targets are one or "
            "a few numbers for each row, or short words."
        )
    return read_npy(stream, header, path)


def _loaded(path: Path) -> NDArray[Any]:
    """Read a file."""
    ending = path.suffix.lower()
    with readable(path):
        if ending == ".npy":
            with path.open("rb") as stream:
                return _array(stream, path.stat().st_size, path)
        if ending == ".npz":
            with zipfile.ZipFile(path) as archive:
                if len(archive.infolist()) != 1:
                    raise DataFormatError(
                        f"{path} holds {len(archive.infolist())} arrays; targets are a single one."
                    )
                member = array_member(archive, path, None)
                with archive.open(member) as stream:
                    return _array(stream, member.file_size, path)
        if ending == ".csv":
            first = first_line(path)
            numbers = bool(pd.to_numeric(pd.Series(first), errors="coerce").notna().all())
            return pd.read_csv(path, header=None if numbers else 0, encoding="utf-8-sig").to_numpy()
        if ending == ".parquet":
            require("pyarrow", "notebooks")
            return pd.read_parquet(path).to_numpy()
    raise DataFormatError(f"{path} ends in '{ending}'; targets come as .npy, .npz, .csv or .parquet.")
