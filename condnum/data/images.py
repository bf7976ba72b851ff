"""Labeled images: folders as torchvision's `ImageFolder` reads them, digits by name, torch data sets.

Images decode when they are asked for; one that does not is an `Unreadable`, so that it can be counted.
Folders need torchvision and Pillow, which come with the extra `deep`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from condnum.data.digits import load_mnist_images, load_small_digits
from condnum.data.files import find_folder
from condnum.data.task_pair import sha256_arrays
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    check_integer,
    check_known,
    require,
)
from condnum.files import sha256_file

if TYPE_CHECKING:
    from PIL.Image import Image

#: Names of split folders in lower case, the preferred one first.
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "testing", "val", "valid", "validation")}
#: Fraction of each class that is the test set of data without one.
HOLDOUT = 0.2
#: How the names begin of what systems and programs put beside images.
_HIDDEN = (".", "__", "@eaDir")
#: Keys of images and of labels in items and batches that are dictionaries.
_IMAGE_KEYS, _LABEL_KEYS = ("pixel_values", "image", "images", "img"), ("labels", "label")


@dataclass(frozen=True)
class Unreadable:
    """An image that does not decode."""

    name: str  # path, or position in its data set
    reason: str  # what the decoder said

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True, eq=False)
class ImageData:
    """Labeled images that decode when they are asked for.

    Raises:
        DataFormatError: No images, or labels outside 0 … C−1.
        InvalidInputError: All images are of one class.
    """

    name: str  # what was opened, "mnist:0-4" or a folder
    split: str  # "train", "test" or a folder's name
    classes: tuple[str, ...]  # C names; label c is classes[c]
    labels: NDArray[np.int64]  # (N,) in 0 … C−1
    items: Any  # of the whole set: paths, arrays (h, w) or (h, w, 3), PIL images, or tensors for a net
    positions: NDArray[np.int64]  # (N,) of the images among the items
    warnings: tuple[str, ...] = ()  # what was found beside them

    def __post_init__(self) -> None:
        labels, classes = self.labels, len(self.classes)
        if labels.shape != self.positions.shape or not labels.size:
            raise DataFormatError(
                f"{self.title}: needs at least one image and a label for each, got {self.positions.size} "
                f"image(s) and {labels.size} label(s)."
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if wrong.size:
            raise DataFormatError(
                f"{self.title}: labels are 0 to {classes - 1}; {wrong.size} are out of range, the first is "
                f"{labels[wrong[0]]} of image {self.positions[wrong[0]]}; drop them."
            )
        if np.all(labels == labels[0]):
            raise InvalidInputError(
                f"{self.title} holds one class only, '{self.classes[labels[0]]}' ({len(labels)} images); "
                "give the folder that holds the class sub-folders."
            )

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    @property
    def title(self) -> str:
        """Name and split, for messages."""
        return f"{self.name} ({self.split})"

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each class, `(C,)`."""
        return tuple(np.bincount(self.labels, minlength=len(self.classes)).tolist())

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the images in use, of files their bytes, in their order and with their labels."""
        digest = hashlib.sha256(sha256_arrays(labels=self.labels).encode())
        for position in self.positions.tolist():
            item = self.items[position]
            own = sha256_file(item) if isinstance(item, str) else sha256_arrays(image=np.asarray(item))
            digest.update(own.encode())
        return digest.hexdigest()

    @cached_property
    def tensors(self) -> bool:
        """Whether the images are tensors as a net takes them, which no transform changes."""
        return isinstance(self.image(0), Tensor)

    def image(self, index: int) -> Image | Tensor | Unreadable:
        """Decode an image to RGB, or say why there is none: a broken file must not end an hour's work."""
        position = int(self.positions[index])
        name = self.items[position] if isinstance(self.items, tuple) else f"{self.name}[{position}]"
        try:
            item = self.items[position]
            return item if isinstance(item, Tensor) else _rgb(item)
        except CondnumError:
            raise
        except Exception as error:  # a decoder meets damage of every kind, and raises accordingly
            return Unreadable(name, f"{type(error).__name__}: {error}")

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> ImageData:
        """Return the images at these indices `(n,)`, in this order, with the same classes."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, labels=self.labels[chosen], positions=self.positions[chosen])

    def limit(self, per_class: int | None, *, seed: int = 0) -> ImageData:
        """Return at most `per_class` images of each class (None: all), the same ones on every machine.

        A smaller limit gives a subset of a larger one's images; the order stays.
        """
        if per_class is None:
            return self
        check_integer("the limit per class", per_class, 1)
        return self.take(rows_per_class(self.labels, per_class, seed))


def _rgb(item: Any) -> Image:
    """Return an image in RGB, upright; gray of more than 8 bits is refused, which Pillow would cut off."""
    pillow = require("PIL.Image", "deep")
    if isinstance(item, str):
        with pillow.open(item) as image:
            image.load()
    else:
        image = pillow.fromarray(item) if isinstance(item, np.ndarray) else item
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"gray values of more than 8 bits (mode {image.mode}); save them as 8 bits")
    with suppress(Exception):  # damaged EXIF, of whatever kind, turns nothing
        image = require("PIL.ImageOps", "deep").exif_transpose(image)
    rgb: Image = image.convert("RGB")
    return rgb


def rows_per_class(labels: NDArray[np.int64], count: int | None, seed: int) -> NDArray[np.int64]:
    """Return at most so many rows of each class (None: all), ascending; fewer are a subset of more."""
    drawn = [
        np.random.default_rng([seed, c]).permutation(np.flatnonzero(labels == c))[:count]
        for c in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn))


def open_images(
    name: str | os.PathLike[str],
    split: str = "train",
    *,
    limit: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> ImageData:
    """Open image data by name.

    Args:
        name: `mnist:0-4` and `digits-8x8:5-9` (digits as gray images), else a folder, there or below a data
            folder such as `$CONDNUM_DATA`: `train/CLASS/…` and `test/`, `val/` or `valid/` in any case, or
            classes alone.
            Without a test split a fifth of each class is `test`; an image stays on its side when others are
            added. Images are the files that torchvision's `ImageFolder` reads, without hidden ones; others
            in class folders are counted in `warnings`.
        split: `train` or `test`, or the name of a folder's split (`valid`).
        limit: Largest number of images of a class, drawn from `seed`; see `ImageData.limit`.
        seed: Of that draw.
        classes: Class names of a folder in label order; default `c2` before `c10`, as timm has it.

    Returns:
        The images.

    Raises:
        DataNotFoundError: Not here; the message says what to put where.
        DataFormatError: Not in a known layout, or labels out of range.
        InvalidInputError: One class only, bad digits or limit.

    Examples:
        >>> data = open_images("digits-8x8:0-4", limit=10)
        >>> data.counts, data.split
        ((10, 10, 10, 10, 10), 'train')
    """
    text = os.fspath(name)
    kind, _, digits = text.partition(":")
    if kind in ("mnist", "digits-8x8"):
        data = _open_digits(text, kind, digits, split)
    else:
        data = _open_folder(text, split, classes)
    return data.limit(limit, seed=seed)


def _open_folder(root: str, split: str, classes: Sequence[str] | None) -> ImageData:
    """Open one split of an image folder as torchvision's `ImageFolder` does; nothing is decoded yet."""
    reader = require("torchvision.datasets.folder", "deep")
    folder, holdout = _split_folder(find_folder(root), split)
    natural = require("timm.utils", "deep").natural_key
    found = sorted(_folders(folder), key=lambda name: (natural(name), name))
    names = tuple(found if classes is None else classes)
    if unknown := [name for name in found if name not in names]:
        raise DataFormatError(
            f"{folder}: {len(unknown)} class folder(s) are not among the {len(names)} expected classes "
            f"({', '.join(names[:3])}, …), the first is '{unknown[0]}'; train and test need the same classes."
        )
    labels_of, others = {name: names.index(name) for name in found}, list[str]()

    def is_image(path: str) -> bool:
        if any(part.startswith(_HIDDEN) for part in Path(path).relative_to(folder).parts):
            return False
        wanted: bool = reader.is_image_file(path)
        if not wanted:
            others.append(path)
        return wanted

    try:
        samples = reader.make_dataset(str(folder), labels_of, is_valid_file=is_image)
    except (FileNotFoundError, ValueError) as error:  # a class without images, or none
        raise DataFormatError(
            f"{folder}: {error} Put the images into {folder}/<class>/<image>, or into "
            f"{folder}/train/<class>/<image> and {folder}/test/<class>/<image>."
        ) from error
    files: dict[int, list[str]] = {label: [] for label in labels_of.values()}
    for path, label in samples:
        files[label].append(Path(path).relative_to(folder).as_posix())
    for name, label in labels_of.items():
        files[label] = sorted(files[label]) if holdout is None else _side(name, files[label], holdout)
    labels = np.repeat(list(files), [len(own) for own in files.values()])
    paths = tuple(str(folder / file) for own in files.values() for file in own)
    said = f"{folder}: {len(others)} files are not read as images, the first is {others[:1]}."
    return ImageData(root, split, names, labels, paths, np.arange(len(paths)), (said,) * bool(others))


def _side(name: str, files: Sequence[str], split: str) -> list[str]:
    """Return the test or the training images of a class: by their names, so that new ones move no other."""
    count = round(HOLDOUT * len(files))
    if not count:
        raise InvalidInputError(
            f"'{name}' has {len(files)} image(s), too few to hold out a fifth; add a test/ folder."
        )
    order = sorted(files, key=lambda file: hashlib.sha256(os.fsencode(file)).digest())
    return sorted(order[:count] if split == "test" else order[count:])


def _folders(path: Path) -> list[str]:
    """Return the names of the visible sub-folders."""
    return [child.name for child in path.iterdir() if not child.name.startswith(_HIDDEN) and child.is_dir()]


def _split_folder(base: Path, split: str) -> tuple[Path, str | None]:
    """Return the folder of a split, and which side of a hold-out ('train', 'test') it has to give."""
    here = {name.lower(): base / name for name in _folders(base)}
    splits = {kind: [here[name] for name in names if name in here] for kind, names in SPLIT_FOLDERS.items()}
    if split not in splits and split.lower() not in here:
        raise DataNotFoundError(f"{base} has no folder '{split}'; use train, test or the name of a folder.")
    if split not in splits:
        return here[split.lower()], None
    if splits["train"] and not splits["test"]:
        return splits["train"][0], split
    if splits["test"] and not splits["train"]:
        raise DataNotFoundError(f"{base} has {splits['test'][0].name}/ but no train/ folder; add train/.")
    return (splits[split][0], None) if splits[split] else (base, split)


def _open_digits(name: str, kind: str, subset: str, split: str) -> ImageData:
    """Open the digits `0-4`, `1,3,7-9`, or all; class names are the digits, labels count from 0."""
    check_known("split", split, ("train", "test"))
    wanted, parts = set[int](), (subset or "0-9").split(",")
    if all(re.fullmatch(r"\d(-\d)?", part) for part in parts):
        wanted = {digit for part in parts for digit in range(int(part[0]), int(part[-1]) + 1)}
    if len(wanted) < 2:
        raise InvalidInputError(f"'{subset}' is not a set of two digits or more; write 0-4 or 1,3,7-9.")
    found = load_small_digits() if kind == "digits-8x8" else load_mnist_images()
    warnings = list[str]()
    if found.provenance.split == "training":
        found = found if split == "train" else load_mnist_images(split="test")
        side = np.ones(len(found), dtype=bool)
    else:
        side = (np.arange(len(found)) % 5 == 0) == (split == "test")  # every fifth is a test image
        if kind == "mnist":
            warnings.append("MNIST: of the 10,000 test images alone; for all, run condnum data download.")
    digits = sorted(wanted)
    positions = np.flatnonzero(np.isin(found.labels, digits) & side)
    labels = np.searchsorted(digits, found.labels[positions])
    gray = np.round(found.images * (255.0 / found.pixel_max)).astype(np.uint8)
    return ImageData(name, split, tuple(map(str, digits)), labels, gray, positions, tuple(warnings))


def imagenet_classes() -> tuple[str, ...]:
    """Return the 1000 WordNet identifiers of ImageNet-1K in the order of their labels."""
    return tuple(require("timm.data", "deep").ImageNetInfo("imagenet-1k").label_names())


# Data sets of torch.

#: What `as_images` takes.
ImageSource: TypeAlias = ImageData | str | os.PathLike[str] | Dataset[Any] | DataLoader[Any] | tuple[Any, Any]


def as_images(data: ImageSource, name: str) -> ImageData:
    """Return the images of a task, whatever they are given as.

    Args:
        data: `ImageData`; a name for `open_images`; a torch `Dataset`, or whatever else has a length and
            items (image, label) or `{"pixel_values" or "image": …, "labels" or "label": …}`; a `DataLoader`
            of such batches, whose order and batch size do not count; or two tensors, images and labels.
            Tensors go to the net as they are, PIL images through a transform.
        name: What messages call the task.

    Returns:
        The images.

    Raises:
        InvalidInputError: None of these, or images that change from one access to the next.

    Examples:
        >>> found = as_images((torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 1, 0])), "D_P")
        >>> found.counts, found.tensors
        ((2, 2), True)
    """
    if isinstance(data, ImageData):
        return data
    if isinstance(data, str | os.PathLike):
        return open_images(data)
    if isinstance(data, tuple):
        return as_images(TensorDataset(*(torch.as_tensor(part).cpu() for part in data)), name)
    dataset: Any = data.dataset if isinstance(data, DataLoader) else data
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InvalidInputError(
            f"{name} is a {type(dataset).__name__} without a length or items by position; give a folder, a "
            "Dataset with both, or a DataLoader of one."
        )
    items = _Items(dataset, data.collate_fn if isinstance(data, DataLoader) else None)
    labels = np.array([items.pair(index)[1] for index in range(len(dataset))], dtype=np.int64)
    for image, again in ((items[index], items[index]) for index in range(min(3, len(labels)))):
        if isinstance(image, Tensor) and not image.is_floating_point():
            raise InvalidInputError(f"{name} holds tensors of {image.dtype}; give floats.")
        if not np.array_equal(np.asarray(image), np.asarray(again), equal_nan=True):
            raise InvalidInputError(f"{name} changes its images at random; give the same images each time.")
    classes = tuple(map(str, getattr(dataset, "classes", ())))
    if len(classes) <= labels.max(initial=0):
        classes = tuple(map(str, range(labels.max(initial=0) + 1)))
    return ImageData(name, type(dataset).__name__, classes, labels, items, np.arange(len(labels)))


class _Items:
    """The images of a data set, by position."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset, self.collate = dataset, collate

    def pair(self, index: int) -> tuple[Any, int]:
        """Return an image and its label."""
        item = self.dataset[index]
        image, label = _image_and_label(item if self.collate is None else self.collate([item]))
        return (image, int(label)) if self.collate is None else (image[0], int(label[0]))

    def __getitem__(self, index: int) -> Any:
        """Return an image."""
        return self.pair(index)[0]


def _image_and_label(item: Any) -> tuple[Any, Any]:
    """Return images and labels of an item or a batch, a sequence that begins with them or a dictionary."""
    pair = isinstance(item, tuple | list) and len(item) > 1
    label = _at_key(item, _LABEL_KEYS) if isinstance(item, Mapping) else item[1] if pair else None
    image = images_of(item)
    if image is None or label is None:
        got = f"keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise InvalidInputError(
            f"expected (image, label) or a dictionary of {' or '.join(_IMAGE_KEYS)} and "
            f"{' or '.join(_LABEL_KEYS)}, got {got}."
        )
    return image, label


def images_of(item: Any) -> Any:
    """Return what a net is given of an item or a batch: the first entry, or that of a known key."""
    if isinstance(item, Mapping):
        return _at_key(item, _IMAGE_KEYS)
    return item[0] if isinstance(item, tuple | list) and len(item) else item


def _at_key(item: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((item[key] for key in keys if key in item), None)
