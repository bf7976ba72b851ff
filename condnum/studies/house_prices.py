"""Table 1 and Figure 1: linear extractors on two halves of the Ames table, or of the diabetes table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import TaskPair, load_diabetes_tasks, load_house_prices
from condnum.methods import method_names
from condnum.methods.problem import ImmunizationProblem
from condnum.probing.filters import Modes
from condnum.probing.probe import probe_curves, steps_to_record
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, at_least
from condnum.studies.linear import LinearStudy
from condnum.studies.measure import (
    TABLE_1,
    curve,
    limits,
    measured_row,
    seed_summary,
)
from condnum.studies.method_study import MethodNames
from condnum.theory.kappa import unit_scale

#: Steps of the exact line search, as in Fig. 1.
PROBE_STEPS = 20_000

#: Below this many steps in all, starting worker processes takes longer than they save.
PARALLEL_STEPS = 30_000


@dataclass(frozen=True)
class HousePrices(LinearStudy, name="house-prices", notebook="house_prices"):
    """Methods × seeds on one pair of tasks; θ is kept."""

    data: str  # house-prices, embedded, or a path to the CSV or its folder
    methods: MethodNames  # empty: all
    seeds: Count
    steps: Count | None
    features: Literal["published", "clean"]
    rows: Annotated[int, at_least(2)] | None  # first rows of each task; None: all
    device: str
    sets: ClassVar[tuple[str, ...]] = ("house-prices", "embedded")

    def check(self) -> None:
        """List the methods in display order."""
        super().check()
        chosen = tuple(name for name in method_names() if not self.methods or name in self.methods)
        object.__setattr__(self, "methods", chosen)

    def load(self) -> TaskPair:
        """Load the table."""
        if self.data == "embedded":
            pair = load_diabetes_tasks(features=self.features)
            return pair if self.rows is None else pair.head(self.rows)
        return load_house_prices(self.source, features=self.features, rows=self.rows)

    def cells(self, data: TaskPair) -> list[Cell]:
        """List methods, seed by seed."""
        own = {"features": self.features, "rows": self.rows}
        return [self.cell(method, seed, **own) for seed, method in self.runs()]

    def problem(self, data: TaskPair, cell: Cell) -> ImmunizationProblem:
        """Return the two tasks, the same for every cell."""
        return _problem(data, cell["device"])

    def names(self, data: TaskPair, cell: Cell) -> dict[str, str]:
        """Return data set and tasks, as tables have them."""
        tasks = {"benign_task": data.benign_name, "harmful_task": data.harmful_name}
        return {"dataset": data.name, **tasks}

    def compute(self, data: TaskPair, cell: Cell) -> CellResult:
        """Train one extractor and keep it with its history and the limits of its measures."""
        problem, result = self.problem(data, cell), self.immunize(data, cell)
        row = measured_row(problem, result)
        history = {f"history.{name}": values for name, values in result.history.items()}
        kept = history | {"theta": result.theta.cpu().numpy()}
        return CellResult({**row, **limits(problem, result.theta)}, kept)

    def tables(self, data: TaskPair, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Measure every extractor, average over seeds beside Table 1, and collect the curves."""
        table, cells = self.measured(data, results), [CellResult(row, arrays) for _, row, arrays in results]
        return {
            "results": table,
            "summary": seed_summary(table, TABLE_1 if data.name == "house-prices" else {}),
            "curves.parquet": extractor_curves(_problem(data, str(resolve_device(self.device))), cells),
        }

    def order(self, cell: Cell) -> Any:
        """Put closed forms first, then long cells before short ones, so that no worker waits at the end."""
        steps = int(cell.settings.get("steps", 0))
        return steps > 0, -steps

    def processes(self, data: Any, cells: Sequence[Cell]) -> int:
        """Start worker processes if they are worth their start."""
        steps = sum(int(cell.settings.get("steps", 0)) for cell in cells)
        return super().processes(data, cells) if steps >= PARALLEL_STEPS else 1


#: Names of both tasks in tables of curves.
_TASKS = ("benign", "harmful")


@lru_cache(4)
def _problem(pair: TaskPair, device: str) -> ImmunizationProblem:
    """Return the two tasks, built once per process."""
    return ImmunizationProblem.from_pair(pair, device=device)


def extractor_curves(
    problem: ImmunizationProblem, cells: Sequence[CellResult], *, probe_steps: int = PROBE_STEPS
) -> pd.DataFrame:
    """Collect histories, spectra and norm ratios of every cell in one long table."""
    histories = {
        "kappa_benign": ("benign", "kappa"),
        "kappa_harmful": ("harmful", "kappa"),
        "r_well": ("benign", "r_well"),
        "r_ill": ("harmful", "r_ill"),
        "loss": ("benign", "loss"),
    }

    def facts(cell: CellResult, task: str) -> dict[str, Any]:
        return {"method": cell.row["method"], "seed": cell.row["seed"], "task": task}

    frames = [
        curve(facts(cell, task), quantity, cell.arrays["history.step"], cell.arrays[f"history.{name}"])
        for cell in cells
        for name, (task, quantity) in histories.items()
    ]
    thetas = [torch.as_tensor(cell.arrays["theta"]).to(problem.device) for cell in cells]
    for name, task, probed in zip(_TASKS, (problem.benign, problem.harmful), problem.probes, strict=True):
        for cell, theta in zip(cells, thetas, strict=True):
            sigma = task.through(unit_scale(theta)).sigma.square().cpu().numpy()
            frames.append(curve(facts(cell, name), "spectrum", np.arange(1, len(sigma) + 1), sigma))
        if probed is None:
            continue
        modes = [Modes.of(probed.through(theta)) for theta in thetas]
        probe = probe_curves(modes, steps_to_record(None, probe_steps))
        frames += [
            curve(facts(cell, name), quantity, probe.steps, getattr(probe, quantity)[index])
            for index, cell in enumerate(cells)
            for quantity in ("norm_ratio", "excess_loss")
        ]
    return pd.concat(frames, ignore_index=True)
