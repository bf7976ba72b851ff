"""Make a θ₀: supervised training of a whole backbone on D_P, where no pre-trained weights are at hand."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from condnum.arrays import resolve_device
from condnum.data.images import ImageSource, Unreadable, as_images
from condnum.deep.backbone import Backbone
from condnum.deep.training.samples import Samples, TaskStream
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.deep.weights import read_state, write_state
from condnum.errors import InvalidInputError, check_integer
from condnum.machine import memory_advice
from condnum.progress import report_event

#: Of AdamW, for matrices and convolutions; vectors (biases, norms) have none.
_WEIGHT_DECAY = 0.05
_LABEL_SMOOTHING = 0.1
#: Fraction of all steps in which the learning rate rises.
_WARMUP = 0.1


@dataclass(frozen=True, eq=False)
class Pretraining:
    """How a θ₀ was made."""

    history: pd.DataFrame  # a row per epoch: epoch, loss, accuracy (training, as seen), learning_rate
    seconds: float
    unreadable: tuple[Unreadable, ...]  # images that do not decode


def pretrain_backbone(
    backbone: Backbone,
    data: ImageSource,
    *,
    epochs: int,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    transform: ImageTransform | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    workers: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Pretraining:
    """Train all of a backbone on D_P, in place, by AdamW with a linear warm-up and a cosine to zero.

    The same seed gives the same weights on the same machine, stopped and continued from `checkpoint` or not.
    """
    epochs, batch_size = check_integer("epochs", epochs, 1), check_integer("batch_size", batch_size, 2)
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InvalidInputError(f"learning_rate must be positive and finite, got {learning_rate!r}.")
    images = as_images(data, "D_P")
    if len(images.classes) != backbone.num_classes:
        raise InvalidInputError(
            f"the head of {backbone.name} has {backbone.num_classes} outputs, but {images.title} has "
            f"{len(images.classes)} classes; create it with num_classes={len(images.classes)}."
        )
    target = resolve_device(device)
    used = transform or (None if images.tensors else evaluation_transform(backbone))
    made_of = (
        backbone.checksum, images.checksum, epochs, learning_rate, batch_size, seed, used and used.description
    )  # fmt: skip
    file, stage = None if checkpoint is None else Path(checkpoint), f"pre-training {backbone.name}"
    started = time.perf_counter()
    backbone.to(target, memory_format=torch.channels_last)  # type: ignore[call-overload]
    samples = Samples(images, used, seed=seed, workers=workers)
    stream = TaskStream(samples, np.arange(len(images)), batch_size, seed, stream=2)
    rows, steps = list[dict[str, float]](), stream.steps_per_epoch
    total, rising = epochs * steps, round(_WARMUP * epochs * steps)

    def rate(step: int) -> float:
        """Return the learning rate of a step, as a multiple of `learning_rate`."""
        falling = math.pi * (step - rising) / max(1, total - rising)
        return (step + 1) / rising if step < rising else (1 + math.cos(falling)) / 2

    def one_epoch(epoch: int) -> dict[str, float]:
        """Pass once over the images and return the row of the history."""
        torch.manual_seed(seed + 1_000_003 * epoch)  # dropout; inside the fork
        summed, right, seen, first = torch.zeros((), device=target), 0, 0, epoch * steps
        for step, batch in zip(range(first, first + steps), stream.steps(first), strict=False):
            if len(batch.labels) < 2:  # BatchNorm needs two rows
                continue
            for group in stepper.param_groups:
                group["lr"] = learning_rate * rate(step)
            x, labels = (part.to(target, non_blocking=True) for part in (batch.inputs, batch.labels))
            logits = backbone.logits(x.contiguous(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(logits, labels, label_smoothing=_LABEL_SMOOTHING)
            stepper.zero_grad(set_to_none=True)
            loss.backward()
            stepper.step()
            summed += loss.detach() * len(labels)
            right += int((logits.detach().argmax(dim=1) == labels).sum())
            seen += len(labels)
            report_event(stage=stage, seed=seed, step=step + 1, steps=total)
        mean, last = float(summed) / max(1, seen), float(stepper.param_groups[0]["lr"])
        if not math.isfinite(mean):
            raise InvalidInputError(
                f"{stage}: the loss is {mean} in epoch {epoch + 1} at a learning rate "
                f"of {last:.3g}; lower learning_rate={learning_rate:g}."
            )
        return {"epoch": epoch + 1, "loss": mean, "accuracy": right / max(1, seen), "learning_rate": last}

    forked = [target] if target.type == "cuda" else []
    with torch.random.fork_rng(devices=forked), backbone.pretraining() as model:
        learned = [p for p in model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in learned if p.ndim > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
        ]
        stepper = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        if file is not None and (state := read_state(file, made_of)) is not None:
            model.load_state_dict(state["model"])
            stepper.load_state_dict(state["optimizer"])
            rows = state["rows"]
        for epoch in range(len(rows), epochs):
            with memory_advice(batch_size, target, f"{stage} on {images.name}"):
                rows.append(one_epoch(epoch))
            if file is not None:
                state = {"model": model.state_dict(), "optimizer": stepper.state_dict(), "rows": rows}
                write_state(file, made_of, state)
    return Pretraining(
        history=pd.DataFrame(rows, columns=["epoch", "loss", "accuracy", "learning_rate"]),
        seconds=time.perf_counter() - started,
        unreadable=tuple(samples.unreadable),
    )
