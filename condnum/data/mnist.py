"""MNIST from IDX files, and how OpenML's copy becomes such files."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from condnum.data.checksums import combine_checksums
from condnum.data.digits import Digits
from condnum.data.idx import read_idx, write_idx
from condnum.data.resolver import DataFiles, Source, new_file, obtain, short_names, user_cache
from condnum.data.task_pair import Provenance
from condnum.errors import DataFormatError, DataNotFoundError, UnknownNameError

Split = Literal["train", "test"]

#: Mean and standard deviation of the pixels of the 60 000 training images in [0, 1].
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
#: The published order on OpenML: 60 000 training images first.
_TRAIN_ROWS, _ROWS = 60_000, 70_000


def mnist_files(split: Split | None = None) -> DataFiles:
    """Return the two files of a split, in torchvision's layout.

    Examples:
        >>> mnist_files("test").names[1]
        ('t10k-labels-idx1-ubyte.gz', 't10k-labels-idx1-ubyte')
    """
    if split not in (None, *get_args(Split)):
        raise UnknownNameError("split", split, get_args(Split))
    stem = "t10k" if split == "test" else "train"
    names = (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    return DataFiles(
        dataset="mnist-test" if split == "test" else "mnist",
        folder="MNIST/raw",
        names=tuple((f"{name}.gz", name) for name in names),
        advice=(
            "They are the IDX files of the MNIST database as torchvision stores them. The 10 000 test images "
            "are in condnum's box; all 70 000 images: condnum data download."
        ),
        embedded_instead="load_small_digits()",
        instead=None if split else mnist_files("test"),
    )


def load_mnist_images(source: Source = "auto", split: Split | None = None) -> Digits:
    """Load the images and labels of MNIST, unchanged, with the usual pixel normalisation noted.

    Args:
        source: `auto` (local files, else condnum's box), `local`, or a folder: a data folder, or the one
            with the files.
        split: `train` (60 000 images) or `test` (10 000, which the box holds); None for the training
            images where they are, else the test images. `label` and `title()` say which.

    Returns:
        `images` (N, 28, 28) and `labels` (N,), both uint8; `mean` 0.1307 and `std` 0.3081 of the
        pixels x/255. The checksum is that of the two files' sums, images first.

    Raises:
        DataNotFoundError: No files here; the message says what to put where.
        DataFormatError: An altered file of the box, not IDX, truncated, trailing bytes, images not
            28×28, labels not 0–9, or unequal counts.
        UnknownNameError: No such split.

    Examples:
        >>> load_mnist_images("auto", "test").images.shape
        (10000, 28, 28)
    """
    found = obtain(mnist_files(split), source)
    which = "test" if found.files.dataset == "mnist-test" else "training"
    images, labels = (read_idx(path) for path in found.paths)
    where = short_names(found.paths)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.ndim != 1:
        raise DataFormatError(
            f"{where}: images must be (N, 28, 28) and labels (N,), got {images.shape} and {labels.shape}."
        )
    return Digits(
        images=images,
        labels=labels,
        name="mnist",
        checksum=combine_checksums(found.checksums),
        pixel_max=255.0,
        mean=MNIST_MEAN,
        std=MNIST_STD,
        provenance=Provenance(
            source=found.source,
            location=where,
            description=f"MNIST handwritten digits, {which} images, 28×28 pixels, grey values 0 to 255.",
            url="https://www.openml.org/d/554",
            licence="CC BY-SA 3.0",
            citation="Y. LeCun, C. Cortes and C. J. C. Burges (1998), The MNIST database.",
            known_checksum=found.known,
            files={p.name: digest for p, digest in zip(found.paths, found.checksums, strict=True)},
            options={"split": which},
        ),
    )


def download_mnist() -> Path:
    """Fetch `mnist_784` from OpenML and write both splits as four IDX files into the user cache."""
    from sklearn import datasets

    folder = user_cache() / mnist_files().folder
    try:
        # cache=False: what is kept is the files that the loader reads, not a second copy.
        bunch = datasets.fetch_openml(name="mnist_784", version=1, as_frame=False, parser="auto", cache=False)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DataNotFoundError(
            f"the download of MNIST from OpenML failed ({type(error).__name__}: {error}); this machine may "
            f"be offline: put the four IDX files into {folder}."
        ) from error
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
    return folder
