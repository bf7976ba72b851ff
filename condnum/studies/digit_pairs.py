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
    NAMED_SETTINGS,
    DescentSettings,
    ImmaSettings,
    ImmunizationResult,
    OptKappaSettings,
    get_method,
    immunize,
    uses_seed,
)
from condnum.studies.cells import Arrays, Cell, CellResult, cached
from condnum.studies.digit_cells import (
    RIDGES,
    DigitBatches,
    ceilings,
    cell_problem,
    measure_cell,
    ridge_ceiling_column,
)
from condnum.studies.executors import BatchExecutor, Executor
from condnum.studies.house_prices import Methods
from condnum.studies.measure import (
    RESULT_COLUMNS,
    SPECTRA_TABLE,
    TABLE_2,
    Published,
    cell_spectra,
    result_row,
    settings_table,
    spectra_table,
    spectral_rows,
    summary_table,
)
from condnum.studies.named_tasks import read_pair
from condnum.studies.study import Count, Result, Study, at_least
from condnum.theory.immunization import immunization_from_spectra
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol

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
    methods: Methods = DEFAULT_METHODS
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
        known = SETTINGS["mnist" if self.dataset == "mnist" else "digits-8x8"]
        base = known.get(method, getattr(get_method(method), "defaults", None))
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
            if not seed or uses_seed(method)
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
        problem = cell_problem(data, cell, cell["device"])
        result = self.immunize(data, cell)
        key = ("ceiling", data.checksum, cell["pretrain"], cell["harmful"])
        return measure_cell(cell, problem, result, cached(key, lambda: ceilings(problem)))

    def immunize(self, data: Digits, cell: Cell) -> ImmunizationResult:
        """Run the method of a cell; deterministic, so that a cell's θ can be had again without storing it."""
        problem = cell_problem(data, cell, cell["device"])
        return immunize(problem, cell["method"], seed=cell["seed"], **cell.settings)

    def tables(self, data: Digits, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Measure every cell in every convention, and at several ranks' tolerances and ridges."""
        measured = [line for _, row, arrays in results for line in measured_rows(data.name, row, arrays)]
        columns = [*RESULT_COLUMNS, "pretrain_digit", "harmful_digit", "eigh_fallbacks"]
        table = pd.DataFrame(measured, columns=columns)
        varied = {
            f"{option}_sensitivity": pd.DataFrame(
                [line for _, row, arrays in results for line in varied_rows(row, arrays, option)]
            )
            for option in ("rtol", "ridge")
        }
        published = TABLE_2 if self.dataset == "mnist" else {}
        spectra = {SPECTRA_TABLE: spectra_table(CellResult(row, arrays) for _, row, arrays in results)}
        return {"results": table, "summary": summary_over_pairs(table, published), **varied, **spectra}

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
    keys = ["dataset", "method", "seed", "convention", "gauge"]
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
    return summary_table(per_seed, published).assign(pairs=pairs)


def ridge_sweep(ridged: pd.DataFrame) -> pd.DataFrame:
    """Average RIR and its ceiling geometrically over pairs, against ε: `method, seed, ridge, rir`."""
    logs = ridged.assign(rir=np.log(ridged["rir"]), ceiling=np.log(ridged["rir_ceiling"]))
    means = logs.groupby(["method", "seed", "ridge"], sort=False, as_index=False)["rir"].mean()
    pairs = logs.drop_duplicates(["pretrain_digit", "harmful_digit", "ridge"])
    bounds = pairs.groupby("ridge", as_index=False)["ceiling"].mean().rename(columns={"ceiling": "rir"})
    table = pd.concat([bounds.assign(method="ceiling", seed=-1), means], ignore_index=True)
    return table.assign(rir=np.exp(table["rir"]))


#: Relative rank tolerances at which the compact convention is repeated, beside the default D·eps.
RTOLS = (1e-15, 1e-10)

_COORDINATES = ("method", "seed", "pretrain_digit", "harmful_digit")


def measured_rows(dataset: str, row: Mapping[str, Any], arrays: Arrays) -> list[dict[str, Any]]:
    """Measure one cell in every convention and gauge."""
    facts = {name: row[name] for name in (*_COORDINATES, "eigh_fallbacks")} | {
        "dataset": dataset,
        "pretrain_task": f"digit {row['pretrain_digit']}",
        "harmful_task": f"digit {row['harmful_digit']}",
    }
    bounds = (row["ceiling_compact"], row[ridge_ceiling_column(PUBLISHED_RIDGE)], np.nan)
    return spectral_rows(row, arrays, bounds, facts)


def varied_rows(row: Mapping[str, Any], arrays: Arrays, option: str) -> list[dict[str, Any]]:
    """Measure one cell at several ranks' tolerances (compact) or ridges, θ at unit scale."""
    ridged = option == "ridge"
    spectra, facts = cell_spectra(row, arrays, unit=ridged), {name: row[name] for name in _COORDINATES}
    options: dict[str, Any] = {"convention": "ridge" if ridged else "compact", "loss_gap": row["loss_gap"]}
    rows = []
    for value in RIDGES if ridged else (RTOLS[0], default_rtol(spectra.dimension_after), RTOLS[1]):
        measured = immunization_from_spectra(spectra, gauge="unit", **options | {option: value})
        ceiling = row[ridge_ceiling_column(value) if ridged else "ceiling_compact"]
        rows.append(result_row(measured, ceiling, facts | {option: value}))
    return rows
