"""Bootstrap confidence intervals of an audit's numbers: rows of both tasks are resampled, independently."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit.measures import Extractors, TaskSpectra, kappa_table
from condnum.audit.moments import SecondMoments
from condnum.errors import RankError
from condnum.machine import core_count, limited_threads
from condnum.studies.measure import MEASURES
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.covariances import CovarianceRange

#: Confidence level of the intervals.
CONFIDENCE_LEVEL = 0.95

#: Ends the seeds of resampling, see `moments._GROUPS_SEED`.
_DRAWS_SEED = 73

#: Fewer replicates than this make no interval.
FEWEST_REPLICATES = 20


@dataclass(frozen=True, eq=False)
class Intervals:
    """Percentile intervals, and what was resampled for them."""

    table: pd.DataFrame  # a row per quantity: estimate, low, high, median, inside
    unit: str  # what was resampled, in words
    replicates: int  # B, without those whose resampled covariance has rank 0


def resampled_covariance(moments: SecondMoments, generator: np.random.Generator) -> torch.Tensor:
    """Draw rows, or groups of rows, with replacement and return their covariance."""
    parts = moments.groups if moments.kept is None else moments.kept
    counts = np.bincount(generator.integers(len(parts), size=len(parts)), minlength=len(parts))
    drawn = np.flatnonzero(counts)
    if moments.kept is not None:
        X = parts[drawn] * np.sqrt(counts[drawn])[:, None]
        return torch.from_numpy(X.T @ X)
    total = np.zeros_like(parts[0])
    for m in drawn:
        total += counts[m] * parts[m]
    return torch.from_numpy(total)


def bootstrap(
    moments: tuple[SecondMoments, SecondMoments],
    extractors: Extractors,
    *,
    rtol: float,
    epsilon: float,
    replicates: int = 200,
    seed: int = 0,
    threads: int | None = None,
    on_replicate: Callable[[int], None] | None = None,
) -> NDArray[np.float64]:
    """Measure resampled data as the data were measured: a row of the numbers of `estimates` each.

    Rows are taken for independent draws from each task; extractors stay as they are, those that were computed
    from the data included. Replicate b of any number of threads is the same, as it has its own generator; one
    of rank 0 is left out.
    """

    def replicate(index: int) -> list[float] | None:
        try:
            P, H = (
                CovarianceRange.of(
                    resampled_covariance(task, np.random.default_rng([seed, which, index, _DRAWS_SEED])),
                    rtol=rtol,
                )
                for which, task in enumerate(moments)
            )
            spectra = TaskSpectra.of(P, H, extractors, rtol=rtol)
            return estimates(spectra, epsilon)["estimate"].tolist()
        except RankError:
            return None

    draws = []
    with limited_threads(1), ThreadPoolExecutor(threads or core_count()) as pool:
        for found in pool.map(replicate, range(replicates)):
            draws.append(found)
            if on_replicate is not None:
                on_replicate(len(draws))
    return np.array([found for found in draws if found is not None])


def intervals(draws: NDArray[np.float64], known: pd.DataFrame, unit: str) -> Intervals | None:
    """Take percentiles of replicates beside the estimates; None if nearly all replicates have rank 0.

    A resampled task has fewer distinct rows (63 %), which can lower ranks and compact κ's: `inside` says
    whether the estimate lies in its own interval, and `median` how far resampling moves it.
    """
    if len(draws) < FEWEST_REPLICATES:
        return None
    tails = (1 - CONFIDENCE_LEVEL) / 2
    # Percentiles are members of the sample, as ceilings may be infinite.
    low, median, high = np.quantile(draws, [tails, 0.5, 1 - tails], axis=0, method="inverted_cdf")
    inside = (low <= known["estimate"]) & (known["estimate"] <= high)
    return Intervals(known.assign(low=low, high=high, median=median, inside=inside), unit, len(draws))


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
    ceiling = rir_ceiling(spectra.range_P, spectra.range_H, rtol=spectra.rtol)
    rows.append(("rir_ceiling", "", "", "compact", ceiling.value))
    return pd.DataFrame(rows, columns=["quantity", "task", "extractor", "convention", "estimate"])
