"""Image files of a few pixels."""

from pathlib import Path

import numpy as np


def paint(path: Path, gray: int, *, side: int = 12, seed: int = 0) -> None:
    """Write a noisy image whose mean gray value is about `gray`."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng([seed, gray]).integers(0, 40, (side, side, 3))
    Image.fromarray(np.clip(noise + gray, 0, 255).astype(np.uint8)).save(path)
