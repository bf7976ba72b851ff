"""Commands side by side: each a process of its own, all of which end with this one."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from condnum.machine import PARENT_VARIABLE, threads_environment
from condnum.progress import PROGRESS_VARIABLE, Event, following


@dataclass(frozen=True)
class Task:
    """A command of condnum."""

    name: str
    words: tuple[str, ...]  # after `condnum`
    seconds: float = 10.0  # of one core, about


def run_tasks(
    tasks: Sequence[Task],
    side_by_side: int,
    ended: Callable[[Task, str], None],
    *,
    threads: int = 1,
    heard: Callable[[Task, Event], None] = lambda *_: None,
) -> None:
    """Run commands in their order, so many at a time and with so many threads each.

    `ended` is told of each, with what it said of its failure ("": none), `heard` of its progress. Where this
    is interrupted, those that run are stopped as by Ctrl-C.
    """
    running, stopped = set[subprocess.Popen[bytes]](), threading.Event()

    def run(task: Task) -> str:
        with tempfile.TemporaryDirectory(prefix="condnum-") as scratch:
            events = Path(scratch) / "progress.jsonl"
            ours = {PROGRESS_VARIABLE: str(events), PARENT_VARIABLE: str(os.getpid())}
            limits = threads_environment(threads) | {"LOKY_MAX_CPU_COUNT": str(threads)}
            heard(task, {"stage": "running"})
            with following(events, lambda event: heard(task, event)):
                process = subprocess.Popen(
                    [sys.executable, "-m", "condnum", *task.words],
                    env={**os.environ, **limits, **ours},
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    start_new_session=True,  # a terminal's Ctrl-C comes through us, once
                )  # fmt: skip
                running.add(process)
                if stopped.is_set():
                    process.terminate()
                said = process.communicate()[1].decode(errors="replace")
                running.discard(process)
        return "" if process.returncode == 0 else " ".join(said.split()) or f"ended with {process.returncode}"

    pool = ThreadPoolExecutor(max(1, side_by_side))
    try:
        futures = {pool.submit(run, task): task for task in tasks}
        for future in as_completed(futures):
            ended(futures[future], future.result())
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            with suppress(ProcessLookupError):
                process.terminate()
        pool.shutdown()
