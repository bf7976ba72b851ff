"""An executor on other machines: the workers of a dask.distributed scheduler."""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from condnum.errors import CondnumError, InvalidInputError
from condnum.extras import require
from condnum.sweep.executors import check_travels
from condnum.sweep.outcome import Compute, Outcome, evaluate
from condnum.sweep.plan import CellPlan

#: Seconds between two looks at a cluster from which nothing comes.
_POLL_SECONDS = 2.0
#: Seconds beyond the time-out in which dask may report it.
_GRACE_SECONDS = 2.0


class SchedulerError(CondnumError, ConnectionError):
    """The scheduler of a cluster does not answer, was lost, or has no workers."""


@dataclass(frozen=True)
class DaskExecutor:
    """Cells on the workers of a scheduler; only plans and results travel.

    A cell whose worker dies runs again elsewhere; one that ends more workers than the scheduler allows
    (`distributed.scheduler.allowed-failures`, 3) has failed. Workers must have condnum and the
    function's module, and one thread each (`--nthreads 1`): torch's threads are those of a process.
    A sweep that is stopped cancels the cells that wait; those running on a worker end by themselves.

    Attributes:
        address: Of the scheduler, `tcp://host:port`.
        threads: Threads of torch and BLAS in each worker; None leaves what the worker was started with.
        connect_timeout: Seconds to wait for the scheduler.
        worker_timeout: Seconds to wait for a first worker, or while there is none.
        note: For the user.

    Raises:
        InvalidInputError: Not an address.
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

    def run(self, compute: Compute, plans: Sequence[CellPlan]) -> Iterator[Outcome]:
        """Yield the outcomes as they arrive.

        Args:
            compute: Computes a cell; a function of a module that the workers have too.
            plans: The cells.

        Yields:
            Each outcome.

        Raises:
            InvalidInputError: `compute` cannot be sent, or carries data.
            MissingExtraError: dask.distributed is not installed.
            SchedulerError: The scheduler does not answer, is lost, or has no workers.
        """
        check_travels(compute, plans)
        with self._client() as client:
            sweep = uuid.uuid4().hex[:8]  # an earlier sweep's results are not ours
            arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
            running = {}
            for plan in plans:
                name = f"condnum-{sweep}-{plan.key}"
                future = client.submit(evaluate, compute, plan, self.threads, key=name, pure=False)
                running[name] = (future, plan)
                future.add_done_callback(arrived.put)
            try:
                while running:
                    future = self._next(client, arrived)
                    _, plan = running.pop(future.key)
                    yield self._outcome(future, plan)
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

    def _outcome(self, future: Any, plan: CellPlan) -> Outcome:
        """Fetch the result of a finished future."""
        if future.status in ("cancelled", "lost"):
            raise self._lost()
        error = future.exception()
        if error is not None:  # the cell's own errors are part of its outcome: this is the cluster's
            return Outcome.failed(plan, error)
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
