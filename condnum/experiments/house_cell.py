"""One cell of the house-price experiment: a method and a seed → an extractor."""

from __future__ import annotations

from condnum.experiments.extractor import Extractor
from condnum.methods import ImmunizationResult, Progress, immunize
from condnum.problem import ImmunizationProblem
from condnum.progress import report_event
from condnum.sweep import CellPlan, CellResult, cached


def compute_cell(plan: CellPlan) -> CellResult:
    """Train one extractor."""
    return Extractor.of(immunize_cell(plan)[1]).to_cell()


def immunize_cell(plan: CellPlan) -> tuple[ImmunizationProblem, ImmunizationResult]:
    """Run the method of a cell."""
    payload, problem = plan.payload, cell_problem(plan)
    method, seed = payload["method"], payload["seed"]
    return problem, immunize(problem, method, seed=seed, callback=report_step, **plan.settings)


def report_step(progress: Progress) -> None:
    """Pass a recorded step on to whoever follows the run; a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)


def cell_problem(plan: CellPlan) -> ImmunizationProblem:
    """Return the two tasks of a cell, built once a process."""
    payload, data = plan.payload, plan.data
    assert data is not None  # plans of this experiment always name their data
    options = {"features": payload["features"], "rows": payload["rows"]}
    return cached(
        ("house-problem", data, *options.values(), payload["device"]),
        lambda: ImmunizationProblem.from_pair(data.load(**options), device=payload["device"]),
    )
