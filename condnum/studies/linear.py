"""The linear study whose extractors other studies measure: house prices, the diabetes table, or digits."""

from typing import Any

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import method_names
from condnum.studies.digit_pairs import DigitPairs, read_pair
from condnum.studies.house_prices import HousePrices


def linear_study(
    data: str,
    source: str = "auto",
    *,
    methods: tuple[str, ...] = (),
    seeds: int = 1,
    epochs: int | None = None,
    rows: int | None = None,
    pairs: tuple[tuple[int, int], ...] = (),
) -> HousePrices | DigitPairs:
    """Return the study of `house-prices`, `embedded` (the diabetes table), `mnist` or `digits`, on the CPU.

    No methods are all of them. `rows` are of a table, `pairs` of digits.
    """
    if data in ("mnist", "digits"):
        return DigitPairs(data, source, methods or tuple(method_names()), seeds, epochs, pairs)  # type: ignore[arg-type]
    if data == "embedded":
        if source not in ("auto", "embedded"):
            raise InvalidInputError(f"embedded is embedded and has no source '{source}': leave it out.")
        source = "embedded"
    return HousePrices(source, methods, seeds, epochs, rows=rows, device="cpu")


def study_of_one_pair(text: str, source: str = "auto", **options: Any) -> HousePrices | DigitPairs:
    """Return the linear study of one pair of tasks, as a user types it: digits come with their pair.

    Examples:
        >>> study_of_one_pair("digits:4-9").pairs
        ((4, 9),)
        >>> study_of_one_pair("embedded").load().name
        'diabetes'
    """
    data, _, pair = text.partition(":")
    if data not in ("house-prices", "embedded", "mnist", "digits"):
        raise UnknownNameError("data set", text, ["house-prices", "embedded", "mnist:4-9", "digits:4-9"])
    if (data in ("mnist", "digits")) != bool(pair):
        raise InvalidInputError(
            f"data '{text}': digits come with a pair, as in mnist:4-7, tables without one."
        )
    return linear_study(data, source, pairs=(read_pair(pair),) if pair else (), **options)
