"""What a cell gives: a row of scalars and, beside it, long arrays; and both as bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError

Scalar: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Scalar]
Arrays: TypeAlias = dict[str, NDArray[Any]]


class CellResult(NamedTuple):
    """Result of a cell."""

    row: Row
    arrays: Arrays  # by name; empty if there are none


def checked_result(row: Mapping[str, Any], arrays: Mapping[str, Any]) -> CellResult:
    """Return a result with plain Python scalars and NumPy arrays.

    Examples:
        >>> checked_result({"kappa": np.float32(2), "steps": np.int64(3)}, {"history": [1.0, 0.5]})
        CellResult(row={'kappa': 2.0, 'steps': 3}, arrays={'history': array([1. , 0.5])})
    """
    columns = {_name(name): _scalar(name, value) for name, value in row.items()}
    return CellResult(columns, {_name(name): _array(name, value) for name, value in arrays.items()})


def row_to_json(row: Mapping[str, Scalar]) -> str:
    """Return a row as JSON; floats keep every digit, infinite ones are written `Infinity`, as Python does."""
    return json.dumps(row, ensure_ascii=False)


def row_from_json(text: str) -> Row | None:
    """Read a row; None if the text is damaged."""
    try:
        row = json.loads(text)
    except (TypeError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as the bytes of an `.npz` file."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()


def unpack_arrays(content: bytes) -> Arrays | None:
    """Read the bytes of an `.npz` file; None if they are damaged or hold objects.

    Examples:
        >>> unpack_arrays(pack_arrays({"history": np.array([2, 1])}))
        {'history': array([2, 1])}
        >>> unpack_arrays(b"PK half of it")
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _name(name: Any) -> str:
    """Return a column's name, or refuse it."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"columns and arrays of a cell are named by text, got {name!r}.")
    return name


def _scalar(name: str, value: Any) -> Scalar:
    """Return a Python scalar, or say where long values go."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is not None and not isinstance(plain, str | int | float | bool):
        raise InvalidInputError(
            f"column {name!r} of a cell is a {type(value).__name__}, but a row holds scalars; "
            "use float(…) for one number, and return long values among the arrays."
        )
    return plain


def _array(name: str, value: Any) -> NDArray[Any]:
    """Return a NumPy array that can be stored without pickle."""
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise InvalidInputError(
            f"array {name!r} of a cell holds Python objects (shape {array.shape}); "
            "use numbers, booleans or text of one length."
        )
    return array
