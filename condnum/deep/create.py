"""Make a timm model with its weights, and say plainly what went wrong when it cannot be made."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from condnum.deep.split_rules import split_head
from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    UnknownNameError,
    require,
)
from condnum.files import atomic_write

# Weights on disk: read safely, fitted by name and shape, written as safetensors with their history.


State = Mapping[str, Tensor]

#: Metadata key of a file's own checksum.
CHECKSUM = "sha256"

#: Where training programs put the state dict in their checkpoint, and what wrappers put before its keys.
_NESTS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")

#: How torch's reader says that a file is not what `torch.save` wrote: it was made for files that are.
DAMAGED = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    NotImplementedError,
)

#: Keys of one kind that a message shows.
_SHOWN = 6


@dataclass(frozen=True)
class Weights:
    """A state dict with what its file says about itself."""

    state: dict[str, Tensor]
    metadata: dict[str, str]  # empty for a file without
    source: str  # the path


def state_checksum(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a state dict: names, types, shapes and bytes, sorted by name.

    Examples:
        >>> state_checksum({"w": torch.zeros(2)}) == state_checksum({"w": torch.zeros(2)})
        True
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


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """Read a safetensors file or a PyTorch checkpoint, without running what it may hold.

    Of a training checkpoint the state dict is taken (the moving average where there is one); the prefixes
    that `DataParallel` and `torch.compile` leave are removed.
    """
    file = _existing(path)
    if file.suffix == ".safetensors":
        state, metadata = _read_safetensors(file)
    else:
        state, metadata = _read_checkpoint(file), {}
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        wrong = next((key for key, value in state.items() if not isinstance(value, Tensor)), None)
        reason = f"its entry '{wrong}' is no tensor" if wrong is not None else "it is empty"
        raise DataFormatError(f"{file} is not a state dict: {reason}; save model.state_dict() instead.")
    if CHECKSUM in metadata and metadata[CHECKSUM] != state_checksum(state):
        raise DataFormatError(f"{file} is damaged: its tensors do not have the SHA-256 that it states.")
    return Weights(state, metadata, str(file))


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what a safetensors file says about itself, without reading its tensors."""
    file = _existing(path)
    return _read_safetensors(file, tensors=False)[1] if file.suffix == ".safetensors" else {}


def fit_weights(model: nn.Module, weights: Weights, *, new: str | None = None) -> None:
    """Copy weights into a model, every key at its place or none at all."""
    own = model.state_dict()
    state = {
        key: value for key, value in weights.state.items() if new is None or not key.startswith(f"{new}.")
    }
    wanted = {key: value for key, value in own.items() if new is None or not key.startswith(f"{new}.")}
    problems = [
        _listed("missing", [key for key in wanted if key not in state]),
        _listed("unexpected", [key for key in state if key not in wanted]),
        _listed(
            "of another shape",
            [
                f"{key} {tuple(state[key].shape)} instead of {tuple(wanted[key].shape)}"
                for key in wanted
                if key in state and state[key].shape != wanted[key].shape
            ],
        ),
    ]
    found = [problem for problem in problems if problem]
    if found:
        raise DataFormatError(
            f"the weights in {weights.source} do not fit {type(model).__name__}: {'; '.join(found)}. "
            "Check the backbone's name, num_classes and image size against the model that they are from."
        )
    model.load_state_dict({**own, **state})


def write_weights(path: str | os.PathLike[str], state: State, metadata: Mapping[str, str]) -> Path:
    """Write a state dict as safetensors, whole or not at all, with its checksum."""
    save_file = require("safetensors.torch", "deep").save_file
    copies = {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}
    notes = {"format": "pt", **metadata, CHECKSUM: state_checksum(copies)}
    with atomic_write(path) as temporary:
        save_file(copies, temporary, metadata=notes)
    return Path(path)


def _existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is there."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataNotFoundError(
            f"no weights at {file}; pass the path of a .safetensors file or a state dict of torch.save."
        )
    return file


def _read_safetensors(file: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file."""
    safetensors = require("safetensors", "deep")
    try:
        with safetensors.safe_open(file, framework="pt", device="cpu") as archive:
            names = archive.keys() if tensors else ()
            state = {key: archive.get_tensor(key) for key in names}
            return state, dict(archive.metadata() or {})
    except safetensors.SafetensorError as error:
        raise DataFormatError(f"{file} is not a whole safetensors file ({error}); fetch it again.") from error


def _read_checkpoint(file: Path) -> dict[str, Tensor]:
    """Return the state dict of a file of `torch.save`, without unpickling anything but tensors."""
    try:
        content: Any = load_tensors(file)
    except pickle.UnpicklingError as error:
        raise DataFormatError(
            f"{file} is not opened: it is no checkpoint of torch.save, or it holds objects other than "
            "tensors, which could run code; where you trust it, load it yourself and save "
            "model.state_dict() as safetensors."
        ) from error
    except DAMAGED as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataFormatError(
            f"{file} is not a whole file of torch.save ({reason}); fetch it again."
        ) from error
    if not isinstance(content, dict):
        raise DataFormatError(f"{file} holds a {type(content).__name__}, not a state dict of tensors.")
    nest = next((key for key in _NESTS if isinstance(content.get(key), dict)), None)
    state = content if nest is None else content[nest]
    return {_bare(str(key)): value for key, value in state.items()}


def load_tensors(file: Path) -> Any:
    """Read a file of `torch.save`: tensors, numbers, strings and containers of them, and nothing else."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(entry.file_size > entry.compress_size for entry in archive.infolist()):
                raise ValueError("it is compressed, which torch.save never does")
        return torch.load(file, map_location="cpu", weights_only=True)
    with _Clamped(io.FileIO(file)) as stream:
        return torch.load(stream, map_location="cpu", weights_only=True)


class _Clamped(io.BufferedReader):
    """A file that hands out what is left of it; Python's own reserves what a damaged length asks for."""

    def read(self, size: int | None = -1) -> bytes:
        """Read at most what is left."""
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def _bare(key: str) -> str:
    """Remove the prefixes of wrappers."""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _listed(kind: str, keys: list[str]) -> str:
    """Return `2 missing: a, b`, shortened, or nothing."""
    if not keys:
        return ""
    rest = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{len(keys)} {kind}: {', '.join(keys[:_SHOWN])}{rest}"


#: What the head of a loaded model is: the file's, or drawn anew.
Classifier = Literal["loaded", "new"]


def create(
    name: str,
    *,
    pretrained: bool | str | os.PathLike[str],
    num_classes: int | None,
    classifier: Classifier,
    seed: int,
    arguments: Mapping[str, Any],
) -> nn.Module:
    """Create a timm model with weights from timm, from a file or drawn from a seed."""
    timm = require("timm", "deep")
    _check_name(timm, name)
    download = pretrained is True
    path = None if isinstance(pretrained, bool) else pretrained
    weights = None if path is None else read_weights(path)  # before the model: a wrong path fails at once
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # inside the fork: the caller's generator is left as it was
        try:
            model: nn.Module = timm.create_model(
                name, pretrained=download, num_classes=num_classes, **arguments
            )
        except (TypeError, AssertionError) as error:
            raise InvalidInputError(f"timm cannot build {name} with {dict(arguments)}: {error}.") from error
        except Exception as error:  # what a failed download raises depends on timm's hub client
            if not download or isinstance(error, CondnumError):
                raise
            raise DataNotFoundError(_no_download(name, error)) from error
    _check_head(model, name)
    if weights is not None:
        fit_weights(model, weights, new=split_head(model) if classifier == "new" else None)
    return model


def _check_name(timm: Any, name: str) -> None:
    """Raise if timm has no model of that name."""
    if "/" in name or ":" in name or timm.is_model(name.split(".")[0]):
        return  # hf-hub:owner/model and local-dir:… are resolved by timm itself
    near = get_close_matches(name, timm.list_models(), n=5, cutoff=0.4)
    raise UnknownNameError("timm model", name, [*near, "… see timm.list_models()"])


def _check_head(model: nn.Module, name: str) -> None:
    """Raise if the model cannot give features before its classifier."""
    forward_head = getattr(model, "forward_head", None)
    known = forward_head is not None and "pre_logits" in inspect.signature(forward_head).parameters
    if not known or not hasattr(model, "forward_features"):
        raise InvalidInputError(
            f"{name} does not offer features before its classifier (forward_features and "
            "forward_head(pre_logits=True)); choose another timm model."
        )


def _no_download(name: str, error: Exception) -> str:
    """Return the message for weights that timm could not get."""
    reason = (str(error).strip().splitlines() or ["no reason given"])[0][:200]
    return (
        f"the pretrained weights of {name} cannot be had from timm ({type(error).__name__}: {reason}); "
        "fetch its model.safetensors on a machine with a network and pass pretrained=PATH."
    )


# The state of an unfinished training in one file: written whole, read without unpickling objects.


#: Raised when what the files hold changes.
VERSION = 1


def write_state(path: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write a state, replacing the one before."""
    content = {"version": VERSION, "identity": dict(identity), "state": dict(state)}
    # torch.save names the archive after a path, and refuses names that begin with a dot
    with atomic_write(path) as temporary, open(temporary, "wb") as stream:
        torch.save(content, stream)


def read_state(path: Path, identity: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """Read the state of the same training."""
    if not path.exists():
        return None
    try:
        content = load_tensors(path)
        version, known, state = content["version"], dict(content["identity"]), dict(content["state"])
    except (pickle.UnpicklingError, *DAMAGED) as error:
        raise DataFormatError(
            f"{path} is not a whole checkpoint ({what}); remove it to start anew."
        ) from error
    if version != VERSION:
        raise DataFormatError(
            f"{path} is a checkpoint of format {version}, this program writes {VERSION}; remove it to start "
            "anew."
        )
    different = [
        f"{name}: {known.get(name, 'nothing')} there, {value} here"
        for name, value in identity.items()
        if known.get(name) != value
    ]
    if different:
        raise InvalidInputError(
            f"{path} is the checkpoint of another {what} ({'; '.join(different)}); give another path, or "
            "remove it."
        )
    return state
