"""Features of a deep backbone for an audit: images in, cached features and labels out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from condnum.data.feature_stream import FeatureStream, array_stream


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
