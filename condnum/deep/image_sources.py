"""Where single images come from: files of a folder, an array, or anything that hands out PIL images.

A source knows how to decode one image and how to take a checksum of the ones in use; labels, classes
and subsets are `ImageData`'s.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from condnum.data.checksums import sha256_arrays, sha256_file
from condnum.errors import DataNotFoundError, UnknownNameError
from condnum.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

ChecksumMode = Literal["auto", "full", "sampled"]

#: `auto` reads every byte up to this total, and a sample of files beyond it.
FULL_BYTES = 1 << 30
#: Files whose bytes enter a sampled checksum.
SAMPLED_FILES = 2048
_THREADS = 8  # hashing and reading release the interpreter lock


class ImageSource(Protocol):
    """Images by position."""

    def __len__(self) -> int:
        """Return the number of images."""

    def name(self, index: int) -> str:
        """Return what a message calls this image."""

    def load(self, index: int) -> Image:
        """Decode one image, in its own mode; raises what the decoder raises."""

    def checksum(self, indices: Sequence[int]) -> str:
        """Return a SHA-256 of these images."""


def files_checksum(root: Path, names: Sequence[str], mode: ChecksumMode = "auto") -> str:
    """Return the SHA-256 of files: their names, their sizes, and the bytes of all or of some.

    `full` reads every byte, by several threads: seconds for a gigabyte. ImageNet's 140 GB would take
    many minutes of reading before the first step, so `sampled` takes the name and size of **every**
    file, but the bytes of the 2048 files whose names hash lowest only. A file that was added, removed,
    renamed or resized always changes the sum; one that was replaced by another of exactly the same
    size goes unnoticed unless it is in the sample. `auto` is full up to 1 GiB. The mode is part of what
    is hashed, so the two never pass for one another.
    """
    if mode not in get_args(ChecksumMode):
        raise UnknownNameError("checksum mode", mode, get_args(ChecksumMode))
    ordered = sorted(names)
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = list(pool.map(lambda name: _size(root / name), ordered))
        full = mode == "full" or (mode == "auto" and sum(sizes) <= FULL_BYTES)
        chosen = set(ordered if full else sorted(ordered, key=_name_hash)[:SAMPLED_FILES])
        sums = pool.map(lambda name: sha256_file(root / name) if name in chosen else "-", ordered)
        digest = hashlib.sha256(b"full\n" if full else b"sampled\n")
        for name, size, content in zip(ordered, sizes, sums, strict=True):
            digest.update(f"{name}\0{size}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True)
class FileImages:
    """Image files below one folder."""

    root: Path
    files: tuple[str, ...]  # (N,) relative paths with forward slashes
    mode: ChecksumMode = "auto"

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def name(self, index: int) -> str:
        """Return the path."""
        return str(self.root / self.files[index])

    def load(self, index: int) -> Image:
        """Open and decode the file."""
        image = require("PIL.Image", "deep").open(self.root / self.files[index])
        with image:
            image.load()
        return image

    def checksum(self, indices: Sequence[int]) -> str:
        """Return `files_checksum` of these files."""
        return files_checksum(self.root, [self.files[i] for i in indices], self.mode)


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """Images in memory: grey `(N, h, w)` or RGB `(N, h, w, 3)`."""

    images: NDArray[np.uint8]
    title: str  # "mnist"

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def name(self, index: int) -> str:
        """Return the position in the array."""
        return f"{self.title}[{index}]"

    def load(self, index: int) -> Image:
        """Wrap one image."""
        return require("PIL.Image", "deep").fromarray(self.images[index])

    def checksum(self, indices: Sequence[int]) -> str:
        """Return the sum of the chosen pixels."""
        return sha256_arrays(images=self.images[np.asarray(indices, dtype=np.int64)])


@dataclass(frozen=True, eq=False)
class ReaderImages:
    """Images that a function hands out by position; the checksum has to decode each of them."""

    read: Callable[[int], Any]  # a PIL image, or an open file with an encoded one
    length: int
    title: str  # "timm:torch/cifar10"

    def __len__(self) -> int:
        """Return the number of images."""
        return self.length

    def name(self, index: int) -> str:
        """Return the position in the data set."""
        return f"{self.title}[{index}]"

    def load(self, index: int) -> Image:
        """Read and decode one image."""
        item = self.read(index)
        if not hasattr(item, "read"):
            return item
        with item, require("PIL.Image", "deep").open(item) as image:
            image.load()
            return image

    def checksum(self, indices: Sequence[int]) -> str:
        """Return the sum of mode, size and pixels of each image; one that fails counts as such."""
        digest = hashlib.sha256()
        for index in sorted(indices):
            try:
                image = self.load(index)
                digest.update(f"{index} {image.mode} {image.size}\n".encode() + image.tobytes())
            except decode_errors():
                digest.update(f"{index} unreadable\n".encode())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class KeptImages:
    """Images of another source that are decoded already; the others are read from it as ever."""

    source: ImageSource
    pixels: Mapping[int, NDArray[np.uint8]]  # position → (h, w, 3)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.source)

    def name(self, index: int) -> str:
        """Return the source's name of it."""
        return self.source.name(index)

    def load(self, index: int) -> Image:
        """Wrap the pixels, or decode."""
        kept = self.pixels.get(index)
        return self.source.load(index) if kept is None else require("PIL.Image", "deep").fromarray(kept)

    def checksum(self, indices: Sequence[int]) -> str:
        """Return the source's."""
        return self.source.checksum(indices)


def decode_errors() -> tuple[type[Exception], ...]:
    """Return what PIL raises for a file that is not, or not wholly, an image.

    A broken PNG raises `SyntaxError`, a truncated file `OSError`, a bad header `struct.error`, an
    image of absurd size `DecompressionBombError`.
    """
    import struct

    bomb = require("PIL.Image", "deep").DecompressionBombError
    return (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError, bomb)


def _size(path: Path) -> int:
    """Return a file's size, or say that it is gone."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise DataNotFoundError(f"cannot read {path}: {error.strerror}; was the folder changed?") from error


def _name_hash(name: str) -> bytes:
    """Return a stable order that has nothing to do with classes."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
