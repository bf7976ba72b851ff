"""One name for any image data: a folder, `mnist:0-4`, `digits-8x8:5-9` or `timm:NAME`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.data.digits import load_small_digits
from condnum.data.mnist import load_mnist_images
from condnum.data.resolver import Source, data_folders
from condnum.deep.images import ArrayImages, ChecksumMode, FileImages, ImageData, ImageSource, ReaderImages
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, UnknownNameError, require

#: Class order of a head that was trained on ImageNet-1K, as a value of `classes`.
IMAGENET = "imagenet-1k"
#: Names of split folders, the preferred one first.
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}
SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
#: Share of each class that is the test set of a folder without one.
HOLDOUT = 0.2
#: Of digits without a split, the 8×8 ones or MNIST's test images alone, every fifth is a test image.
_HOLDOUT_EVERY = 5
#: Images and labels of Stanford Cars in its original files: flat image folders and a devkit.
_CARS = {
    "train": ("cars_train", ("devkit/cars_train_annos.mat",)),
    "test": ("cars_test", ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")),
}


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
    if kind == "timm":
        dataset, _, root = rest.partition("@")
        data = open_timm(dataset, split, root=root or None)
    elif kind in ("mnist", "digits-8x8"):
        data = open_digits(kind, rest, split, source=source)
    else:
        return open_folder(text, split, classes=known, checksum=checksum).limit(limit, seed=seed)
    if known is not None and tuple(known) != data.classes:
        raise InvalidInputError(
            f"'{text}' has class names of its own ({', '.join(data.classes[:3])}, …); leave out `classes`."
        )
    return data.limit(limit, seed=seed)


def imagenet_classes() -> tuple[str, ...]:
    """Return the 1000 WordNet identifiers of ImageNet-1K in the order of their labels."""
    return tuple(require("timm.data", "deep").ImageNetInfo(IMAGENET).label_names())


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
    base = Path(root).expanduser()
    if not base.is_dir():
        raise DataNotFoundError(f"there is no folder {base.absolute()}; give the folder of the data set.")
    while not any(map(_is_image, base.iterdir())):
        inside = _folders(base)
        if len(inside) != 1 or not any((inside[0] / name).is_dir() for name in ("train", "devkit")):
            break
        base = inside[0]
    if (base / "devkit" / "cars_meta.mat").is_file() and (base / "cars_train").is_dir():
        return _open_cars(base, split, checksum)
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
    files: list[str] = []
    labels: list[int] = []
    for name, members in found.items():
        chosen = members if holdout is None else _held_out(members, holdout)
        files += chosen
        labels += [names.index(name)] * len(chosen)
    source = FileImages(folder, tuple(files), checksum)
    return ImageData(str(root), split, names, np.array(labels), source, np.arange(len(files)))


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Return a sort key that puts `class10` after `class9`.

    Examples:
        >>> sorted(["c10", "c9", "b"], key=natural_key)
        ['b', 'c9', 'c10']
    """
    parts = re.split(r"(\d+)", name.lower())
    return tuple((0, int(part)) if i % 2 else (1, part) for i, part in enumerate(parts))


def _is_image(path: Path) -> bool:
    """Tell whether a file is an image by its suffix; hidden files (`._x.jpg`) are not."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _folders(path: Path) -> list[Path]:
    """Return the visible sub-folders, in natural order."""
    return sorted(
        (child for child in path.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))),
        key=lambda child: (natural_key(child.name), child.name),
    )


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
        tests = (base / name for name in SPLIT_FOLDERS["test"])  # ImageNet ships its `val` without classes
        flat = next((f for f in tests if f.is_dir() and any(map(_is_image, f.iterdir()))), None)
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


def _class_files(folder: Path) -> dict[str, list[str]]:
    """Return the relative paths of each class, classes in natural order."""
    found: dict[str, list[str]] = {}
    for child in _folders(folder):
        paths = (Path(at) / name for at, _, names in os.walk(child, followlinks=True) for name in names)
        found[child.name] = sorted(p.relative_to(folder).as_posix() for p in paths if _is_image(p))
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


def _held_out(members: list[str], side: str) -> list[str]:
    """Return one side of the 80/20 split of a class."""
    count = round(HOLDOUT * len(members))
    if not count:
        raise InvalidInputError(
            f"a class has {len(members)} image(s) ({members[0]}), too few to hold out a fifth for testing; "
            "add images, or a test/ folder."
        )
    test = set(sorted(members, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())[:count])
    return [name for name in members if (name in test) == (side == "test")]


def _open_cars(root: Path, split: str, checksum: ChecksumMode) -> ImageData:
    """Open a split of Stanford Cars' original files."""
    if split not in _CARS:
        raise DataNotFoundError(f"Stanford Cars has the splits train and test, not '{split}'.")
    folder, candidates = _CARS[split]
    path = next((root / name for name in candidates if (root / name).is_file()), None)
    if path is None:
        raise DataNotFoundError(
            f"{root}: {' or '.join(candidates)} is missing; it holds the labels of {folder}/ (the "
            "annotations of the devkit's own test file have none)."
        )
    classes = tuple(str(name) for name in _matlab(root / "devkit" / "cars_meta.mat", "class_names"))
    rows = _matlab(path, "annotations")
    if rows.dtype.names is None or not {"fname", "class"} <= set(rows.dtype.names):
        raise DataFormatError(
            f"{path}: 'annotations' must have the fields 'fname' and 'class', as the devkit has."
        )
    files = tuple(str(name) for name in rows["fname"])
    for name in files:
        if Path(name).name != name:
            raise DataFormatError(f"{path}: '{name}' is not the name of a file in {folder}/.")
        if not (root / folder / name).is_file():
            raise DataNotFoundError(
                f"{root / folder / name} is missing, but {path} lists it; unpack {folder} anew."
            )
    labels = np.array([int(c) - 1 for c in rows["class"]])  # MATLAB counts from 1
    source = FileImages(root / folder, files, checksum)
    return ImageData(str(root), split, classes, labels, source, np.arange(len(files)))


def _matlab(path: Path, field: str) -> Any:
    """Return one variable of a .mat file, `(n,)`."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, squeeze_me=True, variable_names=[field])
    except (MatReadError, ValueError, TypeError, NotImplementedError, OSError) as error:
        raise DataFormatError(
            f"{path} cannot be read as a MATLAB 5 file ({error}); fetch it again."
        ) from error
    if field not in content:
        raise DataFormatError(f"{path} has no variable '{field}'; it is not the file of the devkit.")
    return np.atleast_1d(content[field])


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
    reader = getattr(dataset, "reader", None)
    index = getattr(reader, "class_to_idx", None)
    if getattr(dataset, "classes", None):
        classes = tuple(str(known) for known in dataset.classes)
    elif index:
        classes = tuple(sorted(index, key=index.__getitem__))
    else:
        classes = tuple(str(c) for c in range(int(labels.max(initial=-1)) + 1))
    array: NDArray[Any] = np.asarray([] if getattr(dataset, "data", None) is None else dataset.data)
    images = dataset if reader is None else reader
    source: ImageSource
    if array.dtype == np.uint8 and (array.ndim == 3 or (array.ndim == 4 and array.shape[-1] == 3)):
        source = ArrayImages(array, title)
    else:
        source = ReaderImages(lambda i: images[i][0], len(dataset), title)
    return ImageData(title, split, classes, labels, source, np.arange(len(labels)))


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
