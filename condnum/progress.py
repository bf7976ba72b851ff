"""Progress events of long work: one line of JSON each, appended to a file that somebody follows.

The command line runs a notebook in another process and cannot pass a callback into it; it names a
file in `CONDNUM_PROGRESS` instead (`condnum.progress` follows it). Without that variable
nothing is written.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from condnum.errors import require

#: Names the file, in the environment of the process that computes.
PROGRESS_VARIABLE = "CONDNUM_PROGRESS"


@dataclass(frozen=True)
class SweepFacts:
    """What a line of progress shows of a sweep, beside how many cells are done.

    Examples:
        >>> print(SweepFacts(failures=2, eta_seconds=75.0, best=131.5, best_cell="ours, 4-7, seed 0"))
        2 failed, about 1 min 15 s left, best RIR 131.5 (ours, 4-7, seed 0)
    """

    failures: int = 0  # cells that failed
    eta_seconds: float | None = None  # None while it is not known
    best: float | None = None  # largest RIR so far; None if there is none
    best_cell: str = ""  # where: method, pair, seed

    def known(self) -> dict[str, Any]:
        """Return the facts that are known, for an event."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    def __str__(self) -> str:
        words = [f"{self.failures} failed"] if self.failures else []
        if self.eta_seconds:
            words.append(f"about {duration(self.eta_seconds)} left")
        if self.best is not None:
            words.append(f"best RIR {self.best:.4g}" + (f" ({self.best_cell})" if self.best_cell else ""))
        return ", ".join(words)


def duration(seconds: float) -> str:
    """Return a time in words, as precise as one reads it.

    Examples:
        >>> [duration(seconds) for seconds in (0.4, 59.7, 75, 8100)]
        ['1 s', '1 min', '1 min 15 s', '2 h 15 min']
    """
    whole = max(1, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    units = ((hours, "h"), (minutes, "min"), (0 if hours else rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in units if count)


def report_event(**event: object) -> None:
    """Append one event; a short line appears whole, whoever else appends.

    Progress is never a reason to fail: an event that cannot be written is lost.
    """
    path = os.environ.get(PROGRESS_VARIABLE)
    if path:
        with suppress(OSError), open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    done: int  # cells that are settled: found in the store, computed, or failed
    total: int  # different cells
    reused: int  # found in the store
    failures: int
    seconds: float  # since the start
    eta_seconds: float | None  # None before the first cell is computed
    cell: Any  # the `Cell` that was just settled; None at the start
    best: tuple[float, Any] | None = None  # the largest score so far; None if nothing is rated

    @property
    def facts(self) -> SweepFacts:
        """The part that a line of progress shows beside the count."""
        score, where = (None, "") if self.best is None else (self.best[0], self.best[1].short_label)
        return SweepFacts(self.failures, self.eta_seconds, score, where)


# Progress of a notebook, from its kernel to the terminal, and as one line inside the notebook.


#: Seconds between two looks at the file: quick to the eye, nothing to the processor.
POLL_SECONDS = 0.2
#: Seconds between two lines in a log file.
LINE_SECONDS = 5.0

#: What `report_event` was given: stage, seed, step, steps, done, total, and the fields of `SweepFacts`.
Event = Mapping[str, Any]
OnProgress = Callable[[Event], None]


@contextmanager
def following(path: Path, report: OnProgress) -> Generator[None, None, None]:
    """Follow a growing file of events in a thread while the block runs."""
    stop = threading.Event()

    def follow() -> None:
        """Report whole lines until told to stop, then once more."""
        offset, last_round = 0, False
        while not last_round:
            last_round = stop.wait(POLL_SECONDS)
            if not path.exists():
                continue
            with path.open("rb") as stream:
                stream.seek(offset)
                text = stream.read()
            whole = text[: text.rfind(b"\n") + 1]  # a line still being written waits for its end
            offset += len(whole)
            for line in whole.splitlines():
                try:
                    event = json.loads(line)
                except ValueError:  # progress is never a reason to fail
                    continue
                if isinstance(event, dict):
                    report(event)

    thread = threading.Thread(target=follow, name="condnum-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


def event_words(event: Event) -> str:
    """Return what is being computed.

    Examples:
        >>> event_words({"stage": "ours", "seed": 0, "step": 120, "steps": 3000})
        'ours, seed 0, step 120 of 3000'
    """
    words = [str(event.get("stage") or "running")]
    if "seed" in event:
        words.append(f"seed {event['seed']}")
    if "step" in event:
        words.append(f"step {event['step']}" + (f" of {event['steps']}" if event.get("steps") else ""))
    return ", ".join(words)


def facts_of(event: Event) -> SweepFacts:
    """Return what an event knows of the whole computation.

    Examples:
        >>> print(facts_of({"stage": "ours", "failures": 1, "eta_seconds": 75.0}))
        1 failed, about 1 min 15 s left
    """
    names = {field.name for field in fields(SweepFacts)}
    return SweepFacts(**{name: value for name, value in event.items() if name in names})


@contextmanager
def terminal_progress(title: str, *, stream: Any = None) -> Generator[OnProgress, None, None]:
    """Show progress on the standard error: a live bar in a terminal, sparse lines elsewhere."""
    target = stream or sys.stderr
    if not target.isatty():
        lines = Lines(title, target)
        try:
            yield lines
        finally:
            lines.finish()
        return
    form = "{desc} |{bar:30}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
    tqdm = require("tqdm", "notebooks").tqdm
    with tqdm(desc=title, file=target, leave=False, bar_format=form, mininterval=0, miniters=0) as bar:
        facts = ""

        def report(event: Event) -> None:
            """Move the bar; facts come with finished pieces and stay until the next."""
            nonlocal facts
            bar.total = event.get("total") or bar.total
            facts = str(facts_of(event)) if "done" in event else facts
            bar.set_postfix_str(", ".join(filter(None, (event_words(event), facts))), refresh=False)
            bar.n = event.get("done", bar.n)
            bar.refresh()

        yield report


class Lines:
    """A line when pieces are finished, but not more often than one reads a log.

    The last piece and each new failure have a line at once.
    """

    def __init__(self, title: str, stream: Any, seconds: float = LINE_SECONDS) -> None:
        self.title, self.stream, self.seconds = title, stream, seconds
        self._pending: Event | None = None
        self._done, self._failures, self._written = -1, 0, -math.inf

    def __call__(self, event: Event) -> None:
        """Take an event and write a line if one is due."""
        if event.get("done") in (None, self._done):
            return
        self._pending = event
        urgent = event["done"] == event.get("total") or event.get("failures", 0) > self._failures
        if urgent or time.monotonic() - self._written >= self.seconds:
            self._written = time.monotonic()
            self.finish()

    def finish(self) -> None:
        """Write the line that was not due yet, if there is one."""
        event, self._pending = self._pending, None
        if event is None:
            return
        self._done, self._failures = event["done"], event.get("failures", 0)
        count = f"{event['done']}" + (f"/{event['total']}" if event.get("total") else "")
        text = f"{self.title}: {count} done ({event_words(event)})"
        print(", ".join(filter(None, (text, str(facts_of(event))))), file=self.stream, flush=True)


def sweep_line(*, quiet: bool = False) -> Callable[[SweepProgress], None] | None:
    """Return a callback for a sweep's `on_progress` that keeps one line of a notebook up to date."""
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
        >>> sweep_words(SweepProgress(3, 9, reused=0, failures=1, seconds=9.0, eta_seconds=18.0, cell=None))
        '3 of 9 cells, 1 failed, about 18 s left'
    """
    return ", ".join(filter(None, (f"{progress.done} of {progress.total} cells", str(progress.facts))))
