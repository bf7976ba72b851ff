"""A cell of a sweep: what to compute, small enough to travel, with a key that names its result."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError
from condnum.machine import ProcessPeak, limit_threads, own_peak

if TYPE_CHECKING:
    from condnum.data.digits import Digits
    from condnum.data.task_pair import TaskPair


# What a cell gives: a row of scalars and, beside it, long arrays; and both as bytes.


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


# Data of a sweep: a reference travels, each process loads the data itself, once, and checks them.


T = TypeVar("T")

#: Things that a process keeps: a data set, and what its cells derive from it and share (a digit
#: pair of MNIST shares three: two tasks of 20 MB each and the ceilings).
CACHE_SIZE = 64

_cache: OrderedDict[Hashable, Future[Any]] = OrderedDict()
_lock = threading.Lock()


def cached(key: Hashable, load: Callable[[], T]) -> T:
    """Return what `load` gives, called once a process for each key; the oldest are forgotten.

    Threads that want one key wait for the first of them; different keys are loaded side by side.

    Args:
        key: What is loaded.
        load: Loads it; an error is passed on and nothing is kept.

    Returns:
        The same object every time.

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


class Dataset(Protocol):
    """What a sweep needs to know of data: their name, and which ones they are."""

    @property
    def name(self) -> str:
        """Name, under which a loader is known here."""

    @property
    def checksum(self) -> str:
        """SHA-256 of the source."""


def _load_mnist(source: str) -> Digits:
    from condnum.data import load_mnist_images

    return load_mnist_images(source)


def _load_small_digits(source: str) -> Digits:
    from condnum.data import load_small_digits

    _check_embedded("digits-8x8", source)
    return load_small_digits()


def _load_house_prices(source: str, **options: Any) -> TaskPair:
    from condnum.data import load_house_prices

    return load_house_prices(source, **options)


def _load_diabetes(source: str, *, features: Any, rows: int | None) -> TaskPair:
    from condnum.data import load_diabetes_tasks

    _check_embedded("diabetes", source)
    pair = load_diabetes_tasks(features=features)
    return pair if rows is None else pair.head(rows)


def _check_embedded(name: str, source: str) -> None:
    """Refuse another source for data that scikit-learn carries."""
    if source != "embedded":
        raise InvalidInputError(f"{name} comes with scikit-learn: source must be 'embedded', got {source!r}.")


#: By name: takes the source, and the options that its data set has.
_LOADERS: dict[str, Callable[..., Dataset]] = {
    "mnist": _load_mnist,
    "digits-8x8": _load_small_digits,
    "house-prices": _load_house_prices,
    "diabetes": _load_diabetes,
}


@dataclass(frozen=True)
class DataReference:
    """Which data, where they are, and how to know that they are the right ones.

    Attributes:
        name: `mnist`, `digits-8x8`, `house-prices` or `diabetes`.
        source: What the loader is told: "embedded", "auto", "local" or a path.
        checksum: SHA-256 that the loaded data must have.

    Raises:
        UnknownNameError: No data set has this name.

    Examples:
        >>> from condnum.data import load_small_digits
        >>> reference = DataReference.of(load_small_digits(), "embedded")
        >>> reference.load().images.shape
        (1797, 8, 8)
    """

    name: str
    source: str
    checksum: str

    def __post_init__(self) -> None:
        if self.name not in _LOADERS:
            raise UnknownNameError("data set of a sweep", self.name, _LOADERS)

    @classmethod
    def of(cls, data: Dataset, source: str | os.PathLike[str]) -> DataReference:
        """Return the reference of data that this process has loaded.

        Args:
            data: The data.
            source: What the loader was told.

        Returns:
            A reference that other processes can load.

        Raises:
            UnknownNameError: A sweep cannot load these data.
        """
        return cls(data.name, str(source), data.checksum)

    def load(self, **options: Scalar) -> Any:
        """Load the data, once a process and set of options, and compare their checksum.

        Args:
            **options: The loader's own: `features` and `rows` of house prices and diabetes. They
                belong in a plan's payload, so that the cell's key sees them.

        Returns:
            `Digits`, or a `TaskPair`; shared by all cells of this process and read-only.

        Raises:
            DataFormatError: The checksum differs.
            DataNotFoundError: No such data on this machine.
            InvalidInputError: The source is none that this data set has.
        """
        data = cached(
            ("data", self.name, self.source, *sorted(options.items())),
            lambda: _LOADERS[self.name](self.source, **options),
        )
        if data.checksum != self.checksum:
            raise DataFormatError(
                f"{self.name} from {self.source!r} on host {socket.gethostname()} has SHA-256 "
                f"{data.checksum}, but the sweep was planned with {self.checksum}; "
                "put the same files on every machine."
            )
        return data


@dataclass(frozen=True, eq=False)
class CellPlan:
    """One cell: an experiment, its coordinates in the grid, and all else the result depends on.

    Two plans are equal when their keys are. The key does not see where the data lie: a data set
    that moved, or lies elsewhere on another machine, is the same as long as its checksum is.

    Attributes:
        experiment: Name of the experiment, such as "digit-pairs".
        payload: Coordinates of the cell: method, seed, digits; JSON scalars, or lists of them.
        settings: Settings of the method; JSON scalars, lists or dictionaries.
        data_checksum: SHA-256 of the data; "" if there are none.
        code_version: Raised by hand when a change of code changes results.
        data: Where a worker finds the data; None if it needs none or knows.

    Raises:
        InvalidInputError: Something that JSON does not hold, or two different checksums.

    Examples:
        >>> plan = CellPlan("digit-pairs", {"method": "ours", "seed": 0}, {"steps": 9}, "ab12", "1")
        >>> plan.label
        'digit-pairs: method=ours, seed=0'
        >>> plan.short_label
        'ours, seed 0'
        >>> plan == CellPlan("digit-pairs", {"seed": 0, "method": "ours"}, {"steps": 9}, "ab12", "1")
        True
        >>> plan == CellPlan("digit-pairs", {"method": "ours", "seed": 0}, {"steps": 9}, "ab12", "2")
        False
    """

    experiment: str
    payload: dict[str, Any]
    settings: dict[str, Any]
    data_checksum: str
    code_version: str
    data: DataReference | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Keep copies of the dictionaries, as JSON gives them back, so that the key stays what it is."""
        for name in ("experiment", "data_checksum", "code_version"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise InvalidInputError(f"{name} of a cell must be text, got {value!r}; use str(…).")
        for name in ("payload", "settings"):
            object.__setattr__(self, name, _as_json(name, getattr(self, name)))
        if self.data is not None and self.data.checksum != self.data_checksum:
            raise InvalidInputError(
                f"data_checksum {self.data_checksum!r} is not that of the data reference, "
                f"{self.data.checksum!r}; give data_checksum=reference.checksum."
            )

    @property
    def key(self) -> str:
        """SHA-256 (64 hexadecimal digits) of all that the result depends on."""
        parts = [self.experiment, self.payload, self.settings, self.data_checksum, self.code_version]
        return hashlib.sha256(_canonical(parts).encode()).hexdigest()

    @property
    def short_label(self) -> str:
        """Method, pair and seed, those that the cell has: for a line of progress."""
        words = [str(self.payload.get("method", self.experiment))]
        if {"pretrain", "harmful"} <= self.payload.keys():
            words.append(f"{self.payload['pretrain']}-{self.payload['harmful']}")
        if "seed" in self.payload:
            words.append(f"seed {self.payload['seed']}")
        return ", ".join(words)

    @property
    def label(self) -> str:
        """The cell in words, for messages."""
        words = ", ".join(f"{name}={value}" for name, value in self.payload.items())
        return f"{self.experiment}: {words}" if words else self.experiment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellPlan) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _canonical(value: Any) -> str:
    """Return JSON that is the same for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _as_json(name: str, value: Any) -> Any:
    """Return a copy of a dictionary as JSON gives it back, or say what JSON does not hold."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name} of a cell must be a dictionary, got {value!r}.")
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidInputError(f"{name} of a cell must have text for keys, got {key!r}; use str(…).")
        try:
            _canonical(item)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{name}[{key!r}] of a cell is {item!r}, which JSON does not hold ({error}); "
                "use text, finite numbers, booleans, None, or lists and dictionaries of these."
            ) from error
    return json.loads(json.dumps(dict(value)))  # tuples become lists; the order of the keys is kept


# Computing one cell, wherever that happens: an error becomes a value, so that the others go on.


#: Computes a cell: its row of scalars and its arrays by name.
Compute: TypeAlias = Callable[[CellPlan], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True)
class CellError:
    """Why a cell failed."""

    type: str  # name of the exception's class
    message: str
    traceback: str  # as Python prints it, with type and message; of another process, perhaps

    @classmethod
    def of(cls, error: BaseException) -> CellError:
        """Return an exception as text.

        Args:
            error: As caught.

        Returns:
            Its type, message and traceback.

        Examples:
            >>> print(CellError.of(ValueError("D = 0")))
            ValueError: D = 0
        """
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class Outcome:
    """A cell that was tried."""

    plan: CellPlan
    row: Row  # empty if it failed
    arrays: Arrays  # empty if it failed
    seconds: float
    error: CellError | None = None
    memory: ProcessPeak | None = None  # of the process that tried; None if it was lost

    @classmethod
    def failed(
        cls, plan: CellPlan, error: BaseException, seconds: float = 0.0, memory: ProcessPeak | None = None
    ) -> Outcome:
        """Return the outcome of a cell that raised an exception, or was lost with its worker.

        Args:
            plan: The cell.
            error: Why.
            seconds: How long it took to fail.
            memory: Of the process that tried.

        Returns:
            An outcome without row and arrays.
        """
        return cls(plan, {}, {}, seconds, CellError.of(error), memory)


def evaluate(compute: Compute, plan: CellPlan, threads: int | None = None) -> Outcome:
    """Compute a cell in this process.

    Args:
        compute: Computes it.
        plan: The cell.
        threads: Threads of torch and BLAS from here on; None leaves them.

    Returns:
        The outcome; an exception other than an interruption is its error.

    Examples:
        >>> plan = CellPlan("half", {"x": 3}, {}, "", "1")
        >>> evaluate(lambda plan: ({"y": plan.payload["x"] / 2}, {}), plan).row
        {'y': 1.5}
        >>> print(evaluate(lambda plan: ({"y": 1 / 0}, {}), plan).error)
        ZeroDivisionError: division by zero
    """
    started = time.perf_counter()
    try:
        limit_threads(threads)
        result = checked_result(*compute(plan))
    except Exception as error:
        return Outcome.failed(plan, error, time.perf_counter() - started, own_peak())
    seconds = time.perf_counter() - started
    return Outcome(plan, result.row, result.arrays, seconds, memory=own_peak())
