"""What a run needs before its first step: a copy of the net, the tasks' samples and order, the monitor."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.deep.backbone import Backbone
from condnum.deep.image_data import ImageData
from condnum.deep.rir_groups import check_count
from condnum.deep.training.batch_order import BatchOrder
from condnum.deep.training.feature_methods import Task
from condnum.deep.training.monitor import Monitor
from condnum.deep.training.ranks import Ranks
from condnum.deep.training.samples import ImageSamples, Samples, TaskStream, task_samples
from condnum.deep.training.settings import DeepSettings
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.errors import InvalidInputError

#: Share of each class of D_P that is held out for its accuracy, where no validation set is given.
HELD_OUT = 0.1


@dataclass(frozen=True)
class RunInputs:
    """The images of a run and how they become tensors."""

    pretrain: ImageData
    harmful: ImageData
    validation: ImageData | None
    transform_P: ImageTransform
    transform_H: ImageTransform
    seed: int
    workers: int


@dataclass(frozen=True)
class Preparation:
    """What a run starts from."""

    net: Backbone  # a copy of θ₀ with its head, to be trained
    tasks: Mapping[Task, TaskStream]
    monitor: Monitor | None  # on rank 0 only
    steps: int


def check_tasks(backbone: Backbone, D_P: ImageData, D_H: ImageData, group_size: int) -> None:
    """Refuse what cannot be immunized, before anything is computed.

    Args:
        backbone: θ₀ with its head.
        D_P: Pre-training images.
        D_H: Harmful images.
        group_size: Images that RIR_θ0 needs of each.

    Raises:
        InvalidInputError: A snapshot, labels beyond the head's outputs, or too few images.
    """
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


def prepare(backbone: Backbone, inputs: RunInputs, settings: DeepSettings, ranks: Ranks) -> Preparation:
    """Copy the net, run the frozen trunk where its activations can be kept, and measure θ₀.

    Args:
        backbone: θ₀; left as it is.
        inputs: The images.
        settings: Of the run.
        ranks: The processes.

    Returns:
        All that the loop needs.

    Raises:
        DataFormatError: More than a tenth of a task's images does not decode.
        DeviceError: Out of memory.
    """
    net = copy.deepcopy(backbone).to(ranks.device).eval()
    if settings.precision == "float64":
        net = net.double()

    def samples(data: ImageData, transform: ImageTransform) -> Samples:
        return task_samples(
            net,
            data,
            transform,
            seed=inputs.seed,
            workers=inputs.workers,
            batch_size=settings.batch_size,
            device=ranks.device,
            precision=settings.precision,
        )

    def plain(data: ImageData, transform: ImageTransform, own: Samples) -> Samples:
        """The same images un-augmented, for the monitor."""
        if not transform.random:
            return own
        still = evaluation_transform(backbone, input_size=transform.input_size)
        return ImageSamples(data, still, seed=inputs.seed, workers=inputs.workers)

    P, H = samples(inputs.pretrain, inputs.transform_P), samples(inputs.harmful, inputs.transform_H)
    rows_P, held = np.arange(len(P)), np.arange(0)
    if inputs.validation is None:
        rows_P, held = hold_out(P.labels, inputs.seed)
    check_count(len(rows_P), "D_P without what is held out for its accuracy", settings.group_size)
    tasks: dict[Task, TaskStream] = {
        "pretrain": _stream(P, rows_P, settings, inputs.seed, 0),
        "harmful": _stream(H, np.arange(len(H)), settings, inputs.seed, 1),
    }
    monitor = None
    if ranks.rank == 0:
        still_P = plain(inputs.pretrain, inputs.transform_P, P)
        judge: Samples = still_P
        if inputs.validation is not None:
            still = evaluation_transform(backbone, input_size=inputs.transform_P.input_size)
            transform = still if inputs.transform_P.random else inputs.transform_P
            judge = samples(inputs.validation, transform)
            held = np.arange(len(judge))
        monitor = Monitor(
            net,
            tasks=((still_P, rows_P), (plain(inputs.harmful, inputs.transform_H, H), np.arange(len(H)))),
            validation=(judge, held),
            settings=settings,
            device=ranks.device,
            seed=inputs.seed,
        )
    if settings.compile:
        _compile(net)
    return Preparation(net, tasks, monitor, _steps(settings, tasks))


def hold_out(labels: torch.Tensor, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows into those to train on and a tenth of each class to judge on.

    Args:
        labels: `(N,)`.
        seed: Of a local generator.

    Returns:
        Rows to train on and rows held out, ascending; a class with one row is trained on.

    Examples:
        >>> rest, held = hold_out(torch.tensor([0] * 20 + [1] * 10), seed=0)
        >>> len(rest), len(held)
        (27, 3)
    """
    generator = np.random.default_rng([seed, 2])
    known = labels.numpy()
    held = []
    for c in np.unique(known):
        own = generator.permutation(np.flatnonzero(known == c))
        held.append(own[: max(1, round(HELD_OUT * len(own))) if len(own) > 1 else 0])
    out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(known)), out), out


def _stream(
    samples: Samples, rows: NDArray[np.int64], settings: DeepSettings, seed: int, stream: int
) -> TaskStream:
    """Return a task's samples in the order of the run."""
    return TaskStream(
        samples, rows, BatchOrder(len(rows), settings.batch_size, settings.accumulate, seed, stream)
    )


def _steps(settings: DeepSettings, tasks: Mapping[Task, TaskStream]) -> int:
    """Return how many steps the settings mean."""
    if settings.steps is not None:
        return settings.steps
    of = min if settings.epochs_of == "shorter" else max
    return settings.epochs * of(task.order.steps_per_epoch for task in tasks.values())


def _compile(net: Backbone) -> None:
    """Compile, in place, the trainable modules and the children of the trunk that do not hold them."""
    parts = list(net.split.trainable)
    parts += [n for n, _ in net.model.named_children() if not any(f"{p}.".startswith(f"{n}.") for p in parts)]
    for name in parts:
        net.model.get_submodule(name).compile()
