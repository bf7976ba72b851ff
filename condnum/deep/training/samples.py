"""The samples of a task, as what a training step starts from: images, or the frozen trunk's activations.

Which of them a step sees is a function of the seed and the step alone, so that a run can be resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from condnum.deep.backbone import Backbone
from condnum.deep.features import collect
from condnum.deep.images import ImageData, TransformedImages, Unreadable, check_unreadable, collate
from condnum.deep.training.processes import Processes
from condnum.deep.training.settings import TrainingPrecision
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError
from condnum.machine import memory_advice

#: Activations of a task that are kept take at most this many bytes; larger ones are computed again each time.
ACTIVATION_BUDGET = 2 << 30


class Batch(NamedTuple):
    """What goes through the net at a time; empty where no image of a batch decodes."""

    inputs: Tensor  # (n, …)
    labels: Tensor  # (n,) int64


class ImageSamples:
    """Images that are decoded, augmented and run through the whole net each time."""

    def __init__(self, data: ImageData, transform: ImageTransform, *, seed: int, workers: int) -> None:
        self.data = data
        self.images = TransformedImages(data, transform, seed=seed)
        self.workers = workers
        self.labels = torch.from_numpy(np.array(data.labels))
        self._unreadable: dict[str, Unreadable] = {}

    def __len__(self) -> int:
        return len(self.data)

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """Images that were met and do not decode."""
        return tuple(self._unreadable.values())

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield the images of each entry of `rows` that decode, with the augmentations of an epoch."""
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
                check_unreadable(self.unreadable, len(self.data), self.data.title)
            yield Batch(batch.images, batch.labels)

    def features(self, backbone: Backbone, inputs: Tensor) -> Tensor:
        """Return the features `(n, D)` of a batch's inputs, differentiable in θ."""
        features: Tensor = backbone(inputs)
        return features


class ActivationSamples:
    """Activations of the frozen trunk, which never change: only what is trained is run again."""

    def __init__(self, values: Tensor, labels: Tensor, unreadable: tuple[Unreadable, ...] = ()) -> None:
        self.values = values  # (views, N, …)
        self.labels = labels  # (N,)
        self.unreadable = unreadable

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield activations; after V epochs their augmentations come again."""
        values = self.values[epoch % len(self.values)]
        for part in rows:
            chosen = torch.from_numpy(part).to(values.device)
            yield Batch(values[chosen], self.labels[chosen])

    def features(self, backbone: Backbone, inputs: Tensor) -> Tensor:
        """Return the features `(n, D)` of a batch's inputs, differentiable in θ."""
        return backbone.features_from(inputs)


Samples: TypeAlias = ImageSamples | ActivationSamples


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
) -> Samples:
    """Return a task's samples: activations where they fit the budget, else images."""
    images = ImageSamples(data, transform, seed=seed, workers=workers)
    passes = views if transform.random else 1
    what = f"activations of {data.title}"

    def activations(batch: Tensor) -> Tensor:
        with memory_advice(batch_size, device, what), autocast(device, precision):
            return backbone.frozen_activations(as_input(batch, device, precision))

    items = (images.images[index] for index in range(len(data) if passes else 0))
    first = next((item[0] for item in items if not isinstance(item, Unreadable)), None)
    if first is None:
        return images
    try:
        one = activations(first[None])[0]
    except InvalidInputError:
        return images  # what follows the trunk is no chain of modules
    passes = min(passes, budget // (one.numel() * one.element_size() * len(data)))
    if not passes:
        return images
    values = one.new_empty(passes, len(data), *one.shape, device="cpu")
    loader: DataLoader[Any] = DataLoader(images.images, batch_size, num_workers=workers, collate_fn=collate)
    for epoch, view in enumerate(values):
        images.images.set_epoch(epoch)
        kept = collect(activations, loader, what, view, done=epoch * len(data), total=passes * len(data))
        check_unreadable(kept.unreadable, len(data), data.title)
    return ActivationSamples(values[:, : len(kept.labels)], kept.labels, tuple(kept.unreadable))


@dataclass(frozen=True)
class TaskStream:
    """A task's samples in the order of the run: a new permutation each epoch, cut into steps and batches.

    A rest that fills no step is left out of its epoch, as `drop_last` does; a task that is smaller than
    a step gives all its samples. With several processes each takes every `size`-th sample of a batch, so
    that together they see what one process would.
    """

    samples: Samples
    rows: NDArray[np.int64]  # (count,) the samples to train on
    batch_size: int
    accumulate: int  # batches of a step
    seed: int
    stream: int  # number of the task

    @property
    def step_size(self) -> int:
        """Samples of a step."""
        return min(self.batch_size * self.accumulate, len(self.rows))

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a pass."""
        return len(self.rows) // self.step_size

    def steps(self, first: int, processes: Processes) -> Iterator[list[Batch]]:
        """Yield this process's batches of each step from `first` on, without end: the task cycles."""
        epoch, offset = divmod(first, self.steps_per_epoch)
        while True:
            order = np.random.default_rng([self.seed, self.stream, epoch]).permutation(len(self.rows))
            parts = []
            for step in range(offset, self.steps_per_epoch):
                chosen = self.rows[order[step * self.step_size : (step + 1) * self.step_size]]
                for start in range(0, self.step_size, self.batch_size):
                    parts.append(chosen[start : start + self.batch_size][processes.rank :: processes.size])
            size = -(-self.step_size // self.batch_size)
            batches = self.samples.batches(epoch, parts)
            for _ in range(offset, self.steps_per_epoch):
                yield [next(batches) for _ in range(size)]
            epoch, offset = epoch + 1, 0


def features_of(
    samples: Samples,
    backbone: Backbone,
    inputs: Tensor,
    device: torch.device,
    precision: TrainingPrecision,
) -> Tensor:
    """Return the features `(n, D)` of a batch's inputs in the precision of a run, float32 at least."""
    with autocast(device, precision):
        features = samples.features(backbone, as_input(inputs, device, precision))
    return features.float() if features.dtype == torch.bfloat16 else features


def as_input(inputs: Tensor, device: torch.device, precision: TrainingPrecision) -> Tensor:
    """Move a batch's inputs to the device, in the type that the net has."""
    return inputs.to(device, torch.float64 if precision == "float64" else inputs.dtype, non_blocking=True)


def autocast(device: torch.device, precision: TrainingPrecision) -> Any:
    """Return the context in which the net runs."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
