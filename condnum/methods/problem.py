"""The pair of tasks that a method immunizes, with the losses of their own targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from condnum.arrays import (
    ArrayLike,
    TargetKind,
    as_targets,
    as_tensor,
    own_state,
    resolve_device,
    same_columns,
)
from condnum.errors import InvalidInputError, check_known
from condnum.probing.probe import ProbeSteps, seen_steps
from condnum.theory.kappa import Seen
from condnum.theory.limits import RirLimit, limit_of
from condnum.theory.task import Task, two_tasks

LossName = Literal["mse", "bce"]

#: How a problem is made, for those who pass something else.
MAKE_IT = (
    "create one with ImmunizationProblem.from_data(X_benign, y_benign, X_harmful, y_harmful), where targets "
    "may be None, or with ImmunizationProblem.from_covariances(K_P, K_H)."
)


@dataclass(frozen=True)
class SquaredLoss:
    """Mean squared error of `β = θω` (Eq. 4) from its statistics: `L(β) = (βᵀKβ − 2βᵀXᵀY + ‖Y‖²)/N`."""

    covariance: Tensor  # (D, D), XᵀX
    moment: Tensor  # (D, m), XᵀY
    energy: float  # ‖Y‖²
    rows: int  # N

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the loss of a task's own targets, with an intercept where the task has one."""
        return cls(task.covariance, task.moment, task.energy, max(task.rows, 1))

    def value(self, predictor: Tensor) -> Tensor:
        """Return the loss of `β` `(D, m)`, differentiable by autograd."""
        products = predictor * (self.covariance @ predictor - 2 * self.moment)
        return (products.sum() + self.energy) / self.rows

    @property
    def outputs(self) -> int:
        """M."""
        return self.moment.shape[1]

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β = (2/N)(Kβ − XᵀY)`; then `∇_θL = (∂L/∂β)ωᵀ` and `∇_ωL = θᵀ(∂L/∂β)`."""
        return (2 / self.rows) * (self.covariance @ predictor - self.moment)


@dataclass(frozen=True)
class LogisticLoss:
    """Mean binary cross-entropy of labels in [0, 1] with the logit `xᵀβ`."""

    features: Tensor  # (N, D)
    targets: Tensor  # (N, m)

    def value(self, predictor: Tensor) -> Tensor:
        """Return the loss of `β` `(D, m)`, in nats."""
        return binary_cross_entropy_with_logits(self.features @ predictor, self.targets)

    @property
    def outputs(self) -> int:
        """M."""
        return self.targets.shape[1]

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β = Xᵀ(sigmoid(Xβ) − Y)/N`, also divided by m."""
        excess = torch.sigmoid(self.features @ predictor) - self.targets
        return self.features.mT @ excess / self.targets.numel()


#: Supervised losses that know their own derivative.
SupervisedLoss = SquaredLoss | LogisticLoss


@dataclass(frozen=True, repr=False)
class ImmunizationProblem:
    """The pair (D_P, D_H) that a method immunizes: keep P well-conditioned, make H ill-conditioned.

    The losses of Eq. 4 and the actual probes may live on other rows than covariances: a digit's covariance is
    its own, a one-vs-rest classifier needs other digits too. By default they are squared losses of the
    tasks' targets, with an intercept for classes.
    """

    benign: Task  # K_P
    harmful: Task  # K_H
    losses: Sequence[SupervisedLoss | None] = ()  # of D_P and D_H; None: no targets
    probes: Sequence[Task | None] = ()  # the tasks of both actual probes

    @own_state()
    def __post_init__(self) -> None:
        """Refuse arrays, which do not say whether they are rows or covariances; fill in losses and probes."""
        for task in (self.benign, self.harmful):
            if not isinstance(task, Task):
                raise InvalidInputError(f"a problem needs two tasks, got {type(task).__name__}; {MAKE_IT}")
        P, H = two_tasks(self.benign, self.harmful)
        probes = self.probes or [task.probe if task.outputs else None for task in (P, H)]
        losses = self.losses or [None if probe is None else SquaredLoss.of(probe) for probe in probes]
        for name, value in {"benign": P, "harmful": H, "probes": probes, "losses": losses}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Return the sizes of both tasks."""
        rows = (
            f"{task.rows:,d} rows" if task.rows else "covariance only" for task in (self.benign, self.harmful)
        )
        return f"ImmunizationProblem(D = {self.dimension}; D_P: {next(rows)}; D_H: {next(rows)})"

    @property
    def dimension(self) -> int:
        """Input dimension D, shared by both tasks."""
        return self.benign.dimension

    @cached_property
    @own_state()
    def limit(self) -> RirLimit:
        """The theoretical limit of RIR."""
        return limit_of(self.benign, self.harmful)

    @own_state()
    def seen(self, theta: Any) -> Seen:
        """Return what probes of both tasks see through θ."""
        return Seen.of(theta, self.benign, self.harmful, (self.probes[0], self.probes[1]))

    @own_state()
    def probe_steps(self, theta: Any) -> list[ProbeSteps | None]:
        """Count the steps of the benign and the harmful probe; None where there is nothing to learn."""
        return [None if of is None else seen_steps(of) for of in self.seen(theta).probes]

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.benign.factor.device

    @classmethod
    def from_pair(cls, pair: Any, *, device: str | torch.device | None = None) -> ImmunizationProblem:
        """Build a problem from a loaded `TaskPair`, or what has its arrays; see `from_data`."""
        others = {name: getattr(pair, name) for name in ("X_loss", "y_loss", "X_probe", "y_probe")}
        return cls.from_data(pair.X_P, pair.y_P, pair.X_H, pair.y_H, device=device, **others)

    @classmethod
    @own_state()
    def from_data(
        cls,
        X_benign: ArrayLike,
        y_benign: ArrayLike | None,
        X_harmful: ArrayLike,
        y_harmful: ArrayLike | None = None,
        *,
        loss: LossName = "mse",
        X_loss: ArrayLike | None = None,
        y_loss: ArrayLike | None = None,
        X_probe: ArrayLike | None = None,
        y_probe: ArrayLike | None = None,
        device: str | torch.device | None = None,
    ) -> ImmunizationProblem:
        """Build a problem from data matrices, of which it keeps copies.

        Args:
            X_benign: `(N_P, D)` inputs of D_P.
            y_benign: `(N_P,)` labels, or `(N_P,)` or `(N_P, m)` numbers, or None for the regularizers alone.
                Integers, booleans, text and categories are labels: one-hot columns, probes with intercept.
            X_harmful: `(N_H, D)` inputs of D_H.
            y_harmful: `(N_H,)` or `(N_H, m)`; only IMMA, erasure and the probes need them.
            loss: `mse`, or `bce` for one column of targets in [0, 1], without an intercept.
            X_loss: `(N_loss, D)` other inputs for the supervised loss on D_P.
            y_loss: `(N_loss,)` their targets; then `y_benign` is not used.
            X_probe: `(N_probe, D)` other inputs for the probe on D_H.
            y_probe: `(N_probe,)` their targets; then `y_harmful` is not used.
            device: Where to compute: `auto`, `cpu`, `cuda[:i]`; default: where X_benign lives.

        Returns:
            The problem, in float64.

        Raises:
            InvalidInputError: Shapes do not fit, entries are non-finite or too large, labels outside [0, 1].
            UnknownNameError: Unknown loss.
            DeviceError: No such device.

        Examples:
            >>> problem = ImmunizationProblem.from_data([[1.0, 0.0], [1.0, 2.0]], None, [[0.0, 3.0]])
            >>> problem, problem.harmful.rank
            (ImmunizationProblem(D = 2; D_P: 2 rows; D_H: 1 rows), 1)
        """
        check_known("loss", loss, ("mse", "bce"))
        X_benign, X_harmful, X_loss, X_probe = same_columns(
            X_benign=X_benign, X_harmful=X_harmful, X_loss=X_loss, X_probe=X_probe
        )
        for X, y, names in ((X_loss, y_loss, "X_loss and y_loss"), (X_probe, y_probe, "X_probe and y_probe")):
            if (X is None) != (y is None):
                raise InvalidInputError(f"{names} must be given together: pass both or neither.")
        if device is None:
            device = (
                X_benign.device if isinstance(X_benign, Tensor) and X_benign.device.type != "mps" else "cpu"
            )
        device = resolve_device(device)
        kind: TargetKind = "regression" if loss == "bce" else "auto"  # 0 and 1 of a logit are no classes
        tasks, losses, probes = list[Task](), list[SupervisedLoss | None](), list[Task | None]()
        for name, X, y, others, their_y in (
            ("benign", X_benign, y_benign, X_loss, y_loss),
            ("harmful", X_harmful, y_harmful, X_probe, y_probe),
        ):
            rows, targets = (X, y) if others is None else (others, their_y)
            logit = None
            if loss == "bce" and targets is not None:
                targets = logit = _probabilities(targets, f"y_{name}", rows)
            own = targets if others is None else None
            task = Task.of(X, own, kind=kind, name=f"X_{name}", device=device)
            tasks.append(task)
            if others is not None:
                task = Task.of(rows, targets, kind=kind, name=f"other inputs of y_{name}", device=device)
                if task.dimension != tasks[-1].dimension:
                    raise InvalidInputError(
                        f"the other inputs of y_{name} have {task.dimension} features, X_{name} has "
                        f"{tasks[-1].dimension}: both must live in one input space."
                    )
            probes.append(None if targets is None else task.probe)
            if logit is not None:
                features = as_tensor(rows, f"X of y_{name}", ndim=2).detach().to(device, copy=True)
                losses.append(LogisticLoss(features, logit.to(device, copy=True)))
            else:
                losses.append(None if targets is None else SquaredLoss.of(task.probe))
        if tasks[0].dimension != tasks[1].dimension:
            raise InvalidInputError(
                f"X_benign has {tasks[0].dimension} features and X_harmful {tasks[1].dimension}: "
                "both tasks must share one input space."
            )
        return cls(tasks[0], tasks[1], losses, probes)

    @classmethod
    @own_state()
    def from_covariances(
        cls, benign_covariance: ArrayLike, harmful_covariance: ArrayLike
    ) -> ImmunizationProblem:
        """Build a problem without supervised loss from the two covariances alone.

        Args:
            benign_covariance: `(D, D)`, `K_P`.
            harmful_covariance: `(D, D)`, `K_H`.

        Returns:
            The problem; methods that need targets refuse it.

        Raises:
            InvalidInputError: No covariances, not of one shape, or non-finite.

        Examples:
            >>> ImmunizationProblem.from_covariances([[2.0]], [[3.0]]).dimension
            1
        """
        return cls(*two_tasks(benign_covariance, harmful_covariance))


def _probabilities(y: Any, name: str, rows: Any) -> Tensor:
    """Return targets of the logistic loss `(N, m)`."""
    numbers, _ = as_targets(y, name, "regression", rows=len(rows))
    targets = torch.from_numpy(numbers)
    if not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InvalidInputError(
            f"{name} has values outside [0, 1] (from {float(targets.min()):.3g} to "
            f"{float(targets.max()):.3g}): the bce loss needs labels or probabilities; use loss='mse'."
        )
    return targets
