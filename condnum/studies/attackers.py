"""The experiment on attackers: how far immunized extractors slow each kind of training."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from torch import Tensor

from condnum.data import Provenance, TaskPair, digit_pair
from condnum.errors import InvalidInputError
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import AttackBudget, AttackReport, AttackTask, attack_panel, attacker_names
from condnum.probing.tasks import TaskKind
from condnum.progress import report_event
from condnum.studies.cells import Cell, CellResult
from condnum.studies.digit_pairs import DigitPairs
from condnum.studies.executors import Executor, choose_executor
from condnum.studies.house_prices import MethodNames
from condnum.studies.linear import study_of_one_pair
from condnum.studies.study import Count, FinishedCell, Study, at_least, some_of
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.spectra import Convention

#: θ₀ untrained, Algorithm 1, the closed forms; raw inputs are always there.
_METHODS = ("initial", "ours", "max_rir", "pareto")
_RAW = "raw"

#: Rows of each class that the attacker of a digit trains on, and steps that pass over them.
DIGIT_ROWS, DIGIT_DENSE_STEPS = 2500, 500

#: Excess loss that sentences and figures are about, of a logistic loss without a ridge: on MNIST no
#: first-order attacker reaches 1 % within the budget, on whatever features.
LOGISTIC_HEADLINE = 0.1

#: Share of a digit task's rows that is held out for the attacker's accuracy.
_HELD_OUT = 0.2

_CONVENTIONS: tuple[Convention, ...] = ("compact", "ridge")

#: Tables that a cell keeps.
_KEPT = ("steps", "curves", "extractors", "spectra", "skipped")


class AttackData(NamedTuple):
    """A pair of tasks, and what the study that immunizes them loads: `Digits`, or the pair."""

    pair: TaskPair
    origin: Any

    @property
    def checksum(self) -> str:
        """SHA-256 of the source."""
        return self.pair.checksum

    @property
    def label(self) -> str:
        """What the data are called."""
        return self.pair.label

    @property
    def provenance(self) -> Provenance:
        """Where the data came from."""
        return self.pair.provenance


@dataclass(frozen=True)
class Attackers(Study, name="attackers"):
    """How far immunized extractors slow each kind of training: one pair of tasks, a panel of attackers."""

    data: str = "house-prices"  # house-prices, mnist:P-H, digits:P-H or embedded (diabetes table)
    source: str = "auto"  # auto, embedded (for house prices: the diabetes table) or a path
    methods: MethodNames = _METHODS
    attackers: Annotated[tuple[str, ...], some_of("attacker", attacker_names)] = ()  # empty: all
    seed: int = 0  # of θ₀ and of the attackers
    epochs: Count | None = None  # full-batch steps of the methods; None: their own
    rows: Annotated[int, at_least(4)] | None = None  # of a task (house prices) or of a class (digits)
    loss: Literal["auto", "squared", "logistic"] = "auto"  # auto: logistic for digits
    steps: int | None = None  # of recurrences and mini-batches
    dense_steps: int | None = None  # of attackers who pass over the data; None: by the data

    def check(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.loss == "logistic" and self.pair is None:
            raise InvalidInputError("house prices are a regression: the loss must be squared, or auto.")
        _ = self.budget  # checks seed and steps

    @cached_property
    def base(self) -> Any:
        """The study that immunizes: the extractors are its own, for the same settings and seed."""
        rows = None if ":" in self.data else self.rows
        common: dict[str, Any] = {"methods": self.methods, "seeds": self.seed + 1, "epochs": self.epochs}
        return study_of_one_pair(self.data, self.source, rows=rows, **common)

    @property
    def pair(self) -> tuple[int, int] | None:
        """Digits of D_P and D_H; None for house prices."""
        return self.base.pairs[0] if isinstance(self.base, DigitPairs) else None

    @property
    def kind(self) -> TaskKind:
        """What the attacker learns."""
        logistic = self.pair is not None and self.loss != "squared"
        return "classification" if logistic else "regression"

    @property
    def budget(self) -> AttackBudget:
        """What each attacker may spend."""
        dense = AttackBudget.dense_steps if self.pair is None else DIGIT_DENSE_STEPS
        return AttackBudget(
            AttackBudget.steps if self.steps is None else self.steps,
            dense if self.dense_steps is None else self.dense_steps,
            headline=LOGISTIC_HEADLINE if self.kind == "classification" else AttackBudget.headline,
            seed=self.seed,
        )

    def load(self) -> AttackData:
        """Load the pair of tasks."""
        origin = self.base.load()
        return AttackData(origin if self.pair is None else digit_pair(origin, *self.pair), origin)

    def cells(self, data: AttackData) -> list[Cell]:
        """List the extractors, raw inputs first; the panel attacks each by itself."""
        panel = {
            "data": self.data,
            "rows": self.rows,
            "kind": self.kind,
            "budget": asdict(self.budget),
            "attackers": self.attackers or list(attacker_names()),
        }
        settings = {_RAW: None} | {name: self.base.settings(name) for name in self.methods}
        return [
            Cell({"method": name, "seed": self.seed}, {"panel": panel, "method": asdict(of) if of else {}})
            for name, of in settings.items()
        ]

    def compute(self, data: AttackData, cell: Cell) -> CellResult:
        """Attack the features of one extractor, and measure how far it is immunized."""
        name, chosen = cell["method"], self.attackers or tuple(attacker_names())
        theta = None if name == _RAW else self.theta(data, name)

        def on_attack(extractor: str, attacker: str) -> None:
            report_event(stage=f"{attacker} on {extractor}", step=chosen.index(attacker), steps=len(chosen))

        report = attack_panel(
            {_RAW: None, name: theta},
            attack_task(self, data.pair),
            budget=self.budget,
            attackers=chosen,
            extractors=[name],
            on_attack=on_attack,
        )
        tables = {kept: getattr(report, kept) for kept in _KEPT}
        tables = {
            kept: table[table["extractor"] == name] if len(table) else table for kept, table in tables.items()
        }
        problem = ImmunizationProblem.from_pair(data.pair)
        K_P, K_H = problem.pretrain.covariance, problem.harmful.covariance
        names = ("convention", "harmful_ratio", "pretrain_ratio", "rir", "success")
        measured = [
            relative_immunization_ratio(theta, K_P, K_H, convention=convention)
            for convention in _CONVENTIONS
            if theta is not None
        ]
        rows = [{"extractor": name} | {column: getattr(of, column) for column in names} for of in measured]
        tables["immunization"] = pd.DataFrame(rows)
        return CellResult({kept: json.dumps(table.to_dict("list")) for kept, table in tables.items()}, {})

    def theta(self, data: AttackData, method: str) -> Tensor:
        """Train or evaluate an extractor as its own study does."""
        where = () if self.pair is None else (self.pair,)
        return self.base.immunize(data.origin, self.base.cell(method, self.seed, *where)).theta

    def report(self, data: AttackData, results: Sequence[FinishedCell]) -> AttackReport:
        """Put together what the panel found."""
        task = attack_task(self, data.pair)
        return AttackReport(
            **{name: _joined(results, name) for name in _KEPT},
            baseline=_RAW,
            kind=self.kind,
            budget=self.budget,
            held_out=task.X_test is not None,
            title=task.name,
        )

    def tables(self, data: AttackData, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return what each attacker needed, the factors, and how far each extractor is immunized."""
        report = self.report(data, results)
        return {
            "results": report.steps,
            "factors": report.factors,
            "extractors": report.extractors,
            "immunization": _joined(results, "immunization"),
            "curves.parquet": report.curves,
            **({"skipped": report.skipped} if len(report.skipped) else {}),
        }

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Attack one extractor after the other unless told otherwise: seconds are measured."""
        return choose_executor(jobs or 1, scheduler)

    def facts(self, data: AttackData) -> dict[str, str]:
        """Return what an attacker learns, and for how long."""
        task, budget = attack_task(self, data.pair), self.budget
        return {
            "attacker trains on": task.name,
            "held-out rows": "none" if task.X_test is None else f"{len(task.X_test)}",
            "budget": f"{budget.steps:,} steps in the eigenbasis or of batches, "
            f"{budget.dense_steps:,} of others",
        }


def attack_task(study: Attackers, pair: TaskPair) -> AttackTask:
    """Return what the attacker learns: the probe sample of D_H, of a digit with a fifth held out."""
    X, y = pair.probe_sample
    if study.pair is None:
        return AttackTask(X, y, name=f"{pair.harmful_name}, {len(X)} rows")
    rows = 2 * (study.rows or DIGIT_ROWS)
    X, y = X[:rows], y[:rows]  # the digit and the rest in turn, so every part is balanced
    targets = y if study.kind == "classification" else 2 * y - 1
    held = max(2, int(len(X) * _HELD_OUT) // 2 * 2)
    fit = len(X) - held
    name = f"{pair.harmful_name} against the rest, {fit} rows, {study.kind}"
    return AttackTask(X[:fit], targets[:fit], study.kind, X[fit:], targets[fit:], name)


def _joined(results: Sequence[FinishedCell], name: str) -> pd.DataFrame:
    """Put the tables of all cells below each other."""
    tables = [pd.DataFrame(json.loads(str(row[name]))) for _, row, _ in results]
    kept = [table for table in tables if len(table)]
    return pd.concat(kept, ignore_index=True) if kept else tables[0]
