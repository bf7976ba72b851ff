"""Notebook 4: how much immunization is possible, in the plane of the two ratios of Eq. 15.

What is possible at all is `condnum.pareto`'s; here some extractors are placed in it, and the path of
Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.ceiling import optimal_immunizer
from condnum.covariance_range import CovarianceRange
from condnum.errors import InvalidInputError
from condnum.methods.algorithm1 import Ours
from condnum.methods.descent import descend
from condnum.methods.method import Parameters
from condnum.pareto import FeasibleRegion, feasible_region, immunizer_family
from condnum.problem import ImmunizationProblem
from condnum.spectra import covariance_factor
from condnum.teaching.quadratic import SpectrumShape
from condnum.teaching.two_tasks import NullKind, two_tasks

#: Steps of Algorithm 1 that the figure follows, and random extractors that test the ceiling.
PATH_STEPS, RANDOM_EXTRACTORS = 100, 90
#: Relative error that a κ of this size may have from round-off: κ(M) ≤ 1e4 and eps = 2e-16.
SLACK = 1e-9
#: A path ends where κ exceeds this: from there its smallest eigenvalue is round-off.
LARGEST_KAPPA = 1e20


@dataclass(frozen=True)
class Plane(FeasibleRegion):
    """Two tasks in the (ii)/(i) plane: what is possible, and where some extractors lie."""

    optimum: NDArray[np.float64]  # (2,) (ii) and (i) at θ* = K_P^{-1/2}
    family: NDArray[np.float64]  # (F, 2) at K_P^{-s/2}, s from 0 to 1; then free scaling, if there is any
    cloud: NDArray[np.float64]  # (n, 2) at random extractors

    @property
    def cloud_share(self) -> float:
        """Largest RIR of the random extractors, as a share of the ceiling; 0 where that is infinite."""
        return float((self.cloud[:, 1] / self.cloud[:, 0]).max() / self.ceiling.value)


@dataclass(frozen=True)
class CeilingDemo:
    """The plane, and the path of Algorithm 1 in it."""

    plane: Plane
    step: int  # the step that the reader looks at
    path: NDArray[np.float64]  # (T + 1, 2) (ii) and (i) after each step, from θ = I
    rir: NDArray[np.float64]  # (T + 1,) (i)/(ii)
    stop_reason: str  # "diverged" if the step size was too large, and the path ends early

    @property
    def shown(self) -> int:
        """The step that can be shown: the last one, if the path ended before `step`."""
        return min(self.step, len(self.path) - 1)


class FromIdentity(Ours):
    """Algorithm 1 that starts at the raw inputs, θ₀ = I, where (i) = (ii) = 1."""

    def initial(self, problem: ImmunizationProblem, generator: torch.Generator) -> Parameters:
        """Return I."""
        return {"theta": torch.eye(problem.dimension, dtype=torch.float64)}


def ceiling_demo(
    *,
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 4,
    shape: SpectrumShape = "geometric",
    null: NullKind = "none",
    ratio: float = 1.0,
    learning_rate: float = 0.3,
    step: int = PATH_STEPS,
) -> CeilingDemo:
    """Place the ceiling, θ*, a path of Algorithm 1 and random extractors in the (ii)/(i) plane.

    The path is plain gradient descent on the two regularizers with Algorithm 1's preconditioner and
    λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at the start, from θ = I and without a supervised loss (no targets).

    Examples:
        Aligned spectra with one shape: κ(M) = 100/10, and RIR_max = 10·100/10.

        >>> demo = ceiling_demo(kappa_pretrain=100.0, kappa_harmful=10.0, angle=0.0, step=0)
        >>> round(demo.plane.ceiling.value, 9), demo.rir[0].round(9)
        (100.0, np.float64(1.0))
    """
    if not 0 <= step <= PATH_STEPS:
        raise InvalidInputError(f"step must lie between 0 and {PATH_STEPS}, got {step}.")
    tasks = (kappa_pretrain, kappa_harmful, angle, dimension, shape, null)
    path, reason = _path(tasks, ratio, learning_rate)
    return CeilingDemo(_plane(tasks), step, path, path[:, 1] / path[:, 0], reason)


@lru_cache(maxsize=64)
def _plane(tasks: tuple[float, float, float, int, SpectrumShape, NullKind]) -> Plane:
    """Return what does not depend on the path."""
    K_P, K_H = _covariances(*tasks)
    region = feasible_region(K_P, K_H)
    factors = [covariance_factor(torch.from_numpy(K)).numpy() for K in (K_P, K_H)]
    start = np.array([_kappa(np.eye(len(K_P)), B) for B in factors])

    def ratios(theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (ii) and (i) of a batch."""
        return _frozen(np.stack([_kappa(theta, B) for B in factors], axis=-1) / start)

    optimum = np.asarray(optimal_immunizer(K_P, K_H))
    return Plane(
        **vars(region),
        optimum=ratios(optimum),
        family=ratios(_family(K_P, K_H, free=math.isinf(region.ceiling.value))),
        cloud=ratios(_random_extractors(optimum, K_H)),
    )


@lru_cache(maxsize=64)
def _path(
    tasks: tuple[float, float, float, int, SpectrumShape, NullKind], ratio: float, learning_rate: float
) -> tuple[NDArray[np.float64], str]:
    """Return (ii) and (i) along Algorithm 1, `(T + 1, 2)`, and why it stopped."""
    problem = ImmunizationProblem.from_covariances(*_covariances(*tasks))
    method = FromIdentity()
    settings = method.defaults.with_overrides(
        optimizer="gd", schedule="constant", learning_rate=learning_rate, ratio=ratio,
        steps=PATH_STEPS, record_every=1,
    )  # fmt: skip
    run = descend(problem, method, settings, seed=0)
    kappa = np.stack([run.history["kappa_pretrain"], run.history["kappa_harmful"]], axis=1)
    lost = np.flatnonzero((kappa > LARGEST_KAPPA).any(axis=1))
    if len(lost):
        kappa = kappa[: lost[0]]
    reason = "diverged" if len(lost) else run.stop_reason
    return _frozen(kappa / kappa[0]), reason


def _covariances(
    kappa_pretrain: float, kappa_harmful: float, angle: float, dimension: int, shape: SpectrumShape,
    null: NullKind,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return `two_tasks` of a tuple that can be cached."""
    return two_tasks(
        kappa_pretrain=kappa_pretrain, kappa_harmful=kappa_harmful, angle=angle,
        dimension=dimension, shape=shape, null=null,
    )  # fmt: skip


def _family(K_P: NDArray[np.float64], K_H: NDArray[np.float64], *, free: bool) -> NDArray[np.float64]:
    """Return `K_P^{-s/2}`, s from 0 to 1, `(F, D, D)`; with `free`, null(K_P) then gains 100-fold."""
    family = immunizer_family(
        CovarianceRange.of(torch.from_numpy(K_P)), np.linspace(0, 1, 21).tolist()
    ).numpy()
    if not free:
        return family
    scaled = [optimal_immunizer(K_P, K_H, null_gain=g) for g in np.geomspace(1, 100, 9).tolist()]
    return np.concatenate([family, np.stack(scaled)])


def _random_extractors(optimum: NDArray[np.float64], K_H: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `(n, D, D)` extractors: Gaussian ones, some around θ*, some around the front."""
    n, D = RANDOM_EXTRACTORS // 3, len(optimum)
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(3, n, D, D))
    size = np.geomspace(3e-3, 3, n)[:, None, None]
    powers = generator.uniform(-0.5, 1.5, size=(n, 1))
    mu, V = np.linalg.eigh(optimum @ K_H @ optimum)
    along = (V * (np.maximum(mu, SLACK * mu[-1]) ** (powers / 2))[:, None, :]) @ V.T
    near, beside = np.eye(D) + size * noise[1], np.eye(D) + size * noise[2]
    return np.concatenate([noise[0], optimum @ near, optimum @ along @ beside])


def _kappa(theta: NDArray[np.float64], factor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return κ of `H(θ)` over the rank of K, `(...)`: invertible extractors keep that rank.

    As `hessian_spectrum` does, but by NumPy: torch wakes its threads for a batch of tiny matrices.
    """
    sigma = np.linalg.svd(factor @ theta, compute_uv=False)
    return np.asarray((sigma[..., 0] / sigma[..., -1]) ** 2)


def _frozen(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an array that a reader of the cache cannot change."""
    values.flags.writeable = False
    return values
