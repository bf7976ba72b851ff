"""Which executor a user's options ask for."""

from __future__ import annotations

from condnum.sweep.cluster import DaskExecutor
from condnum.sweep.executors import Executor, ProcessExecutor, SerialExecutor, check_jobs


def choose_executor(
    jobs: int = 1, scheduler: str | None = None, cells: int | None = None, *, threads: int | None = None
) -> Executor:
    """Return the executor for a number of worker processes, or for a cluster.

    Args:
        jobs: Worker processes on this machine; 1 computes in this process.
        scheduler: Address of a dask.distributed scheduler, `tcp://host:port`; its workers compute.
        cells: How many cells there are; no more workers than that are started.
        threads: Threads of torch and BLAS in each cell; None shares the cores among the workers.
            With the same number a cell has the same result on one machine, whoever computes it.

    Returns:
        The executor; its `note` says what became of the options, if they were not followed.

    Raises:
        InvalidInputError: `jobs` below 1, or not an address.

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
