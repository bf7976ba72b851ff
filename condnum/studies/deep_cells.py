"""One cell of the deep-net experiment: a backbone, a seed and a method → a model file and what it measures.

θ₀ is a cell too (`initial`): it is made once for a backbone and a seed, and its features are kept for
the methods that start from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.arrays import resolve_device
from condnum.deep.backbone import Backbone, load_backbone, save_backbone
from condnum.deep.features import Features, cached_features, head_accuracy
from condnum.deep.image_sets import IMAGENET, imagenet_classes, open_images
from condnum.deep.images import DECODED_BUDGET, ImageData, Unreadable
from condnum.deep.pretraining import Pretraining, pretrain_backbone
from condnum.deep.probe import convex_probe, probe_accuracy
from condnum.deep.rir import RirEstimate, RirTheta0, check_count, rir_from_features
from condnum.deep.training.immunization import immunize_backbone
from condnum.deep.training.preparation import hold_out
from condnum.deep.training.settings import DeepSettings, deep_preset
from condnum.deep.training.step import DEEP_METHODS
from condnum.deep.transforms import Augmentation, ImageTransform, training_transform
from condnum.errors import InvalidInputError, UnknownNameError, require
from condnum.methods import get_method
from condnum.studies.cell import CellPlan, CellResult, cached

# The data sets of the deep-net experiment, with the backbones and settings that belong to each.


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


# What the deep-net experiment runs: data, backbones and settings, and a user's choices.


#: Methods in display order.
METHODS = tuple(name for name in ("ours", "opt_kappa", "imma", "r_ill_only") if name in DEEP_METHODS)


@dataclass(frozen=True)
class DeepConfig:
    """What to run."""

    data: str = "embedded"  # embedded, mnist, or images: `pretrain` and `harmful`
    pretrain: str = ""  # D_P, a name for `open_images`; "": the study's
    harmful: str = ""  # D_H
    backbones: tuple[str, ...] = ()  # timm names; empty: the study's
    weights: str = ""  # none (drawn), timm, or a file; "": the study's
    preset: str = ""  # settings of Table 4; "": the study's
    methods: tuple[str, ...] = METHODS
    seeds: int = 3  # seeds 0 … seeds − 1
    epochs: int | None = None  # of immunization; None: the settings' own
    pretrain_epochs: int | None = None  # of training θ₀ on D_P; None: the study's
    limit: int | None = None  # images per class and split; None: the study's
    image_size: int | None = None  # side; None: the study's, else the backbone's
    groups: int = 20  # of Eq. 17
    group_size: int = 100
    probe_epochs: int = 50  # of Fig. 3
    device: str = "auto"
    workers: int = 0  # processes that decode

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.data not in STUDIES:
            raise UnknownNameError("data", self.data, STUDIES)
        for method in self.methods:
            if method not in METHODS:
                raise UnknownNameError("method", method, METHODS)
        for name, least in (
            ("seeds", 1), ("epochs", 1), ("pretrain_epochs", 1), ("limit", 2), ("image_size", 1),
            ("groups", 1), ("group_size", 2), ("probe_epochs", 1), ("workers", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name in ("epochs", "pretrain_epochs", "limit", "image_size"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
        if not self.methods:
            raise InvalidInputError(f"no methods; give some of {', '.join(METHODS)}.")
        if self.data == IMAGES and not (self.pretrain and self.harmful):
            raise InvalidInputError(
                "images of your own need both tasks: give --pretrain (D_P) and --harmful (D_H), each a "
                "folder, mnist:0-4 or timm:NAME; without them --data embedded runs on bundled digits."
            )
        if self.from_file and len(self.chosen_backbones) != 1:
            raise InvalidInputError(
                f"the weights in {self.weights} are of one backbone, but {len(self.chosen_backbones)} are to "
                "run; name the one with --backbone."
            )
        if self.preset:
            deep_preset(self.preset)
        resolve_device(self.device)

    @classmethod
    def from_parameters(
        cls,
        *,
        data: str,
        pretrain: str,
        harmful: str,
        backbone: str,
        weights: str,
        preset: str,
        methods: str,
        seeds: int,
        epochs: int,
        pretrain_epochs: int,
        limit: int,
        image_size: int,
        groups: int,
        group_size: int,
        device: str,
        workers: int,
    ) -> DeepConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Args:
            data: `embedded` or `mnist`; what `pretrain` and `harmful` are given for is `images`.
            pretrain: D_P, a name for `open_images`.
            harmful: D_H.
            backbone: Comma-separated timm names.
            weights: `none`, `timm` or a file.
            preset: A name of `deep_preset_names`.
            methods: Comma-separated names.
            seeds: How many.
            epochs: Of immunization.
            pretrain_epochs: Of training θ₀ on D_P.
            limit: Images per class and split.
            image_size: Side of the images.
            groups: Of Eq. 17.
            group_size: Images of a group.
            device: `auto`, `cpu` or `cuda`.
            workers: Processes that decode.

        Returns:
            The validated configuration.

        Raises:
            UnknownNameError: Unknown data, method or preset.
            InvalidInputError: A parameter out of range, or half of a pair of tasks.
        """
        chosen = tuple(dict.fromkeys(_words(methods)))
        for name in chosen:
            if name not in METHODS:
                raise UnknownNameError("method", name, METHODS)
        return cls(
            data=IMAGES if pretrain or harmful else data,
            pretrain=pretrain,
            harmful=harmful,
            backbones=tuple(dict.fromkeys(_words(backbone))),
            weights=weights_source(weights),
            preset=preset,
            methods=tuple(name for name in METHODS if not chosen or name in chosen),
            seeds=seeds,
            epochs=epochs or None,
            pretrain_epochs=pretrain_epochs or None,
            limit=limit or None,
            image_size=image_size or None,
            groups=groups,
            group_size=group_size,
            device=device,
            workers=workers,
        )

    @property
    def study(self) -> Study:
        """What the data come with."""
        return STUDIES[self.data]

    @property
    def tasks(self) -> tuple[str, str]:
        """Names of D_P and D_H for `open_images`."""
        return self.pretrain or self.study.pretrain, self.harmful or self.study.harmful

    @property
    def chosen_weights(self) -> str:
        """`none`, `timm` or a file."""
        return self.weights or self.study.weights

    @property
    def from_file(self) -> bool:
        """Whether the weights are in a file."""
        return self.chosen_weights not in ("none", "timm")

    @property
    def images_per_class(self) -> int | None:
        """Largest number of images of a class in each split; None: all."""
        return self.limit or self.study.limit

    @property
    def chosen_backbones(self) -> tuple[str, ...]:
        """Names of the backbones."""
        return self.backbones or tuple(known.name for known in self.study.backbones)

    def backbone(self, name: str) -> StudyBackbone:
        """Return how a backbone of this run is made.

        Args:
            name: One of `chosen_backbones`.

        Returns:
            Its timm arguments, how θ₀ is trained (None: it is not), and the settings by method.
        """
        known = next((b for b in self.study.backbones if b.name == name), StudyBackbone(name))
        pretraining = known.pretraining if known.pretraining is not None else self.study.pretraining
        if self.pretrain_epochs is not None:
            pretraining = {**(pretraining or {}), "epochs": self.pretrain_epochs}
        if self.chosen_weights != "none" and self.pretrain_epochs is None:
            pretraining = None
        return StudyBackbone(name, known.arguments, pretraining, known.settings)

    @property
    def side(self) -> int | None:
        """Side of the images; None: what the backbone's weights were made for."""
        return self.image_size or self.study.image_size

    def settings(self, backbone: str, method: str) -> DeepSettings:
        """Return a method's settings on a backbone in this run.

        Args:
            backbone: One of `chosen_backbones`.
            method: One of `METHODS`.

        Returns:
            A preset, or the study's, with the user's epochs.
        """
        known: Mapping[str, Any] = {**self.study.settings, **self.backbone(backbone).settings.get("all", {})}
        known = {**known, **self.backbone(backbone).settings.get(method, {})}
        base = deep_preset(self.preset) if self.preset else DeepSettings(**known)
        base = base.with_overrides(group_size=self.group_size)
        return base if self.epochs is None else base.with_overrides(epochs=self.epochs, steps=None)

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method was run, a row per backbone × method."""
        rows = [
            {
                "backbone": backbone,
                "method": get_method(name).label,
                "settings": self.settings(backbone, name).describe(name),
            }
            for backbone in self.chosen_backbones
            for name in self.methods
        ]
        return pd.DataFrame(rows)


def weights_source(weights: str) -> str:
    """Check where weights come from: a word, or a file that is there.

    Examples:
        >>> weights_source("timm")
        'timm'
    """
    if weights in ("", "none", "timm"):
        return weights
    path = Path(weights).expanduser()
    if not path.is_file():
        raise InvalidInputError(
            f"--weights {weights}: there is no such file; give a .safetensors file or a state dict, or one "
            "of the words none (draw them and train θ₀ on D_P) and timm (timm's own, downloaded)."
        )
    return str(path)


def _words(text: str) -> list[str]:
    """Return comma-separated words."""
    return [word.strip() for word in text.split(",") if word.strip()]


# The images of the deep-net experiment: both tasks, training and test, opened once and named.


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


# θ₀ of the deep-net experiment: timm's weights, a file's, or drawn and trained on D_P.


def create_backbone(config: DeepConfig, tasks: DeepTasks, name: str, seed: int) -> Backbone:
    """Make the backbone before any training here."""
    recipe = config.backbone(name)
    arguments = {**_image_size(config, name), **recipe.arguments}
    if config.image_size is not None and "img_size" in arguments:
        arguments["img_size"] = config.image_size
    weights, trained = config.chosen_weights, recipe.pretraining is not None
    if weights == "timm" and not trained and not tasks.imagenet_head:
        raise InvalidInputError(
            f"timm's head of {name} knows the classes of ImageNet-1K, and {tasks.pretrain.name} has "
            f"{len(tasks.pretrain.classes)} others ({', '.join(tasks.pretrain.classes[:3])}, …): give "
            "--pretrain-epochs N to fine-tune the weights with a new head on D_P first, or --weights FILE of "
            "a model that was trained on D_P."
        )
    own_head = tasks.imagenet_head and not trained
    return Backbone(
        name,
        pretrained={"none": False, "timm": True}.get(weights, weights),
        num_classes=None if own_head else len(tasks.pretrain.classes),
        classifier="new" if trained and weights != "none" else "loaded",
        seed=seed,
        **arguments,
    )


def make_theta_0(
    config: DeepConfig, tasks: DeepTasks, name: str, seed: int, checkpoint: Path
) -> tuple[Backbone, Pretraining | None]:
    """Make θ₀ of a seed: create the backbone and, if the run says so, train it on D_P."""
    backbone = create_backbone(config, tasks, name, seed)
    options: dict[str, Any] | None = None
    if (pretraining := config.backbone(name).pretraining) is not None:
        options = dict(pretraining)
    if options is None:
        return backbone, None
    transform = task_transform(config, tasks, backbone)
    made = pretrain_backbone(
        backbone,
        tasks.pretrain,
        test=tasks.pretrain_test,
        transform=transform,
        seed=seed,
        device=config.device,
        workers=config.workers,
        checkpoint=checkpoint,
        **options,
    )
    return backbone, made


def pretraining_table(config: DeepConfig) -> pd.DataFrame:
    """Say where each θ₀ comes from."""
    rows = []
    for name in config.chosen_backbones:
        recipe = config.backbone(name)
        source = {"none": "drawn", "timm": "timm's pre-trained weights"}.get(
            config.chosen_weights, config.chosen_weights
        )
        options = ", ".join(f"{key} {value}" for key, value in (recipe.pretraining or {}).items())
        made = (
            f"{source}, then trained on D_P without its held-out images ({options})"
            if recipe.pretraining
            else f"{source}; may have seen the held-out images, which θ_I has not"
        )
        arguments = ", ".join(f"{key}={value}" for key, value in recipe.arguments.items())
        rows.append({"backbone": f"{name}({arguments})" if arguments else name, "θ₀": made})
    return pd.DataFrame(rows)


def _image_size(config: DeepConfig, name: str) -> dict[str, int]:
    """Return timm's `img_size` where the run fixes the side and the model is made for one size."""
    if config.side is None:
        return {}
    timm = require("timm", "deep")
    known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    return {"img_size": config.side} if getattr(known, "fixed_input_size", False) else {}


#: Method of the cell that makes θ₀.
INITIAL = "initial"

#: Measured in both; they can disagree.
CONVENTIONS = ("compact", "ridge")

#: How often the groups of Eq. 17 are drawn, and how far apart the seeds are (a prime): the first draw is
#: reported, the others show how much of it is luck.
DRAWS = 5
DRAW_STRIDE = 1_000_003


@dataclass(frozen=True)
class FeatureSets:
    """Features of one model: each set of images goes through the net once."""

    pretrain: Features  # of D_P's training images, those of the groups of Eq. 17
    pretrain_test: Features
    harmful: Features  # of D_H's training images
    harmful_test: Features


@dataclass(frozen=True)
class DeepCells:
    """Computes cells; travels to worker processes."""

    config: DeepConfig
    folder: Path

    def __call__(self, plan: CellPlan) -> CellResult:
        """Make the model of a cell and measure it."""
        tasks = cached(("deep-tasks", self.config), lambda: open_tasks(self.config).in_memory())
        if plan.payload["method"] == INITIAL:
            return self._initial(plan, tasks)
        return self._immunized(plan, tasks)

    def model_file(self, key: str) -> Path:
        """Return where the model of a cell lies, by the cell's key."""
        return self.folder / "models" / f"{key[:32]}.safetensors"

    def _initial(self, plan: CellPlan, tasks: DeepTasks) -> CellResult:
        """Make θ₀ and measure it: its ratios are 1 by definition."""
        name, seed = plan.payload["backbone"], plan.payload["seed"]
        checkpoint = self._checkpoint(plan)
        theta_0, made = make_theta_0(self.config, tasks, name, seed, checkpoint)
        file = self._save(theta_0, plan)
        features = self._features(load_backbone(file), tasks, seed, keep=True)
        row: dict[str, Any] = {
            "steps": 0,
            "best_step": 0,
            "seconds": 0.0 if made is None else made.seconds,
            "stop_reason": "as loaded" if made is None else "trained",
        }
        history = pd.DataFrame() if made is None else made.history.add_prefix("pretraining.")
        unreadable = () if made is None else made.unreadable
        result = self._measured(plan, theta_0, features, features, row, history, [], unreadable)
        checkpoint.unlink(missing_ok=True)
        return result

    def _immunized(self, plan: CellPlan, tasks: DeepTasks) -> CellResult:
        """Immunize θ₀ by a method and measure θ_I beside it."""
        payload, checkpoint = plan.payload, self._checkpoint(plan)
        theta_0 = load_backbone(self.model_file(payload["start"]))
        transform = task_transform(self.config, tasks, theta_0)
        done = immunize_backbone(
            theta_0,
            tasks.pretrain,
            tasks.harmful,
            method=payload["method"],
            settings=DeepSettings(**plan.settings),
            validation=tasks.pretrain_held,
            validation_H=tasks.harmful_held,
            transform_P=transform,
            transform_H=transform,
            seed=payload["seed"],
            device=self.config.device,
            checkpoint=checkpoint,
            workers=self.config.workers,
        )
        before = self._features(theta_0, tasks, payload["seed"], keep=True)
        after = self._features(load_backbone(self._save(done.theta_I, plan)), tasks, payload["seed"])
        row: dict[str, Any] = {
            "steps": done.steps,
            "best_step": done.best_step,
            "seconds": done.seconds,
            "stop_reason": done.stop_reason,
            **{f"weight.{name}": value for name, value in done.part_weights.items()},
        }
        result = self._measured(
            plan, done.theta_I, before, after, row, done.history.add_prefix("history."), done.warnings,
            done.unreadable,
        )  # fmt: skip
        checkpoint.unlink(missing_ok=True)
        return result

    def _measured(
        self,
        plan: CellPlan,
        theta: Backbone,
        before: FeatureSets,
        after: FeatureSets,
        row: dict[str, Any],
        history: pd.DataFrame,
        said: Any,
        unreadable: Any,
    ) -> CellResult:
        """Return a cell: Eq. 17, the accuracies on D_P, and both probes on D_H."""
        config, payload = self.config, plan.payload
        pairs = {
            "": (before.pretrain, after.pretrain, before.harmful, after.harmful),
            "test_": (before.pretrain_test, after.pretrain_test, before.harmful_test, after.harmful_test),
        }
        ratios: dict[str, Any] = {}
        warnings = list(said)
        for prefix, features in pairs.items():
            draws = [
                rir_from_features(
                    *features,
                    groups=config.groups,
                    group_size=min(config.group_size, *map(len, features)),
                    seed=payload["seed"] + DRAW_STRIDE * draw,
                )
                for draw in range(DRAWS)
            ]
            ratios |= _ratios(draws, prefix)
            new = [text for text in draws[0].warnings if text not in warnings]
            warnings += [f"{prefix.replace('_', ' images: ')}{text}" for text in new]
        rows = (
            after.harmful.values,
            after.harmful.labels,
            after.harmful_test.values,
            after.harmful_test.labels,
        )
        probe = probe_accuracy(*rows, epochs=config.probe_epochs, seeds=(payload["seed"],))
        convex = convex_probe(*rows, seed=payload["seed"])
        best = probe.best_curve
        if probe.at_edge:
            warnings.append("The best learning rate of the probe is at the edge of its grid.")
        if not convex.converged:
            warnings.append(
                f"The convex probe stopped at {convex.iterations} iterations: its accuracy is a lower bound."
            )
        bad = {str(image): None for image in unreadable}
        bad |= {str(image): None for part in vars(after).values() for image in part.unreadable}
        return CellResult(
            {
                "backbone": payload["backbone"],
                "method": payload["method"],
                "seed": payload["seed"],
                **row,
                **ratios,
                "dimension": after.pretrain.dimension,
                "group_size": config.group_size,
                "accuracy": head_accuracy(theta.cpu(), after.pretrain_test),
                "probe_final": probe.final_accuracy,
                "probe_mean": float(best["mean"].iloc[1:].mean()),
                "probe_rate": probe.learning_rates[0],
                "probe_multiple": probe.learning_rates[0] * probe.smoothness,
                "convex": convex.test_accuracy,
                "convex_converged": convex.converged,
                "chance": _chance(after.harmful_test),
                "checksum": theta.checksum,
                "unreadable": len(bad),
            },
            {
                "probe": best["mean"].to_numpy(),
                "warnings": np.array(list(dict.fromkeys(warnings)), dtype=np.str_),
                "unreadable": np.array(list(bad), dtype=np.str_),
                **{str(name): history[name].to_numpy(np.float64) for name in history.columns},
            },
        )

    def _features(
        self, backbone: Backbone, tasks: DeepTasks, seed: int, *, keep: bool = False
    ) -> FeatureSets:
        """Return the features of a model on all sets; those of θ₀ are kept on the disk."""
        transform = task_transform(self.config, tasks, backbone).still
        assert transform is not None  # `training_transform` knows it
        cache = self.folder / "features" if keep else None

        def of(data: ImageData) -> Features:
            return cached_features(
                backbone, data, transform, cache=cache, name=backbone.name, device=self.config.device,
                workers=self.config.workers,
            )  # fmt: skip

        sample = rir_sample(tasks.pretrain, self.config.groups * self.config.group_size, seed)
        return FeatureSets(of(sample), of(tasks.pretrain_test), of(tasks.harmful), of(tasks.harmful_test))

    def _save(self, backbone: Backbone, plan: CellPlan) -> Path:
        """Write the model of a cell."""
        file = self.model_file(plan.key)
        file.parent.mkdir(parents=True, exist_ok=True)
        payload = plan.payload
        notes = {"method": str(payload["method"]), "seed": str(payload["seed"]), "data": plan.data_checksum}
        return save_backbone(backbone, file, notes=notes)

    def _checkpoint(self, plan: CellPlan) -> Path:
        """Return where the state of an unfinished cell lies."""
        path = self.folder / "models" / f"{plan.key[:32]}.checkpoint"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def rir_sample(data: ImageData, count: int, seed: int) -> ImageData:
    """Return the images from which the groups of Eq. 17 are drawn, a tenth in reserve for unreadable ones."""
    wanted = count + count // 10
    if wanted >= len(data):
        return data
    chosen = np.random.default_rng([seed, 17]).permutation(len(data))[:wanted]
    return data.take(np.sort(chosen))


def _ratios(draws: list[RirTheta0], prefix: str) -> dict[str, Any]:
    """Return both conventions of Eq. 17: of the first draw of groups, and between which values all lie."""
    columns: dict[str, Any] = {}
    for convention in CONVENTIONS:
        estimate: RirEstimate = getattr(draws[0], convention)
        start = f"{convention}.{prefix}"
        for name in ("harmful_ratio", "pretrain_ratio", "rir"):
            columns[f"{start}{name}"] = getattr(estimate, name)
            columns[f"{start}{name}_group_std"] = getattr(estimate, f"{name}_std")
        found = [getattr(draw, convention).rir for draw in draws]
        columns[f"{start}rir_least_draw"], columns[f"{start}rir_largest_draw"] = min(found), max(found)
        columns[f"{start}success"] = estimate.success
        if prefix:
            continue
        for index, role in enumerate(
            ("pretrain_before", "pretrain_after", "harmful_before", "harmful_after")
        ):
            columns[f"{convention}.kappa_{role}"] = float(np.median(estimate.kappas[index]))
            columns[f"{convention}.rank_{role}"] = int(np.median(estimate.ranks[index]))
    return columns


def _chance(features: Features) -> float:
    """Return the share of the commonest class: what a probe has without looking."""
    return float(np.bincount(features.labels).max() / len(features))
