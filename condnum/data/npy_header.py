"""The header of a NumPy array, read with suspicion: are there as many bytes as it promises?"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from condnum.errors import DataFormatError, UnknownNameError

#: An archive that unpacks to more than this is looked at: arrays of real measurements shrink by less than
#: `BOMB_RATIO`, and deflate can do at most 1032.
BOMB_BYTES, BOMB_RATIO = 64 << 20, 200

#: Versions of the format; numpy.save writes the first that can hold the header.
_VERSIONS = ((1, 0), (2, 0), (3, 0))

#: Longest header that is read; NumPy itself refuses to parse more than 10,000 characters.
_MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class NpyHeader:
    """What the header of an array says."""

    shape: tuple[int, ...]
    fortran: bool  # columns come one after the other
    dtype: np.dtype[Any]
    offset: int  # of the first entry

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


def read_npy_header(stream: IO[bytes], size: int, path: Path, kinds: str = "fiub") -> NpyHeader:
    """Read the header of an array; leave the stream at its first entry.

    Examples:
        >>> import io
        >>> stream = io.BytesIO()
        >>> np.save(stream, np.zeros((2, 3)))
        >>> size = stream.seek(0, 2)
        >>> _ = stream.seek(0)
        >>> read_npy_header(stream, size, Path("X.npy")).shape
        (2, 3)
    """
    try:
        version = npy_format.read_magic(stream)
        _check_version(version)
        header = _header(stream, 2 if version[0] == 1 else 4)
        read = npy_format.read_array_header_1_0 if version[0] == 1 else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(io.BytesIO(header))
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataFormatError(f"{path} is not a NumPy file ({reason}); write it with numpy.save.") from error
    if dtype.kind not in kinds or dtype.hasobject or not dtype.itemsize:
        raise DataFormatError(
            f"{path} holds entries of type '{dtype}'; features are real numbers: save X.astype(float). "
            "Pickled objects are never loaded."
        )
    found = NpyHeader(tuple(int(n) for n in shape), bool(fortran), dtype, stream.tell())
    promised = found.offset + found.size * dtype.itemsize
    if min(found.shape, default=0) < 0 or promised > size:
        raise DataFormatError(
            f"{path} is cut off: its header promises {promised:,d} bytes for an array of shape "
            f"{found.shape}, it has {size:,d}; copy it again."
        )
    return found


def _check_version(version: tuple[int, int]) -> None:
    """Refuse a version that NumPy does not write."""
    if version not in _VERSIONS:
        raise ValueError(f"format version {version[0]}.{version[1]}")


def read_npy(stream: IO[bytes], header: NpyHeader, path: Path) -> NDArray[Any]:
    """Read the entries that follow a header."""
    flat = np.empty(header.size, dtype=header.dtype)
    fill_exactly(stream, flat, path)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def fill_exactly(stream: IO[bytes], into: NDArray[Any], path: Path) -> None:
    """Fill an array from a stream, which may hand out less at a time."""
    view, done = into.view(np.uint8).data if into.size else memoryview(b""), 0
    while done < len(view):
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise DataFormatError(f"{path} ends before its last row; it is cut off, or being written.")
        done += got


def _header(stream: IO[bytes], width: int) -> bytes:
    """Return the length field and the text of a header, which is not read if it is absurdly long."""
    field = stream.read(width)
    length = int.from_bytes(field, "little")
    if length > _MAX_HEADER:
        raise ValueError(f"a header of {length:,d} bytes")
    return field + stream.read(length)


def array_member(archive: zipfile.ZipFile, path: Path, key: str | None) -> zipfile.ZipInfo:
    """Find an array in an archive of `numpy.savez`."""
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if key is None and len(members) != 1:
        shown = ", ".join(list(members)[:8]) + (", …" if len(members) > 8 else "")
        raise DataFormatError(f"{path} holds {len(members)} arrays ({shown}); say which by key=.")
    name = next(iter(members)) if key is None else key
    if name not in members:
        raise UnknownNameError(f"array of {path}", name, members)
    check_expansion(members[name].file_size, path.stat().st_size, path)
    return members[name]


def check_expansion(unpacked: int, stored: int, path: Path) -> None:
    """Refuse a file that unpacks to far more than a file of measurements does.

    Examples:
        >>> check_expansion(10**10, 10**6, Path("zeros.npz"))
        Traceback (most recent call last):
            ...
        condnum.errors.DataFormatError: zeros.npz takes 1.0 MB and would unpack to 10,000.0 MB, ...
    """
    if unpacked > max(BOMB_BYTES, BOMB_RATIO * stored):
        raise DataFormatError(
            f"{path} takes {stored / 1e6:.1f} MB and would unpack to {unpacked / 1e6:,.1f} MB, which no "
            "measurements do: it is damaged, made to fill the memory, or holds one value over and over. "
            "Save what you trust without compression, with numpy.save."
        )
