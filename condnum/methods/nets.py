"""Methods on nets: the terms of an objective, and what a training step offers them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from condnum.errors import RankError
from condnum.theory.features import feature_rtol, precondition_gradient, smaller_gram

Task = Literal["benign", "harmful"]
Vector: TypeAlias = Sequence[Tensor]
Head: TypeAlias = Callable[[Tensor], Tensor]  # features (n, D) to logits (n, C)

#: Of the losses, as in the paper.
LABEL_SMOOTHING = 0.1
#: Names of the losses among a step's values.
SUPERVISED = "supervised"
HARMFUL = "harmful_loss"


def smoothed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean label-smoothing cross-entropy of a batch, 0 of an empty one."""
    options: dict[str, Any] = {"reduction": "sum", "label_smoothing": LABEL_SMOOTHING}
    return functional.cross_entropy(logits, labels.to(logits.device), **options) / max(1, len(labels))


class NetPart(NamedTuple):
    """A term of a method's objective on a net."""

    task: Task  # on whose images it depends
    value: Callable[["NetStep"], Tensor]  # a number, differentiable in θ


@dataclass
class NetStep:
    """A training step on a net, as a method sees it; the spectra are of features in float64."""

    theta: Vector  # the trainable part
    heads: Vector  # parameters of ω and of `probe`
    classify: Head  # the head ω of D_P
    probe: Head | None  # a head of D_H that is trained beside θ, for a method with `net_probe`
    labels: Mapping[Task, Tensor]
    settings: Any  # `DeepSettings`
    run: Callable[[Task, Vector | None], Tensor]
    _kept: dict[Task, Tensor] = field(default_factory=dict)

    def features(self, task: Task, theta: Vector | None = None) -> Tensor:
        """Return the features `(n, D)` of a task's images, at θ or where θ has been moved to."""
        if theta is not None:
            return self.run(task, theta)
        if task not in self._kept:
            self._kept[task] = self.run(task, None)
        return self._kept[task]

    def X(self, task: Task) -> Tensor:
        """Return the features at θ in float64; with `precondition`, behind the dummy layer of Sec. 4.4."""
        X = self.features(task).double()
        return precondition_gradient(X) if self.settings.precondition else X

    def rtol(self, task: Task) -> float:
        """Return the rank tolerance of X̃ᵀX̃."""
        return feature_rtol(self.features(task))

    def kappa(self, task: Task) -> Tensor:
        """Return the compact κ of X̃ᵀX̃ (Eq. 1), through its extreme eigenvalues, never preconditioned."""
        sigma = torch.linalg.eigvalsh(smaller_gram(self.features(task).double()))
        if not bool(sigma[-1] > 0):
            raise RankError("the features are all zero, so that they have no condition number.")
        rank = int((sigma.detach() > self.rtol(task) * sigma.detach()[-1]).sum())
        return sigma[-1] / sigma[-rank]

    def loss(self, task: Task, head: Head | None = None, theta: Vector | None = None) -> Tensor:
        """Return the loss of a head, of ω by default."""
        return smoothed_loss((head or self.classify)(self.features(task, theta)), self.labels[task])

    def descend(self, loss: Tensor, at: Vector) -> tuple[list[Tensor], Vector]:
        """Return where a step of the simulated attacker leads, and the gradient along which it goes."""
        slopes = torch.autograd.grad(loss, list(at), create_graph=True, materialize_grads=True)
        return [a - self.settings.inner_rate * g for a, g in zip(at, slopes, strict=True)], slopes

    def fill(self, parameters: Vector, gradients: Vector) -> None:
        """Make these the gradients of parameters."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def backward(self, parts: Mapping[str, NetPart], weights: Mapping[str, float]) -> dict[str, float]:
        """Add the gradients of `Σ weight·part`, ω's loss among them; return the parts' values."""
        values: dict[str, float] = {}
        for task, labels in self.labels.items():
            own = {name: part for name, part in parts.items() if part.task == task and name in weights}
            supervised = weights.get(SUPERVISED) if task == "benign" else None
            if not len(labels) or (not own and supervised is None):
                continue
            loss = self.features(task).new_zeros(())
            for name, part in own.items():
                value = part.value(self)
                values[name] = float(value.detach())
                if not math.isfinite(values[name]):
                    raise RankError(
                        f"{name} is infinite, the spectrum of {len(labels)} samples flat; use more samples a "
                        "step."
                    )
                loss = loss + weights[name] * value
            if supervised is not None:
                cross_entropy = self.loss(task)
                values[SUPERVISED] = float(cross_entropy.detach())
                loss = loss + supervised * cross_entropy
            loss.backward()
        return values
