"""The IDX format of MNIST: a magic number, the sizes, then raw bytes; no torchvision needed."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from condnum.errors import DataFormatError, DataNotFoundError

_UNSIGNED_BYTE = 0x08

#: Largest array that is read, five times MNIST's: a header that says more is damaged.
MAX_BYTES = 256 << 20

#: Most dimensions of an array in NumPy.
_MAX_DIMENSIONS = 64
#: How far a file is read beyond its last entry, for the message.
_MORE = 1 << 20


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzip (told apart by its first two bytes).

    The header is `0x00 0x00 0x08 n`, then `n` sizes as big-endian 32-bit integers.
    """
    with opened(path) as stream:
        shape = _shape(stream, path)
        expected = math.prod(shape)
        sizes = "×".join(map(str, shape))
        if max(expected, math.prod(filter(None, shape))) > MAX_BYTES:  # NumPy counts past a 0 too
            raise DataFormatError(
                f"{path} says {sizes} = {expected} bytes, above the limit of {MAX_BYTES} (MNIST's "
                "images take 47,040,000); it is damaged: fetch it again."
            )
        values = np.empty(expected, dtype=np.uint8)
        body = _fill(values, stream)
        if body == expected:
            body += len(stream.read(_MORE))
    if body != expected:
        kind = "is truncated" if body < expected else "has trailing bytes"
        follow = f"{body} or more" if body >= expected + _MORE else f"{body}"
        raise DataFormatError(
            f"{path} {kind}: its header says {sizes} = {expected} bytes, {follow} follow; fetch it again."
        )
    return values.reshape(shape)


def read_idx_shape(path: str | Path) -> tuple[int, ...]:
    """Read the sizes in the header only."""
    with opened(path) as stream:
        return _shape(stream, path)


def write_idx(path: str | Path, array: NDArray[np.uint8]) -> None:
    """Write an array of unsigned bytes as gzip-compressed IDX, the same bytes each time.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_idx(f"{folder}/a.gz", np.array([[1, 2]], dtype=np.uint8))
        ...     read_idx(f"{folder}/a.gz")
        array([[1, 2]], dtype=uint8)
    """
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, _UNSIGNED_BYTE, array.ndim, *array.shape)
    # mtime=0: the time of writing must not change the checksum.
    Path(path).write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=6, mtime=0))


@contextmanager
def opened(path: str | os.PathLike[str]) -> Generator[IO[bytes]]:
    """Open a file, plain or gzip, and turn what goes wrong while it is read into our words."""
    try:
        with open(path, "rb") as stream:
            compressed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else open(path, "rb") as stream:
            yield cast(IO[bytes], stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataFormatError(f"{path} is truncated or damaged gzip ({error}); fetch it again.") from error
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {path}: {error}; check the path and its permissions."
        ) from error


def _fill(values: NDArray[np.uint8], stream: IO[bytes]) -> int:
    """Read into an array until it is full or the stream ends; return how many bytes there were."""
    view, done = values.data, 0
    while done < len(view):
        got = stream.readinto(view[done : done + _MORE])  # type: ignore[attr-defined]
        if not got:
            break
        done += got
    return done


def _shape(stream: IO[bytes], path: str | Path) -> tuple[int, ...]:
    """Read the header: the sizes of the dimensions."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or not 0 < magic[3] <= _MAX_DIMENSIONS:
        raise DataFormatError(
            f"{path} is not an IDX file of unsigned bytes: it starts with 0x{magic.hex()}, not 0x000008 and "
            "the number of dimensions; fetch it again."
        )
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataFormatError(
            f"{path} is truncated: {4 + len(sizes)} bytes, less than its header; fetch it again."
        )
    return struct.unpack(f">{magic[3]}I", sizes)
