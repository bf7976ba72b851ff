r"""A task is one object: the triangular factor of its rows [1 | X | Y], cut once at its rank.

Products of rows are those of the factor, :math:`F^\top F`; its singular values are those of the rows, so that
no κ is ever squared. Blocks of rows extend it by QR in O((D + m)²) memory. An intercept is a property: what
is orthogonal to the column of ones stands below the factor's first row, and a step of gradient descent with
an intercept is one on centered rows.

**One rule for ranks**, that of `numpy.linalg.matrix_rank`: singular values above D·eps·σ₁, with the eps of
the type in which the rows were stored (half precision counts as float32), and above N·eps·σ₁ with that of
float64, the round-off of N rows. X is cut there before any θ acts: a θ with large gains would make rank of
its round-off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from condnum.arrays import (
    ArrayLike,
    TargetKind,
    all_finite,
    as_array,
    as_targets,
    as_tensor,
    check_same_names,
    extractor_matrix,
    frame,
    named_columns,
    own_state,
    rank_eps,
    same_columns,
    sample_of,
    selected,
)
from condnum.errors import InvalidInputError, RankError, check_real
from condnum.theory.linalg import (
    EPS,
    as_covariance,
    checked_gram,
    singular_triples,
    triangle_ends,
)

#: Rows are taken into the factor in blocks of so many numbers: 1 MB, what a processor keeps at hand.
_BLOCK = 1 << 17
#: ‖XᵀY‖ counts as round-off below this fraction of ‖X‖‖Y‖: nothing to learn.
_NOTHING = 1e-10


def rank_tolerance(size: int, eps: float = EPS) -> float:
    """Return the fraction of σ₁ up to which a singular value counts as zero, `size · eps`, at most a half."""
    return min(size * eps, 0.5)


@dataclass(frozen=True, eq=False)
class Task:
    """Rows X `(N, D)`, with targets Y `(N, m)` or without, as a factor with the products of [1 | X | Y].

    Make one by `Task.of` from rows or `Task.of_covariance`; tensors are float64. Columns are shifted by the
    first row, so that a constant one adds no rank. Classes are one-hot columns, a new one where a later block
    brings a new label.
    """

    factor: Tensor = field(repr=False)  # (r, 1 + D + m), upper triangular
    shift: Tensor = field(repr=False)  # (1 + D + m,), 0 for the column of ones and for classes
    dimension: int  # D
    rows: int  # N; 0: a covariance, without rows
    eps: float = EPS  # precision in which the rows were stored
    classes: tuple[Any, ...] | None = None  # a column of Y each; None: numbers
    columns: tuple[str, ...] | None = None  # names of the inputs, where they came as a data frame
    intercept: bool = False  # whether what is fitted on these rows has one
    sample: Any = field(default=None, repr=False)  # empty, of the caller's kind, dtype and device

    @classmethod
    @own_state()
    def of(
        cls,
        X: Any,
        y: Any = None,
        *,
        kind: TargetKind = "auto",
        intercept: bool = False,
        name: str = "X",
        device: str | torch.device | None = None,
    ) -> Task:
        """Return the task of rows.

        Args:
            X: `(N, D)` inputs: NumPy, torch, or a data frame of any library.
            y: `(N,)` labels, which become one-hot columns, or `(N,)` or `(N, m)` numbers; None: no targets.
            kind: `auto` takes integers, booleans, text and categories for labels, and floats for numbers.
            intercept: Whether probes of this task have one; then K is that of centered rows.
            name: What messages call the rows.
            device: Where to compute; default: where X lives.

        Returns:
            The task.

        Raises:
            InvalidInputError: Shapes do not fit, entries are non-finite, or squares leave float64.

        Examples:
            >>> task = Task.of([[1.0, 0.0], [1.0, 2.0]], ["cat", "dog"])
            >>> task.rank, task.classes, task.centered().rank
            (2, ('cat', 'dog'), 1)
        """
        rows = as_tensor(X, name, ndim=2).detach().to(device)
        D = rows.shape[1]
        shift = torch.cat([rows.new_zeros(1), rows[0]])
        empty = cls(rows.new_zeros(0, 1 + D), shift, D, 0, EPS, None, None, intercept, sample_of(X))
        names = named_columns(X)
        start = replace(empty, columns=None if names is None else tuple(names))
        return start.extended(X, y, kind=kind, name=name)

    @own_state()
    def extended(self, X: Any, y: Any = None, *, kind: TargetKind = "auto", name: str = "X") -> Task:
        """Return the task with more rows; blocks of any size and order give the same task up to round-off."""
        if len(self.factor) and not self.rows:
            raise InvalidInputError("a covariance has no rows to go on from; start with Task.of(X, y).")
        if self.columns and (names := named_columns(X)) is not None:
            check_same_names("the first rows", self.columns, name, names)
            X = selected(X, self.columns)
        rows = as_tensor(X, name, ndim=2).detach().to(self.factor.device)
        D, N = self.dimension, len(rows)
        if rows.shape[1] != D:
            raise InvalidInputError(f"{name} has {rows.shape[1]} features, but the task has {D}.")
        if self.rows and (y is None) != (self.outputs == 0):
            raise InvalidInputError("all blocks of a task must have targets, or none.")
        Y, classes = self._coded(y, N, kind, "y" + name[1:] if name.startswith("X") else f"y of {name}")
        widened = Y.shape[1] - self.outputs
        F = pad(self.factor, (0, widened))
        shift = pad(self.shift, (0, widened))
        if not self.rows and classes is None and Y.shape[1]:
            shift = torch.cat([self.shift, Y[0]])
        size = max(_BLOCK // F.shape[1], 4 * F.shape[1])
        for first in range(0, N, size):
            part = slice(first, first + size)
            block = torch.cat([rows.new_ones(len(rows[part]), 1), rows[part], Y[part]], dim=1) - shift
            F = torch.linalg.qr(torch.cat([F, block]), mode="r").R
        checked_gram((F + F[:, :1] * shift)[:, 1:].square().sum(dim=0), rows)
        eps = max(self.eps, rank_eps(X))
        return replace(self, factor=F, shift=shift, rows=self.rows + N, eps=eps, classes=classes)

    @own_state()
    def coded(self, X: Any, y: Any, kind: TargetKind = "auto") -> tuple[Tensor, Tensor]:
        """Return rows `(N, D)` and targets `(N, m)` of these or other examples as this task takes them."""
        X = selected(X, self.columns) if self.columns and frame(X) is not None else X
        rows = as_tensor(X, "X", ndim=2).detach().to(self.factor.device)
        return rows, self._coded(y, len(rows), kind, "y")[0]

    def _coded(self, y: Any, N: int, kind: TargetKind, name: str) -> tuple[Tensor, tuple[Any, ...] | None]:
        """Return targets `(N, m)`, one-hot for labels, and the classes so far."""
        new = self.factor.new_zeros(N, 0)
        if y is None:
            return new, None
        known: TargetKind = (
            "auto" if not self.rows else "regression" if self.classes is None else "classification"
        )
        if kind not in ("auto", known) and known != "auto":
            raise InvalidInputError(f"kind is {kind}, but that of earlier targets is {known}; leave it out.")
        codes, found = as_targets(y, name, kind if known == "auto" else known, rows=N)
        if found is None:
            Y = torch.from_numpy(codes).to(new)
            if self.rows and Y.shape[1] != self.outputs:
                raise InvalidInputError(f"{name} has {Y.shape[1]} columns, but the task has {self.outputs}.")
            return Y, None
        labels = list(self.classes or ())
        fresh = [label for label in found.tolist() if label not in labels]
        if len({isinstance(label, str) for label in [*labels, *fresh]}) > 1:
            raise InvalidInputError(f"{name} holds {fresh[0]!r}, but earlier labels are {labels[:5]}.")
        labels += fresh
        places = torch.tensor([labels.index(label) for label in found.tolist()])
        return one_hot(places[torch.from_numpy(codes)], len(labels)).to(new), tuple(labels)

    @classmethod
    @own_state()
    def of_covariance(
        cls, K: ArrayLike, moment: ArrayLike | None = None, *, name: str = "covariance"
    ) -> Task:
        """Return the task of a covariance `(D, D)`, K = XᵀX, by its root, cut at D·eps before the root.

        Args:
            K: Covariance; symmetric and positive semidefinite up to round-off.
            moment: `(D,)` or `(D, m)`, XᵀY. Without rows, targets count as fitted exactly.
            name: What messages call it.

        Returns:
            The task.

        Raises:
            InvalidInputError: K is no covariance, or the moment does not fit.
            RankError: K is zero.

        Examples:
            >>> Task.of_covariance([[4.0, 0.0], [0.0, 0.0]], [2.0, 0.0]).along.tolist()
            [[1.0]]
        """
        T = as_covariance(K, name).detach()
        D, names = len(T), named_columns(K)
        values, vectors = torch.linalg.eigh(T)
        kept = values > rank_tolerance(D, rank_eps(K)) * values[-1].clamp_min(0)
        if not bool(kept.any()):
            raise RankError(
                f"{name} has rank 0 (no positive eigenvalue): check that the features are not all zero."
            )
        values, vectors = values[kept].flip(0), (vectors * T.any(dim=0)[:, None])[:, kept].flip(1)
        along = values.new_zeros(len(values), 0)
        if moment is not None:
            b = as_tensor(moment, "moment", minimum_ndim=1).detach().to(T)
            b = b[:, None] if b.ndim == 1 else b
            if b.ndim != 2 or len(b) != D:
                raise InvalidInputError(f"a covariance of {D} inputs and moment {tuple(b.shape)} do not fit.")
            along = (vectors.mT @ b) / values.sqrt()[:, None]
        return cls._spectral(
            values.sqrt(),
            vectors,
            along,
            eps=rank_eps(K),
            sample=sample_of(K),
            columns=None if names is None else tuple(names),
        )

    @classmethod
    def _spectral(cls, sigma: Tensor, vectors: Tensor, along: Tensor, **facts: Any) -> Task:
        """Return the task of `diag(σ)Vᵀ` with these targets, whose decomposition is known."""
        root = sigma[:, None] * vectors.mT
        F = torch.cat([root.new_zeros(len(root), 1), root, along], dim=1)
        task = cls(F, torch.zeros_like(F[0]), len(vectors), 0, **facts)
        task.__dict__["_svd"] = sigma, vectors, along
        return task

    def mapped(self, mean: Tensor, scale: Tensor) -> Task:
        """Return the task of rows `(X − mean)/scale`, `(D,)` each; a scale of ∞ makes a column zero."""
        inputs = slice(1, 1 + self.dimension)
        F, shift = self.factor.clone(), self.shift.clone()
        F[:, inputs] = (F[:, inputs] - F[:, :1] * (mean - shift[inputs])) / scale
        shift[inputs] = 0
        return replace(self, factor=F, shift=shift)

    @property
    def outputs(self) -> int:
        """m, columns of the targets; 0: there are none."""
        return self.factor.shape[1] - 1 - self.dimension

    def centered(self) -> Task:
        """Return the task with an intercept; a covariance must be centered already, and stays."""
        return self if self.intercept or not self.rows else replace(self, intercept=True)

    @property
    def probe(self) -> Task:
        """The task as the paper's probes meet it: with an intercept for classes, without one for numbers."""
        return self if self.classes is None else self.centered()

    @property
    def mean(self) -> Tensor:
        """Mean of the inputs `(D,)`; zero for a covariance."""
        inputs = slice(1, 1 + self.dimension)
        first = self.factor[0, inputs] / self.factor[0, 0] if self.rows else 0.0
        return self.shift[inputs] + first

    @cached_property
    @own_state()
    def products(self) -> tuple[Tensor, Tensor]:
        """Rows `(r, D)` and targets `(r, m)` with the products of X and Y, centered or not; not cut."""
        F = self.factor[1:] if self.intercept else self.factor + self.factor[:, :1] * self.shift
        return F[:, 1 : 1 + self.dimension], F[:, 1 + self.dimension :]

    @property
    def rtol(self) -> float:
        """Fraction of σ₁ up to which σ of X is round-off: of stored rows, their factor, or a root."""
        stored = rank_tolerance(self.dimension, self.eps)
        return max(stored, rank_tolerance(self.rows)) if self.rows else stored**0.5

    @cached_property
    @own_state()
    def _svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """σ `(k,)` descending above the rank tolerance, V `(D, k)`, and the targets along U `(k, m)`."""
        X, Y = self.products
        order = X.abs().amax(dim=0).argsort(descending=True) if len(X) else torch.arange(self.dimension)
        # A QR of the columns from the longest to the shortest keeps the short ones apart (Higham, ch. 19).
        Q, R = torch.linalg.qr(X[:, order], mode="reduced" if self.outputs else "r")
        U, sigma, rows = singular_triples(R)
        kept = sigma > self.rtol * sigma[:1]
        if not bool(kept.any()):
            raise RankError("the features are all zero: their covariance has rank 0.")
        V = torch.empty_like(rows.mT).index_copy_(0, order, rows.mT)[:, kept]
        along = (Q @ U[:, kept]).mT @ Y if self.outputs else sigma.new_zeros(int(kept.sum()), 0)
        return sigma[kept], V * X.any(dim=0)[:, None], along

    @property
    def sigma(self) -> Tensor:
        """Singular values of X `(k,)`, descending."""
        return self._svd[0]

    @property
    def values(self) -> Tensor:
        """Eigenvalues γ of K `(k,)`, descending."""
        return self.sigma.square()

    @property
    def vectors(self) -> Tensor:
        """Eigenvectors of K `(D, k)`; the rows of columns that are never used are zero."""
        return self._svd[1]

    @property
    def along(self) -> Tensor:
        """UᵀY `(k, m)`: targets in an orthonormal basis of the columns of X."""
        return self._svd[2]

    @property
    def rank(self) -> int:
        """K."""
        return len(self.sigma)

    @property
    def kappa(self) -> float:
        """κ(K) = σ₁²/σ_k² (Eq. 1)."""
        return float((self.sigma[0] / self.sigma[-1]).square())

    @cached_property
    @own_state()
    def root(self) -> Tensor:
        """B `(k, D)` with BᵀB = K, cut: what θ multiplies."""
        return self.sigma[:, None] * self.vectors.mT

    @cached_property
    @own_state()
    def covariance(self) -> Tensor:
        """K `(D, D)`."""
        return self.root.mT @ self.root

    @property
    def moment(self) -> Tensor:
        """XᵀY `(D, m)`."""
        return self.root.mT @ self.along

    @cached_property
    @own_state()
    def energy(self) -> float:
        """‖Y‖² of the targets, of centered ones with an intercept."""
        return float(self.products[1].square().sum())

    @property
    def learnable(self) -> bool:
        """Whether there are targets of which a probe learns anything."""
        return float(self.along.norm()) > _NOTHING * math.sqrt(self.energy) if self.outputs else False

    def power(self, exponent: float) -> Tensor:
        """Return K^s on range(K), `(D, D)`; with s = −½ it whitens."""
        return (self.vectors * self.values**exponent) @ self.vectors.mT

    @property
    def whitener(self) -> Tensor:
        """W `(D, k)` with WᵀKW = I: K^{-½} in the basis of K's eigenvectors."""
        return self.vectors / self.sigma

    @cached_property
    @own_state()
    def null_basis(self) -> Tensor:
        """Orthonormal basis of null(K), `(D, D − k)`."""
        return torch.linalg.qr(self.vectors, mode="complete").Q[:, self.rank :]

    @property
    def null_noise(self) -> float:
        """Sine of the angle by which round-off may turn null(K): rtol·σ₁/σ_k, γ₁/γ_k of a covariance."""
        noise = self.rtol * self.kappa**0.5 if self.rows else self.rtol**2 * self.kappa
        return min(noise, 0.5)

    @cached_property
    @own_state()
    def inverse_root(self) -> Tensor:
        """K^{-½} on range(K), `(D, D)`."""
        return self.power(-0.5)

    @cached_property
    @own_state()
    def null_projector(self) -> Tensor:
        """Orthogonal projector on null(K), `(D, D)`."""
        if self.rank == self.dimension:
            return torch.zeros_like(self.vectors)
        return torch.eye(self.dimension).to(self.vectors) - self.vectors @ self.vectors.mT

    @own_state()
    def ridged(self, ridge: float) -> Task:
        """Return the task with K + εI and the same moment, as of a probe with weight decay."""
        ridge = check_real("ridge", ridge, 0, math.inf)
        if not 0 < ridge < math.inf:
            raise InvalidInputError(f"ridge must be positive and finite, got {ridge}; leave it out for none.")
        null = self.null_basis
        sigma = torch.cat([self.values + ridge, self.values.new_full((null.shape[1],), ridge)]).sqrt()
        along = pad(self.sigma[:, None] * self.along, (0, 0, 0, null.shape[1])) / sigma[:, None]
        facts = {"eps": self.eps, "classes": self.classes, "columns": self.columns, "sample": self.sample}
        return Task._spectral(sigma, torch.cat([self.vectors, null], dim=1), along, **facts)

    def aimed_at(self, along: Tensor) -> Task:
        """Return the task with other targets, UᵀY `(k, m)` in the basis of its own inputs."""
        facts = {"eps": self.eps, "columns": self.columns, "sample": self.sample}
        return Task._spectral(self.sigma, self.vectors, along, **facts)

    def to(self, device: str | torch.device) -> Task:
        """Return the task on a device."""
        if self.factor.device == torch.device(device):
            return self
        moved = replace(self, factor=self.factor.to(device), shift=self.shift.to(device))
        if "_svd" in self.__dict__:
            moved.__dict__["_svd"] = tuple(part.to(device) for part in self._svd)
        return moved

    @cached_property
    @own_state()
    def raw(self) -> Features:
        """The task's own inputs as features, θ = I."""
        seen = Features(self, self.dimension, self.root)
        vars(seen).update(sigma=self.sigma, along=self.along)
        return seen

    @own_state()
    def through(self, theta: Any, name: str = "theta") -> Features:
        """Return the features Xθ of an extractor `(D, D_hid)`: matrix, linear layers or `Immunizer`."""
        T = stored_extractor(theta, name, self.columns)
        if len(T) != self.dimension:
            hint = f"; it looks transposed: pass {name}.T" if T.shape[1] == self.dimension else ""
            raise InvalidInputError(
                f"{name} has shape {tuple(T.shape)}, but the task has {self.dimension} inputs{hint}."
            )
        return Features.of(self, T.to(self.factor.device))


@dataclass(frozen=True, eq=False)
class Features:
    """What a linear probe sees of a task through θ."""

    task: Task
    dimension: int  # D_hid
    image: Tensor = field(repr=False)  # (k, D_hid) Bθ, with the products of Xθ

    @classmethod
    def of(cls, task: Task, theta: Tensor) -> Features:
        """Measure θ `(D, D_hid)`, a float64 tensor."""
        image = task.root @ theta
        if not all_finite(image):
            raise InvalidInputError("Xθ leaves float64; rescale theta, which does not change κ.")
        return cls(task, theta.shape[1], image)

    @cached_property
    def _triangle(self) -> Tensor:
        return graded_triangle(self.image.mT)

    @cached_property
    def sigma(self) -> Tensor:
        """Singular values of Xθ `(n,)`, descending, n = min(k, D_hid)."""
        return torch.linalg.svdvals(self._triangle)

    @cached_property
    def ends(self) -> tuple[float, float, int]:
        """σ₁, σ_r and the rank r of the features; 0 where θ removes all of them."""
        tolerance = rank_tolerance(max(self.task.dimension, self.dimension))
        if "sigma" not in vars(self):
            return triangle_ends(self._triangle, tolerance)
        rank = int((self.sigma > tolerance * self.sigma[0]).sum())
        return float(self.sigma[0]), float(self.sigma[max(rank, 1) - 1]), rank

    @property
    def rank(self) -> int:
        """Rank of the features."""
        return self.ends[2]

    @cached_property
    @own_state()
    def along(self) -> Tensor:
        """UᵀY `(rank, m)`: targets along the directions of the features."""
        order = self.image.abs().amax(dim=0).argsort(descending=True)
        Q, R = torch.linalg.qr(self.image[:, order])
        return (Q @ singular_triples(R)[0][:, : self.rank]).mT @ self.task.along


def graded_singular_values(matrix: Tensor) -> Tensor:
    """Return σ of `(n, m)`, descending, each relative to itself where only the columns' sizes differ."""
    return torch.linalg.svdvals(graded_triangle(matrix))


def graded_triangle(matrix: Tensor) -> Tensor:
    """Return an upper triangle of the smaller size of `(n, m)` with the same singular values.

    A QR decomposition of the columns from the longest to the shortest keeps the short ones apart (Higham,
    *Accuracy and Stability of Numerical Algorithms*, ch. 19); a plain SVD has the round-off of σ₁ in all.
    """
    order = matrix.abs().amax(dim=0).argsort(descending=True)
    R = torch.linalg.qr(matrix[:, order], mode="r").R
    return R if R.shape[1] <= R.shape[0] else torch.linalg.qr(R.mT, mode="r").R


def stored_extractor(theta: Any, name: str = "theta", columns: Sequence[str] | None = None) -> Tensor:
    """Return θ `(D, D_hid)` without what its stored precision takes for zero, as of a float32 projection.

    Its rank is found where rows and columns have equal length, as rounding is relative to each entry.
    """
    theta = extractor_matrix(theta, name, columns)
    T = as_tensor(theta, name, ndim=2).detach()
    eps = rank_eps(theta)
    if eps <= EPS:
        return T
    equal, lengths = T, []
    for axis in (1, 0):
        length = equal.abs().amax(dim=axis, keepdim=True)
        lengths.append(length)
        equal = equal / torch.where(length > 0, length, 1)
    U, sigma, V = singular_triples(equal)
    kept = sigma > rank_tolerance(max(T.shape), eps) * sigma[0]
    if bool(kept.all()) or not bool(kept.any()):
        return T
    return lengths[0] * ((U[:, kept] * sigma[kept]) @ V[kept]) * lengths[1]


def as_task(value: Any, name: str) -> Task:
    """Return a task; an array `(D, D)` is its covariance, rows must be made a task by `Task.of`."""
    if isinstance(value, Task):
        return value
    shape = tuple(value.shape if hasattr(value, "shape") else as_array(value, name).shape)
    if len(shape) == 2 and shape[0] != shape[1]:
        raise InvalidInputError(
            f"{name} is an array of shape {shape}, which is no covariance; for rows pass Task.of(X, y)."
        )
    return Task.of_covariance(value, name=name)


def two_tasks(benign: Any, harmful: Any, *, ridge: float | None = None) -> tuple[Task, Task]:
    """Return two tasks of one input space, on one device, with columns in the order of the first."""
    if not isinstance(benign, Task) and not isinstance(harmful, Task):
        benign, harmful = same_columns(benign=benign, harmful=harmful, covariances=True)
    P, H = as_task(benign, "benign"), as_task(harmful, "harmful")
    if P.dimension != H.dimension:
        raise InvalidInputError(
            f"the pre-training task has {P.dimension} inputs and the harmful task {H.dimension}: both tasks "
            "must share one input space."
        )
    H = in_order(H.to(P.factor.device), P.columns)
    return (P, H) if ridge is None else (P.ridged(ridge), H.ridged(ridge))


def in_order(task: Task, columns: Sequence[str] | None) -> Task:
    """Return the task with its inputs in the order of these names."""
    if columns is None or task.columns is None or task.columns == tuple(columns):
        return task
    check_same_names("the pre-training task", columns, "the harmful task", task.columns)
    places = [1 + task.columns.index(name) for name in columns]
    order = torch.tensor([0, *places, *range(1 + task.dimension, task.factor.shape[1])])
    F = task.factor[:, order]
    R = torch.linalg.qr(F, mode="r").R if task.rows else F
    return replace(task, factor=R, shift=task.shift[order], columns=tuple(columns))
