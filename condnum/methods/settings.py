"""The settings of a method: checked by their types, and refused where they would have no effect."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

import numpy as np

from condnum.errors import InvalidInputError, check_flag, check_integer, check_known


def only_where(default: Any, *, parts: str = "", **modes: str) -> Any:
    """Declare a setting that has an effect only at these other settings, on one of these gradient parts."""
    return field(default=default, metadata={"parts": frozenset(parts.split()), "modes": modes})


@dataclass(frozen=True)
class Settings:
    """What all settings have: their values are checked, and so is that each has an effect."""

    steps: int = 1000  # full batch: a step is an epoch
    record_every: int | None = None  # steps between history rows; None: about 200 in all; 0: no history

    def __post_init__(self) -> None:
        """Read each value by the type of its field: NumPy's numbers and 10.0 for 10 are as good."""
        for name, kind in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _read(name, kind, getattr(self, name)))
        self.refuse_idle()

    def refuse_idle(
        self, parts: Collection[str] | None = None, named: Collection[str] = (), where: str = ""
    ) -> None:
        """Raise for a setting, named or not at its default, without effect here; `parts`: of the gradient.

        All settings at once, as `asdict` gives them, are no choice of each.
        """
        named = () if len(named) == len(fields(self)) else named
        for one in fields(self):
            value, needed = getattr(self, one.name), one.metadata.get("parts", frozenset())
            if value == one.default and one.name not in named:
                continue
            misses = [
                (f"{name}={getattr(self, name)!r}", f"{name}={mode!r}")
                for name, mode in one.metadata.get("modes", {}).items()
                if getattr(self, name) != mode
            ]
            # A weight of 0 asks for nothing that is missing where its part is.
            if parts is not None and needed.isdisjoint(parts) and needed and value != 0:
                misses.append(
                    (where, f"methods and tasks with a gradient part {' or '.join(sorted(needed))}")
                )
            for here, there in misses:
                raise InvalidInputError(
                    f"{one.name}={value!r} has no effect with {here}, only with {there}; leave it out."
                )

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with some settings changed; what loses its effect by that returns to its default."""
        known = {one.name: one for one in fields(self)}
        for name in overrides:
            check_known("setting", name, known)
        idle: dict[str, Any] = {
            name: one.default
            for name, one in known.items()
            for other, mode in one.metadata.get("modes", {}).items()
            if name not in overrides and overrides.get(other, mode) != mode
        }
        changed = replace(self, **idle | overrides)
        changed.refuse_idle(named=overrides)
        return changed


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
    """How a method descends all parts of its gradient together (Eq. 11). Defaults: Adam, balanced λ.

    What has no effect on a method is refused.
    """

    optimizer: Literal["adam", "gd"] = "adam"  # Adam (0.9, 0.999, 1e-8) or plain gradient descent
    learning_rate: float = 0.1  # η at step 0
    schedule: Literal["constant", "cosine"] = "cosine"  # cosine: η falls to 0 at the last step
    # Where the weights of the parts come from.
    weights: Literal["balanced", "fixed"] = only_where(
        "balanced", parts="well ill kappa_pretrain kappa_harmful"
    )
    # λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0
    ratio: float = only_where(5.0, parts="ill kappa_harmful", weights="balanced")
    loss_weight: float = only_where(1.0, parts="supervised")  # weight of the supervised loss
    lambda_pretrain: float = only_where(100.0, parts="well", weights="fixed")  # Table 4, house prices
    lambda_harmful: float = only_where(1e7, parts="ill", weights="fixed")  # likewise
    # Of `opt_kappa`: which κ; the released code has the absolute floor of `ridge`.
    convention: Literal["compact", "ridge"] = only_where("compact", parts="kappa_pretrain kappa_harmful")
    # Of `imma`: steps of the simulated attacker on θ, and their size.
    inner_steps: int = only_where(1, parts="bilevel")
    inner_rate: float = only_where(0.01, parts="bilevel")

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
            text += f", λ_P = {self.lambda_pretrain:g}, λ_H = {self.lambda_harmful:g}"
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
#: What each was searched on: columns D, of mean square about 1, and where they come from.
PRESET_DATA = {
    "house-prices": (79, "load_house_prices(features='published')"),
    "mnist": (784, "standardized MNIST images"),
    "digits-8x8": (64, "standardized images of load_small_digits()"),
    "diabetes": (8, "load_diabetes_tasks()"),
}
