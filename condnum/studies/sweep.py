"""A sweep: plans in, rows out; what is finished is kept, what failed is tried again next time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from condnum.errors import CondnumError
from condnum.machine import PeakMemory, ProcessPeak, own_peak
from condnum.progress import SweepFacts, report_event
from condnum.studies.cell import CellError, CellPlan, CellResult, Compute, Outcome, Row
from condnum.studies.executors import Executor
from condnum.studies.store import ResultStore

# How far a sweep is: counted in the process that keeps the results, told to whoever follows it.


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


class SweepError(CondnumError, RuntimeError):
    """Every cell of a sweep failed; the message has the first error."""


@dataclass(frozen=True)
class SweepReport:
    """A sweep that went to its end.

    Arrays stay in the store: `store.get(plan.key)`.
    """

    rows: list[Row]  # a row for each finished cell, in the order of the plans
    failures: list[Failure]  # in the order in which they failed
    reused: int  # cells found in the store
    computed: int  # cells computed now, without those that failed
    seconds: float
    memory: PeakMemory  # of this process and the workers

    @property
    def complete(self) -> bool:
        """True if no cell failed."""
        return not self.failures

    @property
    def failure_rows(self) -> list[dict[str, str]]:
        """`cell` and `error` of each failure, for a table."""
        return [{"cell": failure.plan.label, "error": str(failure.error)} for failure in self.failures]

    def check(self) -> None:
        """Refuse a sweep that has nothing to show.

        Raises:
            SweepError: Every cell failed.
        """
        if self.failures and not self.rows:
            first = self.failures[0]
            raise SweepError(
                f"no cell succeeded: {len(self.failures)} failed, the first one ({first.plan.label}) with "
                f"{first.error}; change what it names and run again."
            )


def run_sweep(
    plans: Iterable[CellPlan],
    compute: Compute,
    store: ResultStore,
    executor: Executor,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
    score: Score | None = None,
) -> SweepReport:
    """Compute the cells that the store does not have yet, and keep each as it arrives.

    A sweep that is stopped, in any way, goes on from there when it is run again. A plan that occurs
    twice is one cell.

    Args:
        plans: The cells; long ones first, so that no worker waits at the end.
        compute: Computes a cell: returns its row of scalars and its arrays by name.
        store: Where results are kept, open for writing; this process is the one that writes.
        executor: Where cells are computed.
        on_progress: Told at the start and after each cell; what it raises stops the sweep.
        score: Rates a result (its RIR), for the best so far that progress shows; None shows none.

    Returns:
        All rows, old and new, and what failed.

    Raises:
        OutputError: Results cannot be written; what was committed is kept.
        KeyboardInterrupt: Passed on when the cells still running have been stopped.

    Examples:
        >>> import tempfile
        >>> from condnum.studies.executors import SerialExecutor
        >>> plans = [CellPlan("inverse", {"x": x}, {}, "", "1") for x in (4, 0)]
        >>> inverse = lambda plan: ({"y": 1 / plan.payload["x"]}, {})
        >>> with tempfile.TemporaryDirectory() as folder, ResultStore(folder) as store:
        ...     first = run_sweep(plans, inverse, store, SerialExecutor())
        ...     again = run_sweep(plans, inverse, store, SerialExecutor())
        >>> first.rows, str(first.failures[0].error), (again.reused, again.computed)
        ([{'y': 0.25}], 'ZeroDivisionError: division by zero', (1, 0))
    """
    cells = {plan.key: plan for plan in plans}
    rows: dict[str, Row] = {}
    tally = Tally(len(cells), on_progress, score)
    for key, plan in cells.items():
        stored = store.get(key)
        if stored is not None:
            rows[key] = stored.row
            tally.reuse(plan, stored)
    tally.report(None)
    missing = [plan for key, plan in cells.items() if key not in rows]
    if missing:
        # Closing stops the cells that are still running, if an error or an interruption ends the loop.
        with closing(_as_generator(executor, compute, missing)) as outcomes:
            for outcome in outcomes:
                key = outcome.plan.key
                if outcome.error is None:
                    store.put(key, outcome.row, outcome.arrays, outcome.seconds)
                    rows[key] = outcome.row
                else:
                    store.fail(key, outcome.error.traceback, outcome.seconds)
                tally.add(outcome)
    return SweepReport(
        rows=[rows[key] for key in cells if key in rows],
        failures=tally.failures,
        reused=tally.reused,
        computed=len(rows) - tally.reused,
        seconds=tally.seconds,
        memory=tally.memory,
    )


def _as_generator(executor: Executor, compute: Compute, plans: list[CellPlan]) -> Any:
    """Return the outcomes as a generator, which can be closed whatever the executor returns."""
    yield from executor.run(compute, plans)
