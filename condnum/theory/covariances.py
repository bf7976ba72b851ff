"""A covariance as its eigenpairs above the numerical rank, and what a θ keeps of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, like, same_columns, storage_eps
from condnum.errors import InvalidInputError, RankError
from condnum.numbers import short_repr
from condnum.theory.extremes import singular_triples
from condnum.theory.spectra import (
    as_covariance,
    checked_gram,
    checked_rtol,
    default_rtol,
    features_rtol,
    spectrum_ends,
)


@dataclass(frozen=True)
class CovarianceRange:
    """Eigenpairs of a covariance above its numerical rank: what every function of condnum means by K."""

    values: Tensor  # (r,) descending, > 0
    vectors: Tensor  # (D, r), orthonormal columns
    rtol: float = 0.0  # relative tolerance below which an eigenvalue counted as zero; 0 for D·2⁻⁵²
    units_hide_rank: bool = False  # K has a larger rank where its columns have unit length: which holds?

    __repr__ = short_repr

    @classmethod
    def of(
        cls, covariance: "ArrayLike | CovarianceRange", *, rtol: float | None = None, name: str = "covariance"
    ) -> Self:
        """Decompose a covariance; default `rtol`: D·eps of its stored dtype. A range is cut to `rtol`."""
        given = checked_rtol(rtol, 0.0)
        if isinstance(covariance, CovarianceRange):
            if given <= covariance.rtol:
                return cast(Self, covariance)
            kept = covariance.values > given * covariance.values[0]
            return cls(covariance.values[kept], covariance.vectors[:, kept], given)
        K = as_covariance(covariance, name, rtol=given).detach()
        return cls.of_checked(K, checked_rtol(rtol, default_rtol(len(K), storage_eps(covariance))), name)

    @classmethod
    def of_checked(cls, K: Tensor, rtol: float, name: str) -> Self:
        """Decompose what is known to be a covariance."""
        values, raw = torch.linalg.eigh(K)
        vectors = raw * (K != 0).any(dim=0)[:, None]  # round-off where K has a row of zeros
        kept = values > rtol * values[-1].clamp_min(0)
        if not bool(kept.any()):
            raise RankError(
                f"{name} has rank 0 (no positive eigenvalue): check that the features are not all zero."
            )
        used, lost = K.diagonal() > 0, K.diagonal() <= rtol * values[-1]  # columns below the tolerance
        hidden = bool((used & lost).any()) and _rank_of_unit_columns(K[used][:, used], rtol) > int(kept.sum())
        found = cls(values[kept].flip(0), vectors[:, kept].flip(1), rtol, hidden)
        found.__dict__["null_basis"] = raw[:, ~kept]
        return found

    @classmethod
    def of_features(cls, features: ArrayLike, *, rtol: float | None = None, name: str = "features") -> Self:
        """Decompose `XᵀX` without forming it; default `rtol`: `features_rtol`."""
        X = as_tensor(features, name, ndim=2).detach()
        rtol = features_rtol(features) if rtol is None else checked_rtol(rtol, 0.0)
        order = X.abs().amax(dim=0).argsort(descending=True)  # as in `graded_singular_values`
        _, sigma, rows = singular_triples(torch.linalg.qr(X[:, order], mode="r").R)
        values = checked_gram(sigma.square(), X)
        kept = values > rtol * values[0]
        if not bool(kept.any()):
            raise RankError(f"{name} are all zero: their covariance has rank 0.")
        return cls(values[kept], torch.empty_like(rows.mT).index_copy_(0, order, rows.mT)[:, kept], rtol)

    def ridged(self, ridge: float) -> Self:
        """Return the range of `K + εI`; what lies below the rank of K counts as exactly zero."""
        if not 0 < ridge < math.inf:
            raise InvalidInputError(f"ridge must be positive and finite, got {ridge}; leave it out for none.")
        null = self.null_basis
        values = torch.cat([self.values + ridge, self.values.new_full((null.shape[1],), ridge)])
        return type(self)(values, torch.cat([self.vectors, null], dim=1), self.rtol)

    def to(self, device: str | torch.device) -> Self:
        """Return the range on a device."""
        if self.values.device == torch.device(device):
            return self
        return replace(self, values=self.values.to(device), vectors=self.vectors.to(device))

    @property
    def tolerance(self) -> float:
        """Relative size below which energy counts as round-off, at least D·2⁻⁵²."""
        return max(self.rtol, default_rtol(self.dimension))

    @property
    def dimension(self) -> int:
        """D, of the space that the covariance lives in."""
        return self.vectors.shape[0]

    @property
    def rank(self) -> int:
        """Number of eigenvalues above the tolerance."""
        return len(self.values)

    @property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)`."""
        return (self.vectors * self.values.sqrt()).mT

    def power(self, exponent: float) -> Tensor:
        """Return `K^s` on range(K), `(D, D)`; with s = −½ it whitens: `K^{-½} K K^{-½}` is the projector."""
        return (self.vectors * self.values**exponent) @ self.vectors.mT

    @property
    def whitener(self) -> Tensor:
        """`W` with `WᵀKW = I`, `(D, r)`: `K^{-½}` in the basis of K's eigenvectors."""
        return self.vectors * self.values.rsqrt()

    @cached_property
    def null_basis(self) -> Tensor:
        """Orthonormal basis of null(K), `(D, D − r)`."""
        return torch.linalg.qr(self.vectors, mode="complete").Q[:, self.rank :]

    @property
    def null_projector(self) -> Tensor:
        """Orthogonal projector on null(K), `(D, D)`."""
        if self.rank == self.dimension:
            return torch.zeros_like(self.vectors)
        return torch.eye(self.dimension).to(self.vectors) - self.vectors @ self.vectors.mT


def _rank_of_unit_columns(K: Tensor, rtol: float) -> int:
    """Return the rank of a covariance whose columns are scaled to length 1."""
    lengths = K.diagonal().sqrt()
    values = torch.linalg.eigvalsh(K / lengths / lengths[:, None])
    return int((values > rtol * values[-1]).sum())


def task_ranges(
    pretrain: ArrayLike | CovarianceRange | None,
    harmful: ArrayLike | CovarianceRange | None,
    pretrain_features: ArrayLike | None = None,
    harmful_features: ArrayLike | None = None,
    *,
    ridge: float | None = None,
    rtol: float | None = None,
) -> tuple[CovarianceRange, CovarianceRange]:
    """Return the ranges of two tasks of one input space, by covariances or features, on one device."""
    given = same_columns(
        pretrain_covariance=pretrain,
        harmful_covariance=harmful,
        pretrain_features=pretrain_features,
        harmful_features=harmful_features,
    )
    P, H = (
        _task_range(task, K, X, rtol)
        for task, K, X in zip(("pretrain", "harmful"), given[:2], given[2:], strict=True)
    )
    if P.dimension != H.dimension:
        raise InvalidInputError(
            f"pretrain_covariance {(P.dimension, P.dimension)} and harmful_covariance "
            f"{(H.dimension, H.dimension)} must be of the same shape: both tasks share one input space."
        )
    H = H.to(P.values.device)
    return (P, H) if ridge is None else (P.ridged(ridge), H.ridged(ridge))


def like_task(covariance: Any, features: Any = None) -> Callable[[Tensor], Any]:
    """Return a converter to the kind in which a task was given; tensors for a range."""
    given = features if covariance is None else covariance
    return like(given.values if isinstance(given, CovarianceRange) else given)


def _task_range(task: str, covariance: Any, features: Any, rtol: float | None) -> CovarianceRange:
    """Return the range of a task that is given by its covariance or by its features."""
    if (covariance is None) == (features is None):
        raise InvalidInputError(f"give either {task}_covariance or {task}_features.")
    if features is not None:
        return CovarianceRange.of_features(features, rtol=rtol, name=f"{task}_features")
    if not isinstance(covariance, CovarianceRange):
        shape = tuple(as_tensor(covariance, f"{task}_covariance").shape)
        if len(shape) == 2 and shape[0] != shape[1]:
            raise InvalidInputError(
                f"{task}_covariance must be square, got shape {shape}; pass rows as {task}_features=."
            )
    return CovarianceRange.of(covariance, rtol=rtol, name=f"{task}_covariance")


def fit_lost(theta: Tensor, task: "CovarianceRange", moment: Tensor) -> float:
    """Return how much of the best squared fit of targets Y, `‖XX⁺Y‖²`, no linear probe of `Xθ` reaches.

    `moment` is `XᵀY` `(D, m)`. Where θ keeps the rank of K, nothing is lost.
    """
    image, least = task.factor @ theta, default_rtol(max(theta.shape))
    ends = spectrum_ends(image.mT, least)
    if len(ends) == task.rank and ends[-1] > least * ends[0]:
        return 0.0
    U, sigma, _ = singular_triples(image)
    U = U[:, sigma > least * sigma[0]]  # orthonormal basis of what `Xθ` keeps of X
    fit = task.whitener.mT @ moment
    return float((fit - U @ (U.mT @ fit)).square().sum())
