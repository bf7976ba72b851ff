"""The house-price experiment (Sec. 5.1, Table 1, Fig. 1), and the same on the embedded table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias

import pandas as pd

from condnum.arrays import resolve_device
from condnum.data import TaskPair, load_diabetes_tasks, load_house_prices
from condnum.methods import (
    PRESETS,
    DescentSettings,
    ImmaSettings,
    ImmunizationResult,
    OptKappaSettings,
    get_method,
    immunize,
    method_names,
)
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.cells import Cell, CellResult, cached
from condnum.studies.executors import Executor
from condnum.studies.measure import (
    MEASURE_COLUMNS,
    SPECTRA_TABLE,
    TABLE_1,
    extractor_cell,
    extractor_curves,
    report_step,
    rir_ceilings,
    seed_summary,
    settings_table,
    spectra_table,
    spectral_rows,
)
from condnum.studies.study import Count, FinishedCell, Study, at_least, some_of

#: Settings of this experiment on the paper's table, one for all seeds, chosen on seeds 100–109 (reported:
#: 0, 1, …). On another table `ours` is self-tuned: what was searched on one fails on the next.
HOUSE_SETTINGS: dict[str, DescentSettings] = {
    "ours": PRESETS["house-prices"],
    # Balanced, on the absolute floor of the released code: the plain difference of compact κ's, as
    # printed in the paper, is dominated by κ_H and stays near RIR 1.
    "opt_kappa": OptKappaSettings(learning_rate=0.005, steps=100, ratio=0.1, convention="ridge"),
    "imma": ImmaSettings(learning_rate=0.005, steps=1000),
    "r_ill_only": DescentSettings(learning_rate=0.005, steps=1000),
}

#: Below this many steps in all, starting worker processes takes longer than they save.
PARALLEL_STEPS = 30_000

#: Methods of the registry.
MethodNames: TypeAlias = Annotated[tuple[str, ...], some_of("method", method_names)]


@dataclass(frozen=True)
class HousePrices(Study, name="house-prices", version="2"):
    """Table 1 and Figure 1: linear extractors on two halves of the Ames table."""

    data: str = "auto"  # auto, embedded, or a path to the CSV or its folder
    methods: MethodNames = ()  # empty: all
    seeds: Count = 5  # seeds 0 … seeds − 1
    epochs: Count | None = None  # full-batch steps; None: each method's own
    features: Literal["published", "clean"] = "published"
    rows: Annotated[int, at_least(2)] | None = None  # first rows of each task; None: all
    device: str = "auto"

    def check(self) -> None:
        """Refuse a device that is not there."""
        resolve_device(self.device)

    @property
    def chosen_methods(self) -> tuple[str, ...]:
        """The methods to run, in display order."""
        return tuple(name for name in method_names() if not self.methods or name in self.methods)

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run; None for closed forms."""
        base: Any = get_method(method).defaults
        if method != "ours" or self.data != "embedded":
            base = HOUSE_SETTINGS.get(method, base)
        return base if base is None or self.epochs is None else base.with_overrides(steps=self.epochs)

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method is run, a row per method."""
        return settings_table(self.chosen_methods, self.settings)

    def load(self) -> TaskPair:
        """Load the table."""
        if self.data == "embedded":
            pair = load_diabetes_tasks(features=self.features)
            return pair if self.rows is None else pair.head(self.rows)
        return load_house_prices(self.data, features=self.features, rows=self.rows)

    def cells(self, data: TaskPair) -> list[Cell]:
        """List methods, seed by seed."""
        return [self.cell(method, seed) for seed in range(self.seeds) for method in self.chosen_methods]

    def cell(self, method: str, seed: int) -> Cell:
        """Return the cell of a method and a seed."""
        settings = self.settings(method)
        common = {"features": self.features, "rows": self.rows, "device": str(resolve_device(self.device))}
        return Cell({"method": method, "seed": seed, **common}, asdict(settings) if settings else {})

    def compute(self, data: TaskPair, cell: Cell) -> CellResult:
        """Train one extractor and keep it with its spectra."""
        return extractor_cell(self.problem(data), self.immunize(data, cell))

    def immunize(self, data: TaskPair, cell: Cell) -> ImmunizationResult:
        """Run the method of a cell."""
        options: dict[str, Any] = {"seed": cell["seed"], "callback": report_step, **cell.settings}
        return immunize(self.problem(data), cell["method"], **options)

    def problem(self, data: TaskPair, cell: Cell | None = None) -> ImmunizationProblem:
        """Return the two tasks, the same for every cell, built once per process."""
        device = resolve_device(self.device)
        key = ("house-problem", device, data.checksum, self.features, self.rows)
        return cached(key, lambda: ImmunizationProblem.from_pair(data, device=device))

    def tables(self, data: TaskPair, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Measure every extractor, average over seeds beside Table 1, and collect the curves."""
        problem, cells = self.problem(data), [CellResult(row, arrays) for _, row, arrays in results]
        K_P, K_H = problem.pretrain.covariance, problem.harmful.covariance
        names = {
            "dataset": data.name,
            "pretrain_task": data.pretrain_name,
            "harmful_task": data.harmful_name,
        }
        rows = [
            line
            for row, arrays in cells
            for line in spectral_rows(row, arrays, rir_ceilings(K_P, K_H, arrays["theta"]), names)
        ]
        table = pd.DataFrame(rows, columns=MEASURE_COLUMNS)
        return {
            "results": table,
            "summary": seed_summary(table, TABLE_1 if data.name == "house-prices" else {}),
            "curves.parquet": extractor_curves(problem, cells),
            SPECTRA_TABLE: spectra_table(cells),
        }

    def order(self, cell: Cell) -> Any:
        """Put closed forms first, then long cells before short ones, so that no worker waits at the end."""
        steps = int(cell.settings.get("steps", 0))
        return steps > 0, -steps

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Start worker processes if they are worth their start."""
        steps = sum(int(cell.settings.get("steps", 0)) for cell in cells)
        on_cpu = resolve_device(self.device).type == "cpu"
        several = on_cpu and steps >= PARALLEL_STEPS
        return super().executor(data, cells, jobs or (0 if several else 1), scheduler)
