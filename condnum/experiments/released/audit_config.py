"""What the reproduction audit runs: data, seeds, where the waterfalls start; and its stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError
from condnum.experiments.released.data_sets import AuditData
from condnum.experiments.released.switches import ProtocolSwitches
from condnum.sweep import CellPlan

#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "2"

#: Other values of the ε of the regularised solve that are shown beside the release's.
OTHER_RIDGES = (1e-6, 1e-2, 0.1)

#: Without a waterfall: epochs of the release on the house prices, those of the paper's Table 4.
LONG_EPOCHS = (1000,)

Path = Literal["cumulative", "alone", "released", "ridge"]


@dataclass(frozen=True)
class Stage:
    """One setting of the switches in the study."""

    path: Path  # in one waterfall; alone; the release at other epochs; with another ε of its solve
    start: int  # epochs of the release that it is compared with
    index: int  # place on its path, 0 for the release
    switch: str  # the switch that was turned last; "released" at the start; the ε
    switches: ProtocolSwitches
    ridge: float | None = None  # ε of the solve on the output side; None: the release's


@dataclass(frozen=True)
class AuditConfig:
    """What to run."""

    data: AuditData
    seeds: int = 5  # seeds 0 … seeds − 1
    epochs: tuple[int, ...] = ()  # of the release, where a waterfall starts; empty: the data set's own
    ends: tuple[int, ...] = ()  # of the release alone

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        for name, values in (("seeds", (self.seeds,)), ("epochs", self.epochs), ("ends", self.ends)):
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise InvalidInputError(f"{name} must be an integer of at least 1, got {value!r}.")
        if not self.epochs:
            object.__setattr__(self, "epochs", self.data.default_epochs)

    @classmethod
    def from_parameters(cls, *, data: str, source: str, seeds: int, epochs: str, ends: str) -> AuditConfig:
        """Build a configuration from notebook parameters.

        Examples:
            >>> config = AuditConfig.from_parameters(
            ...     data="embedded", source="auto", seeds=2, epochs="", ends="")
            >>> config.epochs, config.ends
            ((10, 100), ())
        """
        chosen = AuditData.parse(data, source)
        starts, last = _numbers("epochs", epochs), _numbers("ends", ends)
        if not ends.strip() and chosen.name == "house-prices":
            last = LONG_EPOCHS
        return cls(chosen, seeds, starts, () if last == (0,) else last)

    def released(self, epochs: int) -> ProtocolSwitches:
        """Return the release's setting; switches that mean nothing on these data stand where they end."""
        switches = ProtocolSwitches.preset("released", epochs=epochs)
        for name in set(switches.as_payload()) - set(self.data.switches):
            switches = switches.turn(name)
        return switches

    def stages(self) -> Iterator[Stage]:
        """Yield every setting of the study; the same one may occur under several names."""
        for start in self.epochs:
            switches = self.released(start)
            yield Stage("cumulative", start, 0, "released", switches)
            for index, name in enumerate(self.data.switches, start=1):
                switches = switches.turn(name)
                yield Stage("cumulative", start, index, name, switches)
            for index, name in enumerate(self.data.switches, start=1):
                yield Stage("alone", start, index, name, self.released(start).turn(name))
            for index, ridge in enumerate(OTHER_RIDGES):
                yield Stage("ridge", start, index, f"ε = {ridge:g}", self.released(start), ridge)
        for epochs in self.ends:
            yield Stage("released", epochs, 0, "released", self.released(epochs))

    def _ridges(self, stage: Stage) -> tuple[float, float]:
        """Return ε of R_well and R_ill; zeros where there is no such solve."""
        if stage.switches.preconditioner_side == "input":
            return 0.0, 0.0
        return self.data.ridges if stage.ridge is None else (stage.ridge, stage.ridge)

    def _name(self, switches: ProtocolSwitches) -> str:
        """Return what progress calls a setting; the same for equal ones."""
        turned = [name for name in switches.turned() if name in self.data.switches]
        if len(turned) == len(self.data.switches):
            return "corrected"
        if len(turned) <= 1:
            return "".join(turned) or "released"
        return f"{len(turned)} of {len(self.data.switches)} switches"

    def plans(self, data: TaskPair | Digits) -> list[tuple[Stage, CellPlan]]:
        """List the cells, seed by seed."""
        reference = self.data.reference(data)
        listed = []
        for seed in range(self.seeds):
            for stage in self.stages():
                payload = {
                    "method": self._name(stage.switches),  # for the words of progress
                    "data": self.data.label,
                    "switches": stage.switches.as_payload(),
                    "ridges": self._ridges(stage),
                    "seed": seed,
                }
                settings = asdict(self.data.settings(stage.switches, data))
                plan = CellPlan(
                    "reproduction-audit", payload, settings, reference.checksum, CODE_VERSION, data=reference
                )
                listed.append((stage, plan))
        return listed


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Read a list of whole numbers."""
    try:
        return tuple(dict.fromkeys(int(word) for word in text.split(",") if word.strip()))
    except ValueError:
        raise InvalidInputError(
            f"{name}='{text}' is no list of whole numbers; write it as 10 or 10,100."
        ) from None
