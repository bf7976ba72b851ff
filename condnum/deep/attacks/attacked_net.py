"""What an attacker trains of a net: a new head, low-rank factors (LoRA), the last stage, or all weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from condnum.deep.attacks.attackers import DeepAttacker
from condnum.deep.backbone import Backbone
from condnum.errors import InvalidInputError


class LowRank(nn.Module):
    """`W + BA` for a weight W of `(out, …)`, B `(out, r)` zero at first and A `(r, rest)` drawn."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = len(weight), weight[0].numel()
        least = min(rank, rows, columns)
        drawn = torch.randn(least, columns, generator=generator) / columns**0.5
        self.A = nn.Parameter(drawn.to(weight))
        self.B = nn.Parameter(weight.new_zeros(rows, least))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return weight + (self.B @ self.A).view_as(weight)


def add_lora(net: nn.Module, rank: int, *, seed: int = 0) -> list[nn.Parameter]:
    """Put low-rank factors (LoRA, arXiv 2106.09685) on every linear and convolution layer, and return them.

    At first B = 0 and the net is the same; of a convolution the matrix `(out, in/groups · k · k)` is adapted.
    LoRA's scale is left out, as the learning rate is searched.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
        >>> [tuple(factor.shape) for factor in add_lora(net, 2)]
        [(2, 27), (4, 2), (2, 16), (2, 2)]
    """
    head = net.head if isinstance(net, Backbone) else None
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    layers = [part for part in net.modules() if isinstance(part, kinds) and part is not head]
    if not layers:
        raise InvalidInputError(f"{type(net).__name__} has no linear or convolution layer to adapt.")
    generator, found = torch.Generator().manual_seed(seed), list[nn.Parameter]()
    for layer in layers:
        adapter = LowRank(layer.weight.detach(), rank, generator)
        parametrize.register_parametrization(layer, "weight", adapter)
        found += list(adapter.parameters())
    return found


class AttackedNet(nn.Module):
    """A copy of θ with a new linear head, of which an attacker trains its part, `trained`.

    The features are divided by one number, their root mean square on the attacker's rows `features` `(n, D)`:
    the scale of θ is a free parameter. BatchNorm keeps its statistics, unless all weights are trained.
    """

    def __init__(
        self, theta: nn.Module, attacker: DeepAttacker, classes: int, features: Tensor, *, seed: int = 0
    ) -> None:
        super().__init__()
        self.subset = attacker.subset
        self.scale = float(features.double().square().mean().sqrt()) or 1.0
        self.net = net = copy.deepcopy(theta).requires_grad_(False)
        net.to(memory_format=torch.channels_last)  # two thirds of the time
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # not the GPU's, which the fork would not give back
            self.new_head = nn.Linear(features.shape[1], classes)
        self.new_head.to(next((p.device for p in net.parameters()), torch.device("cpu")))
        chosen = list[nn.Parameter]()
        if self.subset == "lora":
            chosen = add_lora(net, attacker.rank, seed=seed)
        elif self.subset == "stage":
            if not isinstance(net, Backbone):
                raise InvalidInputError(
                    f"expected a condnum Backbone, which defines its last stage, got a {type(net).__name__}."
                )
            chosen = [p for name in net.trainable for p in net.model.get_submodule(name).parameters()]
        elif self.subset == "all":
            kept = set(net.head_parameters()) if isinstance(net, Backbone) else set()
            chosen = [p for p in net.parameters() if p not in kept]
        chosen = [p for p in chosen if p.is_floating_point()]
        for parameter in chosen:
            parameter.requires_grad_()
        self.trained = [*chosen, *self.new_head.parameters()]  # the part of θ, then the head

    def train(self, mode: bool = True) -> AttackedNet:
        """Let BatchNorm take the statistics of batches only where all weights are trained."""
        for part in self.modules():
            part.training = mode and self.subset == "all"
        return self

    def take_released_head(self) -> None:
        """Train the head that θ was released with in the place of a new one: for D_P's labels."""
        if not isinstance(self.net, Backbone) or not isinstance(self.net.head, nn.Linear):
            raise InvalidInputError("expected a condnum Backbone with a linear head, to be trained on D_P.")
        self.trained = self.trained[: -len([*self.new_head.parameters()])]
        self.new_head, self.scale = copy.deepcopy(self.net.head).requires_grad_(), 1.0
        self.trained += self.new_head.parameters()

    def features(self, inputs: Tensor) -> Tensor:
        """Return θ's output `(B, D)` for what `Target.inputs` gives: images, activations or features."""
        if self.subset == "head":
            return inputs
        if self.subset == "stage" and isinstance(self.net, Backbone):
            return self.net(inputs, activations=self.net.starts_from_activations)
        found: Tensor = self.net(inputs)
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, C)` of what `Target.inputs` gives."""
        logits: Tensor = self.new_head(self.features(inputs) / self.scale)
        return logits


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024).

    A convolution's kernel is the matrix `(out, in · k · k)`. Newton–Schulz steps with the authors' three
    coefficients bring all singular values near 1. Each step has the root mean square `lr`, whatever the shape
    (Liu et al., arXiv 2502.16982). Vectors take it along their momentum; the authors use AdamW for them and
    for the head.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step; there is no closure."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.95).add_(p.grad)
                way = p.grad.add(momentum, alpha=0.95).flatten(1 if p.ndim > 1 else 0)
                if p.ndim > 1:
                    way = _orthogonal(way)
                p.sub_(way.view_as(p), alpha=group["lr"] / max(float(way.square().mean().sqrt()), 1e-12))


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return `UVᵀ` of a matrix `UΣVᵀ`, roughly."""
    X = matrix.mT if (tall := matrix.shape[0] > matrix.shape[1]) else matrix
    X = X / X.norm().clamp_min(1e-12)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.mT if tall else X
