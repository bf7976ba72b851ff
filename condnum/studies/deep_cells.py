"""Recipes, images and measurements of the deep-net experiment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from condnum.deep.backbone import Backbone
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.images import ImageData, Unreadable
from condnum.deep.probe import convex_probe, descent_path, path_slowdown, probe_accuracy
from condnum.deep.rir import DRAW_STRIDE, rir_from_features
from condnum.deep.transforms import Augmentation
from condnum.studies.frame.cells import Arrays, Cell, Row
from condnum.studies.measure import SPECTRA
from condnum.theory.spectra import Convention

#: The user's own tasks.
IMAGES = "images"

#: IMMA's own objective needs no balance, and a step of it costs as much as five of the others.
_BILEVEL: Mapping[str, Any] = {"loss_weight": 1.0, "steps": 100, "record_every": 5}


@dataclass(frozen=True)
class BackboneRecipe:
    """A backbone, and how it is made and immunized."""

    name: str  # of timm.create_model
    arguments: Mapping[str, Any] = field(default_factory=dict)  # further ones of timm.create_model
    pretraining: Mapping[str, Any] | None = None  # of `pretrain_backbone`; None: the recipe's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, of every method
    ours: Mapping[str, Any] = field(default_factory=dict)  # of "ours" alone


@dataclass(frozen=True)
class Recipe:
    """A pair of tasks with its defaults."""

    pretrain: str  # D_P, a name for `open_images`
    harmful: str  # D_H
    backbones: tuple[BackboneRecipe, ...]
    weights: str  # none, timm
    pretraining: Mapping[str, Any]  # of a backbone that says nothing else
    image_size: int | None = 32  # None: what the weights were made for
    limit: int | None = None  # images per class and split
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, of every method
    imma: Mapping[str, Any] = field(default_factory=lambda: _BILEVEL)  # of IMMA, on every backbone
    #: Of the images that θ₀ and θ_I are trained on; None: by the images, see `DeepNets.transform`.
    augmentation: Augmentation | None = "none"


#: Adam, and Eq. 11 by its plain gradient: with the dummy layer of Sec. 4.4 the same number of steps reached
#: RIR_θ0 5 to 17 on ResNet18 and MNIST (seed 100), without it 59 and more. The loss has to weigh little: at
#: weight 1, λ balanced, RIR_θ0 stays below 3.
_PLAIN = {"schedule": "cosine", "weights": "balanced", "loss_weight": 1e-3, "patience": None}
_SMALL_VIT = {"patch_size": 8}

RECIPES: Mapping[str, Recipe] = {
    "embedded": Recipe(
        "digits-8x8:0-4",
        "digits-8x8:5-9",
        (
            BackboneRecipe(
                "test_resnet",
                pretraining={"epochs": 8, "batch_size": 32, "learning_rate": 2e-3},
                settings={"learning_rate": 3e-4, "ratio": 0.1},
                ours={"ratio": 0.02, "loss_weight": 1e-2},
            ),
            BackboneRecipe(
                "test_vit",
                _SMALL_VIT,
                pretraining={"epochs": 40, "batch_size": 32, "learning_rate": 2e-3},
                settings={"learning_rate": 3e-3, "ratio": 0.05},
            ),
        ),
        weights="none",
        pretraining={"epochs": 30, "batch_size": 32},
        settings={**_PLAIN, "steps": 400, "record_every": 20},
        imma={**_BILEVEL, "steps": 40, "record_every": 4},
    ),
    "mnist": Recipe(
        "mnist:0-4",
        "mnist:5-9",
        (
            BackboneRecipe(
                "resnet18",
                pretraining={"epochs": 3},
                settings={"learning_rate": 3e-5, "ratio": 0.1},
                ours={"ratio": 0.02, "loss_weight": 5e-4},
            ),
            BackboneRecipe(
                "vit_tiny_patch16_224",
                {**_SMALL_VIT, "depth": 6},
                settings={"learning_rate": 1e-3, "ratio": 0.3},
            ),
        ),
        weights="none",
        pretraining={"epochs": 8},
        limit=1000,
        settings={**_PLAIN, "steps": 600, "record_every": 20},
    ),
    IMAGES: Recipe(
        "", "", (BackboneRecipe("resnet18"),), weights="timm", pretraining={"epochs": 30}, image_size=None,
        augmentation=None,
    ),
}  # fmt: skip

#: Methods of Table 3, in display order; `erase`, which trains the whole net, and the same from transformed
#: images too are asked for by name.
NET_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")
ERASE_TRANSFORMED = "erase_transformed"
KNOWN_METHODS = (*NET_METHODS, "erase", ERASE_TRANSFORMED)

#: Seed of the images that a limit per class keeps: the same ones for every seed of the run.
LIMIT_SEED = 0


#: Images of a task by which it is told whether they are colored, and levels of 255 by which the channels of
#: a gray one may differ (JPEG).
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
        return {f"{data.name} ({data.split})": data.checksum for data in self.all}

    @property
    def checksum(self) -> str:
        """SHA-256 of all of them together."""
        return hashlib.sha256("\n".join(self.checksums.values()).encode()).hexdigest()

    @property
    def warnings(self) -> list[str]:
        """What is in the folders and was left out."""
        return list(dict.fromkeys(text for data in self.all for text in data.warnings))

    @property
    def all(self) -> tuple[ImageData, ...]:
        """The six sets."""
        return tuple(part for part in vars(self).values() if isinstance(part, ImageData))

    @cached_property
    def colored(self) -> bool:
        """Whether images of the tasks are, on average: their channels differ by more than `_GREY`."""
        looked_at = [
            data.image(int(k))
            for data in (self.pretrain, self.harmful)
            for k in np.linspace(0, len(data) - 1, _LOOKED_AT)
        ]
        seen = [np.asarray(image, np.float32) for image in looked_at if not isinstance(image, Unreadable)]
        return bool(seen) and float(np.mean([np.ptp(image, axis=2).mean() for image in seen])) > _GREY

    def title(self) -> str:
        """Return both data sets in one line, for figures; of a path the last two parts."""
        words = []
        for symbol, data in (("D<sub>P</sub>", self.pretrain), ("D<sub>H</sub>", self.harmful)):
            name = "/".join(Path(data.name).parts[-2:]) if is_folder(data.name) else data.name
            words.append(f"{symbol} {name} ({len(data):,} images)")
        origins = dict.fromkeys(data.origin for data in (self.pretrain, self.harmful) if data.origin)
        return f"{', '.join([*words, *origins])}, SHA-256 {self.checksum[:8]}"


def is_folder(name: str) -> bool:
    """Tell whether `open_images` takes a name for a folder."""
    return name.partition(":")[0] not in ("mnist", "digits-8x8")


def commonest(labels: NDArray[np.int64]) -> float:
    """Return the fraction of the commonest class: what naming it always gets."""
    return float(np.bincount(labels).max() / len(labels))


def doubts(data: DeepTasks, theta_0: Backbone, test: ImageFeatures, *, own_head: bool) -> list[str]:
    """Say what is likely wrong where θ₀, on features of D_P's test images, does no better than guessing."""
    accuracy, names = head_accuracy(theta_0, test), data.pretrain.classes
    share, count = commonest(data.pretrain_test.labels), len(data.pretrain_test)
    lucky = float(binom.ppf(0.975, count, share)) / count
    if accuracy > lucky:
        return []
    fix = "train it longer (--pretrain-epochs)"
    if own_head:
        fix = (
            f"most likely the classes of its head have another order, not 0 for '{names[0]}', 1 for "
            f"'{names[1]}', …: rename the folders so that they "
            "sort in that order, or train a new head (--pretrain-epochs)"
        )
    return [
        f"θ₀ does not solve D_P: its test accuracy is {100 * accuracy:.1f} %, always predicting the most "
        f"frequent class gives {100 * share:.1f} %, and random guessing at most {100 * lucky:.1f} %; {fix}."
    ]


#: Method of the cell that makes θ₀.
INITIAL = "initial"


def is_model(cell: Cell) -> bool:
    """Tell a cell that makes a model from an attack."""
    return "attacker" not in cell.at


#: How often the groups of Eq. 17 are drawn: the first draw is reported, the others show how much is luck.
GROUP_DRAWS = 5


class FeatureSets(NamedTuple):
    """Features of one model: each set of images goes through the net once."""

    pretrain: ImageFeatures  # of D_P's training images, those of the groups of Eq. 17
    pretrain_test: ImageFeatures
    harmful: ImageFeatures  # of D_H's training images
    harmful_test: ImageFeatures


def measured_features(
    cell: Cell, before: FeatureSets, after: FeatureSets, said: Sequence[str]
) -> tuple[Row, Arrays, list[str]]:
    """Return row, arrays and warnings of a cell, after those of its training: Eq. 17, both probes on D_H."""
    row: Row = {}
    seed: int = cell["seed"]
    warnings = list(said)
    pairs = {
        "": (before.pretrain, after.pretrain, before.harmful, after.harmful),
        "test_": (before.pretrain_test, after.pretrain_test, before.harmful_test, after.harmful_test),
    }
    for images, features in pairs.items():
        sizes = {"groups": cell["groups"], "group_size": min(cell["group_size"], *map(len, features))}
        seeds = (seed + DRAW_STRIDE * draw for draw in range(GROUP_DRAWS))
        draws = [rir_from_features(*features, seed=one, **sizes) for one in seeds]
        new = [text for text in draws[0].warnings if text not in warnings]
        warnings += [f"{images.replace('_', ' images: ')}{text}" for text in new]
        for convention in get_args(Convention):
            found = [getattr(draw, convention) for draw in draws]
            first = found[0]
            prefix = f"{convention}.{images}"
            for name in ("harmful_ratio", "pretrain_ratio", "rir"):
                row[f"{prefix}{name}"] = getattr(first, name)
                row[f"{prefix}{name}_group_std"] = getattr(first, f"{name}_std")
            row[f"{prefix}rir_least_draw"] = min(draw.rir for draw in found)
            row[f"{prefix}rir_largest_draw"] = max(draw.rir for draw in found)
            row[f"{prefix}success"] = first.success
            for index, role in enumerate(SPECTRA if not images else ()):
                row[f"{convention}.kappa_{role}"] = float(np.median(first.kappas[index]))
                row[f"{convention}.rank_{role}"] = int(np.median(first.ranks[index]))
    probe = probe_accuracy(after.harmful, after.harmful_test, epochs=cell["probe_epochs"], seed=seed)
    convex = convex_probe(after.harmful, after.harmful_test, seed=seed)
    curve = probe.test_accuracy
    paths = [descent_path(of.harmful, of.harmful_test) for of in (before, after)]
    if probe.at_edge:
        warnings.append("The best learning rate of the probe is at the edge of its grid.")
    if not convex.converged:
        warnings.append(
            f"The convex probe stopped at {convex.iterations} iterations: its accuracy is a lower bound."
        )
    row |= {
        "dimension": after.pretrain.dimension,
        "group_size": cell["group_size"],
        "slowdown": path_slowdown(*paths),
        "probe_final": float(curve[-1]),
        "probe_mean": float(curve[1:].mean()),
        "probe_rate": probe.learning_rate,
        "probe_multiple": probe.multiple,
        "convex": convex.test_accuracy,
        "chance": commonest(after.harmful_test.labels),
    }
    return row, {"probe": curve}, warnings
