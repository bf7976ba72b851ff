"""One cell of the house-price experiment: a method and a seed → an extractor."""

from __future__ import annotations

from condnum.experiments.extractor import Extractor
from condnum.methods import Progress, immunize
from condnum.problem import ImmunizationProblem
from condnum.progress import report_event
from condnum.sweep import CellPlan, CellResult, cached


def compute_cell(plan: CellPlan) -> CellResult:
    """Train one extractor.

    Args:
        plan: `payload` with `method, seed, features, rows, device`; `settings` of the method (empty
            for closed forms); `data`.

    Returns:
        `Extractor.to_cell`.
    """
    payload = plan.payload
    problem = _problem(plan)
    result = immunize(problem, payload["method"], seed=payload["seed"], callback=report_step, **plan.settings)
    return Extractor.of(result).to_cell()


def report_step(progress: Progress) -> None:
    """Pass a recorded step on to whoever follows the run; a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)


def _problem(plan: CellPlan) -> ImmunizationProblem:
    """Return the two tasks, built once a process."""
    payload, data = plan.payload, plan.data
    assert data is not None  # plans of this experiment always name their data
    options = {"features": payload["features"], "rows": payload["rows"]}
    return cached(
        ("house-problem", data, *options.values(), payload["device"]),
        lambda: ImmunizationProblem.from_pair(data.load(**options), device=payload["device"]),
    )
