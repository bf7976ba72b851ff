"""Weights in safetensors, and checkpoints of a training by `torch.save`.

Other people's weights may be files of `torch.save` too; nothing that such a file holds is ever run.
"""

import argparse
import hashlib
import io
import os
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
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

#: How training programs name a moving average of weights, which is taken in place of the weights.
_AVERAGE = re.compile(r"(^|[._])(ema|teacher|swa|averaged)[._]")
_COMPILED = "_orig_mod."  # what torch.compile puts into keys
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
    """Read the tensors of a safetensors file or a checkpoint, entries of entries with dots between names."""
    file = _existing(path)
    content = _read_safetensors(file)[0] if file.suffix == ".safetensors" else _load_torch(file)
    if not isinstance(content, dict):
        raise DataFormatError(f"{file} holds a {type(content).__name__}, not a state dict of tensors.")
    state = {name.replace(_COMPILED, ""): value for name, value in _tensors(content)}
    if not state:
        held = f"its entries are {shorten(', '.join(map(str, content)), 200)}" if content else "it is empty"
        raise DataFormatError(
            f"{file} is not a state dict of tensors: {held}; save model.state_dict() instead."
        )
    return state


def _tensors(content: Mapping[Any, Any], within: str = "", depth: int = 6) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested dictionaries with the path to each."""
    for key, value in content.items():
        if isinstance(value, Tensor):
            yield f"{within}{key}", value
        elif isinstance(value, Mapping) and depth:  # a file may hold a dictionary that holds itself
            yield from _tensors(value, f"{within}{key}.", depth - 1)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what a safetensors file says about itself, without reading its tensors."""
    file = _existing(path)
    return _read_safetensors(file, tensors=False)[1] if file.suffix == ".safetensors" else {}


def fit_weights(
    model: nn.Module, state: Mapping[str, Tensor], source: str, *, new: str | None = None
) -> None:
    """Copy weights into a model, every key at its place; of the module `new`, none.

    The weights may lie below a prefix, of an entry of the file or of a wrapper (`state_dict.module.`). What
    lies elsewhere in the file is then not of this model.
    """

    def belongs(key: str) -> bool:
        return new is not None and key.startswith(f"{new}.")

    own = model.state_dict()
    kept = {key: value for key, value in own.items() if belongs(key)}
    prefix = _prefix(state, own.keys() - kept.keys(), source)
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    given = {key: value for key, value in inside.items() if not belongs(key)}
    try:
        model.load_state_dict({**given, **kept})
    except RuntimeError as error:  # a line for all missing keys, for all unexpected ones, for each shape
        found = [shorten(line, _SHOWN) for line in str(error).splitlines()[1:5]]
        first = {key.partition(".")[0] for key in state}
        below = prefix or (f"{first.pop()}." if len(first) == 1 else "")
        where = f" (keys that begin with '{below}')" if below else ""
        raise DataFormatError(
            f"the weights in {source}{where} do not fit {type(model).__name__}: {' '.join(found)} Check the "
            "backbone's name, num_classes and image size."
        ) from error


def _prefix(state: Collection[str], wanted: Collection[str], source: str) -> str:
    """Return below which prefix most keys of a model lie, if most of the model's do; else ""."""
    counts = Counter[str]()
    for key in state:
        parts = key.split(".")
        counts.update(".".join([*parts[:k], ""]) for k in range(len(parts)) if ".".join(parts[k:]) in wanted)
    most = max(counts.values(), default=0)
    found = [prefix for prefix, count in counts.items() if count == most]
    if "" in found or 2 * most < len(wanted):
        return ""
    if len(found) > 1:
        found = [prefix for prefix in found if _AVERAGE.search(prefix)] or found
    if len(found) > 1:
        raise DataFormatError(
            f"{source} holds such weights more than once, below {', '.join(map(repr, sorted(found)))}; save "
            "the state dict of one of them."
        )
    return found[0]


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
    source: Path | io.BytesIO = file
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if any(entry.file_size > entry.compress_size for entry in archive.infolist()):
                    raise ValueError("it is compressed, which torch.save never does")
        else:  # read whole: from a file Python reserves whatever length a damaged one asks for
            source = io.BytesIO(file.read_bytes())
        with torch.serialization.safe_globals([argparse.Namespace]):  # options, as many programs keep
            return torch.load(source, map_location="cpu", weights_only=True)
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
