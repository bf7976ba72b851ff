"""One generalised eigenproblem against gradient descent: the RIR that each reaches, and its seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, solve_triangular

from condnum.covariance_range import CovarianceRange
from condnum.methods import immunize
from condnum.pareto import extractor_ratios, feasible_region
from condnum.problem import ImmunizationProblem
from condnum.sweep import CellResult
from condnum.sweep.result import Row

#: Repetitions of a closed form; the median counts.
REPEATS = 5

#: Contestants, in the order of the arrays.
CONTESTANTS = ("generalised eigenproblem", "Cholesky factor", "Algorithm 1")


def race(
    problem: ImmunizationProblem,
    ranges: tuple[CovarianceRange, CovarianceRange],
    *,
    ridge: float,
    settings: dict[str, Any],
) -> CellResult:
    """Let closed forms and Algorithm 1 immunize the same two tasks, `K_P + εI` and `K_H + εI`.

    The generalised eigenvectors W of `(K_H, K_P)` are an optimal extractor: `WᵀK_PW = I`, `WᵀK_HW` diagonal.
    So is `L^{-T}` of the Cholesky factor `K_P = LLᵀ`, which does not tell the ceiling. Seconds are those of
    the processor, so that other work on the machine does not count; on one idle core they are wall time.
    """
    P, H = (task.ridged(ridge) for task in ranges)
    K_P, K_H = (task.factor.mT @ task.factor for task in (P, H))

    def eigenproblem() -> NDArray[np.float64]:
        """Return W, whose eigenvalues are the ceiling's."""
        return np.asarray(eigh(K_H.numpy(), K_P.numpy())[1])

    def factorisation() -> NDArray[np.float64]:
        """Return L^{-T}."""
        lower = cholesky(K_P.numpy(), lower=True)
        return np.asarray(solve_triangular(lower, np.eye(len(lower)), lower=True).T)

    timed = [_median_seconds(function) for function in (eigenproblem, factorisation)]
    started = time.process_time()
    descent = immunize(
        ImmunizationProblem.from_covariances(K_P, K_H), "ours", seed=0, **settings | {"record_every": 0}
    )
    spent = time.process_time() - started
    thetas = [*(torch.from_numpy(theta.copy()) for _, theta in timed), descent.theta]
    row: Row = {
        "ridge": ridge,
        "rir_ceiling": feasible_region(P, H).ceiling.value,
        "steps": descent.steps,
        "stop_reason": descent.stop_reason,
        "dimension": problem.dimension,
        "threads": torch.get_num_threads(),
    }
    arrays = {
        "seconds": np.array([*(seconds for seconds, _ in timed), spent]),
        "ratios": np.array([extractor_ratios(theta, P, H) for theta in thetas]),
    }
    return CellResult(row, arrays)


def _median_seconds(function: Callable[[], NDArray[np.float64]]) -> tuple[float, NDArray[np.float64]]:
    """Return the median processor time of a function, after one call to warm up, and what it returns."""
    result = function()
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds)), result
