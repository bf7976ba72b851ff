"""MNIST from local IDX files, or from OpenML."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np

from condnum.data.checksums import combine_checksums, is_known, sha256_file
from condnum.data.digits import Digits
from condnum.data.idx import read_idx, write_idx
from condnum.data.resolver import DataFiles, Source, fetch_openml, new_file, obtain, short_names
from condnum.data.task_pair import Provenance
from condnum.errors import DataFormatError, UnknownNameError

Split = Literal["train", "test"]

#: Mean and standard deviation of the pixels of the 60 000 training images in [0, 1].
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
#: The published order on OpenML: 60 000 training images first.
_TRAIN_ROWS, _ROWS = 60_000, 70_000


def mnist_files(split: Split = "train") -> DataFiles:
    """Return the two files of a split, in torchvision's layout.

    Args:
        split: `train` or `test`.

    Returns:
        Images first, labels second; gzip is preferred to plain.

    Raises:
        UnknownNameError: No such split.

    Examples:
        >>> mnist_files("test").names[1]
        ('t10k-labels-idx1-ubyte.gz', 't10k-labels-idx1-ubyte')
    """
    if split not in get_args(Split):
        raise UnknownNameError("split", split, get_args(Split))
    stem = "train" if split == "train" else "t10k"
    names = (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    return DataFiles(
        dataset="mnist" if split == "train" else "mnist-test",
        folder="MNIST/raw",
        names=tuple((f"{name}.gz", name) for name in names),
        advice=(
            "They are the IDX files of the MNIST database as torchvision stores them; OpenML has "
            "the same images as mnist_784, which source='auto' downloads."
        ),
        embedded_instead="load_small_digits()",
    )


def load_mnist_images(source: Source = "auto", split: Split = "train") -> Digits:
    """Load the images and labels of MNIST, unchanged, with the usual pixel normalisation noted.

    Args:
        source: `auto` (local files, else OpenML), `local`, or a folder: a data folder, or the one
            with the files.
        split: `train` (60 000 images) or `test` (10 000).

    Returns:
        `images` (N, 28, 28) and `labels` (N,), both uint8; `mean` 0.1307 and `std` 0.3081 of the
        pixels x/255. The checksum is that of the two files' sums, images first.

    Raises:
        DataNotFoundError: No files here, and no download; the message says what to put where.
        DataFormatError: Not IDX, truncated, trailing bytes, images not 28×28, labels not 0–9, or
            unequal counts.
        UnknownNameError: No such split.

    Examples:
        >>> load_mnist_images("local").images.shape  # doctest: +SKIP
        (60000, 28, 28)
    """
    files = mnist_files(split)
    found = obtain(files, source, download_mnist)
    images, labels = (read_idx(path) for path in found.paths)
    where = short_names(found.paths)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.ndim != 1:
        raise DataFormatError(
            f"{where}: images must be (N, 28, 28) and labels (N,), got {images.shape} and {labels.shape}."
        )
    sums = [sha256_file(path) for path in found.paths]
    plain = [path.name.removesuffix(".gz") for path in found.paths]
    return Digits(
        images=images,
        labels=labels,
        name=files.dataset,
        checksum=combine_checksums(sums),
        pixel_max=255.0,
        mean=MNIST_MEAN,
        std=MNIST_STD,
        provenance=Provenance(
            source=found.source,
            location=where,
            description=f"MNIST handwritten digits, {split} split, 28×28 pixels, grey values 0 to 255.",
            url="https://www.openml.org/d/554",
            licence="CC BY-SA 3.0",
            citation="Y. LeCun, C. Cortes and C. J. C. Burges (1998), The MNIST database.",
            known_checksum=all(
                is_known(f"MNIST/raw/{name}", path, digest)
                for name, path, digest in zip(plain, found.paths, sums, strict=True)
            ),
            files={path.name: digest for path, digest in zip(found.paths, sums, strict=True)},
            options={"split": split},
        ),
    )


def download_mnist(folder: Path) -> None:
    """Fetch `mnist_784` from OpenML and write both splits as four IDX files.

    Args:
        folder: Where to write; it is made.

    Raises:
        DataNotFoundError: Offline, or OpenML does not answer as it should.
        DataFormatError: OpenML's table is not 70 000 rows of 784 grey values.
        OutputError: The folder cannot be written to.
    """
    bunch = fetch_openml("mnist", name="mnist_784", version=1, as_frame=False, parser="auto")
    images, labels = np.asarray(bunch.data), np.asarray(bunch.target)
    if images.shape != (_ROWS, 784) or labels.shape != (_ROWS,):
        raise DataFormatError(
            f"OpenML's mnist_784 must be ({_ROWS}, 784) with {_ROWS} labels, "
            f"got {images.shape} and {labels.shape}."
        )
    images = images.astype(np.uint8).reshape(_ROWS, 28, 28)
    labels = labels.astype(np.uint8)
    for split, part in (("train", slice(_TRAIN_ROWS)), ("test", slice(_TRAIN_ROWS, None))):
        (image_name, _), (label_name, _) = mnist_files(split).names  # type: ignore[arg-type]
        for name, array in ((image_name, images[part]), (label_name, labels[part])):
            with new_file(folder / name) as temporary:
                write_idx(temporary, array)
