"""Make a θ₀: supervised training of a whole backbone on D_P, where no pre-trained weights are at hand."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import nn

from condnum.arrays import resolve_device
from condnum.deep.backbone import Backbone
from condnum.deep.features import extract_features, head_accuracy
from condnum.deep.images import ImageData, Unreadable, image_loader
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.deep.weights import read_state, write_state
from condnum.errors import InvalidInputError, check_integer, check_known
from condnum.machine import memory_advice
from condnum.progress import report_event

PretrainingOptimizer = Literal["adamw", "sgd"]


@dataclass(frozen=True)
class PretrainingProgress:
    """An epoch that has just ended."""

    epoch: int  # 1, 2, …
    epochs: int
    loss: float  # mean training loss of the epoch
    seconds: float  # since the start


@dataclass(frozen=True, eq=False)
class Pretraining:
    """How a θ₀ was made."""

    history: pd.DataFrame  # a row per epoch: epoch, loss, accuracy (training, as seen), learning_rate
    test_accuracy: float  # 0 to 1, un-augmented; NaN without test images
    epochs: int
    images: int  # training images
    seconds: float
    unreadable: tuple[Unreadable, ...]  # training and test images that do not decode


def pretrain_backbone(
    backbone: Backbone,
    data: ImageData,
    *,
    epochs: int,
    test: ImageData | None = None,
    optimizer: PretrainingOptimizer = "adamw",
    learning_rate: float = 1e-3,
    weight_decay: float = 0.05,
    batch_size: int = 64,
    label_smoothing: float = 0.1,
    warmup: float = 0.1,
    transform: ImageTransform | None = None,
    test_transform: ImageTransform | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    workers: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    on_progress: Callable[[PretrainingProgress], None] | None = None,
) -> Pretraining:
    """Train all of a backbone on D_P, in place, with a linear warm-up and a cosine to zero.

    The same seed gives the same weights on the same machine, stopped and continued or not.

    Args:
        backbone: Trained with its BatchNorm statistics; its head has an output for each class.
        data: Training images of D_P.
        epochs: Passes over them.
        test: Test images of D_P; None leaves the accuracy out.
        optimizer: `adamw`, or `sgd` with Nesterov momentum 0.9.
        learning_rate: The largest, after the warm-up.
        weight_decay: Of matrices and convolutions; vectors (biases, norms) have none.
        batch_size: Images of a step.
        label_smoothing: Of the cross-entropy, 0 to 1.
        warmup: Share of all steps in which the rate rises.
        transform: Training transform, possibly random; default: un-augmented.
        test_transform: Un-augmented; default that of `transform`, else the backbone's own.
        seed: Of the order, of augmentations and of dropout; the global generators are left as they were.
        device: `auto`, `cpu`, `cuda[:i]`; the backbone ends there.
        workers: Processes that decode.
        checkpoint: File of the state after an epoch (or several, where writing takes long), to go on from.
        on_progress: Told after each epoch.

    Returns:
        The history and the test accuracy.

    Raises:
        InvalidInputError: Bad options, a head of another size than D_P's classes, a loss that is not
            finite, or a checkpoint of other settings.
        DeviceError: No such device, or out of memory.
        DataFormatError: More than a tenth of the test images does not decode.

    Examples:
        >>> from condnum.deep import Backbone, evaluation_transform, open_images
        >>> data = open_images("digits-8x8:0-1", limit=20)
        >>> backbone = Backbone("test_resnet", num_classes=2)
        >>> small = evaluation_transform(backbone, input_size=16)
        >>> made = pretrain_backbone(backbone, data, epochs=2, transform=small, device="cpu")
        >>> len(made.history), made.images
        (2, 40)
    """
    check_known("optimizer", optimizer, get_args(PretrainingOptimizer))
    epochs, batch_size = check_integer("epochs", epochs, 1), check_integer("batch_size", batch_size, 2)
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InvalidInputError(f"learning_rate must be positive and finite, got {learning_rate!r}.")
    if not 0 <= warmup < 1:
        raise InvalidInputError(f"warmup must be a share from 0 to below 1, got {warmup!r}.")
    for part in (data, test):
        if part is not None and len(part.classes) != backbone.num_classes:
            raise InvalidInputError(
                f"the head of {backbone.name} has {backbone.num_classes} outputs, but {part.title} has "
                f"{len(part.classes)} classes; make it with num_classes={len(part.classes)}."
            )
    target = resolve_device(device)
    clean = test_transform or (transform and transform.still) or evaluation_transform(backbone)
    used = clean if transform is None else transform
    recipe = {
        "backbone": backbone.name, "data": data.checksum, "epochs": epochs, "optimizer": optimizer,
        "learning_rate": learning_rate, "weight_decay": weight_decay, "batch_size": batch_size,
        "label_smoothing": label_smoothing, "warmup": warmup, "seed": seed, "transform": used.description,
    }  # fmt: skip
    file = None if checkpoint is None else Path(checkpoint)
    started = time.perf_counter()
    backbone.to(target, memory_format=torch.channels_last)  # type: ignore[call-overload]
    unreadable: dict[str, Unreadable] = {}
    rows: list[dict[str, float]] = []
    steps = math.ceil(len(data) / batch_size)
    rising = round(warmup * epochs * steps)

    def one_epoch(epoch: int) -> dict[str, float]:
        """Pass once over the images and return the row of the history."""
        stream = seed + 1_000_003 * epoch  # so that runs with neighbouring seeds share none
        torch.manual_seed(stream)  # dropout; inside the fork
        total, right, seen, rate = torch.zeros((), device=target), 0, 0, 0.0
        loader = image_loader(
            data, used, batch_size=batch_size, shuffle=True, seed=stream, workers=workers,
            pin_memory=target.type == "cuda",
        )  # fmt: skip
        for step, batch in enumerate(loader, epoch * steps):
            unreadable.update({image.name: image for image in batch.unreadable})
            if len(batch.labels) < 2:  # BatchNorm needs two rows
                continue
            if step < rising:
                rate = learning_rate * (step + 1) / rising
            else:
                falling = (step - rising) / max(1, epochs * steps - rising)
                rate = learning_rate * 0.5 * (1 + math.cos(math.pi * falling))
            for group in stepper.param_groups:
                group["lr"] = rate
            images, labels = (part.to(target, non_blocking=True) for part in (batch.images, batch.labels))
            logits = backbone.logits(images.contiguous(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(logits, labels, label_smoothing=label_smoothing)
            stepper.zero_grad(set_to_none=True)
            loss.backward()
            stepper.step()
            total += loss.detach() * len(labels)
            right += int((logits.detach().argmax(dim=1) == labels).sum())
            seen += len(labels)
            done = {"step": step + 1, "steps": epochs * steps}
            report_event(stage=f"pre-training {backbone.name}", seed=seed, **done)
        mean = float(total) / max(1, seen)
        if not math.isfinite(mean):
            raise InvalidInputError(
                f"pre-training {backbone.name}: the loss is {mean} in epoch {epoch + 1} at a learning rate "
                f"of {rate:.3g}; lower learning_rate={learning_rate:g}."
            )
        return {"epoch": epoch + 1, "loss": mean, "accuracy": right / max(1, seen), "learning_rate": rate}

    forked = [target] if target.type == "cuda" else []
    with torch.random.fork_rng(devices=forked), backbone.pretraining():
        stepper: torch.optim.Optimizer
        learned = [p for p in backbone.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in learned if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
        ]
        if optimizer == "adamw":
            stepper = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        else:
            stepper = torch.optim.SGD(groups, lr=learning_rate, momentum=0.9, nesterov=True)
        if file is not None and (state := read_state(file, recipe, "pre-training")) is not None:
            backbone.model.load_state_dict(state["model"])
            stepper.load_state_dict(state["optimizer"])
            rows = state["rows"]
        spent, saved = 0.0, started  # seconds that the last checkpoint took, and when it was written
        for epoch in range(len(rows), epochs):
            with memory_advice(batch_size, target, f"pre-training {backbone.name} on {data.name}"):
                rows.append(one_epoch(epoch))
            # A slow disk must not take more than a tenth of the time: then an epoch or two are lost instead.
            begun = time.perf_counter()
            if file is not None and (spent < 0.5 or begun - saved >= 10 * spent or epoch + 1 == epochs):
                model = backbone.model.state_dict()
                write_state(file, recipe, {"model": model, "optimizer": stepper.state_dict(), "rows": rows})
                saved = time.perf_counter()
                spent = saved - begun
            if on_progress is not None:
                seconds = time.perf_counter() - started
                on_progress(PretrainingProgress(epoch + 1, epochs, rows[-1]["loss"], seconds))
    accuracy = math.nan
    if test is not None:
        features = extract_features(backbone, test, clean, batch_size=max(batch_size, 64), workers=workers)
        accuracy = head_accuracy(backbone, features)
        unreadable |= {image.name: image for image in features.unreadable}
    return Pretraining(
        history=pd.DataFrame(rows, columns=["epoch", "loss", "accuracy", "learning_rate"]),
        test_accuracy=accuracy,
        epochs=epochs,
        images=len(data),
        seconds=time.perf_counter() - started,
        unreadable=tuple(unreadable.values()),
    )
