"""The pair of tasks that a method immunizes, built from data, from a loaded pair or from covariances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from condnum.arrays import ArrayLike, as_tensor
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.spectra import symmetric_part
from condnum.tasks import LinearTask, LossName

if TYPE_CHECKING:
    from condnum.data import TaskPair


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
        cls, pair: TaskPair, *, loss: LossName = "mse", device: str | torch.device = "cpu"
    ) -> ImmunizationProblem:
        """Build a problem from a loaded `TaskPair`; see `from_data`."""
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
