"""One line of progress in a notebook that updates in place and stays as a record of the work."""

from __future__ import annotations

from collections.abc import Callable

from condnum.extras import require
from condnum.sweep import SweepProgress


def sweep_line(*, quiet: bool = False) -> Callable[[SweepProgress], None] | None:
    """Return a callback for a sweep's `on_progress` that keeps one line up to date."""
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tick(progress: SweepProgress) -> None:
        """Show how far the sweep is."""
        if handle is not None:
            handle.update(display.Markdown(sweep_words(progress)))

    return tick


def sweep_words(progress: SweepProgress) -> str:
    """Return how far a sweep is, in one line.

    Examples:
        >>> sweep_words(SweepProgress(3, 9, reused=0, failures=1, seconds=9.0, eta_seconds=18.0, plan=None))
        '3 of 9 cells, 1 failed, about 18 s left'
    """
    return ", ".join(filter(None, (f"{progress.done} of {progress.total} cells", str(progress.facts))))
