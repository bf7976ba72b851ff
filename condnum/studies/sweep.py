"""A sweep: cells in, results out; what is finished is kept, what failed is tried again next time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

from condnum.errors import CondnumError
from condnum.machine import PeakMemory, ProcessPeak, own_peak
from condnum.progress import SweepFacts, report_event
from condnum.studies.cell import Cell, CellError, CellResult, Compute, Outcome
from condnum.studies.executors import Executor
from condnum.studies.store import ResultStore

#: Rates a result; larger is better.
Score: TypeAlias = Callable[[CellResult], float | None]


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    done: int  # cells that are settled: found in the store, computed, or failed
    total: int  # different cells
    reused: int  # found in the store
    failures: int
    seconds: float  # since the start
    eta_seconds: float | None  # None before the first cell is computed
    cell: Cell | None  # the cell that was just settled; None at the start
    best: tuple[float, Cell] | None = None  # the largest score so far; None if nothing is rated

    @property
    def facts(self) -> SweepFacts:
        """The part that a line of progress shows beside the count."""
        score, where = (None, "") if self.best is None else (self.best[0], self.best[1].short_label)
        return SweepFacts(self.failures, self.eta_seconds, score, where)


class SweepError(CondnumError, RuntimeError):
    """Every cell of a sweep failed; the message has the first error."""


@dataclass(frozen=True)
class SweepReport:
    """A sweep that went to its end."""

    results: dict[Cell, CellResult]  # of the finished cells, in the order of the cells
    failures: dict[Cell, CellError]  # of this run, in the order in which they failed
    reused: int  # cells found in the store
    seconds: float
    memory: PeakMemory  # of this process and the workers

    @property
    def computed(self) -> int:
        """Cells computed now, without those that failed."""
        return len(self.results) - self.reused

    @property
    def failure_rows(self) -> list[dict[str, str]]:
        """`cell` and `error` of each failure, for a table."""
        return [{"cell": cell.label, "error": str(error)} for cell, error in self.failures.items()]

    def check(self) -> None:
        """Refuse a sweep that has nothing to show."""
        if self.failures and not self.results:
            cell, error = next(iter(self.failures.items()))
            raise SweepError(
                f"no cell succeeded: {len(self.failures)} failed, the first one ({cell.label}) with {error}; "
                "change what it names and run again."
            )


class _Tally:
    """Counts the cells of a sweep and tells who wants to know."""

    def __init__(
        self, total: int, on_progress: Callable[[SweepProgress], None] | None, score: Score | None
    ) -> None:
        self.total, self.on_progress, self.score = total, on_progress, score
        self.reused = self.tried = 0
        self.failures: dict[Cell, CellError] = {}
        self.best: tuple[float, Cell] | None = None
        self.started = time.perf_counter()
        self.peaks: dict[tuple[str, int], ProcessPeak] = {}  # the newest is the largest

    def rate(self, cell: Cell, result: CellResult) -> None:
        """Keep the result if it is the best; one that cannot be rated is not."""
        try:
            score = None if self.score is None else self.score(result)
        except CondnumError:  # such as a θ of rank 0, which the tables deal with
            return
        if score is not None and not math.isnan(score) and (self.best is None or score > self.best[0]):
            self.best = (float(score), cell)

    def report(self, cell: Cell | None) -> None:
        """Send an event and call the callback."""
        done, seconds = self.reused + self.tried, time.perf_counter() - self.started
        eta = seconds / self.tried * (self.total - done) if self.tried else None
        progress = SweepProgress(
            done, self.total, self.reused, len(self.failures), seconds, eta, cell, self.best
        )
        # Method and seed as in the events of a cell's own steps, which this one ends.
        coordinates = {} if cell is None else {"stage": cell.at.get("method", cell.study)}
        if cell is not None and "seed" in cell.at:
            coordinates["seed"] = cell["seed"]
        report_event(**coordinates, done=done, total=self.total, **progress.facts.known())
        if self.on_progress is not None:
            self.on_progress(progress)


def run_sweep(
    cells: Iterable[Cell],
    compute: Compute,
    store: ResultStore,
    executor: Executor,
    *,
    on_progress: Callable[[SweepProgress], None] | None = None,
    score: Score | None = None,
) -> SweepReport:
    """Compute the cells that the store does not have yet, and keep each as it arrives.

    A sweep that is stopped, in any way, goes on from there when it is run again. A cell that occurs twice is
    computed once. One that comes `after` another waits until that is finished, and fails with it.

    Examples:
        >>> import tempfile
        >>> from condnum.studies.executors import SerialExecutor
        >>> cells = [Cell({"x": x}).named("inverse", "", "1") for x in (4, 0)]
        >>> inverse = lambda cell: {"y": 1 / cell["x"]}
        >>> with tempfile.TemporaryDirectory() as folder, ResultStore(folder) as store:
        ...     first = run_sweep(cells, inverse, store, SerialExecutor())
        ...     again = run_sweep(cells, inverse, store, SerialExecutor())
        >>> first.failure_rows, first.computed, (again.reused, again.computed)
        ([{'cell': 'inverse: x=0', 'error': 'ZeroDivisionError: division by zero'}], 1, (1, 0))
    """
    different = list(dict.fromkeys(cells))
    results: dict[Cell, CellResult] = {}
    tally = _Tally(len(different), on_progress, score)
    for cell in different:
        stored = store.get(cell.key)
        if stored is not None:
            results[cell] = stored
            tally.rate(cell, stored)
    tally.reused = len(results)
    tally.report(None)
    waiting = [cell for cell in different if cell not in results]
    while waiting:
        ready = {cell for cell in waiting if cell.after is None or cell.after in results}
        now = [cell for cell in waiting if cell in ready] or waiting
        waiting = [cell for cell in waiting if cell not in ready] if ready else []
        tried = executor.run(compute, now) if ready else _failed_with_their_start(now)
        # Closing stops the cells that are still running, if an error or an interruption ends the loop.
        with closing(_as_generator(tried)) as outcomes:
            for outcome in outcomes:
                cell = outcome.cell
                if outcome.memory is not None:
                    tally.peaks[outcome.memory.process] = outcome.memory
                if outcome.result is not None:
                    store.put(cell.key, *outcome.result)
                    results[cell] = outcome.result
                    tally.rate(cell, outcome.result)
                elif outcome.error is not None:
                    store.fail(cell.key, outcome.error.traceback)
                    tally.failures[cell] = outcome.error
                tally.tried += 1
                tally.report(cell)
    return SweepReport(
        results={cell: results[cell] for cell in different if cell in results},
        failures=tally.failures,
        reused=tally.reused,
        seconds=time.perf_counter() - tally.started,
        memory=PeakMemory.of([*tally.peaks.values(), own_peak()]),
    )


def _as_generator(outcomes: Iterable[Outcome]) -> Generator[Outcome]:
    """Return the outcomes as a generator, which can be closed whatever the executor returns."""
    yield from outcomes


def _failed_with_their_start(cells: Iterable[Cell]) -> Iterable[Outcome]:
    """Return the outcomes of cells whose start failed."""
    for cell in cells:
        start = "" if cell.after is None else cell.after.short_label
        yield Outcome.failed(cell, CondnumError(f"the cell that it starts from ({start}) failed"))
