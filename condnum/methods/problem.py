"""The pair of tasks that a method immunizes, from data or covariances; alone, or many pairs in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from scipy.linalg import qr_multiply
from torch import Tensor
from torch.nn.functional import softplus

from condnum.arrays import ArrayLike, as_tensor, resolve_device, storage_eps
from condnum.errors import InvalidInputError, check_known
from condnum.theory.extremes import TriangularFactor
from condnum.theory.spectra import CovarianceRange, as_covariance, covariance, default_rtol, squared_rtol

LossName = Literal["mse", "bce"]

#: How a problem is made, for those who pass something else.
MAKE_IT = (
    "make it with ImmunizationProblem.from_data(X_P, y_P, X_H, y_H), where targets may be None, or with "
    "ImmunizationProblem.from_covariances(K_P, K_H)."
)

#: Up to this dimension a full `eigh` of one Hessian is as fast as anything cleverer.
SMALL = 128


@dataclass(frozen=True)
class SquaredLoss:
    """Mean squared error of `β = θω` (Eq. 4) from its statistics: `L(β) = (βᵀKβ − 2βᵀXᵀY + ‖Y‖²)/N`."""

    covariance: Tensor  # (..., D, D), XᵀX
    moment: Tensor  # (..., D, m), XᵀY
    energy: float | Tensor  # (..., 1, 1), ‖Y‖²
    rows: int | Tensor  # (..., 1, 1), N

    def value(self, predictor: Tensor) -> Tensor:
        """Return the loss `(...)` of `β` `(..., D, m)`, differentiable by autograd."""
        products = predictor * (self.covariance @ predictor - 2 * self.moment)
        return ((products.sum(dim=(-2, -1), keepdim=True) + self.energy) / self.rows)[..., 0, 0]

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β = (2/N)(Kβ − XᵀY)`; then `∇_θL = (∂L/∂β)ωᵀ` and `∇_ωL = θᵀ(∂L/∂β)`."""
        return (2 / self.rows) * (self.covariance @ predictor - self.moment)


@dataclass(frozen=True)
class LogisticLoss:
    """Mean binary cross-entropy of labels in [0, 1] with the logit `xᵀβ`."""

    features: Tensor  # (..., N, D), below the task's own rows zeros
    targets: Tensor  # (..., N, m)
    rows: int | Tensor  # (..., 1, 1), rows that are not padding

    def value(self, predictor: Tensor) -> Tensor:
        """Return the loss `(...)` of `β` `(..., D, m)`, in nats."""
        logits = self.features @ predictor
        own = torch.arange(logits.shape[-2], device=logits.device)[:, None] < self.rows
        losses = (softplus(logits) - self.targets * logits) * own  # a row of zeros has log 2
        return (losses.sum(dim=(-2, -1), keepdim=True) / (self.rows * logits.shape[-1]))[..., 0, 0]

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β = Xᵀ(sigmoid(Xβ) − Y)/N`, to which rows of zeros add nothing."""
        excess = torch.sigmoid(self.features @ predictor) - self.targets
        return self.features.mT @ excess / (self.rows * self.targets.shape[-1])


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
    known_range: CovarianceRange | None = None  # of K, where it is known
    rtol: float | None = None  # relative rank tolerance of K; default D·2⁻⁵²

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
        """Eigenpairs of K above its numerical rank."""
        name = "the task's covariance"
        return self.known_range or CovarianceRange.of(self.covariance, rtol=self.rtol, name=name)

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

        chosen = draw(len(self.features))
        X, Z = self.features[chosen], self.loss_features
        loss_rows = chosen if Z is None else draw(len(Z))
        targets = None if self.targets is None else self.targets[loss_rows]
        Z = None if Z is None else Z[loss_rows]
        return LinearTask(X.mT @ X, X, targets, self.loss, Z, rtol=self.rtol)

    def optimal_squared_loss(self, theta: Tensor) -> float:
        """Return `min_ω ‖Xθω − Y‖²/N` by least squares on the data, at any rank."""
        X = self.supervised_rows
        if self.targets is None or X is None:
            raise InvalidInputError("the task has no targets: its best loss is undefined; pass X and y.")
        # The part of Y in the range of the features, by pivoted QR: a quarter of the SVD's time.
        features, targets = (X @ theta).cpu().numpy(), self.targets.cpu().numpy()
        parts, R, _ = qr_multiply(features, targets.T, pivoting=True)
        sizes = np.abs(np.diagonal(R))
        explained = float((parts[:, sizes > default_rtol(max(X.shape)) * sizes[0]] ** 2).sum())
        return max(float(self.targets.square().sum()) - explained, 0.0) / len(X)

    @cached_property
    def raw_loss(self) -> float:
        """The best squared loss on raw inputs."""
        return self.optimal_squared_loss(torch.eye(len(self.covariance)).to(self.covariance))

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
        return (self.optimal_squared_loss(theta) - self.raw_loss) / zero_loss


@dataclass(frozen=True, repr=False)
class ImmunizationProblem:
    """The pair (D_P, D_H) that a method immunizes: keep P well-conditioned, make H ill-conditioned."""

    pretrain: LinearTask
    harmful: LinearTask

    def __post_init__(self) -> None:
        """Refuse arrays, which do not say whether they are rows or covariances."""
        for task in (self.pretrain, self.harmful):
            if not isinstance(task, LinearTask):
                raise InvalidInputError(
                    f"a problem is made of two tasks, got {type(task).__name__}; {MAKE_IT}"
                )

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
        cls, pair: Any, *, loss: LossName = "mse", device: str | torch.device | None = None
    ) -> ImmunizationProblem:
        """Build a problem from a loaded `TaskPair`, or what has its arrays; see `from_data`."""
        others = {name: getattr(pair, name) for name in ("X_loss", "y_loss", "X_probe", "y_probe")}
        return cls.from_data(pair.X_P, pair.y_P, pair.X_H, pair.y_H, loss=loss, device=device, **others)

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
            y_H: `(N_H,)` or `(N_H, m)`; only IMMA and the probes need them.
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
        if device is None:
            device = X_P.device if isinstance(X_P, Tensor) else "cpu"
        device = resolve_device(device)
        for X, y, names in ((X_loss, y_loss, "X_loss and y_loss"), (X_probe, y_probe, "X_probe and y_probe")):
            if (X is None) != (y is None):
                raise InvalidInputError(f"{names} go together: pass both or neither.")
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
    K: Tensor = covariance(features)  # type: ignore[assignment]
    rtol = squared_rtol(len(K), storage_eps(X))
    if y is None:
        return LinearTask(K, features, None, loss, rtol=rtol)
    targets = own(y, f"y_{name}", minimum_ndim=1)
    targets = targets[:, None] if targets.ndim == 1 else targets
    expected = len(features if rows is None else rows)
    if targets.ndim != 2 or len(targets) != expected:
        raise InvalidInputError(
            f"y_{name} has shape {tuple(targets.shape)} for {expected} rows: one target per row is needed."
        )
    if loss == "bce" and not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InvalidInputError(
            f"y_{name} has values outside [0, 1] (from {float(targets.min()):.3g} to "
            f"{float(targets.max()):.3g}): the bce loss needs labels or probabilities; use loss='mse'."
        )
    return LinearTask(K, features, targets, loss, rows, rtol=rtol)


def _stacked(matrices: Sequence[Any], device: torch.device) -> Tensor:
    """Stack matrices below which rows of zeros make all equally high, or numbers as `(b, 1, 1)`.

    A matrix that occurs more than once travels to the device once: 180 tasks of 90 digit pairs share
    55 covariances.
    """
    if not isinstance(matrices[0], Tensor):
        return torch.tensor(matrices, dtype=torch.float64, device=device)[:, None, None]
    different = list({id(matrix): matrix for matrix in matrices}.values())
    places = {id(matrix): place for place, matrix in enumerate(different)}
    shape = len(different), max(map(len, different)), different[0].shape[1]
    stacked = torch.zeros(shape, dtype=different[0].dtype, device=device)
    for target, matrix in zip(stacked, different, strict=True):
        target[: len(matrix)].copy_(matrix)
    if len(different) == len(matrices):
        return stacked
    return stacked[torch.tensor([places[id(matrix)] for matrix in matrices], device=device)]


@dataclass(frozen=True)
class TaskBatch:
    """One task of each problem, as stacked tensors that are made when they are first asked for."""

    tasks: Sequence[LinearTask]
    device: torch.device

    @cached_property
    def factor(self) -> Tensor:
        """`B` with `BᵀB = K` of each task, below which zeros make r = max rank; `(b, r, D)`."""
        return _stacked([task.factor for task in self.tasks], self.device)

    @cached_property
    def ranks(self) -> Tensor:
        """Number of rows of each B that are not padding, all of them independent; `(b,)`."""
        return torch.tensor([task.rank for task in self.tasks], device=self.device)

    @cached_property
    def small_covariance(self) -> Tensor | None:
        """K of a single task of at most `SMALL` dimensions, whose Hessian is formed and decomposed whole."""
        K = self.tasks[0].covariance
        return K.to(self.device) if len(self.tasks) == 1 and len(K) <= SMALL else None

    @cached_property
    def triangular(self) -> TriangularFactor | None:
        """The factor of a single task in triangular form, where that saves work: on the CPU, r near D."""
        _, rows, dimension = self.factor.shape
        if len(self.tasks) > 1 or self.device.type != "cpu" or not dimension / 2 <= rows <= dimension:
            return None
        return TriangularFactor.of(self.factor[0])

    @cached_property
    def loss(self) -> SupervisedLoss | None:
        """The supervised losses of all tasks, or None for tasks without."""
        losses = [task.supervised for task in self.tasks]
        kind = type(losses[0])
        if any(type(loss) is not kind for loss in losses):
            names = ", ".join(sorted({type(loss).__name__ for loss in losses}))
            raise InvalidInputError(f"the tasks of a batch must have one kind of loss, got {names}.")
        if losses[0] is None:
            return None
        columns = {
            field.name: _stacked([getattr(loss, field.name) for loss in losses], self.device)
            for field in fields(losses[0])
        }
        return type(losses[0])(**columns)


@dataclass(frozen=True)
class ProblemBatch:
    """The pairs (D_P, D_H) of many problems of one dimension."""

    pretrain: TaskBatch
    harmful: TaskBatch

    @classmethod
    def of(cls, problems: Sequence[ImmunizationProblem], device: torch.device) -> Self:
        """Put problems side by side on a device."""
        return cls(
            TaskBatch([problem.pretrain for problem in problems], device),
            TaskBatch([problem.harmful for problem in problems], device),
        )


def measure(problems: ProblemBatch, theta: Tensor, omega: Tensor | None) -> dict[str, list[float]]:
    """Return loss, both regularizers and both compact κ's of each problem: what histories record.

    κ is taken over rank(K), the rank that H(θ) has for invertible θ: along a run a fixed rank gives
    a continuous curve, whereas a rank decided anew at every step jumps near the tolerance.
    """
    spectra, smallest, kappa = {}, {}, {}
    for name, tasks in (("pretrain", problems.pretrain), ("harmful", problems.harmful)):
        # cuSOLVER batches singular value decompositions up to 32×32: larger ones are the host's.
        F = (tasks.factor @ theta).cpu()
        finite = torch.isfinite(torch.linalg.vector_norm(F, ord=torch.inf, dim=(1, 2)))
        sigma = torch.linalg.svdvals(torch.where(finite[:, None, None], F, 0.0)).square()
        spectra[name] = sigma = torch.where(finite[:, None], sigma, torch.inf)
        k = tasks.ranks.cpu().clamp_max(sigma.shape[1])  # zeros of the padding follow
        smallest[name] = sigma.gather(1, (k - 1)[:, None]).squeeze(1)
        usable = torch.isfinite(sigma).all(dim=1) & (smallest[name] > 0)
        kappa[name] = torch.where(usable, sigma[:, 0] / smallest[name], torch.inf)
    P, H = spectra["pretrain"], spectra["harmful"]
    spread = (H.square().sum(dim=1) / k - smallest["harmful"].square()) / 2
    loss = torch.full_like(spread, torch.nan)
    if problems.pretrain.loss is not None and omega is not None:
        loss = problems.pretrain.loss.value(theta @ omega)
    columns = {
        "loss": loss,
        "r_well": (P[:, 0].square() - P.square().sum(dim=1) / theta.shape[2]) / 2,
        "r_ill": torch.where(spread > 0, 1 / spread, torch.inf),
        "kappa_pretrain": kappa["pretrain"],
        "kappa_harmful": kappa["harmful"],
    }
    return {name: column.tolist() for name, column in columns.items()}


def problem_bytes(problem: ImmunizationProblem) -> int:
    """Estimate the memory that one more problem takes in a batch."""
    D = problem.dimension
    # θ, its copy, gradient, two moments of Adam, two Hessians, their sum, and as many again for what lives
    # inside a step (IMMA's graph, norms); the basis of Lanczos.
    numbers = 16 * D**2 + 32 * D
    for task in (problem.pretrain, problem.harmful):
        rows = 0 if task.supervised_rows is None else len(task.supervised_rows)
        numbers += 2 * task.rank * D + rows * D
    r = problem.harmful.rank
    return 8 * (numbers + 4 * r**2 + r * D)  # the inverse of the harmful task's dual Gram matrix


def batch_size(problem: ImmunizationProblem, device: torch.device, memory_bytes: int | None = None) -> int:
    """Return how many problems like this one fit on a device at once."""
    if memory_bytes is None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        memory_bytes = int(0.8 * (free + reusable))  # the rest is for what the libraries allocate
    elif memory_bytes is None:
        memory_bytes = 2 * 2**30  # nobody says what is free: as a sweep's workers take
    return max(1, memory_bytes // problem_bytes(problem))
