"""A cell of a study, small enough to travel; what comes of computing it; the store of the results."""

from __future__ import annotations

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError
from condnum.files import atomic_write, folder_lock, write_text
from condnum.machine import limited_threads

Scalar: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Scalar]
Arrays: TypeAlias = dict[str, NDArray[Any]]


class CellResult(NamedTuple):
    """A row of scalars and, beside it, long arrays by name."""

    row: Row
    arrays: Arrays


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell of a study; its key holds all that the result depends on, so equal keys are one cell."""

    at: Mapping[str, Any]  # coordinates that name the cell (method, seed, pair): cell["seed"]
    settings: Mapping[str, Any] = field(default_factory=dict)  # what else the result depends on
    after: Cell | None = None  # has to be finished before, such as the θ₀ that this one starts from
    study: str = field(default="", kw_only=True)
    key: str = field(default="", kw_only=True)  # of `named`: what is computed, and by which code
    folder: str = field(default="", kw_only=True)  # for files of the study beside the results

    def __post_init__(self) -> None:
        """Keep copies of both dictionaries as JSON gives them back, so that the key stays what it is."""
        for name in ("at", "settings"):
            given = json.dumps(dict(getattr(self, name)), allow_nan=False)
            object.__setattr__(self, name, json.loads(given))

    def named(self, study: str, checksum: str, code: str, folder: str = "") -> Cell:
        """Return the cell with the key that it has in a study, on data and by code with these checksums."""
        after = None if self.after is None else self.after.named(study, checksum, code, folder)
        parts = [study, self.at, self.settings, checksum, code, after and after.key]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
        return replace(self, after=after, study=study, key=key, folder=folder)

    @property
    def name(self) -> str:
        """Method or stage (else the study), then the attacker or the part of the net, where there is one."""
        words = [self.at.get("method", self.at.get("stage", self.study))]
        return ", ".join(map(str, words + [self.at[key] for key in ("attacker", "part") if key in self.at]))

    @property
    def label(self) -> str:
        """The cell in words, for messages."""
        return f"{self.study}: {', '.join(f'{name}={value}' for name, value in self.at.items())}"

    def __getitem__(self, name: str) -> Any:
        return self.at[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


#: Computes a cell: its row of scalars, and its arrays by name if there are any.
Compute: TypeAlias = Callable[[Cell], Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]]]


def checked_result(result: Any) -> CellResult:
    """Return what a computation gave as plain Python scalars and NumPy arrays, or say what cannot be kept."""
    row, arrays = (result, {}) if isinstance(result, Mapping) else result
    found = CellResult(
        {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()},
        {name: np.asarray(value) for name, value in arrays.items()},
    )
    for name, value in found.row.items():
        if not isinstance(value, str | int | float | bool | None):
            raise InvalidInputError(
                f"column {name!r} of a cell is a {type(value).__name__}, but a row holds scalars; use "
                "float(…) for a number, and return long values as arrays."
            )
    for name, array in found.arrays.items():
        if array.dtype.hasobject:
            raise InvalidInputError(
                f"array {name!r} of a cell holds Python objects (shape {array.shape}); "
                "use numbers, booleans or fixed-length strings."
            )
    return found


@dataclass(frozen=True)
class Outcome:
    """A cell that was tried."""

    cell: Cell
    result: CellResult | None  # None if it failed
    error: str = ""  # type and message
    traceback: str = ""  # as Python prints it; of another process, perhaps

    @classmethod
    def failed(cls, cell: Cell, error: BaseException) -> Outcome:
        """Return the outcome of a cell that raised an exception, or was lost with its worker."""
        text = "".join(traceback.format_exception(error))
        return cls(cell, None, f"{type(error).__name__}: {error}", text)


def evaluate(compute: Compute, cell: Cell, threads: int | None = None) -> Outcome:
    """Compute a cell in this process; an error becomes a value, so that the other cells go on."""
    try:
        with limited_threads(threads):
            return Outcome(cell, checked_result(compute(cell)))
    except Exception as error:
        return Outcome.failed(cell, error)


class ResultStore:
    """Results in a folder, one file per cell, named by its key; one process at a time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self._held = Path(folder).expanduser(), ExitStack()
        self._held.enter_context(folder_lock(self.folder))
        for leftover in self.folder.glob(".*.npz"):  # of a writer that was killed
            leftover.unlink(missing_ok=True)

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def get(self, key: str) -> CellResult | None:
        """Return a finished cell's row and arrays; None if it is not finished or its file is damaged."""
        try:
            with np.load(self._path(key), allow_pickle=False) as stored:
                row = json.loads(stored["row"].item())
                arrays = {name.removeprefix("array."): stored[name] for name in stored if name != "row"}
        except Exception:  # whatever a damaged file makes of its readers
            return None
        return CellResult(row, arrays) if isinstance(row, dict) else None

    def put(self, key: str, row: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        """Keep a finished cell; after the return it is on the disk."""
        result, path = checked_result((row, arrays or {})), self._path(key)
        arrays = {f"array.{name}": array for name, array in result.arrays.items()}
        with atomic_write(path) as temporary:
            np.savez(temporary, row=np.array(json.dumps(result.row)), **arrays)
        path.with_suffix(".failed").unlink(missing_ok=True)

    def fail(self, key: str, error: str) -> None:
        """Keep the error of a cell that failed, for a person to read; the next run tries it again."""
        write_text(self._path(key).with_suffix(".failed"), error)
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Return the file of a cell."""
        return self.folder / f"{key}.npz"
