"""The audit as its notebook and `condnum audit` run it: options as text, an embedded example without any."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from condnum.audit.attacks import Kind, read_targets
from condnum.audit.full_audit import STAGES, OnStage, audit, check_numbers
from condnum.audit.measures import read_extractors
from condnum.audit.result import Audit
from condnum.data.digits import load_small_digits
from condnum.data.feature_pair import open_pair
from condnum.data.feature_stream import FeatureStream, array_stream
from condnum.data.resolver import user_cache
from condnum.errors import InvalidInputError, require
from condnum.files import file_checksum


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

    Images are a folder or a name of `open_images`, `limit` of a class at most. `weights` is `pretrained`,
    which downloads timm's, a file with a state dict, or empty: drawn from `seed`. Features are kept in
    `cache`, if there is one.
    """
    from condnum.deep import Backbone, cached_features, evaluation_transform, open_images

    pretrained: bool | str = True if os.fspath(weights) == "pretrained" else os.fspath(weights) or False
    backbone = Backbone(name, pretrained=pretrained, seed=seed)
    transform, streams, labels = evaluation_transform(backbone), [], []
    for place in (pretrain_images, harmful_images):
        images = open_images(place, limit=limit, seed=seed)
        found = cached_features(backbone, images, transform, cache=cache, name=name, device=device)
        streams.append(array_stream(found.values, name=Path(place).name))
        labels.append(found.labels)
    return BackboneFeatures(streams[0], streams[1], labels[0], labels[1])


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
    bootstrap: int = 200
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


@dataclass(frozen=True)
class AuditFiles:
    """What an audit reads."""

    checksums: dict[str, str]  # SHA-256 by the file's name


def load(options: Options) -> AuditFiles:
    """Refuse what cannot be audited before a kernel starts for it; only the beginnings of files are read."""
    if not options.pretrain and not options.backbone:
        raise InvalidInputError(
            "give the features of both tasks with --pretrain FILE and --harmful FILE, or --backbone NAME "
            "with --pretrain-images DIR and --harmful-images DIR."
        )
    check_numbers(options.ridge, options.rtol, options.bootstrap)
    for path in (options.targets, options.pretrain_targets):
        if path:
            read_targets(path, kind=options.kind)
    if options.pretrain:
        P, H, _ = open_pair(
            options.pretrain, options.harmful, key=options.key, drop=options.drop,
            max_dimension=options.max_dimension,
        )  # fmt: skip
        for stream in (P, H):
            next(stream.raw_blocks(), None)  # columns of text in a CSV
        read_extractors(options.theta or None, options.theta_0 or None, options.theta_i or None, P.dimension)
    named = [options.pretrain, options.harmful, options.theta, options.theta_0, options.theta_i]
    files = [Path(name) for name in (*named, options.targets, options.pretrain_targets) if name]
    return AuditFiles({path.name: file_checksum(path) for path in files})


#: Names of the notebook's parameters that are options.
NAMES = tuple(field.name for field in fields(Options))


def run(options: Options, *, on_stage: OnStage | None = None) -> Audit:
    """Run an audit from options; features of a backbone are kept in the user cache."""
    own: dict[str, Any] = {name: getattr(options, name) for name in NAMES}
    images = [own.pop(name) for name in ("backbone", "pretrain_images", "harmful_images")]
    weights, own["replicates"] = own.pop("weights"), own.pop("bootstrap")
    own |= {name: own[name] or None for name in ("theta", "theta_0", "theta_i", "rtol")}
    features: tuple[Any, ...] = (own.pop("pretrain"), own.pop("harmful"), None, None)
    if options.backbone:
        cache = user_cache() / "features"
        features = backbone_features(*images, weights=weights, cache=cache, seed=options.seed)
    elif not options.pretrain:
        digits = load_small_digits()
        X, labels = np.asarray(digits.images).reshape(len(digits), -1), np.asarray(digits.labels)
        low = labels < 5
        streams = array_stream(X[low], name="digits 0-4"), array_stream(X[~low], name="digits 5-9")
        features = (*streams, labels[low], labels[~low])
    P, H, pretrain_labels, harmful_labels = features
    own["targets"] = options.targets or harmful_labels
    own["pretrain_targets"] = options.pretrain_targets or pretrain_labels
    found = audit(P, H, **own, on_stage=on_stage)
    if on_stage is not None:
        on_stage("", 0, None)
    return found


def stage_line(*, quiet: bool = False) -> OnStage | None:
    """Return a callback for `on_stage` that keeps one line of a notebook up to date, empty in the end."""
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tell(stage: str, done: int, total: int | None) -> None:
        """Show how far the audit is."""
        place = f"*Stage {STAGES.index(stage) + 1} of {len(STAGES)}: {stage}" if stage else ""
        count = f", {done:,d} of {total:,d}" if total else ""
        if handle is not None:
            handle.update(display.Markdown(f"{place}{count}*" if stage else ""))

    return tell
