r"""Quadratic erasure: nothing left for a probe of degree 2, with or without labels at release.

A quadratic probe :math:`q(x) = x^\top A x + b^\top x + c` with a convex loss learns nothing of centered
targets Z from centered rows X if and only if :math:`X^\top Z = 0` and every form :math:`M_j = \sum_i
z_{ij} x_i x_i^\top` is 0: LEACE's theorem for the features :math:`(x, x x^\top)`. For labels, class means
and covariances are equal.

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

**With labels at release** (`quadratic_erasure`), a map per class equates means and covariances at full
rank. **No degree is enough** for all attackers: a universal kernel learns nothing if and only if all
classes have the same distribution of features.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.arrays import ArrayLike, as_targets, as_tensor, like
from condnum.errors import InvalidInputError, RankError, check_real
from condnum.theory.spectra import EPS, default_rtol

#: Fixed-point iterations of a barycenter at most, and the relative change that ends them.
ITERATIONS, CHANGE = 200, 1e-13


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
        return basis @ vectors[:, values > noise**2 + default_rtol(len(values)) * values.max()].flip(1)
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


def centered(X: Tensor) -> tuple[Tensor, Tensor]:
    """Return X without the mean of its columns, exactly zero in a constant one, and the mean."""
    F = X - X[0]
    mean = F.mean(dim=0)
    return F.sub_(mean), X[0] + mean


@dataclass(frozen=True)
class QuadraticErasure:
    """A map per class onto common means and covariances; arrays are of the caller's kind."""

    classes: NDArray[Any] = field(repr=False)  # (C,) labels in ascending order
    means: Any = field(repr=False)  # (C, D) of the classes
    mean: Any = field(repr=False)  # (D,) of all rows
    maps: Any = field(repr=False)  # (C, D, D) A_c, symmetric
    shrinkage: float  # ρ
    iterations: int  # of the fixed point of B
    residual: float  # relative change of B in the last of them

    def features(self, X: Any, y: Any) -> Any:
        """Return :math:`m + A_c(x - μ_c)` `(N, D)` of rows with their labels."""
        rows = as_tensor(X, "X", ndim=2)
        codes, told = as_targets(y, "y", "classification", rows=len(rows))
        fitted, labels = self.classes.tolist(), [] if told is None else told.tolist()
        if new := [label for label in labels if label not in fitted]:
            raise InvalidInputError(
                f"y has label {new[0]!r}: give each row one of the fitted labels, such as {fitted[0]!r}."
            )
        places = np.array([fitted.index(label) for label in labels])[codes]
        known = [torch.as_tensor(of).to(rows) for of in (self.means, self.mean, self.maps)]
        moved = torch.einsum("nd,nde->ne", rows - known[0][places], known[2][places]) + known[1]
        return like(X)(moved)


def quadratic_erasure(X: ArrayLike, y: Any, *, shrinkage: float = 0.0) -> QuadraticErasure:
    r"""Make the means and covariances of all classes equal, by a map for the rows of each class (QLEACE).

    .. math::
        x \mapsto m + A_c (x - μ_c), \quad A_c = Σ_c^{-1/2} (Σ_c^{1/2} B Σ_c^{1/2})^{1/2} Σ_c^{-1/2}, \quad
        B = \sum_c p_c (B^{1/2} Σ_c B^{1/2})^{1/2}

    with the mean m of all rows. Of all maps, random ones included, that make these moments equal, this one
    moves the rows least in mean square (Belrose et al., *Slowing Learning by Erasing Simple Features*, 2025).
    The rows of a class move by at least :math:`\|μ_c - m\|^2 + \operatorname{tr}(Σ_c + B - 2 (Σ_c^{1/2} B
    Σ_c^{1/2})^{1/2})` to any common m and B (Gelbrich, 1990); A_c attains this, and the weighted mean and the
    barycenter B minimize the sum.

    Every released row needs its label; to publish an extractor, use `erasure` with `degree=2`. *Only
    quadratic probes are stopped.* The map depends on the label and may give it away: with x = ±1 in one class
    and x ∈ {−1, 0, 0, 1} in the other, 75 % of the labels can be read, and after erasure all of them.

    Args:
        X: `(N, D)` rows.
        y: `(N,)` labels of any type.
        shrinkage: ρ in [0, 1] of Σ_c ← (1 − ρ)Σ_c + ρ Σ_w with the mean Σ_w of all classes; for ρ > 0, these
            sums become equal, and the covariances of the rows nearly.

    Returns:
        Means and maps; `features(X, y)` applies them.

    Raises:
        InvalidInputError: Shapes do not fit, entries are non-finite, one class only, or `shrinkage` is out
            of range.
        RankError: A class varies in fewer directions than all together, or in some so little that its
            covariance has no inverse, and `shrinkage` is 0.

    Examples:
        >>> found = quadratic_erasure([[1.0], [3.0], [-2.0], [2.0]], ["a", "a", "b", "b"])
        >>> found.features([[1.0], [3.0], [-2.0], [2.0]], ["a", "a", "b", "b"]).round(9).ravel().tolist()
        [-0.5, 2.5, -0.5, 2.5]
    """
    given = as_tensor(X, "X", ndim=2).detach()
    unit_size = math.ldexp(1, math.frexp(float(given.abs().max()) or 1.0)[1])  # squares stay in range
    rows = given / unit_size
    codes, classes = as_targets(y, "y", "classification", rows=len(rows))
    rho = check_real("shrinkage", shrinkage, 0, 1)
    if classes is None or len(classes) < 2:
        raise InvalidInputError(f"y has {len(rows)} labels of one class; give 2 classes or more.")
    groups = [centered(rows[torch.from_numpy(codes == code).to(rows.device)]) for code in range(len(classes))]
    (about, mean), means = centered(rows), torch.stack([own for _, own in groups])
    weights = [len(group) / len(rows) for group, _ in groups]
    within = torch.cat([group for group, _ in groups])
    _, roots, V = torch.linalg.svd(within, full_matrices=False)
    kept = roots > default_rtol(max(rows.shape)) * torch.linalg.matrix_norm(about, 2)
    # A column that is constant in every class stays so exactly: round-off would differ by class.
    T, V = roots[kept] / len(rows) ** 0.5, V[kept] * within.any(dim=0)
    white = [group @ V.mT / T for group, _ in groups]
    for label, group in zip(classes.tolist(), white, strict=True):
        if not rho and (rank := int(torch.linalg.matrix_rank(group))) < len(T):
            raise RankError(
                f"class {label!r} varies in {rank} of {len(T)} directions ({len(group)} rows): no map gives "
                "it the covariance of the others; pass shrinkage=0.1, or fewer columns than rows per class."
            )
    unit = rho * torch.eye(len(T)).to(rows)
    sigmas = [T[:, None] * ((1 - rho) * of.mT @ of / len(of) + unit) * T for of in white]
    B, change, count = torch.diag(T**2), 1.0, 0
    while change > CHANGE and count < ITERATIONS:
        steps = [_transport(B, sigma) * p for p, sigma in zip(weights, sigmas, strict=True)]
        step = torch.stack(steps).sum(dim=0)
        new = step @ B @ step
        change, B, count = float((new - B).norm() / B.norm()), new, count + 1
    outside = torch.eye(rows.shape[1]).to(rows) - V.mT @ V  # no class varies there
    maps = torch.stack([V.mT @ _transport(sigma, B) @ V + outside for sigma in sigmas])
    means, mean, maps = map(like(X), (means * unit_size, mean * unit_size, maps))
    return QuadraticErasure(classes, means, mean, maps, rho, count, change)


def _transport(source: Tensor, target: Tensor) -> Tensor:
    """Return the symmetric A with `A source A = target`; both are positive definite."""
    values, U = torch.linalg.eigh(source)
    if not bool(values[0] > 0):
        raise RankError(
            "a class varies so little in some direction that its covariance has no inverse in float64: "
            "leave out columns that nearly repeat others."
        )
    root, inverse = ((U * values.clamp_min(0) ** power) @ U.mT for power in (0.5, -0.5))
    values, U = torch.linalg.eigh(root @ target @ root)
    return inverse @ ((U * values.clamp_min(0).sqrt()) @ U.mT) @ inverse
