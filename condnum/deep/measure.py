"""What is measured of nets: RIR_θ0 (Eq. 17) on groups of images, SGRC, RFD, and the path of a linear head."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from condnum.arrays import as_array, own_state, same_columns, storage_eps
from condnum.data.images import ImageSource, as_images
from condnum.deep.net import Backbone, evaluating
from condnum.deep.samples import ImageFeatures, ImageTransform, Samples, evaluation_transform
from condnum.errors import InvalidInputError, check_integer
from condnum.theory.kappa import PUBLISHED_RIDGE, RATIO_TOLERANCE, Clauses, ConditionNumber, Convention
from condnum.theory.linalg import checked_gram
from condnum.theory.slowdown import descent_filter
from condnum.theory.task import graded_singular_values, rank_tolerance

FeatureLike: TypeAlias = "ImageFeatures | NDArray[Any] | Tensor"
_Array: TypeAlias = NDArray[np.float64]

#: The four matrices of a group, in the order of every array's first axis.
ROLES = ("benign_before", "benign_after", "harmful_before", "harmful_after")
#: Steps after which `descent_path` scores a head, log-spaced, and the goal of `path_slowdown`: a fraction of
#: the best R² along θ₀'s path.
DESCENT_STEPS = np.geomspace(1.0, 1e6, 121)
_DESCENT_GOAL = 0.8


@dataclass(frozen=True, eq=False)
class RirEstimate:
    """Eq. 17 in one convention: mean and standard deviation over the groups."""

    harmful_ratio: float  # (i), mean over groups, wanted > 1
    benign_ratio: float  # (ii), wanted ≤ 1
    rir: float  # mean of (i)/(ii) of each group, as the paper averages; not the ratio of the two means
    harmful_ratio_std: float  # sample deviation over groups; NaN if they are all the same images
    benign_ratio_std: float
    rir_std: float
    kappas: _Array  # (4, groups) condition numbers, rows as `ROLES`
    ranks: NDArray[np.int64]  # (4, groups) numerical ranks
    convention: Convention

    @property
    def clauses(self) -> Clauses:
        """Definition 3.1 clause by clause; (c) is not known: features do not tell how well a net fits D_P."""
        most = 1 + RATIO_TOLERANCE
        return Clauses(self.harmful_ratio > most, self.benign_ratio <= most, None)

    @property
    def success(self) -> bool:
        """Clauses (a) and (b) of Definition 3.1: (i) > 1 and (ii) ≤ 1."""
        return bool(self.clauses.harmful_slower and self.clauses.benign_no_slower)


@dataclass(frozen=True, eq=False)
class RirTheta0:
    """RIR_θ0 by two averages and in both conventions, which can disagree: never print one alone.

    `compact` and `ridge` are means over groups, as in the paper. `averaged` and `averaged_ridge` measure the
    covariance averaged over the groups, K = Σ X̃ᵀX̃/groups, as re-implementations do: one number, of the rank
    of all groups together. `floor` depends on the scale of θ.
    """

    compact: RirEstimate  # κ = σ₁/σ_k over the numerical rank
    ridge: RirEstimate  # κ = (σ₁+ε)/(σ_D+ε), features of each model scaled to mean square 1 over both tasks
    averaged: RirEstimate  # compact, of one matrix
    averaged_ridge: RirEstimate
    floor: RirEstimate  # κ = (σ₁+10⁻⁶)/(σ_D+10⁻⁶) of features as they come, as the authors' release has it
    groups: int  # 1 where each would be all images
    warnings: tuple[str, ...]  # plain sentences; empty if there is nothing to say

    @property
    def rir(self) -> float:
        """RIR_θ0, compact, mean over groups."""
        return self.compact.rir


@own_state()
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
) -> RirTheta0:
    r"""Measure RIR_θ0 (Eq. 17, 18) on features of θ₀ and θ_I, the mean over groups of samples.

    .. math:: \mathrm{RIR}_{\theta_0} = \frac{\kappa(\tilde H_H(\theta_I))/\kappa(\tilde H_H(\theta_0))}
       {\kappa(\tilde H_P(\theta_I))/\kappa(\tilde H_P(\theta_0))}, \qquad
       \tilde H(\theta) = \tilde X(\theta)^\top \tilde X(\theta)

    A group is the same images for θ₀ and θ_I. Groups overlap where there are too few images; where a group
    is all images of both tasks there is one.

    Args:
        features_0_P: `(N_P, D)` features of θ₀ on D_P.
        features_I_P: `(N_P, D')` features of θ_I on the same images.
        features_0_H: `(N_H, D)` of θ₀ on D_H.
        features_I_H: `(N_H, D')` of θ_I on the same images.
        groups: Number of groups; 20 in the paper.
        group_size: Samples of a group; 100 in the paper.
        seed: Of the draws; a local generator.
        ridge: ε > 0 of the ridge convention, in units of features of mean square 1.

    Returns:
        (i), (ii) and RIR_θ0 with their spread, ranks and warnings.

    Raises:
        InvalidInputError: Rows that do not correspond, fewer images than a group, non-finite features.
        RankError: The features of a group are all zero.

    Examples:
        θ_I shrinks the second of two orthogonal features tenfold on D_H: κ grows by 100.

        >>> X = np.tile(np.eye(2), (50, 1))
        >>> result = rir_from_features(X, X, X, X * [1.0, 0.1], groups=1, group_size=100)
        >>> round(result.rir, 9), result.compact.success
        (100.0, True)
    """
    drawn = _Groups(
        (features_0_P, features_I_P), (features_0_H, features_I_H),
        groups=groups, group_size=group_size, seed=seed,
    )  # fmt: skip
    floor = drawn.estimates(drawn.X, PUBLISHED_RIDGE, unit=False)[1]
    stacked = [x.reshape(1, -1, x.shape[-1]) / math.sqrt(len(x)) for x in drawn.X]
    compact, floored = drawn.estimates(drawn.X, ridge)
    averaged, averaged_ridge = drawn.estimates(stacked, ridge)
    warnings = list(drawn.warnings)
    if changed := int(
        ((compact.ranks[0] != compact.ranks[1]) | (compact.ranks[2] != compact.ranks[3])).sum()
    ):
        warnings.append(
            f"the numerical rank differs between θ₀ and θ_I in {changed} of {drawn.count} groups: their "
            "compact condition numbers refer to different subspaces."
        )
    return RirTheta0(compact, floored, averaged, averaged_ridge, floor, drawn.count, tuple(warnings))


def group_rir(P: Sequence[FeatureLike], H: Sequence[FeatureLike], **how: int) -> RirEstimate:
    """Return the mean over groups in the compact convention alone, of features of θ₀ and θ_I of each task."""
    drawn = _Groups(P, H, **how)
    return drawn.estimates(drawn.X, PUBLISHED_RIDGE)[0]


class _Groups:
    """Groups of rows of both tasks, the same images for θ₀ and θ_I."""

    def __init__(
        self, P: Sequence[FeatureLike], H: Sequence[FeatureLike], *, groups: int, group_size: int, seed: int
    ) -> None:
        check_integer("groups", groups, 1)
        check_integer("group_size", group_size, 2)
        before = same_columns(features_0_P=P[0], features_0_H=H[0])
        after = same_columns(features_I_P=P[1], features_I_H=H[1])
        pairs = {"D_P": (before[0], after[0]), "D_H": (before[1], after[1])}
        stored = {task: _stored_pair(pair, task, group_size) for task, pair in pairs.items()}
        self.whole = tuple(len(pair[0]) == group_size for pair in stored.values())
        self.warnings, several = list[str](), groups > 1
        self.count = groups = 1 if all(self.whole) else groups
        self.X: list[Tensor] = []  # (groups, N, D) as ROLES
        for stream, (task, pair) in enumerate(stored.items()):
            count, generator = len(pair[0]), np.random.default_rng([seed, stream])
            if count >= groups * group_size and not self.whole[stream]:
                rows = generator.permutation(count)[: groups * group_size].reshape(groups, group_size)
            else:
                rows = np.stack([np.sort(generator.permutation(count)[:group_size]) for _ in range(groups)])
                few = f"{task} has too few images for groups without overlap; the spread is underestimated."
                same = f"each group of {task} is all of its {count} images, so there is no spread over them."
                self.warnings += [same if self.whole[stream] else few] * several
            self.X += [_gather(part, rows, task) for part in pair]
        self.widths = widths = [x.shape[-1] for x in self.X]
        if widths[:2] != widths[2:]:
            raise InvalidInputError(
                f"θ₀ and θ_I have {widths[:2]} features on D_P but {widths[2:]} on D_H; use the same model "
                "for both."
            )
        if group_size < max(widths):
            few = (
                f"each group has N = {group_size} samples of D = {max(widths)} features: the Hessian's rank "
                f"is at most {group_size}, so κ describes the sample, and σ_D = 0 in the ridge convention."
            )
            self.warnings.insert(0, few)
        self.eps = [storage_eps(_values(part)) for pair in pairs.values() for part in pair]
        # Features of each model have mean square 1 over both tasks.
        self.scales = [
            float((self.X[k].square().mean() + self.X[k + 2].square().mean()) / 2) for k in (0, 1)
        ] * 2

    def estimates(self, X: Sequence[Tensor], ridge: float, *, unit: bool = True) -> list[RirEstimate]:
        """Return Eq. 17 of matrices `(groups, N, D)`, one for each of `ROLES`, in both conventions.

        In the ridge convention features are scaled to mean square 1 unless `unit` is false.
        """
        spectra = [
            torch.stack([checked_gram(graded_singular_values(x).square(), x) for x in groups]) for groups in X
        ]
        found = []
        for convention in ("compact", "ridge"):
            measured = []
            for s, width, own, scale in zip(spectra, self.widths, self.eps, self.scales, strict=True):
                rtol = rank_tolerance(width, min(own, 2.0**-23)) ** 2
                scaled = s / scale if convention == "ridge" and unit else s
                measured.append([_kappa(values, rtol, width, convention, ridge) for values in scaled])
            found.append(self._estimate(measured, convention, single=len(spectra[0]) == 1))
        return found

    def _estimate(
        self, measured: list[list[ConditionNumber]], convention: Any, *, single: bool
    ) -> RirEstimate:
        kappas, ranks = (
            np.array([[getattr(group, name) for group in role] for role in measured])
            for name in ("value", "rank")
        )
        benign, harmful = kappas[1] / kappas[0], kappas[3] / kappas[2]
        of = {"harmful_ratio": harmful, "benign_ratio": benign, "rir": harmful / benign}
        same = {"harmful_ratio": self.whole[1], "benign_ratio": self.whole[0], "rir": all(self.whole)}
        found = {name: float(values.mean()) for name, values in of.items()}
        for name, values in of.items():
            found[f"{name}_std"] = math.nan if single or same[name] else float(values.std(ddof=1))
        return RirEstimate(**found, kappas=kappas, ranks=ranks, convention=convention)


def _kappa(sigma: Tensor, rtol: float, width: int, convention: Any, ridge: float) -> ConditionNumber:
    """Return κ of a Hessian's eigenvalues `(n,)`, those above `rtol·σ₁`."""
    rank = int((sigma > rtol * sigma[0]).sum())
    ends = float(sigma[0]), float(sigma[max(rank, 1) - 1])
    return ConditionNumber.of(*ends, rank, width, convention, ridge)


def _values(features: FeatureLike) -> Any:
    """Return the array or tensor of features."""
    return features.values if isinstance(features, ImageFeatures) else features


def _stored_pair(pair: Sequence[FeatureLike], task: str, group_size: int) -> list[NDArray[Any]]:
    """Return features of θ₀ and θ_I on the same images of a task, as many as a group at least, as arrays."""
    stored = [as_array(_values(part), "features") for part in pair]
    for part, model in zip(stored, ("θ₀", "θ_I"), strict=True):
        if part.ndim != 2 or part.dtype.kind not in "fiub":
            raise InvalidInputError(
                f"the features of {model} on {task} must be (N, D) real numbers, got shape {part.shape} "
                f"and type {part.dtype}."
            )
    before, after = map(len, stored)
    if before != after:
        raise InvalidInputError(f"θ₀ has {before} rows on {task} and θ_I has {after}; use the same images.")
    known = [part.indices for part in pair if isinstance(part, ImageFeatures)]
    if len(known) == 2 and not np.array_equal(known[0], known[1]):
        raise InvalidInputError(
            f"the features of θ₀ and θ_I on {task} belong to different images; use the same ones."
        )
    check_count(before, task, group_size)
    return stored


def check_count(count: int, task: str, group_size: int) -> None:
    """Refuse fewer images than one group."""
    if count < group_size:
        raise InvalidInputError(
            f"{task} has {count} image(s), fewer than one group of {group_size}; add images or lower "
            "group_size (--group-size)."
        )


def _gather(values: NDArray[Any], rows: NDArray[np.int64], task: str) -> Tensor:
    """Return the chosen rows `(groups, N, D)`; only they are read from a memory map."""
    chosen = np.asarray(values[rows.reshape(-1)], np.float64).reshape(*rows.shape, -1)
    if not np.isfinite(chosen).all():
        raise InvalidInputError(f"features of {task} hold NaN or infinity; check the model's weights.")
    return torch.from_numpy(chosen)


@own_state()
def rir_theta0(
    theta_0: nn.Module,
    theta_I: nn.Module,  # ruff: ignore[invalid-argument-name] - the paper's name
    D_P: ImageSource,
    D_H: ImageSource,
    *,
    groups: int = 20,
    group_size: int = 100,
    seed: int = 0,
    transform: ImageTransform | None = None,
) -> RirTheta0:
    """Measure RIR_θ0 (Eq. 17) of two models on two sets of images.

    Of each task only `groups·group_size` images are run, plus a tenth in reserve for broken ones.

    Args:
        theta_0: Model before immunization, from images to features `(B, D)`; another object than
            `theta_I`.
        theta_I: Immunized model.
        D_P: Pre-training images: a folder, a data set, a `DataLoader` or tensors (`as_images`).
        D_H: Harmful images, likewise.
        groups: Number of groups.
        group_size: Samples of a group.
        seed: Of the draws.
        transform: Of PIL images; default `evaluation_transform(theta_0)`.

    Returns:
        As `rir_from_features`.

    Raises:
        InvalidInputError: `theta_0` and `theta_I` are one object, or fewer images than a group.
    """
    trained = [{id(p) for p in model.parameters() if p.requires_grad} for model in (theta_0, theta_I)]
    if theta_0 is theta_I or trained[0] & trained[1]:
        raise InvalidInputError(
            "theta_0 and theta_I are the same model or share trainable parameters; keep a copy of θ₀."
        )
    features = []
    for task, given in (("D_P", D_P), ("D_H", D_H)):
        data = as_images(given, task)
        check_count(len(data), task, group_size)
        most = groups * group_size * 11 // 10
        chosen = np.sort(np.random.default_rng([seed, 17]).permutation(len(data))[:most])
        used = transform or (None if data.tensors else evaluation_transform(theta_0))
        samples = Samples(data.take(chosen), used)
        features += [samples.features(theta) for theta in (theta_0, theta_I)]
    return rir_from_features(*features, groups=groups, group_size=group_size, seed=seed)


# What later papers measure, and heads.


def sgrc(before: ArrayLike, after: ArrayLike) -> Any:
    """Return SGRC = (M(θ₀) − M(θ_I))/M(θ₀) in percent, M an attacker's accuracy on D_H, element by element.

    Args:
        before: Accuracies on θ₀.
        after: Accuracies on θ_I, of the same shape.

    Returns:
        Percent, of the same shape.

    Examples:
        >>> sgrc([0.8, 0.5], [0.6, 0.5]).round(6).tolist()
        [25.0, 0.0]
    """
    start = np.asarray(before, dtype=float)
    return 100 * (start - np.asarray(after, dtype=float)) / start


def rfd(before: ArrayLike, after: ArrayLike, *, signed: bool = False) -> float:
    r"""Return :math:`\mathrm{RFD} = \frac1E\sum_t |M_0(t) - M_I(t)|/M_0(t)` in percent.

    As published it has no sign: a net that is learned *faster* after immunization counts as protected.
    Signed, it is negative there.

    Args:
        before: `(E,)` test accuracies of a probe on θ₀ after each pass.
        after: `(E,)` those on θ_I.
        signed: Without the absolute value.

    Returns:
        Percent.

    Examples:
        >>> rfd([0.5, 0.8], [0.6, 0.8]), rfd([0.5, 0.8], [0.6, 0.8], signed=True)
        (10.0, -10.0)
    """
    lost = sgrc(before, after)
    return round(float(np.mean(lost if signed else np.abs(lost))), 12)


def head_accuracy(backbone: Backbone, features: ImageFeatures) -> float:
    """Return the fraction of images that the head g_ω classifies rightly, by features of this backbone."""
    if features.labels.max() >= backbone.num_classes:
        raise InvalidInputError(
            f"{features.name} has labels up to {features.labels.max()}, beyond the {backbone.num_classes} "
            f"outputs of {backbone.name}; use the classes on which the head was trained."
        )
    rows = torch.from_numpy(np.array(features.values)).to(next(backbone.parameters()))
    with evaluating(backbone), torch.inference_mode():
        chosen = torch.cat([backbone.head(part).argmax(dim=1).cpu() for part in rows.split(8192)])
    return float((chosen.numpy() == features.labels).mean())


def descent_path(train: ImageFeatures, held: ImageFeatures) -> _Array:
    r"""Return R² `(T,)` on held-out rows of a linear head after each of `DESCENT_STEPS` of gradient descent.

    Full-batch descent from zero on the squared error of one-hot targets Z, with intercept and step 1/σ₁. With
    the Hessian :math:`\tilde X^\top\tilde X = V\Sigma V^\top` of centered features, step t has the weights

    .. math:: W_t = V\,\frac{1 - (1 - \Sigma/\sigma_1)^t}{\Sigma}\,V^\top\tilde X^\top Z,

    so that no step is taken: the speed of each singular direction and what the labels hold of it decide.

    Examples:
        >>> X = np.array([[1, 0.1], [1, -0.1], [-1, 0.1], [-1, -0.1]])  # the weak feature tells the label
        >>> rows = ImageFeatures(X, np.array([0, 1, 0, 1]), np.arange(4))
        >>> descent_path(rows, rows)[[0, -1]].round(4)  # 1 − (1 − 0.01)² at the first step
        array([0.0199, 1.    ])
    """
    X, Y = (np.asarray(of.values, np.float64) for of in (train, held))
    classes = np.eye(int(max(train.labels.max(), held.labels.max())) + 1)
    mean, base = X.mean(axis=0), classes[train.labels].mean(axis=0)
    sigma, V = np.linalg.eigh((X - mean).T @ (X - mean))
    used = sigma > rank_tolerance(len(sigma)) * sigma[-1]
    sigma, V = sigma[used], V[:, used]
    read, wanted = (Y - mean) @ V, V.T @ (X - mean).T @ (classes[train.labels] - base) / sigma[:, None]
    target = classes[held.labels] - base
    scores = []
    for step in DESCENT_STEPS:
        fitted = read @ ((1 - descent_filter(sigma / sigma.max(initial=0), step))[:, None] * wanted)
        scores.append(1 - ((target - fitted) ** 2).sum() / (target**2).sum())
    return np.array(scores)


def path_slowdown(before: _Array, after: _Array) -> float:
    """Return how many times the steps of θ₀'s head the one of θ needs to 80 % of θ₀'s best R².

    Both are of `descent_path`. A path that misses the goal counts as `DESCENT_STEPS[-1]` steps, so that the
    factor is a lower bound; it is 1 where θ₀'s own head learns nothing.

    Examples:
        >>> slow = np.linspace(0.0, 1.0, len(DESCENT_STEPS))
        >>> path_slowdown(slow, slow), round(path_slowdown(slow, slow / 2), 1)
        (1.0, 15.8)
    """
    best = float(before.max())
    if best <= 0:
        return 1.0
    steps = []
    for scores in (before, after):
        over = np.flatnonzero(scores >= _DESCENT_GOAL * best)
        steps.append(DESCENT_STEPS[over[0] if len(over) else -1])
    return float(steps[1] / steps[0])
