"""A tiny backbone, two tiny tasks, and rows of known spectra."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from condnum.deep import Backbone, ImageData, ImageTransform, evaluation_transform


def gratings(name: str, kind: str, count: int) -> ImageData:
    """Return noisy gratings, 16×16, whose class is their angle or their frequency."""
    generator = np.random.default_rng([0, len(name)])
    labels = np.arange(count) % 5
    y, x = np.mgrid[0:16, 0:16] / 16
    angle = (labels if kind == "angle" else generator.integers(0, 5, count)) * np.pi / 5
    frequency = 1 + (labels if kind == "frequency" else generator.integers(0, 5, count))
    phase = generator.uniform(0, 2 * np.pi, count)
    wave = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    pixels = np.sin(2 * np.pi * frequency[:, None, None] * wave + phase[:, None, None])
    noisy = 128 + 90 * pixels + 15 * generator.standard_normal(pixels.shape)
    grey = np.clip(noisy, 0, 255).astype(np.uint8)
    classes = tuple(f"{kind} {c}" for c in range(5))
    return ImageData(name, "train", classes, labels, grey, np.arange(count))


def states_equal(one: nn.Module, other: nn.Module) -> bool:
    """Tell whether two nets have the same weights, bitwise."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 normal numbers of a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
