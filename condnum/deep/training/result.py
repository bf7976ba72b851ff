"""What an immunization of a backbone leaves behind: θ_I, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from condnum.deep.backbone import Backbone
from condnum.deep.image_data import Unreadable
from condnum.deep.training.monitor import Evaluation
from condnum.deep.training.settings import DeepSettings

DeepStopReason = Literal["steps", "early_stopping", "diverged", "cancelled"]


@dataclass(frozen=True, eq=False)
class DeepImmunization:
    """An immunized backbone and how it was obtained.

    `history` has a row for each step, with the parts' values before that step (`step`, `supervised`, and of
    `ours` `well` and `ill`, …, `gradient_norm` in θ, `rate`), and for each evaluation the columns `rir`,
    `harmful_ratio`, `pretrain_ratio` and `accuracy` after it (NaN between evaluations).
    """

    theta_0: Backbone  # snapshot before the first step
    theta_I: Backbone  # ruff: ignore[mixed-case-variable-in-class-scope] - the paper's name; in evaluation mode
    method: str
    seed: int
    settings: DeepSettings
    history: pd.DataFrame
    part_weights: dict[str, float]  # λ of each part
    steps: int  # steps taken
    best: Evaluation  # of the θ that is the result
    start: Evaluation  # of θ₀
    seconds: float  # of the steps and evaluations, over all resumed parts
    stop_reason: DeepStopReason
    unreadable: tuple[Unreadable, ...]  # images that do not decode
    warnings: tuple[str, ...]  # plain sentences; empty if there is nothing to say

    @property
    def best_step(self) -> int:
        """Steps after which the result was taken; 0 means that it is θ₀."""
        return self.best.step

    @property
    def evaluations(self) -> pd.DataFrame:
        """The rows of the history at which θ was evaluated."""
        return self.history.dropna(subset=["rir"]).reset_index(drop=True)
