"""Cells of the experiment on limits: an extractor measured along ε, the limits of a pair, a race."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.linalg import cholesky, eigh, solve_triangular
from torch import Tensor

from condnum.methods import ImmunizationResult, immunize
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.cells import Cell, CellResult
from condnum.studies.measure import rir_ceilings, spectral_cell
from condnum.theory.ceiling import null_spaces, pencil_directions
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

#: Ceilings of a cell's three measures.
BOUNDS = ("ceiling_compact", "ceiling_ridge", "ceiling_ridge_as_trained")

#: Columns of the array `ceilings`.
CEILING_COLUMNS = (
    "ridge", "kappa_pretrain", "kappa_harmful", "kappa_pencil", "lambda_max", "lambda_min", "rir_ceiling",
    "optimal_rir",
)  # fmt: skip

#: What the null spaces of a pair are told by.
NULL_SPACES = (
    "dimension", "rank_pretrain", "rank_harmful", "common", "harmful_only", "harmful_energy",
    "intersection", "intersection_energy", "pretrain_only", "pretrain_energy",
)  # fmt: skip

#: Repetitions of a closed form in a race; the median counts.
REPEATS = 5

#: Contestants of a race, in the order of the arrays.
CONTESTANTS = ("generalised eigenproblem", "Cholesky factor", "Algorithm 1")


def closed_form(P: CovarianceRange) -> Tensor:
    """Return θ* of an invertible covariance, `K_P^{-1/2}`."""
    return (P.vectors * P.values.rsqrt()) @ P.vectors.mT


def absolute_ridge(pretrain: CovarianceRange, share: float) -> float:
    """Return ε in the units of K."""
    return share * float(pretrain.values.sum()) / pretrain.dimension


def measure_cell(
    cell: Cell,
    problem: ImmunizationProblem,
    result: ImmunizationResult,
    P: CovarianceRange,
    H: CovarianceRange,
) -> CellResult:
    """Measure an extractor on `K + εI` for every ε, and keep its spectra for the usual measures."""
    row, arrays = spectral_cell(problem, result, (P.factor, H.factor))
    ridges = [absolute_ridge(P, share) for share in cell["ridge_shares"]]
    ratios = [extractor_ratios(result.theta, P.ridged(e), H.ridged(e)) for e in ridges]
    bounds = dict(zip(BOUNDS, rir_ceilings(P, H, result.theta), strict=True))
    return CellResult({**row, **bounds}, arrays | {"ridges": np.array(ridges), "ratios": np.array(ratios)})


def pair_limits(
    pretrain: CovarianceRange,
    harmful: CovarianceRange,
    *,
    ridges: Sequence[float],
    ridge: float,
    seed: int = 0,
) -> CellResult:
    """Compute what is possible for two tasks, and try to get beyond it."""
    ceilings = []
    for e in ridges:  # the ceiling of `K + εI`, what decides it, and what the closed form attains of it
        P, H = pretrain.ridged(e), harmful.ridged(e)
        region = feasible_region(P, H)
        limit = region.ceiling
        pretrain_ratio, harmful_ratio = extractor_ratios(closed_form(P), P, H)
        kappas = (region.kappa_pretrain, region.kappa_harmful, region.kappa_pencil)
        bounds = (limit.lambda_max, limit.lambda_min, limit.value)
        ceilings.append((e, *kappas, *bounds, harmful_ratio / pretrain_ratio))
    P, H = pretrain.ridged(ridge), harmful.ridged(ridge)
    spaces, found = null_spaces(pretrain, harmful), pencil_directions(P, H)
    count = min(KEPT_DIRECTIONS, len(found.values) // 2)
    kept = [*range(count), *range(len(found.values) - count, len(found.values))]
    small = P.dimension <= SMALL
    steps, powers, samples = POINTS[small]
    random = random_extractors(P, H, samples, torch.Generator().manual_seed(seed))
    tried: dict[str, Iterable[Tensor]] = {  # to get beyond what is possible
        "family": immunizer_family(P, np.linspace(0, 1, steps).tolist()),
        "front": [torch.as_tensor(front_extractor(P, H, power)) for power in powers],
        "random": random,
        **({"climbed": [climb(theta, P, H) for theta in random[:: samples // 6]]} if small else {}),
    }
    points = {
        name: np.array([extractor_ratios(theta, P, H) for theta in thetas]).reshape(-1, 2)
        for name, thetas in tried.items()
    }
    arrays = points | {
        "ceilings": np.array(ceilings),
        "eigenvalues": found.values.numpy(),
        "eigenvalue_index": np.array(kept),
        "filters": found.filters[:, kept].numpy(),
        "patterns": found.patterns[:, kept].numpy(),
    }
    return CellResult({name: getattr(spaces, name) for name in NULL_SPACES}, arrays)


def random_extractors(
    P: CovarianceRange, H: CovarianceRange, count: int, generator: torch.Generator
) -> list[Tensor]:
    """Draw extractors: a third Gaussian, a third around θ*, a third around the front."""
    D, star, third = P.dimension, closed_form(P), max(1, count // 3)

    def gaussian() -> Tensor:
        return torch.randn(D, D, generator=generator).to(star)

    def moved(theta: Tensor, size: float) -> Tensor:
        """Return θ times I and a Gaussian matrix of a spectral norm of about 2·size."""
        return theta @ (torch.eye(D).to(star) + size / D**0.5 * gaussian())

    sizes = np.geomspace(1e-3, 1, third).tolist()
    powers = torch.rand(third, generator=generator).tolist()
    free = [gaussian() for _ in range(third)]
    near = [moved(star, size) for size in sizes]
    fronts = (torch.as_tensor(front_extractor(P, H, power)) for power in powers)
    return free + near + [moved(theta, size) for theta, size in zip(fronts, sizes, strict=True)]


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


def race(P: CovarianceRange, H: CovarianceRange, *, ridge: float, settings: dict[str, Any]) -> CellResult:
    """Let closed forms and Algorithm 1 immunize the same two tasks, `K_P + εI` and `K_H + εI`.

    The generalised eigenvectors W of `(K_H, K_P)` are an optimal extractor: `WᵀK_PW = I`, `WᵀK_HW` diagonal.
    So is `L^{-T}` of the Cholesky factor `K_P = LLᵀ`, which does not tell the ceiling. Seconds are those of
    the processor, so that other work on the machine does not count; on one idle core they are wall time.
    """
    P, H = P.ridged(ridge), H.ridged(ridge)
    K_P, K_H = ((task.factor.mT @ task.factor).numpy() for task in (P, H))
    problem = ImmunizationProblem.from_covariances(K_P, K_H)

    def eigenproblem() -> Any:
        return eigh(K_H, K_P)[1]

    def factorisation() -> Any:
        return solve_triangular(cholesky(K_P, lower=True), np.eye(len(K_P)), lower=True).T

    def timed(function: Callable[[], Any], times: int = REPEATS) -> tuple[Any, float]:
        """Return what a function gives, and the median of its processor time after a run to warm up."""
        seconds = []
        for _ in range(times + (times > 1)):
            start = time.process_time()
            result = function()
            seconds.append(time.process_time() - start)
        return result, float(np.median(seconds[-times:]))

    closed = [timed(eigenproblem), timed(factorisation)]
    descent, spent = timed(lambda: immunize(problem, "ours", **settings | {"record_every": 0}), times=1)
    thetas = [*(torch.from_numpy(theta.copy()) for theta, _ in closed), descent.theta]
    row = {
        "ridge": ridge,
        "rir_ceiling": feasible_region(P, H).ceiling.value,
        "steps": descent.steps,
        "stop_reason": descent.stop_reason,
        "dimension": problem.dimension,
        "threads": torch.get_num_threads(),
    }
    arrays = {
        "seconds": np.array([*(seconds for _, seconds in closed), spent]),
        "ratios": np.array([extractor_ratios(theta, P, H) for theta in thetas]),
    }
    return CellResult(row, arrays)
