r"""Linear erasure: extractors from which no linear probe with a convex loss learns the harmful task.

With centered harmful targets Z `(N, C)` and :math:`G = X_H^\top Z`, the zero probe with an intercept is
optimal on features :math:`X_Hθ`, for every convex loss, if and only if :math:`θ^\top G = 0` (Belrose et al.,
*LEACE*, NeurIPS 2023). No solver, preconditioner or number of steps changes an optimum. The path θ_s of
`erasure` leads from I (s = 1) to erasure (s = 0). For s > 0 it is invertible, so that the harmful optimum
stays and only its distance grows: *conditioning is erasure that stops short*.

**An eraser is a map through a bottleneck**, :math:`x \mapsto (xB)C` with B `(D, r)`. Multiplied out, BC has
rank r only up to round-off: Xθ keeps what was erased in the last bits of directions that are otherwise empty,
where whitening without a tolerance finds it. Through r numbers nothing passes but r directions.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, TargetKind, as_targets, as_tensor, like, storage_eps
from condnum.errors import InvalidInputError, RankError, check_flag, check_integer, check_real
from condnum.theory.covariances import CovarianceRange
from condnum.theory.extremes import singular_triples
from condnum.theory.quadratic import centered, complement, quadratic_directions
from condnum.theory.spectra import EPS, as_covariance, checked_rtol, default_rtol


@dataclass(frozen=True)
class Erasure:
    """An erasing extractor with the quantities behind it; arrays are of the caller's kind."""

    left: Any = field(repr=False)  # (D, r) B, and
    right: Any = field(repr=False)  # (r, D) C: features are (XB)C, in this order; of the path θ_s and I
    removed: Any = field(repr=False)  # (D, k) orthonormal basis of what the targets correlate with
    rank: int  # k, directions of the targets
    strength: float  # 1 − s
    fit_removed: float  # fraction of the best squared fit to Z that is gone, measured on these rows' XB

    @cached_property
    def theta(self) -> Any:
        """The product BC `(D, D)`, for formulas of θ; to release it, give `left` and `right`, or XB.

        Its rank is r up to round-off, in which X @ theta keeps what was erased (see the module).
        """
        return self.left @ self.right

    def features(self, X: Any) -> Any:
        """Return (XB)C `(N, D)`."""
        return (X @ self.left) @ self.right

    @cached_property
    def extractor(self) -> Any:
        """θ `(D, r)` as one matrix that may be released: (XB)C in an orthonormal basis of the rows of C."""
        left, right = torch.as_tensor(self.left), torch.as_tensor(self.right)
        return self.left if self.strength < 1 else like(self.left)(left @ torch.linalg.qr(right.mT).R.mT)

    @cached_property
    def directions(self) -> Any:
        """Orthonormal basis `(D, D - r)` of all that is not passed on, Bᵀv = 0; on the path `removed`."""
        return like(self.left)(complement(torch.as_tensor(self.left))) if self.strength == 1 else self.removed

    def converted(self, convert: Any) -> "Erasure":
        """Return the erasure with its arrays converted."""
        return replace(self, **{name: convert(getattr(self, name)) for name in ("left", "right", "removed")})


def erasure(
    harmful_features: ArrayLike | None = None,
    harmful_targets: Any = None,
    *,
    covariance: ArrayLike | None = None,
    moment: ArrayLike | None = None,
    strength: float = 1.0,
    rank: int | None = None,
    degree: int = 1,
    kind: TargetKind = "auto",
    intercept: bool = True,
    keep_unseen: bool = False,
) -> Erasure:
    r"""Erase what a linear probe could learn of the harmful task, or a part of it.

    .. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad H_H(θ_s) = K_H - (1 - s^2) N W^{-1} U U^\top W^{-1}

    with :math:`Σ = K_H / N, W = Σ^{-1/2}, U = \operatorname{orth} WX_H^\top Z`. X and K_H are centered for a
    probe with an intercept. Of all θ that erase these directions, this one changes the harmful features least
    in Mahalanobis norm (LEACE). *On these rows* no linear probe of the features learns anything; *on fresh
    rows* a sampling error of order :math:`\sqrt{D/N}` remains, and everything can where a direction is
    excited by so few rows that other rows lack it: features then show what was erased, to balance these rows.
    Probes of θ's inputs, and those of a higher `degree`, are not stopped.

    At s = 0 the features are (XB)C with B `(D, r)`, r = rank(Σ) − k. What no row excites (constant columns,
    fewer rows than columns) is not passed on, because nothing is known about it. The benign task pays for
    that, too: see `erasure_price` of `Erasure.directions`.

    Args:
        harmful_features: `(N, D)` harmful inputs.
        harmful_targets: `(N,)` class labels, or `(N,)` or `(N, m)` real targets.
        covariance: `(D, D)` K_H in place of the features, centered for a probe with an intercept.
        moment: `(D,)` or `(D, C)` :math:`G = X_H^\top Z` of centered targets, beside `covariance`.
        strength: 1 − s in [0, 1]; 1 erases, 0 changes nothing. Below 1 θ_s is invertible.
        rank: Erase only that many directions, those of the best squared fit; default: all. Of degree 2, those
            follow in which the class covariances differ most; the differences that remain are not zero.
        degree: 1 stops linear probes, 2 quadratic ones, too: classes get equal means and covariances, by
            removing about half of the other directions for two classes, three quarters for three, and so on
            (`condnum.theory.quadratic`). Where nothing would be left, give a `rank`.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.
        intercept: Whether the probe has an intercept. If not, nothing is centered: regression targets
            are unchanged, and 1/C is subtracted from one-hot labels.
        keep_unseen: Pass on the directions that no row excites. The benign task keeps them, and so does an
            attacker whose rows excite them.

    Returns:
        The two factors with the directions, their number and the fraction of the fit that is removed.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, one class only, `strength`, `rank` or
            `degree` is out of range, or there is nothing to erase.
        RankError: Nothing would be left of the features.
        UnknownNameError: Unknown kind.

    Examples:
        Two classes that differ along the first axis: it is erased, the second one is kept.

        >>> import numpy as np
        >>> X = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> found = erasure(X, ["cat", "cat", "dog", "dog"])
        >>> found.features(X).round(12).tolist(), found.rank, round(found.fit_removed, 12)
        ([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], 1, 1.0)
        >>> erasure(covariance=[[4.0, 0.0], [0.0, 4.0]], moment=[2.0, 0.0]).theta.round(12).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    options: dict[str, Any] = {
        "strength": strength, "rank": rank, "degree": degree, "keep_unseen": keep_unseen,
    }  # fmt: skip
    if (harmful_features is None) == (covariance is None) or (moment is None) != (covariance is None):
        raise InvalidInputError("give harmful_features and harmful_targets, or covariance= and moment=.")
    if covariance is not None:
        if degree != 1:
            raise InvalidInputError(
                f"degree {degree} needs rows, which a covariance does not have; leave it out."
            )
        F, Z = _rows_of(covariance, moment)
        return erasure_of_rows(F, Z, torch.zeros_like(F[0]), len(F), **options).converted(like(covariance))
    X = as_tensor(harmful_features, "harmful_features", ndim=2).detach()  # type: ignore[arg-type]
    options |= {"intercept": intercept, "stored": storage_eps(harmful_features)}  # type: ignore[arg-type]
    targets = as_targets(harmful_targets, "harmful_targets", kind, rows=len(X))
    return erasure_of_task(X, *targets, **options).converted(like(harmful_features))


def erasure_of_task(X: Tensor, y: Any, classes: Any, *, intercept: bool, **options: Any) -> Erasure:
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
    return erasure_of_rows(X, Z, mean, len(X), **options)


def erasure_of_rows(
    F: Tensor,
    Z: Tensor,
    mean: Tensor,
    N: int,
    *,
    strength: float,
    rank: int | None,
    degree: int = 1,
    keep_unseen: bool = False,
    stored: float = EPS,
) -> Erasure:
    """Erase Z `(n, C)` from features F `(n, D)`, both ready: centered for a probe with an intercept.

    Any rows with the same products do, such as a triangular factor of N rows. `mean` `(D,)` of the columns
    before they were centered carries the round-off of numbers stored at a precision of `stored`. A column
    that varies within it, or within that of a sum of N terms, counts as constant.
    """
    strength = check_real("strength", strength, 0, 1)
    keep_unseen = check_flag("keep_unseen", keep_unseen)
    if degree not in (1, 2):
        raise InvalidInputError(f"degree must be 1 (linear probes) or 2 (quadratic ones), got {degree!r}.")
    D = F.shape[1]
    # Rounding of the stored rows moves columns of length 1 by less than √D·eps/2 in spectral norm.
    rtol = max(default_rtol(max(N, D)), D**0.5 * stored)
    round_off = max(N, D) * EPS * Z.norm()
    sizes = torch.hypot(F.norm(dim=0), N**0.5 * mean.abs())
    flat = F.norm(dim=0) <= (N * EPS + 2 * stored) * sizes
    rows, F = torch.linalg.qr(torch.where(flat, 0.0, F))
    targets, Z = Z, rows.mT @ Z
    units, V, roots, left = _equilibrated_svd(F, rtol)
    fit = left.mT @ Z
    erased, lengths, _ = singular_triples(fit)
    erased = erased[:, lengths > round_off]
    linear = bool(fit.norm() > round_off)
    if degree == 2:
        curved = quadratic_directions(
            rows @ left, targets, complement(erased), (V * roots).mT * units, ranked=rank is not None
        )
        erased = torch.cat([erased, curved], dim=1)
    full, r = erased.shape[1], len(roots)
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
    a, b = erased[:, :k] / roots[:, None], erased[:, :k] * roots[:, None]  # θ on V is I − abᵀ
    removed = torch.linalg.qr(V @ b * units[:, None]).Q
    if strength < 1:
        same = torch.eye(D).to(F)
        theta = same - strength * (V @ a / units[:, None]) @ (V @ b * units[:, None]).mT
        return Erasure(theta, same, removed, k, strength, 0.0)
    unseen = _unseen(V) if keep_unseen else V[:, :0]
    if k >= r and not unseen.shape[1]:
        fewer = f"a smaller rank, such as {k // 2}, fewer classes" if k > 1 else "more features"
        raise RankError(
            f"degree {degree} leaves none of {r} directions that the rows excite (n_features = {D}), for "
            f"{Z.shape[1]} columns of targets; give {fewer}, or a lower degree."
        )
    kept = complement(b)  # orthonormal, bᵀ·kept = 0: what θ can reach
    B = torch.cat([V @ kept, unseen], dim=1) / units[:, None]
    C = torch.cat([(kept - b @ (a.mT @ kept)).mT @ V.mT, unseen.mT]) * units
    left = torch.linalg.qr(F @ B[:, : r - k]).Q.mT @ Z
    gone = 1 - float(left.square().sum() / fit.square().sum()) if linear else 0.0
    return Erasure(B, C, removed, k, strength, min(1.0, max(0.0, gone)))


def _unseen(V: Tensor) -> Tensor:
    """Return an orthonormal basis of the complement of V `(D, r)`, with columns that V lacks exactly."""
    used = V.any(dim=1)
    rest = complement(V[used])
    basis = V.new_zeros(len(V), rest.shape[1])
    basis[used] = rest
    return torch.cat([torch.eye(len(V)).to(V)[:, ~used], basis], dim=1)


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


def _equilibrated_svd(X: Tensor, rtol: float | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the lengths of columns, and V, S and U of columns of length 1, above `rtol`.

    So no unit decides on a rank. The default `rtol` is max(N, D)·eps of float64, whatever X was stored in.
    """
    peaks = X.abs().amax(dim=0)
    units, used = peaks * (X / peaks.where(peaks > 0, 1.0)).norm(dim=0), peaks > 0
    units = units.where(used, units.max() or 1.0)
    left, roots, rows = singular_triples(X / units)
    kept = roots > checked_rtol(rtol, default_rtol(max(X.shape))) * float(roots[0])
    return units, rows[kept].mT * used[:, None], roots[kept], left[:, kept]
