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

import math
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.feature_stream import FeatureStream, open_feature_stream
from condnum.errors import DataFormatError, InvalidInputError, require
from condnum.machine import limited_threads
from condnum.studies.executors import SchedulerError, core_count

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


# Second moments on many machines: each worker reads a part of the file, and sums meet in a tree.


#: Seconds to wait for the scheduler and a first worker.
TIMEOUT = 60.0


def cluster_moments(
    stream: FeatureStream, address: str, *, groups: int = GROUPS, seed: int = 0, parts: int | None = None
) -> SecondMoments:
    """Compute second moments on the workers of a dask scheduler.

    Every worker opens the same path, so that the file must lie on storage that all of them see, and only
    D×D matrices travel. Rows belong to the same groups as on one machine; sums differ by the order of
    addition alone.
    """
    if not stream.source.lower().endswith((".npy", ".parquet")) or stream.count is None:
        raise InvalidInputError(
            f"{stream.source} cannot be read from the middle, as many workers must; "
            "save it as .npy or .parquet."
        )
    distributed = require("distributed", "cluster")
    blocks = math.ceil(stream.count / stream.block_rows)
    try:
        client = distributed.Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise SchedulerError(
            f"no scheduler answers at {address} ({error}); start one with `dask scheduler` and give the "
            "address that it prints."
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=TIMEOUT)
        except TimeoutError as error:
            raise SchedulerError(
                f"the scheduler at {address} has had no worker for {TIMEOUT:g} s; start some with "
                f"`dask worker {address} --nthreads 1`."
            ) from error
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        count = min(blocks, 2 * workers if parts is None else parts)
        edges = [round(i * blocks / count) for i in range(count + 1)]
        level = [
            client.submit(
                part_moments,
                stream,
                groups,
                seed,
                first,
                last,
                pure=False,
            )
            for first, last in pairwise(edges)
        ]
        while len(level) > 1:
            pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
            level = [client.submit(_sum, *pair, pure=False) if len(pair) == 2 else pair[0] for pair in pairs]
        result: SecondMoments = level[0].result()
    return result


def part_moments(stream: FeatureStream, groups: int, seed: int, first: int, last: int) -> SecondMoments:
    """Read some blocks of a file; what a worker does."""
    here = open_feature_stream(stream.source, max_dimension=stream.width)
    if here.count != stream.count:
        raise InvalidInputError(
            f"{stream.source} has {here.count} rows on a worker and {stream.count} here; all machines "
            "must see the same file."
        )
    own = replace(stream, read=here.read, stamp=here.stamp)
    return second_moments(own, groups=groups, seed=seed, first=first, last=last, kept_bytes=0, threads=1)


def _sum(left: SecondMoments, right: SecondMoments) -> SecondMoments:
    """Add two parts; on a worker."""
    return left + right


# What an audit says about one task's features before any extractor: size, rank, odd columns, warnings.


#: Columns that agree to this share of their squared length count as equal: seven digits.
SAME = 1e-14
#: An eigenvalue within this factor of the rank tolerance makes the rank a matter of opinion.
NEAR = 100.0


@dataclass(frozen=True, eq=False)
class TaskFacts:
    """One task's features."""

    name: str  # D_P or D_H
    source: str
    rows: int  # N
    dimension: int  # D
    stored_eps: float
    spectrum: NDArray[np.float64]  # (D,) eigenvalues of K, descending; those below 0 by round-off are 0
    rank: int
    near: int  # eigenvalues within a factor `NEAR` of the rank tolerance
    equal_columns: tuple[tuple[str, str], ...]  # pairs (earlier, later), without columns of zeros

    @property
    def warnings(self) -> list[str]:
        """Sentences on what makes the numbers fragile; empty if nothing does."""
        D, notes = self.dimension, []
        if self.rank < D:
            notes.append(
                f"{self.name} has rank {self.rank} of {D}: compact κ leaves {D - self.rank} direction(s) "
                "out, and ridge κ is decided by ε."
            )
        if self.near:
            notes.append(
                f"{self.name}: {self.near} eigenvalue(s) lie within a factor {NEAR:g} of the rank tolerance: "
                "the rank, and with it compact κ, is decided there. See how it moves with the tolerance."
            )
        if self.equal_columns:
            pairs = [f"{first} = {second}" for first, second in self.equal_columns]
            notes.append(
                f"{self.name}: {len(pairs)} column(s) repeat an earlier one to seven digits "
                f"({', '.join(pairs[:5])}{', …' * (len(pairs) > 5)}): each adds a null direction."
            )
        return notes


def task_facts(
    name: str, stream: FeatureStream, moments: SecondMoments, K: NDArray[np.float64], *, rtol: float
) -> TaskFacts:
    """Read what the second moments say about a task's columns and rank.

    Examples:
        >>> from condnum.audit.moments import second_moments
        >>> from condnum.data.feature_stream import array_stream
        >>> X = np.array([[1.0, 5.0, 1.0, 0.0], [2.0, 5.0, 2.0, 0.0], [4.0, 5.0, 4.0, 0.0]])
        >>> stream = array_stream(X)
        >>> moments = second_moments(stream)
        >>> facts = task_facts("D_P", stream, moments, moments.covariance, rtol=1e-15)
        >>> facts.rank, facts.equal_columns
        (2, (('x0', 'x2'),))
    """
    sigma = np.maximum(np.linalg.eigvalsh(K)[::-1], 0.0)
    limit = rtol * sigma[0]
    return TaskFacts(
        name=name,
        source=stream.source,
        rows=moments.rows,
        dimension=stream.dimension,
        stored_eps=stream.stored_eps,
        spectrum=sigma,
        rank=int((sigma > limit).sum()),
        near=int(((sigma > limit / NEAR) & (sigma < limit * NEAR)).sum()),
        equal_columns=tuple((stream.columns[i], stream.columns[j]) for i, j in _equal_pairs(K)),
    )


def _equal_pairs(K: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return pairs i < j with ‖x_i − x_j‖² = K_ii + K_jj − 2K_ij = 0 to round-off, one for each j."""
    squares, pairs = np.diagonal(K), []
    for j in range(1, len(K)):
        if squares[j] == 0:
            continue
        distance = squares[:j] + squares[j] - 2 * K[:j, j]
        same = np.flatnonzero(distance <= 4 * SAME * squares[j])
        if len(same):
            pairs.append((int(same[0]), j))
    return pairs
