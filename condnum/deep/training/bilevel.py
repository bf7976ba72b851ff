r"""IMMA (Zheng & Yeh, 2024) on a backbone: the outer gradient through the simulated fine-tuner's steps.

.. math:: \theta^* = \theta_S, \quad \theta_{s+1} = \theta_s - \alpha\nabla_\theta L(D_H, w, \theta_s), \qquad
   \min_\theta\; L(D_P, \omega, \theta^*) - L(D_H, w, \theta^*)

The derivative through the inner steps is `∏(I − α∇²L(D_H, w, θ_s))` applied to the outer gradient, from
the last step to the first: one Hessian-vector product a step, each a sum over samples, so that it
is exact over batches and ranks and holds the graph of one batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.training.feature_methods import Task
from condnum.deep.training.step import SUPERVISED, Objective, StepValues, TaskBatches

#: Name of the harmful loss among a step's values.
HARMFUL = "harmful_loss"

Vector = list[Tensor]


class BilevelObjective:
    """The objective of `imma`."""

    def __init__(self, objective: Objective, probe: nn.Linear) -> None:
        self.objective = objective
        self.probe = probe

    def backward(
        self, tasks: Mapping[Task, TaskBatches], loss_weight: float, key: Sequence[int]
    ) -> StepValues:
        """Fill the gradients of θ (bi-level), ω and w (each its own loss), summed over the ranks."""
        theta = list(self.objective.backbone.trainable_parameters())
        settings, start = self.objective.settings, _copies(theta)
        P, H = tasks["pretrain"], tasks["harmful"]
        sizes = {name: self._count(task) for name, task in tasks.items()}
        heads = {"pretrain": self.objective.backbone.head, "harmful": self.probe}
        path = [start]
        probe_gradient: Vector = []
        for _ in range(settings.inner_steps):
            _set(theta, path[-1])
            inner, of_probe, _ = self._gradient(H, self.probe, sizes["harmful"], key)
            probe_gradient = probe_gradient or of_probe  # at θ itself
            path.append([a - settings.inner_rate * g for a, g in zip(path[-1], inner, strict=True)])
        _set(theta, path[-1])
        benign, _, benign_loss = self._gradient(P, heads["pretrain"], sizes["pretrain"], key)
        harmful, _, harmful_loss = self._gradient(H, self.probe, sizes["harmful"], key)
        outer = [loss_weight * b - h for b, h in zip(benign, harmful, strict=True)]
        for point in reversed(path[:-1]):
            _set(theta, point)
            curved = self._hessian_product(H, sizes["harmful"], outer, key)
            outer = [v - settings.inner_rate * c for v, c in zip(outer, curved, strict=True)]
        _set(theta, start)
        _, head_gradient, _ = self._gradient(P, heads["pretrain"], sizes["pretrain"], key)
        for parameter, gradient in zip(theta, outer, strict=True):
            parameter.grad = gradient
        for parameter, gradient in zip(heads["pretrain"].parameters(), head_gradient, strict=True):
            parameter.grad = loss_weight * gradient
        for parameter, gradient in zip(self.probe.parameters(), probe_gradient, strict=True):
            parameter.grad = gradient
        losses = {SUPERVISED: benign_loss, HARMFUL: harmful_loss}
        return StepValues(losses, {str(name): size for name, size in sizes.items()})

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
        """Return `derive` of the mean loss, summed over batches and ranks, and the mean loss."""
        total = [torch.zeros_like(p, requires_grad=False) for p in like]
        value = torch.zeros(1, dtype=torch.float64, device=self.objective.ranks.device)
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
        self.objective.ranks.sum_([*total, value])
        return total, float(value)

    def _count(self, task: TaskBatches) -> int:
        """Return the number of samples of a task in this step, over all ranks."""
        own = torch.tensor([sum(len(b.labels) for b in task.batches)], device=self.objective.ranks.device)
        self.objective.ranks.sum_([own])
        return int(own)


def harmful_probe(dimension: int, classes: int, seed: int) -> nn.Linear:
    """Return w, the fine-tuner's head on D_H, uniform in ±1/√D from a local seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(dimension, classes)


def _copies(parameters: Sequence[Tensor]) -> Vector:
    """Return copies of the values."""
    return [p.detach().clone() for p in parameters]


def _set(parameters: Sequence[Tensor], values: Vector) -> None:
    """Copy values into parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
