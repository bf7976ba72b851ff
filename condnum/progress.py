"""Progress of long work: events in a file, followed from another process, shown as tqdm writes it.

The command line runs a notebook in another process and cannot pass a callback into it; it names a file in
`CONDNUM_PROGRESS` instead, to which that process appends a line of JSON for each event. Without that
variable nothing is written.
"""

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from condnum.errors import require

#: Names the file, in the environment of the process that computes.
PROGRESS_VARIABLE = "CONDNUM_PROGRESS"
#: Seconds between two looks at the file: quick to the eye, nothing to the processor.
POLL_SECONDS = 0.2
#: Seconds between two lines in a log file.
LINE_SECONDS = 10.0

#: stage, seed, step, steps: what is being computed. done, total, failures: how far the whole of it is. note:
#: a line to be shown. Each of them may be missing. A sweep tells its callback the `cell` that was just
#: settled as well, None at first.
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
    """Return what is being computed."""
    words = [str(event.get("stage") or "running")]
    if "seed" in event:
        words.append(f"seed {event['seed']}")
    if "step" in event:
        words.append(f"step {event['step']}" + (f" of {event['steps']}" if event.get("steps") else ""))
    return ", ".join(words)


def report_event(**event: object) -> None:
    """Append one event; a short line appears whole, even if other processes append.

    Progress is never a reason to fail: an event that cannot be written is lost.
    """
    path = os.environ.get(PROGRESS_VARIABLE)
    if path:
        with suppress(OSError), open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


@contextmanager
def following(path: Path, report: OnProgress) -> Generator[None, None, None]:
    """Follow a growing file of events in a thread while the block runs."""
    path.touch()
    stop = threading.Event()

    def follow() -> None:
        last_round, rest = False, b""
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
                        report(event)

    thread = threading.Thread(target=follow, name="condnum-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


class Meter:
    """A tqdm bar that is moved by events: live in a terminal or notebook, else a line every 10 seconds."""

    def __init__(self, title: str, stream: Any = None, *, live: bool | None = None) -> None:
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty() if live is None else live
        graph = "|{bar:30}| " if self.live else ""
        self.bar = require("tqdm", "notebooks").tqdm(
            desc=title,
            file=self.stream if self.live else io.StringIO(),
            leave=False,
        )
        self.format = f"{{desc}}: {graph}{{n_fmt}}/{{total_fmt}} [{{elapsed}}%s{{postfix}}]"
        self.failures, self.unsaid = 0, False
        self.written = self.began = self.moved = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Move the bar to where the event says that the work is."""
        if "note" in event:
            self.bar.write(f"condnum: {event['note']}", file=self.stream)
            return
        if "done" in event:
            if event["done"] != self.bar.n:
                self.moved = time.monotonic()
            if self.bar.total is None:  # was found finished, and took no time
                self.bar.initial, self.began = event["done"], time.monotonic()
            self.bar.n, self.bar.total = event["done"], event["total"]
            self.failures = event.get("failures", 0)
        failed = f", {self.failures} failed" if self.failures else ""
        self.bar.bar_format = self.format % self._left()
        self.bar.set_postfix_str(stage_words(event) + failed)
        self.unsaid = not self.live
        if self.unsaid and time.monotonic() - self.written >= LINE_SECONDS:
            self._print()

    def _left(self) -> str:
        """Return the time left at the pace so far, "?" where the present piece has taken longer than that."""
        new, more = self.bar.n - self.bar.initial, (self.bar.total or self.bar.n + 1) - self.bar.n
        if not more:
            return ""
        seconds = more * (self.moved - self.began) / new - time.monotonic() + self.moved if new else 0
        return f"<{self.bar.format_interval(seconds) if seconds > 0 else '?'}"

    def _print(self) -> None:
        self.written, self.unsaid = time.monotonic(), False
        print(self.bar, file=self.stream, flush=True)

    def close(self) -> None:
        """End the bar; a log has its last line."""
        if self.unsaid and self.bar.n:
            self._print()
        self.bar.close()


@contextmanager
def terminal_progress(title: str, *, stream: Any = None) -> Generator[OnProgress, None, None]:
    """Show progress on the standard error while the block runs."""
    with closing(Meter(title, stream)) as meter:
        yield meter


def of_steps(report: OnProgress) -> Callable[[Any], None]:
    """Return a callback for `immunize` that passes its steps on."""
    return lambda at: report({"stage": at.method, "seed": at.seed, "done": at.step, "total": at.steps})


def step_line() -> Callable[[Any], None]:
    """Return a callback for `immunize` that shows the steps taken and the time left on the standard error."""
    return of_steps(Meter("steps"))


def sweep_line(*, quiet: bool = False) -> OnProgress | None:
    """Return a callback for a sweep's `on_progress` that keeps one line of a notebook until it ends."""
    if quiet:
        return None
    meter = Meter("cells", sys.stdout, live=True)

    def report(event: Event) -> None:
        meter(event)
        if meter.bar.n == meter.bar.total:
            meter.close()

    return report
