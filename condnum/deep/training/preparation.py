"""What a run needs before its first step: a copy of the net, the tasks' samples and order, the monitor."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.deep.backbone import Backbone
from condnum.deep.images import ImageData, Unreadable
from condnum.deep.rir import check_count
from condnum.deep.training.monitor import Evaluation, Monitor
from condnum.deep.training.ranks import Ranks
from condnum.deep.training.samples import BatchOrder, Samples, TaskStream, task_samples
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
    monitor: Monitor | None  # on rank 0 only
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


def prepare(backbone: Backbone, inputs: RunInputs, settings: DeepSettings, ranks: Ranks) -> Preparation:
    """Copy the net, run the frozen trunk where its activations can be kept, and measure θ₀."""
    net = copy.deepcopy(backbone).to(ranks.device).eval()
    if settings.precision == "float64":
        net = net.double()

    def samples(data: ImageData, transform: ImageTransform) -> Samples:
        """The images as the run sees them."""
        return task_samples(
            net,
            data,
            transform,
            seed=inputs.seed,
            workers=inputs.workers,
            batch_size=settings.batch_size,
            device=ranks.device,
            precision=settings.precision,
            views=settings.views,
        )

    def still(transform: ImageTransform) -> ImageTransform:
        """Its un-augmented counterpart, for the monitor."""
        return transform.still or evaluation_transform(backbone, input_size=transform.input_size)

    known = (
        (inputs.pretrain, inputs.transform_P, inputs.validation),
        (inputs.harmful, inputs.transform_H, inputs.validation_H),
    )
    tasks: dict[Task, TaskStream] = {}
    seen, held = [], []
    names: tuple[Task, Task] = ("pretrain", "harmful")
    for stream, (task, (data, transform, validation)) in enumerate(zip(names, known, strict=True)):
        own = samples(data, transform)
        rows, out = hold_out(own.labels, inputs.seed) if validation is None else (np.arange(len(own)), None)
        check_count(len(rows), f"D_{task[0].upper()} without what is held out", settings.group_size)
        order = BatchOrder(len(rows), settings.batch_size, settings.accumulate, inputs.seed, stream)
        tasks[task] = TaskStream(own, rows, order)
        if ranks.rank == 0:
            plain = samples(data, still(transform)) if transform.random else own
            seen.append((plain, rows))
            apart = plain if validation is None else samples(validation, still(transform))
            held.append((apart, np.arange(len(apart)) if out is None else out))
    monitor = None
    if ranks.rank == 0:
        monitor = Monitor(
            net, tasks=seen, held=held, settings=settings, device=ranks.device, seed=inputs.seed
        )
    if settings.compile:
        _compile(net)
    return Preparation(net, tasks, monitor, _steps(settings, tasks))


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
    generator = np.random.default_rng([seed, 2])
    known = np.asarray(labels)
    share = float(np.clip(HELD_OUT / len(known), *HELD_OUT_SHARES))
    held = []
    for c in np.unique(known):
        own = generator.permutation(np.flatnonzero(known == c))
        held.append(own[: max(1, round(share * len(own))) if len(own) > 1 else 0])
    out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(known)), out), out


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


# What an immunization of a backbone leaves behind: θ_I, and the evidence.


DeepStopReason = Literal["steps", "early_stopping", "diverged", "cancelled"]


@dataclass(frozen=True, eq=False)
class DeepImmunization:
    """An immunized backbone and how it was obtained.

    `history` has a row for each step, with the parts' values before that step (`step`, `supervised`, and of
    `ours` `well` and `ill`, …, `gradient_norm` in θ, `rate`), and for each evaluation the columns `rir`,
    `harmful_ratio`, `pretrain_ratio` and `accuracy` after it (NaN between evaluations).
    """

    theta_0: Backbone  # snapshot before the first step
    theta_I: Backbone  # ruff: ignore[mixed-case-variable-in-class-scope] - the paper's name; in evaluation mode
    method: str
    seed: int
    settings: DeepSettings
    history: pd.DataFrame
    part_weights: dict[str, float]  # λ of each part
    steps: int  # steps taken
    best: Evaluation  # of the θ that is the result
    start: Evaluation  # of θ₀
    seconds: float  # of the steps and evaluations, over all resumed parts
    stop_reason: DeepStopReason
    unreadable: tuple[Unreadable, ...]  # images that do not decode
    warnings: tuple[str, ...]  # plain sentences; empty if there is nothing to say

    @property
    def best_step(self) -> int:
        """Steps after which the result was taken; 0 means that it is θ₀."""
        return self.best.step

    @property
    def evaluations(self) -> pd.DataFrame:
        """The rows of the history at which θ was evaluated."""
        return self.history.dropna(subset=["rir"]).reset_index(drop=True)
