"""Weights in safetensors, and checkpoints of a training by `torch.save`.

Other people's weights may be files of `torch.save` too; nothing that such a file holds is ever run.
"""

import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from condnum.errors import (
    CondnumError,
    DataFormatError,
    DataNotFoundError,
    InvalidInputError,
    OutputError,
    require,
)
from condnum.files import atomic_write

#: Key of a file's header for the checksum of its tensors.
CHECKSUM = "sha256"
#: Raised when what a checkpoint holds changes.
CHECKPOINT_VERSION = 3

#: Where training programs put the state dict in their checkpoint, and what wrappers put before its keys.
_NESTS = ("state_dict_ema", "model_ema", "state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
_SHOWN = 300  # characters of a line of torch's on keys that do not fit


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
    """Read the state dict of a safetensors file or a checkpoint, its moving average where there is one."""
    file = _existing(path)
    safe = file.suffix == ".safetensors"
    state: dict[str, Any] = {**_read_safetensors(file)[0]} if safe else _read_torch(file)
    wrong = [key for key, value in state.items() if not isinstance(value, Tensor)]
    if wrong or not state:
        reason = f"its entry '{wrong[0]}' is not a tensor" if wrong else "it is empty"
        raise DataFormatError(f"{file} is not a state dict: {reason}; save model.state_dict() instead.")
    return state


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what a safetensors file says about itself, without reading its tensors."""
    file = _existing(path)
    return _read_safetensors(file, tensors=False)[1] if file.suffix == ".safetensors" else {}


def fit_weights(
    model: nn.Module, state: Mapping[str, Tensor], source: str, *, new: str | None = None
) -> None:
    """Copy weights into a model, every key at its place; of the module `new`, none."""

    def belongs(key: str) -> bool:
        return new is not None and key.startswith(f"{new}.")

    kept = {key: value for key, value in model.state_dict().items() if belongs(key)}
    given = {key: value for key, value in state.items() if not belongs(key)}
    try:
        model.load_state_dict({**given, **kept})
    except RuntimeError as error:  # a line for all missing keys, for all unexpected ones, for each shape
        found = [shorten(line, _SHOWN) for line in str(error).splitlines()[1:5]]
        raise DataFormatError(
            f"the weights in {source} do not fit {type(model).__name__}: {' '.join(found)} Check the "
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


def write_state(path: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write a checkpoint, tensors, numbers and words in dictionaries and lists, replacing the one before."""
    content = {"version": CHECKPOINT_VERSION, "identity": dict(identity), "state": dict(state)}
    try:
        with atomic_write(path) as temporary, open(temporary, "wb") as stream:  # torch refuses some names
            torch.save(content, stream)
    except RuntimeError as error:  # of torch's writer, where a write fails
        raise OutputError(f"cannot write {path} ({error}); check the free disk space.") from error


def read_state(path: Path, identity: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """Read the checkpoint of the same training, if there is one."""
    if not path.exists():
        return None
    try:
        content = _load_torch(path)
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():
                raise DataFormatError(f"{path} is damaged.")
        known = {"format": content["version"], **content["identity"]}
        state = dict(content["state"])
    except (zipfile.BadZipFile, CondnumError, LookupError, OSError, TypeError, ValueError) as error:
        raise DataFormatError(f"{path} is not a complete checkpoint; remove it to start over.") from error
    different = [
        f"{name}: {known.get(name, 'nothing')} there, {value} here"
        for name, value in {"format": CHECKPOINT_VERSION, **identity}.items()
        if known.get(name) != value
    ]
    if different:
        raise InvalidInputError(
            f"{path} is the checkpoint of another {what} ({'; '.join(different)}); remove it to start over."
        )
    return state


def _existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that is there."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataNotFoundError(
            f"there are no weights at {file}; pass a .safetensors file or a file of torch.save."
        )
    return file


def _read_safetensors(file: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file; where it states a checksum, they have it."""
    safetensors = require("safetensors", "deep")
    try:
        with safetensors.safe_open(file, framework="pt", device="cpu") as archive:
            state = {key: archive.get_tensor(key) for key in (archive.keys() if tensors else ())}
            metadata = dict(archive.metadata() or {})
    except safetensors.SafetensorError as error:
        raise DataFormatError(
            f"{file} is not a complete safetensors file ({error}); download it again."
        ) from error
    if tensors and CHECKSUM in metadata and metadata[CHECKSUM] != state_checksum(state):
        raise DataFormatError(f"{file} is damaged: its tensors do not match the SHA-256 that it records.")
    return state, metadata


def _load_torch(file: Path) -> Any:
    """Return what a file of `torch.save` holds, without unpickling anything but tensors."""
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if any(entry.file_size > entry.compress_size for entry in archive.infolist()):
                    raise ValueError("it is compressed, which torch.save never does")
            return torch.load(file, map_location="cpu", weights_only=True)
        # read whole: from a file Python reserves whatever length a damaged one asks for
        return torch.load(io.BytesIO(file.read_bytes()), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        raise DataFormatError(
            f"{file} is not opened: it is not a checkpoint of torch.save, or it holds objects other than "
            "tensors, which could run code; if you trust it, load it and save model.state_dict()."
        ) from error
    except Exception as error:  # readers are made for whole files, and say the rest in many ways
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataFormatError(f"{file} is not a complete file of torch.save ({reason}).") from error


def _read_torch(file: Path) -> dict[str, Tensor]:
    """Return the state dict of a file of `torch.save`."""
    content = _load_torch(file)
    if not isinstance(content, dict):
        raise DataFormatError(f"{file} holds a {type(content).__name__}, not a state dict of tensors.")
    nest = next((key for key in _NESTS if isinstance(content.get(key), dict)), None)
    state = {}
    for key, value in (content if nest is None else content[nest]).items():
        name = str(key)
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        state[name] = value
    return state
