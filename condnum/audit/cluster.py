"""Second moments on many machines: each worker reads a part of the file, and sums meet in a tree."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from condnum.audit.moments import GROUPS, SecondMoments, second_moments
from condnum.data.feature_stream import FeatureStream, open_feature_stream
from condnum.errors import InvalidInputError
from condnum.extras import require
from condnum.sweep.cluster import SchedulerError

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
    rows = open_feature_stream(stream.source, max_dimension=10**9).rows
    if rows.count != stream.count:
        raise InvalidInputError(
            f"{stream.source} has {rows.count} rows on a worker and {stream.count} here; all machines "
            "must see "
            "the same file."
        )
    own = replace(stream, rows=rows)
    return second_moments(own, groups=groups, seed=seed, first=first, last=last, kept_bytes=0, threads=1)


def _sum(left: SecondMoments, right: SecondMoments) -> SecondMoments:
    """Add two parts; on a worker."""
    return left + right
