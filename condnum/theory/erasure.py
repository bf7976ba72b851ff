r"""Linear erasure: extractors from which no linear probe with a convex loss learns the harmful task.

With centered harmful targets Z `(N, C)` and :math:`G = X_H^\top Z`, the zero probe with an intercept is
optimal on features :math:`X_Hθ`, for every convex loss, if and only if :math:`θ^\top G = 0` (Belrose et al.,
*LEACE*, NeurIPS 2023). No solver, preconditioner or number of steps changes an optimum. The path

.. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad W = Σ^{-1/2}, Σ = K_H / N, U = \operatorname{orth} WG

leads from I (s = 1) to erasure (s = 0). For s > 0 it is invertible, so that the harmful optimum stays and
only its distance grows: *conditioning is erasure that stops short*.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, TargetKind, as_targets, as_tensor, like
from condnum.errors import InvalidInputError, check_integer, check_real
from condnum.theory.spectra import EPS, checked_rtol, default_rtol

#: Fewer rows per column than this, and Σ is shrunk.
FEW_ROWS = 10


@dataclass(frozen=True)
class Erasure:
    """An erasing extractor with the quantities behind it; arrays are of the caller's kind."""

    theta: Any  # (D, D); features are Xθ
    directions: Any  # (D, k + rarely excited ones), orthonormal basis of what is erased
    rank: int  # k
    strength: float  # 1 − s
    fit_removed: float  # fraction of the best squared fit to Z that is gone, measured on these rows' Xθ
    shrinkage: float  # ρ of Σ ← (1 − ρ)Σ + ρ·diag(Σ)


def erasure(
    harmful_features: ArrayLike,
    harmful_targets: Any,
    *,
    strength: float = 1.0,
    rank: int | None = None,
    kind: TargetKind = "auto",
    intercept: bool = True,
    shrinkage: float | None = None,
    floor: float = 1 / 3,
) -> Erasure:
    r"""Erase what a linear probe could learn of the harmful task, or a part of it.

    .. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad H_H(θ_s) = K_H - (1 - s^2) N W^{-1} U U^\top W^{-1}

    the second for unshrunk Σ; X and K_H are centered for a probe with an intercept. Of all θ that erase these
    directions, this one changes the harmful features least in Mahalanobis norm (LEACE). The loss of a benign
    linear probe is the same for all of them, see `erasure_price`.

    *On these rows* no linear probe of `X @ θ` learns anything, in whatever units the columns are, and after
    standardizing: where nothing but round-off of a column would be left, θ is exactly zero, and outside
    range(Σ), such as for a column of zeros, θ is exactly the identity. A whitening that has no rank tolerance
    magnifies the round-off of an erased combination of columns. *On fresh rows* a sampling error remains,
    see `floor`. Nonlinear probes, and probes of θ's inputs, are not stopped.

    Args:
        harmful_features: `(N, D)` harmful inputs.
        harmful_targets: `(N,)` class labels, or `(N,)` or `(N, m)` real targets.
        strength: 1 − s in [0, 1]; 1 erases, 0 changes nothing.
        rank: Erase only that many directions, those of the best squared fit; default: all.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.
        intercept: Whether the probe has an intercept. If not, nothing is centered: regression targets
            are unchanged, and 1/C is subtracted from one-hot labels.
        shrinkage: ρ in [0, 1] of Σ ← (1 − ρ)Σ + ρ·diag(Σ). Default: 0 with at least 10 rows per column, else
            the oracle-approximating intensity of Chen et al. (2010) for standardized columns.
        floor: Also remove directions that few rows excite: those whose *spread* is below this number in
            [0, 1]. A direction v in the coordinates of :math:`X = U S V^\top` is excited by rows of mean
            leverage :math:`λ = \sum_i \|u_i\|^2 (u_i^\top v)^2`; its spread :math:`\frac{r}{N-r} /
            \frac{λ}{1-λ}` is 1 if all rows excite it alike, and 0 if one row does. With 0, only
            :math:`θ^\top G = 0` is met, which weights on a rare pixel can do for an attacker whose rows do
            not light it.

    Returns:
        θ with the directions, their number and the fraction of the fit that is removed.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, one class only, `strength`, `rank`,
            `shrinkage` or `floor` is out of range, or the targets have no linear part.
        UnknownNameError: Unknown kind.

    Examples:
        Two classes that differ along the first axis: it is erased, the second one is kept.

        >>> X = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
        >>> found = erasure(X, ["cat", "cat", "dog", "dog"], shrinkage=0.0)
        >>> found.theta.round(12).tolist(), found.rank, round(found.fit_removed, 12)
        ([[0.0, 0.0], [0.0, 1.0]], 1, 1.0)
    """
    X = as_tensor(harmful_features, "harmful_features", ndim=2).detach()
    Z = _target_columns(harmful_targets, X, kind, intercept)
    N, D = X.shape
    strength, floor = check_real("strength", strength, 0, 1), check_real("floor", floor, 0, 1)
    F = _centered(X) if intercept else X
    units, V, roots, left = _equilibrated_svd(F)
    fit = left.mT @ Z  # (r, C): G = diag(units) V diag(roots) fit
    round_off = max(N, D) * EPS * Z.norm()
    if not fit.norm() > round_off:
        raise InvalidInputError(
            "the harmful targets have no linear part in these features: there is nothing to erase; check "
            "that rows and targets are in the same order."
        )
    r, leverages = len(roots), left.square().sum(dim=1)
    means, coordinates = torch.linalg.eigh((left * leverages[:, None]).mT @ left)
    narrow = means * (r + floor * max(N - intercept - r, 0)) > r * (1 + 1e-9)  # spread < floor, or a tie
    rare = coordinates[:, narrow]
    best, sizes, _ = torch.linalg.svd(fit - rare @ (rare.mT @ fit), full_matrices=False)
    full = int((sizes > round_off).sum())
    k = full if rank is None else check_integer("rank", rank, 1)
    if k > full:
        raise InvalidInputError(
            f"rank must be at most {full}, the number of directions to erase, got {rank}."
        )
    erased = torch.cat([best[:, :k], rare], dim=1)
    rho = _shrinkage(roots.square(), N, int(F.any(dim=0).sum()), shrinkage)
    scales = ((1 - rho) * roots.square() + rho).sqrt()  # of Σ^½ on V, where each column has length 1
    U = torch.linalg.qr((roots / scales)[:, None] * erased).Q
    # The projection by unshrunk Σ comes first: however small some roots are, it erases up to round-off.
    kept = _annihilating(erased, roots) @ _annihilating(U, scales)
    change = strength * V @ (kept - torch.eye(r).to(X)) @ V.mT
    theta = torch.eye(D).to(X) + change * units / units[:, None]
    # What is lost to round-off: by the entries of θ, and by the sums of X @ θ.
    lost = D * EPS * ((1 + change.norm()) * units + X.norm(dim=0) @ theta.abs())
    F = _centered(X @ theta) if intercept else X @ theta
    empty = (F.norm(dim=0) <= lost) & F.any(dim=0)
    theta, F = theta * ~empty, F * ~empty
    seen = _equilibrated_svd(F, noise=float((lost / F.norm(dim=0))[F.any(dim=0)].norm()))[-1]
    removed = 1 - float((seen.mT @ Z).square().sum() / fit.square().sum())
    gone = V @ (erased * roots[:, None])
    if strength == 1 and empty.any():  # with them, directions may go that no row excites
        basis, sizes, _ = torch.linalg.svd((torch.eye(D).to(X) + change) * ~empty)
        gone = basis[:, sizes <= 1e-8]
    directions, convert = torch.linalg.qr(units[:, None] * gone).Q, like(harmful_features)
    return Erasure(convert(theta), convert(directions), k, strength, min(1.0, max(0.0, removed)), rho)


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
        directions: `(D, k)`, such as `Erasure.directions`; they may depend on each other.
        rtol: Relative rank tolerance of `pretrain_features` with columns of length 1; default: max(N, D)·eps
            of float64.

    Returns:
        The rise of the mean squared loss per row, at least 0.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite or `rtol` is out of range.

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
    units, V, roots, left = _equilibrated_svd(X, rtol)
    G = G / units[:, None]  # on the coefficients of columns of length 1
    G = G[:, G.any(dim=0)]
    basis, sizes, _ = torch.linalg.svd(G / G.norm(dim=0), full_matrices=False)
    basis = basis[:, sizes > max(G.shape) * EPS * sizes.sum()]
    # A combination with a part in null(K_P) is met by moving β there, at no cost.
    _, outside, combinations = torch.linalg.svd(basis - V @ (V.mT @ basis), full_matrices=True)
    inside = basis @ combinations[int((outside > 1e-10).sum()) :].mT
    Q = torch.linalg.qr((V.mT @ inside) / roots[:, None]).Q  # in the whitened coordinates Σ^{1/2}Vᵀβ
    return float((Q.mT @ (left.mT @ Y)).square().sum()) / len(X)


def _centered(X: Tensor) -> Tensor:
    """Return columns less their means; zero where a column is constant up to its round-off."""
    F = X - X.mean(dim=0)
    F = F - F.mean(dim=0)
    return F * (F.abs().amax(dim=0) > 8 * EPS * X.abs().amax(dim=0))


def _equilibrated_svd(
    X: Tensor, rtol: float | None = None, noise: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the lengths of columns, and V, S and U of columns of length 1, above `rtol` and `noise`.

    So no unit decides on a rank. The default `rtol` is max(N, D)·eps of float64, whatever X was stored in.
    """
    peaks = X.abs().amax(dim=0)
    units = peaks * (X / peaks.where(peaks > 0, 1.0)).norm(dim=0)
    units = units.where(peaks > 0, units.max() or 1.0)
    left, roots, rows = torch.linalg.svd(X / units, full_matrices=False)
    kept = roots > max(checked_rtol(rtol, default_rtol(max(X.shape))) * float(roots[0]), noise)
    return units, rows[kept].mT * (peaks > 0)[:, None], roots[kept], left[:, kept]


def _annihilating(U: Tensor, scales: Tensor) -> Tensor:
    """Return `I − diag(scales)⁻¹ UUᵀ diag(scales)`, after which nothing of `diag(scales)U` is left."""
    return torch.eye(len(U)).to(U) - (U / scales[:, None]) @ (U * scales[:, None]).mT


def _target_columns(value: Any, X: Tensor, kind: TargetKind, intercept: bool) -> Tensor:
    """Return Z `(N, C)`: one-hot or real targets less what a probe without weights predicts."""
    y, classes = as_targets(value, "harmful_targets", kind)
    if y.ndim > 2 or len(y) != len(X):
        raise InvalidInputError(f"harmful_targets {y.shape} do not fit {len(X)} rows: expected one per row.")
    Z = torch.from_numpy(y).to(X.device)
    if classes is not None:
        if len(classes) < 2:
            raise InvalidInputError(f"all {len(y)} labels are {classes[0]}: there is nothing to erase.")
        Z = torch.nn.functional.one_hot(Z).to(X)
    if intercept:
        return Z - Z.mean(dim=0)
    return Z if classes is None else Z - 1 / len(classes)


def _shrinkage(values: Tensor, N: int, D: int, given: float | None) -> float:
    """Return the given intensity, or that of Chen et al. (2010) where rows are few."""
    if given is not None:
        return check_real("shrinkage", given, 0, 1)
    if N >= FEW_ROWS * D or D == 1:
        return 0.0
    mean, spread = float(values.sum()) / D, float(values.square().sum()) / D**2
    return min(1.0, (spread + mean**2) / max((N + 1) * (spread - mean**2 / D), spread * EPS))
