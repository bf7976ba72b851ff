"""The list of data sets: which of them this machine has, and whether they are whole."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from condnum.data.digits import load_mnist_images, load_small_digits
from condnum.data.house_prices import load_house_prices
from condnum.data.pairs import load_diabetes_tasks
from condnum.errors import CondnumError, DataNotFoundError

LOADERS: dict[str, Callable[[], Any]] = {
    "house-prices": load_house_prices,
    "mnist": load_mnist_images,
    "mnist-test": lambda: load_mnist_images("auto", "test"),
    "digits-8x8": load_small_digits,
    "diabetes": load_diabetes_tasks,
}


@dataclass(frozen=True)
class DataStatus:
    """What a full load of a data set found."""

    name: str
    status: str  # "ok", "unknown checksum", "missing" or "broken"
    advice: str = ""  # what is missing or broken, and the fix
    source: str = ""  # where it was found; "" if it does not load
    location: str = ""  # path or package
    rows: int | None = None
    checksum: str = ""  # 64 hexadecimal digits


def available() -> list[DataStatus]:
    """Load each data set in full, and compare the checksums with those on which numbers were measured."""
    return [data_status(name) for name in LOADERS]


def data_status(name: str) -> DataStatus:
    """Return the status of one data set."""
    try:
        data = LOADERS[name]()
    except CondnumError as error:
        return DataStatus(name, "missing" if isinstance(error, DataNotFoundError) else "broken", str(error))
    origin = data.provenance
    status = "ok" if origin.known_checksum else "unknown checksum"
    return DataStatus(name, status, "", origin.source, origin.location, len(data), data.checksum)
