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
from condnum.studies.measure import spectral_cell
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
    theta = result.theta
    row, arrays = spectral_cell(cell, problem, result, (P.factor, H.factor))
    norm = float(theta.square().sum())
    ridges = [absolute_ridge(P, share) for share in cell["ridge_shares"]]
    bounds = {
        "ceiling_compact": rir_ceiling(P, H).value,
        "ceiling_ridge": ridge_convention_ceiling(P, H),
        "ceiling_ridge_as_trained": ridge_convention_ceiling(P, H, squared_norm=norm),
    }
    ratios = np.array([extractor_ratios(theta, P.ridged(e), H.ridged(e)) for e in ridges])
    return CellResult({**row, **bounds}, arrays | {"ridges": np.array(ridges), "ratios": ratios})


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
        star = (P.vectors * P.values.rsqrt()) @ P.vectors.mT
        pretrain_ratio, harmful_ratio = extractor_ratios(star, P, H)
        kappas = (region.kappa_pretrain, region.kappa_harmful, region.kappa_pencil)
        ceilings.append(
            (e, *kappas, limit.lambda_max, limit.lambda_min, limit.value, harmful_ratio / pretrain_ratio)
        )
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


def race(P: CovarianceRange, H: CovarianceRange, *, ridge: float, settings: dict[str, Any]) -> CellResult:
    """Let closed forms and Algorithm 1 immunize the same two tasks, `K_P + εI` and `K_H + εI`.

    The generalised eigenvectors W of `(K_H, K_P)` are an optimal extractor: `WᵀK_PW = I`, `WᵀK_HW` diagonal.
    So is `L^{-T}` of the Cholesky factor `K_P = LLᵀ`, which does not tell the ceiling. Seconds are those of
    the processor, so that other work on the machine does not count; on one idle core they are wall time.
    """
    P, H = P.ridged(ridge), H.ridged(ridge)
    K_P, K_H = (task.factor.mT @ task.factor for task in (P, H))
    problem = ImmunizationProblem.from_covariances(K_P, K_H)

    def eigenproblem() -> Tensor:
        return torch.from_numpy(eigh(K_H.numpy(), K_P.numpy())[1].copy())

    def factorisation() -> Tensor:
        lower = cholesky(K_P.numpy(), lower=True)
        return torch.from_numpy(solve_triangular(lower, np.eye(len(lower)), lower=True).T.copy())

    def algorithm_1() -> ImmunizationResult:
        return immunize(problem, "ours", seed=0, **settings | {"record_every": 0})

    def timed(function: Callable[[], Any], times: int) -> tuple[Any, float]:
        """Return what a function gives, and the median of its processor time."""
        result, seconds = None, []
        for _ in range(times):
            start = time.process_time()
            result = function()
            seconds.append(time.process_time() - start)
        return result, float(np.median(seconds))

    closed = []
    for function in (eigenproblem, factorisation):
        function()  # to warm up
        closed.append(timed(function, REPEATS))
    descent, spent = timed(algorithm_1, 1)
    thetas = [*(theta for theta, _ in closed), descent.theta]
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
