"""Progress in the terminal: a live bar, or sparse lines where there is none."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from condnum.report.progress import OnProgress, ProgressEvent, Tally, describe_event

#: Seconds between two lines in a log file.
LINE_SECONDS = 5.0


@contextmanager
def terminal_progress(title: str, *, stream: Any = None) -> Generator[OnProgress, None, None]:
    """Show progress on the standard error: a live bar in a terminal, sparse lines elsewhere."""
    target = stream or sys.stderr
    if target.isatty():
        with _live_bar(title, target) as report:
            yield report
    else:
        lines = Lines(title, target)
        try:
            yield lines
        finally:
            lines.finish()


class Lines:
    """A line when pieces are finished, but not more often than one reads a log.

    The last piece and each new failure have a line at once.
    """

    def __init__(self, title: str, stream: Any, seconds: float = LINE_SECONDS) -> None:
        self.title, self.stream, self.seconds = title, stream, seconds
        self.tally = Tally()
        self._done: int | None = None
        self._pending: ProgressEvent | None = None
        self._failures, self._written = 0, -math.inf

    def __call__(self, event: ProgressEvent) -> None:
        """Take an event and write a line if one is due."""
        self.tally.add(event)
        tally, now = self.tally, time.monotonic()
        if event.done is None or event.done == self._done:
            return
        urgent = tally.done == tally.total or tally.facts.failures > self._failures
        self._pending = event
        if urgent or now - self._written >= self.seconds:
            self._written = now
            self.finish()

    def finish(self) -> None:
        """Write the line that was not due yet, if there is one."""
        event, tally = self._pending, self.tally
        if event is None:
            return
        self._pending, self._done, self._failures = None, event.done, tally.facts.failures
        count = f"{tally.done}" + (f"/{tally.total}" if tally.total else "")
        text = f"{self.title}: {count} done ({describe_event(event)})"
        print(", ".join(filter(None, (text, str(tally.facts)))), file=self.stream, flush=True)


@contextmanager
def _live_bar(title: str, stream: Any) -> Generator[OnProgress, None, None]:
    """Show a bar with finished pieces, the time gone and what is running; below it the facts."""
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    tally = Tally()

    class BarWithFacts(Progress):
        """The bar, and a line below it."""

        def get_renderables(self) -> Iterable[RenderableType]:
            """Return both."""
            yield self.make_tasks_table(self.tasks)
            yield Text(str(tally.facts), overflow="ellipsis", no_wrap=True)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with BarWithFacts(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task(title, total=None, detail="starting the kernel")

        def report(event: ProgressEvent) -> None:
            tally.add(event)
            progress.update(task, total=tally.total, completed=tally.completed, detail=describe_event(event))

        yield report
