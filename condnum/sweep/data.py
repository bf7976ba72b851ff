"""Data of a sweep: a reference travels, each process loads the data itself, once, and checks them."""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from condnum.errors import DataFormatError, InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from condnum.data.digits import Digits

T = TypeVar("T")

#: Things that a process keeps: a data set, and what its cells derive from it and share (a digit
#: pair of MNIST shares five, of which the largest take 8 MB each).
CACHE_SIZE = 96

_cache: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.RLock()  # held while loading: threads of one worker do not load side by side


def cached(key: Hashable, load: Callable[[], T]) -> T:
    """Return what `load` gives, called once a process for each key; the oldest are forgotten.

    Args:
        key: What is loaded.
        load: Loads it; an error is passed on and nothing is kept.

    Returns:
        The same object every time.

    Examples:
        >>> cached("answer", lambda: [42]) is cached("answer", lambda: [42])
        True
    """
    with _lock:
        if key not in _cache:
            _cache[key] = load()
        _cache.move_to_end(key)
        while len(_cache) > CACHE_SIZE:
            _cache.popitem(last=False)
        return cast(T, _cache[key])


def _load_mnist(source: str) -> Digits:
    from condnum.data import load_mnist_images

    return load_mnist_images(source)


def _load_small_digits(source: str) -> Digits:
    from condnum.data import load_small_digits

    if source != "embedded":
        raise InvalidInputError(
            f"digits-8x8 come with scikit-learn: source must be 'embedded', got {source!r}."
        )
    return load_small_digits()


_LOADERS: dict[str, Callable[[str], Digits]] = {"mnist": _load_mnist, "digits-8x8": _load_small_digits}


@dataclass(frozen=True)
class DataReference:
    """Which data, where they are, and how to know that they are the right ones.

    Attributes:
        name: `mnist` or `digits-8x8`.
        source: What the loader is told: "embedded", "auto", "local" or a folder.
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
    def of(cls, digits: Digits, source: str) -> DataReference:
        """Return the reference of data that this process has loaded.

        Args:
            digits: The data.
            source: What the loader was told.

        Returns:
            A reference that other processes can load.

        Raises:
            UnknownNameError: A sweep cannot load these data.
        """
        return cls(digits.name, str(source), digits.checksum)

    def load(self) -> Digits:
        """Load the data, once a process, and compare their checksum with the expected one.

        Returns:
            The data, shared by all cells of this process and read-only.

        Raises:
            DataFormatError: The checksum differs.
            DataNotFoundError: No such data on this machine.
            InvalidInputError: The source is none that this data set has.
        """
        digits = cached(("digits", self.name, self.source), lambda: _LOADERS[self.name](self.source))
        if digits.checksum != self.checksum:
            raise DataFormatError(
                f"{self.name} from {self.source!r} on host {socket.gethostname()} has SHA-256 "
                f"{digits.checksum}, but the sweep was planned with {self.checksum}; "
                "put the same files on every machine."
            )
        return digits
