"""The experiment on limits: how much immunization two tasks allow, and how much of it each method reaches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError
from condnum.methods import DescentSettings, method_names
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.cells import Cell, CellResult, cached
from condnum.studies.digit_cells import cell_problem
from condnum.studies.digit_pairs import DigitPairs, Pairs, cell_spectra
from condnum.studies.house_prices import HousePrices, Methods
from condnum.studies.limits_cells import (
    CEILING_COLUMNS,
    CONTESTANTS,
    absolute_ridge,
    fixed_ceilings,
    measure_cell,
    pair_limits,
    race,
)
from condnum.studies.measure import MEASURES, RESULT_COLUMNS, result_row, settings_table
from condnum.studies.study import Count, Result, Study, StudyRun, at_least
from condnum.theory.ceiling import RirCeiling, share_of_ceiling
from condnum.theory.immunization import RATIO_TOLERANCE, immunization_from_spectra
from condnum.theory.pareto import FeasibleRegion
from condnum.theory.spectra import CovarianceRange

#: Pairs (pretrain, harmful) of digits that stand for the 90.
DEFAULT_PAIRS = ((4, 9), (4, 7), (3, 5), (0, 1), (9, 0))

#: Ridges ε as shares of the mean eigenvalue of K_P, two decades apart.
RIDGE_SHARES = tuple(np.geomspace(1e-9, 1e1, 6).tolist())

TASKS = ["pretrain_task", "harmful_task"]


@dataclass(frozen=True)
class Limits(Study, name="limits"):
    """Ceilings and fronts of task pairs, and every method held against them."""

    data: Literal["house-prices", "mnist", "digits", "embedded"] = "house-prices"  # embedded: diabetes
    source: str = "auto"  # auto or a path; for house prices also embedded
    methods: Methods = ()  # empty: all
    seeds: Count | None = None  # seeds 0 … seeds − 1; None: 3, of MNIST 1
    epochs: Count | None = None  # full-batch steps; None: each method's own
    pairs: Pairs = ()  # of digits; empty: `DEFAULT_PAIRS`
    ridge: float = 1e-3  # ε of front and directions, in mean eigenvalues of K_P
    race_steps: Annotated[int, at_least(0)] = 1000  # of Algorithm 1 against the closed form; 0: no race

    def check(self) -> None:
        """Choose the seeds, and refuse what cannot run."""
        if self.data == "embedded":
            object.__setattr__(self, "data", "house-prices")
            object.__setattr__(self, "source", "embedded")
        if not self.ridge > 0:
            raise InvalidInputError(
                f"ridge is a share of the mean eigenvalue of K_P and must be positive, got {self.ridge}."
            )
        if self.pairs and self.data == "house-prices":
            pairs = ",".join(f"{p}-{h}" for p, h in self.pairs)
            raise InvalidInputError(
                f"pairs='{pairs}' are of digits; house prices are one pair: leave it out."
            )
        if self.seeds is None:  # a cell of MNIST takes seconds, its spread over seeds is small
            object.__setattr__(self, "seeds", 1 if self.data == "mnist" else 3)

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
    def base(self) -> HousePrices | DigitPairs:
        """The study whose extractors are measured."""
        seeds = self.seeds or 1
        if self.data == "house-prices":
            return HousePrices(self.source, self.methods, seeds, self.epochs, device="cpu")
        methods = self.methods or self.chosen_methods
        return DigitPairs(self.data, self.source, methods, seeds, self.epochs, self.pairs or DEFAULT_PAIRS)  # type: ignore[arg-type]

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method was run, a row per method."""
        return settings_table(self.chosen_methods, self.base.settings)

    def load(self) -> TaskPair | Digits:
        """Load the data of the other study."""
        return self.base.load()

    def cells(self, data: Any) -> list[Cell]:
        """List methods and seeds of every pair, the limits of every pair, the race of the first."""
        base, common = self.base.cells(data), {"ridge_shares": self.ridge_shares, "ridge": self.ridge}

        def cell(plan: Cell, part: str, settings: Mapping[str, Any]) -> Cell:
            """Return a cell of this experiment on the same tasks."""
            at = {**plan.at, **common, "data": self.data, "part": part}
            if part != "method":
                at |= {"method": "limits" if part == "pair" else "race", "seed": 0}
            return Cell(at, settings)

        methods = [cell(plan, "method", plan.settings) for plan in base]
        firsts = {(plan.at.get("pretrain"), plan.at.get("harmful")): plan for plan in reversed(base)}
        pairs = [cell(plan, "pair", {}) for plan in reversed(firsts.values())]
        settings: DescentSettings | None = self.base.settings("ours")
        if not self.race_steps or settings is None:
            return methods + pairs
        raced = asdict(settings.with_overrides(steps=self.race_steps))
        return [*methods, *pairs, cell(base[0], "race", raced)]

    def compute(self, data: Any, cell: Cell) -> CellResult:
        """Measure an extractor along ε, compute the limits of a pair, or let a race be run."""
        problem = self.problem(data, cell)
        key = (data.checksum, self.data, cell.at.get("pretrain"), cell.at.get("harmful"))
        ranges = cached(
            ("limits-ranges", *key),
            lambda: (
                CovarianceRange.of(problem.pretrain.covariance, name="pretrain_covariance"),
                CovarianceRange.of(problem.harmful.covariance, name="harmful_covariance"),
            ),
        )
        if cell["part"] == "method":
            bounds = cached(("limits-ceilings", *key), lambda: fixed_ceilings(*ranges))
            return measure_cell(cell, problem, self.base.immunize(data, cell), ranges, bounds)
        ridge = absolute_ridge(ranges[0], cell["ridge"])
        if cell["part"] == "race":
            return race(problem, ranges, ridge=ridge, settings=dict(cell.settings))
        ridges = [absolute_ridge(ranges[0], share) for share in cell["ridge_shares"]]
        return pair_limits(*ranges, ridges=ridges, ridge=ridge, seed=cell["seed"])

    def problem(self, data: Any, cell: Cell) -> ImmunizationProblem:
        """Return the tasks of a cell."""
        base = self.base
        return base.problem(data) if isinstance(base, HousePrices) else cell_problem(data, cell, "cpu")

    def tables(self, data: Any, results: Sequence[Result]) -> dict[str, pd.DataFrame]:
        """Return what was measured, what is possible, and by how much anything lies outside."""
        methods, pairs, races = (
            [
                (self._names(data, cell), CellResult(row, arrays))
                for cell, row, arrays in results
                if cell["part"] == part
            ]
            for part in ("method", "pair", "race")
        )
        ceilings = ceiling_table(pairs, self.ridge_shares)
        ridged = ridge_table(methods, ceilings, self.ridge_shares)
        raced = race_table(races)
        made = {
            "results": measured_table(methods, RESULT_COLUMNS),
            "summary": summary_of_limits(ridged, self.ridge),
            "ridged": ridged,
            "ceilings": ceilings,
            "null_spaces": pd.DataFrame([{**names, **cell.row} for names, cell in pairs]),
            "points": point_table(pairs),
        }
        made["overshoots"] = self._overshoots(made | {"race": raced})
        made["directions"] = direction_table(pairs, data.feature_names)
        return made | ({"race": raced} if len(raced) else {})

    def _overshoots(self, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """Say by which share the worst point of each kind lies outside its region; negative inside.

        Kinds are those of `points`, `methods` (every method and seed) and `race` (Algorithm 1 on K + εI).
        """
        frames = []
        for names in tables["null_spaces"][["dataset", *TASKS]].to_dict("records"):
            tasks = (names["pretrain_task"], names["harmful_task"])
            kinds = of_tasks(tables["points"], tasks).groupby("kind", sort=False)
            tried = {str(kind): part for kind, part in kinds}
            tried["methods"] = self.at_ridge(tables["ridged"], tasks)
            if len(tables["race"]):
                tried["race"] = of_tasks(tables["race"], tasks)
            region = self.region(tables["ceilings"], tables["null_spaces"], tasks)
            frames.append(overshoot_table(tried, region, names))
        return pd.concat(frames, ignore_index=True)

    def at_ridge(self, ridged: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
        """Return the methods of one pair at the ε of the study."""
        table = of_tasks(ridged, tasks)
        return table[table["ridge_share"] == self.ridge]

    def region(
        self, ceilings: pd.DataFrame, null_spaces: pd.DataFrame, tasks: tuple[str, str]
    ) -> FeasibleRegion:
        """Return what is possible for a pair, at the ε of the study."""
        table = of_tasks(ceilings, tasks)
        row = table[table["ridge_share"] == self.ridge].iloc[0]
        rank = int(of_tasks(null_spaces, tasks).iloc[0]["dimension"])  # of K + εI
        ceiling = RirCeiling(
            row["rir_ceiling"], row["lambda_max"], row["lambda_min"], rank, rank, 0, row["ridge"]
        )
        pretrain, harmful, pencil = (float(row[f"kappa_{of}"]) for of in ("pretrain", "harmful", "pencil"))
        return FeasibleRegion(pretrain, harmful, pencil, ceiling, mirrored=True)

    def _names(self, data: Any, cell: Cell) -> dict[str, str]:
        """Return what tables say of a cell's pair."""
        tasks = (
            (data.pretrain_name, data.harmful_name)
            if isinstance(data, TaskPair)
            else (f"digit {cell['pretrain']}", f"digit {cell['harmful']}")
        )
        return {"dataset": data.name, **dict(zip(TASKS, tasks, strict=True))}

    def facts(self, data: Any) -> dict[str, str]:
        """Return what the run was made of."""
        ridge = f"{self.ridge:g} mean eigenvalues of K_P for front and directions"
        return super().facts(data) | {"ε": ridge}


def of_tasks(table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of one pair."""
    return table[(table["pretrain_task"] == tasks[0]) & (table["harmful_task"] == tasks[1])]


def task_pairs(run: StudyRun) -> list[tuple[str, str]]:
    """Return the names of the tasks (D_P, D_H) of every pair that was computed."""
    return list(run.null_spaces[TASKS].itertuples(index=False, name=None))


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
