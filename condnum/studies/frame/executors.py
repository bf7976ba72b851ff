"""Where cells are computed: one by one here, in worker processes, or on a dask cluster.

An executor takes cells and yields their outcomes as they finish, each once, in any order. Closing the
generator early, or an interruption, stops the cells that are still running.
"""

import os
import queue
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from condnum.errors import CondnumError, InvalidInputError, check_integer, require
from condnum.machine import core_count, threads_environment
from condnum.studies.frame.cells import Cell, Compute, Outcome, evaluate

#: Seconds after which idle workers end, towards the end of a sweep.
_IDLE_SECONDS = 60
#: Seconds between two looks of a worker whether its parent still lives.
_WATCH_SECONDS = 1.0


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
    return SerialExecutor(threads) if jobs == 1 else ProcessExecutor(jobs, threads)


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
            for cell in suspects:
                yield from self._pool(sent, deque([cell]), 1, guilty)
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
        broken = completed = False
        try:
            while running or (waiting and not broken):
                while waiting and not broken and len(running) < 2 * jobs:  # one runs, one waits for its end
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
    threading.Thread(target=_end_with, args=(parent,), name="condnum-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent was killed: nobody would take its results."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


class SchedulerError(CondnumError, ConnectionError):
    """The scheduler of a cluster does not answer, was lost, or has no workers."""


@dataclass(frozen=True)
class DaskExecutor:
    """Cells on dask workers of one thread each (torch's threads are those of a process)."""

    address: str
    threads: int | None = None
    connect_timeout: float = 10.0
    worker_timeout: float = 60.0

    def __post_init__(self) -> None:
        protocol, _, place = self.address.partition("://")
        if not protocol or ":" not in place:
            raise InvalidInputError(
                f"the scheduler's address must look like tcp://host:8786, got {self.address!r}; "
                "`dask scheduler` prints it when it starts."
            )

    @property
    def where(self) -> str:
        """What computes, for the provenance."""
        return self.address

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Generator[Outcome]:
        """Yield the outcomes as they arrive; a cell whose worker was lost is computed by another."""
        distributed, client = require("distributed", "cluster"), self.client()
        sent = f"condnum-{uuid.uuid4().hex}"  # an earlier sweep's results are not ours
        running = dict[Any, Cell]()
        try:
            try:
                client.wait_for_workers(1, timeout=self.worker_timeout)
            except TimeoutError as error:
                raise SchedulerError(
                    f"the scheduler at {self.address} had no worker for {self.worker_timeout:g} s; start "
                    f"some with `dask worker {self.address} --nthreads 1` and run again."
                ) from error
            # What computes goes with its data to each worker once, also to those that come later.
            client.register_plugin(_sent(compute), name=sent)
            for cell in cells:
                key = f"{sent}-{cell.key}"
                running[client.submit(_evaluate_on_worker, sent, cell, self.threads, key=key)] = cell
            options = {"loop": client.loop, "with_results": True, "raise_errors": False}
            for future, result in distributed.as_completed(list(running), **options):
                if future.cancelled() or isinstance(result, BaseException):  # lost on its way here
                    raise SchedulerError(
                        f"the connection to the scheduler at {self.address} is lost; start it with its "
                        "workers and run again: finished cells are kept."
                    )
                cell = running.pop(future)  # an error is of the cluster: a cell's own is part of its outcome
                yield result if future.status == "finished" else Outcome.failed(cell, result[1])
        finally:
            with suppress(Exception):  # the scheduler may be gone by now
                client.cancel(list(running), force=True)
                client.unregister_worker_plugin(sent)
            client.close()

    def client(self) -> Any:
        """Connect in a thread: dask waits without end for a port that stays silent."""
        distributed = require("distributed", "cluster")
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def connect() -> None:
            try:
                options = {"timeout": self.connect_timeout, "set_as_default": False}
                answers.put(distributed.Client(self.address, **options))
            except Exception as error:
                answers.put(error)

        threading.Thread(target=connect, name="condnum-connect", daemon=True).start()
        try:
            answer = answers.get(timeout=self.connect_timeout + 2)  # dask itself may report it
        except queue.Empty:
            answer = TimeoutError("something accepts connections there, but it is not a dask scheduler")
        if isinstance(answer, Exception):
            raise SchedulerError(
                f"no scheduler answers at {self.address} within {self.connect_timeout:g} s "
                f"({type(answer).__name__}: {answer}); start one with `dask scheduler` and give the address "
                "that it prints, or check the firewall."
            ) from answer
        return answer


def _sent(compute: Compute) -> Any:
    """Return what computes as a plugin of dask's workers."""
    plugin: Any = require("distributed", "cluster").WorkerPlugin

    class Sent(plugin):
        def __call__(self, cell: Cell) -> Any:
            return compute(cell)

    return Sent()


def _evaluate_on_worker(sent: str, cell: Cell, threads: int | None) -> Outcome:
    """Compute a cell by what was sent to this worker before."""
    return evaluate(require("distributed", "cluster").get_worker().plugins[sent], cell, threads)
