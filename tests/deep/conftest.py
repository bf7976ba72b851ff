"""A tiny backbone and two tiny tasks."""

import pytest
import torch

from condnum.data.images import ImageData
from condnum.deep import Backbone, ImageTransform, evaluation_transform, open_images


def states_equal(one, other):
    """Tell whether two nets have the same weights, bitwise."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="session")
def D_P() -> ImageData:
    return open_images("digits-8x8:0-4", limit=48)


@pytest.fixture(scope="session")
def D_H() -> ImageData:
    return open_images("digits-8x8:5-9", limit=32)


@pytest.fixture
def backbone() -> Backbone:
    return Backbone("test_resnet", num_classes=5, seed=1)


@pytest.fixture(scope="session")
def transform() -> ImageTransform:
    return evaluation_transform(input_size=16, crop_pct=1.0)
