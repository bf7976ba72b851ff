"""The tasks of the linear experiments by what a user types: a data set, and of digits one pair."""

from pathlib import Path

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments import house_prices, mnist
from condnum.methods.problem import ImmunizationProblem

#: Data sets by the kind of their tasks; `embedded` is the diabetes table.
TABLES, DIGITS = ("house-prices", "embedded"), ("mnist", "digits")


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


def read_data(text: str) -> tuple[str, str]:
    """Read a data set, or digits with their pair.

    Examples:
        >>> read_data("digits:4-9"), read_data("embedded")
        (('digits', '4-9'), ('embedded', ''))
    """
    data, _, pair = text.partition(":")
    if data not in (*TABLES, *DIGITS) and not Path(data).expanduser().exists():
        raise UnknownNameError("data set", text, [*TABLES, "mnist:4-9", "digits:4-9"])
    if (data_set(data) in DIGITS) != bool(pair):
        raise InvalidInputError(f"data '{text}': digits need a pair, as in mnist:4-7; tables take none.")
    return data, pair


def load(data: str) -> Digits | TaskPair:
    """Return the images, or the table's two tasks."""
    return mnist.load(data) if data_set(data) in DIGITS else house_prices.load(data, "published", 0)


def tasks(data: str, pair: str) -> ImmunizationProblem:
    """Return the two tasks on the CPU, as the experiments on them have them; tables have no `pair`."""
    if not pair:
        return house_prices.tasks(data, "published", 0, "cpu")
    return mnist.tasks(data, *mnist.read_pair(pair), "one_vs_rest", "cpu")
