"""Weights on disk: read safely, fitted by name and shape, written as safetensors with their history.

A pickled checkpoint can run code when it is opened, so that `torch.load` is only ever called with
`weights_only=True`; safetensors hold numbers and strings alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condnum.errors import DataFormatError, DataNotFoundError
from condnum.extras import require
from condnum.files import atomic_write

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
