r"""What methods do on nets, by name: the terms of an objective, and what a training step offers them.

.. math:: \min_{\omega,\theta}\; L(D_P, \omega, \theta) + \lambda_P R_{well}(\tilde H_P(\theta))
   + \lambda_H R_{ill}(\tilde H_H(\theta)), \qquad \tilde H = \tilde X^\top\tilde X
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from condnum.deep.net import Backbone, block_names, layer_outputs
from condnum.deep.samples import Batch
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
SUPERVISED, HARMFUL = "supervised", "harmful_loss"
#: Names of what `erase` adds: the distance of D_P's features from θ₀'s, and the R² that is left of D_H.
DISTANCE, LEFT = "distance", "harmful_r2"
#: Ridge penalties of its heads, in units of the mean eigenvalue of the Gram matrix: an attacker tunes it.
PENALTIES = (1e-3, 1e-1)
#: Columns to which the output of a block is pooled for its heads.
_READ_WIDTH = 2048


class NotFiniteError(InvalidInputError):
    """Features of θ hold NaN or infinity."""


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

    backbone: Backbone
    batches: Mapping[Task, Batch]
    settings: Any  # `DeepSettings`
    probe: nn.Module | None  # a head of D_H that is trained beside θ, for a method with a `probe`
    theta_0: Backbone | None  # for a method with `start`
    key: tuple[int, ...]  # seed and step: what is drawn in a step is drawn by them
    _kept: dict[Task, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.theta: Vector = [*self.backbone.trainable_parameters()]
        probes = () if self.probe is None else self.probe.parameters()
        self.heads: Vector = [*self.backbone.head_parameters(), *probes]  # of ω, and of the probe
        self.classify: Head = self.backbone.head
        self.labels = {task: batch.labels for task, batch in self.batches.items()}

    def features(self, task: Task, theta: Vector | None = None) -> Tensor:
        """Return the features `(n, D)` of a task's images, at θ or where θ has been moved to."""
        if theta is not None:
            with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
                return self._run(task, theta)
        if task not in self._kept:
            found = self._run(task)
            if not bool(torch.isfinite(found.detach()).all()):
                raise NotFiniteError(
                    f"features of the {task} task hold NaN or infinity: check weights or learning rate."
                )
            self._kept[task] = found
        return self._kept[task]

    def _run(self, task: Task, theta: Vector | None = None, inputs: Tensor | None = None) -> Tensor:
        """Run the net; dropout and stochastic depth are the same each time for a step and a task."""
        batch, backbone = self.batches[task], self.backbone
        like = next(backbone.parameters())
        if not len(batch.labels):
            return like.new_zeros(0, backbone.num_features)
        inputs = batch.inputs.to(like) if inputs is None else inputs
        named = {id(p): name for name, p in backbone.named_parameters()}
        moved = {named[id(p)]: value for p, value in zip(self.theta, theta or (), strict=bool(theta))}
        with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
            torch.manual_seed(hash((*self.key, task == "harmful")) & (2**63 - 1))
            how = {"activations": batch.activations}
            found: Tensor = (
                torch.func.functional_call(backbone, moved, (inputs,), how)
                if moved
                else backbone(inputs, **how)
            )
            return found

    def blocks(self, task: Task, *, changed: bool = False) -> list[Tensor]:
        """Return the pooled output of every trained block, and the features, of images or of changed ones."""
        model, batch = self.backbone.model, self.batches[task]
        inputs = batch.inputs.to(next(self.backbone.parameters()))
        if changed:
            fixed = getattr(getattr(model, "patch_embed", None), "img_size", None) is not None
            inputs = transformed_images(inputs, self.key, resize=not fixed)
        own = tuple(f"{name}." for name in self.backbone.trainable)
        names = [name for name in block_names(model, self.backbone.head_name) if f"{name}.".startswith(own)]
        with layer_outputs(model, names) as outputs:
            last = self._run(task, inputs=inputs)
        return [*(_pooled(*output) for output in outputs.values()), last]

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

    It may also have `net_defaults`, `net_probe`, `net_ranked`, `net_start` and `net_backward`, which mean
    what they mean here. With empty parts it trains on D_P alone, or as its `net_backward` says.
    """

    name: str
    parts: Mapping[str, NetPart]  # of its objective
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of `DeepSettings`, in place of its own
    #: Whether it simulates an attacker, by `inner_steps` and `inner_rate`, on a head of D_H trained beside θ.
    probe: bool = False
    ranked: bool = True  # whether κ tells which θ is best; else the last one above the accuracy floor is
    start: bool = False  # whether a step needs θ₀
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


def transformed_images(images: Tensor, key: Sequence[int], *, resize: bool = True) -> Tensor:
    """Return images `(n, 3, height, width)` under one random change, the same for all, drawn by a key.

    A random filter, mixed with the images or their negative (random convolutions, Xu et al. 2021), contrast
    and brightness, a turn by right angles or a mirror image, and half to twice the side.
    """
    drawn = np.random.default_rng(np.abs(key))
    width, share = int(drawn.choice((1, 3, 5))), drawn.uniform(-1, 1)
    kernel = images.new_tensor(drawn.normal(size=(3, 3, width, width)) / math.sqrt(3 * width**2))
    X = share * images + (1 - abs(share)) * functional.conv2d(images, kernel, padding=width // 2)
    X = 2 ** drawn.uniform(-1, 1) * X + drawn.normal()
    X = X.rot90(int(drawn.integers(4)), (2, 3)).flip([3] * int(drawn.integers(2)))
    factor = 2 ** drawn.uniform(-1, 1) if resize else 1.0
    return functional.interpolate(X, scale_factor=factor, mode="bilinear")


def _pooled(output: Tensor, last: bool) -> Tensor:
    """Return `(B, D)`, D at most about `_READ_WIDTH`, of features, tokens `(B, N, D)` or a map."""
    if output.ndim == 2:
        return output.float()
    if output.ndim == 3:
        tokens = max(1, min(output.shape[1], _READ_WIDTH // output.shape[2]))
        return functional.adaptive_avg_pool1d(output.mT, tokens).flatten(1).float()
    output = output.movedim(-1, 1) if last else output
    side = max(1, int((_READ_WIDTH / output.shape[1]) ** 0.5))
    height, width = (min(side, length) for length in output.shape[2:])
    return functional.adaptive_avg_pool2d(output, (height, width)).flatten(1).float()


def ridge_outputs(X: Tensor, y: Tensor, other: Tensor, classes: int, penalty: float) -> Tensor:
    """Return the outputs `(m, C)` for `other` of a ridge head with intercept, fitted on rows X `(n, D)`.

    Targets are one-hot; the penalty is in units of the mean eigenvalue of the centered Gram matrix `(n, n)`.
    Differentiable in X and `other`.

    Examples:
        >>> X = torch.tensor([[0.0], [2.0]])
        >>> ridge_outputs(X, torch.tensor([0, 1]), torch.tensor([[1.0], [2.0]]), 2, 1.0)
        tensor([[0.5000, 0.5000],
                [0.1667, 0.8333]], dtype=torch.float64)
    """
    X, other = X.double(), other.double()
    mean = X.mean(dim=0)
    X, other = X - mean, other - mean
    Z = functional.one_hot(y, classes).double()
    gram = X @ X.mT
    scale = gram.diagonal().mean() + torch.finfo(torch.float32).tiny  # a block may be blind
    damped = gram + penalty * scale * torch.eye(len(X), dtype=X.dtype, device=X.device)
    return Z.mean(dim=0) + other @ X.mT @ torch.linalg.solve(damped, Z - Z.mean(dim=0))


def ridge_r2(X: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the R² above chance, 0 to 1, that ridge heads reach on the second half of the rows, on average.

    It is 0 where a head predicts no better than the class frequencies of its half.
    """
    half = len(X) // 2
    Z = functional.one_hot(y, classes).double()
    total = (Z[half:] - Z[:half].mean(dim=0)).square().sum() + torch.finfo(Z.dtype).tiny
    outputs = [ridge_outputs(X[:half], y[:half], X[half:], classes, penalty) for penalty in PENALTIES]
    losses = torch.stack([(Z[half:] - output).square().sum() for output in outputs])
    return (1 - losses / total).relu().mean()


def erase_backward(step: NetStep, weights: Mapping[str, float]) -> dict[str, float]:
    r"""Fill the gradients by which ridge heads on any trained block are driven down to chance on D_H.

    .. math:: \min_{\omega,\theta}\; w\,[L(D_P, \omega, \theta) + \Delta_P(\theta)]
       + \frac1B \sum_{b=1}^B \max(0, R^2_b(\theta)), \qquad
       \Delta_P = \|\tilde X_P(\theta) - \tilde X_P(\theta_0)\|_F^2 / \|\tilde X_P(\theta_0) - \bar X_P\|_F^2

    R²_b belongs to ridge regression from the pooled output of block b to the harmful labels, fitted on one
    half of a batch and scored on the other half. A net that is trained so gives the labels away on images
    that are negated, enlarged or turned; with `settings.transformed` the mean is over the images and a
    random change of them. On features of a fixed net the same goal has a closed form (`condnum.erasure`);
    that a linear head learns nothing at zero covariance is due to Belrose et al. (2023).
    """
    losses, values = list[Tensor](), dict[str, Tensor]()
    assert step.theta_0 is not None
    if len(step.labels["benign"]):
        X = step.features("benign")
        with torch.no_grad():
            before = replace(step, backbone=step.theta_0, _kept={}).features("benign")
        spread = (before - before.mean(dim=0)).square().sum()
        values[SUPERVISED] = smoothed_loss(step.classify(X), step.labels["benign"])
        values[DISTANCE] = (X - before).square().sum() / (spread + torch.finfo(X.dtype).tiny)
        losses.append(weights[SUPERVISED] * (values[SUPERVISED] + values[DISTANCE]))
    if len(step.labels["harmful"]) > 1:  # half of them are fitted
        views = (False, True) if step.settings.transformed else (False,)
        read = [rows for changed in views for rows in step.blocks("harmful", changed=changed)]
        known, y = torch.unique(step.labels["harmful"].to(read[-1].device), return_inverse=True)
        values[LEFT] = torch.stack([ridge_r2(rows, y, len(known)) for rows in read]).mean()
        losses.append(values[LEFT].to(read[-1].dtype))
    if losses:
        torch.autograd.backward(losses, inputs=[*step.theta, *step.heads])
    return {name: float(value.detach()) for name, value in values.items()}


_WELL = NetPart("benign", lambda step: feature_r_well(step.X("benign")))
_ILL = NetPart("harmful", lambda step: feature_r_ill(step.X("harmful"), rtol=step.rtol("harmful")))
_KAPPAS = {
    "kappa_benign": NetPart("benign", lambda step: step.kappa("benign")),
    "kappa_harmful": NetPart("harmful", lambda step: -step.kappa("harmful")),
}
#: Of `erase` on all data and backbones; chosen on 8×8 digits and a small ResNet.
_ERASE = {
    "learning_rate": 1e-3, "loss_weight": 0.1, "steps": 800, "max_accuracy_drop": 0.03, "whole": True,
}  # fmt: skip

#: The methods for nets, in display order.
NET_METHODS: dict[str, NetMethod] = {
    method.name: method
    for method in (
        NetMethod("ours", {"well": _WELL, "ill": _ILL}),
        NetMethod("opt_kappa", _KAPPAS),
        # As published: no part to balance.
        NetMethod("imma", {}, {"loss_weight": 1.0}, probe=True, backward=imma_backward),
        NetMethod("r_ill_only", {"ill": _ILL}),
        NetMethod("erase", {}, _ERASE, ranked=False, start=True, backward=erase_backward),
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
