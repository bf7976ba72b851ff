"""Mini-batches as the release pairs them: row with row, and the last, smaller batch is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from condnum.problem import ImmunizationProblem
from condnum.tasks import LinearTask


@dataclass(frozen=True)
class PairedBatches(ImmunizationProblem):
    """A problem whose `sample` hands out the next pair of mini-batches, epoch after epoch.

    Tasks of equally many rows are shuffled together, once an epoch, as the release does. Otherwise each is
    shuffled by itself, the epoch ends with the longer one and the shorter one repeats its batches, as the
    release does for images. A last batch that is not full is dropped. One object serves one run.
    """

    _epochs: list[Iterator[tuple[Tensor, Tensor, Tensor]]] = field(
        default_factory=list, repr=False, compare=False
    )

    @classmethod
    def of(cls, problem: ImmunizationProblem) -> PairedBatches:
        """Return the same tasks, to be read in paired batches from the start."""
        return cls(problem.pretrain, problem.harmful)

    def sample(self, size: int, generator: torch.Generator) -> ImmunizationProblem:
        """Return the next pair of batches."""
        if not self._epochs:
            self._epochs.append(self._endless(size, generator))
        pretrain, harmful, loss = next(self._epochs[0])
        return ImmunizationProblem(_on(self.pretrain, pretrain, loss), _on(self.harmful, harmful, None))

    def _endless(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the rows of D_P, of D_H and of the loss, batch by batch."""
        counts = [_rows(self.pretrain), _rows(self.harmful)]
        if self.pretrain.loss_features is not None:
            counts.append(len(self.pretrain.loss_features))
        while True:
            shuffled = _shuffled(counts, size, generator)
            for index in range(max(len(batches) for batches in shuffled[:2])):
                chosen = [batches[index % len(batches)] for batches in shuffled]
                yield chosen[0], chosen[1], chosen[-1] if len(chosen) == 3 else chosen[0]


def updates_per_epoch(pretrain_rows: int, harmful_rows: int, size: int) -> int:
    """Return how many pairs of batches an epoch has.

    Examples:
        >>> updates_per_epoch(200, 200, 64)
        3
    """
    return max(1, max(pretrain_rows, harmful_rows) // size)


def _shuffled(counts: list[int], size: int, generator: torch.Generator) -> list[tuple[Tensor, ...]]:
    """Return the batches of an epoch for each number of rows; equal numbers have the same order."""
    orders = {count: torch.randperm(count, generator=generator) for count in dict.fromkeys(counts)}
    full = {count: max(size, count - count % size) for count in orders}
    return [orders[count][: full[count]].split(size) for count in counts]


def _rows(task: LinearTask) -> int:
    """Return the number of rows of a task."""
    assert task.features is not None  # tasks of this experiment always have rows
    return len(task.features)


def _on(task: LinearTask, chosen: Tensor, loss: Tensor | None) -> LinearTask:
    """Return a task on some of its rows; `loss` chooses those of its loss."""
    assert task.features is not None
    X, targets, loss_features = task.features[chosen], task.targets, None
    if loss is None:
        targets = None
    elif targets is not None:
        targets = targets[loss]
        loss_features = None if task.loss_features is None else task.loss_features[loss]
    return LinearTask(X.mT @ X, X, targets, task.loss, loss_features)
