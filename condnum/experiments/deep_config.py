"""What the deep-net experiment runs: data, backbones and settings, and a user's choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from condnum.arrays import resolve_device
from condnum.deep.training.feature_methods import DEEP_METHODS
from condnum.deep.training.presets import deep_preset
from condnum.deep.training.settings import DeepSettings
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments.deep_studies import IMAGES, STUDIES, Study, StudyBackbone
from condnum.methods import get_method

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
            weights=weights,
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
