"""The experiment on limits: how much immunization two tasks allow, and how much of it each method reaches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch

from condnum.data import Digits, TaskPair
from condnum.errors import InvalidInputError
from condnum.methods import ImmunizationResult
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.cells import Cell, CellResult
from condnum.studies.digit_pairs import DigitPairs, Pairs
from condnum.studies.house_prices import HousePrices, MethodNames
from condnum.studies.linear import linear_study
from condnum.studies.measure import MEASURE_COLUMNS, rir_ceilings, spectral_cell, spectral_rows
from condnum.studies.study import Count, FinishedCell, Study, StudyRun
from condnum.theory.ceiling import RirCeiling, null_spaces, pencil_directions, share_of_ceiling
from condnum.theory.immunization import RATIO_TOLERANCE
from condnum.theory.pareto import (
    FeasibleRegion,
    extractor_ratios,
    feasible_region,
    immunizer_family,
    pareto_extractor,
)
from condnum.theory.spectra import CovarianceRange

#: Pairs (pretrain, harmful) of digits that stand for the 90.
DEFAULT_PAIRS = ((4, 9), (4, 7), (3, 5), (0, 1), (9, 0))

#: Ridges ε as shares of the mean eigenvalue of K_P, two decades apart.
RIDGE_SHARES = tuple(np.geomspace(1e-9, 1e1, 6).tolist())

_TASKS = ["pretrain_task", "harmful_task"]

#: (ii) and (i), as `extractor_ratios` returns them.
_RATIOS = ["pretrain_ratio", "harmful_ratio"]

#: A finished cell: dataset, pretrain_task and harmful_task, its row, its arrays.
Named: TypeAlias = tuple[dict[str, str], Any, Any]

#: Powers s of the family from I to θ*, and of the front, that are drawn.
FAMILY = tuple(np.linspace(0, 1, 21).tolist())
FRONT = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)

#: Generalised eigenvectors that are kept from each end of the pencil.
KEPT_DIRECTIONS = 3

#: Ceilings of a cell's three measures.
BOUNDS = ("ceiling_compact", "ceiling_ridge", "ceiling_ridge_as_trained")

#: Columns of the array `ceilings`.
CEILING_COLUMNS = (
    "ridge", "kappa_pretrain", "kappa_harmful", "kappa_pencil", "lambda_max", "lambda_min", "rir_ceiling",
    "optimal_rir",
)  # fmt: skip

#: What the null spaces of a pair are told by.
NULL_SPACES = (
    "dimension", "rank_pretrain", "rank_harmful", "common", "harmful_only", "harmful_energy",
    "intersection", "intersection_energy", "pretrain_only", "pretrain_energy",
)  # fmt: skip


@dataclass(frozen=True)
class Limits(Study, name="limits", version="2"):
    """Ceilings and fronts of task pairs, and every method held against them."""

    data: Literal["house-prices", "mnist", "digits", "embedded"] = "house-prices"  # embedded: diabetes
    source: str = "auto"  # auto or a path; for house prices also embedded
    methods: MethodNames = ()  # empty: all
    seeds: Count | None = None  # seeds 0 … seeds − 1; None: 3, of MNIST 1
    epochs: Count | None = None  # full-batch steps; None: each method's own
    pairs: Pairs = ()  # of digits; empty: `DEFAULT_PAIRS`
    ridge: float = 1e-3  # ε of front and directions, in mean eigenvalues of K_P

    def check(self) -> None:
        """Choose the seeds, and refuse what cannot run."""
        if not self.ridge > 0:
            raise InvalidInputError(
                f"ridge is a share of the mean eigenvalue of K_P and must be positive, got {self.ridge}."
            )
        if self.pairs and self.data not in ("mnist", "digits"):
            raise InvalidInputError(
                f"pairs {self.pairs} are of digits; house prices are one pair: leave them out."
            )
        if self.seeds is None:  # a cell of MNIST takes seconds, its spread over seeds is small
            object.__setattr__(self, "seeds", 1 if self.data == "mnist" else 3)

    @property
    def ridge_shares(self) -> tuple[float, ...]:
        """All ridges, in mean eigenvalues of K_P, ascending; the one of the front among them."""
        others = [share for share in RIDGE_SHARES if not math.isclose(share, self.ridge, rel_tol=1e-9)]
        return tuple(sorted([*others, self.ridge]))

    @property
    def base(self) -> HousePrices | DigitPairs:
        """The study whose extractors are measured."""
        return linear_study(
            self.data,
            self.source,
            methods=self.methods,
            seeds=self.seeds or 1,
            epochs=self.epochs,
            pairs=self.pairs or DEFAULT_PAIRS,
        )

    @property
    def settings_table(self) -> pd.DataFrame:
        """How each method was run, a row per method."""
        return self.base.settings_table

    def load(self) -> TaskPair | Digits:
        """Load the data of the other study."""
        return self.base.load()

    def cells(self, data: Any) -> list[Cell]:
        """List methods and seeds of every pair, and the limits of every pair."""
        base = self.base.cells(data)
        common = {"ridge_shares": self.ridge_shares, "ridge": self.ridge, "data": self.data}
        cells = [Cell({**plan.at, **common, "part": "method"}, plan.settings) for plan in base]
        pairs = {(plan.at.get("pretrain"), plan.at.get("harmful")): plan for plan in reversed(base)}
        for plan in reversed(pairs.values()):
            cells.append(Cell({**plan.at, **common, "part": "pair", "method": "limits", "seed": 0}))
        return cells

    def compute(self, data: Any, cell: Cell) -> CellResult:
        """Measure an extractor along ε, or compute the limits of a pair."""
        base: Any = self.base
        problem = base.problem(data, cell)
        P, H = problem.pretrain.range, problem.harmful.range
        if cell["part"] == "method":
            return _method_cell(cell, problem, base.immunize(data, cell), P, H)
        ridge = absolute_ridge(P, cell["ridge"])
        ridges = [absolute_ridge(P, share) for share in cell["ridge_shares"]]
        return pair_limits(P, H, ridges=ridges, ridge=ridge)

    def tables(self, data: Any, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return what was measured, and what is possible."""
        parts: dict[str, list[Named]] = {"method": [], "pair": []}
        for cell, row, arrays in results:
            tasks = [f"digit {cell.at.get(side)}" for side in ("pretrain", "harmful")]
            if isinstance(data, TaskPair):
                tasks = [data.pretrain_name, data.harmful_name]
            names = {"dataset": data.name, **dict(zip(_TASKS, tasks, strict=True))}
            parts[cell["part"]].append((names, row, arrays))
        ceilings = _stacked(
            {
                **names,
                "ridge_share": self.ridge_shares,
                **dict(zip(CEILING_COLUMNS, arrays["ceilings"].T, strict=True)),
            }
            for names, _, arrays in parts["pair"]
        )
        measured = [
            line
            for names, row, arrays in parts["method"]
            for line in spectral_rows(row, arrays, [row[name] for name in BOUNDS], names)
        ]
        ridged = self._ridged(parts["method"], ceilings)
        return {
            "results": pd.DataFrame(measured, columns=MEASURE_COLUMNS),
            "summary": self.at_ridge(ridged)  # over seeds
            .groupby(["dataset", *_TASKS, "method"], sort=False, as_index=False)
            .agg(
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
            ),
            "ridged": ridged,
            "ceilings": ceilings,
            "null_spaces": pd.DataFrame([names | row for names, row, _ in parts["pair"]]),
            "points": _stacked(
                {**names, "kind": kind, **dict(zip(_RATIOS, arrays[kind].T, strict=True))}
                for names, _, arrays in parts["pair"]
                for kind in ("family", "pareto")
            ),
            "directions": _stacked(  # by input feature
                {
                    **names,
                    "index": index + 1,
                    "eigenvalue": arrays["eigenvalues"][index],
                    "feature": list(data.feature_names),
                    "filter": arrays["filters"][:, column],
                    "pattern": arrays["patterns"][:, column],
                    "share": arrays["filters"][:, column] * arrays["patterns"][:, column],
                }
                for names, _, arrays in parts["pair"]
                for column, index in enumerate(arrays["eigenvalue_index"].tolist())
            ),
        }

    def _ridged(self, methods: Sequence[Named], ceilings: pd.DataFrame) -> pd.DataFrame:
        """List RIR and its share of the ceiling of every extractor against ε."""
        top = 1 + RATIO_TOLERANCE

        def ridged(names: dict[str, str], row: Any, arrays: Any) -> dict[str, Any]:
            limits = of_tasks(ceilings, (names["pretrain_task"], names["harmful_task"]))["rir_ceiling"]
            pretrain, harmful = arrays["ratios"].T
            return {
                **names,
                "method": row["method"],
                "seed": row["seed"],
                "ridge_share": self.ridge_shares,
                "ridge": arrays["ridges"],
                "harmful_ratio": harmful,
                "pretrain_ratio": pretrain,
                "rir": harmful / pretrain,
                "rir_ceiling": limits.to_numpy(),
                "rir_share": [*map(share_of_ceiling, harmful / pretrain, limits)],
                "success": (harmful > top) & (pretrain <= top),
            }

        return _stacked(ridged(*part) for part in methods)

    def at_ridge(self, ridged: pd.DataFrame, tasks: tuple[str, str] | None = None) -> pd.DataFrame:
        """Return the methods, of one pair or of all, at the ε of the study."""
        table = ridged if tasks is None else of_tasks(ridged, tasks)
        return table[table["ridge_share"] == self.ridge]

    def region(
        self, ceilings: pd.DataFrame, null_spaces: pd.DataFrame, tasks: tuple[str, str]
    ) -> FeasibleRegion:
        """Return what is possible for a pair, at the ε of the study."""
        row = self.at_ridge(ceilings, tasks).iloc[0]
        rank = int(of_tasks(null_spaces, tasks).iloc[0]["dimension"])  # of K + εI
        ceiling = RirCeiling(
            row["rir_ceiling"], row["lambda_max"], row["lambda_min"], rank, rank, 0, row["ridge"]
        )
        pretrain, harmful, pencil = (float(row[f"kappa_{of}"]) for of in ("pretrain", "harmful", "pencil"))
        return FeasibleRegion(pretrain, harmful, pencil, ceiling, mirrored=True)


def of_tasks(table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of one pair."""
    return table[(table["pretrain_task"] == tasks[0]) & (table["harmful_task"] == tasks[1])]


def task_pairs(run: StudyRun) -> list[tuple[str, str]]:
    """Return the names of the tasks (D_P, D_H) of every pair that was computed."""
    return list(run.tables["null_spaces"][_TASKS].itertuples(index=False, name=None))


def _stacked(frames: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Put tables below each other, each of columns and of values that all its rows share."""
    made = [pd.DataFrame(frame) for frame in frames]
    return pd.concat(made, ignore_index=True) if made else pd.DataFrame()


def absolute_ridge(pretrain: CovarianceRange, share: float) -> float:
    """Return ε in the units of K."""
    return share * float(pretrain.values.sum()) / pretrain.dimension


def _method_cell(
    cell: Cell,
    problem: ImmunizationProblem,
    result: ImmunizationResult,
    P: CovarianceRange,
    H: CovarianceRange,
) -> CellResult:
    """Measure an extractor on `K + εI` for every ε, and keep its spectra for the usual measures."""
    row, arrays = spectral_cell(problem, result, (P.factor, H.factor))
    ridges = [absolute_ridge(P, share) for share in cell["ridge_shares"]]
    ratios = [extractor_ratios(result.theta, P.ridged(e), H.ridged(e)) for e in ridges]
    bounds = dict(zip(BOUNDS, rir_ceilings(P, H, result.theta), strict=True))
    return CellResult({**row, **bounds}, arrays | {"ridges": np.array(ridges), "ratios": np.array(ratios)})


def pair_limits(
    pretrain: CovarianceRange,
    harmful: CovarianceRange,
    *,
    ridges: Sequence[float],
    ridge: float,
) -> CellResult:
    """Compute what is possible for two tasks."""
    ceilings = []
    for e in ridges:  # the ceiling of `K + εI`, what decides it, and what the closed form attains of it
        P, H = pretrain.ridged(e), harmful.ridged(e)
        region = feasible_region(P, H)
        limit = region.ceiling
        star = (P.vectors * P.values.rsqrt()) @ P.vectors.mT  # θ*, K_P^{-1/2}
        pretrain_ratio, harmful_ratio = extractor_ratios(star, P, H)
        kappas = (region.kappa_pretrain, region.kappa_harmful, region.kappa_pencil)
        bounds = (limit.lambda_max, limit.lambda_min, limit.value)
        ceilings.append((e, *kappas, *bounds, harmful_ratio / pretrain_ratio))
    P, H = pretrain.ridged(ridge), harmful.ridged(ridge)
    spaces, found = null_spaces(pretrain, harmful), pencil_directions(P, H)
    count = min(KEPT_DIRECTIONS, len(found.values) // 2)
    kept = [*range(count), *range(len(found.values) - count, len(found.values))]
    drawn: dict[str, Iterable[torch.Tensor]] = {
        "family": immunizer_family(P, FAMILY),
        "pareto": [torch.as_tensor(pareto_extractor(P, H, power)) for power in FRONT],
    }
    points = {
        kind: np.array([extractor_ratios(theta, P, H) for theta in thetas]) for kind, thetas in drawn.items()
    }
    arrays = points | {
        "ceilings": np.array(ceilings),
        "eigenvalues": found.values.numpy(),
        "eigenvalue_index": np.array(kept),
        "filters": found.filters[:, kept].numpy(),
        "patterns": found.patterns[:, kept].numpy(),
    }
    return CellResult({name: getattr(spaces, name) for name in NULL_SPACES}, arrays)
