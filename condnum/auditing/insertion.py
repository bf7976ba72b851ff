"""An extractor behind a named layer of a net, so that the cheapest layer of an audit can be acted on."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from condnum.arrays import as_tensor, extractor_affine
from condnum.deep.hooks import channels_last, layout_of
from condnum.errors import InvalidInputError, UnknownNameError


class _Extracting(nn.Module):
    """A layer followed by a linear extractor of D features; its other attributes are those of the layer."""

    def __init__(self, layer: nn.Module, extractor: nn.Module, D: int, name: str, layout: str) -> None:
        super().__init__()
        self.layer, self.extractor, self.D, self.name, self.layout = layer, extractor, D, name, layout

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the layer, for nets that look into their parts."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the layer and extract from what it returns, or from the first entry of that."""
        output = self.layer(*inputs, **options)
        if isinstance(output, tuple | list) and len(output):
            return type(output)([self._extracted(output[0]), *output[1:]])
        return self._extracted(output)

    def _extracted(self, output: Any) -> Tensor:
        D = self.D
        maps = isinstance(output, Tensor) and output.ndim == 4 and not channels_last(output, self.layout)
        axis = 1 if maps else -1
        if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4) or output.shape[axis] != D:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InvalidInputError(
                f"layer '{self.name}' returns {got}, and theta is {D} × {D}: it must have as many rows as "
                "the layer has channels (of maps), or features in the last dimension."
            )
        if not maps:
            return self.extractor(output)
        return self.extractor(output.movedim(1, -1)).movedim(-1, 1)


def insert_extractor(model: nn.Module, layer: str, theta: Any) -> nn.Module:
    """Return a copy of a net with a linear or affine extractor behind one of its layers.

    Features of the layer become `features · θ`, plus the bias of θ where it has one: along the channels of
    maps `(B, C, h, w)` or `(B, h, w, C)`, and along the last dimension of `(B, F)` and `(B, tokens, F)`. θ
    and its bias are parameters of the new net; an `Eraser` stays two layers with a bottleneck. Averaging over
    positions or tokens commutes with both, so pooled features are multiplied as in `layer_audit`.

    Args:
        model: Any net, which stays as it is.
        layer: Name of the layer, as in `model.named_modules()`.
        theta: `(D, D)` extractor: an array, a linear module, an `Immunizer` or an `Eraser`.

    Returns:
        The copy, in the same mode, on the same device.

    Raises:
        UnknownNameError: The net has no such layer.
        InvalidInputError: θ is not square, or (when the net runs) the layer has not D features.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 2))
        >>> images = torch.ones(5, 3, 2, 2)
        >>> torch.equal(insert_extractor(net, "0", torch.eye(4))(images), net(images))
        True
    """
    names = [name for name, _ in model.named_modules() if name]
    if layer not in names:
        raise UnknownNameError("layer", layer, names)
    T = as_tensor(extractor_affine(theta)[0], "theta", ndim=2).detach()
    if T.shape[0] != T.shape[1]:
        raise InvalidInputError(
            f"theta is {tuple(T.shape)}; behind a layer it must be square, as the layers that follow take as "
            "many features as before."
        )
    made = copy.deepcopy(model)
    old = made.get_submodule(layer)
    like = next((of for of in [*old.parameters(), *made.parameters()] if of.is_floating_point()), T)
    parent, _, leaf = layer.rpartition(".")
    extractor = copy.deepcopy(theta.to_linear() if hasattr(theta, "to_linear") else theta)
    if not isinstance(extractor, nn.Module):
        extractor = nn.Linear(len(T), len(T), bias=False)
        extractor.weight.data = T.mT.contiguous()
    new = _Extracting(old, extractor.to(like), len(T), layer, layout_of(old, made)).train(old.training)
    made.get_submodule(parent).register_module(leaf, new)
    return made
