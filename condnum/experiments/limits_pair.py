"""The limits of one pair of tasks: ceilings along ε, null spaces, the front, and extractors that test it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.covariance_range import CovarianceRange
from condnum.directions import pencil_directions
from condnum.null_space import null_spaces
from condnum.pareto import extractor_ratios, feasible_region, front_extractor, immunizer_family
from condnum.spectra import hessian_spectrum
from condnum.sweep import CellResult

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
