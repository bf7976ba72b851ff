"""The state of an unfinished training in one file: written whole, read without unpickling objects."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from condnum.deep.weights import DAMAGED, load_tensors
from condnum.errors import DataFormatError, InvalidInputError
from condnum.files import atomic_write

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
