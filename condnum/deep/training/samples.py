"""The samples of a task, as what a training step starts from: images, or the frozen trunk's activations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from condnum.deep.backbone import Backbone
from condnum.deep.images import ImageData, TransformedImages, Unreadable, check_unreadable, collate
from condnum.deep.training.ranks import Ranks
from condnum.deep.training.settings import TrainingPrecision
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError
from condnum.machine import memory_advice
from condnum.progress import report_event

# Which samples a step sees: a function of the seed and the step alone, so that a run can be resumed.


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


#: Activations of a task that are kept take at most this many bytes; larger ones are computed again each time.
ACTIVATION_BUDGET = 2 << 30


class Batch(NamedTuple):
    """What goes through the net at a time; empty where no image of a batch decodes."""

    inputs: Tensor  # (n, …)
    labels: Tensor  # (n,) int64


class Samples(Protocol):
    """The samples of a task."""

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Images that were met and do not decode."""

    @property
    def labels(self) -> Tensor:
        """Labels of all samples `(N,)`."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield the samples of each entry of `rows`, with the augmentations of an epoch."""

    def features(self, backbone: Backbone, inputs: Tensor) -> Tensor:
        """Return the features `(n, D)` of a batch's inputs, differentiable in θ."""


class ImageSamples:
    """Images that are decoded, augmented and run through the whole net each time."""

    def __init__(self, data: ImageData, transform: ImageTransform, *, seed: int, workers: int) -> None:
        self.data = data
        self.images = TransformedImages(data, transform, seed=seed)
        self.workers = workers
        self._unreadable: dict[str, Unreadable] = {str(image): image for image in data.unreadable}

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Images that were met and do not decode."""
        return tuple(self._unreadable.values())

    @property
    def labels(self) -> Tensor:
        """Labels of all images."""
        return torch.from_numpy(np.array(self.data.labels))

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.data)

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield transformed images, without those that do not decode."""
        self.images.set_epoch(epoch)
        loader: DataLoader[Any] = DataLoader(
            self.images,
            batch_sampler=[part.tolist() for part in rows],
            num_workers=self.workers,
            collate_fn=collate,
        )
        for batch in loader:
            if batch.unreadable:
                self._unreadable |= {str(image): image for image in batch.unreadable}
                check_unreadable(self.unreadable, len(self.data), f"{self.data.name} ({self.data.split})")
            yield Batch(batch.images, batch.labels)

    def features(self, backbone: Backbone, inputs: Tensor) -> Tensor:
        """Return the features of images."""
        features: Tensor = backbone(inputs)
        return features


class ActivationSamples:
    """Activations of the frozen trunk, which never change: only what is trained is run again."""

    def __init__(self, values: Tensor, labels: Tensor, unreadable: tuple[Unreadable, ...] = ()) -> None:
        self.values = values
        self.labels = labels
        self.unreadable = unreadable

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield activations; after V epochs their augmentations come again."""
        values = self.values[epoch % len(self.values)]
        for part in rows:
            chosen = torch.from_numpy(part).to(values.device)
            yield Batch(values[chosen], self.labels[chosen])

    def features(self, backbone: Backbone, inputs: Tensor) -> Tensor:
        """Return the features of activations."""
        return backbone.features_from(inputs)


@dataclass(frozen=True)
class TaskStream:
    """A task's samples in the order of the run."""

    samples: Samples
    rows: NDArray[np.int64]  # (count,) the samples to train on
    order: BatchOrder

    def steps(self, first: int, ranks: Ranks) -> Iterator[list[Batch]]:
        """Yield this rank's batches of each step, without end: the task cycles."""
        step = first
        while True:
            rows = [self.rows[part] for part in self.order.batches(step, ranks.rank, ranks.size)]
            waiting: list[Batch] = []
            for batch in self.samples.batches(self.order.epoch(step), rows):
                waiting.append(batch)
                if len(waiting) == self.order.batches_per_step:
                    yield waiting
                    waiting = []
                    step += 1


def task_samples(
    backbone: Backbone,
    data: ImageData,
    transform: ImageTransform,
    *,
    seed: int,
    workers: int,
    batch_size: int,
    device: torch.device,
    precision: TrainingPrecision,
    views: int = 0,
    budget: int = ACTIVATION_BUDGET,
) -> ImageSamples | ActivationSamples:
    """Return a task's samples: activations where they fit the budget, else images."""
    images = ImageSamples(data, transform, seed=seed, workers=workers)
    passes = views if transform.random else 1
    values: Tensor | None = None
    what = f"activations of {data.name} ({data.split})"
    epoch = 0
    while epoch < passes:
        labels, unreadable, done = [], list(data.unreadable), 0
        images.images.set_epoch(epoch)
        for batch in DataLoader(images.images, batch_size, num_workers=workers, collate_fn=collate):
            unreadable += batch.unreadable
            if not len(batch.labels):
                continue
            with memory_advice(batch_size, device, what), autocast(device, precision):
                try:
                    rows = backbone.frozen_activations(as_input(batch.images, device, precision))
                except InvalidInputError:
                    return images  # what follows the trunk is no chain of modules
            if values is None:
                passes = min(passes, budget // (rows[0].numel() * rows.element_size() * len(data)))
                if not passes:
                    return images
                values = rows.new_empty(passes, len(data), *rows.shape[1:], device="cpu")
            values[epoch, done : done + len(rows)] = rows.cpu()
            labels.append(batch.labels)
            done += len(rows)
            report_event(stage=what, done=epoch * len(data) + done, total=passes * len(data))
        check_unreadable(unreadable, len(data) + len(data.unreadable), f"{data.name} ({data.split})")
        epoch += 1
    if values is None:  # no views are wanted, for `check_unreadable` refuses a set of which nothing decodes
        return images
    return ActivationSamples(values[:, :done], torch.cat(labels), tuple(unreadable))


def as_input(inputs: Tensor, device: torch.device, precision: TrainingPrecision) -> Tensor:
    """Move a batch's inputs to the device, in the type that the net has."""
    if precision == "float64":
        return inputs.to(device, torch.float64, non_blocking=True)
    return inputs.to(device, non_blocking=True)


def autocast(device: torch.device, precision: TrainingPrecision) -> Any:
    """Return the context in which the net runs."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
