"""Nets of every kind that the tests of nets and their layers try, once."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from condnum.deep import Backbone


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.output = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, hidden_states, head_mask=None):
        return (hidden_states + self.output(self.attention(hidden_states).tanh()),)


class Encoder(nn.Module):
    """A vision model as Hugging Face makes them: tuples between layers, a mapping in the end."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 17, 12))
        self.embeddings = nn.Conv2d(3, 12, 8, stride=8)
        self.layer = nn.ModuleList(Layer() for _ in range(3))
        self.layernorm = nn.LayerNorm(12)
        self.classifier = nn.Linear(12, 5)

    def forward(self, pixel_values, labels=None):
        hidden = self.embeddings(pixel_values).flatten(2).mT
        hidden = torch.cat([hidden.mean(1, keepdim=True), hidden], dim=1) + self.position
        for layer in self.layer:
            hidden = layer(hidden_states=hidden)[0]
        hidden = self.layernorm(hidden)
        return {"logits": self.classifier(hidden[:, 0])}


class Transformer(nn.Module):
    """Torch's own layers, which have a fast path without gradients that calls no module."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, stride=8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.encoder(self.patches(x).flatten(2).mT).mean(1))


class Own(nn.Module):
    """A net of one's own, run by a function of itself and the images; `idle` never runs."""

    def __init__(self, run: Callable[["Own", Tensor], Tensor] | None = None):
        super().__init__()
        self.first, self.part, self.idle = (nn.Conv2d(c, 6, 3, padding=1) for c in (3, 6, 6))
        self.act, self.fc, self.run = nn.ReLU(inplace=True), nn.Linear(6, 5), run

    def forward(self, x):
        h = self.run(self, x) if self.run else self.act(self.part(self.act(self.first(x))))
        return self.fc(h.mean((2, 3)))


def plain(wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> nn.Sequential:
    """Convolutions and in-place ReLUs in a row; the second convolution may be wrapped."""
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 5))
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), wrap(nn.Conv2d(6, 6, 3)), nn.ReLU(inplace=True), *last
    )


def old_norm() -> nn.Sequential:
    """A net of which a layer keeps a weight with its graph, after a step of training."""
    net = plain(nn.utils.weight_norm)
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    return net


def swin() -> nn.Module:
    return torchvision.models.SwinTransformer([4, 4], 16, [2], [2], [4, 4], num_classes=5)


class Kind(NamedTuple):
    """A net for images of 32 × 32 pixels and 5 classes, the part that is trained, its head, and a layer."""

    net: str | Callable[[], nn.Module]
    trainable: tuple[str, ...]
    head: str
    layer: str
    options: Mapping[str, Any] = MappingProxyType({})

    def module(self) -> nn.Module:
        """Return the net itself, in evaluation mode."""
        torch.manual_seed(0)
        made = (
            timm.create_model(self.net, num_classes=5, **self.options)
            if isinstance(self.net, str)
            else self.net()
        )
        return made.eval()

    def backbone(self, **changes: Any) -> Backbone:
        """Return it split; the head is found, and the part of a timm model."""
        if isinstance(self.net, str):
            return Backbone(self.net, **{"num_classes": 5, **self.options, **changes})
        return Backbone(self.module(), **{"trainable": self.trainable, **changes})


_FIXED = {"img_size": 32, "patch_size": 8}

NETS = {
    "timm ResNet": Kind("test_resnet", ("layer4",), "fc", "layer4.0"),
    "timm ViT": Kind("test_vit", ("blocks.5",), "head", "blocks.2.mlp", _FIXED),
    "timm ConvNeXt": Kind("convnext_atto", ("stages.3",), "head.fc", "stages.1.blocks.0"),
    "timm GhostNet": Kind("ghostnet_050", ("blocks.7", "conv_head"), "classifier", "blocks.3"),
    "torchvision ResNet": Kind(
        lambda: torchvision.models.resnet18(num_classes=5), ("layer4",), "fc", "layer2.0"
    ),
    "torchvision ViT": Kind(
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 3, 24, 48, num_classes=5),
        ("encoder.layers.encoder_layer_1",), "heads.head", "encoder.layers.encoder_layer_0",
    ),
    "channels last": Kind(swin, ("features.1.1",), "head", "features.1.0"),
    "Hugging Face": Kind(Encoder, ("layer.2",), "classifier", "layer.0"),
    "fast path": Kind(Transformer, ("encoder.layers.1",), "head", "encoder.layers.0"),
    "in place": Kind(plain, ("6",), "8", "6"),
    "parametrized": Kind(lambda: plain(weight_norm), ("2",), "8", "2"),
    "old weight norm": Kind(old_norm, ("2", "6"), "8", "2"),
}  # fmt: skip

#: What cannot be watched, from a net.
WRAPPED = {
    "scripted": torch.jit.script,
    "traced": lambda net: torch.jit.trace(net.eval(), torch.zeros(2, 3, 32, 32)),
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "parallel": nn.DataParallel,
    "a scripted part": lambda net: nn.Sequential(net[0], torch.jit.script(net[1]), *net[2:]),
}
