"""A ResNet18's immunization step against fine-tuning."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import Backbone, DeepSettings, NetStep
from condnum.deep.methods import NET_METHODS
from condnum.deep.samples import Batch

IMAGES, SIDE, ROUNDS = 50, 224, 5
ON_CARD = ["cuda"] if torch.cuda.is_available() else []


def prepared_steps(name, images, side, device):
    """One step of immunization and one of fine-tuning, on so many images of each task."""
    generator = torch.Generator().manual_seed(0)
    backbone, rows = Backbone(name, num_classes=100).train().to(device), torch.arange(images)
    batches = [
        Batch(torch.randn(images, 3, side, side, generator=generator).to(device), rows % 100, rows)
        for _ in range(2)
    ]
    settings = DeepSettings(precondition=True)
    parameters = [*backbone.trainable_parameters(), *backbone.head_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, nesterov=True)
    tasks = dict(zip(("benign", "harmful"), batches, strict=True))
    weights = {"supervised": 1.0, "well": 1e-9, "ill": 1e-3}

    def immunize():
        optimizer.zero_grad(set_to_none=True)
        NetStep(backbone, tasks, settings, None, None, (0, 0)).backward(NET_METHODS["ours"].parts, weights)
        optimizer.step()

    def fine_tune():
        optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            logits, labels = backbone.logits(batch.inputs), batch.labels.to(device)
            nn.functional.cross_entropy(logits, labels, label_smoothing=0.1).backward()
        optimizer.step()

    return immunize, fine_tune


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", *ON_CARD])
def test_overhead_of_an_immunization_step(device):
    """Both see the images of both tasks; fine-tuning has a cross-entropy on each of them."""
    steps = prepared_steps("resnet18", IMAGES, SIDE, torch.device(device))
    times = []
    for _ in range(ROUNDS + 1):  # in turns, so that other work on the machine meets both
        times.append([])
        for call in steps:
            started = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times[-1].append(time.perf_counter() - started)
    ours, plain = (statistics.median(column) for column in np.array(times[1:]).T)
    print(
        f"\nResNet18 on {device}, {IMAGES} + {IMAGES} images of {SIDE}×{SIDE}: a step of immunization takes "
        f"{ours / plain:.2f} times as long as one of fine-tuning"
    )
