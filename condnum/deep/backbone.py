"""A net in three parts: a frozen trunk, the part that is immunized, and the head.

The module itself is the feature extractor f_θ of Sec. 5.2: calling it gives what the head is given, `X̃(θ)` of
Eq. 18; `logits` puts the head g_ω on top. Only the trainable part and the head ever change.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from condnum import __version__
from condnum.deep.hooks import Replay, input_of
from condnum.deep.parts import choose_trainable, find_head, trunk_children
from condnum.deep.weights import (
    fit_weights,
    load_bundled,
    read_metadata,
    read_weights,
    state_checksum,
    write_weights,
)
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

#: Outputs of the head of weights for ImageNet-1K.
IMAGENET_CLASSES = 1000

#: Pixels that go through a net at a time where nothing is trained: what caches hold. An EfficientNet-Lite0
#: reads 160-pixel images 1.5 to 2 times as fast in parts of 16 as in batches of 64.
CACHED_PIXELS = 400_000

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
    """Any image classifier, split for immunization.

    What is frozen has no gradients, and stays in evaluation mode whatever `train()` is told, dropout right
    before the classifier too. In the trainable part the scales and shifts of BatchNorm are trained, but θ₀'s
    running statistics normalize: D_P and D_H share them, and the features that are measured are those that
    were trained.

    Args:
        net: A name of `timm.create_model`, or any module from images to logits, which is copied.
        trainable: Names of the modules to immunize; None: the last stage (`condnum.deep.parts`).
        head: Name of the classifier; None: timm's, or the linear layer that ends the net.
        pretrained: True downloads timm's weights; `"bundled"` takes those of a package (extra `pretrained`:
            `tf_efficientnet_lite0` to `2`); a path loads a safetensors file or a state dict; False draws
            weights from `seed`.
        num_classes: Outputs of the head of a timm model; default timm's.
        classifier: `new` draws the head of a timm model anew, whatever the file has for it.
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
        >>> backbone.trainable, backbone.head_name, backbone.num_features
        (('layer4',), 'fc', 96)
        >>> backbone(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 96])

        A module of your own:

        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
        >>> backbone = Backbone(net, trainable="0")
        >>> backbone.head_name, backbone(torch.zeros(2, 3, 32, 32)).shape
        ('3', torch.Size([2, 8]))
    """

    def __init__(
        self,
        net: str | nn.Module,
        *,
        trainable: str | Sequence[str] | None = None,
        head: str | None = None,
        pretrained: bool | str | os.PathLike[str] = False,
        num_classes: int | None = None,
        classifier: Classifier = "loaded",
        seed: int = 0,
        **model_arguments: Any,
    ) -> None:
        super().__init__()
        check_known("classifier", classifier, get_args(Classifier))
        own = isinstance(net, nn.Module)
        self.name = str(type(net).__name__ if own else net)
        self.model_arguments = None if own else model_arguments  # of timm; None: a module of the caller's
        # a file is read before the model is made: a wrong path fails at once
        bundled = pretrained == "bundled"
        weights = None if bundled or isinstance(pretrained, bool) else read_weights(pretrained)
        if isinstance(net, nn.Module):
            only = {"pretrained": bundled or pretrained is True, "num_classes": num_classes is not None,
                    "classifier": classifier != "loaded", **model_arguments}  # fmt: skip
            if idle := [name for name, given in only.items() if given]:
                raise InvalidInputError(
                    f"{', '.join(idle)} has no effect on a module, only on a timm model; leave it out."
                )
            self.model = copy.deepcopy(net)
        else:
            self.model = _create(net, pretrained, seed, num_classes, model_arguments)
        self.head_name = find_head(self.model) if head is None else head
        if self.head_name not in dict(self.model.named_modules()) or not self.head_name:
            raise InvalidInputError(
                f"{self.name} has no {f'module {head!r}' if head else 'linear layer at its end'}: give the "
                "name of its classifier as head=…."
            )
        if weights is not None:
            fit_weights(
                self.model, weights, str(pretrained), new=self.head_name if classifier == "new" else None
            )
        self.trainable = choose_trainable(self.model, self.head_name, trainable)
        self._learnable = {key for key, p in self.model.named_parameters() if p.requires_grad}
        self._replay: Replay | None = None
        self._freeze()
        self.eval()

    @property
    def head(self) -> nn.Module:
        """The classifier g_ω: `(B, D)` features to `(B, num_classes)` logits."""
        return self.model.get_submodule(self.head_name)

    @property
    def num_features(self) -> int:
        """Dimension D of the features."""
        linear = [part for part in self.head.modules() if isinstance(part, nn.Linear)]
        known: Any = getattr(self.model, "head_hidden_size", None) or getattr(self.model, "num_features", 0)
        return linear[0].in_features if linear else int(known)

    @property
    def num_classes(self) -> int:
        """Outputs of the head; 0 for a model without one."""
        linear = [part for part in self.head.modules() if isinstance(part, nn.Linear)]
        return linear[-1].out_features if linear else int(getattr(self.model, "num_classes", 0))

    @property
    def checksum(self) -> str:
        """SHA-256 of all weights and statistics (`state_checksum`), 64 hexadecimal digits."""
        return state_checksum(self.model.state_dict())

    @property
    def trunk_checksum(self) -> str:
        """SHA-256 of what comes before the trainable part and the head, which no training here changes."""
        changing = tuple(f"{name}." for name in (*self.trainable, self.head_name))
        state = self.model.state_dict().items()
        frozen = {key: value for key, value in state if not key.startswith(changing)}
        return state_checksum({**frozen, "trainable": self.trainable})

    def forward(self, images: Tensor, *, activations: bool = False) -> Tensor:
        """Return the features X̃(θ) `(B, D)` of normalized images `(B, C, h, w)`: what the head is given.

        With `activations`, those of `frozen_activations` are given in place of images, for the same features.
        """
        if not activations:
            parts = [input_of(self.model, self.head_name, part) for part in self._parts(images)]
            features: Any = parts[0] if len(parts) == 1 else torch.cat(parts)
        elif self._replay is None:
            raise CondnumError("no activations have been computed; call frozen_activations first.")
        else:
            features = self._replay.features(self.model, self.head_name, images)
        if not isinstance(features, Tensor) or features.ndim != 2:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InvalidInputError(
                f"the head '{self.head_name}' of {self.name} is given {got}, not pooled features (B, D); "
                "name a linear layer as head=…."
            )
        return features

    def logits(self, images: Tensor) -> Tensor:
        """Return the head's output `(B, num_classes)` for images `(B, C, h, w)`."""
        found: Tensor = self.head(self(images))
        return found

    @property
    def starts_from_activations(self) -> bool:
        """Whether `frozen_activations` were computed, so that `forward` takes them."""
        return self._replay is not None

    def frozen_activations(self, images: Tensor) -> Tensor:
        """Run the frozen trunk alone, without gradients: the input `(B, …)` of the trainable part."""
        with torch.no_grad():
            if self._replay is None:  # watched once, to see that nothing else reads the trunk
                with evaluating(self):
                    self._replay = Replay.of(self.model, self.head_name, self.trainable, images)
            first = self._replay.first
            return torch.cat([input_of(self.model, first, part) for part in self._parts(images)])

    def _parts(self, images: Tensor) -> Sequence[Tensor]:
        """Return images in parts whose activations a processor's cache holds, where no batch is needed."""
        if images.is_cuda or images.ndim != 4 or not len(images):
            return [images]
        images = images.contiguous(memory_format=torch.channels_last)  # two thirds of the time
        if torch.is_grad_enabled() or any(part.training for part in self.model.modules()):
            return [images]
        return images.split(max(1, CACHED_PIXELS // images[0, 0].numel()))

    def train(self, mode: bool = True) -> Self:
        """Set the trainable part and the head to training mode; the rest stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        if not mode or not self.can_train:
            return self
        self.head.train()
        for name in self.trainable:
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

    @property
    def can_train(self) -> bool:
        """Whether gradients reach the trainable part; of a snapshot they do not."""
        return any(parameter.requires_grad for parameter in self.trainable_parameters())

    @contextmanager
    def pretraining(self) -> Generator[nn.Module]:
        """Train the whole model in the block, BatchNorm statistics included, to make a θ₀."""
        if not self.can_train:
            raise CondnumError("a snapshot cannot be trained; train the backbone from which it was made.")
        for key, parameter in self.model.named_parameters():
            parameter.requires_grad_(key in self._learnable)
        try:
            yield self.model.train()
        finally:
            self._freeze()
            self.eval()

    def snapshot(self) -> Backbone:
        """Return an independent copy that never trains, whatever it is told: θ₀, to compare θ_I with."""
        twin = copy.deepcopy(self)
        twin.zero_grad(set_to_none=True)
        return twin.requires_grad_(False).eval()

    def whole(self) -> Backbone:
        """Return an independent copy of which every module is trained, not the trainable part alone."""
        twin = copy.deepcopy(self)
        parts = trunk_children(self.model, self.head_name)
        twin.trainable, twin._replay = tuple(name for name, part in parts if list(part.parameters())), None
        twin._freeze()
        return twin

    def _freeze(self) -> None:
        """Let gradients reach the trainable part and the head only."""
        for key, parameter in self.model.named_parameters():
            wanted = self._is_trainable(key) or key.startswith(f"{self.head_name}.")
            parameter.requires_grad_(wanted and key in self._learnable)

    def _is_trainable(self, key: str) -> bool:
        return any(key.startswith(f"{name}.") for name in self.trainable)


def size_arguments(name: str, side: int | None) -> dict[str, Any]:
    """Return what timm is told of the side of images: nothing, but for nets that are built for one size."""
    timm = require("timm", "deep")
    known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    return {"img_size": side} if side is not None and getattr(known, "fixed_input_size", False) else {}


def save_backbone(
    backbone: Backbone, path: str | os.PathLike[str], *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write a backbone's weights under the model's own keys, with recipe, condnum's version and checksum.

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
    recipe: dict[str, Any] = {"trainable": list(backbone.trainable)}
    if backbone.model_arguments is not None:
        recipe |= {**backbone.model_arguments, "num_classes": backbone.num_classes}
    history = {"condnum": __version__, "backbone": backbone.name, "recipe": json.dumps(recipe)}
    return write_weights(path, backbone.model.state_dict(), {**(notes or {}), **history})


def load_backbone(path: str | os.PathLike[str], net: nn.Module | None = None, **changes: Any) -> Backbone:
    """Rebuild a backbone that `save_backbone` wrote; its checksum is verified.

    Args:
        path: The file.
        net: A module of the same architecture, where the backbone is not a timm model.
        **changes: Arguments of `Backbone` in place of the recorded ones.

    Returns:
        The backbone, in evaluation mode on the CPU.

    Raises:
        DataFormatError: The file does not say which backbone it holds, or is damaged.
        DataNotFoundError: No such file.
        InvalidInputError: The backbone is not a timm model, and no `net` is given.
    """
    metadata = read_metadata(path)
    if "backbone" not in metadata or "recipe" not in metadata:
        raise DataFormatError(
            f"{path} does not record the name of its backbone; use Backbone(name, pretrained='{path}')."
        )
    recipe = json.loads(metadata["recipe"])
    if net is None and "num_classes" not in recipe:
        raise InvalidInputError(
            f"{path} holds a {metadata['backbone']}, which is not a timm model; give a module of this "
            "architecture as net=…."
        )
    return Backbone(net or metadata["backbone"], **{**recipe, "pretrained": path, **changes})


def _create(
    name: str, pretrained: object, seed: int, num_classes: int | None, arguments: Mapping[str, Any]
) -> nn.Module:
    """Create a timm model, drawn from a seed, downloaded or bundled."""
    timm = require("timm", "deep")
    # timm itself resolves hf-hub:owner/model and local-dir:…
    if not (name.startswith(("hf-hub:", "local-dir:")) or timm.is_model(name.split(".")[0])):
        near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
        raise UnknownNameError("timm model", name, [*near, "… see timm.list_models()"])
    download, bundled = pretrained is True, pretrained == "bundled"
    options = dict(arguments) if bundled else {"num_classes": num_classes, **arguments}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # inside the fork: the caller's generator is left as it was
        try:
            model: nn.Module = timm.create_model(name, pretrained=download, **options)
        except (TypeError, AssertionError) as error:
            raise InvalidInputError(f"timm cannot build {name} with {options}: {error}.") from error
        except Exception as error:  # what a failed download raises depends on timm's hub client
            if not download or isinstance(error, CondnumError):
                raise
            reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
            raise DataNotFoundError(
                f"the pretrained weights of {name} cannot be downloaded by timm ({type(error).__name__}: "
                f"{reason}); fetch its model.safetensors elsewhere and give --weights FILE (pretrained=PATH)."
            ) from error
        if bundled:
            load_bundled(model, name)
            if num_classes not in (None, IMAGENET_CLASSES):
                model.reset_classifier(num_classes)  # type: ignore[operator]
    return model
