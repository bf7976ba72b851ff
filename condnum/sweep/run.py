"""A sweep: plans in, rows out; what is finished is kept, what failed is tried again next time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from condnum.errors import CondnumError
from condnum.sweep.executors import Executor
from condnum.sweep.memory import PeakMemory
from condnum.sweep.outcome import Compute
from condnum.sweep.plan import CellPlan
from condnum.sweep.progress import Failure, Score, SweepProgress, Tally
from condnum.sweep.result import Row
from condnum.sweep.store import ResultStore


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
