"""Cells of the experiment on limits: an extractor measured along ε, the limits of a pair, a race."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, solve_triangular
from torch import Tensor

from condnum.methods import ImmunizationResult, immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.cells import Cell, CellResult, Row
from condnum.theory.ceiling import null_spaces, pencil_directions, ridge_convention_ceiling, rir_ceiling
from condnum.theory.pareto import extractor_ratios, feasible_region, front_extractor, immunizer_family
from condnum.theory.spectra import CovarianceRange, hessian_spectrum

#: Up to this dimension the front is tested by many extractors, climbed ones among them.
SMALL = 128

#: Points of the family from I to θ*, powers of the front, random extractors; for small D and for large.
POINTS = {True: (21, (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0), 90), False: (6, (0.0, 0.25, 0.5), 9)}

#: Generalised eigenvectors that are kept from each end of the pencil.
KEPT_DIRECTIONS = 3

#: Steps of Adam that push an extractor against the ceiling, and its rate.
CLIMB_STEPS, CLIMB_RATE = 300, 0.03


def pair_limits(
    pretrain: CovarianceRange,
    harmful: CovarianceRange,
    *,
    ridges: Sequence[float],
    ridge: float,
    seed: int = 0,
) -> CellResult:
    """Compute what is possible for two tasks, and try to get beyond it."""
    spaces = null_spaces(pretrain, harmful)
    names = (
        "dimension", "rank_pretrain", "rank_harmful", "common", "harmful_only", "harmful_energy",
        "intersection", "intersection_energy", "pretrain_only", "pretrain_energy",
    )  # fmt: skip
    row: dict[str, Any] = {name: getattr(spaces, name) for name in names}
    P, H = pretrain.ridged(ridge), harmful.ridged(ridge)
    arrays = {"ceilings": np.array([ceiling_at(pretrain, harmful, e) for e in ridges])}
    arrays |= tried_points(P, H, seed=seed)
    found = pencil_directions(P, H)
    count = min(KEPT_DIRECTIONS, len(found.values) // 2)
    kept = [*range(count), *range(len(found.values) - count, len(found.values))]
    arrays |= {
        "eigenvalues": found.values.numpy(),
        "eigenvalue_index": np.array(kept),
        "filters": found.filters[:, kept].numpy(),
        "patterns": found.patterns[:, kept].numpy(),
        "null_energies": spaces.energies.numpy(),
    }
    return CellResult(row, arrays)


#: Columns of `ceiling_at`.
CEILING_COLUMNS = (
    "ridge", "kappa_pretrain", "kappa_harmful", "kappa_pencil", "lambda_max", "lambda_min", "rir_ceiling",
    "optimal_rir",
)  # fmt: skip


def ceiling_at(pretrain: CovarianceRange, harmful: CovarianceRange, ridge: float) -> tuple[float, ...]:
    """Return the ceiling of `K + εI` with what decides it, and what the closed form attains of it."""
    P, H = pretrain.ridged(ridge), harmful.ridged(ridge)
    region = feasible_region(P, H)
    theta = (P.vectors * P.values.rsqrt()) @ P.vectors.mT
    pretrain_ratio, harmful_ratio = extractor_ratios(theta, P, H)
    limit = region.ceiling
    return (
        ridge, region.kappa_pretrain, region.kappa_harmful, region.kappa_pencil,
        limit.lambda_max, limit.lambda_min, limit.value, harmful_ratio / pretrain_ratio,
    )  # fmt: skip


def tried_points(P: CovarianceRange, H: CovarianceRange, *, seed: int) -> dict[str, NDArray[np.float64]]:
    """Return (ii) and (i) of extractors on the family, on the front, and of some that might lie beyond it."""
    count, powers, samples = POINTS[P.dimension <= SMALL]
    family = immunizer_family(P, np.linspace(0, 1, count).tolist())
    front = [torch.as_tensor(front_extractor(P, H, power)) for power in powers]
    generator = torch.Generator().manual_seed(seed)
    random = random_extractors(P, H, samples, generator)
    points: dict[str, Iterable[Tensor]] = {"family": family, "front": front, "random": random}
    if P.dimension <= SMALL:
        points["climbed"] = [climb(theta, P, H) for theta in random[:: samples // 6]]
    return {
        name: np.array([extractor_ratios(theta, P, H) for theta in thetas]).reshape(-1, 2)
        for name, thetas in points.items()
    }


def random_extractors(
    P: CovarianceRange, H: CovarianceRange, count: int, generator: torch.Generator
) -> list[Tensor]:
    """Draw extractors: a third Gaussian, a third around θ*, a third around the front."""
    D, third = P.dimension, max(1, count // 3)
    star = (P.vectors * P.values.rsqrt()) @ P.vectors.mT

    def noise(size: float) -> Tensor:
        """Return I and a Gaussian matrix of a spectral norm of about 2·size."""
        return torch.eye(D).to(star) + size / D**0.5 * torch.randn(D, D, generator=generator).to(star)

    sizes = np.geomspace(1e-3, 1, third).tolist()
    powers = torch.rand(third, generator=generator).tolist()
    gaussian = [torch.randn(D, D, generator=generator).to(star) for _ in range(third)]
    near = [star @ noise(size) for size in sizes]
    along = [torch.as_tensor(front_extractor(P, H, s)) @ noise(e) for s, e in zip(powers, sizes, strict=True)]
    return gaussian + near + along


def climb(theta: Tensor, P: CovarianceRange, H: CovarianceRange) -> Tensor:
    """Raise the RIR of an extractor by Adam on `log κ(H_H) − log κ(H_P)`, differentiated through the SVD."""
    # In coordinates where H_P = SᵀS, so that one rate fits all directions.
    root = P.factor
    S = (root @ theta / torch.linalg.matrix_norm(root @ theta, ord=2)).requires_grad_()
    back = P.vectors / P.values.sqrt()
    optimizer = torch.optim.Adam([S], lr=CLIMB_RATE)
    best, kept = -math.inf, theta
    for _ in range(CLIMB_STEPS):
        current = back @ S
        pretrain, harmful = (hessian_spectrum(current, task.factor) for task in (P, H))
        value = (harmful[0] / harmful[-1]).log() - (pretrain[0] / pretrain[-1]).log()
        reached = value.item()
        if not math.isfinite(reached):
            break
        if reached > best:
            best, kept = reached, current.detach()
        optimizer.zero_grad()
        (-value).backward()
        optimizer.step()
    return kept


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


def measure_cell(
    cell: Cell,
    problem: ImmunizationProblem,
    result: ImmunizationResult,
    ranges: tuple[CovarianceRange, CovarianceRange],
    bounds: dict[str, float],
) -> CellResult:
    """Measure an extractor on `K + εI` for every ε, and keep its spectra for the usual measures."""
    P, H = ranges
    theta = result.theta
    sigma = torch.linalg.svdvals(theta)
    ridges = [absolute_ridge(P, share) for share in cell["ridge_shares"]]
    norm = float(theta.square().sum())
    row: dict[str, Any] = {
        "method": cell["method"],
        "seed": cell["seed"],
        "dimension": problem.dimension,
        "squared_norm": norm,
        "theta_condition": float(sigma[0] / sigma[-1]) if float(sigma[-1]) > 0 else float("inf"),
        "loss_gap": problem.pretrain.loss_gap(theta),
        "steps": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        **bounds,
        "ceiling_ridge_as_trained": ridge_convention_ceiling(P, H, squared_norm=norm),
    }
    arrays = {
        "ridges": np.array(ridges),
        "ratios": np.array([extractor_ratios(theta, P.ridged(e), H.ridged(e)) for e in ridges]),
    }
    for name, task in (("pretrain", P), ("harmful", H)):
        arrays[f"{name}_before"] = task.values.numpy()
        arrays[f"{name}_after"] = hessian_spectrum(theta, task.factor).numpy()
    return CellResult(row, arrays)


def fixed_ceilings(P: CovarianceRange, H: CovarianceRange) -> dict[str, float]:
    """Return the ceilings on K itself that do not depend on θ."""
    return {"ceiling_compact": rir_ceiling(P, H).value, "ceiling_ridge": ridge_convention_ceiling(P, H)}


def absolute_ridge(pretrain: CovarianceRange, share: float) -> float:
    """Return ε in the units of K.

    Examples:
        >>> absolute_ridge(CovarianceRange.of(torch.diag(torch.tensor([3.0, 0.0])).double()), 0.1)
        0.15...
    """
    return share * float(pretrain.values.sum()) / pretrain.dimension
