"""The experiment on attackers: how far immunized extractors slow each kind of training."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from condnum.data import TaskPair, digit_pair
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.files import write_tables
from condnum.methods import DescentSettings, Progress, immunize, method_names
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import (
    AttackBudget,
    AttackReport,
    AttackTask,
    attack_panel,
    attack_sentences,
    attacker_names,
)
from condnum.probing.tasks import Kind
from condnum.progress import report_event
from condnum.studies import digit_pairs, house_prices
from condnum.studies.digit_pairs import DigitPairsConfig, read_pair
from condnum.studies.house_prices import HousePricesConfig
from condnum.studies.pair_study import report_step
from condnum.theory.immunization import relative_immunization_ratio

# What the experiment on attackers runs: one pair of tasks, the extractors, and the attackers' budget.


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


RAW = "raw"


@dataclass(frozen=True)
class AttackStudy:
    """The finished experiment."""

    config: AttackConfig
    pair: TaskPair
    task: AttackTask
    report: AttackReport
    immunization: pd.DataFrame  # extractor, convention, (i), (ii), RIR

    @property
    def title(self) -> str:
        """The data set and what the attacker trains on, for figures."""
        return f"{self.pair.title()}; attacker: {self.task.name}"

    @cached_property
    def sentences(self) -> list[str]:
        """What the numbers say."""
        return attack_sentences(self.report)

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin, budget = self.pair.provenance, self.report.budget
        facts = {
            "data": f"{self.pair.label}: {origin.description}",
            "tasks": f"D_P {self.pair.pretrain_name}, D_H {self.pair.harmful_name}",
            "SHA-256": self.pair.checksum,
            "attacker trains on": self.task.name,
            "held-out rows": "none" if self.task.X_test is None else f"{len(self.task.X_test)}",
            "budget": f"{budget.steps:,} steps in the eigenbasis or of batches, "
            f"{budget.dense_steps:,} of others",
            "seed": str(self.config.seed),
            "versions": f"condnum {house_prices.condnum_version()}, torch {torch.__version__}, "
            f"NumPy {np.__version__}, Python {platform.python_version()}, float64",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write the tables."""
        tables = {
            "results.csv": self.report.steps,
            "factors.csv": self.report.factors,
            "extractors.csv": self.report.extractors,
            "immunization.csv": self.immunization,
            "curves.parquet": self.report.curves,
        }
        skipped = self.report.skipped
        return write_tables(folder, tables | ({"skipped.csv": skipped} if len(skipped) else {}))


def load(config: AttackConfig) -> TaskPair:
    """Load the pair of tasks."""
    if config.dataset == "house-prices":
        return house_prices.load(config.house)
    digits, _ = digit_pairs.load(config.digits)
    return digit_pair(digits, *config.pair)


def attack_task(config: AttackConfig, pair: TaskPair) -> AttackTask:
    """Return what the attacker learns: the probe sample of D_H, of a digit with a fifth held out.

    Examples:
        >>> config = AttackConfig("digits:4-9", rows=50)
        >>> task = attack_task(config, load(config))
        >>> task.X.shape, task.X_test.shape
        ((80, 64), (20, 64))
    """
    X, y = pair.probe_sample
    if config.dataset == "house-prices":
        return AttackTask(X, y, name=f"{pair.harmful_name}, {len(X)} rows")
    rows = 2 * (config.rows or DIGIT_ROWS)
    X, y = X[:rows], y[:rows]  # the digit and the rest in turn, so every part is balanced
    targets = y if config.kind == "classification" else 2 * y - 1
    held = int(len(X) * HELD_OUT) // 2 * 2
    fit = len(X) - held
    name = f"{pair.harmful_name} against the rest, {fit} rows, {config.kind}"
    return AttackTask(X[:fit], targets[:fit], config.kind, X[fit:], targets[fit:], name)


def extractors(config: AttackConfig, pair: TaskPair) -> dict[str, Tensor]:
    """Train or evaluate the extractors, with the settings of the experiment on these data."""
    house = config.dataset == "house-prices"
    problem = ImmunizationProblem.from_pair(pair, loss="mse" if house else "bce")
    settings = config.house.settings if house else config.digits.settings
    return {
        method: immunize(
            problem, method, seed=config.seed, settings=settings(method), callback=_callback(settings(method))
        ).theta
        for method in config.methods
    }


def _callback(settings: DescentSettings | None) -> Callable[[Progress], None] | None:
    """Return what reports the steps of a descent; None for closed forms."""
    return None if settings is None else report_step


def run(config: AttackConfig) -> AttackStudy:
    """Run the experiment."""
    pair = load(config)
    thetas = extractors(config, pair)
    task = attack_task(config, pair)
    done = 0

    def on_attack(extractor: str, attacker: str) -> None:
        """Tell whoever follows the run."""
        nonlocal done
        total = (1 + len(thetas)) * len(config.attackers or attacker_names())
        report_event(stage=f"{attacker} on {extractor}", step=done, steps=total)
        done += 1

    report = attack_panel(
        {RAW: None, **thetas},
        task,
        budget=config.budget,
        attackers=config.attackers or None,
        on_attack=on_attack,
    )
    return AttackStudy(config, pair, task, report, immunization_table(pair, thetas))


def immunization_table(pair: TaskPair, thetas: Mapping[str, Tensor]) -> pd.DataFrame:
    """Measure (i), (ii) and RIR of each extractor in both conventions."""
    problem = ImmunizationProblem.from_pair(pair)
    rows: list[dict[str, Any]] = []
    for name, theta in thetas.items():
        for convention in ("compact", "ridge"):
            measured = relative_immunization_ratio(
                theta,
                problem.pretrain.covariance,
                problem.harmful.covariance,
                convention=convention,
            )
            rows.append(
                {
                    "extractor": name,
                    "convention": convention,
                    "harmful_ratio": measured.harmful_ratio,
                    "pretrain_ratio": measured.pretrain_ratio,
                    "rir": measured.rir,
                    "success": measured.success,
                }
            )
    return pd.DataFrame(rows)
