"""The images of the deep-net experiment: both tasks, training and test, opened once and named."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from condnum.deep.backbone import Backbone
from condnum.deep.image_data import ImageData
from condnum.deep.image_names import IMAGENET, imagenet_classes, open_images
from condnum.deep.rir_groups import check_count
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.experiments.deep_config import DeepConfig
from condnum.experiments.deep_studies import IMAGES

#: Seed of the images that a limit per class keeps: the same ones for every seed of the run.
_LIMIT_SEED = 0


@dataclass(frozen=True, eq=False)
class DeepTasks:
    """Training and test images of both tasks."""

    pretrain: ImageData  # D_P, training
    pretrain_test: ImageData
    harmful: ImageData  # D_H, training
    harmful_test: ImageData
    imagenet_head: bool  # D_P's labels are in the order of the 1000 outputs of an ImageNet head

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of each set, by name and split."""
        return {f"{d.name} ({d.split})": d.checksum for d in self.all}

    @property
    def checksum(self) -> str:
        """SHA-256 of all of them together."""
        return hashlib.sha256("\n".join(self.checksums.values()).encode()).hexdigest()

    @property
    def all(self) -> tuple[ImageData, ImageData, ImageData, ImageData]:
        """The four sets."""
        return self.pretrain, self.pretrain_test, self.harmful, self.harmful_test

    def title(self) -> str:
        """Return both data sets in one line, for figures."""
        parts = [
            f"{symbol} {_short(data.name)} ({len(data):,} images)"
            for symbol, data in (("D<sub>P</sub>", self.pretrain), ("D<sub>H</sub>", self.harmful))
        ]
        return f"{', '.join(parts)}, SHA-256 {self.checksum[:8]}"

    def describe(self) -> str:
        """Return both tasks in Markdown."""
        lines = [
            f"* **{symbol}** `{train.name}`: {len(train.classes)} classes, {len(train):,} training and "
            f"{len(test):,} test images, SHA-256 `{train.checksum[:8]}` and `{test.checksum[:8]}`"
            for symbol, train, test in (
                ("$D_P$", self.pretrain, self.pretrain_test),
                ("$D_H$", self.harmful, self.harmful_test),
            )
        ]
        return "\n".join(lines)


def open_tasks(config: DeepConfig) -> DeepTasks:
    """Open the images of a configuration; nothing is decoded yet.

    A D_P whose class folders are all WordNet identifiers of ImageNet-1K gets the label order of timm's
    ImageNet heads, if its weights come with such a head.

    Args:
        config: Its data, limit and groups.

    Returns:
        Both tasks.

    Raises:
        DataNotFoundError: Not here; the message says what to put where.
        DataFormatError: Not in a known layout, or labels out of range.
        InvalidInputError: One class only, or fewer images than a group.
        MissingExtraError: timm or Pillow is not installed.
    """
    names, limit = config.tasks, config.images_per_class
    own_head = config.chosen_weights != "none" and config.pretrain_epochs is None

    def opened(name: str, split: str, classes: tuple[str, ...] | None = None) -> ImageData:
        order = classes if classes and _is_folder(name) else None
        return open_images(name, split, limit=limit, seed=_LIMIT_SEED, classes=order)

    pretrain = opened(names[0], "train")
    imagenet = own_head and set(pretrain.classes) <= set(imagenet_classes())
    if imagenet and _is_folder(names[0]):
        pretrain = open_images(names[0], "train", limit=limit, seed=_LIMIT_SEED, classes=IMAGENET)
    harmful = opened(names[1], "train")
    tasks = DeepTasks(
        pretrain,
        opened(names[0], "test", pretrain.classes),
        harmful,
        opened(names[1], "test", harmful.classes),
        imagenet,
    )
    for data, task in ((pretrain, "D_P"), (harmful, "D_H")):
        check_count(len(data), task, config.group_size)
    return tasks


def task_transform(config: DeepConfig, backbone: Backbone) -> ImageTransform:
    """Return the un-augmented transform of a run: small digits keep their border.

    Args:
        config: Its data and image size.
        backbone: Says mean, standard deviation and, if nobody else does, the size.

    Returns:
        The transform of both tasks.
    """
    crop = {} if config.data == IMAGES else {"crop_pct": 1.0}
    return evaluation_transform(backbone, input_size=config.side, **crop)


def _is_folder(name: str) -> bool:
    """Tell whether `open_images` takes a name for a folder."""
    return name.partition(":")[0] not in ("mnist", "digits-8x8", "timm")


def _short(name: str) -> str:
    """Return the last two parts of a path: a figure's title has no room for more."""
    return "/".join(name.replace("\\", "/").rstrip("/").split("/")[-2:]) if _is_folder(name) else name
