"""A sweep: plans in, rows out; what is finished is kept, what failed is tried again next time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from condnum.progress import report_event
from condnum.sweep.executors import Executor
from condnum.sweep.outcome import CellError, Compute, Outcome
from condnum.sweep.plan import CellPlan
from condnum.sweep.result import Row
from condnum.sweep.store import ResultStore


@dataclass(frozen=True)
class Failure:
    """A cell that failed in this run."""

    plan: CellPlan
    error: CellError


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

    @property
    def complete(self) -> bool:
        """True if no cell failed."""
        return not self.failures


def run_sweep(
    plans: Iterable[CellPlan],
    compute: Compute,
    store: ResultStore,
    executor: Executor,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
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

    Returns:
        All rows, old and new, and what failed.

    Raises:
        OutputError: Results cannot be written; what was committed is kept.
        KeyboardInterrupt: Passed on when the cells still running have been stopped.

    Examples:
        >>> import tempfile
        >>> from condnum.sweep import SerialExecutor
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
    for key in cells:
        stored = store.get(key)
        if stored is not None:
            rows[key] = stored.row
    tally = _Tally(len(cells), len(rows), on_progress)
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
    )


def _as_generator(executor: Executor, compute: Compute, plans: list[CellPlan]) -> Any:
    """Return the outcomes as a generator, which can be closed whatever the executor returns."""
    yield from executor.run(compute, plans)


class _Tally:
    """Counts cells and tells who wants to know."""

    def __init__(self, total: int, reused: int, on_progress: Callable[[SweepProgress], None] | None) -> None:
        self.total, self.reused, self.on_progress = total, reused, on_progress
        self.tried = 0
        self.failures: list[Failure] = []
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.perf_counter() - self.started

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.tried += 1
        if outcome.error is not None:
            self.failures.append(Failure(outcome.plan, outcome.error))
        self.report(outcome.plan)

    def report(self, plan: CellPlan | None) -> None:
        """Send an event and call the callback."""
        done, seconds = self.reused + self.tried, self.seconds
        # Method and seed as in the events of a cell's own steps, which this one ends.
        coordinates = {} if plan is None else {"stage": plan.payload.get("method", plan.experiment)}
        if plan is not None and "seed" in plan.payload:
            coordinates["seed"] = plan.payload["seed"]
        report_event(**coordinates, done=done, total=self.total, failures=len(self.failures))
        if self.on_progress is not None:
            eta = seconds / self.tried * (self.total - done) if self.tried else None
            progress = SweepProgress(done, self.total, self.reused, len(self.failures), seconds, eta, plan)
            self.on_progress(progress)
