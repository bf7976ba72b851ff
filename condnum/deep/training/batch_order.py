"""Which samples a step sees: a function of the seed and the step alone, so that a run can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BatchOrder:
    """The order of one task: a new permutation each epoch, cut into steps, and steps into batches.

    A rest that fills no step is left out of its epoch, as `drop_last` does; a task that is smaller than
    a step gives all its samples. With several ranks each takes every `size`-th sample of a batch, so that
    together they see what one process would.
    """

    count: int
    batch_size: int
    accumulate: int
    seed: int
    stream: int

    @property
    def step_size(self) -> int:
        """Samples of a step."""
        return min(self.batch_size * self.accumulate, self.count)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a pass."""
        return self.count // self.step_size

    @property
    def batches_per_step(self) -> int:
        """Batches of a step."""
        return -(-self.step_size // self.batch_size)

    def epoch(self, step: int) -> int:
        """Return the pass in which a step lies."""
        return step // self.steps_per_epoch

    def batches(self, first: int, rank: int = 0, size: int = 1) -> Iterator[NDArray[np.int64]]:
        """Yield this rank's part of each batch, from a step to the end of its epoch.

        Examples:
            >>> order = BatchOrder(count=5, batch_size=2, accumulate=1, seed=0, stream=0)
            >>> order.steps_per_epoch, sorted(np.concatenate(list(order.batches(0))).tolist())
            (2, [0, 2, 3, 4])
        """
        epoch, offset = divmod(first, self.steps_per_epoch)
        permutation = np.random.default_rng([self.seed, self.stream, epoch]).permutation(self.count)
        for step in range(offset, self.steps_per_epoch):
            rows = permutation[step * self.step_size : (step + 1) * self.step_size]
            for start in range(0, self.step_size, self.batch_size):
                yield rows[start : start + self.batch_size][rank::size]
