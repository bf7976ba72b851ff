"""What data this machine has, and whether it is whole: behind `condnum data` and `condnum data check`.

Nothing here downloads or prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from condnum.data.digits import Digits, load_diabetes_tasks, load_small_digits
from condnum.data.house_prices import FILES as HOUSE_PRICES
from condnum.data.house_prices import load_house_prices
from condnum.data.mnist import load_mnist_images, mnist_files, read_idx_shape
from condnum.data.resolver import DataFiles, obtain
from condnum.data.task_pair import SourceKind, TaskPair
from condnum.errors import CondnumError, DataNotFoundError, UnknownNameError
from condnum.files import opened


@dataclass(frozen=True)
class DataStatus:
    """Whether a data set is on this machine, found without loading it."""

    name: str  # "house-prices", "mnist", "mnist-test", "digits-8x8", "diabetes"
    source: SourceKind | None = None  # None: not found
    location: str = ""  # path or package; "" if not found
    rows: int | None = None  # None: not found, or not readable
    checksum: str = ""  # 64 hexadecimal digits; "" if not found
    known_checksum: bool = False
    advice: str = ""  # what to do: "" when all is well


@dataclass(frozen=True)
class CheckResult:
    """What a full load of a data set found."""

    name: str
    status: str  # "ok", "unknown checksum", "missing" or "broken"
    message: str  # one paragraph: what was verified, or what is wrong and the fix
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()  # (array name, shape) of all arrays loaded


#: How each data set is loaded, and its files; None: embedded.
_ENTRIES: dict[str, tuple[Callable[[], TaskPair | Digits], DataFiles | None]] = {
    "house-prices": (load_house_prices, HOUSE_PRICES),
    "mnist": (load_mnist_images, mnist_files()),
    "mnist-test": (lambda: load_mnist_images("auto", "test"), mnist_files("test")),
    "digits-8x8": (load_small_digits, None),
    "diabetes": (load_diabetes_tasks, None),
}


def dataset_names() -> tuple[str, ...]:
    """Return the names that `check` accepts."""
    return tuple(_ENTRIES)


def available() -> list[DataStatus]:
    """Return the status of each data set: where it is, its rows and checksum, or what to do.

    Examples:
        >>> [status.rows for status in available() if status.source == "embedded"]
        [1797, 442]
    """
    return [_status(name, *entry) for name, entry in _ENTRIES.items()]


def _status(name: str, load: Callable[[], TaskPair | Digits], files: DataFiles | None) -> DataStatus:
    """Look at the files, not at what is in them; what is embedded is loaded."""
    if files is None:
        data = load()
        rows = len(data) if isinstance(data, Digits) else data.rows_pretrain + data.rows_harmful
        origin = data.provenance
        return DataStatus(name, origin.source, origin.location, rows, data.checksum, origin.known_checksum)
    try:
        found = obtain(files, "auto")
    except CondnumError as error:
        return DataStatus(name, advice=str(error))
    try:
        if files is HOUSE_PRICES:
            with opened(found.paths[0]) as stream:
                rows = sum(1 for line in stream if line.strip()) - 1  # the header is no row
        else:
            rows = read_idx_shape(found.paths[0])[0]
        known, checksum = found.known, found.checksum
    except CondnumError as error:
        return DataStatus(name, found.source, found.location, advice=str(error))
    advice = "" if known else "The checksum is not a known one; run a full check."
    if known and found.files is files.instead:
        advice = f"{name}: these are the test images. All 70 000 images: condnum data download."
    return DataStatus(name, found.source, found.location, rows, checksum, known, advice)


def check(name: str | None = None) -> list[CheckResult]:
    """Load data sets in full, compare their checksums with the known ones and look at every value.

    A failure is a result. A checksum that is not known is a status of its own: the data may be right, but
    published and recorded numbers were not measured on it.

    Examples:
        >>> check("diabetes")[0].shapes[0]
        ('X_P', (235, 8))
    """
    if name is not None and name not in _ENTRIES:
        raise UnknownNameError("data set", name, _ENTRIES)
    results = []
    for key in _ENTRIES if name is None else [name]:
        try:
            data = _ENTRIES[key][0]()
        except CondnumError as error:
            status = "missing" if isinstance(error, DataNotFoundError) else "broken"
            results.append(CheckResult(key, status, str(error)))
            continue
        arrays = {field: value for field, value in vars(data).items() if isinstance(value, np.ndarray)}
        shapes = tuple((field, value.shape) for field, value in arrays.items())
        seen = ", ".join(f"{field} {'×'.join(map(str, shape))}" for field, shape in shapes)
        known = data.provenance.known_checksum
        words = "not known: recorded numbers were measured on other bytes, so compare them with care."
        message = f"loads, all values finite: {seen}; SHA-256 {data.checksum[:8]} is "
        status = "ok" if known else "unknown checksum"
        results.append(CheckResult(key, status, message + ("known." if known else words), shapes))
    return results
