"""A ResNet18's immunization step against fine-tuning; κ through the Gram matrix against a full `eigvalsh`."""

from __future__ import annotations

import statistics
import time
import timeit

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import Backbone
from condnum.deep.regularizers import feature_rtol
from condnum.deep.training.objectives import DeepObjective
from condnum.deep.training.samples import Batch
from condnum.deep.training.settings import DeepSettings
from condnum.machine import limited_threads
from condnum.theory.spectra import condition_number

IMAGES, SIDE, ROUNDS = 50, 224, 5
ON_CARD = [("cuda", "float32"), ("cuda", "bfloat16")] if torch.cuda.is_available() else []


def prepared_steps(name, images, side, device, precision):
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
    backbone.precision = precision
    parameters = [*backbone.trainable_parameters(), *backbone.head_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, nesterov=True)
    objective = DeepObjective(backbone, "ours", settings)
    tasks = dict(zip(("pretrain", "harmful"), batches, strict=True))
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


@pytest.mark.parametrize(("device", "precision"), [("cpu", "float32"), *ON_CARD])
def test_overhead_of_an_immunization_step(benchmark, device, precision):
    """Both see the images of both tasks; fine-tuning has a cross-entropy on each of them."""
    immunize, fine_tune = prepared_steps("resnet18", IMAGES, SIDE, torch.device(device), precision)
    times = []
    fine_tune()
    benchmark.pedantic(immunize, rounds=1, warmup_rounds=1)
    for _ in range(ROUNDS):  # in turns, so that other work on the machine meets both
        pair = []
        for call in (fine_tune, immunize):
            started = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            pair.append(time.perf_counter() - started)
        times.append(pair)
    plain, ours = (statistics.median(column) for column in np.array(times).T)
    print(
        f"\nResNet18 on {device} in {precision}, {IMAGES} + {IMAGES} images of {SIDE}×{SIDE}: fine-tuning "
        f"{plain:.2f} s, immunization {ours:.2f} s a step: {ours / plain:.2f} times"
    )
    assert device == "cuda" or ours / plain <= 1.3


def test_kappa_through_the_gram_matrix(benchmark):
    N, D = 100, 768
    X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))  # float32, as features are
    rtol = feature_rtol(X)

    def straightforward():
        """κ of the Hessian as Eq. 18 writes it."""
        Z = X.double()
        sigma = torch.linalg.eigvalsh(Z.mT @ Z)
        return sigma[-1] / sigma[sigma > rtol * sigma[-1]][0]

    with limited_threads(1):
        reference = statistics.median(timeit.repeat(straightforward, number=1, repeat=8)[1:])
        kappa = benchmark.pedantic(
            lambda: condition_number(X, kind="features", rtol=rtol), rounds=30, warmup_rounds=3
        )
        expected = float(straightforward())
    ours = benchmark.stats.stats.median
    print(
        f"\nκ of {N}×{D} features, one thread: {ours * 1e3:.2f} ms through the {N}×{N} Gram matrix, "
        f"{reference * 1e3:.1f} ms through a {D}×{D} eigvalsh: {reference / ours:.0f} times as fast"
    )
    assert kappa.rank == N
    assert kappa.value == pytest.approx(expected, rel=1e-9)
    assert reference / ours >= 20
