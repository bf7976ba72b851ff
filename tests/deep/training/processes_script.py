"""Immunize by two methods on two processes of Fabric; started by test_processes.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from condnum.deep import Backbone, DeepSettings, ImageData, evaluation_transform, immunize_backbone
from condnum.deep.images import ArrayImages


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
    return ImageData(name, "train", classes, labels, ArrayImages(grey, name), np.arange(count))


def result(method: str, **options: Any) -> dict[str, Any]:
    """Return what a run gives; odd batch sizes, so that two processes hold different numbers of samples."""
    small = evaluation_transform(input_size=16, crop_pct=1.0)
    found = immunize_backbone(
        Backbone("test_resnet", num_classes=5, seed=1),
        gratings("angles", "angle", 240),
        gratings("frequencies", "frequency", 160),
        method=method,
        settings=DeepSettings(
            steps=4, batch_size=133, learning_rate=1e-3, record_every=2, precision="float64", groups=2,
            keep="last",
        ),
        transform_P=small,
        transform_H=small,
        **options,
    )  # fmt: skip
    history, net = found.history.to_dict("list"), found.theta_I.model.state_dict()
    return {"history": history, "weights": found.part_weights, "net": net}


if __name__ == "__main__":
    from lightning_fabric import Fabric

    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    out = Path(sys.argv[1])
    results = {name: result(name, fabric=fabric, checkpoint=out / name) for name in ("ours", "imma")}
    if fabric.global_rank == 1:  # every process has the results; the last one writes them, to show that
        torch.save(results, out / "results.pt")
