"""The experiment on attackers: how far immunized extractors slow each kind of training."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

import pandas as pd

from condnum.arrays import TargetKind
from condnum.data import TaskPair, digit_pair
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import ATTACKERS, AttackBudget, AttackReport, attack_panel
from condnum.progress import report_event
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, at_least, some_of
from condnum.studies.method_study import MethodNames, MethodStudy
from condnum.studies.pairs import study_of_one_pair
from condnum.theory.kappa import both_conventions

#: θ₀ untrained, Algorithm 1, the closed forms; raw inputs are always there.
_METHODS = ("initial", "ours", "max_rir", "pareto", "erase")
_RAW = "raw"

#: Rows of each class that the attacker of a digit trains on, and steps that pass over them.
DIGIT_ROWS, DIGIT_DENSE_STEPS = 2500, 500

#: Fraction of a digit task's rows that is held out for the attacker's accuracy.
_HELD_OUT = 0.2


#: Tables that a cell keeps.
_KEPT = ("table", "curves", "extractors", "spectra", "skipped")


@dataclass(frozen=True)
class Attackers(MethodStudy, name="attackers", notebook="attackers"):
    """How far immunized extractors slow each kind of training: one pair of tasks, a panel of attackers."""

    data: str  # house-prices, embedded (diabetes table), mnist:P-H, digits:P-H, or a path
    methods: MethodNames  # empty: `_METHODS`
    attackers: Annotated[tuple[str, ...], some_of("attacker", lambda: [*ATTACKERS])]  # empty: all
    seed: Annotated[int, at_least(0)]  # of θ₀ and of the attackers
    steps: Count | None  # full-batch steps of immunization; None: each method's own
    rows: Annotated[int, at_least(4)] | None  # of a task (house prices) or of a class (digits)
    attack_steps: Count | None  # of recurrences and mini-batches
    dense_attack_steps: Count | None  # of attackers who pass over the data; None: by the data

    def check(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        self.fill(methods=_METHODS, attackers=(*ATTACKERS,))
        _ = self.base

    @cached_property
    def base(self) -> Any:
        """The study that immunizes: the extractors are its own, for the same settings and seed."""
        rows = {} if ":" in self.data else {"rows": self.rows}
        return study_of_one_pair(
            self.data, methods=self.methods, seeds=self.seed + 1, steps=self.steps, **rows
        )

    @property
    def digits(self) -> tuple[int, int] | None:
        """Digits of D_P and D_H; None for tables."""
        return self.base.pairs[0] if ":" in self.data else None

    @property
    def kind(self) -> TargetKind:
        """What the attacker learns."""
        return "regression" if self.digits is None else "classification"

    @property
    def budget(self) -> AttackBudget:
        """What each attacker may spend."""
        dense = AttackBudget.dense_steps if self.digits is None else DIGIT_DENSE_STEPS
        return AttackBudget(
            AttackBudget.steps if self.attack_steps is None else self.attack_steps,
            dense if self.dense_attack_steps is None else self.dense_attack_steps,
            seed=self.seed,
        )

    def load(self) -> Any:
        """Load the data of the study that immunizes."""
        return self.base.load()

    def pair(self, data: Any) -> TaskPair:
        """Return the two tasks, with the sample that the attacker trains on."""
        return data if self.digits is None else _digit_pair(data, *self.digits)

    def cells(self, data: Any) -> list[Cell]:
        """List the extractors, raw inputs first; the panel attacks each by itself."""
        panel = {
            "digits": self.digits,
            "rows": self.rows,
            "kind": self.kind,
            "budget": asdict(self.budget),
            "attackers": self.attackers,
        }
        settings = {_RAW: None} | {name: self.base.settings(name) for name in self.methods}
        return [
            Cell({"method": name, "seed": self.seed}, {"panel": panel, "method": asdict(of) if of else {}})
            for name, of in settings.items()
        ]

    def compute(self, data: Any, cell: Cell) -> CellResult:
        """Attack the features of one extractor, and measure how far it is immunized."""
        name, chosen = cell["method"], self.attackers
        theta, pair = None, self.pair(data)
        if name != _RAW:  # as its own study trains or evaluates it, with the last of its seeds
            *_, own = (plan for plan in self.base.cells(data) if plan["method"] == name)
            theta = self.base.immunize(data, own).theta

        def on_attack(extractor: str, attacker: str) -> None:
            report_event(stage=f"{attacker} on {extractor}", step=chosen.index(attacker), steps=len(chosen))

        report = attack_panel(
            **attack_task(self, pair),
            extractors={_RAW: None, name: theta},
            budget=self.budget,
            attackers=chosen,
            only=[name],
            on_attack=on_attack,
        )
        tables = {kept: getattr(report, kept) for kept in _KEPT}
        tables = {
            kept: table[table["extractor"] == name] if len(table) else table for kept, table in tables.items()
        }
        problem = ImmunizationProblem.from_pair(pair)
        names = ("convention", "harmful_ratio", "benign_ratio", "rir", "success")
        measured = [] if theta is None else both_conventions(problem.seen(theta))
        slowdowns = ("benign_slowdown", "harmful_slowdown")
        rows = [
            {"extractor": name}
            | {column: getattr(of, column) for column in names}
            | {column: math.nan if (value := getattr(of, column)) is None else value for column in slowdowns}
            for of in measured
        ]
        tables["immunization"] = pd.DataFrame(rows)
        return CellResult({kept: json.dumps(table.to_dict("list")) for kept, table in tables.items()}, {})

    def report(self, data: Any, results: Sequence[FinishedCell]) -> AttackReport:
        """Put together what the panel found."""
        tables = {name: _joined(results, name) for name in _KEPT}
        return AttackReport(**tables, baseline=_RAW, budget=self.budget)

    def tables(self, data: Any, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return what each attacker needed, the factors, and how far each extractor is immunized."""
        report = self.report(data, results)
        return {
            "results": report.table,
            "factors": report.factors,
            "extractors": report.extractors,
            "immunization": _joined(results, "immunization"),
            "curves.parquet": report.curves,
            **({"skipped": report.skipped} if len(report.skipped) else {}),
        }


_digit_pair = lru_cache(1)(digit_pair)


def attack_task(study: Attackers, pair: TaskPair) -> dict[str, Any]:
    """Return what the attacker learns, as `attack_panel` takes it: of a digit, a fifth is held out."""
    X, y = pair.probe_sample
    if study.digits is None:
        return {"X": X, "y": y}
    rows = 2 * (study.rows or DIGIT_ROWS)
    X, y = X[:rows], y[:rows]  # the digit and the rest in turn, so every part is balanced
    held = max(2, int(len(X) * _HELD_OUT) // 2 * 2)
    fit = len(X) - held
    return {"X": X[:fit], "y": y[:fit], "held_out": (X[fit:], y[fit:]), "kind": study.kind}


def _joined(results: Sequence[FinishedCell], name: str) -> pd.DataFrame:
    """Put the tables of all cells below each other."""
    tables = [pd.DataFrame(json.loads(str(row[name]))) for _, row, _ in results]
    kept = [table for table in tables if len(table)]
    return pd.concat(kept, ignore_index=True) if kept else tables[0]
