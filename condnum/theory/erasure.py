r"""Linear erasure: extractors from which no linear probe with a convex loss learns the harmful task.

With centered harmful targets Z `(N, C)` and :math:`G = X_H^\top Z`, the zero probe with an intercept is
optimal on features :math:`X_Hθ`, for every convex loss, if and only if :math:`θ^\top G = 0` (Belrose et al.,
*LEACE*, NeurIPS 2023). No solver, preconditioner or number of steps changes an optimum. The path θ_s of
`erasure` leads from I (s = 1) to erasure (s = 0). For s > 0 it is invertible, so that the harmful optimum
stays and only its distance grows: *conditioning is erasure that stops short*.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, TargetKind, as_targets, as_tensor, like, storage_eps
from condnum.errors import InvalidInputError, RankError, check_integer, check_real
from condnum.theory.covariances import CovarianceRange
from condnum.theory.extremes import singular_triples
from condnum.theory.quadratic import centered, complement, quadratic_directions
from condnum.theory.spectra import EPS, as_covariance, checked_rtol, default_rtol

#: Fewer rows per column than this, and Σ is shrunk.
FEW_ROWS = 10

#: Directions that so small a part of the rows excites are erased, too; see `erasure`.
FLOOR = 1 / 3


@dataclass(frozen=True)
class Erasure:
    """An erasing extractor with the quantities behind it; arrays are of the caller's kind."""

    left: Any = field(repr=False)  # (D, q) A, and
    right: Any = field(repr=False)  # (D, q) B: θ = (I + ABᵀ) diag(kept)
    kept: Any = field(repr=False)  # (D,) booleans; False: nothing but round-off would be left of that column
    directions: Any = field(repr=False)  # (D, k + rarely excited ones), orthonormal basis of what is erased
    rank: int  # k
    strength: float  # 1 − s
    fit_removed: float  # fraction of the best squared fit to Z that is gone, measured on these rows' Xθ
    shrinkage: float  # ρ of Σ ← (1 − ρ)Σ + ρ·diag(Σ)

    @cached_property
    def theta(self) -> Any:
        """θ `(D, D)`; features are Xθ."""
        theta = self.left @ self.right.T
        diagonal = range(len(theta))
        theta[diagonal, diagonal] += 1
        return theta * self.kept

    def features(self, X: Any) -> Any:
        """Return Xθ `(N, D)` without forming θ."""
        return (X + (X @ self.left) @ self.right.T) * self.kept

    def converted(self, convert: Any) -> "Erasure":
        """Return the erasure with its arrays converted."""
        arrays = {name: convert(getattr(self, name)) for name in ("left", "right", "kept", "directions")}
        return replace(self, **arrays)


def erasure(
    harmful_features: ArrayLike | None = None,
    harmful_targets: Any = None,
    *,
    covariance: ArrayLike | None = None,
    moment: ArrayLike | None = None,
    rows: int | None = None,
    strength: float = 1.0,
    rank: int | None = None,
    degree: int = 1,
    kind: TargetKind = "auto",
    intercept: bool = True,
    shrinkage: float | None = None,
    floor: float | None = None,
) -> Erasure:
    r"""Erase what a linear probe could learn of the harmful task, or a part of it.

    .. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad H_H(θ_s) = K_H - (1 - s^2) N W^{-1} U U^\top W^{-1}

    with :math:`Σ = K_H / N, W = Σ^{-1/2}, U = \operatorname{orth} WX_H^\top Z`; the second for unshrunk Σ. X
    and K_H are centered for a probe with an intercept. Of all θ that erase these directions, this one changes
    the harmful features least in Mahalanobis norm (LEACE). *On these rows* no linear probe of `X @ θ` learns
    anything; *on fresh rows* a sampling error remains, see `floor`. Probes of θ's inputs, and those of a
    higher `degree`, are not stopped. Outside range(Σ), θ is exactly the identity.

    Args:
        harmful_features: `(N, D)` harmful inputs.
        harmful_targets: `(N,)` class labels, or `(N,)` or `(N, m)` real targets.
        covariance: `(D, D)` K_H in place of the features, centered for a probe with an intercept.
        moment: `(D,)` or `(D, C)` :math:`G = X_H^\top Z` of centered targets, beside `covariance`.
        rows: N, from which the default of `shrinkage` is taken beside `covariance`.
        strength: 1 − s in [0, 1]; 1 erases, 0 changes nothing.
        rank: Erase only that many directions, those of the best squared fit; default: all. Of degree 2, those
            follow in which the class covariances differ most; the differences that remain are not zero.
        degree: 1 stops linear probes, 2 quadratic ones, too: classes get equal means and covariances, by
            removing about half of the other directions for two classes, three quarters for three, and so on
            (`condnum.theory.quadratic`). Where nothing would be left, give a `rank`.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.
        intercept: Whether the probe has an intercept. If not, nothing is centered: regression targets
            are unchanged, and 1/C is subtracted from one-hot labels.
        shrinkage: ρ in [0, 1] of Σ ← (1 − ρ)Σ + ρ·diag(Σ). Default: 0 with at least 10 rows per column, else
            the oracle-approximating intensity of Chen et al. (2010) for standardized columns.
        floor: Also remove directions that few rows excite: those whose *spread* is below this number in
            [0, 1]. A direction v in the coordinates of :math:`X = U S V^\top` is excited by rows of mean
            leverage :math:`λ = \sum_i \|u_i\|^2 (u_i^\top v)^2`; its spread :math:`\frac{r}{N-r} /
            \frac{λ}{1-λ}` is 1 if all rows excite it alike, and 0 if one row does. Default: 1/3, and 0 for a
            covariance, which has no rows.

    Returns:
        θ with the directions, their number and the fraction of the fit that is removed.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, one class only, `strength`, `rank`,
            `shrinkage`, `degree` or `floor` is out of range, or there is nothing to erase.
        RankError: Nothing would be left of the features.
        UnknownNameError: Unknown kind.

    Examples:
        Two classes that differ along the first axis: it is erased, the second one is kept.

        >>> X = [[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]
        >>> found = erasure(X, ["cat", "cat", "dog", "dog"], shrinkage=0.0)
        >>> found.theta.round(12).tolist(), found.rank, round(found.fit_removed, 12)
        ([[0.0, 0.0], [0.0, 1.0]], 1, 1.0)
        >>> erasure(covariance=[[4.0, 0.0], [0.0, 4.0]], moment=[2.0, 0.0]).theta.round(12).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    options: dict[str, Any] = {"strength": strength, "rank": rank, "shrinkage": shrinkage, "degree": degree}
    if (harmful_features is None) == (covariance is None) or (moment is None) != (covariance is None):
        raise InvalidInputError("give harmful_features and harmful_targets, or covariance= and moment=.")
    if covariance is not None:
        if floor or degree != 1:
            given = f"floor {floor}" if floor else f"degree {degree}"
            raise InvalidInputError(f"{given} needs rows, which a covariance does not have; leave it out.")
        F, Z = _rows_of(covariance, moment)
        N = len(F) if rows is None else check_integer("rows", rows, 1)
        options["shrinkage"] = 0.0 if shrinkage is None and rows is None else shrinkage
        found = erasure_of_rows(F, Z, torch.zeros_like(F[0]), N, floor=0.0, **options)
        return found.converted(like(covariance))
    X = as_tensor(harmful_features, "harmful_features", ndim=2).detach()  # type: ignore[arg-type]
    options |= {"floor": floor, "intercept": intercept, "stored": storage_eps(harmful_features)}  # type: ignore[arg-type]
    targets = as_targets(harmful_targets, "harmful_targets", kind, rows=len(X))
    return erasure_of_task(X, *targets, **options).converted(like(harmful_features))


def erasure_of_task(
    X: Tensor, y: Any, classes: Any, *, floor: float | None, intercept: bool, **options: Any
) -> Erasure:
    """Erase what `as_targets` returned from rows X; the other options are those of `erasure_of_rows`."""
    Z = torch.from_numpy(y).to(X.device)
    if classes is not None:
        if len(classes) < 2:
            raise InvalidInputError(
                f"all {len(y)} labels are of one class, {classes[0]}: there is nothing to erase."
            )
        Z = torch.nn.functional.one_hot(Z).to(X)
        Z = Z if intercept else Z - 1 / len(classes)
    mean = torch.zeros_like(X[0])
    if intercept:
        (X, mean), Z = centered(X), Z - Z.mean(dim=0)
    options["floor"] = check_real("floor", FLOOR if floor is None else floor, 0, 1)
    return erasure_of_rows(X, Z, mean, len(X), intercept=intercept, **options)


def erasure_of_rows(
    F: Tensor,
    Z: Tensor,
    mean: Tensor,
    N: int,
    *,
    strength: float,
    rank: int | None,
    shrinkage: float | None,
    floor: float,
    degree: int = 1,
    intercept: bool = True,
    stored: float = EPS,
) -> Erasure:
    """Erase Z `(n, C)` from features F `(n, D)`, both ready: centered for a probe with an intercept.

    Without a floor any rows with the same products do, such as a triangular factor of N rows. `mean` `(D,)`
    of the columns before they were centered carries the round-off of numbers stored at a precision of
    `stored`. A column that varies within it, or within that of a sum of N terms, is removed.
    """
    strength = check_real("strength", strength, 0, 1)
    if degree not in (1, 2):
        raise InvalidInputError(f"degree must be 1 (linear probes) or 2 (quadratic ones), got {degree!r}.")
    D, eps = F.shape[1], default_rtol(max(N, F.shape[1]))
    round_off = max(N, D) * EPS * Z.norm()
    sizes = torch.hypot(F.norm(dim=0), N**0.5 * mean.abs())
    flat = (F.norm(dim=0) <= (N * EPS + 2 * stored) * sizes) & F.any(dim=0)
    rows, F = torch.linalg.qr(torch.where(flat, 0.0, F))
    targets, Z = Z, rows.mT @ Z
    units, V, roots, left = _equilibrated_svd(F, eps)
    fit, left = left.mT @ Z, rows @ left
    rare = _rarely_excited(left, floor, N - intercept)
    best, lengths, _ = singular_triples(fit - rare @ (rare.mT @ fit))
    best = best[:, lengths > round_off]
    if degree == 2:
        basis = complement(torch.cat([best, rare], dim=1))
        root = (V * roots).mT * units
        curved = quadratic_directions(left, targets, basis, root, ranked=rank is not None)
        best = torch.cat([best, curved], dim=1)
    full = best.shape[1]
    linear = fit.norm() > round_off
    if not linear and not (degree == 2 and full):
        raise InvalidInputError(
            f"the harmful targets have no {'linear' if degree == 1 else 'quadratic'} part in these features: "
            "there is nothing to erase; check that rows and targets are in the same order."
        )
    k = full if rank is None else check_integer("rank", rank, 1)
    if k > full:
        raise InvalidInputError(
            f"rank must be at most {full}, the number of directions to erase, got {rank}."
        )
    erased = torch.cat([best[:, :k], rare], dim=1)
    r = len(roots)
    if degree == 2 and erased.shape[1] >= r:
        raise RankError(
            f"degree 2 leaves none of {r} directions for {Z.shape[1]} columns of targets; pass a smaller "
            f"rank, such as {r // 2}, or degree=1."
        )
    rho = _shrinkage(roots, N, int(F.any(dim=0).sum()), shrinkage)
    shrunk = ((1 - rho) * roots.square() + rho).sqrt()[:, None]  # of Σ on V, where columns have length 1
    a, b = erased / roots[:, None], erased * roots[:, None]
    U = torch.linalg.qr(b / shrunk).Q
    c, d = U / shrunk, U * shrunk
    # (I − abᵀ)(I − cdᵀ) = I + ABᵀ: the projection by unshrunk Σ comes first, as it erases up to round-off,
    # however small some roots are.
    A, B = torch.cat([-a, a @ (b.mT @ c) - c], dim=1), torch.cat([b, d], dim=1)
    if B.shape[1] > r:
        A, B = A @ B.mT, torch.eye(r).to(B)
    A, B = strength * V @ A, V @ B  # θ in units in which the columns have length 1
    found = Erasure(A / units[:, None], B * units[:, None], F.new_ones(D).bool(), V, k, strength, 0.0, rho)
    # What is lost to round-off: by the entries of θ, and by the sums of X @ θ.
    moved = sizes + (sizes @ found.left.abs()) @ found.right.abs().mT
    lost = D * EPS * ((1 + (A.mT @ A @ B.mT @ B).trace().clamp_min(0).sqrt()) * units + moved)
    empty = ((found.features(F).norm(dim=0) <= lost) & F.any(dim=0)) | flat
    found = replace(found, kept=~empty)
    seen = found.features(F)
    noise = float((lost / seen.norm(dim=0))[seen.any(dim=0)].norm())
    seen_fit = _equilibrated_svd(seen, eps, noise)[-1].mT @ Z
    left_over = float(seen_fit.square().sum() / fit.square().sum()) if linear else 0.0
    gone = V @ b
    if strength == 1 and empty.any():  # with the columns, directions may go that no row excites
        spikes = torch.nn.functional.one_hot(empty.nonzero()[:, 0], D).to(F).mT
        basis = torch.linalg.qr(torch.cat([gone, spikes], dim=1)).Q
        left, lengths, _ = singular_triples((basis.mT + (basis.mT @ A) @ B.mT) * ~empty)
        gone = basis @ left[:, lengths <= 1e-8]
    directions = torch.linalg.qr(units[:, None] * gone).Q
    return replace(found, directions=directions, fit_removed=min(1.0, max(0.0, 1 - left_over)))


def _rarely_excited(left: Tensor, floor: float, N: int) -> Tensor:
    """Return an orthonormal basis of the directions, in the coordinates of U `(N, r)`, of spread < floor."""
    r, leverages = left.shape[1], left.square().sum(dim=1)
    means, coordinates = torch.linalg.eigh((left * leverages[:, None]).mT @ left)
    return coordinates[:, means > r / (r + floor * max(N - r, 0)) * (1 + 1e-9)]  # or a tie


def _rows_of(covariance: ArrayLike, moment: Any) -> tuple[Tensor, Tensor]:
    """Return rows F `(r, D)` and Z `(r, C)` with `FᵀF = K` and `FᵀZ = G`."""
    K = as_covariance(covariance, "covariance").detach()
    G = as_tensor(moment, "moment", minimum_ndim=1).detach().to(K.device)
    G = G[:, None] if G.ndim == 1 else G
    if G.ndim != 2 or len(G) != len(K):
        raise InvalidInputError(f"moment {tuple(G.shape)} does not fit a covariance of {len(K)} columns.")
    lengths = K.diagonal().clamp_min(0).sqrt()
    lengths = torch.where(lengths > 0, lengths, 1)
    equal = CovarianceRange.of(K / lengths / lengths[:, None])
    return equal.factor * lengths, (equal.vectors.mT @ (G / lengths[:, None])) / equal.values.sqrt()[:, None]


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
    basis, sizes, _ = singular_triples(G / G.norm(dim=0))
    basis = basis[:, sizes > max(G.shape) * EPS * sizes.sum()]
    # A combination with a part in null(K_P) is met by moving β there, at no cost.
    _, outside, combinations = singular_triples(basis - V @ (V.mT @ basis), whole=True)
    inside = basis @ combinations[int((outside > 1e-10).sum()) :].mT
    Q = torch.linalg.qr((V.mT @ inside) / roots[:, None]).Q  # in the whitened coordinates Σ^{1/2}Vᵀβ
    return float((Q.mT @ (left.mT @ Y)).square().sum()) / len(X)


def _equilibrated_svd(
    X: Tensor, rtol: float | None = None, noise: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the lengths of columns, and V, S and U of columns of length 1, above `rtol` and `noise`.

    So no unit decides on a rank. The default `rtol` is max(N, D)·eps of float64, whatever X was stored in.
    """
    peaks = X.abs().amax(dim=0)
    units, used = peaks * (X / peaks.where(peaks > 0, 1.0)).norm(dim=0), peaks > 0
    units = units.where(used, units.max() or 1.0)
    left, roots, rows = singular_triples(X / units)
    kept = roots > max(checked_rtol(rtol, default_rtol(max(X.shape))) * float(roots[0]), noise)
    return units, rows[kept].mT * used[:, None], roots[kept], left[:, kept]


def _shrinkage(roots: Tensor, N: int, D: int, given: float | None) -> float:
    """Return the given intensity, or that of Chen et al. (2010) where rows are few."""
    if given is not None:
        return check_real("shrinkage", given, 0, 1)
    if N >= FEW_ROWS * D or D == 1:
        return 0.0
    mean, spread = float(roots.square().sum()) / D, float((roots**4).sum()) / D**2
    return min(1.0, (spread + mean**2) / max((N + 1) * (spread - mean**2 / D), spread * EPS))
