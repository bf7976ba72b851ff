r"""Notebook 5: what condition numbers say about two feature matrices of the reader's own.

All of it follows from the two covariances :math:`K_P = X_P^\top X_P` and :math:`K_H = X_H^\top X_H`
(Eq. 9); no labels are read. What needs labels, the cost of a probe, is predicted for random ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.audit.directions import overlap_map
from condnum.audit.task_facts import NEAR
from condnum.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.covariance_range import CovarianceRange
from condnum.errors import InvalidInputError, RankError
from condnum.probing import ProbeCurve, linear_probe
from condnum.probing.line_search import log_spaced_steps
from condnum.singular_alignment import alignment
from condnum.spectra import (
    ConditionNumber,
    Convention,
    condition_from_spectrum,
    covariance,
    default_rtol,
    singular_values,
)
from condnum.teaching.own_pair import Example, OwnPair, own_pair

#: Steps that the predicted probe may take.
PROBE_STEPS = (1_000, 10_000)


@dataclass(frozen=True, eq=False)
class TaskSpectrum:
    """One task's covariance: its spectrum, and κ in both conventions."""

    rows: int  # N
    sigma: NDArray[np.float64]  # (D,) eigenvalues of K, descending, below the tolerance too
    compact: ConditionNumber  # σ₁/σ_k, with the rank k
    ridge: ConditionNumber  # (σ₁ + ε)/(σ_D + ε)
    tolerance: float  # rtol·σ₁: eigenvalues above it count
    near: int  # eigenvalues within a factor `NEAR` of the tolerance, which decide the rank


@dataclass(frozen=True, eq=False)
class OwnData:
    """Everything notebook 5 says about a pair of feature matrices."""

    title: str
    columns: pd.DataFrame  # of `FeaturePair`: scale of each of the D columns, and what it looks like
    pretrain: TaskSpectrum
    harmful: TaskSpectrum
    overlaps: NDArray[np.float64]  # (m, m) |q_Piᵀq_Hj|², summed over blocks if D > MAP_SIZE
    misalignment: float  # of Eq. 10 at θ*: 0 if K_P and K_H share their eigenvectors
    ceiling: float  # RIR_max, compact; may be infinite
    harmful_only: int  # directions that X_H excites and X_P does not
    ridge_limit: float  # upper bound on RIR in the ridge convention, in the unit gauge
    ridge: float  # ε
    goal: float  # the norm ratio to reach
    probes: ProbeCurve  # (4, T) D_P as it is, D_P at θ*, D_H as it is, D_H at θ*
    warnings: tuple[str, ...]

    @property
    def harmful_ratio(self) -> float:
        """(i) of Definition 3.1 at θ*: κ(H_H(θ*)) / κ(K_H), compact."""
        return float(self.probes.condition[3] / self.probes.condition[2])

    @property
    def pretrain_ratio(self) -> float:
        """(ii) of Definition 3.1 at θ*: κ(H_P(θ*)) / κ(K_P), compact."""
        return float(self.probes.condition[1] / self.probes.condition[0])

    @property
    def costs(self) -> tuple[int, int, int, int]:
        """Recorded step at which each probe has reached the goal; −1 where it has not."""
        reached = self.probes.norm_ratio <= self.goal
        first = np.where(reached.any(axis=1), self.probes.steps[reached.argmax(axis=1)], -1)
        return int(first[0]), int(first[1]), int(first[2]), int(first[3])


def own_data(
    *,
    pretrain: str = "",
    harmful: str = "",
    example: Example = "diabetes",
    key: str = "",
    drop: str = "",
    standardise: bool = False,
    ridge: float = 1e-6,
    tolerance: float = 1.0,
    goal: float = 1e-3,
    steps: int = PROBE_STEPS[0],
    seed: int = 0,
) -> OwnData:
    r"""Analyse two feature matrices: κ's, ranks, alignment, ceiling, predicted probe cost, warnings.

    The probe's cost is that of gradient descent with exact line search from zero to the norm ratio
    `goal` (Eq. 16), for labels :math:`y = X w^*` with Gaussian :math:`w^*`: of features as they are, and
    of features after :math:`\theta^* = K_P^{-1/2}`, which attains the ceiling.

    Args:
        pretrain: Path of X_P, see `open_feature_stream`; empty together with `harmful`: the example.
        harmful: Path of X_H.
        example: `diabetes` (D = 8, two groups of patients) or `digits` (D = 64, the digits 4 and 7).
        key: Which array of an `.npz`; two names with a comma between are those of either file.
        drop: Columns to leave out, separated by commas.
        standardise: Each task's columns to mean 0 and deviation 1, as the paper does with the house prices.
        ridge: ε of the ridge convention, in the units of K.
        tolerance: Multiplies the rank tolerance `D·eps` of the stored type.
        goal: Norm ratio between 0 and 1.
        steps: The longest probe that is simulated.
        seed: Of the random labels.

    Returns:
        Spectra, overlaps, ceiling, probe curves and warnings.

    Raises:
        InvalidInputError: A number out of its range.
        CondnumError: As `own_pair`.
        RankError: A matrix of zeros, or tasks without a common direction.

    Examples:
        >>> result = own_data(example="diabetes")
        >>> result.pretrain.rows, result.harmful.rows, len(result.columns)
        (235, 207, 8)
        >>> result.costs[1]  # at θ*, κ(H_P) = 1: one step
        1
    """
    if not 0 < goal < 1:
        raise InvalidInputError(f"goal must lie between 0 and 1, got {goal}.")
    if not (tolerance > 0 and np.isfinite(tolerance)):
        raise InvalidInputError(f"tolerance must be positive and finite, got {tolerance}.")
    own = own_pair(pretrain, harmful, example, key=key, drop=drop, standardise=standardise)
    core = _core(own, tolerance, steps, seed)
    P = _task(len(own.X_P), core.geometry.sigma_P, core.rtol, ridge)
    H = _task(len(own.X_H), core.geometry.sigma_H, core.rtol, ridge)
    limit = ridge_convention_ceiling(core.range_P, core.range_H, ridge=ridge, rtol=core.rtol)
    notes = (*own.pair.notes, *_warnings(P, H, core.harmful_only))
    return OwnData(
        own.title, own.pair.columns, P, H, core.geometry.overlaps, core.misalignment, core.ceiling,
        core.harmful_only,
        limit, ridge, goal, core.probes, notes,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Geometry:
    """What the rank tolerance does not change either."""

    K_P: NDArray[np.float64]  # (D, D)
    K_H: NDArray[np.float64]  # (D, D)
    sigma_P: torch.Tensor  # (D,) descending
    sigma_H: torch.Tensor  # (D,)
    overlaps: NDArray[np.float64]


@lru_cache(maxsize=4)
def _geometry(own: OwnPair) -> _Geometry:
    """Form both covariances, their spectra and the overlaps of their eigenvectors."""
    K_P, K_H = np.asarray(covariance(own.X_P)), np.asarray(covariance(own.X_H))
    for name, K in (("K_P", K_P), ("K_H", K_H)):
        if not K.any():
            raise RankError(
                f"{name} has rank 0: every entry of X is zero (standardising does that to constants)."
            )
    return _Geometry(K_P, K_H, _spectrum(own.X_P), _spectrum(own.X_H), overlap_map(K_P, K_H))


@dataclass(frozen=True, eq=False)
class _Core:
    """What neither ε nor the goal changes."""

    rtol: float
    geometry: _Geometry
    range_P: CovarianceRange
    range_H: CovarianceRange
    misalignment: float
    ceiling: float
    harmful_only: int
    probes: ProbeCurve


@lru_cache(maxsize=8)
def _core(own: OwnPair, tolerance: float, steps: int, seed: int) -> _Core:
    """Decompose a pair; remembered, so that sliders of ε and of the goal need not wait for it."""
    D = len(own.pair.columns)
    eps = max(own.pair.pretrain.stored_eps, own.pair.harmful.stored_eps)
    rtol = default_rtol(D, eps) * tolerance
    if rtol >= 1:
        raise InvalidInputError(f"the rank tolerance is {rtol:.3g} times σ₁, above everything; lower it.")
    geometry = _geometry(own)
    K_P, K_H = geometry.K_P, geometry.K_H
    range_P = CovarianceRange.of(torch.from_numpy(K_P), rtol=rtol, name="K_P")
    range_H = CovarianceRange.of(torch.from_numpy(K_H), rtol=rtol, name="K_H")
    ceiling = rir_ceiling(range_P, range_H, rtol=rtol)
    theta = np.asarray(optimal_immunizer(K_P, K_H, rtol=rtol))
    solution = np.random.default_rng(seed).normal(size=D)
    probes = linear_probe(
        np.stack([np.eye(D), theta, np.eye(D), theta]),
        np.stack([K_P, K_P, K_H, K_H]),
        np.stack([K @ solution for K in (K_P, K_P, K_H, K_H)])[..., None],
        steps=steps, record=log_spaced_steps(steps, 200), rtol=rtol,
    )  # fmt: skip
    return _Core(
        rtol, geometry, range_P, range_H,
        misalignment=alignment(theta, K_H).misalignment,
        ceiling=ceiling.value,
        harmful_only=ceiling.harmful_only_dimension,
        probes=probes,
    )  # fmt: skip


def _spectrum(X: NDArray[np.float64]) -> torch.Tensor:
    """Return all D eigenvalues of `XᵀX`, descending; those beyond N are zero."""
    values = singular_values(torch.tensor(X), kind="features")
    return torch.nn.functional.pad(values, (0, X.shape[1] - len(values)))


def _task(rows: int, sigma: torch.Tensor, rtol: float, ridge: float) -> TaskSpectrum:
    """Return κ in both conventions, and how firm the rank is."""
    D = len(sigma)

    def kappa(convention: Convention) -> ConditionNumber:
        value, largest, smallest, rank = condition_from_spectrum(
            sigma, convention=convention, rtol=rtol, ridge=ridge, dimension=D
        )
        return ConditionNumber(float(value), float(largest), float(smallest), int(rank), D, convention)

    limit = rtol * float(sigma[0])
    near = int(((sigma > limit / NEAR) & (sigma < limit * NEAR)).sum())
    return TaskSpectrum(rows, sigma.numpy(), kappa("compact"), kappa("ridge"), limit, near)


def _warnings(P: TaskSpectrum, H: TaskSpectrum, harmful_only: int) -> list[str]:
    """Say what makes the numbers fragile, in sentences."""
    notes = []
    for name, task in (("K_P", P), ("K_H", H)):
        k, D = int(task.compact.rank), task.compact.dimension
        if k < D:
            notes.append(f"{name} has rank {k} of {D}: compact κ leaves {D - k} null direction(s) out.")
        if task.near:
            notes.append(
                f"{name}: {task.near} eigenvalue(s) lie within a factor {NEAR:g} of the rank tolerance; the "
                "rank, and with it compact κ, is decided by round-off. Move the tolerance and see."
            )
    if harmful_only:
        notes.append(
            f"X_H excites {harmful_only} direction(s) that X_P does not: θ can scale them freely, which "
            "makes the compact ceiling infinite. That is a statement on null spaces, not a promise."
        )
    return notes
