"""A sweep: cells that the store does not have are computed, each after its start, and kept one by one."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from condnum.errors import CondnumError
from condnum.progress import OnProgress, report_event
from condnum.studies.frame.cells import Cell, CellResult, Compute, Outcome, ResultStore
from condnum.studies.frame.executors import Executor


class SweepError(CondnumError, RuntimeError):
    """Every cell of a sweep failed; the message has the first error."""


@dataclass(frozen=True)
class SweepReport:
    """A sweep that went to its end."""

    results: dict[Cell, CellResult]  # of the finished cells, in the order of the cells
    failures: dict[Cell, str]  # errors of this run, in the order in which they came
    reused: int  # cells found in the store
    outdated: int  # cells found there, but of other code, and computed again
    revisions: Counter[str]  # of the source that computed the cells
    seconds: float

    @property
    def computed(self) -> int:
        """Cells computed now, without those that failed."""
        return len(self.results) - self.reused


def run_sweep(
    cells: Iterable[Cell],
    compute: Compute,
    store: ResultStore,
    executor: Executor,
    *,
    revision: str = "",
    on_progress: OnProgress | None = None,
) -> SweepReport:
    """Compute the cells that the store lacks, each `after` the one it needs, and keep each as it arrives."""
    started, different = time.perf_counter(), list(dict.fromkeys(cells))
    revisions = Counter[str]()
    results: dict[Cell, CellResult] = {}
    failures: dict[Cell, str] = {}

    def report(cell: Cell | None) -> None:
        """Send an event and call the callback."""
        done = len(results) + len(failures)
        event: dict[str, Any] = {"done": done, "total": len(different), "failures": len(failures)}
        # Method and seed as in the events of a cell's own steps, which this one ends.
        if cell is not None:
            event["stage"] = cell.name
            event |= {"seed": cell["seed"]} if "seed" in cell.at else {}
        report_event(**event)
        if on_progress is not None:
            on_progress({**event, "cell": cell})

    for cell in different:
        if (stored := store.get(cell.key)) is not None:
            results[cell] = stored
            revisions[store.revision(cell.key)] += 1
    reused = len(results)
    if outdated := store.outdated(different):
        note = f"{outdated} finished cells in {store.folder} are of other code and are computed again"
        warnings.warn(note, stacklevel=2)
        report_event(note=note)
    report(None)
    waiting = [cell for cell in different if cell not in results]
    while waiting:
        ready = [cell for cell in waiting if cell.after is None or cell.after in results]
        outcomes = executor.run(compute, ready) if ready else _without_start(waiting)
        # Closing stops the cells that are still running, if an error or an interruption ends the loop.
        with closing(outcomes):
            for outcome in outcomes:
                cell = outcome.cell
                if outcome.result is not None:
                    store.put(cell.key, *outcome.result, revision)
                    results[cell] = outcome.result
                    revisions[revision] += 1
                else:
                    store.fail(cell.key, outcome.traceback)
                    failures[cell] = outcome.error
                report(cell)
        tried = set(ready or waiting)
        waiting = [cell for cell in waiting if cell not in tried]
    found = {cell: results[cell] for cell in different if cell in results}
    return SweepReport(found, failures, reused, outdated, revisions, time.perf_counter() - started)


def _without_start(cells: Iterable[Cell]) -> Generator[Outcome]:
    """Yield the outcomes of cells whose start failed."""
    for cell in cells:
        start = "" if cell.after is None else cell.after.short_label
        yield Outcome.failed(cell, CondnumError(f"the cell from which it starts ({start}) failed"))
