"""The experiment on limits: how much immunization two tasks allow, and how much of it each method reaches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.files import write_tables
from condnum.methods import DescentSettings, method_names
from condnum.studies import digit_pairs, house_prices
from condnum.studies.cell import CellPlan, CellResult
from condnum.studies.digit_pairs import DigitPairsConfig, cell_spectra, read_pair
from condnum.studies.executors import SerialExecutor, choose_executor, core_count
from condnum.studies.house_prices import HousePricesConfig
from condnum.studies.limits_cells import CEILING_COLUMNS, CONTESTANTS, compute_cell
from condnum.studies.measure import MEASURES, RESULT_COLUMNS, result_row, settings_table
from condnum.studies.store import ResultStore
from condnum.studies.sweep import SweepProgress, SweepReport, run_sweep
from condnum.theory.ceiling import RirCeiling, share_of_ceiling
from condnum.theory.immunization import RATIO_TOLERANCE, immunization_from_spectra
from condnum.theory.pareto import FeasibleRegion

# What the experiment on limits runs: which data, pairs and methods, and at which ridges ε.


LimitsData = Literal["house-prices", "mnist", "digits"]

#: Pairs (pretrain, harmful) of digits that stand for the 90.
DEFAULT_PAIRS = ((4, 9), (4, 7), (3, 5), (0, 1), (9, 0))

#: Seeds where the user names no number: a cell of MNIST takes seconds, its spread over seeds is small.
DEFAULT_SEEDS: dict[LimitsData, int] = {"house-prices": 3, "digits": 3, "mnist": 1}

#: Ridges ε as shares of the mean eigenvalue of K_P, two decades apart.
RIDGE_SHARES = tuple(np.geomspace(1e-9, 1e1, 6).tolist())

#: The ridge at which front and directions are drawn.
DEFAULT_RIDGE = 1e-3


@dataclass(frozen=True)
class LimitsConfig:
    """What to run."""

    data: LimitsData = "house-prices"
    source: str = "auto"  # auto or a path; for house prices also embedded
    methods: tuple[str, ...] = ()  # empty: all
    seeds: int = 3  # seeds 0 … seeds − 1
    epochs: int | None = None  # full-batch steps; None: each method's own
    pairs: tuple[tuple[int, int], ...] = DEFAULT_PAIRS  # of digits; not used for house prices
    ridge: float = DEFAULT_RIDGE  # ε of front and directions, in mean eigenvalues of K_P
    race_steps: int = 1000  # of Algorithm 1 against the closed form; 0: no race

    def __post_init__(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.data not in get_args(LimitsData):
            raise UnknownNameError("data set", self.data, list(get_args(LimitsData)))
        if not 0 < self.ridge < math.inf:
            raise InvalidInputError(
                f"ridge is a share of the mean eigenvalue of K_P and must be positive, got {self.ridge}."
            )
        if isinstance(self.race_steps, bool) or not isinstance(self.race_steps, int) or self.race_steps < 0:
            raise InvalidInputError(
                f"race_steps must be a whole number, 0 for no race, got {self.race_steps!r}."
            )
        _ = self.house if self.data == "house-prices" else self.digits

    @classmethod
    def from_parameters(
        cls,
        *,
        data: str,
        source: str,
        methods: str,
        seeds: int,
        epochs: int,
        pairs: str,
        ridge: float,
        race_steps: int,
    ) -> LimitsConfig:
        """Build a configuration from notebook parameters, where "" and 0 stand for the default.

        Examples:
            >>> config = LimitsConfig.from_parameters(data="digits", source="auto", methods="ours", seeds=0,
            ...     epochs=9, pairs="4-7", ridge=1e-3, race_steps=0)
            >>> config.pairs, config.seeds, config.chosen_methods
            (((4, 7),), 3, ('ours',))
        """
        if data == "embedded":
            data, source = "house-prices", "embedded"
        if data not in get_args(LimitsData):
            raise UnknownNameError("data set", data, list(get_args(LimitsData)))
        if pairs and data == "house-prices":
            raise InvalidInputError(
                f"pairs='{pairs}' are of digits; house prices are one pair: leave it out."
            )
        chosen = tuple(dict.fromkeys(read_pair(word) for word in pairs.split(",") if word.strip()))
        names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
        return cls(
            data,  # type: ignore[arg-type]
            source,
            names,
            seeds or DEFAULT_SEEDS[data],  # type: ignore[index]
            epochs or None,
            chosen or DEFAULT_PAIRS,
            float(ridge),
            race_steps,
        )

    @property
    def chosen_methods(self) -> tuple[str, ...]:
        """The methods to run, in display order."""
        return tuple(name for name in method_names() if not self.methods or name in self.methods)

    @property
    def ridge_shares(self) -> tuple[float, ...]:
        """All ridges, in mean eigenvalues of K_P, ascending; the one of the front among them."""
        others = [share for share in RIDGE_SHARES if not math.isclose(share, self.ridge, rel_tol=1e-9)]
        return tuple(sorted([*others, self.ridge]))

    @property
    def house(self) -> HousePricesConfig:
        """The same as a house-price experiment."""
        return HousePricesConfig(self.source, self.methods, self.seeds, self.epochs, device="cpu")

    @property
    def digits(self) -> DigitPairsConfig:
        """The same as a digit-pair experiment."""
        return DigitPairsConfig(
            "mnist" if self.data == "mnist" else "digits",
            self.source,
            self.chosen_methods if not self.methods else self.methods,
            self.seeds,
            self.epochs,
            self.pairs,
        )

    def settings(self, method: str) -> DescentSettings | None:
        """Return a method's settings in this run, those of the experiment it is taken from."""
        return (self.house if self.data == "house-prices" else self.digits).settings(method)


# What the experiment on limits is made of: its data and its cells.


#: Part of every cell's key: raise it when a change of code changes results.
CODE_VERSION = "1"


def load(config: LimitsConfig) -> TaskPair | Digits:
    """Load the data of a configuration."""
    return (
        house_prices.load(config.house)
        if config.data == "house-prices"
        else digit_pairs.load(config.digits)[0]
    )


def plans(config: LimitsConfig, data: TaskPair | Digits) -> list[CellPlan]:
    """List the cells: methods and seeds of every pair, the limits of every pair, the race of the first."""
    if isinstance(data, TaskPair):
        base = house_prices.plans(config.house, data)
    else:
        base = digit_pairs.plans(config.digits, digit_pairs.load(config.digits)[1])
    common = {"data": config.data, "ridge_shares": config.ridge_shares, "ridge": config.ridge}

    def cell(plan: CellPlan, part: str, settings: dict[str, object]) -> CellPlan:
        """Return a cell of this experiment on the same data."""
        payload = {**plan.payload, **common, "part": part}
        if part != "method":
            payload |= {"method": {"pair": "limits", "race": "race"}[part], "seed": 0}
        return CellPlan("limits", payload, settings, plan.data_checksum, CODE_VERSION, data=plan.data)

    methods = [cell(plan, "method", plan.settings) for plan in base]
    pairs = list(dict.fromkeys(cell(plan, "pair", {}) for plan in base))
    settings = config.settings("ours")
    if not config.race_steps or settings is None:
        return methods + pairs
    raced = asdict(settings.with_overrides(steps=config.race_steps))
    return [*methods, *pairs, cell(base[0], "race", raced)]


# From cells of the experiment on limits to its tidy tables.


#: What a table says of the pair that a row belongs to: `dataset`, `pretrain_task`, `harmful_task`.
Names = Mapping[str, str]

#: A finished cell with its pair's names.
Named = tuple[Names, CellResult]

_CEILINGS = {
    ("compact", "unit"): "ceiling_compact",
    ("ridge", "unit"): "ceiling_ridge",
    ("ridge", "as_trained"): "ceiling_ridge_as_trained",
}


def measured_table(cells: Iterable[Named], columns: Sequence[str]) -> pd.DataFrame:
    """Measure the extractors in the conventions and gauges of the other experiments."""
    rows = []
    for names, (row, arrays) in cells:
        spectra = cell_spectra(row, arrays)
        kept = ("method", "seed", "theta_condition", "steps", "seconds", "stop_reason")
        facts = {**names, **{name: row[name] for name in kept}}
        squared_norm, dimension = float(str(row["squared_norm"])), int(str(row["dimension"]))
        for convention, gauge in MEASURES:
            measured = immunization_from_spectra(
                spectra.scaled(dimension / squared_norm if gauge == "unit" else 1.0),
                convention=convention,
                gauge=gauge,
                loss_gap=row["loss_gap"],  # type: ignore[arg-type]
            )
            ceiling = float(str(row[_CEILINGS[convention, gauge]]))
            rows.append(result_row(measured, ceiling, facts))
    return pd.DataFrame(rows, columns=list(columns))


def ridge_table(cells: Iterable[Named], ceilings: pd.DataFrame, shares: Sequence[float]) -> pd.DataFrame:
    """List RIR and its share of the ceiling of every extractor against ε."""
    limits = ceilings.set_index(["pretrain_task", "harmful_task", "ridge_share"])["rir_ceiling"]
    rows = []
    for names, (row, arrays) in cells:
        for share, ridge, (pretrain, harmful) in zip(shares, arrays["ridges"], arrays["ratios"], strict=True):
            ceiling = float(limits.loc[names["pretrain_task"], names["harmful_task"], share])
            rir = float(harmful / pretrain)
            tops = 1 + RATIO_TOLERANCE
            rows.append(
                {
                    **names,
                    "method": row["method"],
                    "seed": row["seed"],
                    "ridge_share": share,
                    "ridge": float(ridge),
                    "harmful_ratio": float(harmful),
                    "pretrain_ratio": float(pretrain),
                    "rir": rir,
                    "rir_ceiling": ceiling,
                    "rir_share": share_of_ceiling(rir, ceiling),
                    "success": bool(harmful > tops and pretrain <= tops),
                }
            )
    return pd.DataFrame(rows)


def summary_of_limits(ridged: pd.DataFrame, share: float) -> pd.DataFrame:
    """Average over seeds at one ridge."""
    chosen = ridged[np.isclose(ridged["ridge_share"], share)]
    keys = ["dataset", "pretrain_task", "harmful_task", "method"]
    return chosen.groupby(keys, sort=False, as_index=False).agg(
        seeds=("seed", "nunique"),
        ridge=("ridge", "first"),
        harmful_ratio=("harmful_ratio", "mean"),
        pretrain_ratio=("pretrain_ratio", "mean"),
        rir=("rir", "mean"),
        rir_ceiling=("rir_ceiling", "first"),
        rir_share=("rir_share", lambda values: float(np.exp(np.log(values).mean()))),
        rir_share_min=("rir_share", "min"),
        rir_share_max=("rir_share", "max"),
        immunized=("success", "sum"),
    )


def ceiling_table(cells: Iterable[Named], shares: Sequence[float]) -> pd.DataFrame:
    """List the ceiling of every pair against ε."""
    frames = [
        pd.DataFrame(cell.arrays["ceilings"], columns=list(CEILING_COLUMNS)).assign(
            ridge_share=list(shares), **names
        )
        for names, cell in cells
    ]
    table = pd.concat(frames, ignore_index=True)
    first = ["dataset", "pretrain_task", "harmful_task", "ridge_share"]
    return table[[*first, *CEILING_COLUMNS]]


def null_space_table(cells: Iterable[Named]) -> pd.DataFrame:
    """List what each task has and the other lacks, a row per pair, as `null_space.NullSpaces`."""
    return pd.DataFrame([{**names, **cell.row} for names, cell in cells])


def point_table(cells: Iterable[Named]) -> pd.DataFrame:
    """List the tried points of the (ii)/(i) plane."""
    kinds = ("family", "front", "random", "climbed")
    frames = [
        pd.DataFrame(cell.arrays[kind], columns=["pretrain_ratio", "harmful_ratio"]).assign(
            kind=kind, **names
        )
        for names, cell in cells
        for kind in kinds
        if kind in cell.arrays
    ]
    table = pd.concat(frames, ignore_index=True)
    first = ["dataset", "pretrain_task", "harmful_task", "kind"]
    return table[[*first, "pretrain_ratio", "harmful_ratio"]]


def direction_table(cells: Iterable[Named], features: Sequence[str]) -> pd.DataFrame:
    """List the generalised eigenvectors at both ends of each pencil, by input feature."""
    frames = []
    for names, (_, arrays) in cells:
        for column, index in enumerate(arrays["eigenvalue_index"].tolist()):
            w, pattern = arrays["filters"][:, column], arrays["patterns"][:, column]
            values: dict[str, Any] = {
                "index": index + 1,
                "eigenvalue": arrays["eigenvalues"][index],
                "feature": list(features),
                "filter": w,
                "pattern": pattern,
                "share": w * pattern,
            }
            frames.append(pd.DataFrame({**names, **values}))
    return pd.concat(frames, ignore_index=True)


def overshoot_table(tried: Mapping[str, pd.DataFrame], region: FeasibleRegion, names: Names) -> pd.DataFrame:
    """Hold extractors against the region that none may leave."""
    rows = []
    for kind, table in tried.items():
        if table.empty:
            continue
        ratios = table[["pretrain_ratio", "harmful_ratio"]].dropna()
        if len(ratios):
            largest = float((ratios["harmful_ratio"] / ratios["pretrain_ratio"]).max())
            rows.append(
                {
                    **names,
                    "kind": kind,
                    "points": len(ratios),
                    "overshoot": region.overshoot(ratios.to_numpy()),
                    "largest_share": share_of_ceiling(largest, region.ceiling.value),
                }
            )
    return pd.DataFrame(rows)


def race_table(cells: Iterable[Named]) -> pd.DataFrame:
    """List the contestants of a race, the closed forms first."""
    rows = []
    for names, (row, arrays) in cells:
        for index, contestant in enumerate(CONTESTANTS):
            pretrain, harmful = arrays["ratios"][index].tolist()
            rir, ceiling = harmful / pretrain, float(str(row["rir_ceiling"]))
            rows.append(
                {
                    **names,
                    "contestant": contestant,
                    "steps": row["steps"] if contestant == CONTESTANTS[-1] else 0,
                    "ridge": row["ridge"],
                    "seconds": arrays["seconds"][index],
                    "times_faster": arrays["seconds"][-1] / arrays["seconds"][index],
                    "rir": rir,
                    "rir_ceiling": ceiling,
                    "rir_share": share_of_ceiling(rir, ceiling),
                    "pretrain_ratio": pretrain,
                    "harmful_ratio": harmful,
                }
            )
    return pd.DataFrame(rows)


TASKS = ["pretrain_task", "harmful_task"]


@dataclass(frozen=True)
class LimitsRun:
    """The finished experiment, and the tables made from its cells."""

    config: LimitsConfig
    data: TaskPair | Digits
    cells: dict[str, list[tuple[CellPlan, CellResult]]]  # by part: method, pair, race
    sweep: SweepReport
    seconds: float  # of sweep and race

    @property
    def title(self) -> str:
        """The data set in one line, for figures."""
        return self.data.title()

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Names of the tasks (D_P, D_H) of every pair that was computed."""
        return list(self.null_spaces[TASKS].itertuples(index=False, name=None))

    @cached_property
    def results(self) -> pd.DataFrame:
        """A row per pair × method × seed × convention × gauge, as the other experiments have it."""
        return measured_table(self._named("method"), RESULT_COLUMNS)

    @cached_property
    def ridged(self) -> pd.DataFrame:
        """RIR and its share of the ceiling of every extractor on `K + εI`, against ε."""
        return ridge_table(self._named("method"), self.ceilings, self.config.ridge_shares)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The same at the ε of the configuration, averaged over seeds."""
        return summary_of_limits(self.ridged, self.config.ridge)

    @cached_property
    def ceilings(self) -> pd.DataFrame:
        """The ceiling of every pair against ε, and what the closed form attains of it."""
        return ceiling_table(self._named("pair"), self.config.ridge_shares)

    @cached_property
    def null_spaces(self) -> pd.DataFrame:
        """What each task has and the other lacks, a row per pair."""
        return null_space_table(self._named("pair"))

    @cached_property
    def points(self) -> pd.DataFrame:
        """Points of the (ii)/(i) plane: family, front, random and climbed extractors."""
        return point_table(self._named("pair"))

    @cached_property
    def directions(self) -> pd.DataFrame:
        """Generalised eigenvectors at both ends of each pencil, by input feature."""
        return direction_table(self._named("pair"), self.data.feature_names)

    @cached_property
    def race(self) -> pd.DataFrame:
        """The closed forms against Algorithm 1; empty if there was no race."""
        return race_table(self._named("race"))

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method was run, a row per method."""
        return settings_table(self.config.chosen_methods, self.config.settings)

    @property
    def failures(self) -> pd.DataFrame:
        """Cells that failed, with their errors."""
        return pd.DataFrame(self.sweep.failure_rows, columns=["cell", "error"])

    @property
    def overshoots(self) -> pd.DataFrame:
        """By which share the worst point of each kind lies outside its region; negative inside.

        Kinds are those of `points`, `methods` (every method and seed) and `race` (Algorithm 1 on K + εI).
        """
        frames = []
        for tasks in self.pairs:
            tried = {str(kind): part for kind, part in _of(self.points, tasks).groupby("kind", sort=False)}
            tried["methods"] = self.at_ridge(tasks)
            tried["race"] = _of(self.race, tasks) if len(self.race) else self.race
            names = {"dataset": self.data.name, **dict(zip(TASKS, tasks, strict=True))}
            frames.append(overshoot_table(tried, self.region(tasks), names))
        return pd.concat(frames, ignore_index=True)

    def region(self, tasks: tuple[str, str]) -> FeasibleRegion:
        """Return what is possible for a pair, at the ε of the configuration."""
        table = _of(self.ceilings, tasks)
        row = table[table["ridge_share"] == self.config.ridge].iloc[0]
        spaces = _of(self.null_spaces, tasks).iloc[0]
        rank = int(spaces["dimension"])  # of K + εI
        ceiling = RirCeiling(
            row["rir_ceiling"], row["lambda_max"], row["lambda_min"], rank, rank, 0, row["ridge"]
        )
        pretrain, harmful, pencil = (float(row[f"kappa_{of}"]) for of in ("pretrain", "harmful", "pencil"))
        return FeasibleRegion(pretrain, harmful, pencil, ceiling, mirrored=True)

    def of(self, table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
        """Return the rows of one pair."""
        return _of(table, tasks)

    def at_ridge(self, tasks: tuple[str, str]) -> pd.DataFrame:
        """Return the methods of one pair at the ε of the configuration."""
        table = _of(self.ridged, tasks)
        return table[table["ridge_share"] == self.config.ridge]

    @property
    def provenance_table(self) -> pd.DataFrame:
        """What the run was, in two columns."""
        origin = self.data.provenance
        known = "known" if origin.known_checksum else "not known to this project"
        facts = {
            "data": f"{self.title}. {origin.description}",
            "SHA-256": f"{self.data.checksum} ({known})",
            "seeds": ", ".join(map(str, range(self.config.seeds))),
            "ε": f"{self.config.ridge:g} mean eigenvalues of K_P for front and directions",
            "cells": f"{self.sweep.computed} computed, {self.sweep.reused} from the store, "
            f"{len(self.failures)} failed",
            "seconds": f"{self.seconds:,.1f}",
            "peak memory": str(self.sweep.memory),
            "numerics": "float64",
        }
        return pd.DataFrame({"what": list(facts), "value": list(facts.values())})

    def save(self, folder: str | Path) -> list[str]:
        """Write every table as CSV, and failures.csv if any cell failed."""
        names = (
            "results",
            "summary",
            "ridged",
            "ceilings",
            "null_spaces",
            "points",
            "overshoots",
            "directions",
        )
        tables = {name: getattr(self, name) for name in names}
        tables |= {name: table for name in ("race", "failures") if len(table := getattr(self, name))}
        return write_tables(folder, {f"{name}.csv": table for name, table in tables.items()})

    def _named(self, part: str) -> list[Named]:
        """Return the cells of a part with the names of their tasks."""
        return [(self._names(plan), result) for plan, result in self.cells[part]]

    def _names(self, plan: CellPlan) -> dict[str, str]:
        """Return what tables say of a cell's pair."""
        if isinstance(self.data, TaskPair):
            tasks = (self.data.pretrain_name, self.data.harmful_name)
        else:
            tasks = (f"digit {plan.payload['pretrain']}", f"digit {plan.payload['harmful']}")
        return {"dataset": self.data.name, "pretrain_task": tasks[0], "harmful_task": tasks[1]}


def _of(table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of one pair."""
    return table[(table["pretrain_task"] == tasks[0]) & (table["harmful_task"] == tasks[1])]


def run(
    config: LimitsConfig,
    *,
    folder: Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> LimitsRun:
    """Run the experiment, or what is left of it."""
    data = load(config)
    every = plans(config, data)
    swept = [plan for plan in every if plan.payload["part"] != "race"]
    raced = [plan for plan in every if plan.payload["part"] == "race"]
    executor = choose_executor(core_count() if jobs is None else jobs, cells=len(swept), threads=1)
    kept = tempfile.TemporaryDirectory(prefix="condnum-") if folder is None else nullcontext(folder)
    with kept as place, ResultStore(place) as store:
        report = run_sweep(swept, compute_cell, store, executor, on_progress=on_progress)
        report.check()
        # By itself, in this process: nothing of ours competes for the cores while it is timed.
        last = run_sweep(raced, compute_cell, store, SerialExecutor(threads=1), on_progress=on_progress)
        cells: dict[str, list[tuple[CellPlan, CellResult]]] = {"method": [], "pair": [], "race": []}
        for plan in every:
            found = store.get(plan.key)
            if found is not None:
                cells[plan.payload["part"]].append((plan, CellResult(found.row, found.arrays)))
    report.failures.extend(last.failures)
    return LimitsRun(config, data, cells, report, report.seconds + last.seconds)
