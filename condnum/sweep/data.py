"""Data of a sweep: a reference travels, each process loads the data itself, once, and checks them."""

from __future__ import annotations

import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError
from condnum.sweep.result import Scalar

if TYPE_CHECKING:
    from condnum.data.digits import Digits
    from condnum.data.task_pair import TaskPair

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
