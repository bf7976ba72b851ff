"""Labeled images of a folder, an array or a torch data set, and batches of them as tensors.

Batches are the same for any number of workers and leave the global seed alone.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from condnum.data.task_pair import sha256_arrays
from condnum.deep.transforms import ImageTransform, to_rgb
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    check_integer,
    require,
)
from condnum.files import sha256_file

if TYPE_CHECKING:
    from PIL.Image import Image

#: A checksum reads the sizes of all files, and the bytes of the first ones up to this total.
READ_BYTES = 1 << 30
_THREADS = 8  # hashing and reading release the interpreter lock

#: A set with a larger fraction of undecodable images is taken for a broken copy, not for a few bad files.
UNREADABLE_SHARE = 0.1


@dataclass(frozen=True)
class FileImages:
    """Image files below one folder."""

    root: Path
    files: tuple[str, ...]  # (N,) relative paths with forward slashes

    def name(self, index: int) -> str:
        """Return what a message calls an image: its path."""
        return str(self.root / self.files[index])

    def load(self, index: int) -> Image:
        """Decode an image, in its own mode; raises what the decoder raises."""
        with require("PIL.Image", "deep").open(self.root / self.files[index]) as image:
            image.load()
            return image

    def checksum(self, indices: Sequence[int]) -> str:
        """Return the SHA-256 of the files' names and sizes, and of the bytes of the first 1 GiB of them.

        The first are those whose names hash lowest, of all classes: more would take minutes, so that a change
        of another one that keeps its size goes unnoticed.
        """
        names = [self.files[i] for i in indices]
        names.sort(key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
        digest = hashlib.sha256()
        with ThreadPoolExecutor(_THREADS) as pool:
            try:
                sizes = list(pool.map(lambda name: (self.root / name).stat().st_size, names))
            except OSError as error:
                raise DataNotFoundError(
                    f"cannot read {error.filename}: {error.strerror}; check whether the folder was changed."
                ) from error
            read = [name for name, total in zip(names, accumulate(sizes), strict=True) if total <= READ_BYTES]
            sums = dict(zip(read, pool.map(lambda name: sha256_file(self.root / name), read), strict=True))
            for name, size in zip(names, sizes, strict=True):
                digest.update(os.fsencode(f"{name}\0{size}\0{sums.get(name, '')}\n"))
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class ItemImages:
    """Images of an array or a data set, by position: arrays `(h, w)` or `(h, w, 3)`, PIL images, tensors."""

    items: Any
    title: str

    def name(self, index: int) -> str:
        """Return what a message calls an image."""
        return f"{self.title}[{index}]"

    def load(self, index: int) -> Image | Tensor:
        """Return one image; tensors are what a net takes already."""
        item = self.items[index]
        return require("PIL.Image", "deep").fromarray(item) if isinstance(item, np.ndarray) else item

    def checksum(self, indices: Sequence[int]) -> str:
        """Return the SHA-256 of the chosen images."""
        digest = hashlib.sha256()
        for index in indices:
            digest.update(sha256_arrays(image=np.asarray(self.items[index])).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Unreadable:
    """An image that does not decode."""

    name: str  # path, or position in its data set
    reason: str  # what the decoder said

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True, eq=False)
class ImageData:
    """Labeled images that decode when they are asked for.

    Raises:
        DataFormatError: No images, or labels outside 0 … C−1.
        InvalidInputError: All images are of one class.
    """

    name: str  # what was opened, "mnist:0-4" or a folder
    split: str  # "train", "test" or a folder's name
    classes: tuple[str, ...]  # C names; label c is classes[c]
    labels: NDArray[np.int64]  # (N,) in 0 … C−1, read-only
    source: FileImages | ItemImages  # where the images are
    positions: NDArray[np.int64]  # (N,) in the source, read-only
    origin: str = ""  # data set, images and place in words, where the name says less; for titles
    warnings: tuple[str, ...] = ()  # files of the folder that are not read as images

    def __post_init__(self) -> None:
        labels = np.array(self.labels, dtype=np.int64)
        positions = np.array(self.positions, dtype=np.int64)
        if labels.ndim != 1 or labels.shape != positions.shape or not labels.size:
            raise DataFormatError(
                f"{self.title}: needs at least one image and a label for each, got "
                f"{positions.size} image(s) and {labels.size} label(s)."
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if wrong.size:
            raise DataFormatError(
                f"{self.title}: labels are 0 to {len(self.classes) - 1}; {wrong.size} are out of range, the "
                f"first is {labels[wrong[0]]} of {self.source.name(int(positions[wrong[0]]))}; drop them."
            )
        if np.all(labels == labels[0]):
            raise InvalidInputError(
                f"{self.title} holds one class only, '{self.classes[labels[0]]}' ({len(labels)} images); "
                "give the folder that holds the class sub-folders."
            )
        for name, array in (("labels", labels), ("positions", positions)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    @property
    def title(self) -> str:
        """Name and split, for messages."""
        return f"{self.name} ({self.split})"

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each class, `(C,)`."""
        return tuple(np.bincount(self.labels, minlength=len(self.classes)).tolist())

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the images in use, their order and their labels; see `FileImages.checksum`."""
        pixels = self.source.checksum(self.positions.tolist())
        order = sha256_arrays(positions=self.positions, labels=self.labels)
        return hashlib.sha256(f"{pixels}\n{order}\n{len(self.classes)}\n".encode()).hexdigest()

    @cached_property
    def tensors(self) -> bool:
        """Whether the images are tensors as a net takes them, which no transform changes."""
        return isinstance(self.image(0), Tensor)

    def image(self, index: int) -> Image | Tensor | Unreadable:
        """Decode an image to RGB, or say why there is none: a broken file must not end an hour's work."""
        position = int(self.positions[index])
        try:
            image = self.source.load(position)
            return image if isinstance(image, Tensor) else to_rgb(image)
        except CondnumError:
            raise
        except Exception as error:  # a decoder meets damage of every kind, and raises accordingly
            return Unreadable(self.source.name(position), f"{type(error).__name__}: {error}")

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> ImageData:
        """Return the images at these indices `(n,)`, in this order, with the same classes."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, labels=self.labels[chosen], positions=self.positions[chosen])

    def limit(self, per_class: int | None, *, seed: int = 0) -> ImageData:
        """Return at most `per_class` images of each class (None: all), the same ones on every machine.

        A smaller limit gives a subset of a larger one's images; the order stays.
        """
        if per_class is None:
            return self
        check_integer("the limit per class", per_class, 1)
        return self.take(rows_per_class(self.labels, per_class, seed))


def rows_per_class(labels: NDArray[np.int64], count: int | None, seed: int) -> NDArray[np.int64]:
    """Return at most so many rows of each class (None: all), ascending; fewer are a subset of more."""
    drawn = [
        np.random.default_rng([seed, c]).permutation(np.flatnonzero(labels == c))[:count]
        for c in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn))


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
