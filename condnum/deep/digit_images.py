"""Digits as image data: a subset of MNIST's or of the bundled 8×8 digits, as grey images."""

from __future__ import annotations

import re

import numpy as np

from condnum.data.embedded import load_small_digits
from condnum.data.mnist import load_mnist_images
from condnum.data.resolver import Source
from condnum.deep.image_data import ImageData
from condnum.deep.image_sources import ArrayImages
from condnum.errors import InvalidInputError, UnknownNameError

#: Of digits without a split, the 8×8 ones or MNIST's test images alone, every fifth is a test image.
_HOLDOUT_EVERY = 5


def parse_digits(subset: str) -> tuple[int, ...]:
    """Return the digits of `0-4`, `5-9` or `1,3,7-9`; all ten for an empty string.

    Examples:
        >>> parse_digits("0-4")
        (0, 1, 2, 3, 4)
        >>> parse_digits("7-9,1")
        (1, 7, 8, 9)
    """
    if not subset:
        return tuple(range(10))
    digits: set[int] = set()
    for part in subset.split(","):
        match = re.fullmatch(r"\s*(\d)\s*(?:-\s*(\d)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InvalidInputError(f"'{subset}' is no set of digits; write it like 0-4 or 1,3,7-9.")
        digits |= set(range(first, last + 1))
    if len(digits) < 2:
        raise InvalidInputError(f"'{subset}' is one class only; a task needs two digits or more.")
    return tuple(sorted(digits))


def open_digits(
    dataset: str, subset: str = "", split: str = "train", *, source: Source = "auto"
) -> ImageData:
    """Open a subset of the digits; class names are the digits, labels count from 0.

    Examples:
        >>> data = open_digits("digits-8x8", "5-9")
        >>> data.classes, len(data), len(open_digits("digits-8x8", "5-9", "test"))
        (('5', '6', '7', '8', '9'), 718, 178)
    """
    if dataset not in ("mnist", "digits-8x8"):
        raise UnknownNameError("digit data set", dataset, ["mnist", "digits-8x8"])
    if split not in ("train", "test"):
        raise UnknownNameError("split", split, ["train", "test"])
    wanted = parse_digits(subset)
    digits = load_small_digits() if dataset == "digits-8x8" else load_mnist_images(source)
    if digits.provenance.options.get("split") == "training":
        digits = digits if split == "train" else load_mnist_images(source, "test")
        side = np.ones(len(digits), dtype=bool)
    else:
        side = (np.arange(len(digits)) % _HOLDOUT_EVERY == 0) == (split == "test")
    positions = np.flatnonzero(np.isin(digits.labels, wanted) & side)
    grey = np.round(digits.images * (255.0 / digits.pixel_max)).astype(np.uint8)
    return ImageData(
        name=f"{dataset}:{subset}" if subset else dataset,
        split=split,
        classes=tuple(str(digit) for digit in wanted),
        labels=np.searchsorted(wanted, digits.labels[positions]),
        source=ArrayImages(grey, f"{dataset} {split}"),
        positions=positions,
        origin=digits.label,
    )
