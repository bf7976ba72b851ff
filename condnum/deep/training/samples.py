"""The samples of a task, as what a training step starts from: images, or the frozen trunk's activations.

Which of them a step sees is a function of the seed and the step alone, so that a run can be resumed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from condnum.deep.backbone import Backbone
from condnum.deep.features import collect
from condnum.deep.images import (
    ImageData,
    TransformedImages,
    Unreadable,
    check_unreadable,
    collate,
    hold_out_rows,
    minibatches,
)
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError
from condnum.machine import memory_advice

#: Activations of a task that are kept take at most this many bytes; larger ones are computed again each time.
ACTIVATION_BUDGET = 2 << 30
#: Images of a task that are held out: enough to know an accuracy to two points …
_HELD_OUT_IMAGES = 500
#: … but a fraction of the task between these.
_HELD_OUT_FRACTIONS = (0.1, 0.2)


def hold_out(labels: Tensor | NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into those to train on and a part of each class to judge on.

    Examples:
        >>> rest, held = hold_out(torch.tensor([0] * 20 + [1] * 10), seed=0)
        >>> len(rest), len(held)
        (24, 6)
    """
    known = np.asarray(labels)
    fraction = float(np.clip(_HELD_OUT_IMAGES / len(known), *_HELD_OUT_FRACTIONS))
    return hold_out_rows(known, [seed, 2], fraction)


class Batch(NamedTuple):
    """What goes through the net at a time; empty where no image of a batch decodes."""

    inputs: Tensor  # (n, …)
    labels: Tensor  # (n,) int64
    activations: bool = False  # inputs are those of the frozen trunk, no images

    def at(self, backbone: Backbone) -> Tensor:
        """Return the inputs on the device and in the type of the net."""
        return self.inputs.to(next(backbone.parameters()), non_blocking=True)

    def features(self, backbone: Backbone) -> Tensor:
        """Return the features `(n, D)`, differentiable in θ."""
        inputs = self.at(backbone)
        if not len(inputs):
            return inputs.new_zeros(0, backbone.num_features)
        features: Tensor = backbone(inputs, activations=self.activations)
        return features


class Samples:
    """A task's images, run through the whole net each time, or through what follows the frozen trunk."""

    def __init__(self, data: ImageData, transform: ImageTransform | None, *, seed: int, workers: int) -> None:
        self.data = data
        self.images = TransformedImages(data, transform, seed=seed)
        self.workers = workers
        self.labels = torch.from_numpy(np.array(data.labels))  # (N,)
        self.activations: Tensor | None = None  # (N, …)
        self.unreadable: dict[Unreadable, None] = {}  # images that were met and do not decode

    def keep_activations(self, backbone: Backbone, batch_size: int) -> None:
        """Run the frozen trunk once, where no transform is random and its output fits the budget."""
        what, total = f"activations of {self.data.title}", len(self.data)
        device = next(backbone.parameters()).device
        if self.images.transform is not None and self.images.transform.random:
            return

        def run(images: Tensor) -> Tensor:
            with memory_advice(batch_size, device, what):
                return backbone.frozen_activations(Batch(images, images).at(backbone))

        items = (self.images[index] for index in range(total))
        first = next((item[0] for item in items if not isinstance(item, Unreadable)), None)
        try:
            size = math.inf if first is None else run(first[None]).nbytes * total
        except InvalidInputError:
            return  # later modules read the trunk too
        if size <= ACTIVATION_BUDGET:
            found = collect(run, self._loader(batch_size=batch_size), what, total=total)
            self.activations, self.labels, _, unreadable = found
            check_unreadable(unreadable, total, self.data.title)
            self.unreadable = dict.fromkeys(unreadable)

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield what of each entry of `rows` decodes."""
        if self.activations is not None:
            for part in map(torch.from_numpy, rows):
                yield Batch(self.activations[part], self.labels[part], activations=True)
            return
        self.images.set_epoch(epoch)
        for batch in self._loader(batch_sampler=[part.tolist() for part in rows]):
            if batch.unreadable:
                self.unreadable |= dict.fromkeys(batch.unreadable)
                check_unreadable(list(self.unreadable), len(self.data), self.data.title)
            yield Batch(batch.images, batch.labels)

    def _loader(self, **options: Any) -> DataLoader[Any]:
        return DataLoader(self.images, num_workers=self.workers, collate_fn=collate, **options)


@dataclass(frozen=True)
class TaskStream:
    """A task's samples in the order of the run."""

    samples: Samples
    rows: NDArray[np.int64]  # (count,) the samples to train on
    batch_size: int
    seed: int
    stream: int  # number of the task

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a pass."""
        return max(1, len(self.rows) // self.batch_size)

    def steps(self, first: int) -> Iterator[Batch]:
        """Yield the batch of each step from `first` on, without end: the task cycles."""
        for epoch, rows in minibatches(self.rows, self.batch_size, [self.seed, self.stream], first):
            yield from self.samples.batches(epoch, rows)
