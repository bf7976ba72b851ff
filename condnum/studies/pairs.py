"""The linear study of a data set, or of one pair of tasks in it, by the name that a user types."""

from pathlib import Path
from typing import Any

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import method_names
from condnum.studies.digits import DigitPairs, read_pair
from condnum.studies.house_prices import HousePrices

#: Data sets by the kind of their tasks; `embedded` is the diabetes table.
TABLES, DIGITS = HousePrices.sets, DigitPairs.sets


def data_set(data: str) -> str:
    """Return the name of a data set, or tell it from the files at a path."""
    if data in (*TABLES, *DIGITS):
        return data
    path = Path(data).expanduser()
    files = [path.name, *(file.name for file in path.glob("*"))] if path.exists() else []
    for name, mark in (("mnist", "-ubyte"), ("house-prices", ".csv")):
        if any(mark in file for file in files):
            return name
    raise UnknownNameError("data set", data, [*TABLES, *DIGITS, "PATH of train.csv or of MNIST's folder"])


def linear_study(
    data: str, *, methods: tuple[str, ...] = (), pairs: tuple[tuple[int, int], ...] = (), **options: Any
) -> Any:
    """Return the linear study of a data set, or of the files at a path, on the CPU; no methods are all."""
    if data_set(data) in TABLES:
        return HousePrices(data=data, methods=methods, device="cpu", **options)
    chosen = methods or tuple(method_names())
    return DigitPairs(data=data, methods=chosen, pairs=pairs, device="cpu", **options)


def study_of_one_pair(text: str, **options: Any) -> Any:
    """Return the linear study of one pair of tasks, as a user types it: digits come with their pair."""
    data, _, pair = text.partition(":")
    if data not in (*TABLES, *DIGITS) and not Path(data).expanduser().exists():
        raise UnknownNameError("data set", text, [*TABLES, "mnist:4-9", "digits:4-9"])
    if (data_set(data) in DIGITS) != bool(pair):
        raise InvalidInputError(f"data '{text}': digits need a pair, as in mnist:4-7; tables take none.")
    return linear_study(data, pairs=(read_pair(pair),) if pair else (), **options)
