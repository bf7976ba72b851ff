"""A cell of a study: coordinates and settings, small enough to travel, and what comes of computing it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError
from condnum.machine import ProcessPeak, limit_threads, own_peak

Scalar: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Scalar]
Arrays: TypeAlias = dict[str, NDArray[Any]]


class CellResult(NamedTuple):
    """A row of scalars and, beside it, long arrays by name."""

    row: Row
    arrays: Arrays


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell of a study: what is computed, kept and resumed by itself.

    Its key is made of the study's name and version, the data's checksum, coordinates and settings: all that
    the result depends on has to stand there. Two cells with one key are one cell.

    Attributes:
        at: Coordinates that name the cell (method, seed, pair); what JSON holds. `cell["seed"]` reads one.
        settings: What else the result depends on, such as the method's settings; what JSON holds.
        after: A cell that has to be finished before, such as the θ₀ that this one starts from.
        study: Name of the study; set by the frame, as is the key.
        key: SHA-256 of all that the result depends on.
        folder: Where the study may keep files of its own beside the results.

    Examples:
        >>> cell = Cell({"method": "ours", "seed": 0}, {"steps": 9}).named("mine", "ab12", "1")
        >>> cell["seed"], cell.label, cell.short_label
        (0, 'mine: method=ours, seed=0', 'ours, seed 0')
        >>> cell == Cell({"seed": 0, "method": "ours"}, {"steps": 9}).named("mine", "ab12", "1")
        True
        >>> cell == Cell({"method": "ours", "seed": 0}, {"steps": 9}).named("mine", "ab12", "2")
        False
    """

    at: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: Cell | None = None
    study: str = field(default="", kw_only=True)
    key: str = field(default="", kw_only=True)
    folder: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Keep copies of both dictionaries as JSON gives them back, so that the key stays what it is."""
        for name in ("at", "settings"):
            object.__setattr__(self, name, _as_json(name, getattr(self, name)))

    def named(self, study: str, checksum: str, version: str, folder: str = "") -> Cell:
        """Return the cell with the key that it has in a study."""
        before = () if self.after is None else (self.after.named(study, checksum, version, folder),)
        parts = [study, self.at, self.settings, checksum, version, *(cell.key for cell in before)]
        key = hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        return replace(self, after=before[0] if before else None, study=study, key=key, folder=folder)

    @property
    def short_label(self) -> str:
        """Method, pair and seed, those that the cell has: for a line of progress."""
        words = [str(self.at.get("method", self.study))]
        if {"pretrain", "harmful"} <= self.at.keys():
            words.append(f"{self.at['pretrain']}-{self.at['harmful']}")
        if "seed" in self.at:
            words.append(f"seed {self.at['seed']}")
        return ", ".join(words)

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


def _as_json(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a dictionary as JSON gives it back, or say what JSON does not hold."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"'{name}' of a cell must be a dictionary, got {value!r}.")
    for key, item in value.items():
        try:
            json.dumps(item, allow_nan=False, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{name}[{key!r}] of a cell is {item!r}, which JSON does not hold ({error}); "
                "use text, finite numbers, booleans, None, or lists and dictionaries of these."
            ) from error
        if not isinstance(key, str):
            raise InvalidInputError(f"'{name}' of a cell must have text for keys, got {key!r}; use str(…).")
    return dict(json.loads(json.dumps(dict(value))))  # tuples become lists; the order of the keys is kept


# What a process keeps: data, and what its cells derive from them and share.


T = TypeVar("T")

#: A digit pair of MNIST shares three things: two tasks of 20 MB each and the ceilings.
CACHE_SIZE = 64

_cache: OrderedDict[Hashable, Future[Any]] = OrderedDict()
_lock = threading.Lock()


def cached(key: Hashable, load: Callable[[], T]) -> T:
    """Return what `load` gives, called once a process for each key; the oldest are forgotten.

    Threads that want one key wait for the first of them; different keys are loaded side by side. An error is
    passed on and nothing is kept.

    Examples:
        >>> cached("answer", lambda: [42]) is cached("answer", lambda: [42])
        True
    """
    own: Future[T] = Future()
    with _lock:
        kept = _cache.setdefault(key, own)
        _cache.move_to_end(key)
        while len(_cache) > CACHE_SIZE:
            _cache.popitem(last=False)
    if kept is own:
        try:
            own.set_result(load())
        except BaseException as error:
            with _lock:
                _cache.pop(key, None)
            own.set_exception(error)
    return cast(T, kept.result())


def remember(key: Hashable, value: T) -> T:
    """Put a value where `cached` looks, instead of what was there."""
    with _lock:
        _cache.pop(key, None)
    return cached(key, lambda: value)


# Computing one cell, wherever that happens: an error becomes a value, so that the others go on.


#: Computes a cell: its row of scalars, and its arrays by name if there are any.
Compute: TypeAlias = Callable[[Cell], Mapping[str, Any] | tuple[Mapping[str, Any], Mapping[str, Any]]]


def checked_result(result: Any) -> CellResult:
    """Return what a computation gave as plain Python scalars and NumPy arrays, or say what cannot be kept.

    Examples:
        >>> checked_result(({"kappa": np.float32(2), "steps": np.int64(3)}, {"history": [1.0, 0.5]}))
        CellResult(row={'kappa': 2.0, 'steps': 3}, arrays={'history': array([1. , 0.5])})
    """
    row, arrays = (result, {}) if isinstance(result, Mapping) else result
    for name in (*row, *arrays):
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"columns and arrays of a cell are named by text, got {name!r}.")
    columns = {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
    for name, value in columns.items():
        if value is not None and not isinstance(value, str | int | float | bool):
            raise InvalidInputError(
                f"column {name!r} of a cell is a {type(value).__name__}, but a row holds scalars; "
                "use float(…) for one number, and return long values among the arrays."
            )
    kept = {name: np.asarray(value) for name, value in arrays.items()}
    for name, array in kept.items():
        if array.dtype.hasobject:
            raise InvalidInputError(
                f"array {name!r} of a cell holds Python objects (shape {array.shape}); "
                "use numbers, booleans or text of one length."
            )
    return CellResult(columns, kept)


@dataclass(frozen=True)
class CellError:
    """Why a cell failed."""

    type: str  # name of the exception's class
    message: str
    traceback: str  # as Python prints it, with type and message; of another process, perhaps

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class Outcome:
    """A cell that was tried."""

    cell: Cell
    result: CellResult | None  # None if it failed
    seconds: float = 0.0
    error: CellError | None = None
    memory: ProcessPeak | None = None  # of the process that tried; None if it was lost

    @classmethod
    def failed(
        cls, cell: Cell, error: BaseException, seconds: float = 0.0, memory: ProcessPeak | None = None
    ) -> Outcome:
        """Return the outcome of a cell that raised an exception, or was lost with its worker."""
        text = "".join(traceback.format_exception(error))
        return cls(cell, None, seconds, CellError(type(error).__name__, str(error), text), memory)


def evaluate(compute: Compute, cell: Cell, threads: int | None = None) -> Outcome:
    """Compute a cell in this process, with so many threads of torch and BLAS from here on (None leaves them).

    Examples:
        >>> evaluate(lambda cell: {"y": cell["x"] / 2}, Cell({"x": 3})).result.row
        {'y': 1.5}
        >>> print(evaluate(lambda cell: {"y": 1 / 0}, Cell({"x": 3})).error)
        ZeroDivisionError: division by zero
    """
    started = time.perf_counter()
    try:
        limit_threads(threads)
        result = checked_result(compute(cell))
    except Exception as error:
        return Outcome.failed(cell, error, time.perf_counter() - started, own_peak())
    return Outcome(cell, result, time.perf_counter() - started, memory=own_peak())
