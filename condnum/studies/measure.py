"""What is measured of trained extractors, beside the paper's numbers: results, summary, curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from condnum.files import asset
from condnum.methods import ImmunizationResult, Progress
from condnum.methods.problem import ImmunizationProblem
from condnum.progress import report_event
from condnum.theory.kappa import Convention, Immunization
from condnum.theory.limits import fraction_of_limit, ridge_convention_limit
from condnum.theory.slowdown import LOST_FACTOR
from condnum.theory.task import rank_tolerance

#: The three ways in which RIR is measured: compact κ does not see the scale of θ, ridge κ does.
MEASURES: tuple[tuple[Convention, Any], ...] = (
    ("compact", "unit"),
    ("ridge", "unit"),
    ("ridge", "as_trained"),
)

#: Limits of the three measures in the row of a cell.
LIMITS = ("limit_compact", "limit_ridge", "limit_ridge_as_trained")

#: Columns of the results of linear studies.
MEASURE_COLUMNS = (
    "dataset", "method", "seed", "benign_task", "harmful_task", "convention", "theta_scale",
    "harmful_ratio", "benign_ratio", "rir", "success", "rank_benign", "rank_harmful", "rir_limit",
    "rir_share", "theta_condition", "loss_gap", "benign_slowdown", "harmful_slowdown", "lost", "steps",
    "seconds", "stop_reason",
)  # fmt: skip


class Published(NamedTuple):
    """One row of a published table: (i), (ii) and RIR, each with its standard deviation."""

    harmful_ratio: float
    harmful_ratio_std: float
    benign_ratio: float
    benign_ratio_std: float
    rir: float
    rir_std: float
    accuracy: float = math.nan  # on D_P's test images in percent; of Table 3
    accuracy_std: float = math.nan


def _published(table: int) -> dict[tuple[str, str], dict[str, Published]]:
    """Return the rows of a published table by method, for each backbone and harmful data set."""
    rows = pd.read_csv(StringIO(asset("experiments/published.csv")))
    rows = rows[rows["table"] == table].fillna({"backbone": "", "harmful": ""}).set_index("method")
    return {
        (str(backbone), str(harmful)): {
            str(method): Published(*values) for method, *values in part[[*Published._fields]].itertuples()
        }
        for (backbone, harmful), part in rows.groupby(["backbone", "harmful"], sort=False)
    }


#: Table 1, house prices, 5 seeds.
TABLE_1 = _published(1)["", ""]

#: Table 2, MNIST, 3 seeds, averaged over the 90 ordered digit pairs.
TABLE_2 = _published(2)["", ""]

#: Table 3, by backbone and harmful data set; D_P is ImageNet-1K, 3 seeds.
TABLE_3 = _published(3)


#: What is read from a verdict, by columns of a results table.
_MEASURED = (
    "harmful_ratio", "benign_ratio", "rir", "success", "rank_benign", "rank_harmful", "loss_gap",
)  # fmt: skip

#: What a row of results tells of the run beside what is measured.
_RUN = ("method", "seed", "steps", "seconds", "stop_reason")
_KEPT = (*_RUN, "theta_condition", "benign_slowdown", "harmful_slowdown")


def measured_values(found: Immunization) -> dict[str, Any]:
    """Return what a row of results has of a verdict."""
    values = {name: getattr(found, name) for name in _MEASURED[:4]}
    ranks = {"rank_benign": found.benign_after.rank, "rank_harmful": found.harmful_after.rank}
    return values | ranks | {"loss_gap": math.nan if found.fit_lost is None else found.fit_lost}


def measured_row(problem: ImmunizationProblem, result: ImmunizationResult) -> dict[str, Any]:
    """Measure a method's θ in every convention and at every scale: the row of a cell."""
    theta = result.theta[:, result.theta.any(dim=0)]  # columns of zeros are no features
    sigma, seen = torch.linalg.svdvals(result.theta), problem.seen(theta)
    singular = bool(sigma[-1] <= rank_tolerance(len(theta)) * sigma[0])
    factors = zip(("benign", "harmful"), seen.slowdowns, strict=True)
    row = {name: getattr(result, name) for name in _RUN} | {
        "theta_condition": math.inf if singular else float(sigma[0] / sigma[-1]),
        **{f"{name}_slowdown": math.nan if of is None else of for name, of in factors},
    }
    for convention, scale in MEASURES:
        values = measured_values(seen.immunization(convention, theta_scale=scale))
        row |= {f"{convention}.{scale}.{name}": value for name, value in values.items()}
    return row


def limits(problem: ImmunizationProblem, theta: Tensor | None = None) -> dict[str, float]:
    """Return the RIR limits in both conventions by their columns of a cell; with θ, also at its scale."""
    P, H = problem.benign, problem.harmful
    found = {"limit_compact": problem.limit.value, "limit_ridge": ridge_convention_limit(P, H)}
    if theta is not None:
        norm = float(theta.square().sum())
        found["limit_ridge_as_trained"] = ridge_convention_limit(P, H, squared_norm=norm)
    return found


def measured_lines(row: Mapping[str, Any], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a cell's row as a line per measure, beside the limits that it knows."""
    lines = []
    for (convention, scale), name in zip(MEASURES, LIMITS, strict=True):
        values = {column: row[f"{convention}.{scale}.{column}"] for column in _MEASURED}
        limit = row.get(name, math.nan)
        share = {"rir_limit": limit, "rir_share": fraction_of_limit(values["rir"], limit)}
        # The definition is met, but the benign task is lost.
        lost = bool(values["success"] and row["benign_slowdown"] > LOST_FACTOR)
        kept = {column: row[column] for column in _KEPT}
        own = {"convention": convention, "theta_scale": scale, "lost": lost}
        lines.append(kept | {**facts} | own | values | share)
    return lines


def averages(group: pd.DataFrame, names: Iterable[str]) -> dict[str, float]:
    """Return mean and sample deviation of columns."""
    return {f"{name}_{of}": getattr(group[name], of)() for name in names for of in ("mean", "std")}


def published_columns(fields: Iterable[str], known: NamedTuple | None) -> dict[str, float]:
    """Return what stands beside a row of a summary; NaN where the paper has nothing."""
    return {f"published_{name}": getattr(known, name, np.nan) for name in fields}


def average_over_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Average results over the pairs of digits, seed by seed."""
    keys = ["dataset", "method", "seed", "convention", "theta_scale"]
    means = ("harmful_ratio", "benign_ratio", "rir", "success", "rir_limit", "rir_share", "lost")
    how = dict.fromkeys(means, "mean") | {"loss_gap": "max", "seconds": "sum"}
    how |= {"benign_slowdown": "median", "harmful_slowdown": "median"}
    return table.groupby(keys, sort=False, as_index=False).agg(how)


def seed_summary(results: pd.DataFrame, published: Mapping[str, Published]) -> pd.DataFrame:
    """Average the results over seeds, with the published numbers beside them."""
    rows = [
        {
            "dataset": group["dataset"].iloc[0],
            "method": method,
            "convention": convention,
            "theta_scale": theta_scale,
            "seeds": len(group),
            **averages(group, ("harmful_ratio", "benign_ratio", "rir")),
            "success_rate": group["success"].mean(),
            "lost_rate": group["lost"].mean(),
            "benign_slowdown": group["benign_slowdown"].median(),
            "harmful_slowdown": group["harmful_slowdown"].median(),
            "rir_limit": group["rir_limit"].mean(),
            "rir_share": group["rir_share"].mean(),
            "loss_gap_max": group["loss_gap"].max(),
            "seconds_mean": group["seconds"].mean(),
            **published_columns(Published._fields[:6], published.get(str(method))),
        }
        for (method, convention, theta_scale), group in results.groupby(
            ["method", "convention", "theta_scale"], sort=False
        )
    ]
    return pd.DataFrame(rows)


def curve(facts: Mapping[str, Any], quantity: str, x: Any, value: Any) -> pd.DataFrame:
    """Return one curve in long form."""
    return pd.DataFrame({**facts, "quantity": quantity, "x": np.asarray(x, dtype=np.float64), "value": value})


def report_step(progress: Progress) -> None:
    """Pass a recorded step on to whoever follows the run; a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)
