"""Where cells are computed: one by one here, in worker processes, or on a dask cluster.

An executor takes cells and yields their outcomes as they finish, each once, in any order. Closing the
generator early, or an interruption, stops the cells that are still running.
"""

import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Protocol

from condnum.errors import CondnumError, check_integer, require
from condnum.machine import core_count, end_with, threads_environment
from condnum.studies.frame.cells import Cell, Compute, Outcome, evaluate

#: Seconds after which idle workers end, towards the end of a sweep.
_IDLE_SECONDS = 60


class Executor(Protocol):
    """Computes cells; each of them comes back exactly once."""

    @property
    def where(self) -> str:
        """What computes, for the provenance."""

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Generator[Outcome]:
        """Yield the outcome of each cell as it is finished, in any order."""


def choose_executor(jobs: int = 1, scheduler: str = "", *, threads: int | None = None) -> Executor:
    """Return the executor for so many worker processes, or for a cluster, whose workers compute instead."""
    jobs = check_integer(f"jobs (this machine has {core_count()} cores)", jobs, 1)
    if scheduler:
        return DaskExecutor(scheduler, threads)
    if jobs == 1:
        return SerialExecutor(threads)
    return ProcessExecutor(jobs, threads or max(1, core_count() // jobs))


@dataclass(frozen=True)
class SerialExecutor:
    """One cell after the other, in this process; between them the threads are the caller's."""

    threads: int | None = None
    where: ClassVar[str] = "1 process"

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Generator[Outcome]:
        """Yield the outcomes in the order of the cells."""
        for cell in cells:
            yield evaluate(compute, cell, self.threads)


@dataclass(frozen=True)
class ProcessExecutor:
    """Worker processes (loky); the cells of a pool that broke run again alone, to find the one at fault."""

    jobs: int
    threads: int | None = None

    @property
    def where(self) -> str:
        """What computes, for the provenance."""
        return f"{self.jobs} processes"

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Generator[Outcome]:
        """Yield the outcomes as they finish; what computes goes to the workers once, in a file."""
        from joblib.externals.loky.backend.reduction import dumps

        waiting, suspects, guilty = deque(cells), list[Cell](), list[Cell]()
        with tempfile.TemporaryDirectory(prefix="condnum-") as folder:
            sent = Path(folder) / "compute"
            try:
                sent.write_bytes(dumps(compute))
            except Exception as error:
                yield from [Outcome.failed(cell, error) for cell in cells]
                return
            while waiting:
                yield from self._pool(sent, waiting, self.jobs, suspects)
            alone = deque(suspects)
            while alone:
                yield from self._pool(sent, alone, 1, guilty)
        died = RuntimeError("the worker process died (killed, out of memory, or crashed)")
        yield from [Outcome.failed(cell, died) for cell in guilty]

    def _pool(self, sent: Path, waiting: deque[Cell], jobs: int, lost: list[Cell]) -> Generator[Outcome]:
        """Yield outcomes until nothing waits or a worker dies; the cells that it takes with it are `lost`."""
        from joblib.externals.loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

        threads = self.threads or max(1, core_count() // self.jobs)  # of torch and BLAS in each worker
        pool = ProcessPoolExecutor(
            max_workers=jobs,
            timeout=_IDLE_SECONDS,
            initializer=_begin_worker,
            initargs=(os.getpid(),),
            env=threads_environment(threads),
        )
        running: dict[Future[Outcome], Cell] = {}
        most = 1 if jobs == 1 else 2 * jobs  # of several workers each has a cell that runs, and the next
        broken = completed = False
        try:
            while running or (waiting and not broken):
                while waiting and not broken and len(running) < most:
                    try:
                        running[pool.submit(_evaluate_sent, sent, waiting[0], threads)] = waiting[0]
                        waiting.popleft()
                    except BrokenProcessPool:
                        broken = True
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell, error = running.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):  # all that are unfinished get it
                        lost.append(cell)
                        broken = True
                    else:
                        yield future.result() if error is None else Outcome.failed(cell, error)
            completed = True
        finally:
            pool.shutdown(wait=True, kill_workers=broken or not completed)


def _evaluate_sent(sent: Path, cell: Cell, threads: int) -> Outcome:
    """Compute a cell in a worker by what was sent to it."""
    return evaluate(lambda cell: _received(sent)(cell), cell, threads)


@lru_cache(1)
def _received(sent: Path) -> Compute:
    """Read what computes."""
    from joblib.externals.loky.backend.reduction import loads

    compute: Compute = loads(sent.read_bytes())
    return compute


def _begin_worker(parent: int) -> None:
    """Leave Ctrl-C, which a terminal sends to all, to the parent, and end when the parent is gone."""
    from joblib.externals.loky import process_executor

    # loky takes data that a worker keeps for its next cells for a leak, and ends the worker.
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)


@dataclass(frozen=True)
class DaskExecutor:
    """Cells on dask workers of one thread each (torch's threads are those of a process)."""

    address: str
    threads: int | None = None

    @property
    def where(self) -> str:
        """What computes, for the provenance."""
        return self.address

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Generator[Outcome]:
        """Yield the outcomes as they arrive; a cell whose worker was lost is computed by another."""
        distributed = require("distributed", "cluster")
        with distributed.Client(self.address, set_as_default=False) as client:
            sent = client.scatter(compute, broadcast=True, hash=False)  # with its data, to each worker once
            running = {client.submit(evaluate, sent, cell, self.threads, pure=False): cell for cell in cells}
            options = {"loop": client.loop, "with_results": True, "raise_errors": False}
            try:
                for future, result in distributed.as_completed(list(running), **options):
                    if future.cancelled() or isinstance(result, BaseException):  # lost on its way here
                        raise CondnumError(
                            f"the connection to the scheduler at {self.address} is lost; start it with its "
                            "workers and run again: finished cells are kept."
                        )
                    cell = running.pop(future)  # a cell's own error is part of its outcome
                    yield result if isinstance(result, Outcome) else Outcome.failed(cell, result[1])
            finally:
                with suppress(Exception):  # the scheduler may be gone by now
                    client.cancel(list(running), force=True)
