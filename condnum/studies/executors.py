"""Where cells are computed: here, in worker processes, many at once on a GPU, or on a cluster.

An executor takes cells and yields their outcomes as they finish, each once, in any order. Closing the
iterator early, or an interruption, stops the cells that are still running.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from condnum.errors import CondnumError, InvalidInputError, require
from condnum.machine import is_out_of_memory, limited_threads, own_peak, threads_environment
from condnum.studies.cells import Cell, CellResult, Compute, Outcome, checked_result, evaluate

#: A cell with its function is a few hundred bytes; so many mean that data travel along.
LARGEST_TASK = 1_000_000

#: Cells handed to the pool for each worker: one that runs, one that waits for it.
_AHEAD = 2
#: Seconds after which idle workers end, towards the end of a sweep.
_IDLE_SECONDS = 60
#: Seconds between two looks of a worker whether its parent still lives.
_WATCH_SECONDS = 1.0


class Executor(Protocol):
    """Computes cells; each of them comes back exactly once."""

    @property
    def note(self) -> str:
        """What a user should know about the choice of this executor; mostly nothing."""

    @property
    def where(self) -> str:
        """What computes, for the provenance."""

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Yield the outcome of each cell as it is finished, in any order."""


@dataclass(frozen=True)
class SerialExecutor:
    """One cell after the other, in this process.

    Examples:
        >>> cells = [Cell({"x": x}) for x in (2, 3)]
        >>> [o.result.row for o in SerialExecutor().run(lambda cell: {"y": cell["x"] ** 2}, cells)]
        [{'y': 4}, {'y': 9}]
    """

    threads: int | None = None
    note: str = field(default="", compare=False)
    where: ClassVar[str] = "1 process"

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Yield the outcomes in the order of the cells; between them the threads are the caller's."""
        for cell in cells:
            with limited_threads(self.threads):
                outcome = evaluate(compute, cell)
            yield outcome  # ruff: ignore[unnecessary-assign-before-yield]


@dataclass(frozen=True)
class ProcessExecutor:
    """Several cells at a time, in worker processes (loky, as joblib brings it).

    A worker that dies takes no other cell with it: the cells that were with the pool are tried again
    one at a time, and one that ends its worker then has failed.
    """

    jobs: int
    threads: int | None = None
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_jobs(self.jobs)
        if self.threads is not None and self.threads < 1:
            raise InvalidInputError(f"threads must be at least 1, got {self.threads!r}.")

    @property
    def where(self) -> str:
        """What computes, for the provenance."""
        return f"{self.jobs} processes"

    @property
    def inner_threads(self) -> int:
        """Threads of torch and BLAS in each worker."""
        return self.threads or max(1, core_count() // self.jobs)

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Yield the outcomes as they finish."""
        check_travels(compute, cells)
        waiting, suspects = deque(cells), deque[Cell]()
        while waiting:
            yield from self._through_a_pool(compute, waiting, self.jobs, suspects)
        while suspects:
            guilty = deque[Cell]()
            yield from self._through_a_pool(compute, suspects, 1, guilty)
            for cell in guilty:
                error = RuntimeError("the worker process died (killed, out of memory, or crashed)")
                yield Outcome.failed(cell, error)

    def _through_a_pool(
        self, compute: Compute, waiting: deque[Cell], jobs: int, lost: deque[Cell]
    ) -> Iterator[Outcome]:
        """Yield outcomes until nothing waits or a worker dies; the cells of a broken pool go to `lost`."""
        from joblib.externals.loky.process_executor import BrokenProcessPool, ProcessPoolExecutor

        threads = self.inner_threads
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
                        running[pool.submit(evaluate, compute, waiting[0], threads)] = waiting[0]
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


def core_count() -> int:
    """Return the number of cores that this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


def check_jobs(jobs: int) -> None:
    """Refuse a number of worker processes that makes no sense."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InvalidInputError(
            f"jobs must be an integer of at least 1, got {jobs!r}; this machine has {core_count()} cores."
        )


def check_travels(compute: Callable[..., Any], cells: Sequence[Cell]) -> None:
    """Refuse a function that cannot be sent to another process, or that carries data."""
    from joblib.externals.loky.backend.reduction import dumps  # by cloudpickle

    try:
        size = len(dumps((compute, *cells[:1])))
    except Exception as error:
        raise InvalidInputError(
            f"{compute!r} cannot be sent to another process ({error}); use a function of a module."
        ) from error
    if size > LARGEST_TASK:
        raise InvalidInputError(
            f"{compute!r} and a cell take {size} bytes, which would travel with every cell; load the data "
            "inside, as a study's `load` does."
        )


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


class BatchComputation(Protocol):
    """How a study computes many of its cells at once."""

    def group(self, cell: Cell) -> Hashable | None:
        """Return what the cells of one batch have in common; None for a cell that is computed alone."""

    def size(self, cells: Sequence[Cell]) -> int:
        """Return how many of these cells fit into one batch, at least 1."""

    def compute(self, cells: Sequence[Cell]) -> Sequence[CellResult | Exception]:
        """Return a result or an error for each cell of a batch, in order."""


@dataclass
class BatchExecutor:
    """Cells that have a group in common together, batch by batch, in this process; the others one at a time.

    A batch for which the device's memory does not suffice is tried again in halves, and so are the batches
    of its group that follow. A batch that fails otherwise is computed cell by cell, so that the cell at
    fault fails alone.

    Examples:
        >>> class Squares:
        ...     def group(self, cell): return "all"
        ...     def size(self, cells): return 2
        ...     def compute(self, cells): return [CellResult({"y": cell["x"] ** 2}, {}) for cell in cells]
        >>> executor = BatchExecutor(Squares())
        >>> cells = [Cell({"x": x}) for x in (2, 3, 4)]
        >>> [outcome.result.row["y"] for outcome in executor.run(lambda cell: {}, cells)]
        [4, 9, 16]
        >>> executor.note
        '2 batches of at most 2 cells'
    """

    batches: BatchComputation
    _sizes: list[int] = field(default_factory=list, init=False)  # of the batches that were computed
    _notes: list[str] = field(default_factory=list, init=False)
    where: ClassVar[str] = "1 process"

    @property
    def note(self) -> str:
        """What became of the batches, in words."""
        count = len(self._sizes)
        words = [f"{count} batch{'es' * (count > 1)} of at most {max(self._sizes)} cells"] if count else []
        return "; ".join([*words, *self._notes])

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Yield the outcomes, those of a batch one after the other, with equal shares of its seconds."""
        groups: dict[Hashable, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(self.batches.group(cell), []).append(cell)
        alone = groups.pop(None, [])
        for members in groups.values():
            yield from self._group(compute, members)
        for cell in alone:
            yield evaluate(compute, cell)

    def _group(self, compute: Compute, cells: list[Cell]) -> Iterator[Outcome]:
        """Yield the outcomes of the cells of one group."""
        try:
            size = max(1, self.batches.size(cells))
        except Exception:  # such as a cell whose data cannot be had: each cell says so by itself
            size = 1
        begin = 0
        while begin < len(cells):
            chunk = cells[begin : begin + size]
            try:
                outcomes = self._batch(chunk)
            except Exception as error:
                if not is_out_of_memory(error):
                    outcomes = [evaluate(compute, cell) for cell in chunk]
                else:
                    _release_memory(error)
                    if len(chunk) > 1:
                        size = max(1, len(chunk) // 2)
                        self._notes.append(
                            f"the device's memory did not hold {len(chunk)} cells "
                            f"({chunk[0].short_label}, …): {size} at a time"
                        )
                        continue
                    outcomes = [Outcome.failed(chunk[0], error, memory=own_peak())]
            yield from outcomes
            begin += len(chunk)

    def _batch(self, cells: list[Cell]) -> list[Outcome]:
        """Compute a batch."""
        started = time.perf_counter()
        results = self.batches.compute(cells)
        share, memory = (time.perf_counter() - started) / len(cells), own_peak()
        outcomes = []
        for cell, result in zip(cells, results, strict=True):
            try:
                if isinstance(result, Exception):
                    raise result
                outcomes.append(Outcome(cell, checked_result(result), share, memory=memory))
            except Exception as error:
                outcomes.append(Outcome.failed(cell, error, share, memory))
        self._sizes.append(len(cells))
        return outcomes


def _release_memory(error: Exception) -> None:
    """Give back what a batch held: its tensors live in the frames of its traceback."""
    import torch

    traceback.clear_frames(error.__traceback__)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


#: Seconds between two looks at a cluster from which nothing comes.
_POLL_SECONDS = 2.0
#: Seconds beyond the time-out in which dask may report it.
_GRACE_SECONDS = 2.0


class SchedulerError(CondnumError, ConnectionError):
    """The scheduler of a cluster does not answer, was lost, or has no workers."""


@dataclass(frozen=True)
class DaskExecutor:
    """Cells on the workers of a dask.distributed scheduler; only cells and results travel.

    A cell whose worker dies runs again elsewhere; one that ends more workers than the scheduler allows
    (`distributed.scheduler.allowed-failures`, 3) has failed. Workers must have condnum and the
    study's module, and one thread each (`--nthreads 1`): torch's threads are those of a process.
    A sweep that is stopped cancels the cells that wait; those running on a worker end by themselves.
    """

    address: str
    threads: int | None = None
    connect_timeout: float = 10.0
    worker_timeout: float = 60.0
    note: str = field(default="", compare=False)

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

    def run(self, compute: Compute, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Yield the outcomes as they arrive."""
        check_travels(compute, cells)
        with self._client() as client:
            sweep = uuid.uuid4().hex[:8]  # an earlier sweep's results are not ours
            arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
            running = {}
            for cell in cells:
                name = f"condnum-{sweep}-{cell.key}"
                future = client.submit(evaluate, compute, cell, self.threads, key=name, pure=False)
                running[name] = (future, cell)
                future.add_done_callback(arrived.put)
            try:
                while running:
                    future = self._next(client, arrived)
                    _, cell = running.pop(future.key)
                    yield self._outcome(future, cell)
            finally:
                if running and client.status == "running":
                    client.cancel([future for future, _ in running.values()], force=True)

    def _next(self, client: Any, arrived: queue.SimpleQueue[Any]) -> Any:
        """Wait for a future that is finished, as long as somebody works on one."""
        idle = 0.0
        while True:
            try:
                return arrived.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if client.status != "running":
                    raise self._lost() from None
                idle = 0.0 if client.scheduler_info(n_workers=-1)["workers"] else idle + _POLL_SECONDS
                if idle >= self.worker_timeout:
                    raise self._no_workers() from None

    def _outcome(self, future: Any, cell: Cell) -> Outcome:
        """Fetch the result of a finished future."""
        if future.status in ("cancelled", "lost"):
            raise self._lost()
        error = future.exception()
        if error is not None:  # the cell's own errors are part of its outcome: this is the cluster's
            return Outcome.failed(cell, error)
        outcome: Outcome = future.result()
        future.release()
        return outcome

    @contextmanager
    def _client(self) -> Generator[Any, None, None]:
        """Connect to the scheduler and wait for a worker."""
        client = self._connected(require("distributed", "cluster"))
        try:
            try:
                client.wait_for_workers(1, timeout=self.worker_timeout)
            except TimeoutError as error:
                raise self._no_workers() from error
            yield client
        finally:
            client.close()

    def _connected(self, distributed: Any) -> Any:
        """Return a client, made in a thread: dask waits without end for a port that stays silent."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def connect() -> None:
            try:
                answers.put(
                    distributed.Client(self.address, timeout=self.connect_timeout, set_as_default=False)
                )
            except Exception as error:
                answers.put(error)

        threading.Thread(target=connect, name="condnum-connect", daemon=True).start()
        try:
            answer = answers.get(timeout=self.connect_timeout + _GRACE_SECONDS)
        except queue.Empty:
            answer = TimeoutError("something accepts connections there, but it is no dask scheduler")
        if isinstance(answer, Exception):
            raise SchedulerError(
                f"no scheduler answers at {self.address} within {self.connect_timeout:g} s "
                f"({type(answer).__name__}: {answer}); start one with `dask scheduler` and give the address "
                "that it prints, or look at the firewall between here and there."
            ) from answer
        return answer

    def _no_workers(self) -> SchedulerError:
        return SchedulerError(
            f"the scheduler at {self.address} has had no worker for {self.worker_timeout:g} s; start some "
            f"with `dask worker {self.address} --nthreads 1` and run again: finished cells are kept."
        )

    def _lost(self) -> SchedulerError:
        return SchedulerError(
            f"the connection to the scheduler at {self.address} is lost; start it with its workers and run "
            "again: finished cells are kept."
        )


def choose_executor(
    jobs: int = 1, scheduler: str | None = None, cells: int | None = None, *, threads: int | None = None
) -> Executor:
    """Return the executor for a number of worker processes, or for a cluster.

    With the same number of threads a cell has the same result on one machine, whoever computes it. The
    executor's `note` says what became of the options, if they were not followed.

    Examples:
        >>> choose_executor(1)
        SerialExecutor(threads=None, note='')
        >>> choose_executor(8, cells=3).note
        '3 cells keep 3 of the 8 workers busy: 3 are started.'
    """
    check_jobs(jobs)
    if scheduler:
        note = f"jobs={jobs} is ignored: the workers of {scheduler} compute." if jobs > 1 else ""
        return DaskExecutor(scheduler, threads, note=note)
    note, workers = "", jobs
    if cells is not None and jobs > max(1, cells):
        workers = max(1, cells)
        note = f"{cells} cell{' keeps' if cells == 1 else 's keep'} {workers} of the {jobs} workers busy: "
        note += f"{workers} {'are' if workers > 1 else 'is'} started."
    return SerialExecutor(threads, note) if workers == 1 else ProcessExecutor(workers, threads, note)
