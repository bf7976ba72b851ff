r"""One step of Eq. 11 on a backbone: the gradients of θ and ω, exact over batches and processes.

.. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
   + \lambda_H R_{ill}(\tilde H_H(\theta))

The regularizers are functions of all features of the step. With one batch a step its features are kept
with their graph; with several, a first pass without gradients finds all features, the parts'
gradients with respect to them are computed once, and a second pass sends each batch its own rows.

IMMA (Zheng & Yeh, 2024) is no function of the features' spectrum: its outer gradient goes through the
simulated fine-tuner's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.backbone import Backbone
from condnum.deep.regularizers import (
    feature_r_ill,
    feature_r_well,
    feature_rtol,
    precondition_gradient,
    smaller_gram,
)
from condnum.deep.training.processes import Processes
from condnum.deep.training.samples import Batch, Samples, as_input, autocast, features_of
from condnum.deep.training.settings import DeepSettings
from condnum.errors import InvalidInputError, RankError

Task = Literal["pretrain", "harmful"]

#: A part's value: of the features (N, D), their rank tolerance and the settings.
Value = Callable[[Tensor, float, DeepSettings], Tensor]


@dataclass(frozen=True)
class FeaturePart:
    """A term of the objective that depends on the features of one task."""

    name: str
    task: Task
    value: Value

    def gradient(self, features: Tensor, settings: DeepSettings) -> tuple[float, Tensor]:
        """Return the value and its gradient with respect to the features."""
        X = features.detach().to(torch.float64).requires_grad_()
        value = self.value(X, feature_rtol(features), settings)
        if not bool(torch.isfinite(value)):
            raise RankError(
                f"{self.name} is infinite on {len(X)} samples: the non-zero spectrum is flat, "
                "so that it has no gradient; use more samples a step."
            )
        (gradient,) = torch.autograd.grad(value, X)
        return float(value.detach()), gradient


def _well(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """R_well (Eq. 3) of H̃, through the dummy layer."""
    dimension = X.shape[1] if settings.well_dimension == "features" else min(X.shape)
    return feature_r_well(_dummy_layer(X, settings), dimension=dimension)


def _ill(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """R_ill (Eq. 12) of H̃, through the dummy layer."""
    return feature_r_ill(_dummy_layer(X, settings), rtol=rtol)


def _kappa(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """Compact κ of H̃ (Eq. 1), or its logarithm, through the extreme eigenvalues."""
    sigma = torch.linalg.eigvalsh(smaller_gram(X))
    if not bool(sigma[-1] > 0):
        raise RankError("the features are all zero, so that they have no condition number.")
    rank = int((sigma.detach() > rtol * sigma.detach()[-1]).sum())
    kappa = sigma[-1] / sigma[-rank]
    return kappa.log() if settings.objective == "log" else kappa


def _dummy_layer(X: Tensor, settings: DeepSettings) -> Tensor:
    """Return the features, with preconditioned gradients if the settings say so."""
    return precondition_gradient(X) if settings.precondition else X


#: Parts of each method; all of them descend the supervised loss on D_P as well, because the head has to
#: follow the features.
FEATURE_PARTS: Mapping[str, tuple[FeaturePart, ...]] = {
    "ours": (FeaturePart("well", "pretrain", _well), FeaturePart("ill", "harmful", _ill)),
    "r_ill_only": (FeaturePart("ill", "harmful", _ill),),
    "opt_kappa": (
        FeaturePart("kappa_pretrain", "pretrain", _kappa),
        FeaturePart("kappa_harmful", "harmful", lambda *of: -_kappa(*of)),
    ),
}

#: The methods of `immunize_backbone`.
DEEP_METHODS = (*FEATURE_PARTS, "imma")

#: Names of the losses among a step's values.
SUPERVISED = "supervised"
HARMFUL = "harmful_loss"

Vector = list[Tensor]


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
    """A task's batches of one step, those of this process."""

    samples: Samples
    batches: list[Batch]


class Objective:
    """The objective of a method on a backbone."""

    def __init__(self, backbone: Backbone, settings: DeepSettings, processes: Processes) -> None:
        self.backbone = backbone
        self.settings = settings
        self.processes = processes
        self._stochastic = _is_stochastic(backbone)

    def features(self, task: TaskBatches, index: int, key: Sequence[int]) -> Tensor:
        """Return a batch's features `(n, D)`, the same ones each time for a key."""
        inputs, device = task.batches[index].inputs, self.processes.device
        if not len(inputs):
            empty = as_input(inputs, device, self.settings.precision)
            return empty.new_zeros(0, self.backbone.num_features)
        with self._random_stream((*key, index)):
            return features_of(task.samples, self.backbone, inputs, device, self.settings.precision)

    def supervised_sum(self, features: Tensor, labels: Tensor, head: nn.Module | None = None) -> Tensor:
        """Return the summed label-smoothing cross-entropy of a batch."""
        with autocast(self.processes.device, self.settings.precision):
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
    ) -> dict[str, float]:
        """Fill the gradients with those of `Σ weight·part`, over all processes; return the parts' values."""
        parameters = [*self.backbone.trainable_parameters(), *self.backbone.head_parameters()]
        for parameter in parameters:
            parameter.grad = None
        values: dict[str, float] = {}
        acting = 0  # tasks that do
        for name, task in tasks.items():
            own = [part for part in parts if part.task == name and part.name in weights]
            supervised = weights.get(SUPERVISED) if name == "pretrain" else None
            if own or supervised is not None:
                values |= self._backward_task(name, task, own, weights, supervised, (*key, acting))
                acting += 1
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.processes.sum_(p.grad for p in parameters if p.grad is not None)
        return values

    def _backward_task(
        self,
        name: Task,
        task: TaskBatches,
        parts: list[FeaturePart],
        weights: Mapping[str, float],
        supervised: float | None,
        key: Sequence[int],
    ) -> dict[str, float]:
        """Add one task's gradients; return its parts' values."""
        single = len(task.batches) == 1
        with torch.set_grad_enabled(single):
            found = [self.features(task, index, key) for index in range(len(task.batches))]
        X, own_rows = self.processes.gather(torch.cat([x.detach() for x in found]))
        check_finite(X, name)
        values: dict[str, float] = {}
        pull: Tensor | None = None
        for part in parts:
            values[part.name], gradient = part.gradient(X, self.settings)
            weighted = weights[part.name] * gradient
            pull = weighted if pull is None else pull + weighted
        pulls = None if pull is None else pull[own_rows].split([len(x) for x in found])
        total = torch.zeros(1, dtype=torch.float64, device=self.processes.device)
        for index, batch in enumerate(task.batches):
            if not len(found[index]):
                continue
            features = found[index] if single else self.features(task, index, key)
            loss = features.new_zeros(())
            if pulls is not None:
                loss = loss + (features * pulls[index].to(features.dtype)).sum()
            if supervised is not None:
                cross_entropy = self.supervised_sum(features, batch.labels)
                total += cross_entropy.detach()
                loss = loss + supervised / len(X) * cross_entropy
            loss.backward()
        if supervised is not None:
            self.processes.sum_([total])
            values[SUPERVISED] = float(total) / len(X)
        return values

    @contextmanager
    def _random_stream(self, key: Sequence[int]) -> Generator[None]:
        """Seed dropout in the block; nothing for nets without."""
        if not self._stochastic:
            yield
            return
        devices = [self.processes.device] if self.processes.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(hash((*key, self.processes.rank)) & (2**63 - 1))
            yield


def gradient_norm(backbone: Backbone) -> float:
    """Return the norm of the gradient in θ, the head left out."""
    gradients = (p.grad for p in backbone.trainable_parameters() if p.grad is not None)
    return float(torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt())


def _is_stochastic(backbone: Backbone) -> bool:
    """Tell whether the trainable part holds dropout or stochastic depth that acts in training."""
    for name in (*backbone.split.trainable, backbone.split.head):
        for module in backbone.model.get_submodule(name).modules():
            rate = getattr(module, "p", getattr(module, "drop_prob", 0.0))
            acts = not isinstance(rate, int | float) or rate > 0
            if "drop" in type(module).__name__.lower() and acts:
                return True
    return False


class BilevelObjective:
    """The objective of `imma`."""

    def __init__(self, objective: Objective, probe: nn.Linear) -> None:
        self.objective = objective
        self.probe = probe

    def backward(
        self, tasks: Mapping[Task, TaskBatches], loss_weight: float, key: Sequence[int]
    ) -> dict[str, float]:
        """Fill the gradients of θ (bi-level), ω and w (each its own loss); return the losses."""
        settings, head = self.objective.settings, self.objective.backbone.head
        theta = list(self.objective.backbone.trainable_parameters())
        start = [p.detach().clone() for p in theta]
        P, H = tasks["pretrain"], tasks["harmful"]
        size_P, size_H = self._count(P), self._count(H)
        path = [start]
        probe_gradient: Vector = []
        for _ in range(settings.inner_steps):
            _set(theta, path[-1])
            inner, of_probe, _ = self._gradient(H, self.probe, size_H, key)
            probe_gradient = probe_gradient or of_probe  # at θ itself
            path.append([a - settings.inner_rate * g for a, g in zip(path[-1], inner, strict=True)])
        _set(theta, path[-1])
        benign, _, benign_loss = self._gradient(P, head, size_P, key)
        harmful, _, harmful_loss = self._gradient(H, self.probe, size_H, key)
        outer = [loss_weight * b - h for b, h in zip(benign, harmful, strict=True)]
        for point in reversed(path[:-1]):
            _set(theta, point)
            curved = self._hessian_product(H, size_H, outer, key)
            outer = [v - settings.inner_rate * c for v, c in zip(outer, curved, strict=True)]
        _set(theta, start)
        _, head_gradient, _ = self._gradient(P, head, size_P, key)
        parameters = [*theta, *head.parameters(), *self.probe.parameters()]
        gradients = [*outer, *(loss_weight * g for g in head_gradient), *probe_gradient]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return {SUPERVISED: benign_loss, HARMFUL: harmful_loss}

    def _gradient(
        self, task: TaskBatches, head: nn.Module, size: int, key: Sequence[int]
    ) -> tuple[Vector, Vector, float]:
        """Return the gradients of a task's mean loss in θ and in its head, and the loss."""
        theta, omega = list(self.objective.backbone.trainable_parameters()), list(head.parameters())

        def derive(loss: Tensor) -> Vector:
            return list(torch.autograd.grad(loss, [*theta, *omega]))

        total, loss = self._sum(task, head, size, key, derive, [*theta, *omega])
        return total[: len(theta)], total[len(theta) :], loss

    def _hessian_product(self, task: TaskBatches, size: int, vector: Vector, key: Sequence[int]) -> Vector:
        """Return `∇²L(D_H, w, θ)·v` in θ."""
        theta = list(self.objective.backbone.trainable_parameters())

        def derive(loss: Tensor) -> Vector:
            slope = torch.autograd.grad(loss, theta, create_graph=True)
            along = torch.stack([(g * v).sum() for g, v in zip(slope, vector, strict=True)]).sum()
            if not along.requires_grad:  # the loss is linear in θ
                return [torch.zeros_like(p) for p in theta]
            found = torch.autograd.grad(along, theta, allow_unused=True)
            return [torch.zeros_like(p) if g is None else g for p, g in zip(theta, found, strict=True)]

        return self._sum(task, self.probe, size, key, derive, theta)[0]

    def _sum(
        self,
        task: TaskBatches,
        head: nn.Module,
        size: int,
        key: Sequence[int],
        derive: Callable[[Tensor], Vector],
        like: Sequence[Tensor],
    ) -> tuple[Vector, float]:
        """Return `derive` of the mean loss, summed over batches and processes, and the mean loss."""
        total = [torch.zeros_like(p, requires_grad=False) for p in like]
        value = torch.zeros(1, dtype=torch.float64, device=self.objective.processes.device)
        for index, batch in enumerate(task.batches):
            if not len(batch.labels):
                continue
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
                features = self.objective.features(task, index, key)
                loss = self.objective.supervised_sum(features, batch.labels, head) / size
                derivative = derive(loss)
            value += loss.detach()
            for sum_, part in zip(total, derivative, strict=True):
                sum_ += part.detach()
        self.objective.processes.sum_([*total, value])
        return total, float(value)

    def _count(self, task: TaskBatches) -> int:
        """Return the number of samples of a task in this step, over all processes."""
        own = torch.tensor([sum(len(b.labels) for b in task.batches)], device=self.objective.processes.device)
        self.objective.processes.sum_([own])
        return int(own)


def harmful_probe(dimension: int, classes: int, seed: int) -> nn.Linear:
    """Return w, the fine-tuner's head on D_H, uniform in ±1/√D from a local seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(dimension, classes)


def _set(parameters: Sequence[Tensor], values: Vector) -> None:
    """Copy values into parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
