"""Batches of images as tensors, and of rows; the same for any number of workers and any global seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from condnum.data.images import ImageData, Unreadable
from condnum.deep.transforms import ImageTransform
from condnum.errors import DataFormatError, InvalidInputError

#: A set with a larger fraction of undecodable images is taken for a broken copy, not for a few bad files.
UNREADABLE_SHARE = 0.1


def hold_out_rows(
    labels: NDArray[np.int64], stream: Sequence[int], fraction: float = 0.2
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into the rest and a fraction of each class, at least one of two; both ascending."""
    generator = np.random.default_rng(stream)
    held = []
    for c in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == c))
        held.append(own[: max(1, round(fraction * len(own))) if len(own) > 1 else 0])
    out = np.sort(np.concatenate(held))
    if not out.size:
        raise InvalidInputError("no class has two examples, so none can be held out; add images.")
    return np.setdiff1d(np.arange(len(labels)), out), out


def minibatches(
    rows: NDArray[np.int64], size: int, key: Sequence[int], first: int = 0
) -> Iterator[tuple[int, list[NDArray[np.int64]]]]:
    """Yield each epoch and its batches, of a new permutation, from step `first` on; a rest is left out.

    Examples:
        >>> epoch, batches = next(minibatches(np.arange(7), 3, key=[0], first=3))
        >>> epoch, [len(batch) for batch in batches]
        (1, [3])
    """
    size = min(size, len(rows))
    epoch, offset = divmod(first, len(rows) // size)
    while True:
        order = np.random.default_rng([*key, epoch]).permutation(rows)
        yield epoch, [order[k * size : (k + 1) * size] for k in range(offset, len(rows) // size)]
        epoch, offset = epoch + 1, 0


def check_unreadable(failed: Sequence[Unreadable], total: int, what: str) -> None:
    """Refuse a data set most of which cannot be read, a few broken files being normal."""
    if failed and (len(failed) == total or len(failed) > max(1, UNREADABLE_SHARE * total)):
        raise DataFormatError(
            f"{what}: {len(failed)} of {total} images cannot be decoded, the first: {failed[0]}; download "
            "or convert them again."
        )


class ImageBatch(NamedTuple):
    """The readable images of one batch; all four are empty-handed together when none decodes."""

    images: Tensor  # (B, 3, height, width) float32
    labels: Tensor  # (B,) int64
    indices: Tensor  # (B,) int64, positions in the `ImageData`
    unreadable: list[Unreadable]  # those that were left out


class TransformedImages(Dataset[tuple[Tensor, int, int] | Unreadable]):
    """`ImageData` through a transform, by index.

    A random transform draws from a stream of its own for each (seed, epoch, index), whatever the number of
    workers and whatever ran before: a resumed training sees the same pixels.
    """

    def __init__(self, data: ImageData, transform: ImageTransform | None, *, seed: int = 0) -> None:
        if (transform is None) != data.tensors:
            raise InvalidInputError(
                f"{data.title} needs a transform, such as evaluation_transform(input_size=224)."
                if transform is None
                else f"{data.title} holds tensors, which no transform changes; leave the transform out."
            )
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
        image, label = self.data.image(index), int(self.data.labels[index])
        if isinstance(image, Unreadable):
            return image
        if self.transform is None or isinstance(image, Tensor):
            return image, label, index  # type: ignore[return-value]
        if not self.transform.random:
            return self.transform(image), label, index
        key = repr((self.seed, self.epoch, index)).encode()
        value = int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1
        state = random.getstate()
        with torch.random.fork_rng(devices=[]):  # timm and torchvision draw from both generators
            try:
                random.seed(value)
                torch.default_generator.manual_seed(value)  # the CPU's: torch.manual_seed reaches the GPU too
                return self.transform(image), label, index
            finally:
                random.setstate(state)


def collate(items: list[tuple[Tensor, int, int] | Unreadable]) -> ImageBatch:
    """Stack what is readable and list the rest."""
    good = [item for item in items if not isinstance(item, Unreadable)]
    images = torch.stack([item[0] for item in good]) if good else torch.empty(0)
    labels, indices = (torch.tensor([item[k] for item in good], dtype=torch.int64) for k in (1, 2))
    return ImageBatch(images, labels, indices, [item for item in items if isinstance(item, Unreadable)])


def image_loader(
    data: ImageData,
    transform: ImageTransform | None,
    *,
    batch_size: int,
    seed: int = 0,
    workers: int = 0,
    pin_memory: bool = False,
) -> DataLoader[tuple[Tensor, int, int] | Unreadable]:
    """Load images in `ImageBatch`; images that do not decode are left out and listed.

    The seed is that of random transforms; `workers` are processes that decode, which
    `loader.dataset.set_epoch` reaches.
    """
    return DataLoader(
        TransformedImages(data, transform, seed=seed),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(seed),  # else the global one is drawn from
    )
