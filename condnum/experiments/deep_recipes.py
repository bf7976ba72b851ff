"""What the parameters of the deep experiments choose: images, nets, how they are made and immunized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from condnum.arrays import resolve_device
from condnum.data.files import find_folder
from condnum.data.images import imagenet_classes
from condnum.deep.backbone import IMAGENET_CLASSES, Backbone, size_arguments
from condnum.deep.methods import NetMethod, get_net_method, net_method_names
from condnum.deep.rir import check_count
from condnum.deep.training.settings import DeepSettings, deep_preset, default_settings
from condnum.deep.transforms import Augmentation
from condnum.deep.weights import head_outputs, read_weights
from condnum.errors import DataNotFoundError, InvalidInputError, check_integer, check_known, require
from condnum.experiments import linear
from condnum.experiments.deep_measures import DeepTasks, is_folder, tasks
from condnum.experiments.frame import Cell

#: The user's own tasks.
IMAGES = "images"
#: Small images that come with condnum or as MNIST's files: what runs in seconds on one thread.
DIGITS = ("embedded", "mnist")
#: Weights that are no file.
WEIGHTS = ("none", "timm", "bundled")
#: Methods of Table 3, in display order; `erase`, which trains the whole net, and the same from transformed
#: images too are asked for by name.
NET_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")
ERASE_TRANSFORMED = "erase_transformed"
#: Method of the cell that makes θ₀.
INITIAL = "initial"
#: How θ₀ is made where it is not trained on D_P.
AS_LOADED, NEW_HEAD = "as loaded", "new head"
#: A run of seconds.
QUICK = {"seeds": 1, "limit": 30, "epochs": 2, "pretrain_epochs": 2, "groups": 3, "group_size": 40}
#: Of IMMA, a step of which costs as much as five of the others.
_IMMA: Mapping[str, Any] = {"steps": 100, "record_every": 5}


@dataclass(frozen=True)
class BackboneRecipe:
    """A backbone, and how it is made and immunized."""

    name: str  # of timm.create_model
    arguments: Mapping[str, Any] = field(default_factory=dict)  # further ones of timm.create_model
    pretraining: Mapping[str, Any] | None = None  # of `pretrain_backbone`; None: the recipe's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, of every method
    ours: Mapping[str, Any] = field(default_factory=dict)  # of those with both regularizers


@dataclass(frozen=True)
class Recipe:
    """A pair of tasks with its defaults."""

    benign: str  # D_P, a name for `open_images`
    harmful: str  # D_H
    backbones: tuple[BackboneRecipe, ...]
    weights: str  # none, timm, bundled
    pretraining: Mapping[str, Any]  # of a backbone that says nothing else
    image_size: int | None = 32  # None: what the weights were made for
    limit: int | None = None  # images per class and split
    settings: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, of every method
    imma: Mapping[str, Any] = field(default_factory=lambda: _IMMA)  # of IMMA


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
        imma={"steps": 40, "record_every": 4},
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
    "imagenette-cars": Recipe(
        "imagenette", "cars", (BackboneRecipe("tf_efficientnet_lite0"),), weights="bundled",
        pretraining={"epochs": 30}, image_size=160,
        settings={"steps": 150}, imma={**_IMMA, "steps": 20},
    ),
    IMAGES: Recipe(
        "", "", (BackboneRecipe("resnet18"),), weights="timm", pretraining={"epochs": 30}, image_size=None,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The parameters of the notebook that make and measure nets, checked."""

    data: str  # auto, embedded, mnist, imagenette-cars; images: `benign` and `harmful`
    benign: str  # D_P, a name for `open_images`; "": the recipe's
    harmful: str  # D_H
    backbone: Any  # timm names; empty: the recipe's
    weights: str  # none (drawn), timm, bundled, or a file; "": the recipe's
    preset: str  # settings of Table 4; "": the recipe's
    methods: Any  # empty: those of Table 3
    seeds: int  # seeds 0 … seeds − 1
    epochs: int  # of immunization; 0: the settings' own
    pretrain_epochs: int  # of training a drawn θ₀ on D_P; 0: the recipe's
    finetune_benign: int  # epochs of loaded weights on D_P, with a new head; 0: as they are
    augmentation: str  # of the images that θ₀ and θ_I are trained on
    limit: int  # images per class and split; 0: the recipe's
    image_size: int  # side; 0: the recipe's, else the backbone's
    groups: int  # of Eq. 17
    group_size: int
    device: str
    workers: int  # processes that decode
    full: bool
    probe_epochs: int = 50  # of Fig. 3

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        for name in ("seeds", "groups", "probe_epochs"):
            check_integer(name, getattr(self, name), 1)
        for name in ("epochs", "pretrain_epochs", "finetune_benign", "image_size", "workers", "limit"):
            check_integer(name, getattr(self, name), 0)
        check_integer("group_size", self.group_size, 2)
        check_known("augmentation", self.augmentation, get_args(Augmentation))
        given = {"data": self._data(), "methods": _methods(self.methods), "backbone": _words(self.backbone)}
        self.__dict__.update(given)
        if self.weights not in ("", *WEIGHTS):
            self.__dict__["weights"] = str(Path(self.weights).expanduser())
            if not Path(self.weights).is_file():
                raise DataNotFoundError(
                    f"--weights {self.weights}: there is no such file; give a .safetensors file or a state "
                    "dict, or none (initialize θ₀ at random and train it on D_P), timm (download timm's "
                    "weights) or bundled (those of the extra 'pretrained')."
                )
        if self.preset:
            deep_preset(self.preset)
        self.__dict__["device"] = str(resolve_device(self.device))
        if not self.full:
            self.__dict__.update(QUICK, backbone=self.backbones[:1], limit=min(self.limit or 30, 30))

    def _data(self) -> str:
        """Return the key of the recipe."""
        if bool(self.benign) != bool(self.harmful) or (self.data == IMAGES and not self.benign):
            raise InvalidInputError(
                "your own images need both tasks: give --benign (D_P) and --harmful (D_H), each a "
                "folder or mnist:0-4; without them, --data embedded uses the bundled digits."
            )
        check_known("data", self.data, ("auto", *RECIPES))
        if self.benign and self.data in ("auto", *DIGITS):
            return IMAGES
        return _here() if self.data == "auto" and self.full else self.data.replace("auto", "embedded")

    @property
    def recipe(self) -> Recipe:
        """What the data come with."""
        return RECIPES[self.data]

    @property
    def small(self) -> bool:
        """Whether cells side by side gain more than threads do."""
        return self.data in DIGITS and self.device == "cpu"

    @property
    def chosen_weights(self) -> str:
        """`none`, `timm` or a file."""
        return self.weights or self.recipe.weights

    @property
    def as_loaded(self) -> bool:
        """Whether weights are loaded, and only a head is fitted if theirs is not for D_P."""
        return self.chosen_weights != "none" and not self.finetune_benign

    @property
    def backbones(self) -> tuple[str, ...]:
        """Names of the backbones."""
        return self.backbone or tuple(known.name for known in self.recipe.backbones)

    @property
    def side(self) -> int | None:
        """Side of the images; None: what the backbone's weights were made for."""
        return self.image_size or self.recipe.image_size

    def of(self, name: str) -> BackboneRecipe:
        """Return how a backbone is made: timm arguments, how θ₀ is trained, settings by method."""
        known = next((b for b in self.recipe.backbones if b.name == name), BackboneRecipe(name))
        if self.as_loaded:
            return replace(known, pretraining=None)
        asked = self.pretrain_epochs or self.finetune_benign
        epochs = {"epochs": asked} if asked else {}
        return replace(known, pretraining={**(known.pretraining or self.recipe.pretraining), **epochs})

    def settings(self, backbone: str, method: str) -> DeepSettings:
        """Return a method's settings on a backbone: a preset, or the recipe's, with the user's epochs."""
        own, chosen = self.of(backbone), net_method(method)
        known = {**self.recipe.settings, **own.settings}
        known |= own.ours if {"well", "ill"} <= chosen.parts.keys() else {}
        known |= chosen.defaults
        if chosen.probe:
            known |= self.recipe.imma
        base = deep_preset(self.preset) if self.preset else DeepSettings(**known)
        if chosen.name == "erase":  # no recipe has settings for it
            base = default_settings(chosen)
        if method == ERASE_TRANSFORMED:  # the best θ would be that which hides from images as they are
            base = base.with_overrides(transformed=True, keep="last")
        base = base.with_overrides(group_size=self.group_size)
        return base.with_overrides(epochs=self.epochs, steps=None) if self.epochs else base

    def head_outputs(self, name: str) -> int:
        """Return the outputs of the head that comes with the weights of a backbone; 0 without one."""
        timm = require("timm", "deep")
        known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
        if self.chosen_weights in WEIGHTS:
            return int(known.num_classes) if known else IMAGENET_CLASSES
        return head_outputs(read_weights(self.chosen_weights), known.classifier if known else "")

    @cached_property
    def images(self) -> dict[str, Any]:
        """The arguments of `tasks`."""
        given: dict[str, Any] = {
            "benign": self.benign or self.recipe.benign,
            "harmful": self.harmful or self.recipe.harmful,
            "limit": self.limit or self.recipe.limit,
        }
        classes = tasks(**given, imagenet=False).benign.classes
        imagenet = self.as_loaded and set(classes) <= set(imagenet_classes())
        heads = imagenet and {IMAGENET_CLASSES} == set(map(self.head_outputs, self.backbones))
        return given | {"imagenet": heads and is_folder(given["benign"])}

    @property
    def tasks(self) -> DeepTasks:
        """The images of both tasks."""
        return tasks(**self.images)

    @property
    def common(self) -> dict[str, Any]:
        """What every cell has."""
        crop = {"crop_pct": 1.0} if self.chosen_weights == "none" or self.data in DIGITS else {}
        return {
            "images": self.images,
            "transform": {"input_size": self.side, "augmentation": self.augmentation, **crop},
            "measure": {name: getattr(self, name) for name in ("groups", "group_size", "probe_epochs")},
            "trunk_on_disk": self.data not in DIGITS,
            "device": self.device,
            "workers": self.workers,
            "beside": "",
        }

    def net(self, name: str) -> tuple[dict[str, Any], Any]:
        """Return the arguments of `Backbone` before any training here, and how θ₀ is made of it."""
        data, weights, own = self.tasks, self.chosen_weights, self.of(name)
        from_file = self.as_loaded and weights not in WEIGHTS
        kept = self.images["imagenet"] or (from_file and self.head_outputs(name) == len(data.benign.classes))
        arguments = {
            "pretrained": {"none": False, "timm": True}.get(weights, weights),
            "num_classes": None if self.images["imagenet"] else len(data.benign.classes),
            "classifier": "loaded" if weights in WEIGHTS or kept else "new",
            **size_arguments(name, self.side),
            **own.arguments,
        }
        Backbone(name, seed=0, **arguments)  # what cannot be made fails now
        if own.pretraining is not None:
            return arguments, dict(own.pretraining)
        return arguments, AS_LOADED if kept else NEW_HEAD

    def cells(self) -> list[Cell]:
        """List what makes θ₀, then the methods, each from its θ₀."""
        for data, task in ((self.tasks.benign, "D_P"), (self.tasks.harmful, "D_H")):
            check_count(len(data), f"{task} without what is held out", self.group_size)
        starts, methods = [], []
        for name in self.backbones:
            net, training = self.net(name)
            for seed in range(self.seeds):
                start = {"backbone": name, "method": INITIAL, "seed": seed, **self.common}
                start |= {"net": net, "training": training}
                starts.append(start)
                methods += [
                    {"backbone": name, "method": method, "seed": seed, **self.common}
                    | {"training": asdict(self.settings(name, method)), "after": start}
                    for method in self.methods
                ]
        return [*starts, *methods]


def _here() -> str:
    """Return the photographs if they are here, else the bundled digits."""
    photographs = RECIPES["imagenette-cars"]
    try:
        find_folder(photographs.benign), find_folder(photographs.harmful)
    except DataNotFoundError:
        return "embedded"
    return "imagenette-cars"


def _words(given: Any) -> tuple[str, ...]:
    """Return names, of a text with commas too."""
    words = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))


def _methods(given: Any) -> tuple[str, ...]:
    """Return names of methods for nets in display order, of files and objects that define one too."""
    words = given.split(",") if isinstance(given, str) else given
    named = [word.strip() if isinstance(word, str) else word for word in words if word != ""]
    plain = [word for word in named if isinstance(word, str) and not word.endswith(".py")]
    for word in plain:
        check_known("method", word, known_methods())
    own = [word for word in named if word not in plain]
    names = [*plain, *(get_net_method(name).name for name in linear.read_methods(own, ()))]
    return tuple(name for name in known_methods() if name in names) or NET_METHODS


def known_methods() -> tuple[str, ...]:
    """Return what can be asked for: the methods for nets, in display order, yours among them."""
    return (*net_method_names(), ERASE_TRANSFORMED)


def net_method(name: str) -> NetMethod:
    """Return the method of a name, which may stand for one with other settings."""
    return get_net_method("erase" if name == ERASE_TRANSFORMED else name)
