"""Progress events of long work: one line of JSON each, appended to a file that somebody follows.

The command line runs a notebook in another process and cannot pass a callback into it; it names a
file in `CONDNUM_PROGRESS` instead (`condnum.report.progress` follows it). Without that variable
nothing is written.
"""

from __future__ import annotations

import json
import os

#: Names the file, in the environment of the process that computes.
PROGRESS_VARIABLE = "CONDNUM_PROGRESS"


def report_event(**event: object) -> None:
    """Append one event; a short line appears whole, whoever else appends.

    Args:
        **event: `stage, seed, step, steps, done, total`, those that are known.
    """
    path = os.environ.get(PROGRESS_VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")
