"""A tiny backbone and two tiny tasks."""

from __future__ import annotations

import pytest

from condnum.deep import Backbone, ImageData, ImageTransform, evaluation_transform

from .processes_script import gratings


@pytest.fixture(scope="session")
def D_P() -> ImageData:
    return gratings("angles", "angle", 240)


@pytest.fixture(scope="session")
def D_H() -> ImageData:
    return gratings("frequencies", "frequency", 160)


@pytest.fixture
def backbone() -> Backbone:
    return Backbone("test_resnet", num_classes=5, seed=1)


@pytest.fixture(scope="session")
def transform() -> ImageTransform:
    return evaluation_transform(input_size=16, crop_pct=1.0)
