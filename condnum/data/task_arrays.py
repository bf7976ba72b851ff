"""Checked, read-only arrays: what every task of a pair is made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError

FloatArray: TypeAlias = NDArray[np.float64]


def read_only(value: Any, name: str) -> FloatArray:
    """Return `value` as a read-only float64 array; an array that already is one is not copied.

    Examples:
        >>> read_only([1, 2], "y").flags.writeable
        False
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInputError(f"{name} is not an array ({error}); give rows of equal length.") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} must hold real numbers, got dtype {array.dtype}; encode it first.")
    if array.dtype == np.float64 and array.base is None and array.flags.c_contiguous:
        if not array.flags.writeable:
            return array
        array = array.copy() if array is value else array
    else:
        array = np.array(array, dtype=np.float64, order="C")
    array.setflags(write=False)
    return array


def check_rows(rows: object) -> None:
    """Check a number of rows.

    Examples:
        >>> check_rows(2)
    """
    if not isinstance(rows, int | np.integer) or isinstance(rows, bool) or rows < 2:
        raise InvalidInputError(f"rows must be an integer of at least 2, got {rows!r}.")


def check_shapes(
    X: FloatArray, y: FloatArray, inputs: str, targets: str, task: str, features: tuple[str, ...]
) -> None:
    """Check that inputs are `(N, D)`, targets `(N,)`, with at least two rows and a name for each column.

    Examples:
        >>> check_shapes(np.eye(2), np.ones(2), "X_P", "y_P", "p", ("a", "b"))
    """
    if X.ndim != 2 or y.ndim != 1:
        raise InvalidInputError(
            f"{inputs} must be (N, D) and {targets} (N,), got shapes {X.shape} and {y.shape}."
        )
    if len(X) != len(y):
        raise InvalidInputError(f"{inputs} has {len(X)} rows but {targets} has {len(y)} values.")
    if X.shape[1] != len(features) or not features:
        raise InvalidInputError(
            f"{inputs} has {X.shape[1]} columns but there are {len(features)} feature names; "
            "both tasks must have the same, non-empty list of features."
        )
    if len(X) < 2:
        raise InvalidInputError(
            f"task '{task}' has {len(X)} row(s) in {inputs}; at least 2 are needed: check the split."
        )


def check_finite(X: FloatArray, y: FloatArray, inputs: str, targets: str, features: tuple[str, ...]) -> None:
    """Check that all values are finite.

    Examples:
        >>> check_finite(np.eye(2), np.ones(2), "X_P", "y_P", ("a", "b"))
    """
    bad = np.argwhere(~np.isfinite(X))
    if len(bad):
        row, column = bad[0]
        raise InvalidInputError(
            f"{inputs} holds {len(bad)} non-finite value(s), the first at row {row}, feature "
            f"'{features[column]}' (column {column}): {X[row, column]}; impute or drop these rows."
        )
    wrong = np.flatnonzero(~np.isfinite(y))
    if len(wrong):
        raise InvalidInputError(
            f"{targets} holds {len(wrong)} non-finite value(s), the first at row {wrong[0]}: {y[wrong[0]]}; "
            "drop these rows."
        )
