"""Accuracy of a backbone's own head, on features that were taken already."""

from __future__ import annotations

import numpy as np
import torch

from condnum.deep.backbone import Backbone
from condnum.deep.features import Features
from condnum.errors import InvalidInputError

#: Rows that go through the head at a time.
_ROWS = 8192


def head_accuracy(backbone: Backbone, features: Features) -> float:
    """Return the share of images that the head g_ω classifies rightly, without running the trunk again.

    Args:
        backbone: Its head is used; where its weights are is where it is computed.
        features: `(N, D)` features of this very backbone, with labels.

    Returns:
        0 to 1.

    Raises:
        InvalidInputError: Another number of features than the head takes, or labels beyond its outputs.

    Examples:
        >>> from condnum.deep import evaluation_transform, extract_features, open_images
        >>> backbone = Backbone("test_resnet", num_classes=2)
        >>> data = open_images("digits-8x8:0-1", "test")
        >>> features = extract_features(backbone, data, evaluation_transform(backbone, input_size=32))
        >>> 0 <= head_accuracy(backbone, features) <= 1
        True
    """
    if features.dimension != backbone.num_features:
        raise InvalidInputError(
            f"{features.name} has {features.dimension} features, but {backbone.name} gives "
            f"{backbone.num_features}; pass the features of this backbone."
        )
    if features.labels.max() >= backbone.num_classes:
        raise InvalidInputError(
            f"{features.name} has labels up to {features.labels.max()}, but the head of {backbone.name} has "
            f"{backbone.num_classes} outputs; use the classes that the head was trained on."
        )
    home = next(backbone.parameters()).device
    training = backbone.training
    backbone.eval()
    right = 0
    try:
        with torch.inference_mode():
            for start in range(0, len(features), _ROWS):
                rows = torch.from_numpy(np.array(features.values[start : start + _ROWS])).to(home)
                chosen = backbone.head(rows).argmax(dim=1).cpu().numpy()
                right += int((chosen == features.labels[start : start + _ROWS]).sum())
    finally:
        backbone.train(training)
    return right / len(features)
