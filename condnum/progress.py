"""Progress events of long work: one line of JSON each, appended to a file that somebody follows.

The command line runs a notebook in another process and cannot pass a callback into it; it names a
file in `CONDNUM_PROGRESS` instead (`condnum.report.progress` follows it). Without that variable
nothing is written.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

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
