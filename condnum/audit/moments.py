r"""Second moments of a feature matrix in one pass over its rows, ready to be resampled.

The covariance :math:`K = X^\top X = \sum_n x_n x_n^\top` is a sum over rows, so blocks of rows, and
machines, add up. A bootstrap over rows would weigh each row by its own random count: one product of the
size of K's for each replicate. Here every row is assigned at random, and independently of all others,
to one of M groups, whose covariances are kept; a replicate draws M groups with replacement. The weight
of a row then has mean 1 and variance 1 − 1/M, and the weights of two rows are uncorrelated (averaged
over the assignment): the first two moments of the Poisson bootstrap over rows, from one pass, whatever
the order of the rows in the file. (Groups of neighboring rows, or of equal sizes within a block, would
not do: the order of the rows would count.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.audit.words import paragraphs
from condnum.data.feature_stream import FeatureStream, as_stream
from condnum.errors import DataFormatError, InvalidInputError
from condnum.machine import core_count, limited_threads
from condnum.studies.frame import Cell, CellResult
from condnum.studies.frame.executors import DaskExecutor

#: Groups of rows, where memory allows: intervals then have about 63 degrees of freedom.
MOST_GROUPS = 64
#: With fewer groups than this an interval says little, and none is given.
FEWEST_GROUPS = 10
#: What the groups of one task may take.
GROUP_BYTES = 384 << 20
#: Up to this size in float64 a task's rows are kept, and resampled one by one.
KEPT_BYTES = 32 << 20

#: Ends the seeds of the assignment to groups, so that no other stream of random numbers is the same one:
#: NumPy pads seeds with zeros, [7, 0] is the seed 7.
_GROUPS_SEED = 71

#: Told the number of rows that are done, and of all rows where that is known.
OnRows = Callable[[int, int | None], None]


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """What one pass over the rows leaves: covariances of M random groups of rows."""

    rows: int  # N
    groups: NDArray[np.float64]  # (M, D, D) Σ xxᵀ over each group's rows; K is their sum
    kept: NDArray[np.float64] | None = None  # (N, D) the rows, where they are few

    @property
    def covariance(self) -> NDArray[np.float64]:
        """`K = XᵀX`, `(D, D)`, uncentered and unnormalized (Eq. 9)."""
        return np.asarray(self.groups.sum(axis=0), dtype=np.float64)

    @property
    def can_resample(self) -> bool:
        """Whether there is enough to resample: rows, or at least `FEWEST_GROUPS` groups."""
        return self.kept is not None or len(self.groups) >= FEWEST_GROUPS

    def unit(self, name: str) -> str:
        """Say what is resampled."""
        if self.kept is not None:
            return f"the {self.rows:,d} rows of {name}, one at a time"
        return (
            f"{len(self.groups)} random groups of the {self.rows:,d} rows of {name} (each row was "
            "assigned to a group at random)"
        )


def group_count(dimension: int) -> int:
    """Return how many groups of rows fit into memory; 1, that is no resampling, if too few do."""
    fitting = min(MOST_GROUPS, GROUP_BYTES // (8 * dimension**2))
    return int(fitting) if fitting >= FEWEST_GROUPS else 1


def second_moments(
    stream: FeatureStream,
    *,
    groups: int = MOST_GROUPS,
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
    kept_bytes: int = KEPT_BYTES,
    threads: int | None = None,
    on_rows: OnRows | None = None,
) -> SecondMoments:
    """Read a stream, or some blocks of it, once and sum in float64, whatever is stored.

    Products run in as many threads as there are cores, each on its own groups, while the next block is read.
    The group of a row depends on `seed` and on the row's place in the file alone. Rows are kept as float64
    while they take no more than `kept_bytes`.
    """
    if groups < 1:
        raise InvalidInputError(f"groups must be at least 1, got {groups}.")
    D, workers = stream.dimension, threads or core_count()
    total, rows, kept = np.zeros((groups, D, D)), 0, list[NDArray[np.float64]]()
    blocks = stream.blocks(first, last)

    def add_groups(block: NDArray[Any], members: list[NDArray[np.int64]], share: NDArray[np.int64]) -> bool:
        """Add one block's rows of some groups; tell whether all of them are finite."""
        product, finite = np.empty((D, D)), True
        with np.errstate(all="ignore"):  # NaN and overflow are found below, on the diagonal
            for m in share:
                X = block[members[m]].astype(np.float64)
                # X on both sides: NumPy takes the symmetric product, half the work.
                total[m] += np.matmul(X.T, X, out=product)
                finite &= bool(np.isfinite(product.diagonal()).all())
        return finite

    # A block is read while the one before it is worked on: two blocks in memory.
    with limited_threads(1), ThreadPoolExecutor(workers) as pool, ThreadPoolExecutor(1) as reader:
        waiting, index = reader.submit(next, blocks, None), first
        while (block := waiting.result()) is not None:
            waiting = reader.submit(next, blocks, None)
            label = np.random.default_rng([seed, index, _GROUPS_SEED]).integers(groups, size=len(block))
            order = np.argsort(label, kind="stable")
            members = np.split(order, np.searchsorted(label[order], np.arange(1, groups)))
            shares = np.array_split(np.arange(groups), workers)
            work = [pool.submit(add_groups, block, members, share) for share in shares]
            if not all(future.result() for future in work):
                raise DataFormatError(
                    f"{stream.source} holds numbers so large that their squares overflow float64 (above "
                    "1e154), or infinite ones; rescale them (standardize)."
                )
            rows, index = rows + len(block), index + 1
            kept_bytes -= 8 * block.size
            kept = [*kept, block.astype(np.float64)] if kept_bytes >= 0 else []
            if on_rows is not None:
                on_rows(rows, stream.count)
    if not rows:
        raise InvalidInputError(f"{stream.source} has no rows.")
    return SecondMoments(rows, total, np.concatenate(kept) if kept else None)


def cluster_moments(
    stream: FeatureStream, address: str, *, groups: int = MOST_GROUPS, seed: int = 0, parts: int = 16
) -> SecondMoments:
    """Compute second moments on the workers of a dask scheduler.

    Every worker opens the same path, so that the file must lie on storage that all of them see, and only
    D×D matrices travel. Rows belong to the same groups as on one machine; sums differ by the order of
    addition alone.
    """
    if not stream.source.lower().endswith((".npy", ".parquet")) or stream.count is None:
        raise InvalidInputError(
            f"{stream.source} cannot be read in parts, which several "
            "workers need; save it as .npy or .parquet."
        )

    def part(cell: Cell) -> CellResult:
        """Read some blocks of the file on a worker."""
        here = as_stream(stream.source)
        if here.count != stream.count:
            raise InvalidInputError(
                f"{stream.source} has {here.count} rows on a worker and {stream.count} here; give all "
                "machines the same file."
            )
        own = replace(stream, read=here.read, stamp=here.stamp)
        found = second_moments(own, groups=groups, seed=seed, **cell.at, kept_bytes=0, threads=1)
        return CellResult({"rows": found.rows}, {"groups": found.groups})

    blocks = math.ceil(stream.count / stream.block_rows)
    edges = [round(i * blocks / min(blocks, parts)) for i in range(min(blocks, parts) + 1)]
    cells = [Cell({"first": first, "last": last}).named("rows", "", "1") for first, last in pairwise(edges)]
    total = SecondMoments(0, np.zeros((groups, stream.dimension, stream.dimension)))
    for outcome in DaskExecutor(address).run(part, cells):
        if outcome.result is None:
            raise DataFormatError(f"{stream.source} cannot be summed on {address}: {outcome.error}")
        row, arrays = outcome.result
        total = SecondMoments(total.rows + int(row["rows"] or 0), total.groups + arrays["groups"])
    return total


#: Columns that agree to this fraction of their squared length count as equal: seven digits.
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
    spectrum: Sequence[float]  # (D,) eigenvalues of K, descending; those below 0 by round-off are 0
    rank: int
    near: int  # eigenvalues within a factor `NEAR` of the rank tolerance
    equal_columns: Sequence[Sequence[str]]  # pairs (earlier, later), without columns of zeros

    @property
    def warnings(self) -> list[str]:
        """Sentences on what makes the numbers fragile; empty if nothing does."""
        return paragraphs("task_warnings", self)


def task_facts(name: str, stream: FeatureStream, rows: int, K: NDArray[np.float64], rtol: float) -> TaskFacts:
    """Read what K says about a task's columns and rank."""
    sigma = np.maximum(np.linalg.eigvalsh(K)[::-1], 0.0)
    limit, squares, equal = rtol * sigma[0], np.diagonal(K), []
    for j in np.flatnonzero(squares):
        # ‖x_i − x_j‖² is 0 to round-off: the first such i < j
        same = np.flatnonzero(squares[:j] + squares[j] - 2 * K[:j, j] <= 4 * SAME * squares[j])
        if len(same):
            equal.append((stream.columns[same[0]], stream.columns[j]))
    noise = np.sqrt(len(sigma)) * np.finfo(np.float64).eps * sigma[0]  # below, K's own round-off looks alike
    opinion = (sigma > max(limit / NEAR, noise)) & (sigma < limit * NEAR)
    rank, near = int((sigma > limit).sum()), int(opinion.sum())
    about = (stream.source, rows, stream.dimension, stream.stored_eps)
    return TaskFacts(name, *about, sigma.tolist(), rank, near, equal)
