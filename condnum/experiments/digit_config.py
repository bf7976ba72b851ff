"""What the digit-pair experiment runs: its settings, one for all pairs and seeds, and a user's choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments.measure import settings_table
from condnum.methods import (
    NAMED_SETTINGS,
    DescentSettings,
    ImmaSettings,
    OptKappaSettings,
    get_method,
    method_names,
)

#: The paper's four methods.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")

#: What runs by default: those, and the closed forms that say how much is possible.
DEFAULT_METHODS = (*PAPER_METHODS, "optimal", "front")

#: Settings by data set, one for all pairs and seeds.
SETTINGS: dict[str, dict[str, DescentSettings]] = {
    "mnist": {
        "ours": NAMED_SETTINGS["mnist"],
        "opt_kappa": OptKappaSettings(
            learning_rate=1e-3, ratio=0.1, steps=30, convention="ridge", record_every=0
        ),
        "imma": ImmaSettings(learning_rate=1e-3, steps=30, record_every=0),
        "r_ill_only": DescentSettings(learning_rate=1e-3, steps=30, record_every=0),
    },
    "digits-8x8": {
        "ours": NAMED_SETTINGS["digits-8x8"],
        "opt_kappa": OptKappaSettings(
            learning_rate=0.005, ratio=0.1, steps=100, convention="ridge", record_every=10
        ),
        "imma": ImmaSettings(learning_rate=0.005, steps=100, record_every=10),
        "r_ill_only": DescentSettings(learning_rate=0.005, steps=100, record_every=10),
    },
}

DataName = Literal["mnist", "digits"]


@dataclass(frozen=True)
class DigitPairsConfig:
    """What to run."""

    dataset: DataName = "digits"  # mnist, or the embedded 8×8 digits
    data: str = "auto"  # for mnist: auto or a folder
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: int = 3  # seeds 0 … seeds − 1
    epochs: int | None = None  # full-batch steps; None: each method's own
    pairs: tuple[tuple[int, int], ...] = ()  # (pretrain, harmful); empty: all 90
    labels: Literal["one_vs_rest", "published"] = "one_vs_rest"
    loss_rows: int = 1000  # rows of the supervised loss's balanced sample
    jobs: int = 1  # worker processes
    scheduler: str = ""  # address of a dask scheduler, instead of `jobs`
    device: str = "cpu"  # where each cell is computed

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.dataset not in ("mnist", "digits"):
            raise UnknownNameError("digit data set", self.dataset, ["mnist", "digits"])
        if self.labels not in ("one_vs_rest", "published"):
            raise UnknownNameError("labels", self.labels, ["one_vs_rest", "published"])
        for method in self.methods:
            if method not in method_names():
                raise UnknownNameError("method", method, method_names())
        for name, least in (("seeds", 1), ("epochs", 1), ("loss_rows", 2), ("jobs", 1)):
            value = getattr(self, name)
            if value is None and name == "epochs":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInputError(f"{name} must be an integer of at least {least}, got {value!r}.")
        for pretrain, harmful in self.pairs:
            if pretrain == harmful or not {pretrain, harmful} <= set(range(10)):
                raise InvalidInputError(
                    f"pair ({pretrain}, {harmful}) is none: give two different digits from 0 to 9."
                )

    @classmethod
    def from_parameters(
        cls,
        *,
        dataset: str,
        data: str,
        methods: str,
        seeds: int,
        epochs: int,
        pairs: str,
        labels: str,
        jobs: int,
        scheduler: str,
        device: str = "cpu",
    ) -> DigitPairsConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Examples:
            >>> DigitPairsConfig.from_parameters(
            ...     dataset="digits", data="auto", methods="ours", seeds=1, epochs=9, pairs="4-7,9-0",
            ...     labels="one_vs_rest", jobs=1, scheduler="").pairs
            ((4, 7), (9, 0))
        """
        names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
        chosen = tuple(read_pair(word) for word in pairs.split(",") if word.strip())
        workers = jobs if jobs else torch.get_num_threads()
        return cls(
            dataset,  # type: ignore[arg-type]
            data,
            names or DEFAULT_METHODS,
            seeds,
            epochs or None,
            chosen,
            labels,  # type: ignore[arg-type]
            jobs=workers,
            scheduler=scheduler,
            device=str(resolve_device(device)),
        )

    def with_controls(self) -> DigitPairsConfig:
        """Return the configuration with both controls added to its methods."""
        return replace(self, methods=tuple(dict.fromkeys((*self.methods, "identity", "initial"))))

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run; None for closed forms."""
        known = SETTINGS["mnist" if self.dataset == "mnist" else "digits-8x8"]
        base = known.get(method, getattr(get_method(method), "defaults", None))
        return base if base is None or self.epochs is None else base.with_overrides(steps=self.epochs)

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method is run, a row per method."""
        return settings_table(self.methods, self.settings)


def read_pair(word: str) -> tuple[int, int]:
    """Read a pair of digits.

    Examples:
        >>> read_pair("4-7")
        (4, 7)
    """
    digits = word.strip().split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"'{word.strip()}' is no pair of digits; write it as 4-7, several as 4-7,9-0."
        )
    return int(digits[0]), int(digits[1])
