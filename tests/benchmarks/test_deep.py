"""A ResNet18's immunization step against fine-tuning."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import Backbone
from condnum.deep.training.objectives import DeepObjective
from condnum.deep.training.samples import Batch
from condnum.deep.training.settings import DeepSettings

IMAGES, SIDE, ROUNDS = 50, 224, 5
ON_CARD = ["cuda"] if torch.cuda.is_available() else []


def prepared_steps(name, images, side, device):
    """One step of immunization and one of fine-tuning, on so many images of each task."""
    generator = torch.Generator().manual_seed(0)
    backbone = Backbone(name, num_classes=100).train().to(device)
    batches = [
        Batch(
            torch.randn(images, 3, side, side, generator=generator).to(device),
            torch.arange(images, device=device) % 100,
        )
        for _ in range(2)
    ]
    settings = DeepSettings(precondition=True)
    parameters = [*backbone.trainable_parameters(), *backbone.head_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, nesterov=True)
    objective = DeepObjective(backbone, "ours", settings)
    tasks = dict(zip(("benign", "harmful"), batches, strict=True))
    weights = {"supervised": 1.0, "well": 1e-9, "ill": 1e-3}

    def immunize():
        objective.backward(tasks, weights, (0,))
        optimizer.step()

    def fine_tune():
        optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            logits = backbone.logits(batch.inputs)
            nn.functional.cross_entropy(logits, batch.labels, label_smoothing=0.1).backward()
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
        f"\nResNet18 on {device}, {IMAGES} + {IMAGES} images of {SIDE}×{SIDE}: fine-tuning "
        f"{plain:.2f} s, immunization {ours:.2f} s a step: {ours / plain:.2f} times"
    )
