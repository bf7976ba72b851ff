"""What the experiment on attackers runs: one pair of tasks, the extractors, and the attackers' budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments.digit_config import DigitPairsConfig, read_pair
from condnum.experiments.house_config import HousePricesConfig
from condnum.methods import method_names
from condnum.probing import AttackBudget, attacker_names
from condnum.probing.attackers.feature_set import Kind

AttackLoss = Literal["auto", "squared", "logistic"]

#: θ₀ untrained, Algorithm 1, the closed forms; raw inputs are always there.
METHODS = ("initial", "ours", "optimal", "front")

#: Rows of each class that the attacker of a digit trains on, and steps that pass over them.
DIGIT_ROWS, DIGIT_DENSE_STEPS = 2500, 500

#: Excess loss that sentences and figures are about, of a logistic loss without a ridge: on MNIST no
#: first-order attacker reaches 1 % within the budget, on whatever features.
LOGISTIC_HEADLINE = 0.1

#: Share of a digit task's rows that is held out for the attacker's accuracy.
HELD_OUT = 0.2


@dataclass(frozen=True)
class AttackConfig:
    """What to run."""

    data: str = "house-prices"  # house-prices, mnist:P-H or digits:P-H
    source: str = "auto"  # auto, embedded (for house prices: the diabetes table) or a path
    methods: tuple[str, ...] = METHODS
    attackers: tuple[str, ...] = ()  # empty: all
    seed: int = 0  # of θ₀ and of the attackers
    epochs: int | None = None  # full-batch steps of the methods; None: their own
    rows: int | None = None  # rows of a task (house prices) or of a class (digits); None: default
    loss: AttackLoss = "auto"  # auto: squared for house prices, logistic for digits
    steps: int = 20_000  # of recurrences and mini-batches
    dense_steps: int | None = None  # of attackers who pass over the data; None: by the data

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.dataset not in ("house-prices", "mnist", "digits"):
            raise UnknownNameError("data set", self.data, ["house-prices", "mnist:4-9", "digits:4-9"])
        if self.dataset == "house-prices" and self.data != "house-prices":
            raise InvalidInputError(f"data '{self.data}': house prices are one pair; leave out the colon.")
        if self.dataset == "mnist" and self.source == "embedded":
            raise InvalidInputError("MNIST is not embedded; the 8×8 digits are: data 'digits:4-9'.")
        if self.dataset != "house-prices":
            pretrain, harmful = self.pair
            if pretrain == harmful:
                raise InvalidInputError(f"data '{self.data}': give two different digits, such as 4-9.")
        for method in self.methods:
            if method not in method_names():
                raise UnknownNameError("method", method, method_names())
        for attacker in self.attackers:
            if attacker not in attacker_names():
                raise UnknownNameError("attacker", attacker, attacker_names())
        if self.loss not in get_args(AttackLoss):
            raise UnknownNameError("loss", self.loss, get_args(AttackLoss))
        if self.loss == "logistic" and self.dataset == "house-prices":
            raise InvalidInputError("house prices are a regression: the loss must be squared, or auto.")
        for name, least in (("epochs", 1), ("rows", 4)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
        _ = self.budget  # checks seed and steps

    @classmethod
    def from_parameters(
        cls,
        *,
        data: str,
        source: str,
        methods: str,
        attackers: str,
        seed: int,
        epochs: int,
        rows: int,
        loss: str,
        steps: int,
        dense_steps: int,
    ) -> AttackConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Args:
            data: `house-prices`, `mnist:P-H`, `digits:P-H`, or `embedded`: the diabetes table.
            source: `auto`, `embedded` or a path.
            methods: Comma-separated names.
            attackers: Comma-separated names.
            seed: Of θ₀ and the attackers.
            epochs: Full-batch steps of the methods.
            rows: Rows of a task or a class.
            loss: `auto`, `squared` or `logistic`.
            steps: Largest number of cheap steps.
            dense_steps: Largest number of steps that pass over the data.

        Returns:
            The validated configuration.

        Raises:
            CondnumError: A parameter is unknown or out of range.

        Examples:
            >>> config = AttackConfig.from_parameters(
            ...     data="digits:4-9", source="auto", methods="", attackers="", seed=0, epochs=0, rows=0,
            ...     loss="auto", steps=0, dense_steps=0)
            >>> config.pair, config.kind, config.methods
            ((4, 9), 'classification', ('initial', 'ours', 'optimal', 'front'))
        """
        if data == "embedded":
            data, source = "house-prices", "embedded"
        names = tuple(dict.fromkeys(word.strip() for word in methods.split(",") if word.strip()))
        chosen = tuple(dict.fromkeys(word.strip() for word in attackers.split(",") if word.strip()))
        return cls(
            data,
            source,
            names or METHODS,
            chosen,
            seed,
            epochs or None,
            rows or None,
            loss,  # type: ignore[arg-type]
            steps or cls.steps,
            dense_steps or None,
        )

    @property
    def dataset(self) -> str:
        """`house-prices`, `mnist` or `digits`."""
        return self.data.partition(":")[0]

    @property
    def pair(self) -> tuple[int, int]:
        """Digits of D_P and D_H."""
        return read_pair(self.data.partition(":")[2])

    @property
    def kind(self) -> Kind:
        """What the attacker learns."""
        logistic = self.dataset != "house-prices" and self.loss != "squared"
        return "classification" if logistic else "regression"

    @property
    def budget(self) -> AttackBudget:
        """What each attacker may spend."""
        default = AttackBudget.dense_steps if self.dataset == "house-prices" else DIGIT_DENSE_STEPS
        return AttackBudget(
            self.steps,
            default if self.dense_steps is None else self.dense_steps,
            headline=LOGISTIC_HEADLINE if self.kind == "classification" else AttackBudget.headline,
            seed=self.seed,
        )

    @property
    def house(self) -> HousePricesConfig:
        """The house-price run that gives the extractors."""
        data = self.source
        return HousePricesConfig(data, self.methods, self.seed + 1, self.epochs, rows=self.rows)

    @property
    def digits(self) -> DigitPairsConfig:
        """The digit-pair run whose settings the extractors have."""
        data = "auto" if self.source == "embedded" else self.source
        name: Literal["mnist", "digits"] = "mnist" if self.dataset == "mnist" else "digits"
        return DigitPairsConfig(name, data, self.methods, self.seed + 1, self.epochs, (self.pair,))
