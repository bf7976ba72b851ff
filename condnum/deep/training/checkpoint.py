"""Checkpoints: everything that a run needs to go on as if it had never stopped, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from condnum.deep.state_file import read_state, write_state
from condnum.deep.training.monitor import Evaluation

State = dict[str, Tensor]


@dataclass
class RunState:
    """What changes while a run goes on."""

    step: int  # steps done
    net: State  # θ, ω and their statistics, at a checkpoint; the frozen trunk is θ₀'s
    best: Evaluation
    best_net: State
    mean: State = field(default_factory=dict)  # of `net` over the steps, with adaptive weights
    probe: State = field(default_factory=dict)  # w of `imma`; empty for the others
    optimizer: dict[str, Any] = field(default_factory=dict)
    part_weights: dict[str, float] = field(default_factory=dict)  # λ; empty before the first step
    balance: bool = True  # λ are to be found at the next step
    ratio: float = 1.0  # λ_H‖g_H‖ against λ_P‖g_P‖, but for `pull`
    pull: float = 1.0  # its factor until the next evaluation
    loss_weight: float = 1.0
    rate_scale: float = 1.0  # of η
    since_best: int = 0  # evaluations without a better one or a larger RIR_θ0
    record: float = 1.0  # that RIR_θ0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(path: Path, state: RunState, identity: Mapping[str, str]) -> None:
    """Write a checkpoint."""
    content = {name: getattr(state, name) for name in state.__dataclass_fields__}
    write_state(path, identity, content | {"best": asdict(state.best)})


def load_checkpoint(path: Path, identity: Mapping[str, str]) -> RunState | None:
    """Read a checkpoint of the same run."""
    state = read_state(path, identity, "immunization")
    return None if state is None else RunState(**{**state, "best": Evaluation(**state["best"])})
