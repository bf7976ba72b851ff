"""Progress of long work: events in a file, followed from another process, shown as tqdm writes it.

The command line runs a notebook in another process and cannot pass a callback into it; it names a file in
`CONDNUM_PROGRESS` instead, to which that process appends a line of JSON for each event. Without that
variable nothing is written.
"""

import io
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
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


class _Meter:
    """A tqdm bar that is moved by events; where it is not written to a terminal, `str` has its line."""

    def __init__(self, title: str, terminal: Any = None) -> None:
        graph = "" if terminal is None else "|{bar:30}| "
        self.bar = require("tqdm", "notebooks").tqdm(
            desc=title,
            file=io.StringIO() if terminal is None else terminal,
            leave=False,
            bar_format=f"{{desc}}: {graph}{{n_fmt}}/{{total_fmt}} [{{elapsed}}<{{remaining}}{{postfix}}]",
        )
        self.failures = 0

    def __call__(self, event: Event) -> None:
        """Move the bar to where the event says that the work is."""
        if "done" in event:
            if self.bar.total is None:
                self.bar.initial = event["done"]  # was found finished, and took no time
            self.bar.n, self.bar.total = event["done"], event["total"]
            self.failures = event.get("failures", 0)
        failed = f", {self.failures} failed" if self.failures else ""
        self.bar.set_postfix_str(stage_words(event) + failed)

    def __str__(self) -> str:
        return str(self.bar)


@contextmanager
def terminal_progress(title: str, *, stream: Any = None) -> Generator[OnProgress, None, None]:
    """Show progress on the standard error: a live bar in a terminal, elsewhere a line every 10 seconds."""
    target = stream or sys.stderr
    live = target.isatty()
    meter, written, unsaid = _Meter(title, target if live else None), time.monotonic(), False

    def report(event: Event) -> None:
        nonlocal written, unsaid
        if "note" in event:
            meter.bar.write(f"condnum: {event['note']}", file=target)
            return
        meter(event)
        unsaid = not live
        if unsaid and time.monotonic() - written >= LINE_SECONDS:
            written, unsaid = time.monotonic(), False
            print(meter, file=target, flush=True)

    try:
        yield report
    finally:
        if unsaid and meter.bar.n:
            print(meter, file=target, flush=True)
        meter.bar.close()


@contextmanager
def notebook_progress(title: str, also: OnProgress | None = None) -> Generator[None, None, None]:
    """Keep a line up to date while the block computes, in this process or in those that it starts.

    `also` receives each event too. Where someone follows this process already, such as the command line,
    that one shows the progress; without a notebook the standard error does.
    """
    if os.environ.get(PROGRESS_VARIABLE):
        yield
        return
    in_notebook = require("IPython", "notebooks").get_ipython() is not None
    with (
        tempfile.TemporaryDirectory(prefix="condnum-progress-") as folder,
        nullcontext(notebook_line(title)) if in_notebook else terminal_progress(title) as shown,
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


def notebook_line(title: str) -> OnProgress:
    """Return what keeps a line of a notebook up to date, a few times a second."""
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown(f"{title} …"), display_id=True)
    meter, written = _Meter(title), 0.0

    def report(event: Event) -> None:
        nonlocal written
        meter(event)
        if handle is not None and ("done" in event or time.monotonic() - written >= POLL_SECONDS):
            written = time.monotonic()
            handle.update(display.Markdown(str(meter)))

    return report


def sweep_line(*, quiet: bool = False) -> OnProgress | None:
    """Return a callback for a sweep's `on_progress` that keeps one line of a notebook up to date."""
    return None if quiet else notebook_line("cells")
