"""Bootstrap confidence intervals of an audit's numbers: rows of both tasks are resampled, independently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit.measures import Comparison, Extractors, TaskSpectra, kappa_rows, measured, task_spectra
from condnum.audit.moments import FEWEST_GROUPS, SecondMoments
from condnum.errors import InvalidInputError, RankError
from condnum.machine import limited_threads
from condnum.studies.executors import core_count
from condnum.studies.measure import MEASURES
from condnum.theory.ceiling import rir_ceiling

#: Confidence level of the intervals.
LEVEL = 0.95

#: Ends the seeds of resampling, see `moments.LABELS`.
DRAWS = 73

#: Name, task or comparison, extractor, baseline, convention.
Quantity = tuple[str, str, str, str, str]

OnReplicates = Callable[[int, int], None]


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
    rtol: float,
    ridge: float,
    replicates: int = 200,
    seed: int = 0,
    threads: int | None = None,
    on_replicates: OnReplicates | None = None,
) -> Intervals:
    """Measure resampled data as the data were measured, and take percentiles.

    Rows are taken for independent draws from each task; extractors stay as they are, those that were computed
    from the data included. Replicate b of any number of threads is the same, as it has its own generator. A
    resampled task has fewer distinct rows (63 %), which can lower ranks and compact κ's: `inside` says
    whether the estimate lies in its own interval, and `median` how far resampling moves it.
    """
    if replicates < 20:
        raise InvalidInputError(
            f"a bootstrap needs at least 20 replicates for an interval, got {replicates}."
        )
    for task in moments:
        if not task.can_resample:
            raise InvalidInputError(
                f"{len(task.groups)} group(s) of rows are too few to resample; at least {FEWEST_GROUPS} are "
                "needed."
            )

    def replicate(index: int) -> dict[Quantity, float] | None:
        drawn = []
        for which, task in enumerate(moments):
            generator = np.random.default_rng([seed, which, index, DRAWS])
            drawn.append(torch.from_numpy(resampled_covariance(task, generator)))
        try:
            return _quantities(task_spectra(drawn[0], drawn[1], extractors, rtol=rtol), compared, ridge)
        except RankError:
            return None

    results: list[dict[Quantity, float] | None] = [None] * replicates
    with limited_threads(1), ThreadPoolExecutor(threads or core_count()) as pool:
        futures = {pool.submit(replicate, index): index for index in range(replicates)}
        for done, future in enumerate(as_completed(futures), start=1):
            results[futures[future]] = future.result()
            if on_replicates is not None:
                on_replicates(done, replicates)
    good = [result for result in results if result is not None]
    if len(good) < 20:
        raise InvalidInputError(
            f"only {len(good)} of {replicates} resampled pairs of tasks have a rank above 0; nearly all "
            "rows are zero."
        )
    K_P, K_H = (torch.from_numpy(task.covariance) for task in moments)
    estimates = _quantities(task_spectra(K_P, K_H, extractors, rtol=rtol), compared, ridge)
    names, tails = ("quantity", "task", "extractor", "baseline", "convention"), (1 - LEVEL) / 2
    rows = []
    for key, estimate in estimates.items():
        # Percentiles are members of the sample, as ceilings may be infinite.
        values = [result[key] for result in good]
        low, median, high = np.quantile(values, [tails, 0.5, 1 - tails], method="inverted_cdf").tolist()
        rows.append(
            {
                **dict(zip(names, key, strict=True)),
                "estimate": estimate, "low": low, "high": high, "median": median,
                "inside": low <= estimate <= high, "replicates": len(values),
            }
        )  # fmt: skip
    units = [
        f"the {task.rows:,d} rows of {name}, one by one"
        if task.kept is not None
        else f"{len(task.groups)} random groups of the {task.rows:,d} rows of {name} (each row was "
        "assigned to a group at random)"
        for name, task in zip(("D_P", "D_H"), moments, strict=True)
    ]
    return Intervals(pd.DataFrame(rows), " and ".join(units), replicates, replicates - len(good))


def _quantities(spectra: TaskSpectra, compared: Sequence[Comparison], ridge: float) -> dict[Quantity, float]:
    """Return every number that gets an interval."""
    found: dict[Quantity, float] = {}
    for row in kappa_rows(spectra, ridge=ridge):
        place = (row["task"], row["extractor"], "", row["convention"])
        found["kappa", *place] = row["kappa"]
        if row["convention"] == "compact":
            found["rank", *place] = row["rank"]
    for pair in compared:
        for convention, gauge in MEASURES[:2]:
            result = measured(spectra, pair, convention, gauge, ridge=ridge)
            for name in ("harmful_ratio", "pretrain_ratio", "rir"):
                found[name, "", pair.extractor, pair.baseline, convention] = getattr(result, name)
    ceiling = rir_ceiling(spectra.range_P, spectra.range_H, rtol=spectra.rtol)
    found["rir_ceiling", "", "", "", "compact"] = ceiling.value
    return found
