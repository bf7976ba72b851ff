"""One theoretical correction: a claim, a counter-example, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Correction:
    """One claim of the paper, a setting in which it can be checked, and what comes out."""

    key: str  # stable name: the anchor of its section
    place: str  # where the paper says it
    claim: str  # what it says
    setting: str  # the counter-example
    claimed: str  # what the claim makes of the setting
    computed: str  # what is so
    correction: str  # what is true instead
    values: Mapping[str, float]  # the numbers of `computed`
    refuted: bool  # whether the computed numbers contradict the claim


def listed(values: Any) -> str:
    """Return numbers as text.

    Examples:
        >>> listed([2.0, 1 / 3])
        '2, 0.3333'
    """
    return ", ".join(f"{value:.4g}" for value in np.asarray(values, dtype=np.float64))


def kappa_text(value: float) -> str:
    """Return a condition number as text.

    Examples:
        >>> kappa_text(float("inf"))
        '∞'
    """
    return f"{value:.4g}" if np.isfinite(value) else "∞"
