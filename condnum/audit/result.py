"""What an audit found: one frozen record, written as strict JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.audit.attack_section import AttackSection
from condnum.audit.directions import Directions
from condnum.audit.extractors import RAW, Comparison
from condnum.audit.intervals import Intervals
from condnum.audit.task_facts import TaskFacts
from condnum.ceiling import RirCeiling
from condnum.files import output_folder, write_json

#: Name of the file, and the version of its layout.
AUDIT_FILE, LAYOUT = "audit.json", 1


@dataclass(frozen=True)
class ClauseC:
    """Clause (c) for one extractor: can the pre-training task still be fitted as well?"""

    kept: bool | None  # None: it cannot be said without targets
    gap: float | None  # rise of the best squared loss over the loss of predicting zero
    reason: str


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything an audit says about a pair of tasks and, where given, an extractor."""

    pretrain: TaskFacts
    harmful: TaskFacts
    extractors: Mapping[str, tuple[int, int]]  # name -> (D, D_hid), yardsticks included
    compared: tuple[Comparison, ...]
    rtol: float  # relative rank tolerance of K and H(θ)
    ridge: float  # ε
    ceiling: RirCeiling  # compact
    ridge_limit: float  # bound on RIR in the ridge convention, unit gauge
    kappa: pd.DataFrame  # of `kappa_rows`
    measures: pd.DataFrame  # of `measures_table`
    rtol_sweep: pd.DataFrame
    ridge_sweep: pd.DataFrame
    directions: Directions
    clause_c: Mapping[str, ClauseC]
    intervals: Intervals | None
    no_intervals: str  # why there are none; empty if there are
    attack: AttackSection
    columns: pd.DataFrame  # of `FeaturePair`: scale of each column, and what it looks like
    notes: tuple[str, ...]  # what was done to the data, and what is odd about their columns
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]  # by stage
    peak_mib: float  # largest resident memory of this process so far
    seed: int = field(default=0)

    @property
    def main(self) -> Comparison | None:
        """The comparison that the verdict is about: θ_I against θ₀, or θ against the raw features."""
        given = [pair for pair in self.compared if pair.extractor in ("theta", "theta_i")]
        return given[0] if given else None

    @property
    def warnings(self) -> list[str]:
        """What makes the numbers fragile, in sentences."""
        own = [*self.notes, *self.pretrain.warnings, *self.harmful.warnings]
        if self.ceiling.harmful_only_dimension:
            own.append(
                f"D_H excites {self.ceiling.harmful_only_dimension} direction(s) that D_P does not: an "
                "extractor can scale them freely, which makes the compact ceiling infinite. That is "
                "a statement on "
                "null spaces, not a promise."
            )
        if self.intervals is not None:
            outside = self.intervals.table[~self.intervals.table["inside"].astype(bool)]
            if len(outside):
                own.append(
                    f"{len(outside)} of {len(self.intervals.table)} numbers lie outside their own bootstrap "
                    "interval: resampling moves them more than it spreads them, so that these intervals are "
                    "too optimistic (smallest eigenvalues and ranks fall when rows are missing)."
                )
        return own

    def row(self, pair: Comparison, convention: str, gauge: str = "unit") -> pd.Series:
        """Return one row of `measures`.

        Args:
            pair: What against what.
            convention: `compact` or `ridge`.
            gauge: `unit` or `as_trained`.

        Returns:
            The row.
        """
        table = self.measures
        return table[
            (table["extractor"] == pair.extractor)
            & (table["baseline"] == pair.baseline)
            & (table["convention"] == convention)
            & (table["gauge"] == gauge)
        ].iloc[0]

    def kappa_of(self, task: str, extractor: str, convention: str) -> pd.Series:
        """Return one row of `kappa`.

        Args:
            task: `pretrain` or `harmful`.
            extractor: Its name.
            convention: `compact` or `ridge`.

        Returns:
            The row.
        """
        table = self.kappa
        return table[
            (table["task"] == task) & (table["extractor"] == extractor) & (table["convention"] == convention)
        ].iloc[0]

    def interval(
        self, quantity: str, convention: str, *, task: str = "", extractor: str = "", baseline: str = ""
    ) -> pd.Series | None:
        """Return the interval of a number, or None if there is none.

        Args:
            quantity: `kappa`, `rank`, `harmful_ratio`, `pretrain_ratio`, `rir` or `rir_ceiling`.
            convention: `compact` or `ridge`.
            task: Of a κ or rank.
            extractor: Its name.
            baseline: Of a ratio.

        Returns:
            A row of `Intervals.table`.
        """
        if self.intervals is None:
            return None
        table = self.intervals.table
        found = table[
            (table["quantity"] == quantity)
            & (table["convention"] == convention)
            & (table["task"] == task)
            & (table["extractor"] == extractor)
            & (table["baseline"] == baseline)
        ]
        return found.iloc[0] if len(found) else None

    @cached_property
    def sentences(self) -> list[str]:
        """The summary in plain language, computed from the numbers."""
        from condnum.audit.words import summary

        return summary(self)

    def as_json(self) -> dict[str, Any]:
        """Return everything as values that strict JSON holds: infinities as words, NaN as null."""
        attack = self.attack.report
        return strict(
            {
                "layout": LAYOUT,
                "conventions": "infinities are the words Infinity and -Infinity, what is not known is null",
                "summary": self.sentences,
                "warnings": self.warnings,
                "tasks": {task.name: _task(task) for task in (self.pretrain, self.harmful)},
                "columns": _records(self.columns),
                "settings": {"rtol": self.rtol, "ridge": self.ridge, "seed": self.seed, **self.settings},
                "extractors": {name: list(shape) for name, shape in self.extractors.items() if name != RAW},
                "ceiling": {**vars(self.ceiling), "ridge_convention_limit": self.ridge_limit},
                "kappa": _records(self.kappa),
                "measures": _records(self.measures),
                "clause_c": {name: vars(clause) for name, clause in self.clause_c.items()},
                "rtol_sweep": _records(self.rtol_sweep),
                "ridge_sweep": _records(self.ridge_sweep),
                "alignment": {
                    "overlaps": self.directions.overlaps.tolist(),
                    "extractors": _records(self.directions.table),
                },
                "bootstrap": None
                if self.intervals is None
                else {
                    "resampled": self.intervals.unit,
                    "replicates": self.intervals.replicates,
                    "failed": self.intervals.failed,
                    "level": self.intervals.level,
                    "intervals": _records(self.intervals.table),
                },
                "bootstrap_skipped": self.no_intervals or None,
                "attackers": None
                if attack is None
                else {
                    "rows": self.attack.rows,
                    "held_out_rows": self.attack.held_out,
                    "steps": _records(attack.steps),
                    "factors": _records(attack.factors),
                    "evaluation": _records(attack.evaluation),
                    "extractors": _records(attack.extractors),
                    "skipped": _records(attack.skipped),
                },
                "attackers_summary": self.attack.sentences,
                "seconds": dict(self.seconds),
                "peak_memory_mib": self.peak_mib,
            }
        )

    def save(self, folder: str | Path) -> list[str]:
        """Write audit.json.

        Args:
            folder: Created if missing.

        Returns:
            The names of the files.

        Raises:
            OutputError: The folder cannot be written.
        """
        write_json(output_folder(folder) / AUDIT_FILE, self.as_json())
        return [AUDIT_FILE]


def strict(value: Any) -> Any:
    """Return a value that strict JSON holds: NaN becomes None, infinities become words.

    Examples:
        >>> strict({"a": [np.float64(1.5), math.inf, math.nan], "b": np.bool_(True)})
        {'a': [1.5, 'Infinity', None], 'b': True}
    """
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _task(task: TaskFacts) -> dict[str, Any]:
    """Return one task's facts."""
    return {
        "source": task.source,
        "rows": task.rows,
        "columns": task.dimension,
        "stored_eps": task.stored_eps,
        "rank": task.rank,
        "eigenvalues_near_tolerance": task.near,
        "equal_columns": [list(pair) for pair in task.equal_columns],
        "spectrum": task.spectrum.tolist(),
    }
