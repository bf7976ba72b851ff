"""`immunize_backbone`: Eq. 11 on a net and two sets of images (Sec. 5.2); and how a θ₀ is made."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from condnum.arrays import resolve_device
from condnum.data.images import ImageSource, Unreadable, as_images
from condnum.deep.measure import check_count, descent_path, group_rir, head_accuracy, path_slowdown
from condnum.deep.methods import (
    LABEL_SMOOTHING,
    SUPERVISED,
    NetMethod,
    NetStep,
    NotFiniteError,
    Task,
    get_net_method,
)
from condnum.deep.net import Backbone, copied
from condnum.deep.samples import (
    ImageFeatures,
    ImageTransform,
    Samples,
    TaskStream,
    evaluation_transform,
    hold_out,
)
from condnum.errors import DataFormatError, InvalidInputError, OutputError, RankError, check_known
from condnum.files import atomic_write, output_folder
from condnum.machine import memory_advice
from condnum.methods.descent import checked, overridden
from condnum.progress import duration, report_event
from condnum.theory.kappa import RATIO_TOLERANCE

StopReason = Literal["steps", "early_stopping", "diverged"]
State = dict[str, Tensor]

#: (ii) that an adjusted λ_H is steered toward, and what (ii) and (i) of a result have to keep on the images
#: that it is chosen on: others will differ a little.
_BENIGN_AIM, _BENIGN_LIMIT, _HARMFUL_LIMIT = 0.7, 0.8, 1.2
#: RIR_θ0 from which more of it says nothing for a θ whose (ii) is too large; growth of it that is progress.
_ENOUGH, _GROWTH = 10.0, 1.02
#: Factors by which λ_H and the loss weight go up or down after an evaluation, and how far in all.
_RATIO_FACTOR, _LOSS_FACTOR, _RATIO_RANGE, _LEAST_LOSS = 2.0, 1.5, 100.0, 0.05
#: Weight of the past in the mean of θ over the steps, 25 of them about, that is evaluated and kept: a single
#: θ jumps about more on images that it was not trained on.
_MEMORY = 0.96
#: Weight decay of the heads (C.2), and of matrices where a whole net is trained on D_P.
_HEAD_DECAY, _PRETRAINING_DECAY = 2e-5, 0.05
#: Added to the seed of groups: the selection does not see those of the reported measurement.
_STREAM = 7919
#: Classes of D_H in a step of a method that reads labels by few images (`erase`): of 196 classes a batch of
#: 100 has hardly two of a kind.
_FEW_CLASSES = 10


@dataclass(frozen=True)
class DeepSettings:
    """How a backbone is immunized.

    By default λ_P and λ_H are adjusted: every `record_every` steps λ_H goes up where (ii) is below 0.7, else
    down, and the loss weight likewise by the accuracy floor, on held-out images. After `patience` evaluations
    without progress the run ends. The paper's own settings (Table 4) are presets, by name in place of
    settings.
    """

    optimizer: Literal["sgd", "adam"] = "adam"  # sgd: with Nesterov momentum 0.9
    learning_rate: float = 5e-4  # η of θ and of the head
    steps: int | None = 150  # at most; None: `epochs`
    epochs: int = 3  # passes over the smaller task, as Table 4 counts them
    batch_size: int = 100  # images of each task in a step
    lambda_benign: float | None = None  # λ_P; None: adjusted
    lambda_harmful: float | None = None  # λ_H; None: adjusted
    loss_weight: float = 1.0  # of the supervised loss on D_P; adjusted: over ‖g‖, to begin with
    precondition: bool = False  # the dummy layer of Sec. 4.4 on the features, for R_well and R_ill
    inner_steps: int = 1  # where an attacker is simulated: K, steps of gradient descent
    inner_rate: float = 1e-2  # likewise: their size
    whole: bool = False  # train every module, not the backbone's trained part alone
    transformed: bool = False  # erase: D_H's images are read under random changes too
    record_every: int | None = 25  # steps between evaluations and checkpoints; None: a tenth of all
    groups: int = 10  # groups of samples for RIR_θ0 at an evaluation
    group_size: int = 100  # samples of a group, as in Eq. 17's estimate; fewer where there are fewer images
    patience: int | None = 10  # evaluations without a better θ or larger RIR_θ0 before stopping; None: none
    max_accuracy_drop: float = 0.05  # D_P accuracy may fall by this much below θ₀'s
    keep: Literal["best", "last"] = "best"  # which θ is the result

    def with_overrides(self, **values: Any) -> DeepSettings:
        """Return a copy with some settings changed."""
        return overridden(self, **values)


def default_settings(method: str | NetMethod) -> DeepSettings:
    """Return the settings of a method for which none are given."""
    return DeepSettings(**get_net_method(method).defaults)


_TABLE_4: dict[str, dict[str, Any]] = {
    "resnet18-cars": {"lambda_benign": 5e-5, "lambda_harmful": 2e6, "epochs": 3},
    "resnet18-country211": {"lambda_benign": 1e-4, "lambda_harmful": 2e6, "epochs": 3},
    "vit-cars": {"lambda_benign": 3e-6, "lambda_harmful": 3e8, "epochs": 2},
    "vit-country211": {"lambda_benign": 1e-6, "lambda_harmful": 1e8, "epochs": 2},
}


def deep_preset(name: str) -> DeepSettings:
    """Return published settings (Table 4): their λ are those of its methods, backbones and batch size."""
    check_known("preset", name, _TABLE_4)
    # of all, by Table 4 and the text: SGD, Nesterov 0.9, no decay on θ, 2e-5 on ω (C.2)
    paper = DeepSettings(
        optimizer="sgd", learning_rate=1e-5, steps=None, batch_size=128, precondition=True, record_every=None,
        patience=None,
    )  # fmt: skip
    return paper.with_overrides(**_TABLE_4[name])


@dataclass(frozen=True)
class Evaluation:
    """How θ stands at a step."""

    step: int  # steps done
    rir: float  # RIR_θ0, compact, mean over groups of training images
    harmful_ratio: float  # (i)
    benign_ratio: float  # (ii)
    held_rir: float  # the same on held-out images of both tasks
    held_harmful_ratio: float
    held_benign_ratio: float
    held_benign_std: float  # of (ii), over groups of held-out images
    accuracy: float  # on held-out images of D_P, 0 to 1
    slowdown: float  # steps of a new head for D_H, of those on θ₀ (`path_slowdown`), on held-out images

    @property
    def least_rir(self) -> float:
        """RIR_θ0, on training or on held-out images, whichever is smaller."""
        return min(self.rir, self.held_rir)

    @property
    def least_harmful_ratio(self) -> float:
        """(i), likewise."""
        return min(self.harmful_ratio, self.held_harmful_ratio)

    @property
    def largest_benign_ratio(self) -> float:
        """(ii), on training or on held-out images, whichever is larger."""
        return max(self.benign_ratio, self.held_benign_ratio)

    @property
    def expected_benign_ratio(self) -> float:
        """(ii) to expect on other images: that of held-out ones and twice its deviation over their groups.

        A few images of D_P that look like D_H get features ten times as long and decide σ₁ of their group;
        the fewer are held out, the likelier they are missing there.
        """
        return max(self.benign_ratio, self.held_benign_ratio + 2 * self.held_benign_std)

    def rank(self, accuracy_floor: float) -> tuple[bool, bool, float, float]:
        """Return what compares evaluations; the larger, the better.

        Accuracy comes first, then (i) and (ii), then `slowdown`, then RIR_θ0: what an attacker meets, and not
        the worst case over all targets. Where (i) or (ii) is unmet, RIR_θ0 is compared, and a (ii) that is
        too large weighs against it: more than `_ENOUGH` does not make up for it.
        """
        excess = max(1.0, self.expected_benign_ratio / _BENIGN_LIMIT)
        met = self.least_harmful_ratio >= _HARMFUL_LIMIT and excess == 1
        rir = self.least_rir if excess == 1 else min(self.least_rir, _ENOUGH) / excess
        return self.accuracy >= accuracy_floor, met, self.slowdown if met else 0.0, rir


@dataclass(frozen=True, eq=False)
class DeepImmunization:
    """An immunized backbone and how it was obtained.

    `history` has a row for each step, with the parts' values before that step (`step`, `supervised`, and of
    `ours` `well` and `ill`, …, `gradient_norm` in θ), and for each evaluation its columns (NaN in between).
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
    stop_reason: StopReason
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
    transform: ImageTransform | None = None,
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
    training and on held-out images and the accuracy on held-out images of D_P are measured, λ_H is adjusted
    until (ii) ≤ 1, a checkpoint is written, and the best θ so far is kept: accuracy above its floor comes
    first, then (i) ≥ 1.2 with (ii) ≤ 0.8, then the steps of gradient descent that a new head needs on
    held-out images of D_H (`slowdown`, in closed form), then the smaller of the two RIR_θ0. No test image is
    involved.

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
        transform: Of PIL images; default: `evaluation_transform(backbone)`.
        seed: Of the order, the held-out part and the groups.
        device: `auto`, `cpu` or `cuda[:i]`.
        checkpoint: File to keep the run in; if it is there, the run goes on from it, to the same end.
        activations: Folder in which the frozen trunk's output is kept, for this and other runs on the same
            trunk and images; None keeps up to 2 GiB in memory.
        workers: Processes that decode.

    Returns:
        θ_0, θ_I and the evidence; where a value is not finite ("diverged"), the best θ evaluated before.

    Raises:
        InvalidInputError: Labels beyond the head's outputs, fewer images than a group, a trained part that
            never runs, or a checkpoint of another run.
        RankError: Features of θ₀ without a spectrum to act on.
        DataFormatError: More than a tenth of the images does not decode; a damaged checkpoint.
        DeviceError: No such device, or out of memory.

    Examples:
        >>> from condnum.deep import open_images
        >>> D_P, D_H = (open_images(f"digits-8x8:{digits}", limit=30) for digits in ("0-4", "5-9"))
        >>> backbone = Backbone("test_resnet", num_classes=5)
        >>> small = evaluation_transform(backbone, input_size=16)
        >>> result = immunize_backbone(backbone, D_P, D_H, settings=DeepSettings(steps=2), transform=small)
        >>> result.steps, result.stop_reason, len(result.history)
        (2, 'steps', 2)
    """
    known = get_net_method(method)
    preset = deep_preset(settings) if isinstance(settings, str) else settings
    chosen = checked(preset or default_settings(known))
    if not backbone.can_train:
        raise InvalidInputError("a snapshot cannot be trained; pass the backbone from which it was made.")
    given = {"benign": as_images(D_P, "D_P"), "harmful": as_images(D_H, "D_H")}
    top = int(given["benign"].labels.max())
    if top >= backbone.num_classes:
        raise InvalidInputError(
            f"{given['benign'].name} has label {top} ('{given['benign'].classes[top]}'), out of range: the "
            f"head of {backbone.name} has {backbone.num_classes} outputs. Create and train it with "
            f"num_classes={len(given['benign'].classes)}."
        )
    net = (backbone.whole() if chosen.whole else copied(backbone)).to(resolve_device(device)).eval()
    tasks: dict[Task, TaskStream] = {}
    sets: list[tuple[Samples, np.ndarray[Any, Any]]] = []  # of each task: to train on, held out
    folder, used = None if activations is None else Path(activations), transform
    for number, (task, apart) in enumerate((("benign", validation), ("harmful", validation_H))):
        data = given[task]
        if used is None and not data.tensors:
            used = evaluation_transform(backbone)
        rows, out = (np.arange(len(data)), None) if apart is not None else hold_out(data.labels, [seed, 2])
        if out is not None:
            check_count(len(out), f"the part of {('D_P', 'D_H')[number]} that is held out", 2)
        chosen = chosen.with_overrides(group_size=min(chosen.group_size, len(rows)))
        own = Samples(data, used, workers=workers)
        if number == 0:
            read = next(batch for batch in own.batches(rows[:, None]) if len(batch.labels))
            net.check(read.inputs.to(next(net.parameters())))
        keeps = None if chosen.transformed and task == "harmful" else net
        own.keep(keeps, folder)
        few = _FEW_CLASSES if known.start and task == "harmful" and len(data.classes) > _FEW_CLASSES else 0
        tasks[task] = TaskStream(own, rows, chosen.batch_size, (seed, number), few)  # type: ignore[index]
        other = own if apart is None else Samples(apart, used, workers=workers)
        sets += [(own, rows), (other.keep(keeps, folder), np.arange(len(other)) if out is None else out)]
    training = _Training(net, known, chosen, tasks, sets, len(given["harmful"].classes), seed)
    path = None if checkpoint is None else Path(checkpoint).expanduser()
    images = ", ".join(samples.data.checksum[:8] for samples, _ in sets)
    reason = training.run(path, f"{backbone.name}, {known.name}, {chosen}, seed {seed}, images {images}")
    state = training.state
    immunized = copied(backbone)
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
        unreadable=tuple(dict.fromkeys(u for samples, _ in sets for u in samples.unreadable)),
        warnings=tuple(training.warnings(reason)),
    )


@dataclass
class _RunState:
    """What changes while a run goes on: all that it needs to go on as if it had never stopped."""

    best: Evaluation
    best_net: State
    mean: State  # of the net over the steps, where λ are adjusted
    loss_weight: float
    record: float  # largest RIR_θ0 so far
    step: int = 0  # steps done
    net: State = field(default_factory=dict)  # θ, ω and their statistics, at a checkpoint
    ratio: float = 1.0  # λ_H‖g_H‖ against λ_P‖g_P‖
    probe: State = field(default_factory=dict)  # a head on D_H that is trained beside θ
    optimizer: dict[str, Any] = field(default_factory=dict)
    part_weights: dict[str, float] = field(default_factory=dict)  # λ
    balance: bool = True  # λ are to be found at the next step
    since_best: int = 0  # evaluations without a better one or a larger RIR_θ0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class _Training:
    """One run of a method on a backbone."""

    def __init__(
        self,
        net: Backbone,
        method: NetMethod,
        settings: DeepSettings,
        tasks: Mapping[Task, TaskStream],
        sets: list[tuple[Samples, np.ndarray[Any, Any]]],
        harmful_classes: int,
        seed: int,
    ) -> None:
        self.net, self.method, self.settings, self.tasks, self.seed = net, method, settings, tasks, seed
        self.adjusted = settings.lambda_benign is None and settings.lambda_harmful is None
        epoch = min(task.steps_per_epoch for task in tasks.values())
        self.steps = settings.epochs * epoch if settings.steps is None else settings.steps
        self.theta = [*net.trainable_parameters()]
        self.theta_0 = net.snapshot() if method.start else None
        self.probe: nn.Linear | None = None
        if method.probe:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.probe = nn.Linear(net.num_features, harmful_classes)
            self.probe.to(self.theta[0])
        heads = [*net.head_parameters(), *(self.probe.parameters() if self.probe else ())]
        groups = [
            {"params": self.theta, "weight_decay": 0.0}, {"params": heads, "weight_decay": _HEAD_DECAY}
        ]  # fmt: skip
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(groups, lr=settings.learning_rate)
            if settings.optimizer == "adam"
            else torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9, nesterov=True)
        )
        draw, most = np.random.default_rng([seed, _STREAM]), settings.groups * settings.group_size
        self.sets = [
            (samples, rows if held else np.sort(draw.permutation(rows)[:most]))
            for (samples, rows), held in zip(sets, (False, True) * 2, strict=True)
        ]
        self.before = self._features()
        self.path = descent_path(self.before[2], self.before[3])
        self.start = self._measured(0, self.before)
        self.floor = self.start.accuracy - settings.max_accuracy_drop
        self.state = _RunState(
            best=self.start,
            best_net=self._state(),
            mean=self._state() if self.adjusted else {},
            loss_weight=settings.loss_weight,
            record=self.start.least_rir,
        )

    def run(self, checkpoint: Path | None, identity: str) -> StopReason:
        """Train, or go on from a checkpoint; afterwards `state` holds all there is to know."""
        settings = self.settings
        if checkpoint is not None:
            output_folder(checkpoint.parent)
            self._resume(checkpoint, identity)
        state, every = self.state, settings.record_every or max(1, self.steps // 10)
        if self._exhausted:
            return "early_stopping"
        streams = {name: task.steps(state.step) for name, task in self.tasks.items()}
        self.net.train()
        started = time.perf_counter() - state.seconds
        while state.step < self.steps:
            batches = {name: next(stream) for name, stream in streams.items()}
            with memory_advice(settings.batch_size, self.theta[0].device, f"a step of {self.method.name}"):
                row = self._step(batches)
            if row is None:
                return "diverged"
            state.step += 1
            due = state.step % every == 0 or state.step == self.steps
            if due:
                evaluation = self._evaluate()
                if evaluation is None:
                    state.step -= 1  # it has no row
                    return "diverged"
                row |= asdict(evaluation) | {"step": row["step"]}
            state.seconds = time.perf_counter() - started
            state.history.append(row)
            if due and checkpoint is not None:
                self._write(checkpoint, identity)
            parts = ", ".join(f"{name} {row[name]:.3g}" for name in row if name in self.values)
            left = duration(state.seconds / state.step * (self.steps - state.step))
            stage = f"immunize ({self.method.name}), {parts}, at most {left} left"
            report_event(stage=stage, seed=self.seed, step=state.step, steps=self.steps)
            if self._exhausted:
                return "early_stopping"
        return "steps"

    def _backward(self, batches: Mapping[Task, Any], weights: Mapping[str, float]) -> dict[str, float]:
        """Fill the gradients with those of `Σ weight·part`; return the parts' values."""
        step = NetStep(
            self.net, batches, self.settings, self.probe, self.theta_0, (self.seed, self.state.step)
        )
        for parameter in (*step.theta, *step.heads):
            parameter.grad = torch.zeros_like(parameter)
        own = self.method.backward
        return own(step, weights) if own else step.backward(self.method.parts, weights)

    @property
    def _gradient_norm(self) -> float:
        """Norm of the gradient in θ, the head left out."""
        squares = [p.grad.double().square().sum() for p in self.theta if p.grad is not None]
        return float(torch.stack(squares).sum().sqrt())

    def _step(self, batches: Mapping[Task, Any]) -> dict[str, float] | None:
        """Take one step; return its row, or None (θ unmoved) where a value or gradient is not finite."""
        state = self.state
        try:
            if state.balance:
                state.part_weights = self._balance(batches)
                state.balance = False
            values = self._backward(batches, state.part_weights)
        except (RankError, NotFiniteError):
            if state.step == 0:
                raise  # θ₀ itself cannot be immunized on these samples
            return None
        self.values, norm = values.keys(), self._gradient_norm
        every = [p.grad for group in self.optimizer.param_groups for p in group["params"]]
        finite = all(gradient is None or bool(torch.isfinite(gradient).all()) for gradient in every)
        if not (finite and all(map(math.isfinite, (norm, *values.values())))):
            return None
        self.optimizer.step()
        for name, value in self._state().items() if state.mean else ():
            mean = state.mean[name]
            state.mean[name] = mean.lerp(value, 1 - _MEMORY) if mean.is_floating_point() else value
        moved = {"gradient_norm": norm, "ratio": state.ratio, "loss_weight": state.loss_weight}
        nothing = {part.name: math.nan for part in fields(Evaluation) if part.name != "step"}
        return {"step": float(state.step + 1), **values, **moved, **nothing}

    def _balance(self, batches: Mapping[Task, Any]) -> dict[str, float]:
        """Return λ of each part: fixed, or from the norms of the parts' gradients in θ at this step."""
        settings, parts = self.settings, self.method.parts
        weights = {SUPERVISED: self.state.loss_weight}
        if not parts:
            return weights
        if not self.adjusted:
            known = {"benign": settings.lambda_benign or 0.0, "harmful": settings.lambda_harmful or 0.0}
            return weights | {name: known[part.task] for name, part in parts.items()}
        wanted = {name: 1.0 if part.task == "benign" else self.state.ratio for name, part in parts.items()}
        for name, weight in (wanted | weights).items():
            self._backward(batches, {name: 1.0})
            norm = self._gradient_norm
            if not (math.isfinite(norm) and norm > 0):
                raise RankError(
                    f"the gradient of {name} in θ has norm {norm}: use more samples a step, or fixed λ."
                )
            weights[name] = weight / norm
        return weights

    def _evaluate(self) -> Evaluation | None:
        """Evaluate; keep θ if it is the best; adjust λ_H and the loss weight. None: features overflow."""
        state, settings = self.state, self.settings
        live = self._state() if state.mean else {}
        self._load(state.mean)
        try:
            found = self._measured(state.step, self._features())
        except NotFiniteError:
            return None
        latest = not self.method.ranked and found.accuracy >= self.floor
        better = settings.keep == "last" or latest or found.rank(self.floor) > state.best.rank(self.floor)
        if better:
            state.best, state.best_net = found, self._state()
        self._load(live)
        grown = found.least_rir > _GROWTH * state.record
        state.record = found.least_rir if grown else state.record
        state.since_best = 0 if better or grown else state.since_best + 1
        if not self.adjusted:
            return found
        if len({part.task for part in self.method.parts.values()}) == 2:  # else nothing holds (ii)
            low = found.expected_benign_ratio < _BENIGN_AIM
            ratio = state.ratio * (_RATIO_FACTOR if low else 1 / _RATIO_FACTOR)
            state.ratio = min(max(ratio, 1 / _RATIO_RANGE), _RATIO_RANGE)
        spare = found.accuracy > self.floor + settings.max_accuracy_drop / 2
        weight = state.loss_weight * (1 / _LOSS_FACTOR if spare else _LOSS_FACTOR)
        state.loss_weight = max(weight, _LEAST_LOSS * settings.loss_weight)
        state.balance = True
        return found

    def _measured(self, step: int, features: list[ImageFeatures]) -> Evaluation:
        """Measure θ_t against θ₀ on the same samples each time."""
        P, other_P, H, other_H = features
        before, how = self.before, {"groups": self.settings.groups, "seed": self.seed + _STREAM}
        own, held = (
            group_rir(
                (before[k], of_P), (before[k + 2], of_H),
                group_size=min(self.settings.group_size, len(of_P), len(of_H)), **how,
            )
            for k, of_P, of_H in ((0, P, H), (1, other_P, other_H))
        )  # fmt: skip
        return Evaluation(
            step,
            *(own.rir, own.harmful_ratio, own.benign_ratio),
            *(held.rir, held.harmful_ratio, held.benign_ratio),
            float(np.nan_to_num(held.benign_ratio_std)),  # NaN: a single group
            head_accuracy(self.net, other_P),
            path_slowdown(self.path, descent_path(H, other_H)),
        )

    def _features(self) -> list[ImageFeatures]:
        """Return the features of each set."""
        try:
            return [samples.features(self.net, rows) for samples, rows in self.sets]
        except InvalidInputError as error:
            raise NotFiniteError(str(error)) from error

    @property
    def _exhausted(self) -> bool:
        """Whether patience is at its end."""
        return self.settings.patience is not None and self.state.since_best >= self.settings.patience

    def _state(self) -> State:
        """Return copies of what training can change, on the CPU."""
        changing = tuple(f"{name}." for name in (*self.net.trainable, self.net.head_name))
        state = self.net.model.state_dict()
        return {key: part.detach().cpu().clone() for key, part in state.items() if key.startswith(changing)}

    def _load(self, net: State) -> None:
        """Put weights into the backbone, those that are given."""
        self.net.model.load_state_dict({**self.net.model.state_dict(), **net})

    def _write(self, path: Path, identity: str) -> None:
        """Keep the run in one file, which replaces the one before."""
        state = self.state
        state.net, state.optimizer = self._state(), self.optimizer.state_dict()
        state.probe = dict(self.probe.state_dict()) if self.probe else {}
        content = {"identity": identity, **vars(state), "best": asdict(state.best)}
        try:
            with atomic_write(path) as temporary, open(temporary, "wb") as stream:  # torch refuses some names
                torch.save(content, stream)
        except RuntimeError as error:  # of torch's writer, where a write fails
            raise OutputError(f"cannot write {path} ({error}); check the free disk space.") from error

    def _resume(self, path: Path, identity: str) -> None:
        """Go on from the file of the same run, if there is one."""
        if not path.exists():
            return
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            known = content.pop("identity")
            state = _RunState(**{**content, "best": Evaluation(**content["best"])})
        except Exception as error:  # readers are made for whole files, and say the rest in many ways
            raise DataFormatError(f"{path} is not a complete checkpoint; remove it to start over.") from error
        if known != identity:
            raise InvalidInputError(
                f"{path} is the checkpoint of another run ({known}); remove it to start over."
            )
        self.state = state
        self._load(state.net)
        self.optimizer.load_state_dict(state.optimizer)
        if self.probe is not None:
            self.probe.load_state_dict(state.probe)

    def warnings(self, reason: StopReason) -> list[str]:
        """Say what a reader of the result must know."""
        best, found = self.state.best, []
        if reason == "diverged":
            found.append(
                f"step {self.state.step + 1} produced a value or gradient that is not finite; the result is "
                f"θ after step {best.step}. Lower learning_rate ({self.settings.learning_rate:g})."
            )
        if best.step == 0:
            found.append(
                "no evaluated θ was better than θ₀ itself, so the result is θ₀ and nothing was immunized. "
                "Allow a larger max_accuracy_drop, or change the learning rate or the weights."
            )
            return found
        most = 1 + RATIO_TOLERANCE
        met = best.least_harmful_ratio > most and best.largest_benign_ratio <= most
        if not (met or not self.method.ranked) or best.accuracy < self.floor:
            found.append(
                f"no θ met all conditions (accuracy on held-out D_P of at least {self.floor:.1%}, (i) > 1, "
                f"(ii) ≤ 1); the result is the nearest, after step {best.step}."
            )
        return found


# θ₀.


def fit_head(backbone: Backbone, features: ImageFeatures) -> None:
    """Give a backbone a head for D_P by logistic regression on standardized features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    head = backbone.head
    if not isinstance(head, nn.Linear) or "weight" not in dict(head.named_parameters()):
        raise InvalidInputError(
            f"the head of {backbone.name} is a {type(head).__name__}, not a linear layer, which logistic "
            "regression could fit; give --finetune-benign EPOCHS."
        )
    X = np.asarray(features.values, float)
    scaler = StandardScaler().fit(X)
    model = LogisticRegression(C=0.1, max_iter=1000).fit(scaler.transform(X), features.labels)
    W, bias = model.coef_, model.intercept_
    if len(W) == 1:  # of two classes
        W, bias = np.vstack([-W, W]) / 2, np.r_[-bias, bias] / 2
    W = W / scaler.scale_
    with torch.no_grad():
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        head.weight[model.classes_] = torch.as_tensor(W).to(head.weight)
        head.bias[model.classes_] = torch.as_tensor(bias - W @ scaler.mean_).to(head.bias)


def pretrain_backbone(
    backbone: Backbone,
    samples: Samples,
    *,
    epochs: int,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    seed: int = 0,
) -> None:
    """Train all of a backbone on D_P, in place, by AdamW with a linear warm-up and a cosine to zero."""
    if len(samples.data.classes) != backbone.num_classes:
        raise InvalidInputError(
            f"the head of {backbone.name} has {backbone.num_classes} outputs, but {samples.data.title} has "
            f"{len(samples.data.classes)} classes; create it with num_classes={len(samples.data.classes)}."
        )
    device = next(backbone.parameters()).device
    stream = TaskStream(samples, np.arange(len(samples)), batch_size, (seed, 2))
    steps = epochs * stream.steps_per_epoch
    rising = max(1, round(0.1 * steps))
    started, stage = time.perf_counter(), f"pre-training {backbone.name}"
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        backbone.pretraining() as model,
    ):
        torch.manual_seed(seed)  # dropout; inside the fork
        learned = [p for p in model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in learned if p.ndim > 1], "weight_decay": _PRETRAINING_DECAY},
            {"params": [p for p in learned if p.ndim <= 1], "weight_decay": 0.0},
        ]
        stepper = torch.optim.AdamW(groups, lr=learning_rate)
        for step, batch in zip(range(steps), stream.steps(0), strict=False):
            if len(batch.labels) < 2:  # BatchNorm needs two rows
                continue
            falling = (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising))) / 2
            for group in stepper.param_groups:
                group["lr"] = learning_rate * ((step + 1) / rising if step < rising else falling)
            with memory_advice(batch_size, device, stage):
                images = batch.inputs.to(device).contiguous(memory_format=torch.channels_last)
                loss = nn.functional.cross_entropy(
                    backbone.logits(images), batch.labels.to(device), label_smoothing=LABEL_SMOOTHING
                )
                stepper.zero_grad()
                loss.backward()
                stepper.step()
            if not math.isfinite(float(loss.detach())):
                raise InvalidInputError(
                    f"{stage}: the loss is {float(loss.detach()):g} at step {step + 1}; lower "
                    f"learning_rate={learning_rate:g}."
                )
            left = duration((time.perf_counter() - started) / (step + 1) * (steps - step - 1))
            report_event(stage=f"{stage}, {left} left", seed=seed, step=step + 1, steps=steps)
