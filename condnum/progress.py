"""Progress of long work: events in a file, followed from another process, as a bar, as lines, in a notebook.

The command line runs a notebook in another process and cannot pass a callback into it; it names a file in
`CONDNUM_PROGRESS` instead, to which that process appends a line of JSON for each event. Without that
variable nothing is written.
"""

import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condnum.errors import require

#: Names the file, in the environment of the process that computes.
PROGRESS_VARIABLE = "CONDNUM_PROGRESS"
#: Seconds between two looks at the file: quick to the eye, nothing to the processor.
POLL_SECONDS = 0.2
#: Seconds between two lines in a log file, when pieces are finished and while one is computed.
LINE_SECONDS, STEP_SECONDS = 5.0, 30.0

#: stage, seed, step, steps: what is being computed; followers add seconds_left, of its steps. done, total,
#: failures, eta_seconds: how far the whole of it is. Each of them may be missing.
Event = Mapping[str, Any]
OnProgress = Callable[[Event], None]


def duration(seconds: float) -> str:
    """Return a time in words, as precise as one reads it.

    Examples:
        >>> [duration(seconds) for seconds in (0.4, 59.7, 75, 8100)]
        ['1 s', '1 min', '1 min 15 s', '2 h 15 min']
    """
    minutes, rest = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    units = ((hours, "h"), (minutes, "min"), (0 if hours else rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in units if count)


def stage_words(event: Event) -> str:
    """Return what is being computed.

    Examples:
        >>> stage_words({"stage": "ours", "seed": 0, "step": 120, "steps": 3000})
        'ours, seed 0, step 120 of 3000'
        >>> stage_words({"stage": "ours", "step": 120, "steps": 3000, "seconds_left": 75.0})
        'ours, step 120 of 3000 (about 1 min 15 s left)'
    """
    words = [str(event.get("stage") or "running")]
    if "seed" in event:
        words.append(f"seed {event['seed']}")
    if "step" in event:
        words.append(f"step {event['step']}" + (f" of {event['steps']}" if event.get("steps") else ""))
        if event.get("seconds_left"):
            words[-1] += f" (about {duration(event['seconds_left'])} left)"
    return ", ".join(words)


def whole_words(event: Event) -> str:
    """Return what an event knows of the whole computation, beside how much is done.

    Examples:
        >>> whole_words({"failures": 2, "eta_seconds": 75.0})
        '2 failed, about 1 min 15 s left'
    """
    words = [f"{event['failures']} failed"] if event.get("failures") else []
    if event.get("eta_seconds"):
        words.append(f"about {duration(event['eta_seconds'])} left")
    return ", ".join(words)


def report_event(**event: object) -> None:
    """Append one event; a short line appears whole, whoever else appends.

    Progress is never a reason to fail: an event that cannot be written is lost.
    """
    path = os.environ.get(PROGRESS_VARIABLE)
    if path:
        with suppress(OSError), open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


class Pace:
    """Tells events of steps how long what they are of has still to go, by its speed since its first event."""

    def __init__(self) -> None:
        self._starts = dict[tuple[Any, ...], tuple[float, int]]()

    def __call__(self, event: Event) -> Event:
        """Return the event, with `seconds_left` where that is known."""
        step, steps = event.get("step"), event.get("steps")
        if not step or not steps:
            return event
        now, key = time.monotonic(), (event.get("stage"), event.get("seed"), steps)
        start, first = self._starts.get(key, (now, step))
        if step <= first:  # it begins, or begins anew
            self._starts[key] = now, step
            return event
        return {**event, "seconds_left": (now - start) / (step - first) * (steps - step)}


@contextmanager
def following(path: Path, report: OnProgress) -> Generator[None, None, None]:
    """Follow a growing file of events in a thread while the block runs."""
    path.touch()
    stop = threading.Event()

    def follow() -> None:
        last_round, rest, paced = False, b"", Pace()
        with path.open("rb") as stream:
            while not last_round:  # once more after being told to stop
                last_round = stop.wait(POLL_SECONDS)
                *lines, rest = (rest + stream.read()).split(b"\n")  # a line still being written waits
                for line in lines:
                    try:
                        event = json.loads(line)
                    except ValueError:  # progress is never a reason to fail
                        continue
                    if isinstance(event, dict):
                        report(paced(event))

    thread = threading.Thread(target=follow, name="condnum-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


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
        whole = ""

        def report(event: Event) -> None:
            nonlocal whole
            bar.total, bar.n = event.get("total") or bar.total, event.get("done", bar.n)
            whole = whole_words(event) if "done" in event else whole  # stays until the next piece is finished
            bar.set_postfix_str(", ".join(filter(None, (stage_words(event), whole))))

        yield report


@contextmanager
def notebook_progress(title: str, also: OnProgress | None = None) -> Generator[None, None, None]:
    """Keep a line up to date while the block computes, in this process or in those that it starts.

    `also` is told of each event too. Where someone follows this process already, such as the command line,
    that one shows the progress; without a notebook the standard error does.
    """
    if os.environ.get(PROGRESS_VARIABLE):
        yield
        return
    in_notebook = require("IPython", "notebooks").get_ipython() is not None
    with (
        tempfile.TemporaryDirectory(prefix="condnum-progress-") as folder,
        nullcontext(_line(title)) if in_notebook else terminal_progress(title) as shown,
    ):

        def report(event: Event) -> None:
            shown(event)
            if also is not None:
                also(event)

        os.environ[PROGRESS_VARIABLE] = str(Path(folder) / "events")
        try:
            with following(Path(folder) / "events", report):
                yield
        finally:
            del os.environ[PROGRESS_VARIABLE]


def _line(title: str) -> OnProgress:
    """Return what keeps a line of a notebook up to date, a few times a second."""
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown(f"{title} …"), display_id=True)
    whole, written = "", -math.inf

    def report(event: Event) -> None:
        nonlocal whole, written
        if "done" in event:
            whole = ", ".join(filter(None, (f"{event['done']} of {event['total']}", whole_words(event))))
            written = -math.inf
        if handle is not None and time.monotonic() - written >= POLL_SECONDS:
            written = time.monotonic()
            now = f" ({stage_words(event)})" if "stage" in event else ""
            handle.update(display.Markdown(f"{title}: {whole}{now}"))

    return report


class Lines:
    """A line when pieces are finished, but not more often than one reads a log, and for steps of long ones.

    The last piece and each new failure have a line at once.
    """

    def __init__(self, title: str, stream: Any) -> None:
        self.title, self.stream = title, stream
        self.latest: Event = {}
        self.shown: Event = self.latest
        self.written, self.began = -math.inf, time.monotonic()

    def __call__(self, event: Event) -> None:
        """Take an event and write a line if one is due."""
        if event.get("done") in (None, self.latest.get("done")):
            if "step" in event and time.monotonic() - max(self.written, self.began) >= STEP_SECONDS:
                self.latest = {**self.latest, **event}
                self.finish()
            return
        self.latest = event
        failed = event.get("failures", 0) > self.shown.get("failures", 0)
        due = time.monotonic() - self.written >= LINE_SECONDS
        if due or failed or event["done"] == event.get("total"):
            self.finish()

    def finish(self) -> None:
        """Write the line that was not due yet, if there is one."""
        event = self.latest
        if event is self.shown:
            return
        self.shown, self.written = event, time.monotonic()
        count = f"{event.get('done', 0)}" + (f"/{event['total']}" if event.get("total") else "")
        text = f"{self.title}: {count} done ({stage_words(event)})"
        print(", ".join(filter(None, (text, whole_words(event)))), file=self.stream, flush=True)


# Progress of a sweep, as a study reports it, and as one line inside a notebook.


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

    @property
    def event(self) -> dict[str, Any]:
        """What is known of the whole sweep, for an event."""
        event: dict[str, Any] = {"done": self.done, "total": self.total, "failures": self.failures}
        if self.eta_seconds is not None:
            event["eta_seconds"] = self.eta_seconds
        return event


def sweep_line(*, quiet: bool = False) -> Callable[[SweepProgress], None] | None:
    """Return a callback for a sweep's `on_progress` that keeps one line of a notebook up to date."""
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tick(progress: SweepProgress) -> None:
        if handle is not None:
            cells = f"{progress.done} of {progress.total} cells"
            handle.update(display.Markdown(", ".join(filter(None, (cells, whole_words(progress.event))))))

    return tick
