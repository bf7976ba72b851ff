"""The data sets of the deep-net experiment, with the backbones and settings that belong to each.

Settings were chosen on seed 100, which is not among those reported; one choice for all seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from condnum.deep.transforms import Augmentation

#: The user's own tasks.
IMAGES = "images"


#: IMMA's own objective needs no balance, and a step of it costs as much as five of the others.
_BILEVEL: Mapping[str, Any] = {"loss_weight": 1.0, "steps": 100, "evaluate_every": 5}


@dataclass(frozen=True)
class StudyBackbone:
    """A backbone, and how it is made and immunized."""

    name: str  # of timm.create_model
    arguments: Mapping[str, Any] = field(default_factory=dict)  # further ones of timm.create_model
    pretraining: Mapping[str, Any] | None = None  # of `pretrain_backbone`; None: not trained here
    settings: Mapping[str, Mapping[str, Any]] = field(  # by method; "all" for each
        default_factory=lambda: {"imma": _BILEVEL}
    )


@dataclass(frozen=True)
class Study:
    """A pair of tasks with its defaults."""

    pretrain: str  # D_P, a name for `open_images`
    harmful: str  # D_H
    backbones: tuple[StudyBackbone, ...]
    weights: str  # none, timm
    pretraining: Mapping[str, Any] | None  # of a backbone that says nothing else
    image_size: int | None  # None: what the weights were made for
    limit: int | None  # images per class and split
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, of every method
    #: Of the images that θ₀ and θ_I are trained on; None: by the images, see `task_transform`.
    augmentation: Augmentation | None = "none"


#: Adam, and Eq. 11 by its plain gradient: with the dummy layer of Sec. 4.4 the same number of steps reached
#: RIR_θ0 5 to 17 on ResNet18 and MNIST (seed 100), without it 59 and more. The loss has to weigh little: at
#: weight 1, λ balanced, RIR_θ0 stays below 3.
_PLAIN: Mapping[str, Any] = {
    "optimizer": "adam",
    "schedule": "cosine",
    "weights": "balanced",
    "loss_weight": 1e-3,
    "patience": None,
}

_SHORT_BILEVEL: Mapping[str, Any] = {**_BILEVEL, "steps": 40, "evaluate_every": 4}

STUDIES: Mapping[str, Study] = {
    "embedded": Study(
        pretrain="digits-8x8:0-4",
        harmful="digits-8x8:5-9",
        backbones=(
            StudyBackbone(
                "test_resnet",
                {},
                {"epochs": 8, "batch_size": 32, "learning_rate": 2e-3},
                {
                    "all": {"learning_rate": 3e-4, "ratio": 0.1},
                    "ours": {"ratio": 0.02, "loss_weight": 1e-2},
                    "imma": _SHORT_BILEVEL,
                },
            ),
            StudyBackbone(
                "test_vit",
                {"img_size": 32, "patch_size": 8},
                {"epochs": 40, "batch_size": 32, "learning_rate": 2e-3},
                {"all": {"learning_rate": 3e-3, "ratio": 0.05}, "imma": _SHORT_BILEVEL},
            ),
        ),
        weights="none",
        pretraining={"epochs": 30, "batch_size": 32},
        image_size=32,
        limit=None,
        settings={**_PLAIN, "steps": 150, "evaluate_every": 10},
    ),
    "mnist": Study(
        pretrain="mnist:0-4",
        harmful="mnist:5-9",
        backbones=(
            StudyBackbone(
                "resnet18",
                {},
                {"epochs": 3},
                {
                    "all": {"learning_rate": 3e-5, "ratio": 0.1},
                    "ours": {"ratio": 0.02, "loss_weight": 5e-4},
                    "imma": _BILEVEL,
                },
            ),
            StudyBackbone(
                "vit_tiny_patch16_224",
                {"img_size": 32, "patch_size": 8, "depth": 6},
                {"epochs": 8},
                {"all": {"learning_rate": 1e-3, "ratio": 0.3}, "imma": _BILEVEL},
            ),
        ),
        weights="none",
        pretraining={"epochs": 8},
        image_size=32,
        limit=1000,
        settings={**_PLAIN, "steps": 300, "evaluate_every": 20},
    ),
    IMAGES: Study(
        pretrain="",
        harmful="",
        backbones=(StudyBackbone("resnet18"),),
        weights="timm",
        pretraining={"epochs": 30},
        image_size=None,
        limit=None,
        augmentation=None,
    ),
}
