"""Progress of a notebook, from its kernel to the terminal, and as one line inside the notebook.

An experiment in the kernel appends one line of JSON for each event (`condnum.progress.report_event`); a
thread here follows that file and shows tqdm's bar, or sparse lines where nobody watches.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condnum.errors import require
from condnum.progress import SweepFacts

if TYPE_CHECKING:
    from condnum.studies.sweep import SweepProgress

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
        >>> from condnum.studies.sweep import SweepProgress
        >>> sweep_words(SweepProgress(3, 9, reused=0, failures=1, seconds=9.0, eta_seconds=18.0, cell=None))
        '3 of 9 cells, 1 failed, about 18 s left'
    """
    return ", ".join(filter(None, (f"{progress.done} of {progress.total} cells", str(progress.facts))))
