"""Progress of long work: one tqdm line, which says what this process and those that it starts are doing.

What computes appends events to the file that `CONDNUM_PROGRESS` names; without it nothing is written.
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from condnum.errors import require

#: Names the file, in the environment of the processes that compute.
PROGRESS_VARIABLE = "CONDNUM_PROGRESS"
#: Seconds between two looks at the file: quick to the eye, nothing to the processor.
POLL_SECONDS = 0.2

#: stage, seed, step, steps: what is being computed. done, total: how far the whole is. Each may be missing.
Event = Mapping[str, Any]


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
        >>> stage_words({"stage": "ours", "seed": 0, "step": 30, "steps": 120})
        'ours, seed 0, step 30 of 120'
    """
    words = [str(event["stage"])] if "stage" in event else []
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
def progress_bar(
    title: str, *, total: int | None = None, done: int = 0, quiet: bool = False
) -> Generator[Any]:
    """Show a tqdm bar on the standard error while the block runs, with the last event behind it."""
    tqdm = require("tqdm", "notebooks").tqdm
    look = {"total": total, "initial": done, "disable": quiet, "file": sys.stderr, "mininterval": 0.5}
    known = os.environ.get(PROGRESS_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="condnum-") as folder, tqdm(desc=title, ncols=100, **look) as bar:

        def show(event: Event) -> None:
            if "total" in event:
                bar.n, bar.total = event["done"], event["total"]
            bar.set_postfix_str(stage_words(event))

        path = Path(folder) / "events"
        path.touch()
        os.environ[PROGRESS_VARIABLE] = str(path)
        try:
            with following(path, show):
                yield bar
        finally:
            os.environ.pop(PROGRESS_VARIABLE)
            if known:
                os.environ[PROGRESS_VARIABLE] = known


@contextmanager
def following(path: Path, report: Callable[[Event], None]) -> Generator[None]:
    """Follow a growing file of events in a thread while the block runs."""
    stop = threading.Event()

    def follow() -> None:
        last_round, rest = False, b""
        with path.open("rb") as stream:
            while not last_round:  # once more after being told to stop
                last_round = stop.wait(POLL_SECONDS)
                *lines, rest = (rest + stream.read()).split(b"\n")  # a line still being written waits
                for line in lines:
                    with suppress(ValueError):  # progress is never a reason to fail
                        report(json.loads(line))

    thread = threading.Thread(target=follow, name="condnum-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)


def step_line() -> Callable[[Any], None]:
    """Return a callback for `immunize` that shows the steps taken and the time left on the standard error."""
    bar = require("tqdm", "notebooks").tqdm(desc="steps", file=sys.stderr)

    def show(at: Any) -> None:
        bar.n, bar.total = at.step, at.steps
        bar.set_postfix_str(f"{at.method}, seed {at.seed}")
        if at.step == at.steps:
            bar.close()

    return show
