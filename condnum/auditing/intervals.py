"""Bootstrap confidence intervals of an audit's numbers: rows of both tasks are resampled, independently."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.auditing.measures import Extractors, TaskSpectra, kappa_table
from condnum.data.feature_rows import SAMPLE_ROWS_PER_COLUMN, TaskRows
from condnum.errors import RankError
from condnum.machine import core_count, limited_threads
from condnum.progress import report_event
from condnum.studies.measure import MEASURES
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.covariances import CovarianceRange

#: Confidence level of the intervals.
CONFIDENCE_LEVEL = 0.95
#: Ends the seeds of resampling, so that no other stream of random numbers is the same one.
_DRAWS_SEED = 73
#: Fewer replicates than this make no interval.
FEWEST_REPLICATES = 20
#: Features up to which all replicates are drawn: the cost of each grows as D³.
FULL_DIMENSION = 256


@dataclass(frozen=True, eq=False)
class Intervals:
    """Percentile intervals, and what was resampled for them."""

    table: pd.DataFrame  # a row per quantity: estimate, low, high
    unit: str  # what was resampled, in words
    replicates: int  # B, without those whose resampled covariance has rank 0


def resampled_covariance(task: TaskRows, generator: np.random.Generator) -> torch.Tensor:
    """Draw as many rows of the sample with replacement; return their covariance, at the size of K."""
    X = task.sample
    counts = np.bincount(generator.integers(len(X), size=len(X)), minlength=len(X))
    drawn = np.flatnonzero(counts)
    rows = X[drawn] * np.sqrt(counts[drawn] * (task.rows / len(X)))[:, None]
    return torch.from_numpy(rows.T @ rows)


def bootstrap(
    tasks: Sequence[TaskRows],
    extractors: Extractors,
    *,
    ranks: Sequence[int],
    rtol: float,
    epsilon: float,
    replicates: int = 200,
    seed: int = 0,
    threads: int | None = None,
) -> Intervals | str:
    """Measure resampled data as the data were measured, and return percentiles; or say why there are none.

    Intervals are estimates: percentiles, for rows that are independent draws and extractors that stay as they
    are. A resampled task has fewer distinct rows (63 %): where they are fewer than its rank, every replicate
    loses rank, and there are no intervals. Beyond 256 features D there are 256²/D² of the replicates, at
    least 20. Replicate b is the same for any number of threads, as it has its own generator.
    """
    D = tasks[0].stream.dimension
    if any(len(task.sample) < min(task.rows, SAMPLE_ROWS_PER_COLUMN * D) for task in tasks):
        return f"at D = {D:,d} a sample of {SAMPLE_ROWS_PER_COLUMN} rows per column exceeds the memory limit"
    for task, rank in zip(tasks, ranks, strict=True):
        if (1 - math.exp(-1)) * len(task.sample) < rank:
            return (
                f"a resample has 63 % of the {len(task.sample):,d} rows of {Path(task.stream.source).name}, "
                f"fewer than their rank {rank:,d}, and would measure another rank"
            )

    def measured(covariances: Sequence[Any]) -> pd.DataFrame:
        P, H = (CovarianceRange.of(K, rtol=rtol) for K in covariances)
        return estimates(TaskSpectra.of(P, H, extractors, rtol=rtol), epsilon)

    known = measured([task.covariance for task in tasks])
    replicates = min(replicates, max(FEWEST_REPLICATES, round(replicates * (FULL_DIMENSION / D) ** 2)))

    def replicate(index: int) -> list[float] | None:
        generators = (np.random.default_rng([seed, which, index, _DRAWS_SEED]) for which in (0, 1))
        try:
            drawn = [resampled_covariance(task, own) for task, own in zip(tasks, generators, strict=True)]
            return measured(drawn)["estimate"].tolist()
        except RankError:
            return None

    draws = []
    with limited_threads(1), ThreadPoolExecutor(threads or core_count()) as pool:
        for done, found in enumerate(pool.map(replicate, range(replicates)), start=1):
            draws += [] if found is None else [found]
            report_event(stage="bootstrap", step=done, steps=replicates)
    if len(draws) < FEWEST_REPLICATES:
        return "nearly all resampled pairs of tasks have rank 0"
    tails = (1 - CONFIDENCE_LEVEL) / 2
    # Percentiles are members of the sample, as ceilings may be infinite.
    low, high = np.quantile(draws, [tails, 1 - tails], axis=0, method="inverted_cdf")
    return Intervals(
        known.assign(low=low, high=high), " and ".join(map(_unit, tasks, ("D_P", "D_H"))), len(draws)
    )


def _unit(task: TaskRows, name: str) -> str:
    """Say what is resampled."""
    if len(task.sample) == task.rows:
        return f"the {task.rows:,d} rows of {name}, one at a time"
    return (
        f"a random sample of {len(task.sample):,d} of the {task.rows:,d} rows of {name} (intervals for all "
        "of them are narrower)"
    )


def estimates(spectra: TaskSpectra, epsilon: float) -> pd.DataFrame:
    """Return every number that gets an interval."""
    rows: list[tuple[Any, ...]] = []
    for row in kappa_table(spectra, epsilon=epsilon).itertuples():
        place = (row.task, row.extractor, row.convention)
        rows.append(("kappa", *place, row.kappa))
        if row.convention == "compact":
            rows.append(("rank", *place, float(row.rank)))
    for extractor in spectra.compared:
        for convention, theta_scale in MEASURES[:2]:
            result = spectra.measured(extractor, convention, theta_scale, epsilon=epsilon)
            for name in ("harmful_ratio", "pretrain_ratio", "rir"):
                rows.append((name, "", extractor, convention, getattr(result, name)))
    ceiling = rir_ceiling(spectra.range_P, spectra.range_H)
    rows.append(("rir_ceiling", "", "", "compact", ceiling.value))
    return pd.DataFrame(rows, columns=["quantity", "task", "extractor", "convention", "estimate"])
