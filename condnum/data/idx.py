"""The IDX format of MNIST: a magic number, the sizes, then raw bytes; no torchvision needed."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condnum.errors import DataFormatError, DataNotFoundError

_UNSIGNED_BYTE = 0x08


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzip (told apart by its first two bytes).

    The header is `0x00 0x00 0x08 n`, then `n` sizes as big-endian 32-bit integers.

    Args:
        path: The file.

    Returns:
        Array with `n` dimensions.

    Raises:
        DataNotFoundError: The file cannot be read.
        DataFormatError: Wrong magic number, truncated, or bytes left over.
    """
    content = _content(path)
    shape = _shape(content, path)
    body, expected = len(content) - 4 - 4 * len(shape), math.prod(shape)
    if body != expected:
        kind = "is truncated" if body < expected else "has trailing bytes"
        raise DataFormatError(
            f"{path} {kind}: its header says {'×'.join(map(str, shape))} = {expected} bytes, {body} follow; "
            "fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def read_idx_shape(path: str | Path) -> tuple[int, ...]:
    """Read the sizes in the header only.

    Args:
        path: The file.

    Returns:
        One size a dimension.

    Raises:
        DataNotFoundError: The file cannot be read.
        DataFormatError: Wrong magic number or a truncated header.
    """
    return _shape(_content(path, limit=4 + 4 * 255), path)


def write_idx(path: str | Path, array: NDArray[np.uint8]) -> None:
    """Write an array of unsigned bytes as gzip-compressed IDX, the same bytes each time.

    Args:
        path: The file.
        array: One to 255 dimensions.

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


def _content(path: str | Path, limit: int = -1) -> bytes:
    try:
        with open(path, "rb") as stream:
            compressed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if compressed else open(path, "rb") as stream:
            return stream.read(limit)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataFormatError(f"{path} is truncated or damaged gzip ({error}); fetch it again.") from error
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {path}: {error}; check the path and its permissions."
        ) from error


def _shape(content: bytes, path: str | Path) -> tuple[int, ...]:
    magic = content[:4]
    if len(magic) < 4 or magic[:3] != bytes((0, 0, _UNSIGNED_BYTE)) or magic[3] == 0:
        raise DataFormatError(
            f"{path} is not an IDX file of unsigned bytes: it starts with 0x{magic.hex()}, not 0x000008 and "
            "the number of dimensions; fetch it again."
        )
    if len(content) < 4 + 4 * magic[3]:
        raise DataFormatError(
            f"{path} is truncated: {len(content)} bytes, less than its header; fetch it again."
        )
    return struct.unpack(f">{magic[3]}I", content[4 : 4 + 4 * magic[3]])
