"""Executors on one machine: here and now, or in worker processes.

An executor takes cells and yields their outcomes as they finish. Closing the iterator early, or an
interruption, stops the cells that are still running.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from condnum.errors import InvalidInputError
from condnum.sweep.outcome import Compute, Outcome, evaluate
from condnum.sweep.plan import CellPlan
from condnum.threads import limited_threads, threads_environment

#: A plan with its function is a few hundred bytes; so many mean that data travel along.
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

    def run(self, compute: Compute, plans: Sequence[CellPlan]) -> Iterator[Outcome]:
        """Yield the outcome of each plan as it is finished, in any order."""


@dataclass(frozen=True)
class SerialExecutor:
    """One cell after the other, in this process.

    Attributes:
        threads: Threads of torch and BLAS; None leaves them.
        note: For the user.

    Examples:
        >>> plans = [CellPlan("square", {"x": x}, {}, "", "1") for x in (2, 3)]
        >>> [o.row for o in SerialExecutor().run(lambda plan: ({"y": plan.payload["x"] ** 2}, {}), plans)]
        [{'y': 4}, {'y': 9}]
    """

    threads: int | None = None
    note: str = field(default="", compare=False)

    def run(self, compute: Compute, plans: Sequence[CellPlan]) -> Iterator[Outcome]:
        """Yield the outcomes in the order of the plans.

        Args:
            compute: Computes a cell.
            plans: The cells.

        Yields:
            Each outcome.
        """
        for plan in plans:
            yield self._outcome(compute, plan)

    def _outcome(self, compute: Compute, plan: CellPlan) -> Outcome:
        """Compute a cell; between cells the threads are the caller's."""
        with limited_threads(self.threads):
            return evaluate(compute, plan)


@dataclass(frozen=True)
class ProcessExecutor:
    """Several cells at a time, in worker processes (loky, as joblib brings it).

    A worker that dies takes no other cell with it: the cells that were with the pool are tried again
    one at a time, and one that ends its worker then has failed.

    Attributes:
        jobs: Worker processes.
        threads: Threads of torch and BLAS in each; None shares the cores among them.
        note: For the user.

    Raises:
        InvalidInputError: `jobs` or `threads` below 1.
    """

    jobs: int
    threads: int | None = None
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_jobs(self.jobs)
        if self.threads is not None and self.threads < 1:
            raise InvalidInputError(f"threads must be at least 1, got {self.threads!r}.")

    @property
    def inner_threads(self) -> int:
        """Threads of torch and BLAS in each worker."""
        return self.threads or max(1, core_count() // self.jobs)

    def run(self, compute: Compute, plans: Sequence[CellPlan]) -> Iterator[Outcome]:
        """Yield the outcomes as they finish.

        Args:
            compute: Computes a cell; a function of an importable module, or one that cloudpickle can send.
            plans: The cells.

        Yields:
            Each outcome.

        Raises:
            InvalidInputError: `compute` cannot be sent, or carries data.
        """
        check_travels(compute, plans)
        waiting, suspects = deque(plans), deque[CellPlan]()
        while waiting:
            yield from self._through_a_pool(compute, waiting, self.jobs, suspects)
        while suspects:
            guilty = deque[CellPlan]()
            yield from self._through_a_pool(compute, suspects, 1, guilty)
            for plan in guilty:
                error = RuntimeError("the worker process died (killed, out of memory, or crashed)")
                yield Outcome.failed(plan, error)

    def _through_a_pool(
        self, compute: Compute, waiting: deque[CellPlan], jobs: int, lost: deque[CellPlan]
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
        running: dict[Future[Outcome], CellPlan] = {}
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
                    plan, error = running.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):  # all that are unfinished get it
                        lost.append(plan)
                        broken = True
                    else:
                        yield future.result() if error is None else Outcome.failed(plan, error)
            completed = True
        finally:
            pool.shutdown(wait=True, kill_workers=broken or not completed)


def core_count() -> int:
    """Return the number of cores that this process may use."""
    from joblib import cpu_count

    return int(cpu_count())


def check_jobs(jobs: int) -> None:
    """Refuse a number of worker processes that makes no sense.

    Examples:
        >>> check_jobs(0)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
            ...
        condnum.errors.InvalidInputError: jobs must be an integer of at least 1, got 0; …
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise InvalidInputError(
            f"jobs must be an integer of at least 1, got {jobs!r}; this machine has {core_count()} cores."
        )


def check_travels(compute: Callable[..., Any], plans: Sequence[CellPlan]) -> None:
    """Refuse a function that cannot be sent to another process, or that carries data."""
    from joblib.externals.loky.backend.reduction import dumps  # by cloudpickle

    try:
        size = len(dumps((compute, *plans[:1])))
    except Exception as error:
        raise InvalidInputError(
            f"{compute!r} cannot be sent to another process ({error}); use a function of a module."
        ) from error
    if size > LARGEST_TASK:
        raise InvalidInputError(
            f"{compute!r} and a plan take {size} bytes, which would travel with every cell; give the plan a "
            "DataReference and load the data inside the function."
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
