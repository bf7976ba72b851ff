"""MNIST from IDX files, and how OpenML's copy becomes such files."""

import gzip
import http.client
import math
import struct
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from condnum.data.digits import Digits
from condnum.data.resolver import DataFiles, Source, obtain, user_cache
from condnum.data.task_pair import Provenance
from condnum.errors import DataFormatError, DataNotFoundError, OutputError, UnknownNameError
from condnum.files import atomic_write, opened, output_folder

MnistSplit = Literal["train", "test"]

#: Mean and standard deviation of the pixels of the 60 000 training images in [0, 1].
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
#: The published order on OpenML: 60 000 training images first.
_TRAIN_ROWS, _ROWS = 60_000, 70_000
#: Largest file that is read; MNIST's has 47 MB.
_MAX_BYTES = 64 << 20
#: How IDX begins where entries are unsigned bytes; then the number of dimensions, of which NumPy has 64.
_MAGIC = b"\0\0\x08"


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzip (distinguished by its first two bytes).

    The header is `0x00 0x00 0x08 n`, then `n` sizes as big-endian 32-bit integers.
    """
    with opened(path) as stream:
        content = stream.read(_MAX_BYTES)
    dimensions = content[3] if content.startswith(_MAGIC) and len(content) > len(_MAGIC) else 0
    start = 4 + 4 * dimensions
    if not 0 < dimensions <= 64 or len(content) < start:
        raise DataFormatError(
            f"{path} is not an IDX file of unsigned bytes: it starts with 0x{content[:4].hex()}, not "
            "0x000008 and the number of dimensions, or ends before its sizes; fetch it again."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if math.prod(shape) != len(content) - start or 0 in shape:  # NumPy counts past a 0 too
        sizes = "×".join(map(str, shape))
        raise DataFormatError(
            f"{path} is damaged: its header says {sizes} = {math.prod(shape)} bytes, "
            f"{len(content) - start} follow (at most {_MAX_BYTES} are read); fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def write_idx(path: str | Path, array: NDArray[np.uint8]) -> None:
    """Write an array of unsigned bytes as gzip-compressed IDX, the same bytes each time."""
    header = _MAGIC + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
    # mtime=0: the time of writing must not change the checksum.
    Path(path).write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=6, mtime=0))


def mnist_files(split: MnistSplit | None = None) -> DataFiles:
    """Return the two files of a split, in torchvision's layout."""
    if split not in (None, *get_args(MnistSplit)):
        raise UnknownNameError("split", split, get_args(MnistSplit))
    stem = "t10k" if split == "test" else "train"
    names = (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    return DataFiles(
        dataset="mnist-test" if split == "test" else "mnist",
        folder="MNIST/raw",
        names=tuple((f"{name}.gz", name) for name in names),
        advice=(
            "These are the IDX files of the MNIST database as torchvision stores them. The 10,000 test "
            "images are bundled; for all 70,000 images, run condnum data download."
        ),
        instead=None if split else mnist_files("test"),
    )


def load_mnist_images(source: Source = "auto", split: MnistSplit | None = None) -> Digits:
    """Load the images and labels of MNIST, unchanged, with the usual pixel normalization noted.

    Args:
        source: `auto` (local files, else the bundled data), or a folder: a data folder, or the one with the
            files.
        split: `train` (60,000 images) or `test` (10,000, which are bundled); None for the training
            images where they are, else the test images. `label` and `title()` say which.

    Returns:
        `images` (N, 28, 28) and `labels` (N,), both uint8; `mean` 0.1307 and `std` 0.3081 of the
        pixels x/255. The checksum is that of the two files' sums, images first.

    Raises:
        DataNotFoundError: No files here; the message says what to put where.
        DataFormatError: Not IDX, truncated, trailing bytes, images not
            28×28, labels not 0–9, or unequal counts.
        UnknownNameError: No such split.

    Examples:
        >>> load_mnist_images("auto", "test").images.shape
        (10000, 28, 28)
    """
    found = obtain(mnist_files(split), source)
    which = "test" if found.files.dataset == "mnist-test" else "training"
    images, labels = (read_idx(path) for path in found.paths)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.ndim != 1:
        raise DataFormatError(
            f"{found.location}: images must be (N, 28, 28) and labels (N,), got {images.shape} and "
            f"{labels.shape}."
        )
    return Digits(
        images=images,
        labels=labels,
        name="mnist",
        checksum=found.checksum,
        pixel_max=255.0,
        mean=MNIST_MEAN,
        std=MNIST_STD,
        provenance=Provenance(
            source=found.source,
            location=found.location,
            description=f"MNIST handwritten digits, {which} images, 28×28 pixels, gray values 0 to 255.",
            known_checksum=found.known,
            split=which,
        ),
    )


def download_mnist() -> Path:
    """Fetch `mnist_784` from OpenML and write both splits as four IDX files into the user cache."""
    from sklearn import datasets

    folder = user_cache() / mnist_files().folder
    try:
        # cache=False: what is kept is the files that the loader reads, not a second copy.
        bunch = datasets.fetch_openml(name="mnist_784", version=1, as_frame=False, parser="auto", cache=False)
        images = np.asarray(bunch.data).astype(np.uint8).reshape(_ROWS, 28, 28)
        arrays = images, np.asarray(bunch.target).astype(np.uint8).reshape(_ROWS)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataNotFoundError(
            f"the download of MNIST from OpenML failed ({type(error).__name__}: {error}); if this machine "
            f"is offline, put the four IDX files into {folder}."
        ) from error
    parts: dict[MnistSplit, slice] = {"train": slice(_TRAIN_ROWS), "test": slice(_TRAIN_ROWS, None)}
    try:
        output_folder(folder)
    except OutputError as error:
        fix = "set XDG_CACHE_HOME to a writable folder."
        raise OutputError(f"cannot write to {folder}: {error.__cause__}; {fix}") from error
    for split, part in parts.items():
        for (name, _), array in zip(mnist_files(split).names, arrays, strict=True):
            with atomic_write(folder / name) as temporary:
                write_idx(temporary, array[part])
    return folder
