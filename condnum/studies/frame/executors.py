"""Where cells are computed: one by one here, in worker processes, on a cluster.

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
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from condnum.errors import CondnumError, InvalidInputError, check_integer, require
from condnum.machine import limited_threads, threads_environment
from condnum.studies.frame.cells import Cell, Compute, Outcome, evaluate

#: Cells handed to the pool for each worker: one that runs, one that waits for it.
_AHEAD = 2
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


def core_count() -> int:
    """Return the number of cores that this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


@dataclass(frozen=True)
class SerialExecutor:
    """One cell after the other, in this process; between them the threads are the caller's."""

    threads: int | None = None
    where: ClassVar[str] = "1 process"

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Generator[Outcome]:
        """Yield the outcomes in the order of the cells."""
        for cell in cells:
            with limited_threads(self.threads):
                outcome = evaluate(compute, cell)
            yield outcome  # ruff: ignore[unnecessary-assign-before-yield]


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

        waiting, suspects, guilty = deque(cells), deque[Cell](), deque[Cell]()
        with tempfile.TemporaryDirectory(prefix="condnum-") as folder:
            sent = Path(folder) / "compute"
            try:
                sent.write_bytes(dumps(compute))
            except Exception as error:
                yield from [Outcome.failed(cell, error) for cell in cells]
                return
            while waiting:
                yield from self._through_a_pool(sent, waiting, self.jobs, suspects)
            while suspects:
                yield from self._through_a_pool(sent, suspects, 1, guilty)
        for cell in guilty:
            died = RuntimeError("the worker process died (killed, out of memory, or crashed)")
            yield Outcome.failed(cell, died)

    def _through_a_pool(
        self, sent: Path, waiting: deque[Cell], jobs: int, lost: deque[Cell]
    ) -> Generator[Outcome]:
        """Yield outcomes until nothing waits or a worker dies; the cells of a broken pool go to `lost`."""
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
        ahead = _AHEAD * jobs if jobs > 1 else 1  # alone, a cell that ends its worker is known
        broken = completed = False
        try:
            while running or (waiting and not broken):
                while waiting and not broken and len(running) < ahead:
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

    # loky takes data that a worker keeps for its next cells for a leak, and ends the worker: from then on
    # each cell would load and factorise them again.
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), name="condnum-parent", daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent was killed: nobody would take its results."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def _evaluate_on_worker(sent: str, cell: Cell, threads: int | None) -> Outcome:
    """Compute a cell by what was sent to this worker before."""
    return evaluate(require("distributed", "cluster").get_worker().plugins[sent], cell, threads)


#: Seconds between two looks at a cluster from which nothing comes.
_POLL_SECONDS = 2.0
#: Seconds beyond the time-out in which dask may report it.
_GRACE_SECONDS = 2.0


class SchedulerError(CondnumError, ConnectionError):
    """The scheduler of a cluster does not answer, was lost, or has no workers."""


def _sent(compute: Compute) -> Any:
    """Return what computes as a plugin of dask's workers."""
    plugin: Any = require("distributed", "cluster").WorkerPlugin

    class Sent(plugin):
        def __call__(self, cell: Cell) -> Any:
            return compute(cell)

    return Sent()


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
        """Yield the outcomes as they arrive, as long as somebody works on one."""
        no_workers = SchedulerError(
            f"the scheduler at {self.address} had no worker for {self.worker_timeout:g} s; start some "
            f"with `dask worker {self.address} --nthreads 1` and run again: finished cells are kept."
        )
        lost = SchedulerError(
            f"the connection to the scheduler at {self.address} is lost; start it with its workers and run "
            "again: finished cells are kept."
        )
        client, arrived = self.client(), queue.SimpleQueue[Any]()
        running: dict[str, tuple[Any, Cell]] = {}
        sweep = uuid.uuid4().hex[:8]  # an earlier sweep's results are not ours
        sent = f"condnum-{sweep}"
        try:
            try:
                client.wait_for_workers(1, timeout=self.worker_timeout)
            except TimeoutError as error:
                raise no_workers from error
            # What computes goes with its data to each worker once, also to those that come later.
            client.register_plugin(_sent(compute), name=sent)
            for cell in cells:
                name = f"condnum-{sweep}-{cell.key}"
                future = client.submit(_evaluate_on_worker, sent, cell, self.threads, key=name, pure=False)
                running[name] = (future, cell)
                future.add_done_callback(arrived.put)
            idle = 0.0
            while running:
                try:
                    future = arrived.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    if client.status != "running":
                        raise lost from None
                    idle = 0.0 if client.scheduler_info(n_workers=-1)["workers"] else idle + _POLL_SECONDS
                    if idle >= self.worker_timeout:
                        raise no_workers from None
                    continue
                if future.status == "lost":  # with the worker that held it: it is computed again
                    future.add_done_callback(arrived.put)
                    continue
                if future.status == "cancelled":
                    raise lost
                idle, (_, cell) = 0.0, running.pop(future.key)
                try:
                    fault = future.exception()  # of the cluster: the cell's own are part of its outcome
                    outcome = future.result() if fault is None else Outcome.failed(cell, fault)
                except (OSError, CancelledError) as error:  # the result was still on its way here
                    raise lost from error
                future.release()
                yield outcome
        finally:
            if client.status == "running":
                client.cancel([future for future, _ in running.values()], force=True)
                with suppress(Exception):  # the scheduler may be gone by now
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
            answer = answers.get(timeout=self.connect_timeout + _GRACE_SECONDS)
        except queue.Empty:
            answer = TimeoutError("something accepts connections there, but it is not a dask scheduler")
        if isinstance(answer, Exception):
            raise SchedulerError(
                f"no scheduler answers at {self.address} within {self.connect_timeout:g} s "
                f"({type(answer).__name__}: {answer}); start one with `dask scheduler` and give the address "
                "that it prints, or check the firewall."
            ) from answer
        return answer


def choose_executor(jobs: int = 1, scheduler: str | None = None, *, threads: int | None = None) -> Executor:
    """Return the executor for so many worker processes, or for a cluster, whose workers compute instead."""
    jobs = check_integer(f"jobs (this machine has {core_count()} cores)", jobs, 1)
    if scheduler:
        return DaskExecutor(scheduler, threads)
    return SerialExecutor(threads) if jobs == 1 else ProcessExecutor(jobs, threads)
