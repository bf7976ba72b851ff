"""Eq. 17 on features: κ of groups of samples before and after, with ranks, spread and warnings.

With N samples of D features the spectrum of `X̃ᵀX̃` is that of the smaller Gram matrix, N×N when
N < D; all groups are one batched eigenvalue problem, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.deep.rir_groups import FeatureLike, carried_eps, check_rows, draw_groups, gather, stored_eps
from condnum.deep.rir_warnings import rir_warnings
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.immunization import Gauge
from condnum.spectra import (
    PUBLISHED_RIDGE,
    Convention,
    condition_from_spectrum,
    default_rtol,
    singular_values,
)

FloatArray: TypeAlias = NDArray[np.float64]

#: The four matrices of a group, in the order of every array's first axis.
ROLES = ("pretrain_before", "pretrain_after", "harmful_before", "harmful_after")


@dataclass(frozen=True, eq=False)
class RirEstimate:
    """Eq. 17 in one convention: mean and standard deviation over the groups."""

    harmful_ratio: float  # (i), mean over groups, wanted > 1
    pretrain_ratio: float  # (ii), wanted ≤ 1
    rir: float  # mean of (i)/(ii) of each group, as the paper averages; not the ratio of the two means
    harmful_ratio_std: float  # sample deviation over groups; NaN for one group
    pretrain_ratio_std: float
    rir_std: float
    kappas: FloatArray  # (4, groups) condition numbers, rows as `ROLES`
    sigma_min: FloatArray  # (4, groups) compact: σ_k; ridge: σ_D, 0 when N < D
    ranks: NDArray[np.int64]  # (4, groups) numerical ranks
    convention: Convention

    @property
    def success(self) -> bool:
        """Clauses (a) and (b) of Definition 3.1: (i) > 1 and (ii) ≤ 1."""
        return self.harmful_ratio > 1 and self.pretrain_ratio <= 1


@dataclass(frozen=True, eq=False)
class RirTheta0:
    """RIR_θ0 in both conventions, which can disagree: never print one without the other."""

    compact: RirEstimate  # κ = σ₁/σ_k over the numerical rank
    ridge: RirEstimate  # κ = (σ₁+ε)/(σ_D+ε)
    groups: int
    group_size: int  # N of each group
    dimension: int  # D
    ridge_epsilon: float
    gauge: Gauge
    warnings: tuple[str, ...]  # plain sentences; empty if there is nothing to say

    @property
    def harmful_ratio(self) -> float:
        """(i) of Eq. 17, compact."""
        return self.compact.harmful_ratio

    @property
    def pretrain_ratio(self) -> float:
        """(ii) of Eq. 17, compact."""
        return self.compact.pretrain_ratio

    @property
    def rir(self) -> float:
        """RIR_θ0, compact."""
        return self.compact.rir


def rir_from_features(
    features_0_P: FeatureLike,
    features_I_P: FeatureLike,
    features_0_H: FeatureLike,
    features_I_H: FeatureLike,
    *,
    groups: int = 20,
    group_size: int = 100,
    seed: int = 0,
    ridge: float = PUBLISHED_RIDGE,
    rtol: float | None = None,
    gauge: Gauge = "unit",
) -> RirTheta0:
    """Measure RIR_θ0 (Eq. 17) on features of θ₀ and θ_I.

    A group is the same images for θ₀ and θ_I. Groups do not overlap while there are enough images;
    else each is drawn anew, and a warning says so.

    Args:
        features_0_P: `(N_P, D)` features of θ₀ on D_P.
        features_I_P: `(N_P, D')` features of θ_I on the same images.
        features_0_H: `(N_H, D)` of θ₀ on D_H.
        features_I_H: `(N_H, D')` of θ_I on the same images.
        groups: Number of groups; 20 in the paper.
        group_size: Samples of a group; 100 in the paper.
        seed: Of the draws; a local generator.
        ridge: ε > 0 of the ridge convention.
        rtol: Relative rank tolerance on the spectrum of `X̃ᵀX̃`; default as `feature_rtol`:
            `(max(N, D)·eps)²` with the round-off of the stored features (singular values of X̃ below
            `max(N, D)·eps·s₁` are noise), at least `min(N, D)·eps` of float64.
        gauge: `unit` scales the features of each model to a mean square of 1 over the groups of both
            tasks, which only the ridge convention sees (cf. the gauge of θ); `as_trained` does not.

    Returns:
        (i), (ii) and RIR_θ0 with their spread, ranks and warnings.

    Raises:
        InvalidInputError: Rows that do not correspond, fewer images than a group, non-finite features.
        RankError: The features of a group are all zero.
        UnknownNameError: Unknown gauge.

    Examples:
        Two orthogonal features; θ_I shrinks the second tenfold on D_H: κ grows by 100.

        >>> X = np.tile(np.eye(2), (50, 1))
        >>> result = rir_from_features(X, X, X, X * [1.0, 0.1], groups=1, group_size=100)
        >>> round(result.rir, 9), result.compact.success
        (100.0, True)
    """
    if gauge not in ("unit", "as_trained"):
        raise UnknownNameError("gauge", gauge, ["unit", "as_trained"])
    for name, value, least in (("groups", groups, 1), ("group_size", group_size, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
    check_rows(features_0_P, features_I_P, "D_P")
    check_rows(features_0_H, features_I_H, "D_H")
    rows_P, overlap_P = draw_groups(len(features_0_P), "D_P", groups, group_size, [seed, 0])
    rows_H, overlap_H = draw_groups(len(features_0_H), "D_H", groups, group_size, [seed, 1])
    features = (features_0_P, features_I_P, features_0_H, features_I_H)  # as ROLES
    X = [gather(part, rows_P, "D_P") for part in features[:2]]
    X += [gather(part, rows_H, "D_H") for part in features[2:]]
    if X[0].shape[-1] != X[2].shape[-1] or X[1].shape[-1] != X[3].shape[-1]:
        raise InvalidInputError(
            f"one model gives one number of features, got θ₀ {X[0].shape[-1]} on D_P and {X[2].shape[-1]} on "
            f"D_H, θ_I {X[1].shape[-1]} and {X[3].shape[-1]}."
        )
    sigma = [singular_values(x, kind="features") for x in X]
    scaled = _unit_gauge(X, sigma) if gauge == "unit" else sigma
    rtols = [_rtol(x, part) if rtol is None else rtol for x, part in zip(X, features, strict=True)]
    widths = [x.shape[-1] for x in X]
    compact = _estimate(sigma, widths, rtols, ridge, "compact")
    floored = _estimate(scaled, widths, rtols, ridge, "ridge")
    eps = max(carried_eps(part) for part in features)
    overlap = [task for task, repeated in (("D_P", overlap_P), ("D_H", overlap_H)) if repeated]
    warnings = rir_warnings(sigma, compact.sigma_min, widths, group_size, eps, rtols, overlap)
    warnings += _rank_warning(compact.ranks)
    return RirTheta0(
        compact,
        floored,
        groups,
        group_size,
        X[1].shape[-1],
        ridge,
        gauge,
        tuple(warnings),
    )


def _rtol(X: Tensor, features: FeatureLike) -> float:
    """Return the rank tolerance on the squared spectrum; see `rir_from_features`."""
    eps = min(stored_eps(features), float(torch.finfo(torch.float32).eps))
    return max(default_rtol(max(X.shape[-2:]), eps) ** 2, default_rtol(min(X.shape[-2:])))


def _unit_gauge(X: list[Tensor], sigma: list[Tensor]) -> list[Tensor]:
    """Scale the spectra of each model to features with mean square 1 over both tasks."""
    before, after = ((X[k].square().mean() + X[k + 2].square().mean()) / 2 for k in (0, 1))
    return [s / scale for s, scale in zip(sigma, (before, after, before, after), strict=True)]


def _estimate(
    sigma: list[Tensor], widths: list[int], rtols: list[float], ridge: float, convention: Convention
) -> RirEstimate:
    """Return Eq. 17 of four batches of spectra, in the order of `ROLES`."""
    measured = [
        condition_from_spectrum(s, convention=convention, rtol=rtol, ridge=ridge, dimension=width)
        for s, rtol, width in zip(sigma, rtols, widths, strict=True)
    ]
    kappas = torch.stack([value for value, _, _, _ in measured]).numpy()
    sigma_min = torch.stack([smallest for _, _, smallest, _ in measured]).numpy()
    ranks = torch.stack([rank for _, _, _, rank in measured]).numpy()
    pretrain, harmful = kappas[1] / kappas[0], kappas[3] / kappas[2]
    rir = harmful / pretrain

    def spread(values: FloatArray) -> float:
        return float(values.std(ddof=1)) if len(values) > 1 else float("nan")

    return RirEstimate(
        float(harmful.mean()),
        float(pretrain.mean()),
        float(rir.mean()),
        spread(harmful),
        spread(pretrain),
        spread(rir),
        kappas,
        sigma_min,
        ranks,
        convention,
    )


def _rank_warning(ranks: NDArray[np.int64]) -> list[str]:
    """Say when θ_I changes a rank, so that compact κ's are over different subspaces."""
    changed = int(((ranks[0] != ranks[1]) | (ranks[2] != ranks[3])).sum())
    if not changed:
        return []
    return [
        f"the numerical rank differs between θ₀ and θ_I in {changed} of {ranks.shape[1]} groups: their "
        "compact condition numbers are over different subspaces."
    ]
