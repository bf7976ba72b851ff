"""What the house-price experiment runs: its settings, one for all seeds, and a user's choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from condnum.arrays import resolve_device
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import (
    NAMED_SETTINGS,
    DescentSettings,
    ImmaSettings,
    OptKappaSettings,
    get_method,
    method_names,
)

#: Settings of this experiment on the paper's table, one for all seeds, chosen on seeds 100–109 (reported:
#: 0, 1, …). On another table `ours` tunes itself: what was searched on one fails on the next.
SETTINGS: dict[str, DescentSettings] = {
    "ours": NAMED_SETTINGS["house-prices"],
    # Balanced, on the absolute floor of the released code: the plain difference of compact κ's, as
    # printed in the paper, is dominated by κ_H and stays near RIR 1.
    "opt_kappa": OptKappaSettings(learning_rate=0.005, steps=100, ratio=0.1, convention="ridge"),
    "imma": ImmaSettings(learning_rate=0.005, steps=1000),
    "r_ill_only": DescentSettings(learning_rate=0.005, steps=1000),
}


@dataclass(frozen=True)
class HousePricesConfig:
    """What to run."""

    data: str = "auto"  # auto, embedded, or a path to the CSV or its folder
    methods: tuple[str, ...] = ()  # empty: all
    seeds: int = 5  # seeds 0 … seeds − 1
    epochs: int | None = None  # full-batch steps; None: each method's own
    features: Literal["published", "clean"] = "published"
    rows: int | None = None  # first rows of each task; None: all
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        for method in self.methods:
            if method not in method_names():
                raise UnknownNameError("method", method, method_names())
        if self.features not in ("published", "clean"):
            raise UnknownNameError("feature set", self.features, ["published", "clean"])
        for name, least in (("seeds", 1), ("epochs", 1), ("rows", 2)):
            value = getattr(self, name)
            if value is None and name != "seeds":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
        resolve_device(self.device)

    @classmethod
    def from_parameters(
        cls, *, data: str, methods: str, seeds: int, epochs: int, features: str, rows: int, device: str
    ) -> HousePricesConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Examples:
            >>> HousePricesConfig.from_parameters(
            ...     data="embedded", methods="ours, identity", seeds=1, epochs=0, features="clean",
            ...     rows=0, device="cpu").chosen_methods
            ('ours', 'identity')
        """
        names = tuple(name.strip() for name in methods.split(",") if name.strip())
        return cls(data, names, seeds, epochs or None, features, rows or None, device)  # type: ignore[arg-type]

    @property
    def chosen_methods(self) -> tuple[str, ...]:
        """The methods to run, in display order."""
        return tuple(name for name in method_names() if not self.methods or name in self.methods)

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run; None for closed forms."""
        base = getattr(get_method(method), "defaults", None)
        if method != "ours" or self.data != "embedded":
            base = SETTINGS.get(method, base)
        if base is None or self.epochs is None:
            return base
        return base.with_overrides(steps=self.epochs)
