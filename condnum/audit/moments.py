r"""Second moments of a feature matrix in one pass over its rows, ready to be resampled.

The covariance :math:`K = X^\top X = \sum_n x_n x_n^\top` is a sum over rows, so blocks of rows, and
machines, add up. A bootstrap over rows would weigh each row by its own random count: one product of the
size of K's for each replicate. Here every row is assigned at random, and independently of all others,
to one of M groups, whose covariances are kept; a replicate draws M groups with replacement. The weight
of a row then has mean 1 and variance 1 − 1/M, and the weights of two rows are uncorrelated (averaged
over the assignment): the first two moments of the Poisson bootstrap over rows, from one pass, whatever
the order of the rows in the file. (Groups of neighbouring rows, or of equal sizes within a block, would
not do: the order of the rows would count.)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.feature_stream import FeatureStream
from condnum.errors import DataFormatError, InvalidInputError
from condnum.sweep import core_count
from condnum.threads import limited_threads

#: Groups of rows, where memory allows: intervals then have about 63 degrees of freedom.
GROUPS = 64
#: With fewer groups than this an interval says little, and none is given.
FEWEST_GROUPS = 10
#: What the groups of one task may take.
GROUP_BYTES = 384 << 20
#: Up to this size in float64 a task's rows are kept, and resampled one by one.
KEPT_BYTES = 32 << 20

#: Ends the seeds of the assignment to groups, so that no other stream of random numbers is the same one:
#: NumPy pads seeds with zeros, [7, 0] is the seed 7.
LABELS = 71

#: Told the number of rows that are done, and of all rows where that is known.
OnRows = Callable[[int, int | None], None]


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """What one pass over the rows leaves: covariances of M random groups of rows, and column sums."""

    rows: int  # N
    groups: NDArray[np.float64]  # (M, D, D) Σ xxᵀ over each group's rows; K is their sum
    group_rows: NDArray[np.int64]  # (M,)
    sums: NDArray[np.float64]  # (D,) Σ x
    kept: NDArray[np.float64] | None = None  # (N, D) the rows, where they are few

    @property
    def covariance(self) -> NDArray[np.float64]:
        """`K = XᵀX`, `(D, D)`, uncentred and unnormalised (Eq. 9)."""
        return np.asarray(self.groups.sum(axis=0), dtype=np.float64)

    def __add__(self, other: SecondMoments) -> SecondMoments:
        """Add the moments of other rows, without their kept rows."""
        return SecondMoments(
            self.rows + other.rows,
            self.groups + other.groups,
            self.group_rows + other.group_rows,
            self.sums + other.sums,
        )


def group_count(dimension: int, *, group_bytes: int = GROUP_BYTES) -> int:
    """Return how many groups of rows fit into memory; 1, that is no resampling, if too few do.

    Examples:
        >>> [group_count(D) for D in (512, 1024, 2048)]
        [64, 48, 12]
        >>> group_count(4096)
        1
    """
    fitting = min(GROUPS, group_bytes // (8 * dimension**2))
    return int(fitting) if fitting >= FEWEST_GROUPS else 1


def second_moments(
    stream: FeatureStream,
    *,
    groups: int = GROUPS,
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
    kept_bytes: int = KEPT_BYTES,
    threads: int | None = None,
    on_rows: OnRows | None = None,
) -> SecondMoments:
    """Read a stream once and return its second moments, summed in float64 whatever is stored.

    Products run in as many threads as there are cores, each on its own groups, while the next block is read.
    The group of a row depends on `seed` and on the row's place in the file alone.

    Args:
        stream: The rows.
        groups: M.
        seed: Of the assignment of rows to groups.
        first: Index of the first block, for a part of the file.
        last: Index behind the last block; None reads to the end.
        kept_bytes: Keep the rows as float64 while they take no more than this.
        threads: At a time; default one a core.
        on_rows: Told about progress, after each block.

    Returns:
        The moments.

    Raises:
        InvalidInputError: `groups` below 1, or no row.
        DataFormatError: Numbers that are too large to be squared, a file that is damaged or changes while it
            is read.

    Examples:
        >>> from condnum.data.feature_stream import array_stream
        >>> X = np.array([[1.0, 0.0], [1.0, 2.0]])
        >>> second_moments(array_stream(X), groups=2).covariance
        array([[2., 2.],
               [2., 4.]])
    """
    if groups < 1:
        raise InvalidInputError(f"groups must be at least 1, got {groups}.")
    D, workers = stream.dimension, threads or core_count()
    moments = SecondMoments(0, np.zeros((groups, D, D)), np.zeros(groups, np.int64), np.zeros(D))
    rows, kept = 0, _Kept(kept_bytes)
    with (
        limited_threads(1),
        ThreadPoolExecutor(workers) as pool,
        _ahead(stream.blocks(first, last)) as blocks,
    ):
        for index, block in enumerate(blocks, start=first):
            label = np.random.default_rng([seed, index, LABELS]).integers(groups, size=len(block))
            order = np.argsort(label, kind="stable")
            edges = np.searchsorted(label[order], np.arange(groups + 1))
            shares = np.array_split(np.arange(groups), workers)
            work = [pool.submit(_add_groups, moments, block, order, edges, share) for share in shares]
            finite = [future.result() for future in work]  # waits for all, whatever one finds
            if not all(finite):
                raise DataFormatError(
                    f"{stream.source} holds numbers so large that their squares overflow float64 (above "
                    "1e154), or infinite ones; rescale them (standardise)."
                )
            moments.group_rows[:] += np.diff(edges)
            rows += len(block)
            kept.add(block)
            if on_rows is not None:
                on_rows(rows, stream.count)
    if not rows:
        raise InvalidInputError(f"{stream.source} has no rows.")
    return SecondMoments(rows, moments.groups, moments.group_rows, moments.sums, kept.rows())


_SUMS = threading.Lock()


def _add_groups(
    moments: SecondMoments,
    block: NDArray[Any],
    order: NDArray[np.int64],
    edges: NDArray[np.int64],
    share: NDArray[np.int64],
) -> bool:
    """Add one block's rows of some groups; tell whether all of them are finite."""
    if not len(share):
        return True
    D = block.shape[1]
    longest = int(np.diff(edges)[share].max())
    buffer, product, sums = np.empty((longest, D)), np.empty((D, D)), np.zeros(D)
    finite = True
    with np.errstate(all="ignore"):  # NaN and overflow are found below, on the diagonal
        for m in share:
            X = buffer[: edges[m + 1] - edges[m]]
            X[:] = block[order[edges[m] : edges[m + 1]]]  # gathers a group's rows and casts them
            np.matmul(
                X.T, X, out=product
            )  # X on both sides: NumPy takes the symmetric product, half the work
            moments.groups[m] += product
            sums += X.sum(axis=0)
            finite &= bool(np.isfinite(product.diagonal()).all())
    with _SUMS:
        moments.sums[:] += sums
    return finite


class _Kept:
    """Rows of small data, until they are no longer small."""

    def __init__(self, limit: int) -> None:
        self._limit, self._parts = limit, list[NDArray[np.float64]]()

    def add(self, block: NDArray[Any]) -> None:
        """Keep a block if there is room; drop everything if not."""
        self._limit -= 8 * block.size
        self._parts = [*self._parts, block.astype(np.float64)] if self._limit >= 0 else []

    def rows(self) -> NDArray[np.float64] | None:
        """Return all rows, or None."""
        return np.concatenate(self._parts) if self._limit >= 0 and self._parts else None


@contextmanager
def _ahead(blocks: Iterator[NDArray[Any]]) -> Generator[Iterator[NDArray[Any]]]:
    """Read the next block in a thread while this one is worked on: three blocks in memory at most."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=1)
    stop = threading.Event()

    def offer(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for block in blocks:
                if not offer(block):
                    return
            offer(None)
        except BaseException as error:
            offer(error)

    def taken() -> Iterator[NDArray[Any]]:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=read, name="condnum-read-ahead", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        stop.set()
        thread.join()
