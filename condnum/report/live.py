"""One line of progress in a notebook that updates in place and stays as a record of the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from condnum.extras import require
from condnum.sweep import SweepProgress


def sweep_line(*, quiet: bool = False) -> Callable[[SweepProgress], None] | None:
    """Return a callback for a sweep's `on_progress` that keeps one line up to date.

    Args:
        quiet: Return None instead, which shows nothing.

    Returns:
        A callback that shows cells done, failures and the time left.

    Raises:
        MissingExtraError: IPython is missing.
    """
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tick(progress: SweepProgress) -> None:
        """Show how far the sweep is."""
        left = "" if progress.eta_seconds is None else f", about {progress.eta_seconds:,.0f} s left"
        failed = f", {progress.failures} failed" if progress.failures else ""
        if handle is not None:
            handle.update(display.Markdown(f"{progress.done} of {progress.total} cells{failed}{left}"))

    return tick


def progress_line(*, quiet: bool = False) -> Callable[[Any, int, int], None] | None:
    """Return a callback for `run(..., on_cell=…)` that keeps one line up to date.

    Args:
        quiet: Return None instead, which shows nothing.

    Returns:
        A callback that takes a finished cell, how many are done, and how many there are.

    Raises:
        MissingExtraError: IPython is missing.
    """
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tick(cell: Any, done: int, total: int) -> None:
        """Show the last finished cell."""
        text = f"{done} of {total} extractors: {cell.method}, seed {cell.seed}, {cell.seconds:.1f} s"
        if handle is not None:
            handle.update(display.Markdown(text))

    return tick
