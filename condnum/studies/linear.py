"""The linear studies (Sec. 5.1): house prices (Table 1, Figure 1) and pairs of digits (Table 2, Figure 2)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import pandas as pd

from condnum.arrays import resolve_device
from condnum.data import (
    Digits,
    TaskPair,
    load_diabetes_tasks,
    load_house_prices,
    load_mnist_images,
    load_small_digits,
)
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import (
    PRESETS,
    DescentSettings,
    ImmunizationResult,
    Method,
    get_method,
    immunize,
    method_names,
    register_method,
)
from condnum.methods.problem import ImmunizationProblem
from condnum.methods.registry import own_methods
from condnum.studies.digit_cells import cell_problem, measure_cell
from condnum.studies.frame.cells import Cell, CellResult, cached
from condnum.studies.frame.executors import Executor
from condnum.studies.frame.study import Count, FinishedCell, Study, at_least, several
from condnum.studies.measure import (
    MEASURE_COLUMNS,
    SPECTRA_TABLE,
    TABLE_1,
    TABLE_2,
    average_over_pairs,
    ceilings,
    extractor_cell,
    extractor_curves,
    report_step,
    seed_summary,
    spectra_table,
    spectral_rows,
)

#: Data sets by the kind of their tasks; `embedded` is the diabetes table.
TABLES, DIGITS = ("house-prices", "embedded"), ("mnist", "digits")

#: The paper's four methods, and what runs on digits: those, and the closed forms that say what is possible.
PAPER_METHODS = ("ours", "opt_kappa", "imma", "r_ill_only")
DIGIT_METHODS = (*PAPER_METHODS, "max_rir", "pareto", "erase")


def _settings(preset: str, rate: float, steps: tuple[int, int], **record: int) -> dict[str, DescentSettings]:
    """Return the settings of the paper's methods; `steps` are those of `opt_kappa` and of the baselines."""
    options: list[dict[str, Any]] = [{"learning_rate": rate, "steps": count, **record} for count in steps]
    few, many = options
    return {
        "ours": PRESETS[preset],
        # Balanced, on the absolute floor of the released code: the plain difference of compact κ's, as
        # printed in the paper, is dominated by κ_H and stays near RIR 1.
        "opt_kappa": DescentSettings(**few, ratio=0.1, convention="ridge"),
        "imma": DescentSettings(**many),
        "r_ill_only": DescentSettings(**many),
    }


#: Settings by data set, one for all pairs and seeds; chosen on seeds 100–109 (reported: 0, 1, …).
SETTINGS = {
    "house-prices": _settings("house-prices", 0.005, (100, 1000)),
    "mnist": _settings("mnist", 1e-3, (30, 30), record_every=0),
    "digits": _settings("digits-8x8", 0.005, (100, 100), record_every=10),
}
SETTINGS["embedded"] = SETTINGS["house-prices"] | {"ours": PRESETS["diabetes"]}

#: Below this many steps in all, starting worker processes takes longer than they save.
PARALLEL_STEPS = 30_000


def _method_name(method: str | Method) -> str:
    """Return the name of a method; one of one's own is registered under its name."""
    if isinstance(method, Method) and method not in own_methods():
        register_method(method)
    return get_method(method).name


#: Names of methods, or `Method` objects.
MethodNames: TypeAlias = Annotated[tuple[str, ...], several(_method_name)]


def read_pair(pair: str | Sequence[int]) -> tuple[int, int]:
    """Read a pair of digits, as a user types it or as it is."""
    word = pair if isinstance(pair, str) else "-".join(map(str, pair))
    digits = word.split("-")
    if len(digits) != 2 or not all(len(d) == 1 and d in "0123456789" for d in digits):
        raise InvalidInputError(
            f"expected a pair of digits such as 4-7, or several as in 4-7,9-0; got '{word}'."
        )
    if digits[0] == digits[1]:
        raise InvalidInputError(f"pair '{word}': give two different digits from 0 to 9.")
    return int(digits[0]), int(digits[1])


#: Pairs of digits, `4-7,9-0`.
Pairs: TypeAlias = Annotated[tuple[tuple[int, int], ...], several(read_pair)]


def data_set(data: str) -> str:
    """Return the name of a data set, or tell it from the files at a path."""
    if data in (*TABLES, *DIGITS):
        return data
    path = Path(data).expanduser()
    files = [path.name, *(file.name for file in path.glob("*"))] if path.exists() else []
    for name, mark in (("mnist", "-ubyte"), ("house-prices", ".csv")):
        if any(mark in file for file in files):
            return name
    raise UnknownNameError("data set", data, [*TABLES, *DIGITS, "PATH of train.csv or of MNIST's folder"])


@dataclass(frozen=True)
class MethodStudy(Study):
    """A study of methods; those of one's own go with it to the workers."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"own_methods": own_methods()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for method in state.pop("own_methods"):
            register_method(method)
        self.__dict__.update(state)


@dataclass(frozen=True)
class LinearStudy(MethodStudy):
    """Linear extractors, methods × seeds × pairs of tasks; a subclass says what the tasks are."""

    data: str = ""  # a name, or the path of the files
    methods: MethodNames = ()  # empty: all
    seeds: Count = 3  # seeds 0 … seeds − 1
    steps: Count | None = None  # full-batch steps of immunization; None: each method's own
    device: str = "cpu"
    sets: ClassVar[tuple[str, ...]] = ()  # data sets; a path is of the first

    def check(self) -> None:
        """Refuse another study's data, and a device that is not there."""
        if self.data in SETTINGS and self.data not in self.sets:
            raise InvalidInputError(
                f"data '{self.data}': {self.name} takes {', '.join(self.sets)} or a path."
            )
        resolve_device(self.device)

    @property
    def known(self) -> str:
        """Name of the data set."""
        return self.data if self.data in self.sets else self.sets[0]

    @property
    def source(self) -> str:
        """Where the files lie: at the path, or wherever the set is found."""
        return "auto" if self.data in self.sets else self.data

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run; None for closed forms."""
        base: Any = SETTINGS[self.known].get(method, get_method(method).defaults)
        return base if base is None or self.steps is None else base.with_overrides(steps=self.steps)

    @property
    def settings_table(self) -> pd.DataFrame:
        """What each method does and how it is set."""
        rows = []
        for name in self.methods:
            method, settings = get_method(name), self.settings(name)
            chosen = "—" if settings is None else settings.describe(method.parts or ())
            rows.append((method.label, method.summary, chosen))
        return pd.DataFrame(rows, columns=["method", "what it does", "settings"])

    def problem(self, data: Any, cell: Cell) -> ImmunizationProblem:
        """Return the two tasks of a cell, built once per process."""
        raise NotImplementedError

    def names(self, data: Any, cell: Cell) -> dict[str, str]:
        """Return data set and tasks of a cell, as tables have them."""
        raise NotImplementedError

    def _cell(self, method: str, seed: int, **at: Any) -> Cell:
        """Return the cell of a method and a seed."""
        settings = self.settings(method)
        at = {"method": method, "seed": seed, **at, "device": str(resolve_device(self.device))}
        return Cell(at, asdict(settings) if settings else {})

    def immunize(self, data: Any, cell: Cell) -> ImmunizationResult:
        """Run the method of a cell; deterministic, so that a cell's θ can be had again without storing it."""
        options: dict[str, Any] = {"seed": cell["seed"], "callback": report_step, **cell.settings}
        return immunize(self.problem(data, cell), cell["method"], **options)

    def measured(self, data: Any, results: Sequence[FinishedCell], own: Sequence[str] = ()) -> pd.DataFrame:
        """Measure every cell in every convention and at every scale of θ; `own` columns are of the cells."""
        rows = [
            line | {name: row[name] for name in own}
            for cell, row, arrays in results
            for line in spectral_rows(row, arrays, self.names(data, cell))
        ]
        return pd.DataFrame(rows, columns=[*MEASURE_COLUMNS, *own])


@dataclass(frozen=True)
class HousePrices(LinearStudy, name="house-prices"):
    """Table 1 and Figure 1: linear extractors on two halves of the Ames table, or of the diabetes table."""

    data: str = "house-prices"  # house-prices, embedded, or a path to the CSV or its folder
    seeds: Count = 5
    device: str = "auto"
    features: Literal["published", "clean"] = "published"
    rows: Annotated[int, at_least(2)] | None = None  # first rows of each task; None: all
    sets: ClassVar[tuple[str, ...]] = TABLES

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
        """List methods, seed by seed; a closed form that draws nothing has one seed."""
        return [
            self.cell(method, seed)
            for seed in range(self.seeds)
            for method in self.methods
            if not seed or get_method(method).seeded
        ]

    def cell(self, method: str, seed: int) -> Cell:
        """Return the cell of a method and a seed."""
        return self._cell(method, seed, features=self.features, rows=self.rows)

    def problem(self, data: TaskPair, cell: Cell | None = None) -> ImmunizationProblem:
        """Return the two tasks, the same for every cell, built once per process."""
        device = resolve_device(self.device)
        key = ("house-problem", device, data)
        return cached(key, lambda: ImmunizationProblem.from_pair(data, device=device))

    def names(self, data: TaskPair, cell: Cell) -> dict[str, str]:
        """Return data set and tasks, as tables have them."""
        tasks = {"pretrain_task": data.pretrain_name, "harmful_task": data.harmful_name}
        return {"dataset": data.name, **tasks}

    def compute(self, data: TaskPair, cell: Cell) -> CellResult:
        """Train one extractor and keep it with its spectra and the ceilings of its measures."""
        problem, result = self.problem(data), self.immunize(data, cell)
        row, arrays = extractor_cell(problem, result)
        return CellResult({**row, **ceilings(problem, result.theta)}, arrays)

    def tables(self, data: TaskPair, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Measure every extractor, average over seeds beside Table 1, and collect the curves."""
        table, cells = self.measured(data, results), [CellResult(row, arrays) for _, row, arrays in results]
        return {
            "results": table,
            "summary": seed_summary(table, TABLE_1 if data.name == "house-prices" else {}),
            "curves.parquet": extractor_curves(self.problem(data), cells),
            SPECTRA_TABLE: spectra_table(cells),
        }

    def order(self, cell: Cell) -> Any:
        """Put closed forms first, then long cells before short ones, so that no worker waits at the end."""
        steps = int(cell.settings.get("steps", 0))
        return steps > 0, -steps

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Start worker processes if they are worth their start."""
        steps = sum(int(cell.settings.get("steps", 0)) for cell in cells)
        several = resolve_device(self.device).type == "cpu" and steps >= PARALLEL_STEPS
        return super().executor(data, cells, jobs or (0 if several else 1), scheduler)


@dataclass(frozen=True)
class DigitPairs(LinearStudy, name="digit-pairs"):
    """Table 2 and Figure 2: linear extractors on pairs of digits, MNIST or the embedded 8×8 ones."""

    data: str = "digits"  # digits (8×8), mnist, or a path to the folder of MNIST
    methods: MethodNames = DIGIT_METHODS
    pairs: Pairs = ()  # (pretrain, harmful); empty: all 90
    labels: Literal["one_vs_rest", "published"] = "one_vs_rest"
    sets: ClassVar[tuple[str, ...]] = DIGITS

    def check(self) -> None:
        """Choose all pairs where none are given."""
        super().check()
        object.__setattr__(self, "pairs", self.pairs or tuple(permutations(range(10), 2)))

    def load(self) -> Digits:
        """Load the digits, and see that each pair has images."""
        digits = load_small_digits() if self.data == "digits" else load_mnist_images(self.source)
        for pretrain, harmful in self.pairs:
            digits.smaller_count(pretrain, harmful)
        return digits

    def cells(self, data: Digits) -> list[Cell]:
        """List pair by pair, whose cells share covariances; a closed form that draws nothing has one seed."""
        return [
            self.cell(method, seed, pair)
            for pair in self.pairs
            for seed in range(self.seeds)
            for method in self.methods
            if not seed or get_method(method).seeded
        ]

    def cell(self, method: str, seed: int, pair: tuple[int, int]) -> Cell:
        """Return the cell of a method, a seed and a pair."""
        tasks = {"pretrain": pair[0], "harmful": pair[1], "labels": self.labels}
        return self._cell(method, seed, **tasks)

    def problem(self, data: Digits, cell: Cell) -> ImmunizationProblem:
        """Return the two tasks of a cell, built once per process."""
        return cell_problem(data, cell, cell["device"])

    def names(self, data: Digits, cell: Cell) -> dict[str, str]:
        """Return data set and tasks, as tables have them."""
        tasks = {f"{side}_task": f"digit {cell[side]}" for side in ("pretrain", "harmful")}
        return {"dataset": data.name, **tasks}

    def compute(self, data: Digits, cell: Cell) -> CellResult:
        """Immunize one pair and keep its spectra."""
        problem, result = self.problem(data, cell), self.immunize(data, cell)
        key = ("ceiling", data, cell["pretrain"], cell["harmful"])
        return measure_cell(cell, problem, result, cached(key, lambda: ceilings(problem)))

    def tables(self, data: Digits, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Measure every cell, and average over pairs, then over seeds, beside Table 2."""
        table = self.measured(data, results, ("pretrain_digit", "harmful_digit"))
        summary = seed_summary(average_over_pairs(table), TABLE_2 if self.known == "mnist" else {})
        spectra = spectra_table(CellResult(row, arrays) for _, row, arrays in results)
        return {
            "results": table,
            "summary": summary.assign(pairs=len({(of["pretrain"], of["harmful"]) for of, *_ in results})),
            SPECTRA_TABLE: spectra,
        }

    def executor(self, data: Any, cells: Sequence[Cell], jobs: int, scheduler: str = "") -> Executor:
        """Compute one cell after the other on a GPU of this machine."""
        on_gpu = resolve_device(self.device).type == "cuda"
        return super().executor(data, cells, 1 if on_gpu else jobs, scheduler)


def linear_study(
    data: str, *, methods: tuple[str, ...] = (), pairs: tuple[tuple[int, int], ...] = (), **options: Any
) -> Any:
    """Return the linear study of a data set, or of the files at a path, on the CPU; no methods are all."""
    if data_set(data) in TABLES:
        return HousePrices(data, methods, device="cpu", **options)
    return DigitPairs(data, methods or tuple(method_names()), pairs=pairs, **options)


def study_of_one_pair(text: str, **options: Any) -> Any:
    """Return the linear study of one pair of tasks, as a user types it: digits come with their pair."""
    data, _, pair = text.partition(":")
    if data not in SETTINGS and not Path(data).expanduser().exists():
        raise UnknownNameError("data set", text, [*TABLES, "mnist:4-9", "digits:4-9"])
    if (data_set(data) in DIGITS) != bool(pair):
        raise InvalidInputError(f"data '{text}': digits need a pair, as in mnist:4-7; tables take none.")
    return linear_study(data, pairs=(read_pair(pair),) if pair else (), **options)
