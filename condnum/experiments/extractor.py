"""A trained extractor as tables and figures need it, and as the store of a sweep keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.methods import ImmunizationResult
from condnum.sweep import CellResult
from condnum.sweep.result import Row

_HISTORY = "history."


@dataclass(frozen=True)
class Extractor:
    """θ of one method and seed, with its history."""

    method: str
    seed: int
    theta: NDArray[np.float64]  # (D, D)
    history: dict[str, NDArray[np.float64]]  # column by name
    steps: int
    seconds: float
    stop_reason: str
    explanation: str = ""  # of a method that tunes itself: whether Definition 3.1 is met, and why not

    @classmethod
    def of(cls, result: ImmunizationResult) -> Extractor:
        """Keep of a result what tables and figures need."""
        return cls(
            method=result.method,
            seed=result.seed,
            theta=result.theta.cpu().numpy(),
            history=result.history.columns,
            steps=result.steps,
            seconds=result.seconds,
            stop_reason=result.stop_reason,
            explanation=result.explanation,
        )

    @classmethod
    def from_cell(cls, row: Mapping[str, Any], arrays: Mapping[str, Any]) -> Extractor:
        """Read an extractor from a cell that `to_cell` made."""
        columns = {
            name.removeprefix(_HISTORY): values
            for name, values in arrays.items()
            if name.startswith(_HISTORY)
        }
        return cls(theta=arrays["theta"], history=columns, **row)

    def to_cell(self) -> CellResult:
        """Return the scalars and the arrays that a store keeps."""
        arrays = {f"{_HISTORY}{name}": values for name, values in self.history.items()}
        row: Row = {
            "method": self.method,
            "seed": self.seed,
            "steps": self.steps,
            "seconds": self.seconds,
            "stop_reason": self.stop_reason,
            "explanation": self.explanation,
        }
        return CellResult(row, arrays | {"theta": self.theta})
