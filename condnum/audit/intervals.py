"""Bootstrap confidence intervals of an audit's numbers: rows of both tasks are resampled, independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit.measures import Comparison, Extractors, TaskSpectra, kappa_rows, measured, task_spectra
from condnum.audit.moments import SecondMoments
from condnum.errors import RankError
from condnum.machine import limited_threads
from condnum.studies.executors import core_count
from condnum.studies.measure import MEASURES
from condnum.theory.ceiling import rir_ceiling

#: Confidence level of the intervals.
LEVEL = 0.95

#: Ends the seeds of resampling, see `moments.LABELS`.
DRAWS = 73

#: Fewer replicates than this make no interval.
FEWEST_REPLICATES = 20


@dataclass(frozen=True, eq=False)
class Intervals:
    """Percentile intervals, and what was resampled for them."""

    table: pd.DataFrame  # a row per quantity: estimate, low, high, median, inside, replicates
    unit: str  # what was resampled, in words
    replicates: int  # B
    failed: int  # replicates whose resampled covariance has rank 0
    level: float = LEVEL


def resampled_covariance(moments: SecondMoments, generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows, or groups of rows, with replacement and return their covariance."""
    if moments.kept is not None:
        N = len(moments.kept)
        counts = np.bincount(generator.integers(N, size=N), minlength=N)
        X = moments.kept[counts > 0] * np.sqrt(counts[counts > 0])[:, None]
        return np.asarray(X.T @ X)
    M = len(moments.groups)
    counts = np.bincount(generator.integers(M, size=M), minlength=M)
    total = np.zeros_like(moments.groups[0])
    for m in np.flatnonzero(counts):
        total += counts[m] * moments.groups[m]
    return total


def bootstrap(
    moments: tuple[SecondMoments, SecondMoments],
    extractors: Extractors,
    compared: Sequence[Comparison],
    *,
    count: int,
    rtol: float,
    ridge: float,
    replicates: Sequence[int] = range(200),
    seed: int = 0,
    threads: int | None = None,
    on_replicate: Callable[[int], None] | None = None,
) -> NDArray[np.float64]:
    """Measure resampled data as the data were measured: a row of the `count` numbers of `estimates` each.

    Rows are taken for independent draws from each task; extractors stay as they are, those that were computed
    from the data included. Replicate b of any number of threads is the same, as it has its own generator; one
    of rank 0 is NaN.
    """

    def replicate(index: int) -> list[float]:
        drawn = []
        for which, task in enumerate(moments):
            generator = np.random.default_rng([seed, which, index, DRAWS])
            drawn.append(torch.from_numpy(resampled_covariance(task, generator)))
        try:
            spectra = task_spectra(drawn[0], drawn[1], extractors, rtol=rtol)
            return estimates(spectra, compared, ridge)["estimate"].tolist()
        except RankError:
            return [np.nan] * count

    draws = []
    with limited_threads(1), ThreadPoolExecutor(threads or core_count()) as pool:
        for found in pool.map(replicate, replicates):
            draws.append(found)
            if on_replicate is not None:
                on_replicate(len(draws))
    return np.array(draws)


def intervals(draws: NDArray[np.float64], known: pd.DataFrame, unit: str) -> Intervals | None:
    """Take percentiles of replicates beside the estimates; None if nearly all replicates have rank 0.

    A resampled task has fewer distinct rows (63 %), which can lower ranks and compact κ's: `inside` says
    whether the estimate lies in its own interval, and `median` how far resampling moves it.
    """
    good = draws[~np.isnan(draws).all(axis=1)]
    if len(good) < FEWEST_REPLICATES:
        return None
    tails = (1 - LEVEL) / 2
    # Percentiles are members of the sample, as ceilings may be infinite.
    low, median, high = np.quantile(good, [tails, 0.5, 1 - tails], axis=0, method="inverted_cdf")
    inside = (low <= known["estimate"]) & (known["estimate"] <= high)
    table = known.assign(low=low, high=high, median=median, inside=inside, replicates=len(good))
    return Intervals(table, unit, len(draws), len(draws) - len(good))


def estimates(spectra: TaskSpectra, compared: Sequence[Comparison], ridge: float) -> pd.DataFrame:
    """Return every number that gets an interval."""
    rows = []
    for row in kappa_rows(spectra, ridge=ridge):
        place = (row["task"], row["extractor"], "", row["convention"])
        rows.append(("kappa", *place, row["kappa"]))
        if row["convention"] == "compact":
            rows.append(("rank", *place, float(row["rank"])))
    for pair in compared:
        for convention, gauge in MEASURES[:2]:
            result = measured(spectra, pair, convention, gauge, ridge=ridge)
            for name in ("harmful_ratio", "pretrain_ratio", "rir"):
                rows.append((name, "", pair.extractor, pair.baseline, convention, getattr(result, name)))
    ceiling = rir_ceiling(spectra.range_P, spectra.range_H, rtol=spectra.rtol)
    rows.append(("rir_ceiling", "", "", "", "compact", ceiling.value))
    return pd.DataFrame(rows, columns=["quantity", "task", "extractor", "baseline", "convention", "estimate"])
