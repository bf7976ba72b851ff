"""Progress events of an experiment: one line of JSON each, to the file that the caller follows.

The command line runs a notebook in another process and cannot pass a callback into it; it names a
file in `CONDNUM_PROGRESS` instead. Without that variable nothing is written.
"""

from __future__ import annotations

import json
import os

from condnum.immunize import Progress

#: Names the file, in the environment of the process that computes.
PROGRESS_VARIABLE = "CONDNUM_PROGRESS"


def report_event(**event: object) -> None:
    """Append one event (`stage, seed, step, steps, done, total`); short lines appear whole."""
    path = os.environ.get(PROGRESS_VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")


def report_step(progress: Progress) -> None:
    """Report a recorded step of a descent; usable as a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)
