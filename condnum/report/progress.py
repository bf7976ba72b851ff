"""Progress of a notebook, from the kernel to this process.

An experiment inside the kernel appends one line of JSON for each event to the file that the
environment variable `CONDNUM_PROGRESS` names; a thread here follows that file.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condnum.progress import SweepFacts

#: Seconds between two looks at the file: quick to the eye, nothing to the processor.
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ProgressEvent:
    """One step of a long computation; a field that an event does not know is empty or None."""

    stage: str = ""  # what is computed, such as a method's name
    seed: int | None = None
    step: int | None = None  # within this piece
    steps: int | None = None
    done: int | None = None  # finished pieces
    total: int | None = None
    facts: SweepFacts | None = None  # of the whole computation, with a finished piece


OnProgress = Callable[[ProgressEvent], None]


def parse_event(line: str | bytes) -> ProgressEvent | None:
    """Read one line; None when it is not an event (progress is never a reason to fail).

    Examples:
        >>> parse_event('{"stage": "ours", "seed": 0, "done": 3, "total": 35}')
        ProgressEvent(stage='ours', seed=0, step=None, steps=None, done=3, total=35, facts=None)
        >>> parse_event('{"stage": "ou')
    """
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    numbers = {
        name: int(value[name])
        for name in ("seed", "step", "steps", "done", "total")
        if isinstance(value.get(name), int | float)
    }
    return ProgressEvent(stage=str(value.get("stage") or ""), **numbers, facts=_facts(value))


def _facts(value: dict[str, Any]) -> SweepFacts | None:
    """Return the facts of a sweep, for an event that has any."""
    known: dict[str, Any] = {
        name: value[name]
        for name in ("failures", "eta_seconds", "best")
        if isinstance(value.get(name), int | float)
    }
    return SweepFacts(**known, best_cell=str(value.get("best_cell") or "")) if known else None


@contextmanager
def following(path: Path, report: OnProgress) -> Generator[None, None, None]:
    """Follow a growing file of events in a thread while the block runs."""
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(path, report, stop), name="condnum-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


def _follow(path: Path, report: OnProgress, stop: threading.Event) -> None:
    """Report whole lines until told to stop, then once more."""
    offset, last_round = 0, False
    while True:
        last_round = stop.wait(POLL_SECONDS)
        if path.exists():
            with path.open("rb") as stream:
                stream.seek(offset)
                text = stream.read()
            whole = text[: text.rfind(b"\n") + 1]  # a line still being written waits for its end
            offset += len(whole)
            for line in whole.splitlines():
                event = parse_event(line)
                if event is not None:
                    report(event)
        if last_round:
            return


class Tally:
    """How far a computation is, from events that each know only a part of it.

    Pieces may run side by side: each running piece counts with the fraction of its steps.

    Examples:
        >>> tally = Tally()
        >>> for event in (
        ...     ProgressEvent("ours", seed=0, done=1, total=4),
        ...     ProgressEvent("ours", seed=1, step=1, steps=2),
        ...     ProgressEvent("ours", seed=2, step=1, steps=4),
        ... ):
        ...     tally.add(event)
        >>> tally.completed, tally.total
        (1.75, 4)
    """

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None
        self.facts = SweepFacts()
        self._running: dict[tuple[str, int | None], float] = {}

    def add(self, event: ProgressEvent) -> None:
        """Take one event into account."""
        piece = (event.stage, event.seed)
        if event.step is not None and event.steps:
            self._running[piece] = min(1.0, event.step / event.steps)
        if event.done is not None:
            self.done = event.done
            if event.step is None:  # this piece is the one that is done
                self._running.pop(piece, None)
        self.total = event.total or self.total
        self.facts = event.facts or self.facts

    @property
    def completed(self) -> float:
        """Finished pieces and the fractions of the running ones."""
        return self.done + sum(self._running.values())


def describe_event(event: ProgressEvent) -> str:
    """Return an event as a few words.

    Examples:
        >>> describe_event(ProgressEvent("ours", seed=0, step=120, steps=3000))
        'ours, seed 0, step 120 of 3000'
    """
    words = [event.stage or "running"]
    if event.seed is not None:
        words.append(f"seed {event.seed}")
    if event.step is not None:
        words.append(f"step {event.step}" + (f" of {event.steps}" if event.steps else ""))
    return ", ".join(words)


# Progress in the terminal: a live bar, or sparse lines where there is none.


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
