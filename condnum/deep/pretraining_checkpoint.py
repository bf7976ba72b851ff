"""The state of a pre-training after an epoch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from condnum.deep.backbone import Backbone
from condnum.deep.state_file import read_state, write_state


def save_pretraining(
    path: str | os.PathLike[str] | None,
    recipe: dict[str, Any],
    backbone: Backbone,
    optimizer: torch.optim.Optimizer,
    rows: list[dict[str, float]],
) -> None:
    """Write the state after an epoch, whole or not at all."""
    if path is None:
        return
    state = {"model": backbone.model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows}
    write_state(Path(path), recipe, state)


def load_pretraining(
    path: str | os.PathLike[str] | None,
    recipe: dict[str, Any],
    backbone: Backbone,
    optimizer: torch.optim.Optimizer,
) -> tuple[int, list[dict[str, float]]]:
    """Continue from a file, if there is one."""
    state = None if path is None else read_state(Path(path), recipe, "pre-training")
    if state is None:
        return 0, []
    backbone.model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return len(state["rows"]), list(state["rows"])
