"""One cell of the digit-pair sweep: a method, a seed, a pair of digits → spectra and scalars."""

from __future__ import annotations

from typing import Any

import torch

from condnum.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.covariance_range import CovarianceRange
from condnum.experiments.digit_tasks import digit_problem
from condnum.methods import ImmunizationResult, immunize
from condnum.problem import ImmunizationProblem
from condnum.spectra import PUBLISHED_RIDGE, hessian_spectrum
from condnum.sweep import CellPlan, CellResult, cached

#: Values of ε, in units of K = XᵀX, at which the ridge convention is read.
RIDGES = (1e-9, PUBLISHED_RIDGE, 1e-3, 1.0, 1e3)


def compute_cell(plan: CellPlan) -> CellResult:
    """Immunize one pair and keep its spectra, from which every convention can be read."""
    problem, result = immunize_cell(plan)
    key = ("ceiling", plan.data_checksum, plan.payload["pretrain"], plan.payload["harmful"])
    return measure_cell(plan, problem, result, cached(key, lambda: ceilings(problem)))


def measure_cell(
    plan: CellPlan, problem: ImmunizationProblem, result: ImmunizationResult, bounds: dict[str, float]
) -> CellResult:
    """Measure what a method made of a cell."""
    payload, theta = plan.payload, result.theta
    sigma = torch.linalg.svdvals(theta)
    row: dict[str, Any] = {
        "method": payload["method"],
        "seed": payload["seed"],
        "pretrain_digit": payload["pretrain"],
        "harmful_digit": payload["harmful"],
        "dimension": problem.dimension,
        "squared_norm": float(theta.square().sum()),
        "theta_condition": float(sigma[0] / sigma[-1]),
        "loss_gap": problem.pretrain.loss_gap(theta),
        "steps": result.steps,
        "seconds": result.seconds,
        "stop_reason": result.stop_reason,
        "eigh_fallbacks": result.counts.get("eigh_fallbacks", 0),
        **bounds,
    }
    arrays = {f"history.{name}": values for name, values in result.history.columns.items()}
    for name, task in (("pretrain", problem.pretrain), ("harmful", problem.harmful)):
        arrays[f"{name}_before"] = task.factor.square().sum(dim=1).cpu().numpy()  # rows are orthogonal
        arrays[f"{name}_after"] = hessian_spectrum(theta, task.factor).cpu().numpy()
    return CellResult(row, arrays)


def immunize_cell(plan: CellPlan) -> tuple[ImmunizationProblem, ImmunizationResult]:
    """Run the method of a cell; deterministic, so that a cell's θ can be had again without storing it."""
    problem = cell_problem(plan, plan.payload["device"])
    return problem, immunize(problem, plan.payload["method"], seed=plan.payload["seed"], **plan.settings)


def cell_problem(plan: CellPlan, device: str) -> ImmunizationProblem:
    """Return the tasks of a cell."""
    payload, data = plan.payload, plan.data
    assert data is not None  # plans of this experiment always name their data
    return digit_problem(
        data,
        payload["pretrain"],
        payload["harmful"],
        loss_rows=payload["loss_rows"],
        labels=payload["labels"],
        device=device,
    )


def ceilings(problem: ImmunizationProblem) -> dict[str, float]:
    """Return the RIR ceilings of a pair in both conventions."""
    P, H = (CovarianceRange.of_factor(task.factor) for task in (problem.pretrain, problem.harmful))
    ridged = {ridge_ceiling_column(ridge): ridge_convention_ceiling(P, H, ridge=ridge) for ridge in RIDGES}
    return {"ceiling_compact": rir_ceiling(P, H).value, **ridged}


def ridge_ceiling_column(ridge: float) -> str:
    """Return the name of a stored ceiling of the ridge convention.

    Examples:
        >>> ridge_ceiling_column(1e-6)
        'ceiling_ridge_1e-06'
    """
    return f"ceiling_ridge_{ridge:g}"
