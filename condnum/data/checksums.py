"""SHA-256 of files and arrays, and the sums that this project has measured its numbers on.

A sum that is not in the table is no error, only a fact: loaders flag it in the provenance and
`condnum.data.check` reports it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.errors import DataFormatError, DataNotFoundError

_CHUNK = 1 << 20  # 1 MiB: large enough to be fast, small enough not to matter

_SHA256SUMS = """
1e18addf81e5e4d347cc17ee6075bbe4a42b7fa26b9e5b063e8f692a5f929d41  house_prices/train.csv
db8f937d487057fb14a9f0fbe97f0bc8d311ab41b750d41e1ff37c43b9e55e19  MNIST/raw/train-images-idx3-ubyte.gz
51fc562b6747b666fbf6e84ce29d43c3cb5f9c388c664d43b33f02095313405a  MNIST/raw/train-labels-idx1-ubyte.gz
cfeddb84311ecf044fc6a5b0f6ee8a24d265d4e83e388400186eb114082f4209  MNIST/raw/t10k-images-idx3-ubyte.gz
e41c74e484045d39b462a7790a4af51301bd9b0b24f0154798d713ec68c45920  MNIST/raw/t10k-labels-idx1-ubyte.gz
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  MNIST/raw/train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  MNIST/raw/train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  MNIST/raw/t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  MNIST/raw/t10k-labels-idx1-ubyte
715adb24fd0f53b9d9b5b9f591e3a5498a40b604338e3ff3cc50cd6a17fca27d  embedded/digits-8x8
ed0af9b810baa6057ea752af4060c68ba0f2e712817a9f3fcad9b80c37b1a60e  embedded/diabetes
"""

#: Name under the data folder -> SHA-256; `embedded/` names arrays. MNIST has two sums a file,
#: compressed and plain, as a file that was compressed anew has other bytes but the same content.
KNOWN_CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {name: digest for digest, name in (line.split() for line in _SHA256SUMS.split("\n") if line)}
)


def sha256_file(path: str | Path, *, decompress: bool = False) -> str:
    """Return the SHA-256 of a file, read in chunks.

    Args:
        path: The file.
        decompress: Take the sum of what gzip finds inside, not of the file's own bytes.

    Returns:
        64 hexadecimal digits, as `sha256sum` prints them.

    Raises:
        DataNotFoundError: The file cannot be read.
        DataFormatError: `decompress` was asked for and the file is not whole gzip.
    """
    digest = hashlib.sha256()
    try:
        with gzip.open(path, "rb") if decompress else open(path, "rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataFormatError(f"{path} is not a whole gzip file ({error}); fetch it again.") from error
    except OSError as error:
        raise DataNotFoundError(
            f"cannot read {path}: {error}; check the path and its permissions."
        ) from error
    return digest.hexdigest()


def sha256_arrays(**arrays: NDArray[Any]) -> str:
    """Return the SHA-256 of named arrays: names, types, shapes and little-endian C-ordered bytes.

    Args:
        **arrays: The arrays, of any shape; their order counts.

    Returns:
        64 hexadecimal digits, the same on every machine.

    Examples:
        >>> a = np.array([1.0, 2.0])
        >>> sha256_arrays(a=a) == sha256_arrays(a=a.astype(">f8"))
        True
        >>> sha256_arrays(a=a) == sha256_arrays(a=a[::-1])
        False
    """
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little.dtype.kind}{little.dtype.itemsize} {array.shape}\n".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


def combine_checksums(digests: Sequence[str]) -> str:
    """Return one sum for several files: that of a single file, else that of the sums, a line each.

    Examples:
        >>> combine_checksums(["abc"])
        'abc'
    """
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{d}\n" for d in digests).encode()).hexdigest()


def is_known(name: str, path: Path, digest: str) -> bool:
    """Tell whether a file has a known sum, by its bytes or, when gzip, by its content."""
    if digest in (KNOWN_CHECKSUMS.get(name), KNOWN_CHECKSUMS.get(f"{name}.gz")):
        return True
    return path.suffix == ".gz" and sha256_file(path, decompress=True) == KNOWN_CHECKSUMS.get(name)
