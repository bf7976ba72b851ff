"""Checkpoints: everything that a run needs to go on as if it had never stopped, in one file.

The file holds tensors, numbers and strings, is written whole or not at all, and is read with
`weights_only=True`. It knows the run that it belongs to, and another run refuses it.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condnum.deep.training.monitor import Evaluation
from condnum.errors import DataFormatError, InvalidInputError
from condnum.files import atomic_write

#: Raised when the contents change.
VERSION = 1

State = dict[str, Tensor]


@dataclass
class RunState:
    """What changes while a run goes on."""

    step: int  # steps done
    net: State  # θ, ω and their statistics; the frozen trunk is θ₀'s
    probe: State  # w of `imma`; empty for the others
    optimizer: dict[str, Any]
    part_weights: dict[str, float]
    best: Evaluation
    best_net: State
    since_best: int = 0  # evaluations without a better one
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(path: Path, state: RunState, identity: Mapping[str, str]) -> None:
    """Write a checkpoint.

    Args:
        path: The file; one that is there is replaced.
        state: Of the run.
        identity: What the run is, in words.

    Raises:
        OutputError: It cannot be written.
    """
    content = {f: getattr(state, f) for f in state.__dataclass_fields__} | {"best": asdict(state.best)}
    with atomic_write(path) as temporary, open(temporary, "wb") as stream:
        torch.save({"version": VERSION, "identity": dict(identity), "state": content}, stream)


def load_checkpoint(path: Path, identity: Mapping[str, str]) -> RunState | None:
    """Read a checkpoint of the same run.

    Args:
        path: The file.
        identity: What the run is; all of it must agree.

    Returns:
        Its state, on the CPU; None if there is no file.

    Raises:
        DataFormatError: Not a whole checkpoint.
        InvalidInputError: Of another run; the message says in what it differs.
    """
    if not path.exists():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version, known, state = content["version"], content["identity"], content["state"]
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        zipfile.BadZipFile,
    ) as error:
        raise DataFormatError(
            f"{path} is not a whole checkpoint of an immunization; remove it to start anew."
        ) from error
    if version != VERSION:
        raise DataFormatError(
            f"{path} is a checkpoint of format {version}, this program writes {VERSION}; "
            "remove it to start anew."
        )
    different = [
        f"{name}: {known.get(name, 'nothing')} there, {value} here"
        for name, value in identity.items()
        if known.get(name) != value
    ]
    if different:
        raise InvalidInputError(
            f"the checkpoint {path} is of another run ({'; '.join(different)}); give another path, or "
            "remove it."
        )
    return RunState(**{**state, "best": Evaluation(**state["best"])})
