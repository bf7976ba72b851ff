"""A task as the optimiser sees it: a covariance and a supervised loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from scipy.linalg import qr_multiply
from torch import Tensor

from condnum.errors import InvalidInputError, RankError
from condnum.losses import LogisticLoss, SquaredLoss, SupervisedLoss
from condnum.spectra import covariance_factor, default_rtol, symmetric_part
from condnum.triangular import TriangularFactor

if TYPE_CHECKING:
    pass

LossName = Literal["mse", "bce"]


@dataclass(frozen=True)
class LinearTask:
    """One task: inputs `X`, targets `Y`, and the statistics that a linear model needs.

    The supervised loss may live on other rows than the covariance (`loss_features`): a digit's
    covariance is its own, a one-vs-rest classifier needs the other digits too.
    """

    covariance: Tensor  # (D, D), K = XᵀX
    features: Tensor | None = None  # (N, D), None when only K is known
    targets: Tensor | None = None  # (N_loss, m)
    loss: LossName = "mse"
    loss_features: Tensor | None = None  # (N_loss, D), None for `features`
    known_factor: Tensor | None = None  # (r, D), B with K = BᵀB of full row rank, where it is known

    @property
    def supervised_rows(self) -> Tensor | None:
        """Inputs of the supervised loss, `(N_loss, D)`."""
        return self.features if self.loss_features is None else self.loss_features

    @cached_property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)`: the rows themselves where they are fewer than D."""
        if self.known_factor is not None:
            return self.known_factor
        if self.features is not None and self.features.shape[0] < self.covariance.shape[0]:
            return self.features
        return covariance_factor(self.covariance)

    @cached_property
    def triangular_factor(self) -> TriangularFactor | None:
        """The factor in triangular form, where that saves work: on the CPU, with r not far below D."""
        rows, dimension = self.factor.shape
        if self.factor.device.type != "cpu" or not dimension / 2 <= rows <= dimension:
            return None
        return TriangularFactor.of(self.factor)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of `K` at the tolerance `D·eps`; also that of `H(θ)` for invertible θ."""
        if self.known_factor is not None:
            return self.known_factor.shape[0]
        values = torch.linalg.eigvalsh(symmetric_part(self.covariance))
        rank = int((values > default_rtol(len(values)) * values[-1].clamp_min(0)).sum())
        if rank == 0:
            raise RankError("the task's covariance has rank 0: all its features are zero.")
        return rank

    @cached_property
    def supervised(self) -> SupervisedLoss | None:
        """The loss of Eq. 4, or None for a task without targets."""
        X = self.supervised_rows
        if self.targets is None or X is None:
            return None
        if self.loss == "bce":
            return LogisticLoss(X, self.targets)
        K = self.covariance if self.loss_features is None else X.mT @ X
        return SquaredLoss(K, X.mT @ self.targets, float((self.targets**2).sum()), X.shape[0])

    def sample(self, size: int, generator: torch.Generator) -> LinearTask:
        """Draw a mini-batch of rows without replacement; its covariance is that of the batch."""
        if self.features is None:
            raise InvalidInputError("mini-batches need the data rows, but this problem has covariances only.")

        def draw(rows: int) -> Tensor:
            index = torch.randperm(rows, generator=generator)[: min(size, rows)]
            return index.to(self.covariance.device)

        chosen = draw(self.features.shape[0])
        X = self.features[chosen]
        loss_rows = None if self.loss_features is None else draw(self.loss_features.shape[0])
        return LinearTask(
            X.mT @ X,
            X,
            None if self.targets is None else self.targets[chosen if loss_rows is None else loss_rows],
            self.loss,
            None if self.loss_features is None else self.loss_features[loss_rows],
        )

    def optimal_squared_loss(self, theta: Tensor) -> float:
        """Return `min_ω ‖Xθω − Y‖²/N` by least squares on the data, at any rank."""
        X = self.supervised_rows
        if self.targets is None or X is None:
            raise InvalidInputError("the task has no targets: its best loss is undefined; pass X and y.")
        features = X @ theta
        tolerance = default_rtol(max(X.shape))
        # The part of Y in the range of the features, by an orthogonal basis: pivoted QR on the CPU takes a
        # quarter of the SVD's time.
        if features.device.type == "cpu":
            parts, R, _ = qr_multiply(features.numpy(), self.targets.mT.numpy(), pivoting=True)
            sizes = np.abs(np.diagonal(R))
            explained = float((parts[:, sizes > tolerance * sizes[0]] ** 2).sum())
        else:
            left, sigma, _ = torch.linalg.svd(features, full_matrices=False)
            explained = float((left[:, sigma > tolerance * sigma[0]].mT @ self.targets).square().sum())
        return max(float(self.targets.square().sum()) - explained, 0.0) / X.shape[0]

    def loss_gap(self, theta: Tensor) -> float:
        """Return condition (c) of Definition 3.1 as the rise of the best squared loss.

        The rise from raw inputs to features `Xθ` is divided by the loss of predicting zero: 0 when
        nothing is lost (every invertible θ, in exact arithmetic; targets of zeros), 1 when everything is.
        """
        if self.targets is None:
            raise InvalidInputError("the task has no targets: its loss gap is undefined; pass X and y.")
        zero_loss = float(self.targets.square().sum()) / len(self.targets)
        if zero_loss == 0:  # targets of zeros, such as the paper's single class with label 0
            return 0.0
        return (self.optimal_squared_loss(theta) - self._raw_loss) / zero_loss

    @cached_property
    def _raw_loss(self) -> float:
        """The best squared loss on raw inputs."""
        return self.optimal_squared_loss(torch.eye(len(self.covariance)).to(self.covariance))
