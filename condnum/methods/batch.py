"""Many problems of one dimension in a few tensors: stacked, measured, and how many fit on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from condnum.errors import InvalidInputError
from condnum.methods.problem import ImmunizationProblem, LinearTask, LogisticLoss, SquaredLoss, SupervisedLoss
from condnum.theory.extremes import TriangularFactor


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


def stack_losses(losses: Sequence[SupervisedLoss | None], device: torch.device) -> SupervisedLoss | None:
    """Stack the losses of a batch of tasks."""

    def numbers(values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)[:, None, None]

    if all(loss is None for loss in losses):
        return None
    squared = [loss for loss in losses if isinstance(loss, SquaredLoss)]
    logistic = [loss for loss in losses if isinstance(loss, LogisticLoss)]
    if len(squared) == len(losses):
        return SquaredLoss(
            stack_padded([loss.covariance for loss in squared], device),
            stack_padded([loss.moment for loss in squared], device),
            numbers([loss.energy for loss in squared]),
            numbers([loss.rows for loss in squared]),
        )
    if len(logistic) == len(losses):
        return LogisticLoss(
            stack_padded([loss.features for loss in logistic], device),
            stack_padded([loss.targets for loss in logistic], device),
            numbers([loss.features.shape[0] for loss in logistic]),
        )
    kinds = sorted({type(loss).__name__ for loss in losses})
    raise InvalidInputError(f"the tasks of a batch must have one kind of loss, got {', '.join(kinds)}.")


@dataclass(frozen=True)
class TaskBatch:
    """One task of each problem. `BᵀB = K` holds with the padding too: rows of zeros add nothing."""

    factor: Tensor  # (b, r, D), B of each task below which zeros make r = max rank
    ranks: Tensor  # (b,), number of rows of B that are not padding, all of them independent
    loss: SupervisedLoss | None
    triangular: TriangularFactor | None = None  # of the only task, where that saves work

    @classmethod
    def of(cls, tasks: Sequence[LinearTask], device: torch.device) -> Self:
        """Stack tasks."""
        factors = [task.factor for task in tasks]
        return cls(
            stack_padded(factors, device),
            torch.tensor([len(factor) for factor in factors], device=device),
            stack_losses([task.supervised for task in tasks], device),
            tasks[0].triangular_factor if len(tasks) == 1 and device.type == "cpu" else None,
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


def measure(problems: ProblemBatch, theta: Tensor, omega: Tensor | None) -> dict[str, list[float]]:
    """Return loss, both regularizers and both compact κ's of each problem: what histories record.

    κ is taken over rank(K), the rank that H(θ) has for invertible θ: along a run a fixed rank gives
    a continuous curve, whereas a rank decided anew at every step jumps near the tolerance.
    """
    sigma_P, sigma_H = (_spectra(tasks, theta) for tasks in (problems.pretrain, problems.harmful))
    mean_square = (sigma_H**2).sum(dim=1) / _kept(problems.harmful, sigma_H)
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


def _kept(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return k, the number of values of each spectrum before the zeros of the padding."""
    return tasks.ranks.cpu().clamp_max(sigma.shape[1])


def _smallest(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return σ_k of each spectrum."""
    return sigma.gather(1, (_kept(tasks, sigma) - 1)[:, None]).squeeze(1)


def _kappa(tasks: TaskBatch, sigma: Tensor) -> Tensor:
    """Return σ₁/σ_k, infinite where σ_k is exactly zero or the features overflow."""
    smallest = _smallest(tasks, sigma)
    usable = torch.isfinite(sigma).all(dim=1) & (smallest > 0)
    return torch.where(usable, sigma[:, 0] / smallest, torch.inf)


# How many problems fit on a device at once.


#: Share of the free memory that a batch may take; the rest is for what the libraries allocate.
_SHARE = 0.8
#: Matrices of the size of θ that a descent holds: θ, its copy, gradient, two moments of Adam, two
#: Hessians, their sum, and as many again for what lives inside a step (IMMA's graph, norms).
_SQUARES = 16
#: Budget on a CPU, where nobody says what is free: as a sweep's workers take.
_CPU_BYTES = 2 * 2**30


def problem_bytes(problem: ImmunizationProblem) -> int:
    """Estimate the memory that one more problem takes in a batch.

    Examples:
        >>> problem_bytes(ImmunizationProblem.from_covariances([[2.0]], [[1.0]]))
        456
    """
    D = problem.dimension
    numbers = _SQUARES * D**2 + 32 * D  # and the basis of Lanczos
    for task in (problem.pretrain, problem.harmful):
        r = task.rank
        rows = 0 if task.supervised_rows is None else task.supervised_rows.shape[0]
        numbers += 2 * r * D + rows * D
    numbers += 4 * r**2 + r * D  # the inverse of the harmful task's dual Gram matrix
    return 8 * numbers


def free_bytes(device: torch.device) -> int:
    """Return the memory that a batch may take on a device."""
    if device.type != "cuda":
        return _CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_SHARE * (free + reusable))


def batch_size(problem: ImmunizationProblem, device: torch.device, memory_bytes: int | None = None) -> int:
    """Return how many problems like this one fit on a device at once.

    Examples:
        >>> problem = ImmunizationProblem.from_covariances([[2.0]], [[1.0]])
        >>> batch_size(problem, torch.device("cpu"), memory_bytes=1000)
        2
    """
    available = free_bytes(device) if memory_bytes is None else memory_bytes
    return max(1, available // problem_bytes(problem))
