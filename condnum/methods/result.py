"""What an immunization run leaves behind: θ, ω, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from condnum.immunization import Immunization
from condnum.methods.settings import DescentSettings

if TYPE_CHECKING:
    import pandas as pd

StopReason = Literal["steps", "tolerance", "settled", "cancelled", "diverged", "closed_form"]


@dataclass(frozen=True)
class History:
    """One row per recorded step, as equally long arrays, from θ₀ to the result; empty if unwanted."""

    columns: dict[str, NDArray[np.float64]]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """Return a column: step, loss, r_well, r_ill, kappa_pretrain, kappa_harmful or norm_<part>."""
        return self.columns[name]

    def __len__(self) -> int:
        """Return the number of recorded steps."""
        return len(self.columns.get("step", ()))

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a table.

        Returns:
            A DataFrame with one row per recorded step.
        """
        import pandas as pd

        return pd.DataFrame(self.columns)


@dataclass(frozen=True)
class ImmunizationResult:
    """An immunized extractor and how it was obtained."""

    theta: Tensor  # (D, D_hid)
    omega: Tensor | None  # (D_hid, m) pre-training probe, None without supervised loss
    method: str
    seed: int
    settings: DescentSettings | None  # None for controls and closed forms
    history: History
    part_weights: dict[str, float]  # λ of each gradient part
    steps: int  # steps taken
    seconds: float
    converged: bool  # True only if the tolerance was reached, RIR settled, or the answer is in closed form
    stop_reason: StopReason
    counts: dict[str, int] = field(default_factory=dict)  # Lanczos steps, fall-backs to eigh, …
    verdict: Immunization | None = None  # of θ, compact convention; `auto` only
    ceiling: float | None = None  # RIR_max beside it
    explanation: str = ""  # whether Definition 3.1 is met, what is possible, what was chosen and why


@dataclass(frozen=True)
class Progress:
    """What a callback is told at each recorded step."""

    method: str
    seed: int
    step: int
    steps: int
    record: dict[str, float]  # the history's row
