"""What a method declares to be descended in batches, beside its gradients for one problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from condnum.errors import InvalidInputError
from condnum.methods.method import Parameters
from condnum.methods.problem import ImmunizationProblem, LinearTask, LogisticLoss, SquaredLoss, SupervisedLoss
from condnum.theory.spectra import covariance_factor

# Matrices with different numbers of rows in one tensor.


def stack_padded(matrices: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack matrices below which rows of zeros make all equally high.

    A matrix that occurs more than once travels to the device once: 180 tasks of 90 digit pairs share
    55 covariances.

    Examples:
        >>> stack_padded([torch.ones(1, 2), torch.ones(2, 2)], torch.device("cpu"))[0]
        tensor([[1., 1.],
                [0., 0.]])
    """
    widths = sorted({matrix.shape[1] for matrix in matrices})
    if len(widths) != 1:
        raise InvalidInputError(f"the problems of a batch must have the same dimensions, got {widths}.")
    places: dict[int, int] = {}
    different: list[Tensor] = []
    for matrix in matrices:
        if id(matrix) not in places:
            places[id(matrix)] = len(different)
            different.append(matrix)
    stacked = torch.zeros(
        (len(different), max(len(matrix) for matrix in different), widths[0]),
        dtype=different[0].dtype,
        device=device,
    )
    for target, matrix in zip(stacked, different, strict=True):
        target[: len(matrix)].copy_(matrix)
    if len(different) == len(matrices):
        return stacked
    return stacked[torch.tensor([places[id(matrix)] for matrix in matrices], device=device)]


# Supervised losses of a batch of tasks: those of `condnum.methods.problem`, with a leading dimension.


class LossBatch(Protocol):
    """Losses of the predictors `β = θω` of a batch that know their own derivatives."""

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean loss `(b,)` of each `β` `(b, D, m)`, differentiable by autograd."""

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `∂L/∂β`, `(b, D, m)`."""


@dataclass(frozen=True)
class SquaredLossBatch:
    """Mean squared errors from sufficient statistics."""

    covariance: Tensor  # (b, D, D), XᵀX
    moment: Tensor  # (b, D, m), XᵀY
    energy: Tensor  # (b,), ‖Y‖²
    rows: Tensor  # (b,), N

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean squared errors `(b,)`."""
        product = self.covariance @ predictor
        return ((predictor * (product - 2 * self.moment)).sum(dim=(1, 2)) + self.energy) / self.rows

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `(2/N)(Kβ − XᵀY)`."""
        return (2 / self.rows)[:, None, None] * (self.covariance @ predictor - self.moment)


@dataclass(frozen=True)
class LogisticLossBatch:
    """Mean binary cross-entropies."""

    features: Tensor  # (b, N, D), padded
    targets: Tensor  # (b, N, m), padded
    rows: Tensor  # (b,), rows that are not padding

    @property
    def _entries(self) -> Tensor:
        """Number of labels of each task, `(b,)`."""
        return self.rows * self.targets.shape[2]

    def value(self, predictor: Tensor) -> Tensor:
        """Return the mean cross-entropies `(b,)`, in nats."""
        logits = self.features @ predictor
        own = torch.arange(logits.shape[1], device=logits.device) < self.rows[:, None]
        losses = (softplus(logits) - self.targets * logits) * own[:, :, None]  # a zero row has log 2
        return losses.sum(dim=(1, 2)) / self._entries

    def derivative(self, predictor: Tensor) -> Tensor:
        """Return `Xᵀ(sigmoid(Xβ) − Y)/N`, to which rows of zeros add nothing."""
        excess = torch.sigmoid(self.features @ predictor) - self.targets
        return self.features.mT @ excess / self._entries[:, None, None]


def stack_losses(losses: Sequence[SupervisedLoss | None], device: torch.device) -> LossBatch | None:
    """Stack the losses of a batch of tasks."""

    def numbers(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    if all(loss is None for loss in losses):
        return None
    squared = [loss for loss in losses if isinstance(loss, SquaredLoss)]
    logistic = [loss for loss in losses if isinstance(loss, LogisticLoss)]
    if len(squared) == len(losses):
        return SquaredLossBatch(
            stack_padded([loss.covariance for loss in squared], device),
            stack_padded([loss.moment for loss in squared], device),
            numbers([loss.energy for loss in squared]),
            numbers([loss.rows for loss in squared]),
        )
    if len(logistic) == len(losses):
        return LogisticLossBatch(
            stack_padded([loss.features for loss in logistic], device),
            stack_padded([loss.targets for loss in logistic], device),
            numbers([loss.features.shape[0] for loss in logistic]),
        )
    kinds = sorted({type(loss).__name__ for loss in losses})
    raise InvalidInputError(f"the tasks of a batch must have one kind of loss, got {', '.join(kinds)}.")


# Many problems of one dimension in a few tensors.


@dataclass(frozen=True)
class TaskBatch:
    """One task of each problem. `BᵀB = K` holds with the padding too: rows of zeros add nothing."""

    factor: Tensor  # (b, r, D), B of each task below which zeros make r = max rank
    ranks: Tensor  # (b,), number of rows of B that are not padding, all of them independent
    loss: LossBatch | None

    @classmethod
    def of(cls, tasks: Sequence[LinearTask], device: torch.device) -> Self:
        """Stack tasks."""
        factors = [_full_rank_factor(task) for task in tasks]
        return cls(
            stack_padded(factors, device),
            torch.tensor([len(factor) for factor in factors], device=device),
            stack_losses([task.supervised for task in tasks], device),
        )


@dataclass(frozen=True)
class ProblemBatch:
    """The pairs (D_P, D_H) of a batch."""

    pretrain: TaskBatch
    harmful: TaskBatch

    @property
    def size(self) -> int:
        """b, the number of problems."""
        return self.pretrain.factor.shape[0]

    @property
    def dimension(self) -> int:
        """D, shared by all."""
        return self.pretrain.factor.shape[2]

    @classmethod
    def of(cls, problems: Sequence[ImmunizationProblem], device: torch.device) -> Self:
        """Stack problems.

        Examples:
            >>> full, deficient = [[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]
            >>> problem = ImmunizationProblem.from_covariances(full, deficient)
            >>> batch = ProblemBatch.of([problem, problem], torch.device("cpu"))
            >>> batch.size, batch.dimension, batch.harmful.ranks.tolist()
            (2, 2, [1, 1])
        """
        if not problems:
            raise InvalidInputError("a batch needs at least one problem.")
        return cls(
            TaskBatch.of([problem.pretrain for problem in problems], device),
            TaskBatch.of([problem.harmful for problem in problems], device),
        )


def _full_rank_factor(task: LinearTask) -> Tensor:
    """Return a factor whose rows are as many as the rank: data rows may depend on each other."""
    return task.factor if len(task.factor) == task.rank else covariance_factor(task.covariance)


@dataclass
class BatchMemory:
    """What a batch may carry from one step to the next."""

    active: Tensor  # (b,) bool: problems that still descend, and count
    vectors: dict[str, Tensor] = field(default_factory=dict)  # warm starts, by the method's own names
    counts: dict[str, Tensor] = field(default_factory=dict)  # (b,) each
    buffers: dict[str, Tensor] = field(default_factory=dict)  # reused from step to step

    def count(self, name: str, amount: Tensor) -> None:
        """Add `(b,)` to a counter, where a problem still descends."""
        counted = torch.where(self.active, amount.long(), 0)
        self.counts[name] = self.counts[name] + counted if name in self.counts else counted

    def buffer(self, name: str, like: Tensor, rows: int, columns: int) -> Tensor:
        """Return uninitialised matrices, one a problem, that keep their memory from step to step."""
        if name not in self.buffers:
            self.buffers[name] = like.new_empty((len(like), rows, columns))
        return self.buffers[name]


@dataclass(frozen=True)
class HessianGradientBatch:
    """`∇_H R(H) = aH + c·vvᵀ` of each problem, in its parts."""

    hessian: Tensor  # (b, D, D), H
    scale: Tensor  # (b,), a
    coefficient: Tensor  # (b,), c
    vector: Tensor  # (b, D), v

    def add_to(self, total: Tensor, weight: Tensor, *, fresh: bool = False) -> Tensor:
        """Add `weight·∇_H R` to running sums in place (fresh ones are overwritten), and return them."""
        scale = (weight * self.scale)[:, None, None]
        if fresh:
            torch.mul(self.hessian, scale, out=total)
        else:
            total.addcmul_(self.hessian, scale)
        scaled = (weight * self.coefficient)[:, None] * self.vector
        return total.baddbmm_(scaled[:, :, None], self.vector[:, None, :])


@dataclass(frozen=True)
class OuterGradientBatch:
    """Parts of low rank, `left·rightᵀ` of each problem."""

    left: Tensor  # (b, D, m)
    right: Tensor  # (b, D, m)

    def add_to(self, total: Tensor, weight: Tensor) -> Tensor:
        """Add `weight·left·rightᵀ` to running sums in place, and return them."""
        return total.baddbmm_(self.left * weight[:, None, None], self.right.mT)


@dataclass(frozen=True)
class GradientBatch:
    """Gradients of one step of a batch; see `condnum.methods.method.Gradients`."""

    others: dict[str, Tensor] = field(default_factory=dict)  # by parameter name
    theta_parts: dict[str, Tensor] = field(default_factory=dict)  # each (b, D, D)
    hessian_parts: dict[str, HessianGradientBatch] = field(default_factory=dict)
    outer_parts: dict[str, OuterGradientBatch] = field(default_factory=dict)

    def weighted_sum(self, theta: Tensor, weights: dict[str, Tensor], memory: BatchMemory) -> Tensor:
        """Return the weighted sum of all parts; Hessian parts share one product with θ."""
        total = memory.buffer("total", theta, *theta.shape[1:])
        if self.hessian_parts:
            inner = memory.buffer("hessian_sum", theta, *theta.shape[1:])
            for index, (part, gradient) in enumerate(self.hessian_parts.items()):
                gradient.add_to(inner, 2 * weights[part], fresh=index == 0)
            torch.bmm(theta, inner, out=total)
        else:
            total.zero_()
        for part, outer in self.outer_parts.items():
            outer.add_to(total, weights[part])
        for part, value in self.theta_parts.items():
            total.addcmul_(value, weights[part][:, None, None])
        return total

    def norms(self, theta: Tensor, memory: BatchMemory) -> dict[str, Tensor]:
        """Return the Frobenius norms `(b,)` of each part's directions."""
        found = {}
        ones = theta.new_ones(len(theta))
        parts = [
            *(GradientBatch(hessian_parts={part: value}) for part, value in self.hessian_parts.items()),
            *(GradientBatch(outer_parts={part: value}) for part, value in self.outer_parts.items()),
            *(GradientBatch(theta_parts={part: value}) for part, value in self.theta_parts.items()),
        ]
        for alone in parts:
            (name,) = (*alone.hessian_parts, *alone.outer_parts, *alone.theta_parts)
            total = alone.weighted_sum(theta, {name: ones}, memory)
            found[name] = torch.linalg.vector_norm(total, dim=(1, 2))
        return found


@runtime_checkable
class BatchedMethod(Protocol):
    """A descent method that also knows the gradients of a whole batch."""

    def batched_gradients(
        self, problems: ProblemBatch, parameters: Parameters, settings: Any, memory: BatchMemory
    ) -> GradientBatch:
        """Return the gradients at parameters with a leading batch dimension, on the full problems."""


# Evaluation of a batch on its full problems: what the histories record, as `condnum.methods.method`.


def measure(problems: ProblemBatch, theta: Tensor, omega: Tensor | None) -> dict[str, list[float]]:
    """Return loss, both regularizers and both compact κ's over rank(K), of each problem."""
    sigma_P, sigma_H = (_spectra(tasks, theta) for tasks in (problems.pretrain, problems.harmful))
    mean_square = (sigma_H**2).sum(dim=1) / problems.harmful.ranks.cpu()
    spread = (mean_square - _smallest(problems.harmful, sigma_H) ** 2) / 2
    loss = torch.full_like(spread, torch.nan)
    if problems.pretrain.loss is not None and omega is not None:
        loss = problems.pretrain.loss.value(theta @ omega)
    columns = {
        "loss": loss,
        "r_well": (sigma_P[:, 0] ** 2 - (sigma_P**2).sum(dim=1) / theta.shape[2]) / 2,
        "r_ill": torch.where(spread > 0, 1 / spread, torch.inf),
        "kappa_pretrain": _kappa(problems.pretrain, sigma_P),
        "kappa_harmful": _kappa(problems.harmful, sigma_H),
    }
    return {name: column.tolist() for name, column in columns.items()}


def _spectra(tasks: TaskBatch, theta: Tensor) -> Tensor:
    """Return the spectra of H(θ), zeros behind rank(K), on the host `(b, n)`.

    cuSOLVER batches singular value decompositions up to 32×32: larger ones are the host's.
    """
    F = (tasks.factor @ theta).cpu()
    finite = torch.isfinite(torch.linalg.vector_norm(F, ord=torch.inf, dim=(1, 2)))
    sigma = torch.linalg.svdvals(torch.where(finite[:, None, None], F, 0.0)) ** 2
    return torch.where(finite[:, None], sigma, torch.inf)


def _smallest(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return σ_k of each spectrum, the last one before the zeros of the padding."""
    return sigma.gather(1, (tasks.ranks.cpu() - 1)[:, None]).squeeze(1)


def _kappa(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return σ₁/σ_k, infinite where σ_k is exactly zero or the features overflow."""
    smallest = _smallest(tasks, sigma)
    usable = torch.isfinite(sigma).all(dim=1) & (smallest > 0)
    return torch.where(usable, sigma[:, 0] / smallest, torch.inf)
