"""The samples of a task, as what a training step starts from: images, or the frozen trunk's activations.

Which of them a step sees is a function of the seed and the step alone, so that a run can be resumed.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from condnum.data.images import ImageData, Unreadable
from condnum.deep.backbone import Backbone, evaluating
from condnum.deep.features import ImageFeatures
from condnum.deep.images import (
    TransformedImages,
    check_unreadable,
    collate,
    hold_out_rows,
    minibatches,
)
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError
from condnum.files import output_folder
from condnum.machine import memory_advice
from condnum.progress import duration, report_event

#: Activations of a task take at most this many bytes of memory, or half of what a folder's disk has left;
#: larger ones are computed again each time.
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
        self.activations: NDArray[Any] | None = None  # (N, …), of the rows that are done
        self.done = np.zeros(0, dtype=bool)  # (N,)
        self.unreadable: dict[Unreadable, None] = {}  # images that were met and do not decode

    def keep_activations(
        self,
        backbone: Backbone,
        batch_size: int,
        folder: Path | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Run the frozen trunk once on some rows, or on all, if no transform is random and there is room.

        In a folder each batch is written as it comes, so that neither a stopped run nor another net on the
        same trunk repeats a pass.
        """
        transform, device = self.images.transform, next(backbone.parameters()).device
        if transform is not None and transform.random:
            return
        what, total = f"activations of {self.data.title}", len(self.data)

        def run(images: Tensor) -> Tensor:
            with memory_advice(batch_size, device, what):
                return backbone.frozen_activations(Batch(images, images).at(backbone)).cpu()

        items = (self.images[index] for index in range(total))
        first = next((item[0] for item in items if not isinstance(item, Unreadable)), None)
        try:
            example = None if first is None else run(first[None])[0]
        except InvalidInputError:
            return  # later modules read the trunk too
        if folder is not None:
            output_folder(folder)
        room = ACTIVATION_BUDGET if folder is None else shutil.disk_usage(folder).free // 2
        if example is None:
            return
        size = example.nbytes * total
        if size > room:
            return
        part = [backbone.trunk_checksum, self.data.checksum, transform and transform.description]
        key = hashlib.sha256(json.dumps(part).encode()).hexdigest()[:16]
        name = None if folder is None else folder / key
        self.activations = _array(name, "rows", (total, *example.shape), example.numpy().dtype)
        self.done = done = _array(name, "done", (total,), np.dtype(bool))
        wanted = np.arange(total) if rows is None else rows
        todo = wanted[~done[wanted]]
        chunks = [todo[k : k + batch_size].tolist() for k in range(0, len(todo), batch_size)]
        count, started = 0, time.perf_counter()
        for chunk, batch in zip(chunks, self._loader(batch_sampler=chunks), strict=True):
            self.unreadable |= dict.fromkeys(batch.unreadable)
            if len(batch.labels):
                read = batch.indices.numpy()
                self.activations[read] = run(batch.images).numpy()
                done[read] = True
            count += len(chunk)
            pace = count / (time.perf_counter() - started)
            left = duration((len(todo) - count) / pace)
            stage = f"{what}, {pace:.0f} images/s, {left} left, {size / 1e6:,.0f} MB"
            report_event(stage=stage, step=count, steps=len(todo))
        check_unreadable(list(self.unreadable), total, self.data.title)

    def features(self, backbone: Backbone, size: int, rows: NDArray[np.int64] | None = None) -> ImageFeatures:
        """Return the features of some rows, or of all, in evaluation mode and without gradients."""
        chosen = np.arange(len(self.labels)) if rows is None else rows
        found, labels = [], []
        with evaluating(backbone), torch.no_grad():
            for batch in self.batches(0, [chosen[k : k + size] for k in range(0, len(chosen), size)]):
                if len(batch.labels):
                    with memory_advice(size, next(backbone.parameters()).device, "features"):
                        found.append(batch.features(backbone).cpu().numpy())
                    labels.append(batch.labels.numpy())
        values = np.concatenate(found)
        unreadable, name = tuple(self.unreadable), self.data.title
        return ImageFeatures(
            values, np.concatenate(labels), np.arange(len(values)), self.data.classes, unreadable, name
        )

    def batches(self, epoch: int, rows: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """Yield what of each entry of `rows` decodes."""
        if self.activations is not None:
            for part in rows:
                kept = part[self.done[part]]
                inputs = torch.from_numpy(np.array(self.activations[kept]))
                yield Batch(inputs, self.labels[torch.from_numpy(kept)], activations=True)
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


def _array(name: Path | None, part: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the array of a file, zero where it was never written; without a name one in memory."""
    if name is None:
        return np.zeros(shape, dtype)
    file = name.with_name(f"{name.name}.{part}.npy")
    with suppress(OSError, ValueError, EOFError):  # not there, or cut off as it was made
        known = np.load(file, mmap_mode="r+", allow_pickle=False)
        if known.shape == shape and known.dtype == dtype:
            return known
    return np.lib.format.open_memmap(file, "w+", dtype, shape)
