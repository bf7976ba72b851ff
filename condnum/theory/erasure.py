r"""Linear erasure: extractors from which no linear probe with a convex loss learns the harmful task.

With centered harmful targets Z `(N, C)` and :math:`G = X_H^\top Z`, the zero probe with an intercept is
optimal on features :math:`X_Hθ`, for every convex loss, if and only if :math:`θ^\top G = 0` (Belrose et al.,
*LEACE*, NeurIPS 2023). No solver, preconditioner or number of steps changes an optimum. The path

.. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad W = Σ^{-1/2}, Σ = K_H / N, U = \operatorname{orth} WG

leads from I (s = 1) to erasure (s = 0). For s > 0 it is invertible, so that the harmful optimum stays and
only its distance grows: *conditioning is erasure that stops short*.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, like, storage_eps
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.theory.spectra import default_rtol

TargetKind = Literal["auto", "classification", "regression"]

#: Fewer rows per column than this, and Σ is shrunk.
FEW_ROWS = 10

#: Whole numbers with at most so many different values are taken for labels.
MOST_CLASSES = 100


@dataclass(frozen=True)
class Erasure:
    """An erasing extractor with the quantities behind it; arrays are of the caller's kind."""

    theta: Any  # (D, D); features are Xθ
    directions: Any  # (D, k + weak ones), orthonormal basis of what is erased, range(G) at full rank
    rank: int  # k
    strength: float  # 1 − s
    fit_removed: float  # fraction of the best squared fit to Z that no linear probe can reach any more
    shrinkage: float  # ρ of Σ ← (1 − ρ)Σ + ρ·tr(Σ)/D·I


def erasure(
    harmful_features: ArrayLike,
    harmful_targets: ArrayLike,
    *,
    strength: float = 1.0,
    rank: int | None = None,
    kind: TargetKind = "auto",
    intercept: bool = True,
    shrinkage: float | None = None,
    floor: float = 0.0,
) -> Erasure:
    r"""Erase what a linear probe could learn of the harmful task, or a part of it.

    .. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad H_H(θ_s) = K_H - (1 - s^2) N W^{-1} U U^\top W^{-1}

    the second for unshrunk Σ. Outside range(Σ), which no harmful row reaches, θ is the identity. Of all θ
    that erase these directions, this one changes the harmful features least in Mahalanobis norm (LEACE,
    for centered rows); with `shrinkage=1` it is the orthogonal projector. The loss of a
    benign linear probe is the same for all of them, see `erasure_price`. The guarantee holds for these
    rows. On fresh rows a sampling error remains, which is large if some directions vary in few rows only:
    see `floor`.
    Nonlinear probes, and probes of θ's inputs, are not stopped.

    Args:
        harmful_features: `(N, D)` harmful inputs.
        harmful_targets: `(N,)` class labels, or `(N,)` or `(N, m)` real targets.
        strength: 1 − s in [0, 1]; 1 erases, 0 changes nothing.
        rank: Erase only that many directions, those of the best squared fit; default: all.
        kind: `auto` reads a vector of whole numbers with few different values as labels, other targets as
            those of a regression.
        intercept: Whether the probe has an intercept. If not, targets are not centered: regression targets
            are unchanged, and 1/C is subtracted from one-hot labels.
        shrinkage: ρ in [0, 1]. Default: 0 with at least 10 rows per column, else the oracle-approximating
            intensity of Chen et al. (2010), so that θ does not amplify directions that few rows determine.
        floor: Also remove principal directions whose variance is below this multiple of the mean variance
            tr(Σ)/D. Otherwise :math:`θ^\top G = 0` can be met by weights on a direction that varies in few
            rows only, such as a rare pixel, which does not affect an attacker whose rows do not vary there.

    Returns:
        θ with the directions, their number and the fraction of the fit that is removed.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, one class only, `strength`, `rank`,
            `shrinkage` or `floor` is out of range, or the targets have no linear part.
        UnknownNameError: Unknown kind.

    Examples:
        Two classes that differ along the first axis: it is erased, the second one is kept.

        >>> X = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
        >>> found = erasure(X, [1, 1, 0, 0], shrinkage=0.0)
        >>> found.theta.round(12).tolist(), found.rank, round(found.fit_removed, 12)
        ([[0.0, 0.0], [0.0, 1.0]], 1, 1.0)
    """
    X = as_tensor(harmful_features, "harmful_features", ndim=2).detach()
    Z = _centered_targets(harmful_targets, X, kind, intercept)
    N, D = X.shape
    if not 0 <= strength <= 1:
        raise InvalidInputError(
            f"strength must lie in [0, 1], got {strength!r}: 1 erases, 0 changes nothing."
        )
    if not 0 <= floor < D:
        raise InvalidInputError(f"floor must be at least 0 and below D = {D}, got {floor!r}.")
    left, roots, rows = torch.linalg.svd(X, full_matrices=False)
    kept = roots > default_rtol(max(N, D), storage_eps(harmful_features)) * roots[0]
    left, roots, V = left[:, kept], roots[kept], rows[kept].mT
    weak = roots.square() < floor * roots.square().sum() / D
    fit = left.mT @ Z  # (r, C): G = V diag(roots) fit
    round_off = default_rtol(max(N, D)) * Z.norm()
    if not fit.norm() > round_off:
        raise InvalidInputError(
            "the harmful targets have no linear part in these features: there is nothing to erase; check "
            "that rows and targets are in the same order."
        )
    rho = _shrinkage(roots.square() / N, N, D, shrinkage)
    scales = ((1 - rho) * roots.square() / N + rho * roots.square().sum() / (N * D)).sqrt()  # of Σ^½ on V
    gain = roots / scales  # of W on what rows and targets share
    U, sizes, _ = torch.linalg.svd((gain * ~weak)[:, None] * fit, full_matrices=False)
    full = int((sizes > round_off * gain.max()).sum())
    k = full if rank is None else check_integer("rank", rank, 1)
    if k > full:
        raise InvalidInputError(
            f"rank must be at most {full}, the number of directions to erase, got {rank}."
        )
    U = torch.cat([U[:, :k], torch.eye(len(roots)).to(X)[:, weak]], dim=1)
    theta = torch.eye(D).to(X) - strength * (V @ (U / scales[:, None])) @ (V @ (U * scales[:, None])).mT
    unreachable = torch.linalg.qr(U / gain[:, None]).Q  # fits that no probe of Xθ has, at s = 0
    removed = float((unreachable.mT @ fit).square().sum() / fit.square().sum()) if strength == 1 else 0.0
    convert = like(harmful_features)
    directions = torch.linalg.qr(V @ (U * scales[:, None])).Q
    return Erasure(convert(theta), convert(directions), k, float(strength), removed, rho)


def erasure_price(
    pretrain_features: ArrayLike,
    pretrain_targets: ArrayLike,
    directions: ArrayLike,
    *,
    rtol: float | None = None,
) -> float:
    r"""Return the increase of the smallest benign mean squared loss when directions are erased.

    With the benign optimum :math:`β_P = K_P^{-1}X_P^\top Y` and a basis G of the directions, a probe of
    erased features is any β with :math:`G^\top β = 0`. The price is the same for every θ that erases them:

    .. math:: \tfrac1N \operatorname{tr}\left(β_P^\top G\,(G^\top K_P^{-1} G)^{-1} G^\top β_P\right)

    Zero if and only if :math:`G^\top β_P = 0`. For singular K_P, directions in which β is free cost nothing.

    Args:
        pretrain_features: `(N, D)` benign inputs.
        pretrain_targets: `(N,)` or `(N, m)` benign targets; center both for a probe with an intercept.
        directions: `(D, k)`, such as `Erasure.directions`.
        rtol: Relative rank tolerance of `pretrain_features`; default `max(N, D)·eps` of the stored dtype.

    Returns:
        The rise of the mean squared loss per row, at least 0.

    Raises:
        InvalidInputError: Shapes do not fit or entries are non-finite.

    Examples:
        >>> erasure_price([[1.0, 0.0], [0.0, 1.0]], [3.0, 1.0], [[0.0], [1.0]])
        0.5
    """
    X = as_tensor(pretrain_features, "pretrain_features", ndim=2).detach()
    Y = as_tensor(pretrain_targets, "pretrain_targets", minimum_ndim=1).detach().to(X.device)
    G = as_tensor(directions, "directions", ndim=2).detach().to(X.device)
    Y = Y[:, None] if Y.ndim == 1 else Y
    if Y.ndim != 2 or len(Y) != len(X) or len(G) != X.shape[1]:
        raise InvalidInputError(
            f"pretrain_features {tuple(X.shape)}, pretrain_targets {tuple(Y.shape)} and directions "
            f"{tuple(G.shape)} do not fit: they must be (N, D), (N,) or (N, m), and (D, k)."
        )
    left, roots, rows = torch.linalg.svd(X, full_matrices=False)
    rtol = default_rtol(max(X.shape), storage_eps(pretrain_features)) if rtol is None else rtol
    kept = roots > rtol * roots[0]
    left, roots, V = left[:, kept], roots[kept], rows[kept].mT
    # A combination of G with a part in null(K_P) is met by moving β there, at no cost.
    _, outside, combinations = torch.linalg.svd(G - V @ (V.mT @ G), full_matrices=True)
    free = int((outside > 1e-10 * torch.linalg.matrix_norm(G, 2)).sum())
    inside = G @ combinations[free:].mT
    if not inside.shape[1]:
        return 0.0
    Q = torch.linalg.qr((V.mT @ inside) / roots[:, None]).Q  # in the whitened coordinates Σ^{1/2}Vᵀβ
    return float((Q.mT @ (left.mT @ Y)).square().sum()) / len(X)


def reads_as_labels(targets: NDArray[Any]) -> bool:
    """Tell whether targets are labels: a vector of whole numbers with few different values for its length."""
    if targets.ndim != 1 or (targets != np.round(targets)).any():
        return False
    return len(np.unique(targets)) <= min(MOST_CLASSES, max(2, len(targets) // 5))


def _centered_targets(value: ArrayLike, X: Tensor, kind: TargetKind, intercept: bool) -> Tensor:
    """Return Z `(N, C)`: one-hot or real targets less what a probe without weights predicts."""
    check_known("kind", kind, get_args(TargetKind))
    y = as_tensor(value, "harmful_targets", minimum_ndim=1).detach().to(X.device)
    if y.ndim > 2 or len(y) != len(X):
        raise InvalidInputError(
            f"harmful_targets {tuple(y.shape)} do not fit {len(X)} rows: expected one per row."
        )
    if kind == "regression" or (kind == "auto" and not reads_as_labels(y.numpy(force=True))):
        y = y[:, None] if y.ndim == 1 else y
        return y - y.mean(dim=0) if intercept else y
    if y.ndim != 1:
        raise InvalidInputError(f"labels must be a vector, got shape {tuple(y.shape)}; pass class numbers.")
    classes, index = torch.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise InvalidInputError(f"all {len(y)} labels are {float(classes[0]):g}: there is nothing to erase.")
    Z = torch.nn.functional.one_hot(index).to(X)
    return Z - (Z.mean(dim=0) if intercept else 1 / len(classes))


def _shrinkage(values: Tensor, N: int, D: int, given: float | None) -> float:
    """Return the given intensity, or that of Chen et al. (2010) where rows are few."""
    if given is not None:
        if not 0 <= given <= 1:
            raise InvalidInputError(f"shrinkage must lie in [0, 1], got {given!r}.")
        return float(given)
    if N >= FEW_ROWS * D or D == 1:
        return 0.0
    mean, spread = float(values.sum()) / D, float(values.square().sum()) / D**2
    return min(1.0, (spread + mean**2) / max((N + 1) * (spread - mean**2 / D), spread * 2.0**-52))
