"""The experiment on attackers: how far immunized extractors slow each kind of training."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from condnum.data import TaskPair, digit_pair
from condnum.experiments import digit_pairs, house_prices
from condnum.experiments.attack_config import DIGIT_ROWS, HELD_OUT, AttackConfig
from condnum.experiments.house_cell import report_step
from condnum.files import write_tables
from condnum.immunization import relative_immunization_ratio
from condnum.methods import DescentSettings, Progress, immunize
from condnum.probing import AttackReport, AttackTask, attack_panel, attack_sentences, attacker_names
from condnum.problem import ImmunizationProblem
from condnum.progress import report_event

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
