"""A timm model in three parts: a frozen trunk, the part that is immunized, and the head.

The module itself is the feature extractor f_θ of Sec. 5.2: calling it gives timm's own pooled features,
`X̃(θ)` of Eq. 18; `logits` puts the head g_ω on top. Only the trainable part and the head ever change.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from condnum import __version__
from condnum.deep.create import Classifier, create, read_metadata, state_checksum, write_weights
from condnum.deep.split_rules import split
from condnum.errors import CondnumError, DataFormatError, InvalidInputError, OutputError, UnknownNameError

# Run the frozen trunk once, and training steps from its activations.


#: Replayed and direct features differ by at most this, relative to the largest: bitwise equal on a CPU,
#: but a GPU may choose other kernels for the two passes.
REPLAY_TOLERANCE = 1e-5


@dataclass
class _Call:
    """One call of a module in a traced forward pass."""

    name: str
    inputs: tuple[Any, ...]
    version: int  # of the first input, which counts the writes to it
    output: Any = None
    after: int = 0  # number of calls that had begun when this one ended


@dataclass
class _Trace:
    """The calls of a forward pass, in the order in which they begin."""

    calls: list[_Call] = field(default_factory=list)
    running: list[_Call] = field(default_factory=list)

    def watch(self, name: str, module: nn.Module) -> list[Any]:
        """Hook a module; return the handles."""

        def begin(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            given = [value for value in options.values() if value is not None]
            inputs = (*arguments, *given)
            call = _Call(name, inputs, getattr(inputs[0], "_version", 0) if inputs else 0)
            self.calls.append(call)
            self.running.append(call)

        def end(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            call = self.running.pop()
            call.output, call.after = output, len(self.calls)

        return [
            module.register_forward_pre_hook(begin, with_kwargs=True),
            module.register_forward_hook(end),
        ]


class _Reached(Exception):  # ruff: ignore[error-suffix-on-exception-name] - not an error: it ends a forward pass early
    """Carries the activations out of the trunk."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = activations


def trainable_chain(model: nn.Module, trainable: tuple[str, ...], images: Tensor) -> tuple[str, ...]:
    """Return the modules from the first trainable one to the end of `forward_features`."""
    result, calls = _trace(model, images)
    index = next((i for i, call in enumerate(calls) if call.name in trainable), None)
    if index is None:
        raise InvalidInputError(f"forward_features never calls the trainable part {', '.join(trainable)}.")
    start = calls[index]
    first = start.inputs[0]
    if first._version != start.version:
        raise InvalidInputError(_no_chain(model, f"'{start.name}' writes over its input"))
    current, chain = first, []
    while index < len(calls):
        call = calls[index]
        if len(call.inputs) != 1 or call.inputs[0] is not current or not isinstance(call.output, Tensor):
            raise InvalidInputError(
                _no_chain(model, f"'{call.name}' needs more than the output of the module before it")
            )
        chain.append(call.name)
        current, index = call.output, call.after
    if current is not result:
        raise InvalidInputError(_no_chain(model, f"something follows '{chain[-1]}' that is no module"))
    with torch.no_grad():
        again = run_chain(model, tuple(chain), first)
    gap = (again - result).abs().max()
    if not bool(gap <= REPLAY_TOLERANCE * result.abs().max()):
        raise InvalidInputError(_no_chain(model, "the modules alone give other features"))
    return tuple(chain)


def activations_before(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """Run the model up to a module, without gradients, and return that module's input."""

    def stop(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        raise _Reached(arguments[0])

    handle = model.get_submodule(name).register_forward_pre_hook(stop)
    try:
        with torch.no_grad():
            model.forward_features(images)  # type: ignore[operator]
    except _Reached as reached:
        return reached.activations.detach()
    finally:
        handle.remove()
    raise InvalidInputError(f"forward_features never calls '{name}'.")


def run_chain(model: nn.Module, chain: tuple[str, ...], activations: Tensor) -> Tensor:
    """Apply modules one after the other."""
    for name in chain:
        activations = model.get_submodule(name)(activations)
    return activations


def _trace(model: nn.Module, images: Tensor) -> tuple[Tensor, list[_Call]]:
    """Run `forward_features` once and return its result with the calls of all inner modules."""
    trace = _Trace()
    handles = [h for name, module in model.named_modules() if name for h in trace.watch(name, module)]
    try:
        with torch.no_grad():
            result = model.forward_features(images)  # type: ignore[operator]
    finally:
        for handle in handles:
            handle.remove()
    return result, trace.calls


def _no_chain(model: nn.Module, reason: str) -> str:
    """Return the message for a model that cannot be run from activations."""
    return (
        f"{type(model).__name__} cannot be run from frozen activations: {reason}; "
        "train it on images instead, or choose a later trainable part."
    )


BatchNormMode = Literal["frozen", "batch"]


class Backbone(nn.Module):
    """Any timm model, split for immunization.

    Frozen means frozen: no gradients, and BatchNorm, dropout and stochastic depth of everything outside
    the trainable part stay in evaluation mode whatever `train()` is told, so that running statistics
    never move. In the trainable part

    * `batch_norm="frozen"` (default) trains the scales and shifts of BatchNorm but normalises with the
      running statistics of θ₀. Otherwise D_P and D_H would each be normalised by its own batch, the
      statistics would drift to a mixture of both, and the features that are measured (in evaluation)
      would not be those that were trained.
    * `batch_norm="batch"` is PyTorch's usual training mode, with that drift.

    Dropout right before the classifier counts as frozen: features are a deterministic function of θ.

    Args:
        name: Of `timm.create_model`.
        pretrained: True downloads timm's weights; a path loads a safetensors file or a state dict; False
            draws weights from `seed`.
        trainable: Names of the modules to immunize; None asks the rules of `split_rules`.
        num_classes: Outputs of the head; default timm's.
        classifier: `new` draws the head anew, whatever the file has for it.
        batch_norm: What BatchNorm in the trainable part does in training.
        seed: Of the weights that are drawn; the global generator is left as it was.
        **model_arguments: Further arguments of `timm.create_model`, such as `img_size`.

    Attributes:
        model: The timm model.
        split: Which modules are trained, and by which rule.

    Raises:
        UnknownNameError: timm has no such model, the model no such module, or an unknown option.
        InvalidInputError: Arguments that the model does not take, or a model that cannot be split.
        DataNotFoundError: The weights are not there, or cannot be downloaded.
        DataFormatError: They do not fit; the message lists missing, unexpected and mis-shaped keys.
        MissingExtraError: timm is not installed.

    Examples:
        >>> import torch
        >>> backbone = Backbone("test_resnet", num_classes=10)
        >>> backbone.split.trainable, backbone.num_features
        (('layer4',), 96)
        >>> backbone(torch.zeros(2, 3, 32, 32)).shape, backbone.logits(torch.zeros(2, 3, 32, 32)).shape
        (torch.Size([2, 96]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        name: str,
        *,
        pretrained: bool | str | os.PathLike[str] = False,
        trainable: str | Sequence[str] | None = None,
        num_classes: int | None = None,
        classifier: Classifier = "loaded",
        batch_norm: BatchNormMode = "frozen",
        seed: int = 0,
        **model_arguments: Any,
    ) -> None:
        super().__init__()
        if batch_norm not in get_args(BatchNormMode):
            raise UnknownNameError("batch_norm", batch_norm, get_args(BatchNormMode))
        if classifier not in get_args(Classifier):
            raise UnknownNameError("classifier", classifier, get_args(Classifier))
        self.name = name
        self.batch_norm = batch_norm
        self.model_arguments = dict(model_arguments)
        self.model = create(
            name,
            pretrained=pretrained,
            num_classes=num_classes,
            classifier=classifier,
            seed=seed,
            arguments=self.model_arguments,
        )
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
        """Return the features `X̃(θ)` after timm's own pooling (Eq. 18).

        Args:
            images: `(B, C, h, w)`, normalised as the weights expect.

        Returns:
            `(B, D)`.

        Raises:
            InvalidInputError: The model does not pool to `(B, D)`.
        """
        return self._pooled(self.model.forward_features(images))  # type: ignore[operator]

    def logits(self, images: Tensor) -> Tensor:
        """Return the head's output `(B, num_classes)` for images `(B, C, h, w)`."""
        logits: Tensor = self.head(self(images))
        return logits

    def frozen_activations(self, images: Tensor) -> Tensor:
        """Run the frozen trunk alone, without gradients.

        Un-augmented images have the same activations in every epoch: compute them once, keep them, and
        train with `features_from`. The first call traces the model, to see that this is possible.

        Args:
            images: `(B, C, h, w)`.

        Returns:
            `(B, …)` input of the trainable part.

        Raises:
            InvalidInputError: What follows the trunk is not a chain of modules.
        """
        return activations_before(self.model, self._traced(images)[0], images)

    def features_from(self, activations: Tensor) -> Tensor:
        """Return the features `(B, D)` of `frozen_activations`; gradients reach the trainable part.

        Args:
            activations: `(B, …)`.

        Returns:
            `(B, D)`, equal to calling the backbone on the images.

        Raises:
            CondnumError: Called before `frozen_activations`.
        """
        if self._chain is None:
            raise CondnumError(
                "features_from needs activations of this backbone: call frozen_activations first."
            )
        return self._pooled(run_chain(self.model, self._chain, activations))

    def train(self, mode: bool = True) -> Self:
        """Set the trainable part and the head to training mode; the rest stays in evaluation mode.

        Args:
            mode: False sets everything to evaluation mode.

        Returns:
            Itself.
        """
        super().train(mode)
        if self._phase == "pretraining":
            return self
        self.model.eval()
        if not mode or self._phase == "snapshot":
            return self
        self.head.train()
        for name in self.split.trainable:
            part = self.model.get_submodule(name).train()
            for module in part.modules() if self.batch_norm == "frozen" else ():
                if _has_running_statistics(module):
                    module.eval()
        return self

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of θ that are immunized (weight decay 0 in the paper)."""
        return (
            p
            for key, p in self.model.named_parameters()
            if self._is_trainable(key) and key in self._learnable
        )

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the head ω (weight decay 2e-5 in the paper)."""
        return self.head.parameters()

    @contextmanager
    def pretraining(self) -> Generator[Self, None, None]:
        """Train everything, BatchNorm statistics included, to make a θ₀ in the first place.

        Yields:
            Itself, in training mode; afterwards the split is back, in evaluation mode.

        Raises:
            CondnumError: It is a snapshot.
        """
        if self._phase == "snapshot":
            raise CondnumError(
                "a snapshot is a record of θ and cannot be trained; train the backbone it is of."
            )
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
        """Return an independent copy that never trains: θ₀, to compare θ_I with (Eq. 17).

        Returns:
            A deep copy without gradients, in evaluation mode whatever `train()` is told.
        """
        twin = copy.deepcopy(self)
        twin._phase = "snapshot"
        twin.zero_grad(set_to_none=True)
        return twin.requires_grad_(False).eval()

    def _freeze(self) -> None:
        """Let gradients reach the trainable part and the head only."""
        for key, parameter in self.model.named_parameters():
            wanted = self._is_trainable(key) or key.startswith(f"{self.split.head}.")
            parameter.requires_grad_(wanted and key in self._learnable)

    def _is_trainable(self, key: str) -> bool:
        return any(key.startswith(f"{name}.") for name in self.split.trainable)

    def _traced(self, images: Tensor) -> tuple[str, ...]:
        """Return the chain of modules after the trunk, traced once in evaluation mode."""
        if self._chain is None:
            training = self.training
            self.eval()
            try:
                self._chain = trainable_chain(self.model, self.split.trainable, images)
            finally:
                self.train(training)
        return self._chain

    def _pooled(self, maps: Tensor) -> Tensor:
        """Return timm's pooled features `(B, D)`, checked."""
        features: Tensor = self.model.forward_head(maps, pre_logits=True)  # type: ignore[operator]
        if features.ndim != 2:
            raise InvalidInputError(
                f"{self.name} gives features of shape {tuple(features.shape)}, not (B, D): "
                "pass global_pool='avg', or choose a model that pools."
            )
        return features


def _has_running_statistics(module: nn.Module) -> bool:
    """Tell a BatchNorm, of whatever class, by its running statistics."""
    return any(name.startswith("running_") for name, _ in module.named_buffers(recurse=False))


# A backbone on disk: one safetensors file that timm can read and that rebuilds the backbone here.


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
        MissingExtraError: safetensors is not installed.
    """
    if Path(path).suffix != ".safetensors":
        raise OutputError(f"a backbone is written as safetensors: name the file {path}.safetensors.")
    recipe = {
        **backbone.model_arguments,
        "num_classes": backbone.num_classes,
        "trainable": list(backbone.split.trainable),
        "batch_norm": backbone.batch_norm,
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
        MissingExtraError: timm or safetensors is not installed.
    """
    metadata = read_metadata(path)
    if "backbone" not in metadata or "recipe" not in metadata:
        raise DataFormatError(
            f"{path} does not say which backbone it holds; use Backbone(name, pretrained='{path}')."
        )
    recipe = json.loads(metadata["recipe"])
    return Backbone(metadata["backbone"], **{**recipe, "pretrained": path, **changes})
