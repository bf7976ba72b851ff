"""What the experiment on limits runs: which data, pairs and methods, and at which ridges ε."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments.digit_config import DigitPairsConfig, read_pair
from condnum.experiments.house_config import HousePricesConfig
from condnum.methods import DescentSettings, method_names

LimitsData = Literal["house-prices", "mnist", "digits"]

#: Pairs (pretrain, harmful) of digits that stand for the 90.
DEFAULT_PAIRS = ((4, 9), (4, 7), (3, 5), (0, 1), (9, 0))

#: Seeds where the user names no number: a cell of MNIST takes seconds, its spread over seeds is small.
DEFAULT_SEEDS: dict[LimitsData, int] = {"house-prices": 3, "digits": 3, "mnist": 1}

#: Ridges ε as shares of the mean eigenvalue of K_P, two decades apart.
RIDGE_SHARES = tuple(np.geomspace(1e-9, 1e1, 6).tolist())

#: The ridge at which front and directions are drawn.
DEFAULT_RIDGE = 1e-3


@dataclass(frozen=True)
class LimitsConfig:
    """What to run."""

    data: LimitsData = "house-prices"
    source: str = "auto"  # auto or a path; for house prices also embedded
    methods: tuple[str, ...] = ()  # empty: all
    seeds: int = 3  # seeds 0 … seeds − 1
    epochs: int | None = None  # full-batch steps; None: each method's own
    pairs: tuple[tuple[int, int], ...] = DEFAULT_PAIRS  # of digits; not used for house prices
    ridge: float = DEFAULT_RIDGE  # ε of front and directions, in mean eigenvalues of K_P
    race_steps: int = 1000  # of Algorithm 1 against the closed form; 0: no race

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.data not in get_args(LimitsData):
            raise UnknownNameError("data set", self.data, list(get_args(LimitsData)))
        if not 0 < self.ridge < math.inf:
            raise InvalidInputError(
                f"ridge is a share of the mean eigenvalue of K_P and must be positive, got {self.ridge}."
            )
        if isinstance(self.race_steps, bool) or not isinstance(self.race_steps, int) or self.race_steps < 0:
            raise InvalidInputError(
                f"race_steps must be a whole number, 0 for no race, got {self.race_steps!r}."
            )
        _ = self.house if self.data == "house-prices" else self.digits

    @classmethod
    def from_parameters(
        cls,
        *,
        data: str,
        source: str,
        methods: str,
        seeds: int,
        epochs: int,
        pairs: str,
        ridge: float,
        race_steps: int,
    ) -> LimitsConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Examples:
            >>> config = LimitsConfig.from_parameters(data="digits", source="auto", methods="ours", seeds=0,
            ...     epochs=9, pairs="4-7", ridge=1e-3, race_steps=0)
            >>> config.pairs, config.seeds, config.chosen_methods
            (((4, 7),), 3, ('ours',))
        """
        if data == "embedded":
            data, source = "house-prices", "embedded"
        if data not in get_args(LimitsData):
            raise UnknownNameError("data set", data, list(get_args(LimitsData)))
        if pairs and data == "house-prices":
            raise InvalidInputError(
                f"pairs='{pairs}' are of digits; house prices are one pair: leave it out."
            )
        chosen = tuple(dict.fromkeys(read_pair(word) for word in pairs.split(",") if word.strip()))
        names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
        return cls(
            data,  # type: ignore[arg-type]
            source,
            names,
            seeds or DEFAULT_SEEDS[data],  # type: ignore[index]
            epochs or None,
            chosen or DEFAULT_PAIRS,
            float(ridge),
            race_steps,
        )

    @property
    def chosen_methods(self) -> tuple[str, ...]:
        """The methods to run, in display order."""
        return tuple(name for name in method_names() if not self.methods or name in self.methods)

    @property
    def ridge_shares(self) -> tuple[float, ...]:
        """All ridges, in mean eigenvalues of K_P, ascending; the one of the front among them."""
        others = [share for share in RIDGE_SHARES if not math.isclose(share, self.ridge, rel_tol=1e-9)]
        return tuple(sorted([*others, self.ridge]))

    @property
    def house(self) -> HousePricesConfig:
        """The same as a house-price experiment."""
        return HousePricesConfig(self.source, self.methods, self.seeds, self.epochs, device="cpu")

    @property
    def digits(self) -> DigitPairsConfig:
        """The same as a digit-pair experiment."""
        return DigitPairsConfig(
            "mnist" if self.data == "mnist" else "digits",
            self.source,
            self.chosen_methods if not self.methods else self.methods,
            self.seeds,
            self.epochs,
            self.pairs,
        )

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run, those of the experiment it is taken from."""
        return (self.house if self.data == "house-prices" else self.digits).settings(method)
