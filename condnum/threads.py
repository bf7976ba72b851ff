"""Threads inside a cell: so many that cells side by side do not fight for the cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

#: Read by the libraries when they are loaded, hence set before a worker process starts.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def threads_environment(threads: int) -> dict[str, str]:
    """Return environment variables that give a new process so many threads.

    Examples:
        >>> threads_environment(2)["OMP_NUM_THREADS"]
        '2'
    """
    return dict.fromkeys(VARIABLES, str(threads))


def limit_threads(threads: int | None) -> None:
    """Set the number of threads of torch and BLAS in this process."""
    if threads is None:
        return
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    threadpool_limits(limits=threads)
    if threads == 1 and "torch" not in sys.modules and os.environ.get("OMP_NUM_THREADS") == "1":
        return  # torch will read it (larger numbers it may cut), and to load torch takes seconds
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextmanager
def limited_threads(threads: int | None) -> Generator[None, None, None]:
    """Limit the threads of torch and BLAS while the block runs."""
    if threads is None:
        yield
        return
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
