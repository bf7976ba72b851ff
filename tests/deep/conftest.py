"""Miniature copies of the folder layouts, with images of a few pixels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def paint(path: Path, colour: int, *, side: int = 12, seed: int = 0) -> None:
    """Write a noisy image whose mean grey value is about `colour`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([seed, colour]).integers(0, 40, (side, side, 3))
    Image.fromarray(np.clip(noise + colour, 0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Make `ROOT/<prefix>/<class>/<i>.png` for each prefix, `count` images a class."""

    def make(
        prefixes: tuple[str, ...] = ("train", "test"),
        classes: tuple[str, ...] = ("cat", "dog"),
        count: int = 5,
        suffix: str = "png",
        root: Path = tmp_path / "data",
    ) -> Path:
        for p, prefix in enumerate(prefixes):
            for c, name in enumerate(classes):
                for i in range(count):
                    colour = 30 + 150 * c // max(1, len(classes) - 1)
                    paint(root / prefix / name / f"{i}.{suffix}", colour, seed=100 * p + i)
        return root

    return make
