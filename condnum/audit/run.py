"""The audit as its notebook and `condnum audit` run it: options as text, an embedded example without any."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from condnum.audit.attacks import Kind, TargetsLike
from condnum.audit.full_audit import STAGES, FeaturesLike, OnStage, audit
from condnum.audit.result import Audit
from condnum.data.digits import load_small_digits
from condnum.data.feature_stream import FeatureStream, array_stream
from condnum.data.resolver import user_cache
from condnum.errors import InvalidInputError, require

# Features of a deep backbone for an audit: images in, cached features and labels out.


class BackboneFeatures(NamedTuple):
    """Features of both tasks, with the labels of their images."""

    pretrain: FeatureStream
    harmful: FeatureStream
    pretrain_labels: NDArray[np.int64]  # (N_P,)
    harmful_labels: NDArray[np.int64]  # (N_H,)


def backbone_features(
    name: str,
    pretrain_images: str | os.PathLike[str],
    harmful_images: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] = "",
    cache: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    device: str = "auto",
    seed: int = 0,
) -> BackboneFeatures:
    """Extract pooled features of un-augmented images with a timm model (Eq. 18).

    Args:
        name: Of the timm model.
        pretrain_images: Folder of images, or a name of `open_images`.
        harmful_images: The same for the harmful task.
        weights: `pretrained` downloads timm's; a file loads a state dict; empty draws them from `seed`.
        cache: Folder that keeps features; None keeps nothing.
        limit: Largest number of images of a class.
        device: Where the model runs.
        seed: Of the draw of images, and of weights that are drawn.

    Returns:
        Features and labels.

    Raises:
        CondnumError: As `condnum.deep.Backbone`, `open_images` and `cached_features`.
    """
    from condnum.deep import Backbone, cached_features, evaluation_transform, open_images

    pretrained: bool | str = True if os.fspath(weights) == "pretrained" else os.fspath(weights) or False
    backbone = Backbone(name, pretrained=pretrained, seed=seed)
    transform = evaluation_transform(backbone)
    found = []
    for place in (pretrain_images, harmful_images):
        images = open_images(place, limit=limit, seed=seed)
        found.append(cached_features(backbone, images, transform, cache=cache, name=name, device=device))
    streams = [
        array_stream(features.values, name=Path(place).name)
        for features, place in zip(found, (pretrain_images, harmful_images), strict=True)
    ]
    return BackboneFeatures(streams[0], streams[1], found[0].labels, found[1].labels)


@dataclass(frozen=True)
class Options:
    """What is audited, and how; empty texts are options that were not given.

    Examples:
        >>> Options(pretrain="P.npy")
        Traceback (most recent call last):
            ...
        condnum.errors.InvalidInputError: pretrain was given without harmful: an audit compares two tasks.
    """

    pretrain: str = ""
    harmful: str = ""
    theta: str = ""
    theta_0: str = ""
    theta_i: str = ""
    targets: str = ""
    pretrain_targets: str = ""
    kind: Kind = "auto"
    key: str = ""
    drop: str = ""
    standardise: bool = False
    backbone: str = ""
    pretrain_images: str = ""
    harmful_images: str = ""
    weights: str = ""
    ridge: float = 1e-6
    rtol: float = 0.0
    replicates: int = 200
    attackers: bool = True
    seed: int = 0
    scheduler: str = ""
    max_dimension: int = 20_000

    def __post_init__(self) -> None:
        for first, second in (("pretrain", "harmful"), ("pretrain_images", "harmful_images")):
            given = [name for name in (first, second) if getattr(self, name)]
            if len(given) == 1:
                missing = second if given[0] == first else first
                raise InvalidInputError(
                    f"{given[0]} was given without {missing}: an audit compares two tasks."
                )
        if bool(self.backbone) != bool(self.pretrain_images):
            raise InvalidInputError(
                "a backbone and the images of both tasks belong together: give --backbone, --pretrain-images "
                "and --harmful-images."
            )
        if self.backbone and self.pretrain:
            raise InvalidInputError("give files of features, or a backbone with images, not both.")


#: The stage that is told when an audit is whole.
FINISHED = "finished"

#: Names of the notebook's parameters that are options.
NAMES = tuple(field.name for field in fields(Options))


def run(options: Options, *, on_stage: OnStage | None = None) -> Audit:
    """Run an audit from options; features of a backbone are kept in the user cache."""
    P: FeaturesLike = options.pretrain
    H: FeaturesLike = options.harmful
    y: TargetsLike | None = options.targets or None
    y_P: TargetsLike | None = options.pretrain_targets or None
    if options.backbone:
        found = backbone_features(
            options.backbone, options.pretrain_images, options.harmful_images,
            weights=options.weights, cache=user_cache() / "features", seed=options.seed,
        )  # fmt: skip
        P, H = found.pretrain, found.harmful
        y, y_P = options.targets or found.harmful_labels, options.pretrain_targets or found.pretrain_labels
    elif not options.pretrain:
        digits = load_small_digits()
        X, labels = np.asarray(digits.images).reshape(len(digits.labels), -1), np.asarray(digits.labels)
        P = array_stream(X[labels < 5], name="digits 0-4")
        H = array_stream(X[labels >= 5], name="digits 5-9")
        y, y_P = options.targets or labels[labels >= 5], options.pretrain_targets or labels[labels < 5]
    found_audit = audit(
        P, H, theta=options.theta or None, theta_0=options.theta_0 or None, theta_i=options.theta_i or None,
        targets=y, pretrain_targets=y_P, kind=options.kind, key=options.key, drop=options.drop,
        standardise=options.standardise, ridge=options.ridge, rtol=options.rtol or None,
        replicates=options.replicates, attackers=options.attackers, seed=options.seed,
        scheduler=options.scheduler, max_dimension=options.max_dimension, on_stage=on_stage,
    )  # fmt: skip
    if on_stage is not None:
        on_stage(FINISHED, 0, None)
    return found_audit


def stage_line(*, quiet: bool = False) -> OnStage | None:
    """Return a callback for `on_stage` that keeps one line of a notebook up to date."""
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tell(stage: str, done: int, total: int | None) -> None:
        """Show how far the audit is."""
        if handle is not None:
            handle.update(display.Markdown(stage_words(stage, done, total)))

    return tell


def stage_words(stage: str, done: int, total: int | None) -> str:
    """Return how far an audit is, in one line.

    Examples:
        >>> stage_words("bootstrap", 50, 200)
        '*Stage 6 of 7: bootstrap, 50 of 200*'
    """
    if stage == FINISHED:
        return ""
    place = f"Stage {STAGES.index(stage) + 1} of {len(STAGES)}: {stage}" if stage in STAGES else stage
    return f"*{place}, {done:,d} of {total:,d}*" if total else f"*{place}*"
