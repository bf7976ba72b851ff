"""Many problems of one dimension in a few tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from condnum.errors import InvalidInputError
from condnum.methods.batched.losses import LossBatch, stack_losses
from condnum.methods.batched.padding import stack_padded
from condnum.problem import ImmunizationProblem
from condnum.spectra import covariance_factor
from condnum.tasks import LinearTask


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
