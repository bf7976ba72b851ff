"""The numbers of an audit: κ, ranks, RIR and limits per convention and scale of θ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.data.feature_rows import TaskRows
from condnum.probing.probe import ProbeSteps, seen_steps
from condnum.studies.measure import MEASURES
from condnum.theory.kappa import Clauses, Immunization, Seen, kappa
from condnum.theory.limits import fraction_of_limit, limit_of, ridge_convention_limit
from condnum.theory.task import Task

#: The raw features, θ = I.
AS_IS = "raw"
#: Yardsticks in closed form: θ* = K_P^{-1/2}, and that at (ii) just below 1.
CLOSED = MAX_RIR, PARETO = "max_rir", "pareto"
#: Erasure of the harmful targets, made from other rows than those that attack it.
ERASED = "erase"

#: How each is called in tables; an extractor with a name of its own by that.
LABEL_OF = {
    AS_IS: "raw features",
    "theta": "θ",
    MAX_RIR: "θ* (closed form)",
    PARETO: "Pareto front (closed form)",
    ERASED: "erasure from other rows",
}

#: Matrices by name, in their stored type.
Extractors = Mapping[str, NDArray[Any]]
#: Steps of the probes of the benign and of the harmful targets; None where there are none.
OwnProbes = Sequence[ProbeSteps | None]


def kappa_table(P: Task, H: Task, compared: Mapping[str, Seen], *, epsilon: float) -> pd.DataFrame:
    """List κ of both tasks' Hessians at every extractor, at unit scale."""
    rows = []
    for name, task in (("benign", P), ("harmful", H)):
        places = {AS_IS: task.raw} | {of: getattr(seen, name) for of, seen in compared.items()}
        for extractor, seen in places.items():
            for convention in ("compact", "ridge"):
                found = kappa(seen, convention, ridge=epsilon)
                numbers = found.value, found.sigma_max, found.sigma_min, found.rank, found.dimension
                rows.append((name, extractor, convention, *numbers))
    names = ["task", "extractor", "convention", "kappa", "sigma_max", "sigma_min", "rank", "dimension"]
    return pd.DataFrame(rows, columns=names)


def own_probes(compared: Mapping[str, Seen]) -> dict[str, list[ProbeSteps | None]]:
    """Count the steps of the probes of both tasks' own targets at every extractor."""
    return {
        name: [None if of is None else seen_steps(of) for of in seen.probes]
        for name, seen in compared.items()
    }


def measures_table(P: Task, H: Task, compared: Mapping[str, Seen], *, epsilon: float) -> pd.DataFrame:
    """Measure every extractor in every convention and at every scale of θ, beside its limit."""
    compact_limit, rows = limit_of(P, H).value, []
    for extractor, seen in compared.items():
        for convention, theta_scale in MEASURES:
            result = seen.immunization(convention, theta_scale=theta_scale, ridge=epsilon)
            limit = math.nan
            if convention == "compact":
                limit = compact_limit
            elif seen.benign.dimension >= P.dimension:
                norm = P.dimension * (1 if theta_scale == "unit" else seen.size**2)
                limit = ridge_convention_limit(P, H, ridge=epsilon, squared_norm=norm)
            share = fraction_of_limit(result.rir, limit)
            benign, harmful = (math.nan if of is None else of for of in seen.slowdowns)
            slowdowns = {"benign_slowdown": benign, "harmful_slowdown": harmful}
            rows.append(_row(extractor, result) | {"rir_limit": limit, "share": share} | slowdowns)
    return pd.DataFrame(rows)


def _row(extractor: str, result: Immunization) -> dict[str, Any]:
    """Return one measurement as columns."""
    return {
        "extractor": extractor,
        "convention": result.convention,
        "theta_scale": result.theta_scale,
        "harmful_ratio": result.harmful_ratio,
        "benign_ratio": result.benign_ratio,
        "rir": result.rir,
        "kappa_P": result.benign_before.value,
        "kappa_H": result.harmful_before.value,
        "rank_benign": result.benign_after.rank,
        "rank_harmful": result.harmful_after.rank,
        **{f"clause_{name}": kept for name, kept in result.clauses.by_letter.items()},
        "verdict": result.verdict,
        "fit_lost": result.fit_lost,
    }


def rows_with(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """Return the rows that have these values."""
    return table[np.logical_and.reduce([table[name] == value for name, value in values.items()])]


def clauses_of(row: Mapping[Any, Any]) -> Clauses:
    """Return the clauses of a row of `measures_table`."""
    kept = (row[f"clause_{letter}"] for letter in "abc")
    return Clauses(*(None if value is None else bool(value) for value in kept))


@dataclass(frozen=True, eq=False)
class TaskFacts:
    """One task's features."""

    name: str  # D_P or D_H
    source: str
    rows: int  # N
    dimension: int  # D
    stored_eps: float
    spectrum: Sequence[float]  # (D,) eigenvalues of K, descending
    rank: int


def task_facts(name: str, found: TaskRows) -> TaskFacts:
    """Read what the factor says about a task's rank."""
    task, stream = found.task, found.stream
    sigma = torch.linalg.svdvals(task.products[0]).square()
    spectrum = torch.nn.functional.pad(sigma, (0, task.dimension - len(sigma))).tolist()
    return TaskFacts(name, stream.source, found.rows, task.dimension, stream.stored_eps, spectrum, task.rank)
