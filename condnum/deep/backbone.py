"""A timm model in three parts: a frozen trunk, the part that is immunized, and the head.

The module itself is the feature extractor f_θ of Sec. 5.2: calling it gives timm's own pooled features,
`X̃(θ)` of Eq. 18; `logits` puts the head g_ω on top. Only the trainable part and the head ever change.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from condnum import __version__
from condnum.deep.split_rules import split, split_head, trunk_children
from condnum.deep.trunk import activations_before, run_chain, trainable_chain
from condnum.deep.weights import fit_weights, read_metadata, read_weights, state_checksum, write_weights
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    UnknownNameError,
    check_known,
    require,
)

#: What the head of a loaded model is: the file's, or drawn anew.
Classifier = Literal["loaded", "new"]


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """Put a module into evaluation mode in the block; each of its parts gets its own flag back."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


class Backbone(nn.Module):
    """Any timm model, split for immunization.

    What is frozen has no gradients, and stays in evaluation mode whatever `train()` is told, dropout right
    before the classifier too. In the trainable part the scales and shifts of BatchNorm are trained, but θ₀'s
    running statistics normalize: D_P and D_H share them, and the features that are measured are those that
    were trained.

    Args:
        name: Of `timm.create_model`.
        pretrained: True downloads timm's weights; a path loads a safetensors file or a state dict; False
            draws weights from `seed`.
        trainable: Names of the modules to immunize; None asks the rules of `split_rules`.
        num_classes: Outputs of the head; default timm's.
        classifier: `new` draws the head anew, whatever the file has for it.
        seed: Of the weights that are drawn; the global generator is left as it was.
        **model_arguments: Further arguments of `timm.create_model`, such as `img_size`.

    Raises:
        UnknownNameError: timm has no such model, the model no such module, or an unknown option.
        InvalidInputError: Arguments that the model does not take, or a model that cannot be split.
        DataNotFoundError: The weights are not there, or cannot be downloaded.
        DataFormatError: They do not fit.
        MissingExtraError: timm is not installed.

    Examples:
        >>> backbone = Backbone("test_resnet", num_classes=10)
        >>> backbone.split.trainable, backbone.num_features
        (('layer4',), 96)
        >>> backbone(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 96])
    """

    def __init__(
        self,
        name: str,
        *,
        pretrained: bool | str | os.PathLike[str] = False,
        trainable: str | Sequence[str] | None = None,
        num_classes: int | None = None,
        classifier: Classifier = "loaded",
        seed: int = 0,
        **model_arguments: Any,
    ) -> None:
        super().__init__()
        check_known("classifier", classifier, get_args(Classifier))
        self.name = name
        self.model_arguments = model_arguments
        # a file is read before the model is made: a wrong path fails at once
        weights = None if isinstance(pretrained, bool) else read_weights(pretrained)
        self.model = _create(name, pretrained is True, seed, {"num_classes": num_classes, **model_arguments})
        if weights is not None:
            new = split_head(self.model) if classifier == "new" else None
            fit_weights(self.model, weights, str(pretrained), new=new)
        self.split = split(self.model, trainable)
        self._learnable = {key for key, p in self.model.named_parameters() if p.requires_grad}
        self._chain: tuple[str, ...] | None = None
        self._phase: Literal["split", "pretraining", "snapshot"] = "split"
        self._freeze()
        self.eval()

    @property
    def head(self) -> nn.Module:
        """The classifier g_ω: `(B, D)` features to `(B, num_classes)` logits."""
        return self.model.get_submodule(self.split.head)

    @property
    def num_features(self) -> int:
        """Dimension D of the features."""
        width = getattr(self.model, "head_hidden_size", None) or self.model.num_features
        return int(width)  # type: ignore[arg-type]

    @property
    def num_classes(self) -> int:
        """Outputs of the head; 0 for a model without one."""
        return int(self.model.num_classes)  # type: ignore[arg-type]

    @property
    def checksum(self) -> str:
        """SHA-256 of all weights and statistics (`state_checksum`), 64 hexadecimal digits."""
        return state_checksum(self.model.state_dict())

    def forward(self, images: Tensor) -> Tensor:
        """Return the features X̃(θ) `(B, D)` of normalized images `(B, C, h, w)`, pooled by timm (Eq. 18)."""
        return self.model.forward_head(self.model.forward_features(images), pre_logits=True)  # type: ignore[operator]

    def logits(self, images: Tensor) -> Tensor:
        """Return the head's output `(B, num_classes)` for images `(B, C, h, w)`."""
        logits: Tensor = self.head(self(images))
        return logits

    def frozen_activations(self, images: Tensor) -> Tensor:
        """Run the frozen trunk alone, without gradients: the input `(B, …)` of the trainable part."""
        if self._chain is None:  # traced once, to see that what follows the trunk is a chain of modules
            with evaluating(self):
                self._chain = trainable_chain(self.model, self.split.trainable, images)
        return activations_before(self.model, self._chain[0], images)

    def features_from(self, activations: Tensor) -> Tensor:
        """Return the features `(B, D)` of `frozen_activations`, equal to those of the images."""
        if self._chain is None:
            raise CondnumError("no activations have been computed; call frozen_activations first.")
        return self.model.forward_head(run_chain(self.model, self._chain, activations), pre_logits=True)  # type: ignore[operator]

    def train(self, mode: bool = True) -> Self:
        """Set the trainable part and the head to training mode; the rest stays in evaluation mode."""
        super().train(mode)
        if self._phase == "pretraining":
            return self
        self.model.eval()
        if not mode or self._phase == "snapshot":
            return self
        self.head.train()
        for name in self.split.trainable:
            part = self.model.get_submodule(name).train()
            for module in part.modules():
                if any(name.startswith("running_") for name, _ in module.named_buffers(recurse=False)):
                    module.eval()  # a BatchNorm, of whatever class
        return self

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of θ that are immunized (weight decay 0 in the paper)."""
        named = self.model.named_parameters()
        return (p for key, p in named if self._is_trainable(key) and key in self._learnable)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the head ω (weight decay 2e-5 in the paper)."""
        return self.head.parameters()

    @contextmanager
    def pretraining(self) -> Generator[Self, None, None]:
        """Train everything in the block, BatchNorm statistics included, to make a θ₀ in the first place."""
        if self._phase == "snapshot":
            raise CondnumError("a snapshot cannot be trained; train the backbone from which it was made.")
        self._phase = "pretraining"
        for key, parameter in self.model.named_parameters():
            parameter.requires_grad_(key in self._learnable)
        try:
            yield self.train()
        finally:
            self._phase = "split"
            self._freeze()
            self.eval()

    def snapshot(self) -> Backbone:
        """Return an independent copy that never trains, whatever it is told: θ₀, to compare θ_I with."""
        twin = copy.deepcopy(self)
        twin._phase = "snapshot"
        twin.zero_grad(set_to_none=True)
        return twin.requires_grad_(False).eval()

    def whole(self) -> Backbone:
        """Return an independent copy of which every module is trained, not the split's part alone."""
        twin = copy.deepcopy(self)
        parts = trunk_children(self.model, self.split.head)
        trained = tuple(name for name, part in parts if list(part.parameters()))
        twin.split, twin._chain = replace(self.split, trainable=trained), None
        twin._freeze()
        return twin

    def _freeze(self) -> None:
        """Let gradients reach the trainable part and the head only."""
        for key, parameter in self.model.named_parameters():
            wanted = self._is_trainable(key) or key.startswith(f"{self.split.head}.")
            parameter.requires_grad_(wanted and key in self._learnable)

    def _is_trainable(self, key: str) -> bool:
        return any(key.startswith(f"{name}.") for name in self.split.trainable)


def size_arguments(name: str, side: int | None) -> dict[str, Any]:
    """Return what timm is told of the side of images: nothing, but for nets that are built for one size."""
    timm = require("timm", "deep")
    known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    return {"img_size": side} if side is not None and getattr(known, "fixed_input_size", False) else {}


def save_backbone(
    backbone: Backbone, path: str | os.PathLike[str], *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write a backbone's weights under timm's own keys, with its recipe, condnum's version and a checksum.

    Args:
        backbone: θ₀, θ_I or a snapshot; on any device.
        path: File to write, such as `theta_0.safetensors`.
        notes: Further metadata, strings only.

    Returns:
        `path`.

    Raises:
        OutputError: It cannot be written, or does not end in `.safetensors`.
    """
    if Path(path).suffix != ".safetensors":
        raise OutputError(f"a backbone is saved as safetensors; use the file name {path}.safetensors.")
    recipe = {
        **backbone.model_arguments,
        "num_classes": backbone.num_classes,
        "trainable": list(backbone.split.trainable),
    }
    history = {"condnum": __version__, "backbone": backbone.name, "recipe": json.dumps(recipe)}
    return write_weights(path, backbone.model.state_dict(), {**(notes or {}), **history})


def load_backbone(path: str | os.PathLike[str], **changes: Any) -> Backbone:
    """Rebuild a backbone that `save_backbone` wrote; its checksum is verified.

    Args:
        path: The file.
        **changes: Arguments of `Backbone` in place of the recorded ones.

    Returns:
        The backbone, in evaluation mode on the CPU.

    Raises:
        DataFormatError: The file does not say which backbone it holds, or is damaged.
        DataNotFoundError: No such file.
    """
    metadata = read_metadata(path)
    if "backbone" not in metadata or "recipe" not in metadata:
        raise DataFormatError(
            f"{path} does not record the name of its backbone; use Backbone(name, pretrained='{path}')."
        )
    recipe = json.loads(metadata["recipe"])
    recipe.pop("batch_norm", None)  # which files of condnum 0.1 may say
    return Backbone(metadata["backbone"], **{**recipe, "pretrained": path, **changes})


def _create(name: str, download: bool, seed: int, arguments: Mapping[str, Any]) -> nn.Module:
    """Create a timm model that gives features before its classifier, drawn from a seed or downloaded."""
    timm = require("timm", "deep")
    # timm itself resolves hf-hub:owner/model and local-dir:…
    if not (name.startswith(("hf-hub:", "local-dir:")) or timm.is_model(name.split(".")[0])):
        near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
        raise UnknownNameError("timm model", name, [*near, "… see timm.list_models()"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # inside the fork: the caller's generator is left as it was
        try:
            model: nn.Module = timm.create_model(name, pretrained=download, **arguments)
        except (TypeError, AssertionError) as error:
            raise InvalidInputError(f"timm cannot build {name} with {dict(arguments)}: {error}.") from error
        except Exception as error:  # what a failed download raises depends on timm's hub client
            if not download or isinstance(error, CondnumError):
                raise
            reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
            raise DataNotFoundError(
                f"the pretrained weights of {name} cannot be downloaded by timm ({type(error).__name__}: "
                f"{reason}); fetch its model.safetensors elsewhere and give --weights FILE (pretrained=PATH)."
            ) from error
    forward_head = getattr(model, "forward_head", None)
    known = forward_head is not None and "pre_logits" in inspect.signature(forward_head).parameters
    if not known or not hasattr(model, "forward_features"):
        raise InvalidInputError(
            f"{name} does not offer features before its classifier (forward_features and "
            "forward_head(pre_logits=True)); choose another timm model."
        )
    return model
