"""Cells of the experiment on limits: an extractor measured along ε, the limits of a pair, a race."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from condnum.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.covariance_range import CovarianceRange
from condnum.experiments import digit_cell, house_cell
from condnum.experiments.limits_pair import pair_limits
from condnum.experiments.limits_race import race
from condnum.methods import ImmunizationResult
from condnum.pareto import extractor_ratios
from condnum.problem import ImmunizationProblem
from condnum.spectra import hessian_spectrum
from condnum.sweep import CellPlan, CellResult, cached


def compute_cell(plan: CellPlan) -> CellResult:
    """Compute one cell."""
    part = plan.payload["part"]
    if part == "method":
        problem, result = _experiment(plan).immunize_cell(plan)
        return measure_cell(plan, problem, result)
    problem = cell_problem(plan)
    ranges = task_pair_ranges(plan, problem)
    ridge = absolute_ridge(ranges[0], plan.payload["ridge"])
    if part == "pair":
        ridges = [absolute_ridge(ranges[0], share) for share in plan.payload["ridge_shares"]]
        return pair_limits(*ranges, ridges=ridges, ridge=ridge, seed=plan.payload["seed"])
    return race(problem, ranges, ridge=ridge, settings=plan.settings)


def measure_cell(plan: CellPlan, problem: ImmunizationProblem, result: ImmunizationResult) -> CellResult:
    """Measure an extractor on `K + εI` for every ε, and keep its spectra for the usual measures."""
    P, H = task_pair_ranges(plan, problem)
    theta = result.theta
    sigma = torch.linalg.svdvals(theta)
    ridges = [absolute_ridge(P, share) for share in plan.payload["ridge_shares"]]
    norm = float(theta.square().sum())
    row: dict[str, Any] = {
        "method": plan.payload["method"],
        "seed": plan.payload["seed"],
        "dimension": problem.dimension,
        "squared_norm": norm,
        "theta_condition": float(sigma[0] / sigma[-1]) if float(sigma[-1]) > 0 else float("inf"),
        "loss_gap": problem.pretrain.loss_gap(theta),
        "steps": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        **_ceilings(plan, P, H),
        "ceiling_ridge_as_trained": ridge_convention_ceiling(P, H, squared_norm=norm),
    }
    arrays = {
        "ridges": np.array(ridges),
        "ratios": np.array([extractor_ratios(theta, P.ridged(e), H.ridged(e)) for e in ridges]),
    }
    for name, task in (("pretrain", P), ("harmful", H)):
        arrays[f"{name}_before"] = task.values.numpy()
        arrays[f"{name}_after"] = hessian_spectrum(theta, task.factor).numpy()
    return CellResult(row, arrays)


def cell_problem(plan: CellPlan) -> ImmunizationProblem:
    """Return the tasks of a cell, on the CPU."""
    if plan.payload["data"] == "house-prices":
        return house_cell.cell_problem(plan)
    return digit_cell.cell_problem(plan, plan.payload["device"])


def task_pair_ranges(plan: CellPlan, problem: ImmunizationProblem) -> tuple[CovarianceRange, CovarianceRange]:
    """Return the ranges of both covariances, decomposed once a process."""
    return cached(
        ("limits-ranges", *_tasks(plan)),
        lambda: (
            CovarianceRange.of(problem.pretrain.covariance, name="pretrain_covariance"),
            CovarianceRange.of(problem.harmful.covariance, name="harmful_covariance"),
        ),
    )


def absolute_ridge(pretrain: CovarianceRange, share: float) -> float:
    """Return ε in the units of K.

    Examples:
        >>> absolute_ridge(CovarianceRange.of(torch.diag(torch.tensor([3.0, 0.0])).double()), 0.1)
        0.15...
    """
    return share * float(pretrain.values.sum()) / pretrain.dimension


def _ceilings(plan: CellPlan, P: CovarianceRange, H: CovarianceRange) -> dict[str, float]:
    """Return the ceilings on K itself that do not depend on θ, once a process."""

    def compute() -> dict[str, float]:
        """Return them by column."""
        return {
            "ceiling_compact": rir_ceiling(P, H).value,
            "ceiling_ridge": ridge_convention_ceiling(P, H),
        }

    return cached(("limits-ceilings", *_tasks(plan)), compute)


def _tasks(plan: CellPlan) -> tuple[Any, ...]:
    """Return what decides the tasks of a cell."""
    names = ("data", "pretrain", "harmful", "features", "rows")
    return (plan.data_checksum, *(plan.payload.get(name) for name in names))


def _experiment(plan: CellPlan) -> Any:
    """Return the module whose `immunize_cell` runs the method on these data."""
    return house_cell if plan.payload["data"] == "house-prices" else digit_cell
