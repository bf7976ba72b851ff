"""The images of the deep-net experiment: both tasks, training and test, opened once and named."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from condnum.deep.backbone import Backbone
from condnum.deep.image_data import DECODED_BUDGET, ImageData, Unreadable
from condnum.deep.image_names import IMAGENET, imagenet_classes, open_images
from condnum.deep.rir_groups import check_count
from condnum.deep.training.preparation import hold_out
from condnum.deep.transforms import ImageTransform, training_transform
from condnum.experiments.deep_config import DeepConfig
from condnum.experiments.deep_studies import IMAGES

#: Seed of the images that a limit per class keeps: the same ones for every seed of the run.
_LIMIT_SEED = 0


#: Images of a task by which it is told whether they are coloured, and levels of 255 by which the channels of
#: a grey one may differ (JPEG).
_LOOKED_AT = 16
_GREY = 4.0


@dataclass(frozen=True, eq=False)
class DeepTasks:
    """Images of both tasks: to train on, to choose θ by, and to report on."""

    imagenet_head: bool  # D_P's labels are in the order of the 1000 outputs of an ImageNet head
    pretrain: ImageData  # D_P, training: θ₀, if it is trained here, and θ_I
    pretrain_held: ImageData  # of the training split, seen by neither
    pretrain_test: ImageData
    harmful: ImageData  # D_H, likewise
    harmful_held: ImageData
    harmful_test: ImageData

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of each set, by name and split."""
        return {f"{d.name} ({d.split})": d.checksum for d in self.all}

    @property
    def checksum(self) -> str:
        """SHA-256 of all of them together."""
        return hashlib.sha256("\n".join(self.checksums.values()).encode()).hexdigest()

    @property
    def all(self) -> tuple[ImageData, ...]:
        """The six sets."""
        return tuple(part for part in vars(self).values() if isinstance(part, ImageData))

    @cached_property
    def coloured(self) -> bool:
        """Whether most images of either task are: their channels differ by more than `_GREY` on average."""

        def share(data: ImageData) -> float:
            found = (data.image(k) for k in np.linspace(0, len(data) - 1, _LOOKED_AT, dtype=int))
            spread = [np.ptp(np.asarray(image, np.float32), axis=2).mean()
                      for image in found if not isinstance(image, Unreadable)]  # fmt: skip
            return float(np.mean(np.array(spread) > _GREY)) if spread else 0.0

        return max(share(self.pretrain), share(self.harmful)) > 0.5

    def in_memory(self) -> DeepTasks:
        """Return the same images, decoded as far as `DECODED_BUDGET` goes."""
        left, kept = DECODED_BUDGET, []
        for data in self.all:
            kept.append(data.in_memory(left))
            left -= kept[-1].decoded_bytes
        return DeepTasks(self.imagenet_head, *kept)

    def title(self) -> str:
        """Return both data sets in one line, for figures."""
        parts = [
            f"{symbol} {_short(data.name)} ({len(data):,} images)"
            for symbol, data in (("D<sub>P</sub>", self.pretrain), ("D<sub>H</sub>", self.harmful))
        ]
        origins = dict.fromkeys(data.origin for data in (self.pretrain, self.harmful) if data.origin)
        return f"{', '.join([*parts, *origins])}, SHA-256 {self.checksum[:8]}"

    def describe(self) -> str:
        """Return both tasks in Markdown."""
        lines = [
            f"* **{symbol}** `{train.name}`: {len(train.classes)} classes, {len(train):,} training, "
            f"{len(held):,} held-out and {len(test):,} test images, SHA-256 "
            f"{', '.join(f'`{data.checksum[:8]}`' for data in (train, held, test))}"
            f"{f' (of {train.origin})' if train.origin else ''}"
            for symbol, train, held, test in (
                ("$D_P$", self.pretrain, self.pretrain_held, self.pretrain_test),
                ("$D_H$", self.harmful, self.harmful_held, self.harmful_test),
            )
        ]
        return "\n".join(lines)


def open_tasks(config: DeepConfig) -> DeepTasks:
    """Open the images of a configuration; nothing is decoded yet.

    A D_P whose class folders are all WordNet identifiers of ImageNet-1K gets the label order of timm's
    ImageNet heads, if its weights come with such a head.
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
    parts: list[ImageData] = []
    for name, data, task in ((names[0], pretrain, "D_P"), (names[1], harmful, "D_H")):
        rest, held = hold_out(data.labels, _LIMIT_SEED)
        check_count(len(rest), f"D_{task[2]} without what is held out", config.group_size)
        apart = replace(data.take(held), split=f"{data.split}, held out")
        parts += [data.take(rest), apart, opened(name, "test", data.classes)]
    return DeepTasks(imagenet, *parts)


def task_transform(config: DeepConfig, tasks: DeepTasks, backbone: Backbone) -> ImageTransform:
    """Return the training transform of a run: weights that are drawn here prescribe no crop.

    Images of one's own are augmented as photographs if they are coloured, else gently: the mirror image of a
    digit or a letter is another one.
    """
    crop = {"crop_pct": 1.0} if config.chosen_weights == "none" or config.data != IMAGES else {}
    augmentation = config.study.augmentation or ("photograph" if tasks.coloured else "gentle")
    return training_transform(backbone, input_size=config.side, augmentation=augmentation, **crop)


def _is_folder(name: str) -> bool:
    """Tell whether `open_images` takes a name for a folder."""
    return name.partition(":")[0] not in ("mnist", "digits-8x8", "timm")


def _short(name: str) -> str:
    """Return the last two parts of a path: a figure's title has no room for more."""
    return "/".join(name.replace("\\", "/").rstrip("/").split("/")[-2:]) if _is_folder(name) else name
