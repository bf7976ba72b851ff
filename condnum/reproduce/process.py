"""One experiment as a process of its own: followed, interrupted once, and heard when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from condnum.progress import PROGRESS_VARIABLE
from condnum.report.progress import OnProgress, following

#: Seconds that an interrupted experiment has to keep what it finished.
GRACE_SECONDS = 60.0

#: Characters of a message that the record keeps.
_SHOWN = 2000


@dataclass(frozen=True)
class Ended:
    """How an experiment's process ended."""

    status: int  # exit status; negative: the signal that killed it
    message: str  # what it said on the standard error, "" if nothing

    @property
    def error(self) -> str:
        """Why it failed, in words; "" if it did not."""
        if self.status == 0:
            return ""
        if self.status < 0:
            return (
                f"killed by {signal.Signals(-self.status).name}"
                + (" (most often for lack of memory)" if self.status == -signal.SIGKILL else "")
                + (f": {self.message}" if self.message else "")
            )
        return self.message or f"ended with status {self.status} and without a message"


def run_command(words: Sequence[str], *, progress: OnProgress) -> Ended:
    """Run `condnum …` in a process of its own.

    It lies in a process group of its own, so that a stop reaches it once, through this function.
    """
    with tempfile.TemporaryDirectory(prefix="condnum-") as scratch:
        events, errors = Path(scratch) / "progress.jsonl", Path(scratch) / "stderr"
        environment = {**os.environ, PROGRESS_VARIABLE: str(events)}
        with following(events, progress), errors.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "condnum", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
            try:
                status = process.wait()
            except BaseException:
                _stop(process)
                raise
        return Ended(status, _last_words(errors.read_text(encoding="utf-8", errors="replace")))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process, wait for it, and kill its group if it does not end."""
    process.terminate()  # heard as Ctrl-C, also where a background job ignores SIGINT
    try:
        process.wait(GRACE_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(text: str) -> str:
    """Return the end of what a process said, without the program's name and line breaks of a paragraph."""
    if "Traceback (most recent call last)" in text:
        return text.strip()[-_SHOWN:]
    words = " ".join(text.split()).removeprefix("condnum: ")
    return words if len(words) <= _SHOWN else f"… {words[-_SHOWN:]}"
