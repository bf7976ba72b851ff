"""The range of a covariance: its eigenpairs above the numerical rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from condnum.errors import InvalidInputError, RankError
from condnum.spectra import default_rtol


@dataclass(frozen=True)
class CovarianceRange:
    """Eigenpairs of a covariance above its numerical rank; one decomposition serves many ceilings."""

    values: Tensor  # (r,) descending, > 0
    vectors: Tensor  # (D, r), orthonormal columns

    @classmethod
    def of(cls, covariance: Tensor, *, rtol: float | None = None, name: str = "covariance") -> Self:
        """Decompose a covariance.

        Examples:
            >>> CovarianceRange.of(torch.diag(torch.tensor([1.0, 0.0, 4.0])).double()).values
            tensor([4., 1.], dtype=torch.float64)
        """
        values, vectors = torch.linalg.eigh(covariance)
        rtol = default_rtol(len(values)) if rtol is None else rtol
        if float(values[-1]) <= 0:
            raise RankError(
                f"{name} has rank 0 (no positive eigenvalue): check that the features are not zero."
            )
        if float(values[0]) < -max(rtol, 1e-8) * float(values[-1]):
            raise InvalidInputError(
                f"{name} is not positive semidefinite: its smallest eigenvalue is {float(values[0]):.3g} "
                f"against a largest of {float(values[-1]):.3g}; pass a covariance XᵀX."
            )
        kept = values > rtol * values[-1]
        return cls(values[kept].flip(0), vectors[:, kept].flip(1))

    @classmethod
    def of_factor(cls, factor: Tensor) -> Self:
        """Read the range off a factor of `covariance_factor`, without another decomposition."""
        lengths = torch.linalg.vector_norm(factor, dim=1)
        return cls(lengths.square(), (factor / lengths[:, None]).mT)

    def ridged(self, ridge: float) -> Self:
        """Return the range of `K + εI`, which is the whole space, from this decomposition.

        What lies below the numerical rank of K counts as exactly zero, so that its directions have the
        eigenvalue ε itself, however small ε is against the round-off of K.

        Examples:
            >>> CovarianceRange.of(torch.diag(torch.tensor([4.0, 0.0])).double()).ridged(1e-20).values
            tensor([4.0000e+00, 1.0000e-20], dtype=torch.float64)
        """
        if not 0 < ridge < math.inf:
            raise InvalidInputError(f"ridge must be positive and finite, got {ridge}; leave it out for none.")
        null = self.null_basis
        values = torch.cat([self.values + ridge, self.values.new_full((null.shape[1],), ridge)])
        return type(self)(values, torch.cat([self.vectors, null], dim=1))

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

    @cached_property
    def null_basis(self) -> Tensor:
        """Orthonormal basis of null(K), `(D, D − r)`."""
        return torch.linalg.qr(self.vectors, mode="complete").Q[:, self.rank :]

    @property
    def null_projector(self) -> Tensor:
        """Orthogonal projector on null(K), `(D, D)`."""
        return torch.eye(self.dimension).to(self.vectors) - self.vectors @ self.vectors.mT
