"""A sweep: cells that the store does not have are computed, each after its start, and kept one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from condnum.errors import CondnumError
from condnum.progress import OnProgress, report_event
from condnum.studies.frame.cells import Cell, CellResult, Compute, Outcome, ResultStore
from condnum.studies.frame.executors import Executor


def sweep(
    cells: Iterable[Cell],
    compute: Compute,
    store: ResultStore,
    executor: Executor,
    *,
    kept: Callable[[Cell], bool] = lambda cell: True,
    on_progress: OnProgress | None = None,
) -> tuple[dict[Cell, CellResult], dict[Cell, str], int]:
    """Return results and errors by cell, and how many results were there before.

    A finished cell counts only if it is `kept` whole.
    """
    different = list(dict.fromkeys(cells))
    found = {cell: store.get(cell.key) for cell in different if kept(cell)}
    results = {cell: result for cell, result in found.items() if result is not None}
    reused, errors = len(results), dict[Cell, str]()

    def report(cell: Cell | None) -> None:
        """Send an event and call the callback."""
        done = len(results) + len(errors)
        event: dict[str, Any] = {"done": done, "total": len(different), "failures": len(errors)}
        if cell is not None:  # method and seed as in the events of its own steps, which this one ends
            event |= {"stage": cell.name} | {name: cell[name] for name in ("seed",) if name in cell.at}
        report_event(**event)
        if on_progress is not None:
            on_progress({**event, "cell": cell})

    report(None)
    waiting = [cell for cell in different if cell not in results]
    while waiting:
        ready = [cell for cell in waiting if cell.after is None or cell.after in results]
        for cell in waiting if not ready else ():
            start = "" if cell.after is None else cell.after.name
            failed = Outcome.failed(cell, CondnumError(f"the cell from which it starts ({start}) failed"))
            store.fail(cell.key, failed.traceback)
            errors[cell] = failed.error
            report(cell)
        # Closing stops the cells that are still running, if an error or an interruption ends the loop.
        with closing(executor.run(compute, ready)) as outcomes:
            for outcome in outcomes:
                cell = outcome.cell
                if outcome.result is not None:
                    store.put(cell.key, *outcome.result)
                    results[cell] = outcome.result
                else:
                    store.fail(cell.key, outcome.traceback)
                    errors[cell] = outcome.error
                report(cell)
        waiting = [cell for cell in waiting if cell not in results and cell not in errors]
    return results, errors, reused
