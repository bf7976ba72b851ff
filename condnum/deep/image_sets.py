"""Any image data as `ImageData`: a folder, `mnist:0-4` or `digits-8x8:5-9` by name, data sets and loaders."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from condnum.data.digits import load_mnist_images, load_small_digits
from condnum.data.files import find_folder
from condnum.deep.images import FileImages, ImageData, ItemImages
from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    check_known,
    require,
)

#: What `as_images` takes.
ImageSource: TypeAlias = ImageData | str | os.PathLike[str] | Dataset[Any] | DataLoader[Any] | tuple[Any, Any]
#: Keys of images and of labels in items and batches that are dictionaries.
_KEYS = (("pixel_values", "image", "images", "img"), ("labels", "label"))
#: Names of split folders in lower case, the preferred one first.
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "testing", "val", "valid", "validation")}
#: How names begin of what systems and programs put beside images.
_HIDDEN = (".", "__", "@eaDir")
#: Share of each class that is the test set of a folder without one.
HOLDOUT = 0.2


def open_images(
    name: str | os.PathLike[str],
    split: str = "train",
    *,
    limit: int | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> ImageData:
    """Open image data by name; images decode when they are used.

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
        classes: Class names in label order, for folders; default `c2` before `c10`, as timm has it.

    Returns:
        The images.

    Raises:
        DataNotFoundError: Not here; the message says what to put where.
        DataFormatError: Not in a known layout, or labels out of range.
        InvalidInputError: One class only, bad digits or limit, `classes` for data with its own.

    Examples:
        >>> data = open_images("digits-8x8:0-4", limit=10)
        >>> data.counts, data.split
        ((10, 10, 10, 10, 10), 'train')
    """
    text = os.fspath(name)
    kind, _, rest = text.partition(":")
    if kind in ("mnist", "digits-8x8"):
        data = _open_digits(kind, rest, split)
    else:
        data = _open_folder(text, split, classes)
    if classes is not None and tuple(classes) != data.classes:
        raise InvalidInputError(
            f"'{text}' has its own class names ({', '.join(data.classes[:3])}, …); leave out `classes`."
        )
    return data.limit(limit, seed=seed)


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
        if not np.array_equal(np.asarray(image), np.asarray(again)):
            raise InvalidInputError(
                f"{name} changes its images at random; leave that to transform_P and transform_H, which know "
                "the same images without it."
            )
    classes = tuple(map(str, getattr(dataset, "classes", ())))
    if len(classes) <= labels.max(initial=0):
        classes = tuple(map(str, range(labels.max(initial=0) + 1)))
    return ImageData(
        name, type(dataset).__name__, classes, labels, ItemImages(items, name), np.arange(len(labels))
    )


class _Items:
    """The images of a data set, by position."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset, self.collate = dataset, collate

    def pair(self, index: int) -> tuple[Any, int]:
        """Return an image and its label."""
        item = self.dataset[index]
        image, label = image_and_label(item if self.collate is None else self.collate([item]))
        return (image, int(label)) if self.collate is None else (image[0], int(label[0]))

    def __getitem__(self, index: int) -> Any:
        """Return an image."""
        return self.pair(index)[0]


def image_and_label(item: Any) -> tuple[Any, Any]:
    """Return images and labels of an item or a batch, a sequence that begins with them or a dictionary."""
    pair = isinstance(item, tuple | list) and len(item) > 1
    label = _at_key(item, _KEYS[1]) if isinstance(item, Mapping) else item[1] if pair else None
    image = images_of(item)
    if image is None or label is None:
        got = f"keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise InvalidInputError(
            f"expected (image, label) or a dictionary of {' or '.join(_KEYS[0])} and "
            f"{' or '.join(_KEYS[1])}, got {got}."
        )
    return image, label


def images_of(item: Any) -> Any:
    """Return what a net is given of an item or a batch: the first entry, or that of a known key."""
    if isinstance(item, Mapping):
        return _at_key(item, _KEYS[0])
    return item[0] if isinstance(item, tuple | list) and len(item) else item


def _at_key(item: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((item[key] for key in keys if key in item), None)


def imagenet_classes() -> tuple[str, ...]:
    """Return the 1000 WordNet identifiers of ImageNet-1K in the order of their labels."""
    return tuple(require("timm.data", "deep").ImageNetInfo("imagenet-1k").label_names())


def _open_folder(root: str, split: str, classes: Sequence[str] | None) -> ImageData:
    """Open one split of an image folder as torchvision's `ImageFolder` does; nothing is decoded yet."""
    reader = require("torchvision.datasets.folder", "deep")
    folder, holdout = _split_folder(find_folder(root), split)
    found = [child.name for child in _folders(folder)]
    names = tuple(found if classes is None else classes)
    if unknown := [name for name in found if name not in names]:
        raise DataFormatError(
            f"{folder}: {len(unknown)} class folder(s) are not among the {len(names)} expected classes "
            f"({', '.join(names[:3])}, …), the first is '{unknown[0]}'; train and test need the same classes."
        )
    others = list[str]()

    def is_image(path: str) -> bool:
        parts = Path(path).relative_to(folder).parts
        if any(part.startswith(_HIDDEN) for part in parts):
            return False
        wanted: bool = reader.is_image_file(path)
        if not wanted:
            others.append(path)
        return wanted

    try:
        labels_of = {name: names.index(name) for name in found}
        samples = reader.make_dataset(str(folder), labels_of, is_valid_file=is_image)
    except (FileNotFoundError, ValueError) as error:  # a class without images, or none
        raise DataFormatError(
            f"{folder}: {error} Put the images into {folder}/<class>/<image>, or into "
            f"{folder}/train/<class>/<image> and {folder}/test/<class>/<image>."
        ) from error
    inside: dict[int, list[str]] = {label: [] for label in labels_of.values()}
    for path, label in samples:
        inside[label].append(Path(path).relative_to(folder).as_posix())
    files: list[str] = []
    labels: list[int] = []
    for name, label in labels_of.items():
        members = sorted(inside[label])
        if holdout is not None:
            count = round(HOLDOUT * len(members))
            if not count:
                raise InvalidInputError(
                    f"'{name}' has {len(members)} image(s), too few to hold out a fifth; add a test/ folder."
                )
            # by name: an image stays on its side when others are added
            order = sorted(members, key=lambda member: hashlib.sha256(os.fsencode(member)).digest())
            members = sorted(order[:count] if holdout == "test" else order[count:])
        files += members
        labels += [label] * len(members)
    said = f"{folder}: {len(others)} files are not read as images, the first is {others[:1]}."
    return ImageData(
        root, split, names, np.array(labels), FileImages(folder, tuple(files)), np.arange(len(files)),
        warnings=(said,) if others else (),
    )  # fmt: skip


def _folders(path: Path) -> list[Path]:
    """Return the visible sub-folders, in natural order: `class10` after `class9`."""

    def natural(child: Path) -> tuple[Any, ...]:
        parts = re.split(r"(\d+)", child.name.lower())
        return [int(part) if i % 2 else part for i, part in enumerate(parts)], child.name

    folders = (child for child in path.iterdir() if not child.name.startswith(_HIDDEN) and child.is_dir())
    return sorted(folders, key=natural)


def _split_folder(base: Path, split: str) -> tuple[Path, str | None]:
    """Return the folder of a split, and which side of a hold-out ('train', 'test') it has to give."""
    here = {child.name.lower(): child for child in _folders(base)}
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


def _open_digits(dataset: str, subset: str, split: str) -> ImageData:
    """Open the digits `0-4`, `1,3,7-9`, or all; class names are the digits, labels count from 0."""
    check_known("split", split, ("train", "test"))
    wanted: set[int] = set() if subset else set(range(10))
    for part in subset.split(",") if subset else ():
        match = re.fullmatch(r"\s*(\d)\s*(?:-\s*(\d)\s*)?", part)
        digits = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not digits:
            raise InvalidInputError(f"'{subset}' is not a set of digits; write it like 0-4 or 1,3,7-9.")
        wanted |= set(digits)
    if len(wanted) < 2:
        raise InvalidInputError(f"'{subset}' is a single class; a task needs at least two digits.")
    found = load_small_digits() if dataset == "digits-8x8" else load_mnist_images()
    if found.provenance.split == "training":
        found = found if split == "train" else load_mnist_images(split="test")
        side = np.ones(len(found), dtype=bool)
    else:
        side = (np.arange(len(found)) % 5 == 0) == (split == "test")  # every fifth is a test image
    classes = sorted(wanted)
    positions = np.flatnonzero(np.isin(found.labels, classes) & side)
    grey = np.round(found.images * (255.0 / found.pixel_max)).astype(np.uint8)
    return ImageData(
        name=f"{dataset}:{subset}" if subset else dataset,
        split=split,
        classes=tuple(map(str, classes)),
        labels=np.searchsorted(classes, found.labels[positions]),
        source=ItemImages(grey, f"{dataset} {split}"),
        positions=positions,
        origin=found.label,
    )
