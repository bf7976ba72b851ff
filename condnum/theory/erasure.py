r"""Linear erasure: extractors from which no linear probe with a convex loss learns the harmful task.

With centered harmful targets Z `(N, C)` and :math:`G = X_H^\top Z`, the zero probe with an intercept is
optimal on features :math:`X_Hθ`, for every convex loss, if and only if :math:`θ^\top G = 0` (Belrose et al.,
*LEACE*, NeurIPS 2023). No solver, preconditioner or number of steps changes an optimum. The path θ_s of
`erasure` leads from I (s = 1) to erasure (s = 0). For s > 0 it is invertible, so that the harmful optimum
stays and only its distance grows: *conditioning is erasure that stops short*.

**An eraser is a map through a bottleneck**, :math:`x \mapsto (xB)C` with B `(D, r)`. Multiplied out, BC has
rank r only up to round-off: Xθ keeps what was erased in the last bits of directions that are otherwise empty,
where whitening without a tolerance finds it. Through r numbers nothing passes but r directions.

**Degree 2.** A quadratic probe :math:`q(x) = x^\top A x + b^\top x + c` with a convex loss learns nothing of
centered targets Z from centered rows X if and only if :math:`X^\top Z = 0` and every form :math:`M_j = \sum_i
z_{ij} x_i x_i^\top` is 0: LEACE's theorem for the features :math:`(x, x x^\top)`. For labels, class means and
covariances are equal.

**No invertible map erases.** For an invertible affine map f, :math:`q \mapsto q \circ f^{-1}` maps the
probes of x one to one onto those of f(x), with equal losses, in every family that is closed under affine
maps: linear probes, polynomials of one degree, nets whose first layer is free. Penalized probes, RBF
kernels of fixed width and nearest neighbors are not closed; f may hinder them until they undo it.

**Without labels at release** (`erasure` with `degree=2`), nothing is left if and only if :math:`θ^\top
X^\top Z = 0` and all :math:`θ^\top M_j θ = 0`: within the complement of :math:`X^\top Z`, the columns of θ
span a subspace that is *isotropic* for every form. One form (two classes, or one column of numbers) with
:math:`n_+, n_-, n_0` positive, negative and zero eigenvalues has an isotropic subspace of dimension
:math:`n_0 + \min(n_+, n_-)` and none larger. An isotropic subspace meets the span of the positive
eigenvectors, on which the form is definite, in 0 alone, and that of the negative ones, too: so none is
larger. Pairs of unit eigenvectors with :math:`λ_p > 0 > λ_q` give :math:`\sqrt{-λ_q}\, u_p ± \sqrt{λ_p}\,
u_q`; the form vanishes on either, and across disjoint pairs. For m forms the step is repeated within the
subspace found: that is isotropic for all of them, but not always the largest. For almost all m forms in n
dimensions, none is larger than :math:`(2n - m)/(m + 2)`: subspaces of dimension d form a manifold of
dimension d(n − d), and each form sets d(d + 1)/2 independent conditions.

**No degree is enough** for all attackers: a universal kernel learns nothing if and only if all classes have
the same distribution of features.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, TargetKind, as_tensor, door, like_sample, own_state, sample_of
from condnum.errors import InvalidInputError, RankError, check_flag, check_integer, check_real
from condnum.theory.linalg import EPS, singular_triples
from condnum.theory.task import Task, as_task, rank_tolerance


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
    @own_state()
    def theta(self) -> Any:
        """The product BC `(D, D)`, for formulas of θ; to release it, give `left` and `right`, or XB.

        Its rank is r up to round-off, in which X @ theta keeps what was erased (see the module).
        """
        return self.left @ self.right

    def features(self, X: Any) -> Any:
        """Return (XB)C `(N, D)`."""
        return (X @ self.left) @ self.right

    @cached_property
    @own_state()
    def extractor(self) -> Any:
        """θ `(D, r)` as one matrix that may be released: (XB)C in an orthonormal basis of the rows of C."""
        if self.strength < 1:
            return self.left
        left, right = (torch.as_tensor(part).double() for part in (self.left, self.right))
        return like_sample(sample_of(self.left), left @ torch.linalg.qr(right.mT).R.mT)

    @cached_property
    @own_state()
    def directions(self) -> Any:
        """Orthonormal basis `(D, D - r)` of all that is not passed on, Bᵀv = 0; on the path `removed`."""
        if self.strength < 1:
            return self.removed
        return like_sample(sample_of(self.left), complement(torch.as_tensor(self.left).double()))

    def converted(self, convert: Any) -> "Erasure":
        """Return the erasure with its arrays converted."""
        return replace(self, **{name: convert(getattr(self, name)) for name in ("left", "right", "removed")})


@door
def erasure(
    X: Any,
    y: Any = None,
    *,
    strength: float = 1.0,
    rank: int | None = None,
    degree: int = 1,
    kind: TargetKind = "auto",
    keep_unseen: bool = False,
) -> Erasure:
    r"""Erase what a linear probe could learn of the harmful task, or a part of it.

    .. math:: θ_s = I - (1 - s)\, W U U^\top W^{-1}, \quad H_H(θ_s) = K_H - (1 - s^2) N W^{-1} U U^\top W^{-1}

    with :math:`Σ = K_H / N, W = Σ^{-1/2}, U = \operatorname{orth} WX_H^\top Z`. X and Z are centered: the
    probe has an intercept. Of all θ that erase these directions, this one changes the harmful features least
    in Mahalanobis norm (LEACE). *On these rows* no linear probe of the features learns anything; *on fresh
    rows* a sampling error of order :math:`\sqrt{D/N}` remains, and everything can where a direction is
    excited by so few rows that other rows lack it: features then show what was erased, to balance these rows.
    Probes of θ's inputs, and those of a higher `degree`, are not stopped.

    At s = 0 the features are (XB)C with B `(D, r)`, r = rank(Σ) − k. What no row excites (constant columns,
    fewer rows than columns) is not passed on, because nothing is known about it. The benign task pays for
    that, too: see `erasure_price` of `Erasure.directions`.

    Args:
        X: `(N, D)` harmful inputs, or a `Task` of them with targets; one of a covariance must be of centered
            rows.
        y: `(N,)` class labels, or `(N,)` or `(N, m)` real targets, beside rows.
        strength: 1 − s in [0, 1]; 1 erases, 0 changes nothing. Below 1 θ_s is invertible.
        rank: Erase only that many directions, those of the best squared fit; default: all. Of degree 2, those
            follow in which the class covariances differ most; the differences that remain are not zero.
        degree: 1 stops linear probes, 2 quadratic ones, too (`quadratic_directions`): classes get equal means
            and covariances, by removing about half of the other directions for two classes, three quarters
            for three, and so on. It needs rows. Where nothing would be left, give a `rank`.
        kind: `auto` takes integers, booleans and text for labels, and floats for numbers.
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
        >>> (found.features(X).round(12) + 0.0).tolist(), found.rank, round(found.fit_removed, 12)
        ([[0.0, 1.0], [0.0, -1.0], [0.0, 1.0], [0.0, -1.0]], 1, 1.0)
        >>> moment = Task.of_covariance([[4.0, 0.0], [0.0, 4.0]], [2.0, 0.0])
        >>> erasure(moment).theta.round(decimals=12).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    options: dict[str, Any] = {
        "strength": strength,
        "rank": rank,
        "degree": degree,
        "keep_unseen": keep_unseen,
    }
    if isinstance(X, Task):
        if y is not None or kind != "auto":
            raise InvalidInputError("a Task has its own targets: leave y and kind out, or give rows X and y.")
        return erasure_of_task(X, **options)
    return erasure_of_task(Task.of(X, y, kind=kind, name="harmful_features"), (X, y), **options)


def erasure_of_task(
    task: Task, rows: tuple[Any, Any] | None = None, *, degree: int = 1, **options: Any
) -> Erasure:
    """Erase the targets of a task; a `degree` of 2 needs its rows X and y. Options as of `erasure`."""
    if not task.outputs:
        raise InvalidInputError("there are no targets to erase; give erasure(X, y), or a Task with targets.")
    if task.classes is not None and len(task.classes) < 2:
        raise InvalidInputError(
            f"all {task.rows} labels are of one class, {task.classes[0]}: there is nothing to erase."
        )
    if degree not in (1, 2):
        raise InvalidInputError(f"degree must be 1 (linear probes) or 2 (quadratic ones), got {degree!r}.")
    F, Z = task.centered().products
    if not len(F):
        raise InvalidInputError("one row tells nothing of its targets: there is nothing to erase.")
    if degree == 2:
        if rows is None:
            raise InvalidInputError(
                "degree 2 needs rows, which a Task does not keep; give erasure(X, y, degree=2)."
            )
        F, Z = task.coded(*rows)
        F, Z = F - F[0], Z.to(F)  # exactly zero in a constant column
        F, Z = F - F.mean(dim=0), Z - Z.mean(dim=0)
    return erasure_of_rows(
        F, Z, task.mean, task.rows or len(F), degree=degree, stored=task.eps if task.rows else EPS, **options
    )


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
    empty: bool = False,
) -> Erasure:
    """Erase Z `(n, C)` from features F `(n, D)`, both ready: centered for a probe with an intercept.

    Any rows with the same products do, such as a triangular factor of N rows. `mean` `(D,)` of the columns
    before they were centered carries the round-off of numbers stored at a precision of `stored`. A column
    that varies within it, or within that of a sum of N terms, counts as constant. `empty` allows that nothing
    is left, r = 0.
    """
    strength = check_real("strength", strength, 0, 1)
    keep_unseen = check_flag("keep_unseen", keep_unseen)
    D = F.shape[1]
    # Rounding of the stored rows moves columns of length 1 by less than √D·eps/2 in spectral norm.
    rtol = max(rank_tolerance(max(N, D)), D**0.5 * stored)
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
    if k >= r and not unseen.shape[1] and not empty:
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


@door
def erasure_price(benign: Task, directions: ArrayLike) -> float:
    r"""Return the increase of the smallest benign mean squared loss when directions are erased.

    With the benign optimum :math:`β_P = K_P^{-1}X_P^\top Y` and a basis G of the directions, a probe of
    erased features is any β with :math:`G^\top β = 0`. The price is the same for every θ that erases them:

    .. math:: \tfrac1N \operatorname{tr}\left(β_P^\top G\,(G^\top K_P^{-1} G)^{-1} G^\top β_P\right)

    Zero if and only if :math:`G^\top β_P = 0`. For singular K_P, directions in which β is free cost nothing.

    Args:
        benign: Benign task with targets; its probe has an intercept for classes and none for numbers,
            unless it is `centered()`.
        directions: `(D, k)`, such as `Erasure.directions`; they may depend on each other.

    Returns:
        The rise of the mean squared loss per row, at least 0.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, or the task has no targets.

    Examples:
        >>> round(erasure_price(Task.of([[1.0, 0.0], [0.0, 1.0]], [3.0, 1.0]), [[0.0], [1.0]]), 9)
        0.5
    """
    task = as_task(benign, "benign")
    if not task.outputs:
        raise InvalidInputError(
            "the benign task has no targets, so that erasure has no price; give Task.of(X, y)."
        )
    task = task.probe
    G = as_tensor(directions, "directions", ndim=2).detach().to(task.vectors)
    if len(G) != task.dimension:
        raise InvalidInputError(
            f"directions {tuple(G.shape)} do not fit a task of {task.dimension} inputs: give (D, k)."
        )
    G = G[:, G.any(dim=0)]
    basis, sizes, _ = singular_triples(G / G.norm(dim=0))
    basis = basis[:, sizes > max(G.shape) * EPS * sizes.sum()]
    # A combination with a part in null(K_P) is met by moving β there, at no cost.
    V = task.vectors
    _, outside, combinations = singular_triples(basis - V @ (V.mT @ basis), whole=True)
    inside = basis @ combinations[int((outside > 1e-10).sum()) :].mT
    Q = torch.linalg.qr((V.mT @ inside) / task.sigma[:, None]).Q  # in the whitened coordinates K^{1/2}β
    return float((Q.mT @ task.along).square().sum()) / max(task.rows, 1)


def _equilibrated_svd(X: Tensor, rtol: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the lengths of columns, and V, S and U of columns of length 1, above `rtol`: no unit decides."""
    peaks = X.abs().amax(dim=0)
    units, used = peaks * (X / peaks.where(peaks > 0, 1.0)).norm(dim=0), peaks > 0
    units = units.where(used, units.max() or 1.0)
    left, roots, rows = singular_triples(X / units)
    kept = roots > rtol * float(roots[0])
    return units, rows[kept].mT * used[:, None], roots[kept], left[:, kept]


def quadratic_directions(rows: Tensor, Z: Tensor, basis: Tensor, root: Tensor, *, ranked: bool) -> Tensor:
    """Return orthonormal directions in the span of `basis` `(r, n)` to erase for probes of degree 2.

    The columns of `rows` `(N, r)` are orthonormal; `rows @ root` are the features `(N, D)`. The complement
    within that span is isotropic for every form of Z; of the two isotropic directions of a pair, that of
    larger variance is kept. If `ranked`, all eigenvectors of the sum of squared forms come instead, the
    largest first: once k are erased, the squared entries of all forms add up to at most the sum of the
    other eigenvalues.
    """
    noise = max(rows.shape) * EPS * float(Z.abs().max())
    rows = rows @ basis
    if ranked:
        forms = [(rows * z[:, None]).mT @ rows for z in Z.mT]
        values, vectors = torch.linalg.eigh(sum(form @ form for form in forms))
        return basis @ vectors[:, values > noise**2 + rank_tolerance(len(values)) * values.max()].flip(1)
    kept = torch.eye(basis.shape[1]).to(rows)
    for z in Z.mT:
        inner = rows @ kept
        values, vectors = torch.linalg.eigh((inner * z[:, None]).mT @ inner)
        low, high = int((values < -noise).sum()), int((values <= noise).sum())
        pairs = min(low, len(values) - high)  # those of the smallest absolute values
        minus, plus = range(low - 1, low - 1 - pairs, -1), range(high, high + pairs)
        a, b = values[[*plus]].sqrt(), (-values[[*minus]]).sqrt()
        up, down = vectors[:, [*plus]] * b, vectors[:, [*minus]] * a
        seen = basis @ kept
        alike = ((root.mT @ (seen @ up)) * (root.mT @ (seen @ down))).sum(dim=0) >= 0
        mixed = torch.where(alike, up + down, up - down) / torch.hypot(a, b)
        kept = kept @ torch.cat([vectors[:, low:high], mixed], dim=1)
    return basis @ complement(kept)


def complement(basis: Tensor) -> Tensor:
    """Return an orthonormal basis of what is orthogonal to linearly independent columns."""
    return torch.linalg.qr(basis, mode="complete").Q[:, basis.shape[1] :]
