"""`immunize_backbone`: Eq. 11 on a backbone and two sets of images (Sec. 5.2)."""

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data.images import ImageData, ImageSource, Unreadable, as_images
from condnum.deep.backbone import Backbone
from condnum.deep.methods import Task, get_net_method
from condnum.deep.rir import check_count
from condnum.deep.training.erasure import ErasureObjective
from condnum.deep.training.loop import DeepStopReason, Training
from condnum.deep.training.monitor import Evaluation, Monitor
from condnum.deep.training.objectives import DeepObjective
from condnum.deep.training.samples import Samples, TaskStream, hold_out
from condnum.deep.training.settings import DeepSettings, deep_preset, default_settings
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.errors import InvalidInputError
from condnum.files import output_folder
from condnum.methods.descent import checked
from condnum.theory.kappa import RATIO_TOLERANCE


@dataclass(frozen=True, eq=False)
class DeepImmunization:
    """An immunized backbone and how it was obtained.

    `history` has a row for each step, with the parts' values before that step (`step`, `supervised`, and of
    `ours` `well` and `ill`, …, `gradient_norm` in θ, `rate`), and for each evaluation the columns `rir`,
    `harmful_ratio`, `benign_ratio`, `accuracy` and `slowdown` after it (NaN between evaluations).
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


def immunize_backbone(
    backbone: Backbone,
    D_P: ImageSource,
    D_H: ImageSource,
    *,
    method: Any = "ours",
    settings: DeepSettings | str | None = None,
    validation: ImageSource | None = None,
    validation_H: ImageSource | None = None,
    transform_P: ImageTransform | None = None,
    transform_H: ImageTransform | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    activations: str | os.PathLike[str] | None = None,
    workers: int = 0,
) -> DeepImmunization:
    r"""Immunize a backbone against linear probing of a harmful task (Eq. 11, Sec. 5.2).

    .. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
       + \lambda_H R_{ill}(\tilde H_H(\theta)), \qquad \tilde H = \tilde X^\top\tilde X

    Each step takes images of both tasks; the smaller task cycles. Every `record_every` steps RIR_θ0 on
    training and on held-out images and the accuracy on held-out images of D_P are measured, the weights
    adapt, a checkpoint is written, and the best θ so far is kept: accuracy above its floor comes first, then
    (i) ≥ 1.2 with (ii) ≤ 0.8, then the steps of gradient descent that a new head needs on held-out images of
    D_H (`slowdown`, in closed form), then the smaller of the two RIR_θ0. No test image is involved.

    Args:
        backbone: θ₀ with its head ω on D_P's classes; it stays as it is.
        D_P: Pre-training images, labels in the order of the head's outputs: a folder, a data set, a
            `DataLoader` or tensors (`as_images`).
        D_H: Harmful images, likewise.
        method: `ours`; `r_ill_only`, without R_well; `opt_kappa`, κ_P − κ_H itself; `imma`, bi-level;
            all with the supervised loss on D_P.
            `erase` trains every block until ridge heads on any of them read as little of D_H as possible,
            and keeps the last θ above its floor. Or an object of your own with `net_parts`, see
            `condnum.deep.methods.NetMethod`.
        settings: `DeepSettings`, None for the defaults of the method, or for one of the paper's methods the
            name of a preset.
        validation: Held-out images of D_P, best some that θ₀ has not seen either; None holds out a part.
        validation_H: Likewise of D_H.
        transform_P: Of D_P's images, random or not; default: `evaluation_transform(backbone)`, but none
            for tensors.
        transform_H: Of D_H's.
        seed: Of the order, the augmentations, the held-out part and the groups.
        device: `auto`, `cpu` or `cuda[:i]`.
        checkpoint: File to keep the run in; if it is there, the run goes on from it, to the same end.
        activations: Folder in which the frozen trunk's output is kept, for this and other runs on the same
            trunk and images; None keeps up to 2 GiB in memory.
        workers: Processes that decode.

    Returns:
        θ_0, θ_I and the evidence; where a value is not finite ("diverged"), the best θ evaluated before.

    Raises:
        InvalidInputError: Labels beyond the head's outputs, fewer images than a group, or a checkpoint of
            another run.
        RankError: Features of θ₀ without a spectrum to act on.
        DataFormatError: More than a tenth of the images does not decode; a damaged checkpoint.
        DeviceError: No such device, or out of memory.

    Examples:
        >>> from condnum.deep import open_images
        >>> D_P, D_H = (open_images(f"digits-8x8:{digits}", limit=30) for digits in ("0-4", "5-9"))
        >>> backbone = Backbone("test_resnet", num_classes=5)
        >>> small = evaluation_transform(backbone, input_size=16)
        >>> result = immunize_backbone(
        ...     backbone, D_P, D_H, settings=DeepSettings(steps=2), transform_P=small, transform_H=small)
        >>> result.steps, result.stop_reason, len(result.history)
        (2, 'steps', 2)
    """
    known = get_net_method(method)
    preset = deep_preset(settings) if isinstance(settings, str) else settings
    chosen, erases = checked(preset or default_settings(known)), known.name == "erase"
    if not backbone.can_train:
        raise InvalidInputError("a snapshot cannot be trained; pass the backbone from which it was made.")
    data_P, data_H = as_images(D_P, "D_P"), as_images(D_H, "D_H")
    top = int(data_P.labels.max())
    if top >= backbone.num_classes:
        raise InvalidInputError(
            f"{data_P.name} has label {top} ('{data_P.classes[top]}'), out of range: the head of "
            f"{backbone.name} has {backbone.num_classes} outputs. Create and train it with "
            f"num_classes={len(data_P.classes)}."
        )
    check_count(len(data_P), "D_P", chosen.group_size)
    check_count(len(data_H), "D_H", chosen.group_size)
    net = (backbone.whole() if erases else copy.deepcopy(backbone)).to(resolve_device(device)).eval()
    tasks: dict[Task, TaskStream] = {}
    seen, held = [], []  # what the monitor looks at
    sets: tuple[tuple[Task, ImageData, ImageSource | None, ImageTransform | None], ...] = (
        ("benign", data_P, validation, transform_P),
        ("harmful", data_H, validation_H, transform_H),
    )
    described = list[tuple[ImageTransform | None, ImageData | None]]()

    def samples(data: ImageData, transform: ImageTransform | None) -> Samples:
        """Return the images as the run sees them: through the frozen trunk already, unless random."""
        found = Samples(data, transform, seed=seed, workers=workers)
        found.keep_activations(net, chosen.batch_size, None if activations is None else Path(activations))
        return found

    for task, data, apart, given in sets:
        transform = given if given is not None or data.tensors else evaluation_transform(backbone)
        still = transform and (
            transform.unaugmented or evaluation_transform(backbone, input_size=transform.input_size)
        )
        own = samples(data, transform)
        rows, out = hold_out(own.labels, seed) if apart is None else (np.arange(len(own.labels)), None)
        check_count(len(rows), f"D_{task[0].upper()} without what is held out", chosen.group_size)
        tasks[task] = TaskStream(own, rows, chosen.batch_size, seed, stream=len(tasks))
        plain = samples(data, still) if transform is not None and transform.random else own
        seen.append((plain, rows))
        other = plain if apart is None else samples(as_images(apart, "validation"), still)
        held.append((other, np.arange(len(other.labels)) if out is None else out))
        described.append((transform, None if apart is None else other.data))
    classes = len(data_H.classes)
    monitor = Monitor(net, tasks=seen, held=held, settings=chosen, seed=seed)
    objective = (
        ErasureObjective(net, chosen, harmful_classes=classes)
        if erases
        else DeepObjective(net, known, chosen, harmful_classes=classes, seed=seed)
    )
    training = Training(objective, tasks, monitor, seed)
    path = None if checkpoint is None else Path(checkpoint).expanduser()
    if path is not None:
        output_folder(path.parent)
    how = [(used and used.description, apart and apart.checksum) for used, apart in described]
    made_of = (
        backbone.checksum, backbone.trainable, data_P.checksum, data_H.checksum, how, known.name, chosen, seed
    )  # fmt: skip
    reason = training.run(path, made_of)
    state = training.state
    immunized = copy.deepcopy(backbone)
    immunized.model.load_state_dict({**immunized.model.state_dict(), **state.best_net})
    return DeepImmunization(
        theta_0=backbone.snapshot(),
        theta_I=immunized.eval(),
        method=known.name,
        seed=seed,
        settings=chosen,
        history=pd.DataFrame(state.history),
        part_weights=dict(state.part_weights),
        steps=state.step,
        best=state.best,
        start=training.start,
        seconds=state.seconds,
        stop_reason=reason,
        unreadable=tuple(dict.fromkeys(u for task in tasks.values() for u in task.samples.unreadable)),
        warnings=tuple(_warnings(training, reason)),
    )


def _warnings(training: Training, reason: DeepStopReason) -> list[str]:
    """Say what a reader of the result must know."""
    state, floor = training.state, training.accuracy_floor
    found = []
    if reason == "diverged":
        found.append(
            f"step {state.step + 1} produced a value or gradient that is not finite; the result is θ after "
            f"step {state.best.step}. Lower learning_rate ({training.settings.learning_rate:g})."
        )
    if state.best.step == 0:
        found.append(
            "no evaluated θ was better than θ₀ itself, so the result is θ₀ and nothing was immunized. Allow "
            "a larger max_accuracy_drop, or change the learning rate or the weights."
        )
        return found
    most, ranked = 1 + RATIO_TOLERANCE, training.objective.method.ranked
    met = not ranked or (state.best.least_harmful_ratio > most and state.best.largest_benign_ratio <= most)
    if not met or state.best.accuracy < floor:
        found.append(
            f"no θ met all conditions (accuracy on held-out D_P of at least {floor:.1%}, (i) > 1, (ii) ≤ 1); "
            f"the result is the nearest, after step {state.best.step}."
        )
    return found
