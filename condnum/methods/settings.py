"""The settings of a method, checked by their types; what has no effect on a method is ignored."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

import numpy as np

from condnum.errors import InvalidInputError, check_flag, check_integer, check_known


@dataclass(frozen=True)
class Settings:
    """What all settings have."""

    steps: int = 1000  # full batch: a step is an epoch
    record_every: int | None = None  # steps between history rows; None: about 200 in all; 0: no history

    def __post_init__(self) -> None:
        """Read each value by the type of its field: NumPy's numbers and 10.0 for 10 are as good."""
        for name, kind in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _read(name, kind, getattr(self, name)))

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with some settings changed."""
        for name in overrides:
            check_known("setting", name, [one.name for one in fields(self)])
        return replace(self, **overrides)


def _read(name: str, kind: Any, value: Any) -> Any:
    """Return the value of a setting as the type of its field has it, or say what is wrong with it."""
    if get_origin(kind) is Literal:
        check_known(name, value, get_args(kind))
    elif kind is float:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        if not 0 <= number < math.inf or (number == 0 and name == "learning_rate"):
            wanted = "positive number" if name == "learning_rate" else "number of at least 0"
            raise InvalidInputError(f"{name} must be a {wanted}, got {value!r}.")
        return number
    elif kind is bool:
        return check_flag(name, value)
    elif value is not None or kind is int:
        return check_integer(name, value, 0 if name == "record_every" else 1)
    return value


@dataclass(frozen=True)
class DescentSettings(Settings):
    """How a method descends all parts of its gradient together (Eq. 11). Defaults: Adam, balanced λ."""

    optimizer: Literal["adam", "gd"] = "adam"  # Adam (0.9, 0.999, 1e-8) or plain gradient descent
    learning_rate: float = 0.1  # η at step 0
    schedule: Literal["constant", "cosine"] = "cosine"  # cosine: η falls to 0 at the last step
    weights: Literal["balanced", "fixed"] = "balanced"  # where the weights of the parts come from
    ratio: float = 5.0  # balanced: λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0
    loss_weight: float = 1.0  # weight of the supervised loss
    lambda_benign: float = 100.0  # fixed: λ_P (Table 4, house prices)
    lambda_harmful: float = 1e7  # fixed: λ_H (likewise)
    convention: Literal["compact", "ridge"] = "compact"  # of `opt_kappa`: the released code has `ridge`
    inner_steps: int = 1  # of `imma`: steps of the simulated attacker on θ
    inner_rate: float = 0.01  # of `imma`: their size

    @cached_property
    def recorded_steps(self) -> frozenset[int]:
        """Steps at which the history gets a row; by default about 200, half of them log-spaced."""
        if self.record_every is not None:
            return frozenset(range(0, self.steps + 1, self.record_every) if self.record_every else ())
        spaced = np.r_[np.geomspace(1, self.steps, 100), np.linspace(0, self.steps, 101)]
        return frozenset(map(int, spaced.round()))

    def rate(self, step: int) -> float:
        """Return η of a step: constant, or multiplied by `(1 + cos(π·step/steps))/2`."""
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return in one line what has an effect; the gradient's parts decide what the weights weigh."""
        text = f"{self.steps} steps of {self.optimizer}, η = {self.learning_rate:g} ({self.schedule})"
        if self.weights == "fixed" and {"well", "ill"} & set(parts):
            text += f", λ_P = {self.lambda_benign:g}, λ_H = {self.lambda_harmful:g}"
        elif self.weights == "balanced" and len(parts) > 1:
            text += f", λ balanced with ratio {self.ratio:g}"
        if "bilevel" in parts:
            text += f", {self.inner_steps} inner step(s) of size {self.inner_rate:g}"
        if "kappa_harmful" in parts:
            text += f", difference of {self.convention} κ"
        return text + (f", loss weight {self.loss_weight:g}" if "supervised" in parts else "")


#: Settings of `ours` that were searched on the paper's data, by name. On other data they may fail.
PRESETS = {
    "house-prices": DescentSettings(learning_rate=0.3, ratio=60.0, loss_weight=0.1, steps=12_000),
    "mnist": DescentSettings(learning_rate=2.5e-3, ratio=1.0, loss_weight=1e-3, steps=120, record_every=0),
    "digits-8x8": DescentSettings(
        learning_rate=0.03, ratio=20.0, loss_weight=0.1, steps=300, record_every=30
    ),
    "diabetes": DescentSettings(learning_rate=0.1, ratio=5.0, loss_weight=0.1, steps=2000),
}
