r"""RIR_θ0 of two models on two sets of images (Eq. 17).

.. math:: \mathrm{RIR}_{\theta_0} = \frac{\kappa(\tilde H_H(\theta_I))/\kappa(\tilde H_H(\theta_0))}
   {\kappa(\tilde H_P(\theta_I))/\kappa(\tilde H_P(\theta_0))}, \qquad
   \tilde H(\theta) = \tilde X(\theta)^\top \tilde X(\theta)

(Eq. 17, 18). The paper draws 20 groups of 100 samples and averages; `rir_from_features` does that on
features, `rir_theta0` takes them from images first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.deep.features import Extractor, Features, Precision, cached_features
from condnum.deep.images import ImageData
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.theory.immunization import Gauge
from condnum.theory.spectra import (
    PUBLISHED_RIDGE,
    Convention,
    condition_from_spectrum,
    default_rtol,
    singular_values,
)

# Groups of feature rows: which images they hold, and the same rows of both models.


FeatureLike: TypeAlias = "Features | NDArray[Any] | Tensor"


def check_rows(before: FeatureLike, after: FeatureLike, task: str) -> None:
    """Refuse features whose rows are not the same images."""
    for part, name in ((before, "θ₀"), (after, "θ_I")):
        values = part.values if isinstance(part, Features) else part
        if not isinstance(values, np.ndarray | Tensor) or values.ndim != 2:
            raise InvalidInputError(
                f"the features of {name} on {task} must be an array (N, D), got "
                f"{tuple(values.shape) if hasattr(values, 'shape') else type(values).__name__}."
            )
    if len(before) != len(after):
        raise InvalidInputError(
            f"θ₀ has {len(before)} rows on {task} and θ_I {len(after)}; use the same images."
        )
    if (
        isinstance(before, Features)
        and isinstance(after, Features)
        and not np.array_equal(before.indices, after.indices)
    ):
        raise InvalidInputError(f"the features of θ₀ and θ_I on {task} are of different images.")


def check_count(count: int, task: str, group_size: int) -> None:
    """Refuse fewer images than one group."""
    if count < group_size:
        raise InvalidInputError(
            f"{task} has {count} image(s), fewer than one group of {group_size}; add images or lower "
            "group_size."
        )


def draw_groups(
    count: int, task: str, groups: int, group_size: int, stream: list[int]
) -> tuple[NDArray[np.int64], bool]:
    """Draw groups of rows: disjoint ones while there are enough, else each anew."""
    check_count(count, task, group_size)
    generator = np.random.default_rng(stream)
    if count >= groups * group_size:
        return generator.permutation(count)[: groups * group_size].reshape(groups, group_size), False
    return np.stack([generator.permutation(count)[:group_size] for _ in range(groups)]), True


def gather(features: FeatureLike, rows: NDArray[np.int64], task: str) -> Tensor:
    """Return the chosen rows; only they are read from a memory map."""
    values = features.values if isinstance(features, Features) else features
    if isinstance(values, Tensor):
        chosen = values.detach()[torch.from_numpy(rows).to(values.device)].double().cpu()
    else:
        chosen = torch.from_numpy(np.asarray(values[rows.reshape(-1)], np.float64)).reshape(*rows.shape, -1)
    if not bool(torch.isfinite(chosen).all()):
        raise InvalidInputError(f"features of {task} hold NaN or infinity; check the model's weights.")
    return chosen


def stored_eps(features: FeatureLike) -> float:
    """Return the round-off of the stored numbers."""
    values = features.values if isinstance(features, Features) else features
    if isinstance(values, Tensor):
        return float(torch.finfo(values.dtype if values.is_floating_point() else torch.float64).eps)
    return float(np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps)


def carried_eps(features: FeatureLike) -> float:
    """Return the round-off that the features carry: that of the model's arithmetic, if known."""
    return max(features.eps, stored_eps(features)) if isinstance(features, Features) else stored_eps(features)


# What a reader of RIR_θ0 has to know about the sample behind it.


#: σ_k below this multiple of the round-off that the features carry is at the mercy of it.
NOISE_MARGIN = 10.0
#: σ_k below this multiple of the rank tolerance might as well not have counted.
FRAGILE = 10.0


def rir_warnings(
    sigma: Sequence[Tensor],
    sigma_min: NDArray[np.float64],
    dimensions: Sequence[int],
    group_size: int,
    eps: float,
    rtols: Sequence[float],
    overlap: Sequence[str],
) -> list[str]:
    """Return plain sentences about group size, overlap, round-off and rank.

    Round-off `eps` in N×D features of mean square m adds a random matrix whose spectral norm is about
    `eps·√m·(√N + √D)`; a singular value of X̃ near that is not known.
    """
    found = []
    widest = max(dimensions)
    if group_size < widest:
        found.append(
            f"each group has N = {group_size} samples of D = {widest} features: the Hessian's rank is at "
            f"most {group_size}, so κ is that of the sample, not of the task, and the ridge convention sees "
            "σ_D = 0."
        )
    found += [
        f"{task} has too few images for groups without overlap; the spread is too small." for task in overlap
    ]
    uncertain = sum(
        int((np.sqrt(smallest) < NOISE_MARGIN * _noise(s, d, group_size, eps)).sum())
        for s, smallest, d in zip(sigma, sigma_min, dimensions, strict=True)
    )
    if uncertain:
        found.append(
            f"in {uncertain} of {sigma_min.size} spectra the smallest singular value is within "
            f"{NOISE_MARGIN:g} times the round-off of the features (eps = {eps:.1e}): compact κ is not "
            "reliable there; use float32 instead of mixed precision, or the ridge convention."
        )
    near = sum(
        int((smallest < FRAGILE * rtol * s[:, 0].numpy()).sum())
        for s, smallest, rtol in zip(sigma, sigma_min, rtols, strict=True)
    )
    if near:
        found.append(
            f"in {near} of {sigma_min.size} spectra the smallest singular value that counts is within "
            f"{FRAGILE:g} times the rank tolerance, which then decides compact κ: compare the ranks."
        )
    return found


def _noise(sigma: Tensor, dimension: int, group_size: int, eps: float) -> NDArray[np.float64]:
    """Return the spectral norm of the round-off in the features of each group."""
    mean_square = sigma.sum(dim=-1).numpy() / (group_size * dimension)
    return eps * np.sqrt(mean_square) * (math.sqrt(group_size) + math.sqrt(dimension))


# Eq. 17 on features: κ of groups of samples before and after, with ranks, spread and warnings.


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


__all__ = ["RirEstimate", "RirTheta0", "rir_from_features", "rir_theta0"]


def rir_theta0(
    theta_0: Extractor,
    theta_I: Extractor,  # ruff: ignore[invalid-argument-name] - the paper's name
    D_P: ImageData,
    D_H: ImageData,
    *,
    groups: int = 20,
    group_size: int = 100,
    seed: int = 0,
    transform: ImageTransform | None = None,
    cache: str | os.PathLike[str] | None = None,
    name: str = "",
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "float32",
    workers: int = 0,
    ridge: float = PUBLISHED_RIDGE,
    rtol: float | None = None,
    gauge: Gauge = "unit",
) -> RirTheta0:
    """Measure RIR_θ0 (Eq. 17) of two models on two sets of images, un-augmented.

    Only the images of the groups are run: at most `groups·group_size` of each task, drawn from `seed`, plus
    a tenth in reserve for images that do not decode.

    Args:
        theta_0: Model before immunization; not the same object as `theta_I`.
        theta_I: Immunized model.
        D_P: Pre-training images.
        D_H: Harmful images.
        groups: Number of groups.
        group_size: Samples of a group.
        seed: Of the draws.
        transform: Un-augmented; default `evaluation_transform(theta_0)`.
        cache: Folder of the feature cache; None keeps nothing.
        name: What the backbone is called, for the cache.
        device: See `extract_features`.
        batch_size: See `extract_features`.
        precision: See `extract_features`.
        workers: See `extract_features`.
        ridge: See `rir_from_features`.
        rtol: See `rir_from_features`.
        gauge: See `rir_from_features`.

    Returns:
        As `rir_from_features`.

    Raises:
        InvalidInputError: `theta_0` and `theta_I` are one object (RIR would be 1 whatever was trained),
            fewer images than a group, and all that `extract_features` raises.
    """
    if theta_0 is theta_I or _shares_parameters(theta_0, theta_I):
        raise InvalidInputError(
            "theta_0 and theta_I are one model or share trainable parameters, so RIR_θ0 would compare the "
            "immunized model with itself; keep a copy of θ₀ (copy.deepcopy) before immunizing."
        )
    used = evaluation_transform(theta_0) if transform is None else transform
    features = []
    for stream, (task, data) in enumerate((("D_P", D_P), ("D_H", D_H))):
        check_count(len(data), task, group_size)
        count = min(len(data), groups * group_size + groups * group_size // 10)
        order = np.random.default_rng([seed, stream, 1]).permutation(len(data))
        sample = data if count == len(data) else data.take(np.sort(order[:count]))
        for theta in (theta_0, theta_I):
            features.append(
                cached_features(
                    theta,
                    sample,
                    used,
                    cache=cache,
                    name=name,
                    device=device,
                    batch_size=batch_size,
                    precision=precision,
                    workers=workers,
                )
            )
    return rir_from_features(
        *features, groups=groups, group_size=group_size, seed=seed, ridge=ridge, rtol=rtol, gauge=gauge
    )


def _shares_parameters(theta_0: Extractor, theta_I: Extractor) -> bool:  # ruff: ignore[invalid-argument-name]
    """Tell whether training one model would change the other."""
    if not (isinstance(theta_0, nn.Module) and isinstance(theta_I, nn.Module)):
        return False
    return bool(
        {id(p) for p in theta_0.parameters() if p.requires_grad} & {id(p) for p in theta_I.parameters()}
    )
