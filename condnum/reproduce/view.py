"""Progress of a reproduction in the terminal: a line for each experiment, and a bar for the running one."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from condnum.progress import duration
from condnum.report.progress import OnProgress, ProgressEvent
from condnum.report.terminal import terminal_progress
from condnum.reproduce.experiments import Experiment
from condnum.reproduce.record import ExperimentRecord

_SIGNS = {"finished": "✓", "reused": "=", "failed": "✗", "waiting": "…", "not run": "–"}


class ProgressView:
    """What the terminal shows while experiments run, on the standard error."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._running = ExitStack()
        self._report: OnProgress | None = None

    def start(self, index: int, total: int, experiment: Experiment) -> None:
        """Open the bar of an experiment."""
        print(f"  [{index}/{total}] {experiment.name}: {experiment.title}", file=self.stream, flush=True)
        self._report = self._running.enter_context(terminal_progress(experiment.name, stream=self.stream))

    def progress(self, event: ProgressEvent) -> None:
        """Pass an event to the bar."""
        if self._report is not None:
            self._report(event)

    def end(self, index: int, total: int, record: ExperimentRecord) -> None:
        """Close the bar and say what became of the experiment."""
        self.close()
        print(f"{_SIGNS[record.status]} [{index}/{total}] {ending(record)}", file=self.stream, flush=True)

    def site(self, index: Path, waiting: Sequence[str]) -> None:
        """Say where the site lies and what it still lacks."""
        print(
            f"  site: {index} (open it now, it grows; still to run: {', '.join(waiting)})",
            file=self.stream,
            flush=True,
        )

    def close(self) -> None:
        """Close the bar, if one is open."""
        self._report = None
        self._running.close()


def ending(record: ExperimentRecord) -> str:
    """Return what became of an experiment, in one line."""
    if record.status == "finished":
        return f"{record.name} finished in {duration(record.seconds)}"
    if record.status == "reused":
        return f"{record.name} reused: same parameters, data and code (it took {duration(record.seconds)})"
    message = record.error.strip().splitlines()[-1] if record.error.strip() else ""
    return f"{record.name} {record.status}: {message[:200]}{'…' if len(message) > 200 else ''}"


@contextmanager
def progress_view(stream: Any = None) -> Generator[ProgressView, None, None]:
    """Show a reproduction in the terminal."""
    view = ProgressView(sys.stderr if stream is None else stream)
    try:
        yield view
    finally:
        view.close()
