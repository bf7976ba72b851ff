"""Image folders in their usual layouts: one sub-folder a class, with or without splits.

| data set | layout |
|---|---|
| any | `ROOT/<class>/*.jpg`, split 80/20 per class |
| any | `ROOT/train/<class>/*`, `ROOT/test/<class>/*` (or `val`, `valid`, `validation`) |
| ImageNet | `ROOT/train/<wnid>/*.JPEG`, `ROOT/val/<wnid>/*.JPEG` (its `test` has no labels) |
| Stanford Cars | `ROOT/train/<model>/*`, `ROOT/test/<model>/*`, or as released: see `stanford_cars` |
| Country211 | `ROOT/train/<country>/`, `ROOT/valid/<country>/`, `ROOT/test/<country>/` |
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from condnum.deep.image_data import ImageData
from condnum.deep.image_sources import ChecksumMode, FileImages
from condnum.deep.stanford_cars import is_devkit, open_devkit
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError

#: Names of split folders, the preferred one first.
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}
SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
#: Share of each class that is the test set of a folder without one.
HOLDOUT = 0.2


def open_folder(
    root: str | os.PathLike[str],
    split: str = "train",
    *,
    classes: Sequence[str] | None = None,
    checksum: ChecksumMode = "auto",
) -> ImageData:
    """Open one split of an image folder; nothing is decoded yet.

    A folder without a test split gives a fifth of each class as `test` and the rest as `train`: the
    images whose relative path hashes lowest, so that the split is the same on every machine and an
    image stays on its side when others are added. A wrapping folder that holds the layout and
    nothing else is entered.
    """
    base = _layout_root(Path(root).expanduser())
    if is_devkit(base):
        return open_devkit(base, split, checksum=checksum)
    folder, holdout = _split_folder(base, split)
    found = _class_files(folder)
    names = tuple(classes) if classes is not None else tuple(found)
    unknown = [name for name in found if name not in names]
    if unknown:
        raise DataFormatError(
            f"{folder}: {len(unknown)} class folder(s) are not among the {len(names)} expected classes, the "
            f"first is '{unknown[0]}' (expected {', '.join(names[:3])}, …); train and test "
            "need the same classes."
        )
    files, labels = [], []
    for name, members in found.items():
        chosen = _held_out(members, holdout)
        files += chosen
        labels += [names.index(name)] * len(chosen)
    return ImageData(
        name=str(root),
        split=split,
        classes=names,
        labels=np.array(labels, dtype=np.int64),
        source=FileImages(folder, tuple(files), checksum),
        positions=np.arange(len(files)),
    )


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key that puts `class10` after `class9`.

    Examples:
        >>> sorted(["c10", "c9", "b"], key=natural_key)
        ['b', 'c9', 'c10']
    """
    parts = re.split(r"(\d+)", name.lower())
    return tuple((0, int(part)) if i % 2 else (1, part) for i, part in enumerate(parts))


def is_image_file(path: Path) -> bool:
    """Tell whether a file is an image by its suffix; hidden files (`._x.jpg`) are not."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _folders(path: Path) -> list[Path]:
    """Return the visible sub-folders, in natural order."""
    return sorted(
        (child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))),
        key=lambda child: (natural_key(child.name), child.name),
    )


def _layout_root(root: Path) -> Path:
    """Return the folder that holds the layout: `root`, or the only folder in it that has splits."""
    if not root.is_dir():
        raise DataNotFoundError(f"there is no folder {root.absolute()}; give the folder of the data set.")
    while not any(map(is_image_file, root.iterdir())):
        inside = _folders(root)
        if len(inside) != 1 or not any((inside[0] / name).is_dir() for name in ("train", "devkit")):
            break
        root = inside[0]
    return root


def _split_folder(base: Path, split: str) -> tuple[Path, str | None]:
    """Return the folder of a split, and which side of a hold-out ('train', 'test') it has to give."""
    splits = {
        kind: [base / name for name in names if (base / name).is_dir() and _folders(base / name)]
        for kind, names in SPLIT_FOLDERS.items()
    }
    if split not in splits:
        if not (base / split).is_dir():
            raise DataNotFoundError(
                f"{base} has no folder '{split}'; use 'train', 'test' or one of its folders."
            )
        return base / split, None
    if splits["train"] and not splits["test"]:
        flat = _flat_test_folder(base)
        if split == "test" and flat:
            raise DataFormatError(
                f"{flat} holds images but no class sub-folders; sort them into one folder a class as in "
                f"{splits['train'][0]} (for ImageNet's val: the usual valprep.sh), or remove that folder "
                "to hold out a fifth of the training images."
            )
        return splits["train"][0], None if flat else split
    if splits[split]:
        return splits[split][0], None
    if splits["test"]:
        raise DataNotFoundError(
            f"{base} has {splits['test'][0].name}/ but no train/ folder; add it, or give {splits['test'][0]} "
            "itself to split that."
        )
    return base, split


def _flat_test_folder(base: Path) -> Path | None:
    """Return a test folder that holds images without classes, as ImageNet ships its `val`."""
    folders = (base / name for name in SPLIT_FOLDERS["test"])
    return next((f for f in folders if f.is_dir() and any(map(is_image_file, f.iterdir()))), None)


def _class_files(folder: Path) -> dict[str, list[str]]:
    """Return the relative paths of each class, classes in natural order."""
    found: dict[str, list[str]] = {}
    for child in _folders(folder):
        paths = (Path(at) / name for at, _, names in os.walk(child, followlinks=True) for name in names)
        found[child.name] = sorted(p.relative_to(folder).as_posix() for p in paths if is_image_file(p))
    if not found:
        raise DataFormatError(
            f"{folder} has no class sub-folders; put each class's images into a folder of its own, "
            f"{folder}/<class>/<image>."
        )
    empty = [name for name, members in found.items() if not members]
    if len(empty) == len(found):
        raise DataFormatError(
            f"{folder}: none of its {len(found)} sub-folders holds an image ({', '.join(sorted(SUFFIXES))})."
        )
    if empty:
        raise DataFormatError(
            f"{folder}: class folder '{empty[0]}' holds no image ({len(empty)} such folder(s)); add images "
            "or remove the folder."
        )
    return found


def _held_out(members: list[str], holdout: str | None) -> list[str]:
    """Return one side of the 80/20 split of a class, or all of it."""
    if holdout is None:
        return members
    count = round(HOLDOUT * len(members))
    if not count:
        raise InvalidInputError(
            f"a class has {len(members)} image(s) ({members[0]}), too few to hold out a fifth for testing; "
            "add images, or a test/ folder."
        )
    order = sorted(members, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
    test = set(order[:count])
    return [name for name in members if (name in test) == (holdout == "test")]
