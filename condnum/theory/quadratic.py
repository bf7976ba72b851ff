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

**No degree is enough** for all attackers: a universal kernel learns nothing if and only if all classes have
the same distribution of features.
"""

import torch
from torch import Tensor

from condnum.theory.spectra import EPS, default_rtol


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
