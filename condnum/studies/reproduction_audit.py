"""The reproduction audit: from the release's protocol to the corrected one, a switch at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd

from condnum.data import TaskPair
from condnum.errors import InvalidInputError, check_integer
from condnum.methods import PRESETS
from condnum.methods.settings import DescentSettings
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, Study, several
from condnum.studies.house_prices import HousePrices
from condnum.studies.measure import cell_spectra, result_row
from condnum.studies.release import SWITCHES, ProtocolSwitches, compute_cell, descent_settings
from condnum.theory.immunization import immunization_from_spectra
from condnum.theory.spectra import Convention

#: The floor of the release as a ridge ε = 1e-6, and the non-zero spectrum.
_CONVENTIONS: tuple[Convention, ...] = ("ridge", "compact")


@dataclass(frozen=True)
class ProtocolStage:
    """One setting of the switches on the way from the release to the corrected protocol."""

    start: int  # epochs of the release where the way starts
    index: int  # place on the way, 0 for the release
    switch: str  # the switch that was turned last; "released" at the start
    switches: ProtocolSwitches


def read_epochs(word: str | int) -> int:
    """Read a number of epochs; 0 is none."""
    number = int(word) if isinstance(word, str) and word.isdecimal() else word
    return check_integer("a number of epochs, as in 10,100,", number, 0)


Epochs: TypeAlias = Annotated[tuple[int, ...], several(read_epochs)]


@dataclass(frozen=True)
class ReproductionAudit(Study, name="reproduction-audit", notebook="reproduction_audit"):
    """The authors' release turned into the corrected protocol, one choice at a time."""

    data: str  # house-prices, a path to the CSV, or embedded: the diabetes table
    seeds: Count  # seeds 0 … seeds − 1
    epochs: Epochs  # of the release, where a waterfall starts; empty: 10 and 100
    ends: Epochs  # of the release alone; empty: 1000

    def check(self) -> None:
        """Refuse a run without a start."""
        _ = self.base
        self.fill(epochs=(10, 100), ends=(1000,))
        if not any(self.epochs + self.ends):
            raise InvalidInputError("epochs and ends are both 0; give epochs as 10 or 10,100.")

    @property
    def base(self) -> HousePrices:
        """The study of the corrected protocol."""
        options: Any = {"data": self.data, "device": "cpu"}
        return HousePrices(**options)

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches that mean anything here, in the order in which they are turned."""
        return tuple(name for name in SWITCHES if self.base.known != "embedded" or name != "encoders")

    @property
    def corrected(self) -> DescentSettings:
        """The fixed settings of `ours` that were searched on these data."""
        return PRESETS["diabetes" if self.base.known == "embedded" else "house-prices"]

    def load(self) -> TaskPair:
        """Load the data as the corrected protocol has them."""
        return self.base.load()

    def released(self, epochs: int) -> ProtocolSwitches:
        """Return the release's setting; switches that mean nothing on these data stand where they end."""
        switches = ProtocolSwitches(epochs=epochs)
        for name in set(SWITCHES) - set(self.switches):
            switches = switches.turn(name)
        return switches

    def stages(self) -> Iterator[ProtocolStage]:
        """Yield every setting of the study."""
        for start in filter(None, dict.fromkeys(self.epochs + self.ends)):
            switches = self.released(start)
            yield ProtocolStage(start, 0, "released", switches)
            for index, name in enumerate(self.switches if start in self.epochs else (), start=1):
                switches = switches.turn(name)
                yield ProtocolStage(start, index, name, switches)

    def cells(self, data: TaskPair) -> list[Cell]:
        """List every stage, seed by seed; the corrected protocol is one cell, whatever the start."""
        return [
            Cell(
                {"method": stage.switch, "switches": asdict(stage.switches), "seed": seed},
                asdict(descent_settings(stage.switches, data, self.corrected)),
            )
            for seed in range(self.seeds)
            for stage in self.stages()
        ]

    def compute(self, data: TaskPair, cell: Cell) -> CellResult:
        """Train one extractor and keep its spectra."""
        return compute_cell(data, cell)

    def order(self, cell: Cell) -> int:
        """Put long cells first, so that no worker waits at the end."""
        return -int(cell.settings["steps"])

    def tables(self, data: TaskPair, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return a row per stage × seed × convention, and the waterfalls."""
        found = {cell: CellResult(row, arrays) for cell, row, arrays in results}
        stages = [(stage, seed) for seed in range(self.seeds) for stage in self.stages()]
        cells = [
            (stage, seed, found[cell])
            for (stage, seed), cell in zip(stages, self.planned(data), strict=True)
            if cell in found
        ]
        table = stage_results(data.name, cells)
        return {"results": table, "waterfall": waterfall_table(table)}

    def facts(self, data: TaskPair) -> dict[str, str]:
        """Return what the run was made of."""
        described = self.corrected.describe(["well", "ill", "supervised"])
        return {"corrected protocol": described}


#: What a cell tells beside its spectra.
_KEPT = ("rows_pretrain", "rows_harmful", "updates", "seconds", "stop_reason")


def stage_results(dataset: str, cells: Iterable[tuple[ProtocolStage, int, CellResult]]) -> pd.DataFrame:
    """Measure every cell in both conventions, θ as trained, on the tasks of its own setting."""
    rows: list[dict[str, Any]] = []
    for stage, seed, (row, arrays) in cells:
        place = {
            "dataset": dataset,
            "start_epochs": stage.start,
            "index": stage.index,
            "switch": stage.switch,
            "seed": seed,
        }
        for convention in _CONVENTIONS:
            spectra = cell_spectra(row, arrays)
            measured = immunization_from_spectra(spectra, convention=convention, theta_scale="as_trained")
            rows.append(result_row(measured, np.nan, place) | {name: row[name] for name in _KEPT})
    return pd.DataFrame(rows).drop(columns=["theta_scale", "rir_ceiling", "rir_share", "loss_gap"])


def waterfall_table(results: pd.DataFrame) -> pd.DataFrame:
    """Average log₁₀ RIR over seeds, with each stage's change against the one before, seed by seed."""
    logs = {
        key: np.log10(part.set_index("seed")["rir"])
        for key, part in results.groupby(["start_epochs", "index", "convention"], sort=False)
    }
    rows = []
    keys = ["start_epochs", "index", "switch", "convention"]
    for place, part in results.groupby(keys, sort=False):
        start, index, _, convention = place
        own, before = logs[start, index, convention], logs.get((start, index - 1, convention))
        change = pd.Series(dtype=np.float64) if before is None else (own - before).dropna()
        rows.append(
            {
                "dataset": part["dataset"].iloc[0],
                **dict(zip(keys, place, strict=True)),
                "seeds": len(part),
                "rir": 10 ** own.mean(),
                "rir_min": part["rir"].min(),
                "rir_max": part["rir"].max(),
                "log10_rir": own.mean(),
                "log10_rir_std": own.std(ddof=1),
                "change": change.mean(),
                "change_std": change.std(ddof=1),
                "factor": 10 ** change.mean(),
                "immunized": int(part["success"].sum()),
                "updates": int(part["updates"].max()),
            }
        )
    return pd.DataFrame(rows)
