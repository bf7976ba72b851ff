"""The choices that separate the authors' release from the corrected protocol, one field each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from condnum.errors import InvalidInputError, UnknownNameError

Protocol = Literal["released", "corrected"]

#: Epochs of the release's own house-price configuration.
RELEASED_EPOCHS = 10


@dataclass(frozen=True)
class ProtocolSwitches:
    """One setting of every switch; the defaults are `protocol="released"`.

    The order of the fields is the order in which the waterfall turns them.

    Examples:
        >>> ProtocolSwitches.preset("released").covariance
        'minibatch'
        >>> ProtocolSwitches(bias="without").turned()
        ('bias',)
    """

    encoders: Literal["per_domain", "union"] = "per_domain"
    normalise: Literal["domain", "table", "kept"] = "domain"
    rows: Literal["first", "all"] = "first"
    labels: Literal["published", "one_vs_rest"] = "published"
    bias: Literal["with", "without"] = "with"
    preconditioner_side: Literal["output", "input"] = "output"
    regularizer_dimension: Literal["image_side", "features"] = "image_side"
    kappa_floor: Literal["absolute", "rank"] = "absolute"
    covariance: Literal["minibatch", "full"] = "minibatch"
    weights: Literal["fixed", "balanced"] = "fixed"
    step_size: Literal["constant", "cosine"] = "constant"
    epochs: int | None = RELEASED_EPOCHS  # None: the corrected protocol's number of updates

    def __post_init__(self) -> None:
        """Refuse positions that a switch does not have."""
        for name, kind in _positions().items():
            value = getattr(self, name)
            if value not in kind:
                raise UnknownNameError(f"position of the switch '{name}'", value, kind)
        if self.epochs is not None and (
            isinstance(self.epochs, bool) or not isinstance(self.epochs, int) or self.epochs < 1
        ):
            raise InvalidInputError(
                f"epochs must be a positive integer, or None for the corrected number of updates, got "
                f"{self.epochs!r}."
            )

    @classmethod
    def preset(cls, protocol: Protocol, *, epochs: int = RELEASED_EPOCHS) -> ProtocolSwitches:
        """Return one of the two named protocols.

        Examples:
            >>> ProtocolSwitches.preset("corrected").is_algorithm_1
            True
        """
        if protocol not in get_args(Protocol):
            raise UnknownNameError("protocol", protocol, get_args(Protocol))
        released = cls(epochs=epochs)
        return released if protocol == "released" else replace(released, **CORRECTED)

    @property
    def is_algorithm_1(self) -> bool:
        """Whether the gradients are those of Algorithm 1 on K itself, whatever data and steps are."""
        names = ("bias", "preconditioner_side", "regularizer_dimension", "kappa_floor", "covariance")
        return all(getattr(self, name) == CORRECTED[name] for name in names)

    def turn(self, name: str) -> ProtocolSwitches:
        """Return a copy with one switch at its corrected position.

        Examples:
            >>> ProtocolSwitches().turn("rows").rows
            'all'
        """
        if name not in CORRECTED:
            raise UnknownNameError("switch", name, SWITCHES)
        return replace(self, **{name: CORRECTED[name]})

    def turned(self) -> tuple[str, ...]:
        """Return the names of the switches at their corrected position, in their order."""
        return tuple(name for name in SWITCHES if getattr(self, name) == CORRECTED[name])

    def as_payload(self) -> dict[str, Any]:
        """Return all positions, for the key of a cell."""
        return asdict(self)


#: Position of each switch in the corrected protocol.
CORRECTED: dict[str, Any] = {
    "encoders": "union",
    "normalise": "kept",
    "rows": "all",
    "labels": "one_vs_rest",
    "bias": "without",
    "preconditioner_side": "input",
    "regularizer_dimension": "features",
    "kappa_floor": "rank",
    "covariance": "full",
    "weights": "balanced",
    "step_size": "cosine",
    "epochs": None,
}

#: Names of all switches, in the order in which they are turned.
SWITCHES = tuple(field.name for field in fields(ProtocolSwitches))


def _positions() -> dict[str, tuple[str, ...]]:
    """Return the positions of every switch that has names for them."""
    hints = get_type_hints(ProtocolSwitches)
    return {name: get_args(hint) for name, hint in hints.items() if name != "epochs"}
