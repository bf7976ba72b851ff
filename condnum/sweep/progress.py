"""How far a sweep is: counted in the process that keeps the results, told to whoever follows it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from condnum.errors import CondnumError
from condnum.progress import SweepFacts, report_event
from condnum.sweep.memory import PeakMemory, ProcessPeak, own_peak
from condnum.sweep.outcome import CellError, Outcome
from condnum.sweep.plan import CellPlan
from condnum.sweep.result import CellResult

#: Rates a result; larger is better.
Score: TypeAlias = Callable[[CellResult], float]


@dataclass(frozen=True)
class Failure:
    """A cell that failed in this run."""

    plan: CellPlan
    error: CellError


@dataclass(frozen=True)
class Best:
    """The result with the largest score so far."""

    score: float
    plan: CellPlan


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    done: int  # cells that are settled: found in the store, computed, or failed
    total: int  # different cells
    reused: int  # found in the store
    failures: int
    seconds: float  # since the start
    eta_seconds: float | None  # None before the first cell is computed
    plan: CellPlan | None  # the cell that was just settled; None at the start
    best: Best | None = None  # None if nothing is rated

    @property
    def facts(self) -> SweepFacts:
        """The part that a line of progress shows beside the count."""
        best = self.best
        return SweepFacts(
            self.failures,
            self.eta_seconds,
            None if best is None else best.score,
            "" if best is None else best.plan.short_label,
        )


class Tally:
    """Counts the cells of a sweep and tells who wants to know."""

    def __init__(
        self, total: int, on_progress: Callable[[SweepProgress], None] | None, score: Score | None
    ) -> None:
        self.total, self.on_progress, self.score = total, on_progress, score
        self.reused = self.tried = 0
        self.failures: list[Failure] = []
        self.best: Best | None = None
        self.started = time.perf_counter()
        self._peaks: dict[tuple[str, int], ProcessPeak] = {}  # the newest is the largest

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self.started

    @property
    def memory(self) -> PeakMemory:
        """Peak memory of this process and of all that computed a cell."""
        return PeakMemory.of([*self._peaks.values(), own_peak()])

    def reuse(self, plan: CellPlan, result: CellResult) -> None:
        """Count a cell that the store has."""
        self.reused += 1
        self._rate(plan, result)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome, and report it."""
        self.tried += 1
        if outcome.memory is not None:
            self._peaks[outcome.memory.process] = outcome.memory
        if outcome.error is None:
            self._rate(outcome.plan, CellResult(outcome.row, outcome.arrays))
        else:
            self.failures.append(Failure(outcome.plan, outcome.error))
        self.report(outcome.plan)

    def report(self, plan: CellPlan | None) -> None:
        """Send an event and call the callback."""
        done, seconds = self.reused + self.tried, self.seconds
        eta = seconds / self.tried * (self.total - done) if self.tried else None
        progress = SweepProgress(
            done, self.total, self.reused, len(self.failures), seconds, eta, plan, self.best
        )
        # Method and seed as in the events of a cell's own steps, which this one ends.
        coordinates = {} if plan is None else {"stage": plan.payload.get("method", plan.experiment)}
        if plan is not None and "seed" in plan.payload:
            coordinates["seed"] = plan.payload["seed"]
        report_event(**coordinates, done=done, total=self.total, **progress.facts.known())
        if self.on_progress is not None:
            self.on_progress(progress)

    def _rate(self, plan: CellPlan, result: CellResult) -> None:
        """Keep the result if it is the best; one that cannot be rated is not."""
        if self.score is None:
            return
        try:
            score = float(self.score(result))
        except CondnumError:  # such as a θ of rank 0, which the tables deal with
            return
        if not math.isnan(score) and (self.best is None or score > self.best.score):
            self.best = Best(score, plan)
