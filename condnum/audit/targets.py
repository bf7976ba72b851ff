"""Targets of a task: numbers of a regression or labels of a classification, one for each row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.row_sources import readable
from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError
from condnum.extras import require

Kind = Literal["auto", "regression", "classification"]
KINDS: tuple[Kind, ...] = ("auto", "regression", "classification")

#: Whole numbers with at most so many different values are taken for labels.
MOST_CLASSES = 100

TargetsLike = str | os.PathLike[str] | NDArray[Any]


def read_targets(value: TargetsLike, *, kind: Kind = "auto", name: str = "targets") -> NDArray[Any]:
    """Read targets; labels are numbered from 0 in sorted order.

    Args:
        value: `(N,)` or `(N, m)` array, or a file of one: npy, npz with one array, csv with a line of names
            (or numbers alone), parquet. Words are labels. Pickles are refused.
        kind: `auto` takes words, and whole numbers with at most `MOST_CLASSES` different values that repeat,
            for labels.
        name: Of the option, for messages.

    Returns:
        `(N,)` int64 labels of a classification, or `(N, m)` float64 of a regression.

    Raises:
        InvalidInputError: Not one target for each row, not finite, or words for a regression.
        DataNotFoundError: The file is missing.
        DataFormatError: The file is damaged, a pickle, or of another kind.
        UnknownNameError: Unknown kind.

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
    if kind == "classification" or (kind == "auto" and _are_labels(Y)):
        if Y.ndim != 1:
            raise InvalidInputError(f"{name} of a classification must be (N,) labels, got shape {Y.shape}.")
        return np.asarray(np.unique(Y, return_inverse=True)[1], dtype=np.int64)
    if Y.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} holds {Y.dtype}, no numbers; a regression needs numbers.")
    Y = Y.astype(np.float64).reshape(len(Y), -1)
    if not np.isfinite(Y).all():
        first = int(np.flatnonzero(~np.isfinite(Y).all(axis=1))[0])
        raise InvalidInputError(
            f"{name} has NaN or infinite values, the first in row {first}; drop such rows."
        )
    return Y


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
    if Y.ndim != 1 or not np.isfinite(Y).all() or (np.round(Y) != Y).any():
        return False
    return len(np.unique(Y)) <= min(MOST_CLASSES, max(2, len(Y) // 5))


def _loaded(path: Path) -> NDArray[Any]:
    """Read a file."""
    ending = path.suffix.lower()
    with readable(path):
        if ending == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        if ending == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                if len(archive.files) != 1:
                    raise DataFormatError(
                        f"{path} holds {len(archive.files)} arrays; targets are a single one."
                    )
                return np.asarray(archive[archive.files[0]])
        if ending == ".csv":
            first = path.open(encoding="utf-8-sig").readline().strip().split(",")
            numbers = bool(pd.to_numeric(pd.Series(first), errors="coerce").notna().all())
            return pd.read_csv(path, header=None if numbers else 0, encoding="utf-8-sig").to_numpy()
        if ending == ".parquet":
            require("pyarrow", "notebooks")
            return pd.read_parquet(path).to_numpy()
    raise DataFormatError(f"{path} ends in '{ending}'; targets come as .npy, .npz, .csv or .parquet.")
