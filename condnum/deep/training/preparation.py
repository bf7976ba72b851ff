"""What a run needs before its first step: a copy of the net, the tasks' samples and order, the monitor."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.deep.backbone import Backbone
from condnum.deep.images import ImageData, hold_out_rows
from condnum.deep.rir import check_count
from condnum.deep.training.monitor import Monitor
from condnum.deep.training.processes import Processes
from condnum.deep.training.samples import Samples, TaskStream, task_samples
from condnum.deep.training.settings import DeepSettings
from condnum.deep.training.step import Task
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.errors import InvalidInputError

#: Images of a task that are held out: enough to tell an accuracy to two points …
HELD_OUT = 500
#: … but a share of the task between these.
HELD_OUT_SHARES = (0.1, 0.2)


@dataclass(frozen=True)
class RunInputs:
    """The images of a run and how they become tensors."""

    pretrain: ImageData
    harmful: ImageData
    validation: ImageData | None
    validation_H: ImageData | None
    transform_P: ImageTransform
    transform_H: ImageTransform
    seed: int
    workers: int


@dataclass(frozen=True)
class Preparation:
    """What a run starts from."""

    net: Backbone  # a copy of θ₀ with its head, to be trained
    tasks: Mapping[Task, TaskStream]
    monitor: Monitor | None  # in the first process only
    steps: int


def check_tasks(backbone: Backbone, D_P: ImageData, D_H: ImageData, group_size: int) -> None:
    """Refuse what cannot be immunized, before anything is computed."""
    if not any(p.requires_grad for p in backbone.trainable_parameters()):
        raise InvalidInputError(
            "a snapshot is a record of θ and cannot be trained; pass the backbone it is of."
        )
    top = int(D_P.labels.max())
    if top >= backbone.num_classes:
        raise InvalidInputError(
            f"{D_P.name} has label {top} ('{D_P.classes[top]}'), out of range: the head of {backbone.name} "
            f"has {backbone.num_classes} outputs. Make the backbone with num_classes={len(D_P.classes)} and "
            "a head that is trained on these classes."
        )
    check_count(len(D_P), "D_P", group_size)
    check_count(len(D_H), "D_H", group_size)


def prepare(
    backbone: Backbone, inputs: RunInputs, settings: DeepSettings, processes: Processes
) -> Preparation:
    """Copy the net, run the frozen trunk where its activations can be kept, and measure θ₀."""
    device = processes.device
    net = copy.deepcopy(backbone).to(device).eval()
    if settings.precision == "float64":
        net = net.double()

    def samples(data: ImageData, transform: ImageTransform) -> Samples:
        """The images as the run sees them."""
        return task_samples(
            net, data, transform, seed=inputs.seed, workers=inputs.workers, batch_size=settings.batch_size,
            device=device, precision=settings.precision, views=settings.views,
        )  # fmt: skip

    tasks: dict[Task, TaskStream] = {}
    seen, held = [], []  # what the monitor looks at
    known: dict[Task, tuple[ImageData, ImageTransform, ImageData | None]] = {
        "pretrain": (inputs.pretrain, inputs.transform_P, inputs.validation),
        "harmful": (inputs.harmful, inputs.transform_H, inputs.validation_H),
    }
    for task, (data, transform, validation) in known.items():
        own = samples(data, transform)
        rows, out = hold_out(own.labels, inputs.seed) if validation is None else (np.arange(len(own)), None)
        check_count(len(rows), f"D_{task[0].upper()} without what is held out", settings.group_size)
        tasks[task] = TaskStream(
            own, rows, settings.batch_size, settings.accumulate, inputs.seed, stream=len(tasks)
        )
        if processes.rank == 0:
            still = transform.still or evaluation_transform(backbone, input_size=transform.input_size)
            plain = samples(data, still) if transform.random else own
            seen.append((plain, rows))
            apart = plain if validation is None else samples(validation, still)
            held.append((apart, np.arange(len(apart)) if out is None else out))
    monitor = None
    if processes.rank == 0:
        monitor = Monitor(net, tasks=seen, held=held, settings=settings, device=device, seed=inputs.seed)
    if settings.compile:  # in place: the trainable modules, and the children of the trunk that hold none
        parts = list(net.split.trainable)
        names = [name for name, _ in net.model.named_children()]
        parts += [n for n in names if not any(f"{part}.".startswith(f"{n}.") for part in parts)]
        for part in parts:
            net.model.get_submodule(part).compile()
    steps = settings.steps
    if steps is None:
        of = min if settings.epochs_of == "shorter" else max
        steps = settings.epochs * of(task.steps_per_epoch for task in tasks.values())
    return Preparation(net, tasks, monitor, steps)


def hold_out(
    labels: torch.Tensor | NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into those to train on and a part of each class to judge on.

    Held out are `HELD_OUT` images, but a tenth of them at least and a fifth at most.

    Examples:
        >>> rest, held = hold_out(torch.tensor([0] * 20 + [1] * 10), seed=0)
        >>> len(rest), len(held)
        (24, 6)
    """
    known = np.asarray(labels)
    return hold_out_rows(known, float(np.clip(HELD_OUT / len(known), *HELD_OUT_SHARES)), [seed, 2])
