"""Data sets that timm opens by name: `torch/cifar10`, `hfds/…`, and its own folder reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.resolver import data_folders
from condnum.deep.image_data import ImageData
from condnum.deep.image_sources import ArrayImages, ImageSource, ReaderImages
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError
from condnum.extras import require


def open_timm(
    name: str, split: str = "train", *, root: str | None = None, download: bool = False
) -> ImageData:
    """Open a data set through `timm.data.create_dataset`, which the paper uses (App. C.2).

    Only data sets with a length and random access: Eq. 17 draws groups. Images of a folder reader are
    decoded here, because timm quietly puts the next image in the place of one that does not decode.
    """
    create = require("timm.data", "deep").create_dataset
    folder = root or next((str(path) for path in data_folders() if path.is_dir()), "data")
    timm_split = {"test": "validation"}.get(split, split)
    if name.lower().startswith(("tfds/", "wds/", "hfids/")):
        raise InvalidInputError(
            f"timm:{name} is a stream; Eq. 17 draws random groups and needs random access: use a folder, "
            "torch/… or hfds/…."
        )
    try:
        dataset = create(name, root=folder, split=timm_split, download=download)
    except (RuntimeError, OSError, ValueError, AssertionError, ImportError) as error:
        raise DataNotFoundError(
            f"timm cannot open '{name}' ({split}) in {folder}: {error}. Put the data there, give its folder "
            f"as 'timm:{name}@FOLDER', or give an image folder."
        ) from error
    title = f"timm:{name}"
    labels = _labels(dataset, title)
    classes = _class_names(dataset, labels)
    return ImageData(title, split, classes, labels, _source(dataset, title), np.arange(len(labels)))


def _source(dataset: Any, title: str) -> ImageSource:
    """Return how to read single images: an array if there is one, else the reader, else the data set."""
    pixels = getattr(dataset, "data", None)
    array: NDArray[Any] = np.asarray([] if pixels is None else pixels)
    if array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[-1] == 3)):
        return ArrayImages(array, title)
    reader = getattr(dataset, "reader", None)
    read: Callable[[int], Any] = (lambda i: reader[i][0]) if reader is not None else (lambda i: dataset[i][0])
    return ReaderImages(read, len(dataset), title)


def _labels(dataset: Any, title: str) -> NDArray[np.int64]:
    """Return `(N,)` labels, without decoding the images where the data set keeps them in a table."""
    reader = getattr(dataset, "reader", None)
    if getattr(dataset, "targets", None) is not None:
        found = dataset.targets
    elif reader is not None and hasattr(reader, "samples"):
        found = [label for _, label in reader.samples]
    elif reader is not None and hasattr(reader, "dataset") and hasattr(reader, "label_key"):
        found = reader.dataset[reader.label_key]
    else:
        found = [dataset[i][1] for i in range(len(dataset))]
    labels = np.asarray(found)
    if labels.dtype.kind not in "iu":
        raise DataFormatError(
            f"{title}: labels must be integers, got {labels.dtype}; it is no classification data."
        )
    return labels.astype(np.int64)


def _class_names(dataset: Any, labels: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the data set's class names, else numbers as far as the largest label."""
    names = getattr(dataset, "classes", None)
    if names:
        return tuple(str(name) for name in names)
    index = getattr(getattr(dataset, "reader", None), "class_to_idx", None)
    if index:
        return tuple(sorted(index, key=index.__getitem__))
    return tuple(str(c) for c in range(int(labels.max(initial=-1)) + 1))
