"""The state of a pre-training after an epoch, in one file that is read without unpickling objects."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from condnum.deep.backbone import Backbone
from condnum.errors import DataFormatError, InvalidInputError
from condnum.files import atomic_write


def save_pretraining(
    path: str | os.PathLike[str] | None,
    recipe: dict[str, Any],
    backbone: Backbone,
    optimizer: torch.optim.Optimizer,
    rows: list[dict[str, float]],
) -> None:
    """Write the state after an epoch, whole or not at all.

    Args:
        path: The file; None writes nothing.
        recipe: What the training is; numbers and strings.
        backbone: As trained so far.
        optimizer: With its moments.
        rows: The history.

    Raises:
        OutputError: It cannot be written.
    """
    if path is None:
        return
    state = {
        "recipe": recipe,
        "model": backbone.model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rows": rows,
    }
    with atomic_write(Path(path)) as temporary:
        torch.save(state, temporary)


def load_pretraining(
    path: str | os.PathLike[str] | None,
    recipe: dict[str, Any],
    backbone: Backbone,
    optimizer: torch.optim.Optimizer,
) -> tuple[int, list[dict[str, float]]]:
    """Continue from a file, if there is one.

    Args:
        path: The file; None continues nothing.
        recipe: What the training is; all of it must agree.
        backbone: Receives the weights.
        optimizer: Receives its moments.

    Returns:
        Epochs done, and their rows.

    Raises:
        DataFormatError: Not a whole checkpoint.
        InvalidInputError: Of another training.
    """
    if path is None or not Path(path).exists():
        return 0, []
    try:
        state = torch.load(Path(path), map_location="cpu", weights_only=True)
        known, rows = state["recipe"], list(state["rows"])
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        ValueError,
        LookupError,  # a KeyError of ours, or of torch's reader on a damaged file
        TypeError,
        zipfile.BadZipFile,
    ) as error:
        raise DataFormatError(
            f"{path} is not a whole checkpoint of a pre-training; remove it to start anew."
        ) from error
    different = [
        f"{name}: {known.get(name, 'nothing')} there, {value} here"
        for name, value in recipe.items()
        if known.get(name) != value
    ]
    if different:
        raise InvalidInputError(
            f"the checkpoint {path} is of another pre-training ({'; '.join(different)}); remove it, or give "
            "another path."
        )
    backbone.model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return len(rows), rows
