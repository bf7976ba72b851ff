r"""One step of Eq. 11 on a backbone: the gradients of θ and ω, exact over batches and ranks.

.. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
   + \lambda_H R_{ill}(\tilde H_H(\theta))

The regularizers are functions of all features of the step. With one batch a step its features are kept
with their graph; with several, a first pass without gradients finds all features, the parts'
gradients with respect to them are computed once, and a second pass sends each batch its own rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional

from condnum.deep.backbone import Backbone
from condnum.deep.training.feature_methods import FeaturePart, Task
from condnum.deep.training.ranks import Ranks
from condnum.deep.training.samples import Batch, Samples, as_input, autocast
from condnum.deep.training.settings import DeepSettings
from condnum.errors import InvalidInputError

#: Name of the supervised part.
SUPERVISED = "supervised"


class NotFiniteError(InvalidInputError):
    """Features of θ hold NaN or infinity."""


def check_finite(features: Tensor, task: str) -> None:
    """Refuse features that no spectrum can be taken of."""
    if not bool(torch.isfinite(features).all()):
        raise NotFiniteError(
            f"the features of the {task} task hold NaN or infinity: check the weights, or lower the learning "
            "rate."
        )


@dataclass
class TaskBatches:
    """A task's batches of one step, those of this rank."""

    samples: Samples
    batches: list[Batch]


@dataclass(frozen=True)
class StepValues:
    """What a step measured before it moved, over all ranks."""

    parts: dict[str, float] = field(default_factory=dict)  # of each part, `supervised` included
    counts: dict[str, int] = field(default_factory=dict)  # samples of each task

    @property
    def finite(self) -> bool:
        """Whether all values are."""
        return all(abs(value) < float("inf") for value in self.parts.values())


class Objective:
    """The objective of a method on a backbone."""

    def __init__(self, backbone: Backbone, settings: DeepSettings, ranks: Ranks) -> None:
        self.backbone = backbone
        self.settings = settings
        self.ranks = ranks
        self._stochastic = _is_stochastic(backbone)

    def features(self, task: TaskBatches, index: int, key: Sequence[int]) -> Tensor:
        """Return a batch's features `(n, D)`, the same ones each time for a key."""
        inputs = as_input(task.batches[index].inputs, self.ranks.device, self.settings.precision)
        if not len(inputs):
            return inputs.new_zeros(0, self.backbone.num_features)
        with self._random_stream((*key, index)), autocast(self.ranks.device, self.settings.precision):
            features = task.samples.features(self.backbone, inputs)
        return features.float() if features.dtype == torch.bfloat16 else features

    def supervised_sum(self, features: Tensor, labels: Tensor, head: nn.Module | None = None) -> Tensor:
        """Return the summed label-smoothing cross-entropy of a batch; 0 for an empty one."""
        if not len(labels):
            return features.sum()
        with autocast(self.ranks.device, self.settings.precision):
            logits = (self.backbone.head if head is None else head)(features)
        return functional.cross_entropy(
            logits.float() if logits.dtype == torch.bfloat16 else logits,
            labels.to(logits.device),
            reduction="sum",
            label_smoothing=self.settings.label_smoothing,
        )

    def backward(
        self,
        tasks: Mapping[Task, TaskBatches],
        parts: Sequence[FeaturePart],
        weights: Mapping[str, float],
        key: Sequence[int],
    ) -> StepValues:
        """Fill the parameters' gradients with those of `Σ weight·part`, summed over the ranks."""
        parameters = self.parameters
        for parameter in parameters:
            parameter.grad = None
        values: dict[str, float] = {}
        counts: dict[str, int] = {}
        for task, batches in tasks.items():
            own = [part for part in parts if part.task == task and part.name in weights]
            supervised = weights.get(SUPERVISED) if task == "pretrain" else None
            if own or supervised is not None:
                values |= self._backward_task(
                    batches, own, weights, supervised, (*key, len(counts)), counts, task
                )
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.sum_(p.grad for p in parameters if p.grad is not None)
        return StepValues(values, counts)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """θ's trainable parameters and ω."""
        return [*self.backbone.trainable_parameters(), *self.backbone.head_parameters()]

    def _backward_task(
        self,
        task: TaskBatches,
        parts: list[FeaturePart],
        weights: Mapping[str, float],
        supervised: float | None,
        key: Sequence[int],
        counts: dict[str, int],
        name: Task,
    ) -> dict[str, float]:
        """Add one task's gradients; return its parts' values."""
        batches = range(len(task.batches))
        single = len(task.batches) == 1
        with torch.set_grad_enabled(single):
            found = [self.features(task, index, key) for index in batches]
        X, own_rows = self.ranks.gather(torch.cat([x.detach() for x in found]))
        counts[name] = len(X)
        check_finite(X, name)
        values: dict[str, float] = {}
        pull: Tensor | None = None
        for part in parts:
            values[part.name], gradient = part.gradient(X, self.settings)
            weighted = weights[part.name] * gradient
            pull = weighted if pull is None else pull + weighted
        pulls = None if pull is None else pull[own_rows].split([len(x) for x in found])
        total = torch.zeros(1, dtype=torch.float64, device=self.ranks.device)
        for index in batches:
            if not len(found[index]):
                continue
            features = found[index] if single else self.features(task, index, key)
            loss = features.new_zeros(())
            if pulls is not None:
                loss = loss + (features * pulls[index].to(features.dtype)).sum()
            if supervised is not None:
                cross_entropy = self.supervised_sum(features, task.batches[index].labels)
                total += cross_entropy.detach()
                loss = loss + supervised / len(X) * cross_entropy
            loss.backward()
        if supervised is not None:
            self.ranks.sum_([total])
            values[SUPERVISED] = float(total) / len(X)
        return values

    @contextmanager
    def _random_stream(self, key: Sequence[int]) -> Generator[None]:
        """Seed dropout in the block; nothing for nets without."""
        if not self._stochastic:
            yield
            return
        devices = [self.ranks.device] if self.ranks.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(hash((*key, self.ranks.rank)) & (2**63 - 1))
            yield


def gradient_norm(backbone: Backbone) -> float:
    """Return the norm of the gradient in θ, the head left out."""
    return float(
        torch.stack(
            [p.grad.double().square().sum() for p in backbone.trainable_parameters() if p.grad is not None]
        )
        .sum()
        .sqrt()
    )


def _is_stochastic(backbone: Backbone) -> bool:
    """Tell whether the trainable part holds dropout or stochastic depth that acts in training."""
    modules = chain.from_iterable(
        backbone.model.get_submodule(name).modules()
        for name in (*backbone.split.trainable, backbone.split.head)
    )
    return any("drop" in type(module).__name__.lower() and _rate(module) > 0 for module in modules)


def _rate(module: nn.Module) -> float:
    """Return a dropout's rate."""
    rate = getattr(module, "p", getattr(module, "drop_prob", 0.0))
    return float(rate) if isinstance(rate, int | float) else 1.0
