"""A labelled set of images: classes, labels, deterministic subsets, a checksum, and the unreadable ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from condnum.data.checksums import sha256_arrays
from condnum.deep.image_sources import ArrayImages, ImageSource, KeptImages, decode_errors
from condnum.errors import DataFormatError, InvalidInputError
from condnum.progress import report_event

if TYPE_CHECKING:
    from PIL.Image import Image

#: A set with a larger share of undecodable images is taken for a broken copy, not for a few bad files.
UNREADABLE_SHARE = 0.1
#: Decoded pixels of a set take at most this many bytes.
DECODED_BUDGET = 1 << 30
#: Images that are decoded between two messages.
_CHUNK = 256


@dataclass(frozen=True)
class Unreadable:
    """An image that does not decode."""

    name: str  # path, or position in its data set
    reason: str  # what the decoder said

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True, eq=False)
class ImageData:
    """Labelled images that decode when they are asked for.

    Attributes:
        name: What was opened, "mnist:0-4" or a folder.
        split: "train", "test" or a folder's name.
        classes: C names; label c is `classes[c]`.
        labels: `(N,)` integers in 0 … C−1, read-only.
        source: Where the images are.
        positions: `(N,)` their positions in the source, read-only.
        unreadable: Images that `readable` has dropped.
        origin: Data set, images and place in words, where the name says less; for titles.

    Raises:
        DataFormatError: No images, or labels outside 0 … C−1.
        InvalidInputError: All images are of one class.
    """

    name: str
    split: str
    classes: tuple[str, ...]
    labels: NDArray[np.int64]  # (N,)
    source: ImageSource
    positions: NDArray[np.int64]  # (N,)
    unreadable: tuple[Unreadable, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        labels = np.array(self.labels, dtype=np.int64)
        positions = np.array(self.positions, dtype=np.int64)
        if labels.ndim != 1 or labels.shape != positions.shape or not labels.size:
            raise DataFormatError(
                f"{self.name} ({self.split}): needs at least one image and a label for each, got "
                f"{positions.size} image(s) and {labels.size} label(s)."
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if wrong.size:
            raise DataFormatError(
                f"{self.name} ({self.split}): labels must be 0 to {len(self.classes) - 1} for "
                f"{len(self.classes)} classes; {wrong.size} are out of range, the first is "
                f"{labels[wrong[0]]} of "
                f"{self.source.name(int(positions[wrong[0]]))}. "
                "Drop unlabelled images or give all classes."
            )
        if np.all(labels == labels[0]):
            raise InvalidInputError(
                f"{self.name} ({self.split}) holds one class only, '{self.classes[labels[0]]}' "
                f"({len(labels)} images); a task needs two or more: give the folder that holds the "
                "class sub-folders."
            )
        for field, array in (("labels", labels), ("positions", positions)):
            array.setflags(write=False)
            object.__setattr__(self, field, array)

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each class, `(C,)`."""
        return tuple(int(n) for n in np.bincount(self.labels, minlength=len(self.classes)))

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the images in use, their order and their labels; see `files_checksum`."""
        pixels = self.source.checksum(self.positions.tolist())
        order = sha256_arrays(positions=self.positions, labels=self.labels)
        return hashlib.sha256(f"{pixels}\n{order}\n{len(self.classes)}\n".encode()).hexdigest()

    def image_name(self, index: int) -> str:
        """Return the path or position of image `index`, for messages."""
        return self.source.name(int(self.positions[index]))

    def image(self, index: int) -> Image | Unreadable:
        """Decode one image.

        Args:
            index: 0 … N−1.

        Returns:
            An RGB image, or why there is none: a broken file must not end an hour's work.
        """
        try:
            return self.source.load(int(self.positions[index])).convert("RGB")
        except decode_errors() as error:
            return Unreadable(self.image_name(index), f"{type(error).__name__}: {error}")

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> ImageData:
        """Return the images at these indices, in this order.

        Args:
            indices: `(n,)` in 0 … N−1.

        Returns:
            A smaller set with the same classes.

        Raises:
            DataFormatError: No indices.
            InvalidInputError: One class is left.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, labels=self.labels[chosen], positions=self.positions[chosen])

    def limit(self, per_class: int | None, *, seed: int = 0) -> ImageData:
        """Return at most `per_class` images of each class, the same ones on every machine.

        Which ones: the first of a permutation per class, drawn by a local generator from `seed`; a
        smaller limit therefore gives a subset of a larger one's images. The order stays.

        Args:
            per_class: Largest count of a class; None keeps all.
            seed: Seed of the permutations.

        Returns:
            A smaller set with the same classes.

        Raises:
            InvalidInputError: `per_class` is not a positive integer.
        """
        if per_class is None:
            return self
        if isinstance(per_class, bool) or not isinstance(per_class, int) or per_class < 1:
            raise InvalidInputError(f"the limit per class must be a positive integer, got {per_class!r}.")
        kept = []
        for c in range(len(self.classes)):
            own = np.flatnonzero(self.labels == c)
            kept.append(np.random.default_rng([seed, c]).permutation(own)[:per_class])
        return self.take(np.sort(np.concatenate(kept)))

    def in_memory(self, budget: int = DECODED_BUDGET) -> ImageData:
        """Decode the images once, by all cores, for a training that goes over them again and again.

        Args:
            budget: Bytes of pixels that may be kept.

        Returns:
            The same images with the same checksum, as many of them decoded as the budget holds.
        """
        if isinstance(self.source, ArrayImages | KeptImages):
            return self
        kept: dict[int, NDArray[np.uint8]] = {}
        left = budget
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(self), _CHUNK):
                rows = range(start, min(start + _CHUNK, len(self)))
                for index, image in zip(rows, pool.map(self.image, rows), strict=True):
                    if not isinstance(image, Unreadable):
                        pixels = np.asarray(image)
                        left -= pixels.nbytes
                        if left < 0:
                            return replace(self, source=KeptImages(self.source, kept))
                        kept[int(self.positions[index])] = pixels
                report_event(stage=f"decoding {self.name}", done=rows.stop, total=len(self))
        return replace(self, source=KeptImages(self.source, kept))

    @property
    def decoded_bytes(self) -> int:
        """Bytes of pixels that `in_memory` keeps."""
        kept = self.source.pixels if isinstance(self.source, KeptImages) else {}
        return sum(pixels.nbytes for pixels in kept.values())

    def readable(self, *, threads: int = 4) -> ImageData:
        """Decode every image once and drop those that fail; `unreadable` lists them.

        A training loop that needs full batches (several processes that gather) calls this first;
        a loader otherwise drops broken images as it meets them.

        Args:
            threads: Decoders at a time.

        Returns:
            The images that decode, with the same classes.

        Raises:
            DataFormatError: More than a tenth does not decode.
        """
        with ThreadPoolExecutor(threads) as pool:
            broken = list(pool.map(self._failure, range(len(self))))
        failed = tuple(failure for failure in broken if failure is not None)
        check_unreadable(failed, len(self), f"{self.name} ({self.split})")
        if not failed:
            return self
        rest = self.take([i for i, failure in enumerate(broken) if failure is None])
        return replace(rest, unreadable=self.unreadable + failed)

    def _failure(self, index: int) -> Unreadable | None:
        """Return why an image does not decode, without keeping its pixels."""
        image = self.image(index)
        return image if isinstance(image, Unreadable) else None


def check_unreadable(failed: Sequence[Unreadable], total: int, what: str) -> None:
    """Refuse a data set most of which cannot be read, a few broken files being normal."""
    if failed and (len(failed) == total or len(failed) > max(1, UNREADABLE_SHARE * total)):
        raise DataFormatError(
            f"{what}: {len(failed)} of {total} images do not decode, the first: {failed[0]}. "
            "The copy seems to be damaged or incomplete; fetch it again."
        )
