"""One name for any image data: a folder, `mnist:0-4`, `digits-8x8:5-9` or `timm:NAME`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from condnum.data.resolver import Source
from condnum.deep.digit_images import open_digits
from condnum.deep.image_data import ImageData
from condnum.deep.image_folder import open_folder
from condnum.deep.image_sources import ChecksumMode
from condnum.deep.timm_images import open_timm
from condnum.errors import InvalidInputError
from condnum.extras import require

#: Class order of a head that was trained on ImageNet-1K, as a value of `classes`.
IMAGENET = "imagenet-1k"


def open_images(
    name: str | os.PathLike[str],
    split: str = "train",
    *,
    limit: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | str | None = None,
    checksum: ChecksumMode = "auto",
    source: Source = "auto",
) -> ImageData:
    """Open image data by name; images decode when they are used.

    Args:
        name: `mnist:0-4` and `digits-8x8:5-9` (digits as grey images), `timm:NAME` or `timm:NAME@FOLDER`
            (see `open_timm`), else a folder (see `open_folder` for the layouts).
        split: `train` or `test`, or the name of a folder's split (`valid`).
        limit: Largest number of images of a class, drawn from `seed`; see `ImageData.limit`.
        seed: Of that draw.
        classes: Class names in label order, for folders; `"imagenet-1k"` takes the order in which timm's
            ImageNet heads are trained, which a folder with a part of ImageNet's classes needs.
        checksum: How the checksum of a folder is taken, see `files_checksum`.
        source: Of MNIST's files: `auto`, `local` or a folder.

    Returns:
        The images.

    Raises:
        DataNotFoundError: Not here; the message says what to put where.
        DataFormatError: Not in a known layout, or labels out of range.
        InvalidInputError: One class only, bad digits or limit, `classes` for data with its own.
        MissingExtraError: timm is not installed and is needed.

    Examples:
        >>> data = open_images("digits-8x8:0-4", limit=10)
        >>> data.counts, data.split
        ((10, 10, 10, 10, 10), 'train')
    """
    text = os.fspath(name)
    kind, _, rest = text.partition(":")
    known = imagenet_classes() if classes == IMAGENET else classes
    if isinstance(known, str):
        raise InvalidInputError(f"classes must be a sequence of names or '{IMAGENET}', got '{known}'.")
    if kind in ("mnist", "digits-8x8", "timm"):
        data = _open_named(kind, rest, split, source)
        if known is not None and tuple(known) != data.classes:
            raise InvalidInputError(
                f"'{text}' has class names of its own ({', '.join(data.classes[:3])}, …); "
                "leave out `classes`."
            )
    else:
        data = open_folder(text, split, classes=known, checksum=checksum)
    return data.limit(limit, seed=seed)


def imagenet_classes() -> tuple[str, ...]:
    """Return the 1000 WordNet identifiers of ImageNet-1K in the order of their labels."""
    return tuple(require("timm.data", "deep").ImageNetInfo(IMAGENET).label_names())


def _open_named(kind: str, rest: str, split: str, source: Source) -> ImageData:
    """Open data that is no folder of ours."""
    if kind == "timm":
        dataset, _, root = rest.partition("@")
        return open_timm(dataset, split, root=root or None)
    return open_digits(kind, rest, split, source=source)
