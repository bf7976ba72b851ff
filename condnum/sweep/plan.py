"""A cell of a sweep: what to compute, small enough to travel, with a key that names its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from condnum.errors import InvalidInputError
from condnum.sweep.data import DataReference


@dataclass(frozen=True, eq=False)
class CellPlan:
    """One cell: an experiment, its coordinates in the grid, and all else the result depends on.

    Two plans are equal when their keys are. The key does not see where the data lie: a data set
    that moved, or lies elsewhere on another machine, is the same as long as its checksum is.

    Attributes:
        experiment: Name of the experiment, such as "digit-pairs".
        payload: Coordinates of the cell: method, seed, digits; JSON scalars, or lists of them.
        settings: Settings of the method; JSON scalars, lists or dictionaries.
        data_checksum: SHA-256 of the data; "" if there are none.
        code_version: Raised by hand when a change of code changes results.
        data: Where a worker finds the data; None if it needs none or knows.

    Raises:
        InvalidInputError: Something that JSON does not hold, or two different checksums.

    Examples:
        >>> plan = CellPlan("digit-pairs", {"method": "ours", "seed": 0}, {"steps": 9}, "ab12", "1")
        >>> plan.label
        'digit-pairs: method=ours, seed=0'
        >>> plan.short_label
        'ours, seed 0'
        >>> plan == CellPlan("digit-pairs", {"seed": 0, "method": "ours"}, {"steps": 9}, "ab12", "1")
        True
        >>> plan == CellPlan("digit-pairs", {"method": "ours", "seed": 0}, {"steps": 9}, "ab12", "2")
        False
    """

    experiment: str
    payload: dict[str, Any]
    settings: dict[str, Any]
    data_checksum: str
    code_version: str
    data: DataReference | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Keep copies of the dictionaries, as JSON gives them back, so that the key stays what it is."""
        for name in ("experiment", "data_checksum", "code_version"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise InvalidInputError(f"{name} of a cell must be text, got {value!r}; use str(…).")
        for name in ("payload", "settings"):
            object.__setattr__(self, name, _as_json(name, getattr(self, name)))
        if self.data is not None and self.data.checksum != self.data_checksum:
            raise InvalidInputError(
                f"data_checksum {self.data_checksum!r} is not that of the data reference, "
                f"{self.data.checksum!r}; give data_checksum=reference.checksum."
            )

    @property
    def key(self) -> str:
        """SHA-256 (64 hexadecimal digits) of all that the result depends on."""
        parts = [self.experiment, self.payload, self.settings, self.data_checksum, self.code_version]
        return hashlib.sha256(_canonical(parts).encode()).hexdigest()

    @property
    def short_label(self) -> str:
        """Method, pair and seed, those that the cell has: for a line of progress."""
        words = [str(self.payload.get("method", self.experiment))]
        if {"pretrain", "harmful"} <= self.payload.keys():
            words.append(f"{self.payload['pretrain']}-{self.payload['harmful']}")
        if "seed" in self.payload:
            words.append(f"seed {self.payload['seed']}")
        return ", ".join(words)

    @property
    def label(self) -> str:
        """The cell in words, for messages."""
        words = ", ".join(f"{name}={value}" for name, value in self.payload.items())
        return f"{self.experiment}: {words}" if words else self.experiment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CellPlan) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _canonical(value: Any) -> str:
    """Return JSON that is the same for the same value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _as_json(name: str, value: Any) -> Any:
    """Return a copy of a dictionary as JSON gives it back, or say what JSON does not hold."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name} of a cell must be a dictionary, got {value!r}.")
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidInputError(f"{name} of a cell must have text for keys, got {key!r}; use str(…).")
        try:
            _canonical(item)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"{name}[{key!r}] of a cell is {item!r}, which JSON does not hold ({error}); "
                "use text, finite numbers, booleans, None, or lists and dictionaries of these."
            ) from error
    return json.loads(json.dumps(dict(value)))  # tuples become lists; the order of the keys is kept
