"""Images a second of a pre-training on small images: `pretrain_backbone` against a plain loop over files."""

from __future__ import annotations

import time

import numpy as np
import torch
from PIL import Image
from torch import nn

from condnum.deep import Backbone, open_images, pretrain_backbone
from condnum.deep.images import image_loader
from condnum.deep.transforms import training_transform

IMAGES, SIDE, ROUNDS = 640, 32, 3


def test_images_a_second(benchmark, tmp_path):
    """Before: decoded in each epoch, contiguous tensors, an optimizer tensor by tensor."""
    generator = np.random.default_rng(0)
    for index in range(IMAGES):
        file = tmp_path / "train" / f"class{index % 2}" / f"{index}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file)
    files = open_images(str(tmp_path), "train")
    decoded = files.in_memory()

    def backbone():
        return Backbone("resnet18", num_classes=2)

    transform = training_transform(backbone(), input_size=SIDE, augmentation="gentle", crop_pct=1.0)

    def plain():
        net = backbone()
        stepper = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)
        with net.pretraining():
            for batch in image_loader(files, transform, batch_size=64, shuffle=True):
                stepper.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(
                    net.logits(batch.images), batch.labels, label_smoothing=0.1
                ).backward()
                stepper.step()

    def ours():
        pretrain_backbone(backbone(), decoded, epochs=1, transform=transform, device="cpu")

    benchmark.pedantic(ours, rounds=1, warmup_rounds=1)
    plain()
    rates = []
    for _ in range(ROUNDS):  # in turns, so that other work on the machine meets both
        pair = []
        for call in (plain, ours):
            started = time.perf_counter()
            call()
            pair.append(IMAGES / (time.perf_counter() - started))
        rates.append(pair)
    before, after = np.median(rates, axis=0)
    print(
        f"\nResNet18, {IMAGES} images of {SIDE}×{SIDE}, one epoch of pre-training with crops: "
        f"{before:.0f} → {after:.0f} images/s, {after / before:.2f} times"
    )
    assert after > 0.9 * before
