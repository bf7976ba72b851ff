"""Settings of a descent method: frozen, validated at once, changed by `with_overrides`."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from condnum.errors import InvalidInputError, UnknownNameError

#: What `auto` leaves to the caller.
_HEEDED = {"auto", "steps", "record_every"}


@dataclass(frozen=True)
class DescentSettings:
    """How a method descends. Defaults: full batch, Adam, cosine decay, balanced λ.

    `auto=True` (for `ours`) leaves the choice to `condnum.methods.auto`: only `steps`, the most that may be
    taken, and `record_every` are then heeded, and giving another setting is an error.
    """

    optimizer: Literal["adam", "gd"] = "adam"  # Adam (0.9, 0.999, 1e-8) or plain gradient descent
    learning_rate: float = 0.1  # η at step 0
    schedule: Literal["constant", "cosine"] = "cosine"  # cosine: η falls to 0 at the last step
    steps: int = 1000  # full batch: a step is an epoch
    weights: Literal["balanced", "fixed"] = "balanced"  # where λ_P and λ_H come from
    ratio: float = 5.0  # balanced: λ_P = 1/‖g_P‖, λ_H = ratio/‖g_H‖ at step 0
    loss_weight: float = 1.0  # weight of the supervised loss
    lambda_pretrain: float = 100.0  # fixed: λ_P (Table 4, house prices)
    lambda_harmful: float = 1e7  # fixed: λ_H (Table 4, house prices)
    batch_size: int | None = None  # rows a step and task; None is the full batch
    tolerance: float = 0.0  # stop once the weighted θ-gradient is below this share of its start
    record_every: int | None = None  # steps between history rows; None: about 200 in all; 0: no history
    auto: bool = False  # η, λ_P, λ_H and the number of steps follow from the spectra

    def __post_init__(self) -> None:
        """Refuse values that cannot mean anything."""
        for name, choices in (
            ("optimizer", ("adam", "gd")),
            ("schedule", ("constant", "cosine")),
            ("weights", ("balanced", "fixed")),
        ):
            if getattr(self, name) not in choices:
                raise UnknownNameError(name, getattr(self, name), choices)
        self._require_positive("learning_rate", "ratio", "loss_weight", "lambda_pretrain", "lambda_harmful")
        self._require_counts("steps", "batch_size")
        if self.record_every != 0:
            self._require_counts("record_every")
        if self.auto:
            given = [
                field.name
                for field in fields(self)
                if field.name not in _HEEDED and getattr(self, field.name) != field.default
            ]
            if given:
                raise InvalidInputError(
                    f"auto=True chooses {', '.join(given)} by itself: leave that out, or pass auto=False."
                )
        if not 0 <= self.tolerance < 1:
            raise InvalidInputError(f"tolerance must lie in [0, 1), got {self.tolerance}.")

    @cached_property
    def recorded_steps(self) -> frozenset[int]:
        """Steps at which the history gets a row: every `record_every`, or about 200 of them; none at 0.

        Those 200 are half log-spaced, for the fast start, and half evenly spaced, for the long end.
        """
        if self.record_every == 0:
            return frozenset()
        if self.record_every is not None:
            return frozenset(range(0, self.steps + 1, self.record_every))
        log_spaced = np.geomspace(1, self.steps, 100).round().astype(int)
        even = np.linspace(0, self.steps, 101).round().astype(int)
        return frozenset(map(int, np.concatenate([log_spaced, even])))

    def rate(self, step: int) -> float:
        """Return η of a step.

        Args:
            step: From 0.

        Returns:
            `learning_rate`, in the cosine schedule multiplied by `(1 + cos(π·step/steps))/2`.

        Examples:
            >>> settings = DescentSettings(learning_rate=0.1, steps=4)
            >>> [round(settings.rate(step), 6) for step in (0, 2)]
            [0.1, 0.05]
        """
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def with_overrides(self, **overrides: Any) -> Self:
        """Return a copy with some settings changed.

        Args:
            **overrides: New values by field name.

        Returns:
            Settings of the same class. Naming a setting that `auto` would choose turns `auto` off.

        Raises:
            UnknownNameError: There is no such setting.

        Examples:
            >>> DescentSettings().with_overrides(steps=3).steps
            3
            >>> DescentSettings(auto=True).with_overrides(learning_rate=0.1).auto
            False
        """
        names = [field.name for field in fields(self)]
        for name in overrides:
            if name not in names:
                raise UnknownNameError("setting", name, names)
        if self.auto and not (overrides.get("auto", True) and set(overrides) <= _HEEDED):
            overrides = {"steps": type(self).steps, "auto": False} | overrides
        return replace(self, **overrides)

    def describe(self, parts: Collection[str] = ()) -> str:
        """Return the settings in one line, leaving out what has no effect.

        Args:
            parts: The gradient parts of the method, which decide what the weights weigh.

        Returns:
            A phrase for tables.

        Examples:
            >>> DescentSettings(steps=100).describe(["well", "ill", "supervised"])
            '100 steps of adam, η = 0.1 (cosine), full batch, λ balanced with ratio 5, loss weight 1'
            >>> DescentSettings(steps=100, schedule="constant", batch_size=64).describe()
            '100 steps of adam, η = 0.1 (constant), 64 rows a step'
        """
        if self.auto:
            return f"auto: η, λ and the number of steps (at most {self.steps}) follow from the spectra"
        batch = "full batch" if self.batch_size is None else f"{self.batch_size} rows a step"
        text = (
            f"{self.steps} steps of {self.optimizer}, η = {self.learning_rate:g} ({self.schedule}), {batch}"
        )
        if self.weights == "fixed" and {"well", "ill"} & set(parts):
            text += f", λ_P = {self.lambda_pretrain:g}, λ_H = {self.lambda_harmful:g}"
        elif self.weights == "balanced" and len(parts) > 1:
            text += f", λ balanced with ratio {self.ratio:g}"
        return text + (f", loss weight {self.loss_weight:g}" if "supervised" in parts else "")

    def _require_positive(self, *names: str) -> None:
        """Raise unless each named setting is a positive finite number."""
        for name in names:
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InvalidInputError(f"{name} must be a positive number, got {value!r}.")

    def _require_counts(self, *names: str) -> None:
        """Raise unless each named setting is a positive integer (or None where that is allowed)."""
        for name in names:
            value = getattr(self, name)
            if value is None and name != "steps":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(f"{name} must be a positive integer, got {value!r}.")


#: Fixed settings of `ours` by name: the former default, and those that the paper's experiments were tuned to.
#: On other data they may fail without a word: see `auto`.
NAMED_SETTINGS = {
    "fixed": DescentSettings(),
    "house-prices": DescentSettings(learning_rate=0.3, ratio=60.0, loss_weight=0.1, steps=12_000),
    "mnist": DescentSettings(learning_rate=2.5e-3, ratio=1.0, loss_weight=1e-3, steps=120, record_every=0),
    "digits-8x8": DescentSettings(
        learning_rate=0.03, ratio=20.0, loss_weight=0.1, steps=300, record_every=30
    ),
    "diabetes": DescentSettings(learning_rate=0.1, ratio=5.0, loss_weight=0.1, steps=2000),
}
