"""The experiment on limits: how much immunization two tasks allow, and how much of it each method reaches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from condnum.errors import InvalidInputError
from condnum.studies.digits import Pairs
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, StudyRun
from condnum.studies.frame.cells import Arrays
from condnum.studies.linear import LinearStudy
from condnum.studies.method_study import MethodNames, MethodStudy
from condnum.studies.pairs import TABLES, data_set, linear_study
from condnum.theory.kappa import RATIO_TOLERANCE
from condnum.theory.limits import (
    FeasibleRegion,
    RirLimit,
    extractor_ratios,
    feasible_region,
    fraction_of_limit,
    immunizer_family,
    null_spaces,
    pareto_extractor,
    pencil_directions,
)
from condnum.theory.task import Task

#: Pairs (benign, harmful) of digits that stand for the 90.
DEFAULT_PAIRS = ((4, 9), (4, 7), (3, 5), (0, 1), (9, 0))

#: Values of ε in mean eigenvalues of K_P, two decades apart; the one of fronts, directions and the summary.
RIDGE_SHARES = (1e-9, 1e-7, 1e-5, 1e-3, 1e-1, 1e1)
CHOSEN_SHARE = 1e-3

_TASKS = ["benign_task", "harmful_task"]

#: (ii) and (i), as `extractor_ratios` returns them.
_RATIOS = ["benign_ratio", "harmful_ratio"]

#: A finished cell: its names in the tables, its row, its arrays.
Named: TypeAlias = tuple[dict[str, Any], Any, Arrays]

#: Powers s of the family from I to θ*, and of the front, that are drawn.
FAMILY = tuple(np.linspace(0, 1, 21).tolist())
FRONT = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)

#: Generalized eigenvectors that are kept from each end of the pencil.
KEPT_DIRECTIONS = 3

#: Columns of the array `limits`.
LIMIT_COLUMNS = (
    "ridge", "kappa_benign", "kappa_harmful", "kappa_pencil", "lambda_max", "lambda_min", "rir_limit",
    "optimal_rir",
)  # fmt: skip

#: What the null spaces of a pair are told by.
NULL_SPACES = (
    "dimension", "rank_benign", "rank_harmful", "common", "harmful_only", "harmful_energy",
    "intersection", "intersection_energy", "benign_only", "benign_energy",
)  # fmt: skip


@dataclass(frozen=True)
class Limits(MethodStudy, name="limits", notebook="limits"):
    """Limits and fronts of task pairs, and every method held against them."""

    data: str  # house-prices, embedded (diabetes), mnist, digits, or a path
    methods: MethodNames  # empty: all
    seeds: Count | None  # seeds 0 … seeds − 1; None: 3, of MNIST 1
    steps: Count | None  # full-batch steps of immunization; None: each method's own
    pairs: Pairs  # of digits; empty: `DEFAULT_PAIRS`

    def check(self) -> None:
        """Choose the seeds, and refuse what cannot run."""
        known = data_set(self.data)
        if self.pairs and known in TABLES:
            raise InvalidInputError(
                f"pairs {self.pairs} are pairs of digits, but {known} is a single pair; leave pairs out."
            )
        self.fill(seeds=1 if known == "mnist" else 3)  # a cell of MNIST takes seconds, its spread is small

    @property
    def base(self) -> LinearStudy:
        """The study whose extractors are measured."""
        return linear_study(
            self.data,
            methods=self.methods,
            seeds=self.seeds,
            steps=self.steps,
            pairs=self.pairs or DEFAULT_PAIRS,
        )

    def load(self) -> Any:
        """Load the data of the other study."""
        return self.base.load()

    def cells(self, data: Any) -> list[Cell]:
        """List methods and seeds of every pair, and the limits of every pair."""
        base = list(self.base.cells(data))
        first = {(of.at.get("benign"), of.at.get("harmful")): of for of in reversed(base)}
        limits = {"part": "pair", "method": "limits", "seed": 0}
        return [
            *(Cell({**of.at, "part": "method"}, of.settings) for of in base),
            *(Cell({**of.at, **limits}) for of in reversed(first.values())),
        ]

    def compute(self, data: Any, cell: Cell) -> CellResult:
        """Measure an extractor on `K + εI` for every ε, or compute the limits of a pair."""
        problem = self.base.problem(data, cell)
        P, H = problem.benign, problem.harmful
        unit = float(P.values.sum()) / P.dimension  # the mean eigenvalue
        ridges = [share * unit for share in RIDGE_SHARES]
        if cell["part"] == "pair":
            return pair_limits(P, H, ridges=ridges, ridge=CHOSEN_SHARE * unit)
        theta = self.base.immunize(data, cell).theta
        ratios = np.array([extractor_ratios(theta, P.ridged(e), H.ridged(e)) for e in ridges])
        return CellResult({}, {"ridges": np.array(ridges), "ratios": ratios})

    def tables(self, data: Any, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return what is possible, and what every extractor reaches of it."""
        methods, pairs = list[Named](), list[Named]()
        for cell, row, arrays in results:
            names = self.base.names(data, cell)
            if cell["part"] == "pair":
                pairs.append((names, row, arrays))
            else:
                methods.append((names | {name: cell[name] for name in ("method", "seed")}, row, arrays))
        limits = _stacked(
            {
                **names,
                "ridge_share": RIDGE_SHARES,
                **dict(zip(LIMIT_COLUMNS, arrays["limits"].T, strict=True)),
            }
            for names, _, arrays in pairs
        )
        ridged = _stacked(_ridged(names, arrays, limits) for names, _, arrays in methods)
        return {
            "summary": at_ridge(ridged)  # over seeds
            .groupby(["dataset", *_TASKS, "method"], sort=False, as_index=False)
            .agg(
                seeds=("seed", "nunique"),
                ridge=("ridge", "first"),
                harmful_ratio=("harmful_ratio", "mean"),
                benign_ratio=("benign_ratio", "mean"),
                rir=("rir", "mean"),
                rir_limit=("rir_limit", "first"),
                rir_share=("rir_share", lambda values: float(np.exp(np.log(values).mean()))),
                rir_share_min=("rir_share", "min"),
                rir_share_max=("rir_share", "max"),
                immunized=("success", "sum"),
            ),
            "ridged": ridged,
            "limits": limits,
            "null_spaces": pd.DataFrame([names | row for names, row, _ in pairs]),
            "points": _stacked(
                {**names, "kind": kind, **dict(zip(_RATIOS, arrays[kind].T, strict=True))}
                for names, _, arrays in pairs
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
                for names, _, arrays in pairs
                for column, index in enumerate(arrays["eigenvalue_index"].tolist())
            ),
        }


def _ridged(names: Mapping[str, Any], arrays: Arrays, limits: pd.DataFrame) -> dict[str, Any]:
    """Return RIR of an extractor and its fraction of the limit against ε."""
    limits = of_tasks(limits, (names["benign_task"], names["harmful_task"]))["rir_limit"]
    (benign, harmful), top = arrays["ratios"].T, 1 + RATIO_TOLERANCE
    return {
        **names,
        "ridge_share": RIDGE_SHARES,
        "ridge": arrays["ridges"],
        "harmful_ratio": harmful,
        "benign_ratio": benign,
        "rir": harmful / benign,
        "rir_limit": limits.to_numpy(),
        "rir_share": [*map(fraction_of_limit, harmful / benign, limits)],
        "success": (harmful > top) & (benign <= top),
    }


def of_tasks(table: pd.DataFrame, tasks: tuple[str, str]) -> pd.DataFrame:
    """Return the rows of one pair."""
    return table[(table["benign_task"] == tasks[0]) & (table["harmful_task"] == tasks[1])]


def at_ridge(ridged: pd.DataFrame, tasks: tuple[str, str] | None = None) -> pd.DataFrame:
    """Return the rows of one pair, or of all, at the chosen ε."""
    table = ridged if tasks is None else of_tasks(ridged, tasks)
    return table[table["ridge_share"] == CHOSEN_SHARE]


def limits_region(limits: pd.DataFrame, null_spaces: pd.DataFrame, tasks: tuple[str, str]) -> FeasibleRegion:
    """Return what is possible for a pair, at the chosen ε."""
    row = at_ridge(limits, tasks).iloc[0]
    rank = int(of_tasks(null_spaces, tasks).iloc[0]["dimension"])  # of K + εI
    limit = RirLimit(row["rir_limit"], row["lambda_max"], row["lambda_min"], rank, rank, 0, row["ridge"])
    benign, harmful, pencil = (float(row[f"kappa_{of}"]) for of in ("benign", "harmful", "pencil"))
    return FeasibleRegion(benign, harmful, pencil, limit, mirrored=True)


def task_pairs(run: StudyRun) -> list[tuple[str, str]]:
    """Return the names of the tasks (D_P, D_H) of every pair that was computed."""
    return list(run.tables["null_spaces"][_TASKS].itertuples(index=False, name=None))


def _stacked(frames: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Put tables below each other, each of columns and of values that all its rows share."""
    made = [pd.DataFrame(frame) for frame in frames]
    return pd.concat(made, ignore_index=True) if made else pd.DataFrame()


def pair_limits(benign: Task, harmful: Task, *, ridges: Sequence[float], ridge: float) -> CellResult:
    """Compute what is possible for two tasks."""
    limits = []
    for e in ridges:  # the limit of `K + εI`, what decides it, and what the closed form attains of it
        P, H = benign.ridged(e), harmful.ridged(e)
        region = feasible_region(P, H)
        limit = region.limit
        star = P.power(-0.5)  # θ*, K_P^{-1/2}
        benign_ratio, harmful_ratio = extractor_ratios(star, P, H)
        kappas = (region.kappa_benign, region.kappa_harmful, region.kappa_pencil)
        bounds = (limit.lambda_max, limit.lambda_min, limit.value)
        limits.append((e, *kappas, *bounds, harmful_ratio / benign_ratio))
    P, H = benign.ridged(ridge), harmful.ridged(ridge)
    spaces, found = null_spaces(benign, harmful), pencil_directions(P, H)
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
        "limits": np.array(limits),
        "eigenvalues": np.asarray(found.values),
        "eigenvalue_index": np.array(kept),
        "filters": np.asarray(found.filters)[:, kept],
        "patterns": np.asarray(found.patterns)[:, kept],
    }
    return CellResult({name: getattr(spaces, name) for name in NULL_SPACES}, arrays)
