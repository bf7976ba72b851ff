"""Tasks that a user names by a word: house prices, the diabetes table, a pair of digits."""

from dataclasses import dataclass
from typing import Self

from condnum.data import Digits, TaskPair, load_diabetes_tasks, load_house_prices, load_mnist_images
from condnum.data.digits import load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError

#: Data set by the word that a user types.
_KINDS = {"house-prices": "house-prices", "embedded": "diabetes", "mnist": "mnist", "digits": "digits-8x8"}


def read_pair(word: str) -> tuple[int, int]:
    """Read a pair of digits."""
    digits = word.strip().split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"'{word.strip()}' is no pair of digits; write it as 4-7, several as 4-7,9-0."
        )
    if digits[0] == digits[1]:
        raise InvalidInputError(f"pair '{word.strip()}' is none: give two different digits from 0 to 9.")
    return int(digits[0]), int(digits[1])


@dataclass(frozen=True)
class NamedTasks:
    """Which tasks, before they are loaded."""

    name: str  # house-prices, diabetes, mnist or digits-8x8
    source: str  # what the loader is told
    label: str  # what a user types
    pair: tuple[int, int] | None = None  # (pretrain, harmful) digits

    @classmethod
    def parse(cls, text: str, source: str = "auto") -> Self:
        """Read what a user types."""
        kind, _, digits = text.partition(":")
        if kind not in _KINDS:
            raise UnknownNameError("data set", text, ["house-prices", "embedded", "mnist:4-9", "digits:4-9"])
        if (kind in ("mnist", "digits")) != bool(digits):
            raise InvalidInputError(
                f"data '{text}': digits come with a pair, as in mnist:4-7, tables without one."
            )
        if kind in ("embedded", "digits"):
            if source not in ("auto", "embedded"):
                raise InvalidInputError(f"{text} is embedded and has no source '{source}': leave it out.")
            source = "embedded"
        if kind == "mnist" and source == "embedded":
            raise InvalidInputError("MNIST is not embedded; the 8×8 digits are: digits:4-9.")
        pair = read_pair(digits) if digits else None
        label = kind if pair is None else f"{kind}:{pair[0]}-{pair[1]}"
        return cls(_KINDS[kind], source, label, pair)

    def load(self) -> TaskPair | Digits:
        """Load the data, of house prices with the published columns."""
        if self.name == "house-prices":
            return load_house_prices(self.source, features="published")
        if self.name == "diabetes":
            return load_diabetes_tasks(features="published")
        return load_mnist_images(self.source) if self.name == "mnist" else load_small_digits()
