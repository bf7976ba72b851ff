"""What methods do on nets, by name: the terms of an objective, and what a training step offers them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from condnum.errors import InvalidInputError, RankError, check_known
from condnum.methods import METHODS
from condnum.theory.features import (
    feature_r_ill,
    feature_r_well,
    feature_rtol,
    precondition_gradient,
    smaller_gram,
)

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
    value: Callable[[NetStep], Tensor]  # a number, differentiable in θ


@dataclass
class NetStep:
    """A training step on a net, as a method sees it; the spectra are of features in float64."""

    theta: Vector  # the trainable part
    heads: Vector  # parameters of ω and of `probe`
    classify: Head  # the head ω of D_P
    probe: Head | None  # a head of D_H that is trained beside θ, for a method with a `probe`
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


@dataclass(frozen=True)
class NetMethod:
    """What a method does on a net; one of your own is any object with a `name` and `net_parts`.

    It may also have `net_defaults`, `net_probe`, `net_ranked` and `net_backward`, which mean what they mean
    here. With empty parts it trains on D_P alone, or as its `net_backward` says.
    """

    name: str
    parts: Mapping[str, NetPart]  # of its objective
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, in place of its own
    #: Whether it simulates an attacker, by `inner_steps` and `inner_rate`, on a head of D_H trained beside θ.
    probe: bool = False
    ranked: bool = True  # whether κ tells which θ is best; else the last one above the accuracy floor is
    #: `(step, weights)`: fills the gradients and returns the values of the weighted parts, where no sum does.
    backward: Callable[[NetStep, Mapping[str, float]], dict[str, float]] | None = None


def imma_backward(step: NetStep, weights: Mapping[str, float]) -> dict[str, float]:
    """Fill the gradients of θ, through the attacker's steps, and of both heads, at θ."""
    loss_weight, moved = weights[SUPERVISED], step.theta
    inner = step.loss("harmful", step.probe, moved)
    own = loss_weight * step.loss("benign", theta=moved) + inner
    step.fill(step.heads, torch.autograd.grad(own, list(step.heads), retain_graph=True))
    for k in range(step.settings.inner_steps):
        inner = inner if k == 0 else step.loss("harmful", step.probe, moved)
        moved, _ = step.descend(inner, moved)
    benign, harmful = step.loss("benign", theta=moved), step.loss("harmful", step.probe, moved)
    outer = loss_weight * benign - harmful
    step.fill(step.theta, torch.autograd.grad(outer, list(step.theta), materialize_grads=True))
    return {SUPERVISED: float(benign.detach()), HARMFUL: float(harmful.detach())}


_WELL = NetPart("benign", lambda step: feature_r_well(step.X("benign")))
_ILL = NetPart("harmful", lambda step: feature_r_ill(step.X("harmful"), rtol=step.rtol("harmful")))
_KAPPAS = {
    "kappa_benign": NetPart("benign", lambda step: step.kappa("benign")),
    "kappa_harmful": NetPart("harmful", lambda step: -step.kappa("harmful")),
}
#: Of `erase` on all data and backbones; chosen on 8×8 digits and a small ResNet.
_ERASE = {"learning_rate": 1e-3, "loss_weight": 0.1, "steps": 800, "max_accuracy_drop": 0.03}

#: The methods for nets, in display order.
NET_METHODS: dict[str, NetMethod] = {
    method.name: method
    for method in (
        NetMethod("ours", {"well": _WELL, "ill": _ILL}),
        NetMethod("opt_kappa", _KAPPAS),
        # As published: no part to balance.
        NetMethod("imma", {}, {"loss_weight": 1.0}, probe=True, backward=imma_backward),
        NetMethod("r_ill_only", {"ill": _ILL}),
        NetMethod("erase", {}, _ERASE, ranked=False),  # its gradients are in `training.erasure`
    )
}


def net_method_names() -> list[str]:
    """Return the names of the methods for nets, yours among them where a study was given them."""
    return [name for name, method in METHODS.items() if name in NET_METHODS or hasattr(method, "net_parts")]


def get_net_method(method: Any) -> NetMethod:
    """Return a method for nets by its name, or what an object with `net_parts` does."""
    if isinstance(method, NetMethod):
        return method
    if isinstance(method, str):
        name = "ours" if method == "algorithm1" else method
        check_known("method", name, net_method_names())
        method = METHODS[name]
    name = getattr(method, "name", type(method).__name__)
    if not hasattr(method, "net_parts"):
        if name in NET_METHODS:
            return NET_METHODS[name]
        raise InvalidInputError(
            f"method '{name}' has no net_parts, so it is not for nets; define them, or {{}} beside a "
            "net_backward."
        )
    own = [one.name for one in fields(NetMethod) if hasattr(method, f"net_{one.name}")]
    return NetMethod(name, **{one: getattr(method, f"net_{one}") for one in own})
