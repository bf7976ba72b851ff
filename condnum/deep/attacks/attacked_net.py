"""What an attacker trains of a net: a new head, low-rank factors (LoRA), the last stage, or all weights."""

from __future__ import annotations

import copy

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

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, C)` of what `Target.inputs` gives: images, activations or features."""
        features = inputs
        if self.subset == "stage" and isinstance(self.net, Backbone):
            features = self.net(inputs, activations=self.net.starts_from_activations)
        elif self.subset != "head":
            features = self.net(inputs)
        logits: Tensor = self.new_head(features / self.scale)
        return logits
