"""The pair of tasks that a method immunizes, from data or covariances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from condnum.arrays import ArrayLike, as_targets, as_tensor, resolve_device, same_columns, storage_eps
from condnum.errors import InvalidInputError, check_known
from condnum.numbers import short_repr
from condnum.probing.probe_steps import ProbeSteps, target_probe
from condnum.theory.ceiling import RirCeiling, rir_ceiling
from condnum.theory.covariances import CovarianceRange, fit_lost
from condnum.theory.extremes import gram
from condnum.theory.spectra import as_covariance, as_extractor, checked_gram, default_rtol, features_rtol

LossName = Literal["mse", "bce"]

#: How a problem is made, for those who pass something else.
MAKE_IT = (
    "create one with ImmunizationProblem.from_data(X_P, y_P, X_H, y_H), where targets may be None, or with "
    "ImmunizationProblem.from_covariances(K_P, K_H)."
)


@dataclass(frozen=True)
class SquaredLoss:
    """Mean squared error of `β = θω` (Eq. 4) from its statistics: `L(β) = (βᵀKβ − 2βᵀXᵀY + ‖Y‖²)/N`."""

    covariance: Tensor  # (D, D), XᵀX
    moment: Tensor  # (D, m), XᵀY
    energy: float  # ‖Y‖²
    rows: int  # N

    def value(self, predictor: Tensor) -> Tensor:
        """Return the loss of `β` `(D, m)`, differentiable by autograd."""
        products = predictor * (self.covariance @ predictor - 2 * self.moment)
        return (products.sum() + self.energy) / self.rows

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

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β = Xᵀ(sigmoid(Xβ) − Y)/N`, also divided by m."""
        excess = torch.sigmoid(self.features @ predictor) - self.targets
        return self.features.mT @ excess / self.targets.numel()


#: Supervised losses that know their own derivative.
SupervisedLoss = SquaredLoss | LogisticLoss


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
    rtol: float | None = None  # relative rank tolerance of K; default D·2⁻⁵²
    labels: Tensor | None = None  # (N_loss,) 0 … C − 1, where the targets are labels

    __repr__ = short_repr

    @property
    def supervised_rows(self) -> Tensor | None:
        """Inputs of the supervised loss, `(N_loss, D)`."""
        return self.features if self.loss_features is None else self.loss_features

    @cached_property
    def factor(self) -> Tensor:
        """`B` with `K = BᵀB`, `(r, D)` of full row rank: the data rows where they are independent."""
        X = self.features
        if X is not None and X.shape[0] < X.shape[1] and X.shape[0] == self.rank:
            return X
        return self.range.factor

    @cached_property
    def range(self) -> CovarianceRange:
        """Eigenpairs of K above its numerical rank, from X where its columns' units would hide some in K."""
        if self.features is not None and (self.rtol or 1) < default_rtol(len(self.covariance)):
            return CovarianceRange.of_features(self.features, rtol=self.rtol)
        rtol = default_rtol(len(self.covariance)) if self.rtol is None else self.rtol
        return CovarianceRange.of_checked(self.covariance, rtol, "the task's covariance")

    @property
    def rank(self) -> int:
        """Numerical rank of `K`; also that of `H(θ)` for invertible θ."""
        return self.range.rank

    @cached_property
    def supervised(self) -> SupervisedLoss | None:
        """The loss of Eq. 4, or None for a task without targets."""
        X = self.supervised_rows
        if self.targets is None or X is None:
            return None
        return LogisticLoss(X, self.targets) if self.loss == "bce" else self.squared

    @cached_property
    def squared(self) -> SquaredLoss:
        """The squared loss of a task with targets, whatever its own loss is."""
        X, Y = self.supervised_rows, self.targets
        assert X is not None
        assert Y is not None
        K = self.covariance if self.loss_features is None else X.mT @ X
        return SquaredLoss(K, X.mT @ Y, float(Y.square().sum()), X.shape[0])

    def loss_gap(self, theta: ArrayLike) -> float:
        """Return clause (c): the rise of the best squared loss, over the loss of predicting zero.

        The rank of θ is that at its stored precision: a projection saved as float32 still projects.
        """
        if self._probe is None:
            raise InvalidInputError("the task has no targets: its loss gap is undefined; pass X and y.")
        rows, moment, energy = self._probe
        if energy == 0:  # targets of zeros, such as the paper's single class with label 0
            return 0.0
        return fit_lost(as_extractor(theta)[0].cpu(), rows, moment) / energy

    def probe_steps(self, theta: Tensor) -> ProbeSteps | None:
        """Count the steps of the probe of the task's own targets; None where there is nothing to learn."""
        return None if self._probe is None else target_probe(theta.cpu(), *self._probe)

    @cached_property
    def _probe(self) -> tuple[CovarianceRange, Tensor, float] | None:
        """The range of XᵀX of the supervised rows, XᵀY and ‖Y‖²."""
        X, Y = self.supervised_rows, self.targets
        if Y is None or X is None:
            return None
        # From the rows: round-off of XᵀX would decide which directions θ keeps.
        rtol = self.rtol or default_rtol(X.shape[1])
        rows = self.range if X is self.features else CovarianceRange.of_features(X, rtol=rtol)
        return rows.to("cpu"), (X.mT @ Y).cpu(), float(Y.square().sum())


@dataclass(frozen=True, repr=False)
class ImmunizationProblem:
    """The pair (D_P, D_H) that a method immunizes: keep P well-conditioned, make H ill-conditioned."""

    pretrain: LinearTask
    harmful: LinearTask

    def __post_init__(self) -> None:
        """Refuse arrays, which do not say whether they are rows or covariances."""
        for task in (self.pretrain, self.harmful):
            if not isinstance(task, LinearTask):
                raise InvalidInputError(f"a problem needs two tasks, got {type(task).__name__}; {MAKE_IT}")

    def __repr__(self) -> str:
        """Return the sizes of both tasks."""
        rows = (
            "covariance only" if task.features is None else f"{len(task.features):,d} rows"
            for task in (self.pretrain, self.harmful)
        )
        return f"ImmunizationProblem(D = {self.dimension}; D_P: {next(rows)}; D_H: {next(rows)})"

    @property
    def dimension(self) -> int:
        """Input dimension D, shared by both tasks."""
        return self.pretrain.covariance.shape[0]

    @cached_property
    def ceiling(self) -> RirCeiling:
        """The theoretical limit of RIR."""
        return rir_ceiling(self.pretrain.range, self.harmful.range)

    def probe_steps(self, theta: Tensor) -> tuple[ProbeSteps | None, ProbeSteps | None]:
        """Count the steps of the benign and the harmful probe; None where there is nothing to learn."""
        return self.pretrain.probe_steps(theta), self.harmful.probe_steps(theta)

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.pretrain.covariance.device

    @classmethod
    def from_pair(cls, pair: Any, *, device: str | torch.device | None = None) -> ImmunizationProblem:
        """Build a problem from a loaded `TaskPair`, or what has its arrays; see `from_data`."""
        others = {name: getattr(pair, name) for name in ("X_loss", "y_loss", "X_probe", "y_probe")}
        return cls.from_data(pair.X_P, pair.y_P, pair.X_H, pair.y_H, device=device, **others)

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
        device: str | torch.device | None = None,
    ) -> ImmunizationProblem:
        """Build a problem from data matrices, of which it keeps copies.

        Args:
            X_P: `(N_P, D)` pre-training inputs.
            y_P: `(N_P,)` or `(N_P, m)` targets, or None for the regularizers alone.
            X_H: `(N_H, D)` harmful inputs.
            y_H: `(N_H,)` or `(N_H, m)`; only IMMA, erasure and the probes need them. Integers, booleans and
                text are labels, which erasure takes for classes; other methods see text as 0, 1, ….
            loss: `mse`, or `bce` for labels in [0, 1].
            X_loss: `(N_loss, D)` other inputs for the supervised loss on D_P.
            y_loss: `(N_loss,)` their targets; then `y_P` is not used.
            X_probe: `(N_probe, D)` other inputs for the probe on D_H.
            y_probe: `(N_probe,)` their targets; then `y_H` is not used.
            device: Where to compute: `auto`, `cpu`, `cuda[:i]`; default: where X_P lives.

        Returns:
            The problem, in float64.

        Raises:
            InvalidInputError: Shapes do not fit, entries are non-finite or too large, labels outside [0, 1].
            UnknownNameError: Unknown loss.
            DeviceError: No such device.

        Examples:
            >>> problem = ImmunizationProblem.from_data([[1.0, 0.0], [1.0, 2.0]], None, [[0.0, 3.0]])
            >>> problem.pretrain.covariance.tolist(), problem.harmful.rank
            ([[2.0, 2.0], [2.0, 4.0]], 1)
        """
        check_known("loss", loss, ("mse", "bce"))
        X_P, X_H, X_loss, X_probe = same_columns(X_P=X_P, X_H=X_H, X_loss=X_loss, X_probe=X_probe)
        if device is None:
            device = X_P.device if isinstance(X_P, Tensor) and X_P.device.type != "mps" else "cpu"
        device = resolve_device(device)
        for X, y, names in ((X_loss, y_loss, "X_loss and y_loss"), (X_probe, y_probe, "X_probe and y_probe")):
            if (X is None) != (y is None):
                raise InvalidInputError(f"{names} must be given together: pass both or neither.")
        P = _task(X_P, y_P if y_loss is None else y_loss, loss, device, "P", X_loss)
        H = _task(X_H, y_H if y_probe is None else y_probe, loss, device, "H", X_probe)
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
            InvalidInputError: No covariances, not of one shape, or non-finite.

        Examples:
            >>> ImmunizationProblem.from_covariances([[2.0]], [[3.0]]).dimension
            1
        """
        names = {"pretrain_covariance": pretrain_covariance, "harmful_covariance": harmful_covariance}
        pretrain_covariance, harmful_covariance = same_columns(**names)
        P = as_covariance(pretrain_covariance, "pretrain_covariance").detach()
        H = as_covariance(harmful_covariance, "harmful_covariance").detach().to(P.device)
        if P.shape != H.shape:
            raise InvalidInputError(
                f"pretrain_covariance {tuple(P.shape)} and harmful_covariance {tuple(H.shape)} must be "
                "square and of the same shape: both tasks share one input space."
            )
        given = (P, pretrain_covariance), (H, harmful_covariance)
        return cls(*(LinearTask(K, rtol=default_rtol(len(K), storage_eps(stored))) for K, stored in given))


def _task(
    X: ArrayLike,
    y: ArrayLike | None,
    loss: LossName,
    device: torch.device,
    name: Literal["P", "H"],
    X_loss: ArrayLike | None,
) -> LinearTask:
    """Validate one task's arrays and copy them to the device."""

    def own(value: ArrayLike, name: str, **shape: int) -> Tensor:
        return as_tensor(value, name, **shape).detach().to(device, copy=True)

    features = own(X, f"X_{name}", ndim=2)
    rows = None if X_loss is None else own(X_loss, f"other inputs of y_{name}", ndim=2)
    if rows is not None and rows.shape[1] != features.shape[1]:
        raise InvalidInputError(
            f"the other inputs of y_{name} have {rows.shape[1]} features, X_{name} has "
            f"{features.shape[1]}: both must live in one input space."
        )
    K = checked_gram(gram(features), features)
    rtol = features_rtol(X)
    if y is None:
        return LinearTask(K, features, None, loss, rtol=rtol)
    expected = len(features if rows is None else rows)
    numbers, classes = as_targets(y, f"y_{name}", rows=expected, quiet=True)
    labels = None if classes is None else torch.from_numpy(numbers).to(device)
    if classes is not None and classes.dtype.kind in "fiub":
        numbers = classes[numbers]
    targets = own(numbers, f"y_{name}", minimum_ndim=1)
    targets = targets[:, None] if targets.ndim == 1 else targets
    if loss == "bce" and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InvalidInputError(
            f"y_{name} has values outside [0, 1] (from {float(targets.min()):.3g} to "
            f"{float(targets.max()):.3g}): the bce loss needs labels or probabilities; use loss='mse'."
        )
    return LinearTask(K, features, targets, loss, rows, rtol, labels)
