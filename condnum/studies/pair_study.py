"""The linear experiment on any pair of tasks: methods × seeds, measured in every convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from condnum.data import TaskPair
from condnum.errors import InvalidInputError
from condnum.files import write_tables
from condnum.methods import DescentSettings, Progress, immunize, uses_seed
from condnum.methods.problem import ImmunizationProblem
from condnum.progress import report_event
from condnum.studies.measure import (
    Extractor,
    Published,
    ceiling_sweep,
    curves_table,
    results_table,
    summary_table,
)

#: Steps of the exact line search, as in Fig. 1.
PROBE_STEPS = 20_000


def report_step(progress: Progress) -> None:
    """Pass a recorded step on to whoever follows the run; a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)


@dataclass(frozen=True)
class PairStudy:
    """Extractors of a pair of tasks, and the tables made from them."""

    pair: TaskPair
    problem: ImmunizationProblem
    extractors: list[Extractor]
    published: Mapping[str, Published] = field(default_factory=dict)  # by method; of these tasks

    @property
    def explanations(self) -> list[str]:
        """What each run that tuned itself says: is Definition 3.1 met, what is possible, what was chosen."""
        return [
            f"{cell.method}, seed {cell.seed}: {cell.explanation}"
            for cell in self.extractors
            if cell.explanation
        ]

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row per method × seed × convention × gauge."""
        return results_table(self.pair, self.problem, self.extractors)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Mean and spread over seeds, beside published numbers where there are any."""
        return summary_table(self.results, self.published)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Norm ratios, spectra and histories in long form."""
        return curves_table(self.problem, self.extractors, probe_steps=PROBE_STEPS)

    @cached_property
    def ceiling_sweep(self) -> pd.DataFrame:
        """RIR of every extractor, and its ceiling, on `K + εI` against ε."""
        return ceiling_sweep(self.problem, self.extractors)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by the names of their files."""
        return {"results.csv": self.results, "summary.csv": self.summary, "curves.parquet": self.curves}

    def save(self, folder: str | Path) -> list[str]:
        """Write results.csv, summary.csv and curves.parquet."""
        return write_tables(folder, self.tables)


def compare_methods(
    pair: TaskPair,
    methods: Sequence[str] = ("ours", "identity", "initial", "optimal", "front"),
    *,
    seeds: int = 3,
    settings: Mapping[str, DescentSettings] | None = None,
) -> PairStudy:
    """Run methods on a pair of tasks of one's own, and measure them as the house-price experiment does.

    Args:
        pair: The tasks, such as `TaskPair.from_arrays(…)`.
        methods: Registry names, also those of `condnum.register`.
        seeds: Seeds 0, 1, …; a closed form that draws nothing runs once.
        settings: By method; default: each method's own, with which `ours` tunes itself.

    Returns:
        Tables of the results, and `explanations` in words;
        `plots.norm_ratio_figure(study.curves, pair.title())` draws Figure 1.

    Raises:
        InvalidInputError: No methods or seeds.
        UnknownNameError: There is no such method.
        CondnumError: A method cannot run on these tasks.

    Examples:
        >>> from condnum.data import load_diabetes_tasks
        >>> study = compare_methods(load_diabetes_tasks(), ["identity", "optimal"])
        >>> study.results.query("method == 'identity'")["rir"].round(9).tolist()
        [1.0, 1.0, 1.0]
    """
    if seeds < 1 or not methods:
        raise InvalidInputError(f"give at least one seed and one method, got {seeds} and {list(methods)}.")
    problem = ImmunizationProblem.from_pair(pair)
    chosen = dict(settings or {})
    cells = [(name, seed) for name in methods for seed in range(seeds if uses_seed(name) else 1)]
    extractors = [
        Extractor.of(immunize(problem, name, seed=seed, settings=chosen.get(name), callback=report_step))
        for name, seed in cells
    ]
    return PairStudy(pair, problem, extractors)
