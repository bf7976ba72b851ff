"""What data this machine has, and whether it is whole: behind `condnum data`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from condnum.data.digits import Digits, load_diabetes_tasks, load_small_digits
from condnum.data.house_prices import load_house_prices
from condnum.data.mnist import load_mnist_images
from condnum.data.task_pair import TaskPair
from condnum.errors import CondnumError, DataNotFoundError

_LOADERS: dict[str, Callable[[], TaskPair | Digits]] = {
    "house-prices": load_house_prices,
    "mnist": load_mnist_images,
    "mnist-test": partial(load_mnist_images, "auto", "test"),
    "digits-8x8": load_small_digits,
    "diabetes": load_diabetes_tasks,
}


@dataclass(frozen=True)
class DataStatus:
    """What a full load of a data set found."""

    name: str
    status: str  # "ok", "unknown checksum", "missing" or "broken"
    advice: str = ""  # what is wrong and the fix; "" when all is well
    source: str = ""  # where it was found, as `SourceKind`; "" if it does not load
    location: str = ""  # path or package
    rows: int | None = None
    checksum: str = ""  # 64 hexadecimal digits


def available() -> list[DataStatus]:
    """Load each data set in full, and compare the checksums with those on which numbers were measured."""
    return [data_status(name) for name in _LOADERS]


def data_status(name: str) -> DataStatus:
    """Return the status of one data set."""
    try:
        data = _LOADERS[name]()
    except CondnumError as error:
        return DataStatus(name, "missing" if isinstance(error, DataNotFoundError) else "broken", str(error))
    origin, advice = data.provenance, ""
    if not origin.known_checksum:
        advice = f"{name}: the recorded numbers were measured on a different file, so compare them with care."
    elif name == "mnist" and origin.split == "test":
        advice = f"{name}: these are the test images. For all 70,000 images, run condnum data download."
    return DataStatus(
        name,
        "ok" if origin.known_checksum else "unknown checksum",
        advice,
        origin.source,
        origin.location,
        len(data) if isinstance(data, Digits) else data.rows_pretrain + data.rows_harmful,
        data.checksum,
    )
