"""The digit-pair experiment (Sec. 5.1, Table 2, Fig. 2): methods × seeds × 90 ordered pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch

from condnum.arrays import resolve_device
from condnum.data import Digits, load_mnist_images, load_small_digits
from condnum.errors import InvalidInputError
from condnum.methods import (
    PRESETS,
    DescentSettings,
    ImmaSettings,
    ImmunizationResult,
    OptKappaSettings,
    get_method,
    immunize,
)
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.cells import Arrays, Cell, CellResult, cached
from condnum.studies.digit_cells import (
    CEILING_RIDGES,
    DigitBatches,
    ceilings,
    cell_problem,
    measure_cell,
    ridge_ceiling_column,
)
from condnum.studies.executors import BatchExecutor, Executor
from condnum.studies.house_prices import MethodNames
from condnum.studies.measure import (
    MEASURE_COLUMNS,
    SPECTRA_TABLE,
    TABLE_2,
    Published,
    seed_summary,
    settings_table,
    spectra_table,
    spectral_rows,
)
from condnum.studies.run_verdicts import DEFAULT_RTOL, spectral_verdicts
from condnum.studies.study import Count, FinishedCell, Study, at_least
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol

#: The paper's four methods.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")

#: What runs by default: those, and the closed forms that say how much is possible.
DEFAULT_METHODS = (*PAPER_METHODS, "max_rir", "pareto")

#: Settings by data set, one for all pairs and seeds.
DIGIT_SETTINGS: dict[str, dict[str, DescentSettings]] = {
    "mnist": {
        "ours": PRESETS["mnist"],
        "opt_kappa": OptKappaSettings(
            learning_rate=1e-3, ratio=0.1, steps=30, convention="ridge", record_every=0
        ),
        "imma": ImmaSettings(learning_rate=1e-3, steps=30, record_every=0),
        "r_ill_only": DescentSettings(learning_rate=1e-3, steps=30, record_every=0),
    },
    "digits-8x8": {
        "ours": PRESETS["digits-8x8"],
        "opt_kappa": OptKappaSettings(
            learning_rate=0.005, ratio=0.1, steps=100, convention="ridge", record_every=10
        ),
        "imma": ImmaSettings(learning_rate=0.005, steps=100, record_every=10),
        "r_ill_only": DescentSettings(learning_rate=0.005, steps=100, record_every=10),
    },
}


def read_pair(word: str) -> tuple[int, int]:
    """Read a pair of digits."""
    digits = word.strip().split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"expected a pair of digits such as 4-7, or several as in 4-7,9-0; got '{word.strip()}'."
        )
    if digits[0] == digits[1]:
        raise InvalidInputError(f"pair '{word.strip()}': give two different digits from 0 to 9.")
    return int(digits[0]), int(digits[1])


def read_pairs(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """Read pairs of digits from a text such as `4-7,9-0`, or take them as they are; check of a field."""
    if isinstance(value, str):
        return tuple(dict.fromkeys(read_pair(word) for word in value.split(",") if word.strip()))
    return tuple(dict.fromkeys(read_pair("-".join(map(str, pair))) for pair in value))


Pairs: TypeAlias = Annotated[tuple[tuple[int, int], ...], read_pairs]


@dataclass(frozen=True)
class DigitPairs(Study, name="digit-pairs", version="3"):
    """Table 2 and Figure 2: linear extractors on pairs of digits, MNIST or the embedded 8×8 ones."""

    dataset: Literal["mnist", "digits"] = "digits"
    data: str = "auto"  # for mnist: auto or a folder
    methods: MethodNames = DEFAULT_METHODS
    seeds: Count = 3  # seeds 0 … seeds − 1
    epochs: Count | None = None  # full-batch steps; None: each method's own
    pairs: Pairs = ()  # (pretrain, harmful); empty: all 90
    labels: Literal["one_vs_rest", "published"] = "one_vs_rest"
    device: str = "cpu"  # where each cell is computed
    loss_rows: Annotated[int, at_least(2)] = 1000  # rows of the supervised loss's balanced sample

    def check(self) -> None:
        """Refuse a source that the data set does not have."""
        if self.dataset == "mnist" and self.data == "embedded":
            raise InvalidInputError("MNIST is not embedded; the 8×8 digits are: condnum run digits.")
        if self.dataset == "digits" and self.data not in ("auto", "embedded"):
            raise InvalidInputError(
                f"data '{self.data}': the 8×8 digits are embedded and need no file; for MNIST: "
                "condnum run mnist."
            )
        resolve_device(self.device)

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run; None for closed forms."""
        known = DIGIT_SETTINGS["mnist" if self.dataset == "mnist" else "digits-8x8"]
        base: Any = known.get(method, get_method(method).defaults)
        return base if base is None or self.epochs is None else base.with_overrides(steps=self.epochs)

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method is run, a row per method."""
        return settings_table(self.methods, self.settings)

    def load(self) -> Digits:
        """Load the digits, and see that each pair has images."""
        digits = load_small_digits() if self.dataset == "digits" else load_mnist_images(self.data)
        for pretrain, harmful in self.chosen_pairs:
            digits.smaller_count(pretrain, harmful)
        return digits

    @property
    def chosen_pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs to run."""
        return self.pairs or tuple(permutations(range(10), 2))

    def cells(self, data: Digits) -> list[Cell]:
        """List pair by pair, so that cells that share a covariance are neighbours.

        Every seed of a closed form that draws nothing has the same θ.
        """
        return [
            self.cell(method, seed, pair)
            for pair in self.chosen_pairs
            for seed in range(self.seeds)
            for method in self.methods
            if not seed or get_method(method).seeded
        ]

    def cell(self, method: str, seed: int, pair: tuple[int, int]) -> Cell:
        """Return the cell of a method, a seed and a pair."""
        settings = self.settings(method)
        at = {"method": method, "seed": seed, "pretrain": pair[0], "harmful": pair[1]}
        device = str(resolve_device(self.device))
        common = {"labels": self.labels, "loss_rows": self.loss_rows, "device": device}
        return Cell(at | common, asdict(settings) if settings else {})

    def compute(self, data: Digits, cell: Cell) -> CellResult:
        """Immunize one pair and keep its spectra."""
        problem, result = self.problem(data, cell), self.immunize(data, cell)
        key = ("ceiling", data.checksum, cell["pretrain"], cell["harmful"])
        return measure_cell(cell, problem, result, cached(key, lambda: ceilings(problem)))

    def problem(self, data: Digits, cell: Cell) -> ImmunizationProblem:
        """Return the two tasks of a cell, built once per process."""
        return cell_problem(data, cell, cell["device"])

    def immunize(self, data: Digits, cell: Cell) -> ImmunizationResult:
        """Run the method of a cell; deterministic, so that a cell's θ can be had again without storing it."""
        return immunize(self.problem(data, cell), cell["method"], seed=cell["seed"], **cell.settings)

    def tables(self, data: Digits, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Measure every cell in every convention, and average over pairs and seeds beside Table 2."""
        measured = [line for _, row, arrays in results for line in measured_rows(data.name, row, arrays)]
        columns = [*MEASURE_COLUMNS, "pretrain_digit", "harmful_digit", "eigh_fallbacks"]
        table = pd.DataFrame(measured, columns=columns)
        spectra = spectra_table(CellResult(row, arrays) for _, row, arrays in results)
        summary = summary_over_pairs(table, TABLE_2 if self.dataset == "mnist" else {})
        return {"results": table, "summary": summary, SPECTRA_TABLE: spectra}

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Compute in batches on a GPU of this machine."""
        device = resolve_device(self.device)
        if device.type == "cuda" and not scheduler:
            return BatchExecutor(DigitBatches(data, device))
        return super().executor(data, cells, jobs, scheduler)

    def facts(self, data: Digits) -> dict[str, str]:
        """Name the GPU and the most memory that torch's tensors took there."""
        device = resolve_device(self.device)
        if device.type != "cuda":
            return {}
        return {
            "device": f"{torch.cuda.get_device_name(device)} ({device})",
            "peak device memory": f"{torch.cuda.max_memory_allocated(device) / 2**20:,.0f} MiB",
        }


def summary_over_pairs(table: pd.DataFrame, published: Mapping[str, Published]) -> pd.DataFrame:
    """Average over pairs, then over seeds with their spread, beside Table 2 (for MNIST only)."""
    keys = ["dataset", "method", "seed", "convention", "theta_scale"]
    per_seed = table.groupby(keys, sort=False, as_index=False).agg(
        harmful_ratio=("harmful_ratio", "mean"),
        pretrain_ratio=("pretrain_ratio", "mean"),
        rir=("rir", "mean"),
        success=("success", "mean"),
        rir_ceiling=("rir_ceiling", "mean"),
        rir_share=("rir_share", "mean"),
        loss_gap=("loss_gap", "max"),
        seconds=("seconds", "sum"),
    )
    pairs = len(table[["pretrain_digit", "harmful_digit"]].drop_duplicates())
    return seed_summary(per_seed, published).assign(pairs=pairs)


def geometric_ridge_sweep(spectra: pd.DataFrame) -> pd.DataFrame:
    """Average RIR at unit scale and its ceiling geometrically over pairs, against ε.

    The table `spectra` of a run becomes one of `method, seed, ridge, rir`.
    """
    verdicts = spectral_verdicts(spectra).query("convention == 'ridge' and scale == 'unit'")
    logs = verdicts.assign(rir=np.log(verdicts["rir"]), ridge=verdicts["epsilon"].astype(float))
    means = logs.groupby(["method", "seed", "ridge"], sort=False, as_index=False)["rir"].mean()
    pairs = spectra.drop_duplicates(["pretrain_digit", "harmful_digit"])
    bounds = {ridge: np.log(pairs[ridge_ceiling_column(ridge)]).mean() for ridge in CEILING_RIDGES}
    ceiling = pd.DataFrame({"method": "ceiling", "seed": -1, "ridge": bounds.keys(), "rir": bounds.values()})
    table = pd.concat([ceiling, means], ignore_index=True)
    return table.assign(rir=np.exp(table["rir"]))


def rank_tolerances(spectra: pd.DataFrame) -> pd.DataFrame:
    """Measure the cells of a run's table `spectra` in the compact convention at several rank tolerances."""
    verdicts = spectral_verdicts(spectra).query("convention == 'compact'")
    default = default_rtol(int(spectra["dimension"].iloc[0]))
    return verdicts.assign(rtol=verdicts["rtol"].replace(DEFAULT_RTOL, default).astype(float))


_COORDINATES = ("method", "seed", "pretrain_digit", "harmful_digit")


def measured_rows(dataset: str, row: Mapping[str, Any], arrays: Arrays) -> list[dict[str, Any]]:
    """Measure one cell in every convention and at every scale of θ."""
    facts = {name: row[name] for name in (*_COORDINATES, "eigh_fallbacks")} | {
        "dataset": dataset,
        "pretrain_task": f"digit {row['pretrain_digit']}",
        "harmful_task": f"digit {row['harmful_digit']}",
    }
    bounds = (row["ceiling_compact"], row[ridge_ceiling_column(PUBLISHED_RIDGE)], np.nan)
    return spectral_rows(row, arrays, bounds, facts)
