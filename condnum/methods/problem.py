"""The pair of tasks that a method immunizes, built from data, from a loaded pair or from covariances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from scipy.linalg import qr_multiply
from torch import Tensor
from torch.nn.functional import softplus

from condnum.arrays import ArrayLike, as_tensor
from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.theory.extremes import TriangularFactor
from condnum.theory.spectra import covariance_factor, default_rtol, symmetric_part

# Supervised losses of a linear predictor `β = θω`, each with its own derivative; of one task or of a batch.


class SupervisedLoss(Protocol):
    """A loss of the predictor `β = θω` (Eq. 4) that knows its own derivative."""

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean loss `(...)` of `β` `(..., D, m)`, differentiable by autograd."""

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β`; then `∇_θ L = (∂L/∂β)ωᵀ` and `∇_ω L = θᵀ(∂L/∂β)`."""


@dataclass(frozen=True)
class SquaredLoss:
    """Mean squared error from sufficient statistics: `L(β) = (βᵀKβ − 2βᵀXᵀY + ‖Y‖²)/N`."""

    covariance: Tensor  # (..., D, D), XᵀX
    moment: Tensor  # (..., D, m), XᵀY
    energy: float | Tensor  # (..., 1, 1), ‖Y‖²
    rows: int | Tensor  # (..., 1, 1), N

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean squared error of `β`."""
        products = predictor * (self.covariance @ predictor - 2 * self.moment)
        return ((products.sum(dim=(-2, -1), keepdim=True) + self.energy) / self.rows)[..., 0, 0]

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `(2/N)(Kβ − XᵀY)`."""
        return (2 / self.rows) * (self.covariance @ predictor - self.moment)


@dataclass(frozen=True)
class LogisticLoss:
    """Mean binary cross-entropy of labels in [0, 1] with the logit `xᵀβ`."""

    features: Tensor  # (..., N, D), below the task's own rows zeros
    targets: Tensor  # (..., N, m)
    rows: int | Tensor  # (..., 1, 1), rows that are not padding

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean cross-entropy of `β`, in nats."""
        logits = self.features @ predictor
        own = torch.arange(logits.shape[-2], device=logits.device)[:, None] < self.rows
        losses = (softplus(logits) - self.targets * logits) * own  # a row of zeros has log 2
        return (losses.sum(dim=(-2, -1), keepdim=True) / (self.rows * logits.shape[-1]))[..., 0, 0]

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `Xᵀ(sigmoid(Xβ) − Y)/N`, to which rows of zeros add nothing."""
        excess = torch.sigmoid(self.features @ predictor) - self.targets
        return self.features.mT @ excess / (self.rows * self.targets.shape[-1])


# A task as the optimiser sees it: a covariance and a supervised loss.


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
        """`B` with `K = BᵀB`, `(r, D)` of full row rank: the data rows where they are independent."""
        if self.known_factor is not None:
            return self.known_factor
        X = self.features
        if X is not None and X.shape[0] < X.shape[1] and X.shape[0] == self.rank:
            return X
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
            return LogisticLoss(X, self.targets, X.shape[0])
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


@dataclass(frozen=True)
class ImmunizationProblem:
    """The pair (D_P, D_H) that a method immunizes: keep P well-conditioned, make H ill-conditioned."""

    pretrain: LinearTask
    harmful: LinearTask

    @property
    def dimension(self) -> int:
        """Input dimension D, shared by both tasks."""
        return self.pretrain.covariance.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.pretrain.covariance.device

    def sample(self, size: int, generator: torch.Generator) -> ImmunizationProblem:
        """Draw a mini-batch of `size` rows from each task."""
        return ImmunizationProblem(
            self.pretrain.sample(size, generator), self.harmful.sample(size, generator)
        )

    @classmethod
    def from_pair(
        cls, pair: Any, *, loss: LossName = "mse", device: str | torch.device = "cpu"
    ) -> ImmunizationProblem:
        """Build a problem from a loaded `TaskPair`, or what has its arrays; see `from_data`."""
        return cls.from_data(
            pair.X_P,
            pair.y_P,
            pair.X_H,
            pair.y_H,
            loss=loss,
            X_loss=pair.X_loss,
            y_loss=pair.y_loss,
            X_probe=pair.X_probe,
            y_probe=pair.y_probe,
            device=device,
        )

    @classmethod
    def from_data(
        cls,
        X_P: ArrayLike,
        y_P: ArrayLike | None,
        X_H: ArrayLike,
        y_H: ArrayLike | None = None,
        *,
        loss: LossName = "mse",
        X_loss: ArrayLike | None = None,
        y_loss: ArrayLike | None = None,
        X_probe: ArrayLike | None = None,
        y_probe: ArrayLike | None = None,
        device: str | torch.device = "cpu",
    ) -> ImmunizationProblem:
        """Build a problem from data matrices.

        Args:
            X_P: `(N_P, D)` pre-training inputs.
            y_P: `(N_P,)` or `(N_P, m)` targets, or None for the regularizers alone.
            X_H: `(N_H, D)` harmful inputs.
            y_H: `(N_H,)` or `(N_H, m)`; only IMMA and the probes need them.
            loss: `mse`, or `bce` for labels in [0, 1].
            X_loss: `(N_loss, D)` other inputs for the supervised loss on D_P.
            y_loss: `(N_loss,)` their targets; then `y_P` is not used.
            X_probe: `(N_probe, D)` other inputs for the probe on D_H.
            y_probe: `(N_probe,)` their targets; then `y_H` is not used.
            device: Where to compute.

        Returns:
            The problem, in float64.

        Raises:
            InvalidInputError: Shapes do not fit, entries are non-finite, labels outside [0, 1].
            UnknownNameError: Unknown loss.

        Examples:
            >>> problem = ImmunizationProblem.from_data([[1.0, 0.0], [1.0, 2.0]], None, [[0.0, 3.0]])
            >>> problem.pretrain.covariance.tolist(), problem.harmful.rank
            ([[2.0, 2.0], [2.0, 4.0]], 1)
        """
        if loss not in ("mse", "bce"):
            raise UnknownNameError("loss", loss, ["mse", "bce"])
        for X, y, names in ((X_loss, y_loss, "X_loss and y_loss"), (X_probe, y_probe, "X_probe and y_probe")):
            if (X is None) != (y is None):
                raise InvalidInputError(f"{names} go together: pass both or neither.")
        P = _task(X_P, y_P if y_loss is None else y_loss, loss, device, ("X_P", "y_P"), X_loss)
        H = _task(X_H, y_H if y_probe is None else y_probe, loss, device, ("X_H", "y_H"), X_probe)
        if P.covariance.shape != H.covariance.shape:
            raise InvalidInputError(
                f"X_P has {P.covariance.shape[0]} features and X_H {H.covariance.shape[0]}: "
                "both tasks must share one input space."
            )
        return cls(P, H)

    @classmethod
    def from_covariances(
        cls, pretrain_covariance: ArrayLike, harmful_covariance: ArrayLike
    ) -> ImmunizationProblem:
        """Build a problem without supervised loss from the two covariances alone.

        Args:
            pretrain_covariance: `(D, D)`, `K_P`.
            harmful_covariance: `(D, D)`, `K_H`.

        Returns:
            The problem; methods that need targets refuse it.

        Raises:
            InvalidInputError: Not square, not of one shape, or non-finite.

        Examples:
            >>> ImmunizationProblem.from_covariances([[2.0]], [[3.0]]).dimension
            1
        """
        tasks = []
        for name, matrix in (
            ("pretrain_covariance", pretrain_covariance),
            ("harmful_covariance", harmful_covariance),
        ):
            K = as_tensor(matrix, name, ndim=2)
            if K.shape[0] != K.shape[1]:
                raise InvalidInputError(f"{name} must be square, got shape {tuple(K.shape)}.")
            tasks.append(LinearTask(symmetric_part(K)))
        if tasks[0].covariance.shape != tasks[1].covariance.shape:
            shapes = [tuple(task.covariance.shape) for task in tasks]
            raise InvalidInputError(f"the two covariances must have the same shape, got {shapes}.")
        return cls(*tasks)


def _task(
    X: ArrayLike,
    y: ArrayLike | None,
    loss: LossName,
    device: str | torch.device,
    names: tuple[str, str],
    X_loss: ArrayLike | None,
) -> LinearTask:
    """Validate one task's arrays and move them to the device."""
    features = as_tensor(X, names[0], ndim=2).to(device)
    rows = None if X_loss is None else as_tensor(X_loss, f"other inputs of {names[1]}", ndim=2).to(device)
    if rows is not None and rows.shape[1] != features.shape[1]:
        raise InvalidInputError(
            f"the other inputs of {names[1]} have {rows.shape[1]} features, {names[0]} has "
            f"{features.shape[1]}: both must live in one input space."
        )
    K = features.mT @ features
    if y is None:
        return LinearTask(K, features, None, loss)
    targets = as_tensor(y, names[1], minimum_ndim=1).to(device)
    targets = targets[:, None] if targets.ndim == 1 else targets
    expected = features.shape[0] if rows is None else rows.shape[0]
    if targets.ndim != 2 or targets.shape[0] != expected:
        raise InvalidInputError(
            f"{names[1]} has shape {tuple(targets.shape)} for {expected} rows: one target per row is needed."
        )
    if loss == "bce" and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InvalidInputError(
            f"{names[1]} has values outside [0, 1] (from {float(targets.min()):.3g} to "
            f"{float(targets.max()):.3g}): the bce loss needs labels or probabilities; use loss='mse'."
        )
    return LinearTask(K, features, targets, loss, rows)
