"""What data this machine has, and whether it is whole: behind `condnum data` and `condnum data check`.

Nothing here downloads or prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from condnum.data.digits import Digits, load_diabetes_tasks, load_small_digits
from condnum.data.house_prices import FILES as HOUSE_PRICES
from condnum.data.house_prices import load_house_prices
from condnum.data.mnist import load_mnist_images, mnist_files, read_idx_shape
from condnum.data.resolver import DataFiles, find, missing_message, opened, short_names
from condnum.data.task_pair import SourceKind, TaskPair, combine_checksums
from condnum.errors import CondnumError, DataNotFoundError, UnknownNameError

CheckStatus = Literal["ok", "unknown checksum", "missing", "broken"]


@dataclass(frozen=True)
class DataStatus:
    """Whether a data set is on this machine, found without loading it."""

    name: str  # "house-prices", "mnist", "mnist-test", "digits-8x8", "diabetes"
    found: bool
    source: SourceKind | None  # None: not found
    location: str  # path or package; "" if not found
    rows: int | None  # None: not found, or not readable
    checksum: str  # 64 hexadecimal digits; "" if not found
    known_checksum: bool
    advice: str  # what to do: "" when all is well

    @property
    def short_checksum(self) -> str:
        """First 8 digits of the SHA-256."""
        return self.checksum[:8]


@dataclass(frozen=True)
class CheckResult:
    """What a full load of a data set found."""

    name: str
    status: CheckStatus
    message: str  # one paragraph: what was verified, or what is wrong and the fix
    location: str
    checksum: str  # 64 hexadecimal digits; "" if not loaded
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # (array name, shape) of all arrays loaded

    @property
    def ok(self) -> bool:
        """Whether the data set loads and has the sum that published numbers rest on."""
        return self.status == "ok"


#: How each data set is loaded, and its files; None: embedded.
_ENTRIES: dict[str, tuple[Callable[[], TaskPair | Digits], DataFiles | None]] = {
    "house-prices": (load_house_prices, HOUSE_PRICES),
    "mnist": (load_mnist_images, mnist_files()),
    "mnist-test": (lambda: load_mnist_images("auto", "test"), mnist_files("test")),
    "digits-8x8": (load_small_digits, None),
    "diabetes": (load_diabetes_tasks, None),
}


def dataset_names() -> tuple[str, ...]:
    """Return the names that `check` accepts.

    Examples:
        >>> dataset_names()
        ('house-prices', 'mnist', 'mnist-test', 'digits-8x8', 'diabetes')
    """
    return tuple(_ENTRIES)


def available() -> list[DataStatus]:
    """Return the status of each data set: where it is, its rows and checksum, or what to do.

    Examples:
        >>> [status.rows for status in available() if status.source == "embedded"]
        [1797, 442]
    """
    return [_status(name, *entry) for name, entry in _ENTRIES.items()]


def check(name: str | None = None) -> list[CheckResult]:
    """Load data sets in full, compare their checksums with the known ones and look at every value.

    A checksum that is not known is a status of its own: the data may be right, but published and
    recorded numbers were not measured on it.

    Examples:
        >>> check("diabetes")[0].shapes[0]
        ('X_P', (235, 8))
    """
    if name is not None and name not in _ENTRIES:
        raise UnknownNameError("data set", name, _ENTRIES)
    return [_check(key, *entry) for key, entry in _ENTRIES.items() if name in (None, key)]


def _status(name: str, load: Callable[[], TaskPair | Digits], files: DataFiles | None) -> DataStatus:
    """Look at the files, not at what is in them; what is embedded is loaded."""
    if files is None:
        loaded = load()
        origin, checksum = loaded.provenance, loaded.checksum
        rows = len(loaded) if isinstance(loaded, Digits) else loaded.rows_pretrain + loaded.rows_harmful
        return DataStatus(
            name, True, origin.source, origin.location, rows, checksum, origin.known_checksum, ""
        )
    try:
        found = find(files)
        if found is None:
            raise DataNotFoundError(missing_message(files))
    except DataNotFoundError as error:
        return DataStatus(name, False, None, "", None, "", False, str(error))
    location = short_names(found.paths)
    try:
        if files is HOUSE_PRICES:
            with opened(found.paths[0]) as stream:
                rows = sum(1 for line in stream if line.strip()) - 1  # the header is no row
        else:
            rows = read_idx_shape(found.paths[0])[0]
        known, checksum = found.known, combine_checksums(found.checksums)
    except CondnumError as error:
        return DataStatus(name, True, found.source, location, None, "", False, str(error))
    advice = "" if known else "The checksum is not a known one; run a full check."
    if known and found.files is files.instead:
        advice = f"{name}: these are the test images. All 70 000 images: condnum data download."
    return DataStatus(name, True, found.source, location, rows, checksum, known, advice)


def _check(name: str, load: Callable[[], TaskPair | Digits], files: DataFiles | None) -> CheckResult:
    """Load a data set in full; a failure is a result."""
    try:
        loaded = load()
    except DataNotFoundError as error:
        return CheckResult(name, "missing", str(error), "", "", ())
    except CondnumError as error:
        found = find(files) if files else None
        return CheckResult(name, "broken", str(error), short_names(found.paths) if found else "", "", ())
    arrays = {field: value for field, value in vars(loaded).items() if isinstance(value, np.ndarray)}
    shapes = tuple((field, value.shape) for field, value in arrays.items())
    seen = ", ".join(f"{field} {'×'.join(map(str, shape))}" for field, shape in shapes)
    known = loaded.provenance.known_checksum
    words = "known." if known else (
        "not known: recorded numbers were measured on other bytes, so compare them with care."
    )  # fmt: skip
    message = f"loads, all values finite: {seen}; SHA-256 {loaded.checksum[:8]} is {words}"
    status: CheckStatus = "ok" if known else "unknown checksum"
    return CheckResult(name, status, message, loaded.provenance.location, loaded.checksum, shapes)
