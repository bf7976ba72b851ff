"""Batches of transformed images, the same for any number of workers and without the global seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from condnum.deep.image_data import ImageData, Unreadable
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError


class ImageBatch(NamedTuple):
    """The readable images of one batch; all four are empty-handed together when none decodes."""

    images: Tensor  # (B, 3, height, width) float32
    labels: Tensor  # (B,) int64
    indices: Tensor  # (B,) int64, positions in the `ImageData`
    unreadable: list[Unreadable]  # those that were left out


class TransformedImages(Dataset[tuple[Tensor, int, int] | Unreadable]):
    """`ImageData` through a transform, by index.

    A random transform draws from a stream of its own for each (seed, epoch, index): an image's
    augmentation depends neither on the number of workers nor on what ran before, so that a resumed
    training sees the same pixels.
    """

    def __init__(self, data: ImageData, transform: ImageTransform, *, seed: int = 0) -> None:
        self.data = data
        self.transform = transform
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.data)

    def set_epoch(self, epoch: int) -> None:
        """Choose the augmentations of an epoch; call it before the loader is iterated."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, int, int] | Unreadable:
        """Return (tensor, label, index), or the record of an image that does not decode."""
        image = self.data.image(index)
        if isinstance(image, Unreadable):
            return image
        if not self.transform.random:
            return self.transform(image), int(self.data.labels[index]), index
        with _random_stream(self.seed, self.epoch, index):
            return self.transform(image), int(self.data.labels[index]), index


def collate(items: list[tuple[Tensor, int, int] | Unreadable]) -> ImageBatch:
    """Stack what is readable and list the rest."""
    good = [item for item in items if not isinstance(item, Unreadable)]
    images = torch.stack([item[0] for item in good]) if good else torch.empty(0)
    labels, indices = (torch.tensor([item[k] for item in good], dtype=torch.int64) for k in (1, 2))
    return ImageBatch(images, labels, indices, [item for item in items if isinstance(item, Unreadable)])


def image_loader(
    data: ImageData,
    transform: ImageTransform,
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    workers: int = 0,
    drop_last: bool = False,
    pin_memory: bool = False,
) -> DataLoader[tuple[Tensor, int, int] | Unreadable]:
    """Return a loader of `ImageBatch`es; images that do not decode are left out and listed.

    Args:
        data: The images.
        transform: From an RGB image to a tensor.
        batch_size: Images of a batch, broken ones counted.
        shuffle: Draw a new order for each pass, from a local generator.
        seed: Of the order and of random transforms.
        workers: Processes that decode; 0: this one. They start anew for each pass, so that
            `loader.dataset.set_epoch` reaches them.
        drop_last: Leave out a last, smaller batch.
        pin_memory: Page-locked memory, for copies to a GPU.

    Returns:
        The loader.

    Raises:
        InvalidInputError: Bad `batch_size` or `workers`.

    Examples:
        >>> from condnum.deep import evaluation_transform, open_images
        >>> data = open_images("digits-8x8:0-1", "test")
        >>> loader = image_loader(data, evaluation_transform(input_size=16), batch_size=8)
        >>> next(iter(loader)).images.shape
        torch.Size([8, 3, 16, 16])
    """
    for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
    return DataLoader(
        TransformedImages(data, transform, seed=seed),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=workers,
        collate_fn=collate,
        drop_last=drop_last,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(seed),
    )


@contextmanager
def _random_stream(*key: int) -> Generator[None]:
    """Seed what timm and torchvision draw from, and put the process's own state back afterwards."""
    value = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big") >> 1
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    try:
        random.seed(value)
        torch.default_generator.manual_seed(value)  # the CPU's alone: torch.manual_seed reaches the GPU too
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
