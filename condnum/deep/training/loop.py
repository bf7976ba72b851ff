"""The training loop: steps in a fixed order, evaluations, checkpoints, and why it ended."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from condnum.deep.methods import SUPERVISED, Task
from condnum.deep.training.monitor import Evaluation, Monitor
from condnum.deep.training.objectives import Batches, DeepObjective, NotFiniteError
from condnum.deep.training.samples import TaskStream
from condnum.deep.weights import read_state, write_state
from condnum.errors import RankError
from condnum.machine import memory_advice
from condnum.progress import report_event

DeepStopReason = Literal["steps", "early_stopping", "diverged"]

#: (ii) toward which an adaptive λ_H is steered: in reserve of the limit that a result is held to.
BENIGN_AIM = 0.7
#: Factors by which λ_H and the loss weight go up or down after an evaluation, and how far in all.
RATIO_FACTOR, LOSS_FACTOR = 2.0, 1.5
RATIO_RANGE, LEAST_LOSS = 100.0, 0.05
#: Growth of RIR_θ0 that is progress, though the θ is not better: λ_H has yet to bring (ii) below 1.
_GROWTH = 1.02
#: Weight of the past in the mean of θ over the steps, 25 of them about, that an adaptive run evaluates and
#: keeps: a single θ jumps about more on images that it was not trained on.
MEMORY = 0.96
#: Weight decay of the heads (C.2).
HEAD_DECAY = 2e-5

State = dict[str, Tensor]


@dataclass
class RunState:
    """What changes while a run goes on: all that it needs to go on as if it had never stopped."""

    step: int  # steps done
    net: State  # θ, ω and their statistics, at a checkpoint; the frozen trunk is θ₀'s
    best: Evaluation
    best_net: State
    mean: State  # of `net` over the steps, with adaptive weights
    ratio: float  # λ_H‖g_H‖ against λ_P‖g_P‖
    loss_weight: float
    record: float  # largest RIR_θ0 so far
    probe: State = field(default_factory=dict)  # a head on D_H that is trained beside θ
    optimizer: dict[str, Any] = field(default_factory=dict)
    part_weights: dict[str, float] = field(default_factory=dict)  # λ; empty before the first step
    balance: bool = True  # λ are to be found at the next step
    since_best: int = 0  # evaluations without a better one or a larger RIR_θ0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Training:
    """One run of a method on a backbone."""

    def __init__(
        self, objective: DeepObjective, tasks: Mapping[Task, TaskStream], monitor: Monitor, seed: int
    ) -> None:
        self.objective = objective
        self.settings = settings = objective.settings
        self.tasks = tasks
        self.monitor = monitor
        self.seed = seed
        epoch = min(task.steps_per_epoch for task in tasks.values())
        self.steps = settings.epochs * epoch if settings.steps is None else settings.steps
        self.optimizer = self._optimizer()
        self.start = start = monitor.start
        self.accuracy_floor = start.accuracy - settings.max_accuracy_drop
        self.state = RunState(
            step=0,
            net={},
            best=start,
            best_net=self._net(),
            mean=self._net() if settings.weights == "adaptive" else {},
            ratio=settings.ratio,
            loss_weight=settings.loss_weight,
            record=start.least_rir,
        )

    def run(self, checkpoint: Path | None, identity: object) -> DeepStopReason:
        """Train, or go on from a checkpoint; afterwards `state` holds all there is to know."""
        settings, method, device = self.settings, self.objective.method.name, self.objective.device
        stored = None if checkpoint is None else read_state(checkpoint, identity)
        if stored is not None:
            self.state = RunState(**{**stored, "best": Evaluation(**stored["best"])})
            self._load(self.state.net)
            self.optimizer.load_state_dict(self.state.optimizer)
            if self.objective.probe is not None:
                self.objective.probe.load_state_dict(self.state.probe)
        state = self.state
        if self._exhausted:
            return "early_stopping"
        every = settings.record_every or max(1, self.steps // 10)
        streams = {name: task.steps(state.step) for name, task in self.tasks.items()}
        self.objective.backbone.train()
        started = time.perf_counter() - state.seconds
        while state.step < self.steps:
            batches = {name: next(stream) for name, stream in streams.items()}
            with memory_advice(settings.batch_size, device, f"a step of {method}"):
                row = self._step(batches)
            if row is None:
                return "diverged"
            state.step += 1
            due = state.step % every == 0 or state.step == self.steps
            if due:
                evaluation = self._evaluate()
                if evaluation is None:
                    return "diverged"
                row |= asdict(evaluation) | {"step": row["step"]}
            state.seconds = time.perf_counter() - started
            state.history.append(row)
            if due and checkpoint is not None:
                probe = self.objective.probe
                state.net, state.optimizer = self._net(), self.optimizer.state_dict()
                state.probe = {} if probe is None else dict(probe.state_dict())
                write_state(checkpoint, identity, {**vars(state), "best": asdict(state.best)})
            report_event(stage=f"immunize ({method})", seed=self.seed, step=state.step, steps=self.steps)
            if self._exhausted:
                return "early_stopping"
        return "steps"

    def _step(self, batches: Batches) -> dict[str, float] | None:
        """Take one step; return its row, or None (θ unmoved) where a value or gradient is not finite."""
        state, objective, step = self.state, self.objective, self.state.step
        key = (self.seed, step)
        try:
            if state.balance:
                state.part_weights = self._balance(batches, key)
                state.balance = False
            values = objective.backward(batches, state.part_weights, key)
        except (RankError, NotFiniteError):
            if step == 0:
                raise  # θ₀ itself cannot be immunized on these samples
            return None
        norm = objective.gradient_norm
        finite = all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in objective.heads)
        if not (finite and all(map(math.isfinite, (norm, *values.values())))):
            return None
        rate = self.settings.rate(step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if state.mean:
            for name, value in self._net().items():
                mean = state.mean[name]
                state.mean[name] = mean.lerp(value, 1 - MEMORY) if mean.is_floating_point() else value
        moved = {"gradient_norm": norm, "rate": rate}
        if self.settings.weights == "adaptive":
            moved |= {"ratio": state.ratio, "loss_weight": state.loss_weight}
        nothing = {part.name: math.nan for part in fields(Evaluation) if part.name != "step"}
        return {"step": float(step + 1), **values, **moved, **nothing}

    def _balance(self, batches: Batches, key: tuple[int, ...]) -> dict[str, float]:
        """Return λ of each part: fixed, or from the norms of the parts' gradients in θ at this step."""
        settings, state, parts = self.settings, self.state, self.objective.method.parts
        weights = {SUPERVISED: state.loss_weight}
        if not parts:
            return weights
        if settings.weights == "fixed":
            known = {"benign": settings.lambda_benign, "harmful": settings.lambda_harmful}
            return weights | {name: known[part.task] for name, part in parts.items()}
        wanted = {name: 1.0 if part.task == "benign" else state.ratio for name, part in parts.items()}
        if settings.weights == "adaptive":
            wanted |= weights
        for name, weight in wanted.items():
            self.objective.backward(batches, {name: 1.0}, key)
            norm = self.objective.gradient_norm
            if not (math.isfinite(norm) and norm > 0):
                raise RankError(
                    f"the gradient of {name} in θ has norm {norm}: use more samples a step, or fixed λ."
                )
            weights[name] = weight / norm
        return weights

    def _evaluate(self) -> Evaluation | None:
        """Evaluate; keep θ if it is the best. None: its features overflow."""
        state, settings = self.state, self.settings
        live = self._net() if state.mean else {}
        self._load(state.mean)
        try:
            found = self.monitor.evaluate(self.objective.backbone, state.step)
        except NotFiniteError:
            return None
        floor = self.accuracy_floor
        latest = not self.objective.method.ranked and found.accuracy >= floor
        better = settings.keep == "last" or latest or found.rank(floor) > state.best.rank(floor)
        if better:
            state.best, state.best_net = found, self._net()
        self._load(live)
        grown = found.least_rir > _GROWTH * state.record
        state.record = found.least_rir if grown else state.record
        state.since_best = 0 if better or grown else state.since_best + 1
        if settings.weights == "adaptive":
            self._adapt(found)
        return found

    def _adapt(self, found: Evaluation) -> None:
        """Move λ_H by (ii) and the loss weight by the accuracy, a factor up or down."""
        state, first, parts = self.state, self.settings, self.objective.method.parts
        if len({part.task for part in parts.values()}) == 2:  # else nothing holds (ii)
            low = found.expected_benign_ratio < BENIGN_AIM
            ratio = state.ratio * (RATIO_FACTOR if low else 1 / RATIO_FACTOR)
            state.ratio = min(max(ratio, first.ratio / RATIO_RANGE), first.ratio * RATIO_RANGE)
        spare = found.accuracy > self.accuracy_floor + first.max_accuracy_drop / 2
        weight = state.loss_weight * (1 / LOSS_FACTOR if spare else LOSS_FACTOR)
        state.loss_weight = max(weight, LEAST_LOSS * first.loss_weight)
        state.balance = True

    @property
    def _exhausted(self) -> bool:
        """Whether patience is at its end."""
        return self.settings.patience is not None and self.state.since_best >= self.settings.patience

    def _net(self) -> State:
        """Return copies of what training can change, on the CPU."""
        backbone = self.objective.backbone
        changing = tuple(f"{name}." for name in (*backbone.trainable, backbone.head_name))
        state = backbone.model.state_dict()
        return {key: part.detach().cpu().clone() for key, part in state.items() if key.startswith(changing)}

    def _load(self, net: State) -> None:
        """Put weights into the backbone, those that are given."""
        self.objective.backbone.model.load_state_dict(net, strict=False)

    def _optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of C.2: no weight decay on θ, some on the heads."""
        settings = self.settings
        groups: list[dict[str, Any]] = [
            {"params": self.objective.theta, "weight_decay": 0.0},
            {"params": self.objective.heads, "weight_decay": HEAD_DECAY},
        ]
        if settings.optimizer == "adam":
            return torch.optim.Adam(groups, lr=settings.learning_rate)
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9, nesterov=True)
