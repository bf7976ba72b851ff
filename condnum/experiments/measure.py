"""From cells to the tidy tables: results (a row per method × seed × convention), summary, curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.ceiling import ridge_convention_ceiling, rir_ceiling, share_of_ceiling
from condnum.data import TaskPair
from condnum.experiments.extractor import Extractor
from condnum.experiments.published import Published
from condnum.immunization import Immunization, relative_immunization_ratio, unit_gauge
from condnum.methods import DescentSettings, get_method
from condnum.probing import linear_probe
from condnum.problem import ImmunizationProblem
from condnum.spectra import Convention, covariance_factor, hessian_spectrum

#: The three ways in which RIR is measured: compact κ does not see the gauge, ridge κ does.
MEASURES: tuple[tuple[Convention, Any], ...] = (
    ("compact", "unit"),
    ("ridge", "unit"),
    ("ridge", "as_trained"),
)

RESULT_COLUMNS = [
    "dataset",
    "method",
    "seed",
    "pretrain_task",
    "harmful_task",
    "convention",
    "gauge",
    "harmful_ratio",
    "pretrain_ratio",
    "rir",
    "success",
    "rank_pretrain",
    "rank_harmful",
    "rir_ceiling",
    "rir_share",
    "theta_condition",
    "loss_gap",
    "steps",
    "seconds",
    "stop_reason",
]


def results_table(pair: TaskPair, problem: ImmunizationProblem, cells: list[Extractor]) -> pd.DataFrame:
    """Measure every cell in every convention and gauge."""
    K_P, K_H = problem.pretrain.covariance, problem.harmful.covariance
    compact_ceiling = rir_ceiling(K_P, K_H).value
    rows = []
    for cell in cells:
        theta = torch.as_tensor(cell.theta).to(K_P)
        loss_gap = problem.pretrain.loss_gap(theta)
        sigma = torch.linalg.svdvals(theta)
        for convention, gauge in MEASURES:
            measured = relative_immunization_ratio(
                theta, K_P, K_H, convention=convention, gauge=gauge, loss_gap=loss_gap
            )
            norm = None if gauge == "unit" else float(theta.square().sum())
            ceiling = (
                compact_ceiling
                if convention == "compact"
                else ridge_convention_ceiling(K_P, K_H, squared_norm=norm)
            )
            facts = {
                "dataset": pair.name,
                "method": cell.method,
                "seed": cell.seed,
                "pretrain_task": pair.pretrain_name,
                "harmful_task": pair.harmful_name,
                "theta_condition": float(sigma[0] / sigma[-1]),
                "steps": cell.steps,
                "seconds": cell.seconds,
                "stop_reason": cell.stop_reason,
            }
            rows.append(result_row(measured, ceiling, facts))
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


def current_rir(problem: ImmunizationProblem, extractor: Extractor) -> float:
    """Return the RIR that progress shows: ridge convention, θ at unit scale."""
    K_P, K_H = problem.pretrain.covariance, problem.harmful.covariance
    theta = torch.as_tensor(extractor.theta).to(K_P)
    return relative_immunization_ratio(theta, K_P, K_H, convention="ridge", gauge="unit").rir


def result_row(measured: Immunization, ceiling: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a results table: what was measured, beside what is known of the cell."""
    return {
        **facts,
        "convention": measured.convention,
        "gauge": measured.gauge,
        "harmful_ratio": measured.harmful_ratio,
        "pretrain_ratio": measured.pretrain_ratio,
        "rir": measured.rir,
        "success": measured.success,
        "rank_pretrain": measured.pretrain_after.rank,
        "rank_harmful": measured.harmful_after.rank,
        "rir_ceiling": ceiling,
        "rir_share": share_of_ceiling(measured.rir, ceiling),
        "loss_gap": measured.loss_gap,
    }


def summary_table(results: pd.DataFrame, published: Mapping[str, Published]) -> pd.DataFrame:
    """Average the results over seeds, with the published numbers beside them."""
    rows = []
    for (method, convention, gauge), group in results.groupby(["method", "convention", "gauge"], sort=False):
        row: dict[str, Any] = {
            "dataset": group["dataset"].iloc[0],
            "method": method,
            "convention": convention,
            "gauge": gauge,
            "seeds": len(group),
        }
        for name in ("harmful_ratio", "pretrain_ratio", "rir"):
            row[f"{name}_mean"] = group[name].mean()
            row[f"{name}_std"] = group[name].std(ddof=1) if len(group) > 1 else np.nan
        row["success_rate"] = group["success"].mean()
        row["rir_ceiling"] = group["rir_ceiling"].mean()
        row["rir_share"] = group["rir_share"].mean()
        row["loss_gap_max"] = group["loss_gap"].max()
        row["seconds_mean"] = group["seconds"].mean()
        known = published.get(str(method))
        for name in Published._fields:
            row[f"published_{name}"] = np.nan if known is None else getattr(known, name)
        rows.append(row)
    return pd.DataFrame(rows)


def settings_table(
    methods: Iterable[str], settings_of: Callable[[str], DescentSettings | None]
) -> pd.DataFrame:
    """List what each method does and how it was set."""
    rows = []
    for name in methods:
        method, settings = get_method(name), settings_of(name)
        chosen = "—" if settings is None else settings.describe(getattr(method, "parts", ()))
        rows.append({"method": method.label, "what it does": method.summary, "settings": chosen})
    return pd.DataFrame(rows)


def curves_table(problem: ImmunizationProblem, cells: list[Extractor], *, probe_steps: int) -> pd.DataFrame:
    """Collect every curve of the report in one long table."""
    frames = [_history_frame(cell) for cell in cells]
    thetas = torch.stack([torch.as_tensor(cell.theta) for cell in cells]).to(problem.device)
    for task_name, task in (("pretrain", problem.pretrain), ("harmful", problem.harmful)):
        factor = covariance_factor(task.covariance)
        for cell, theta in zip(cells, thetas, strict=True):
            sigma = hessian_spectrum(unit_gauge(theta), factor).cpu().numpy()
            frames.append(_frame(cell, task_name, "spectrum", np.arange(1, len(sigma) + 1), sigma))
        X = task.supervised_rows
        if task.targets is None or X is None:
            continue
        curve = linear_probe(thetas, X.mT @ X, X.mT @ task.targets, steps=probe_steps)
        for index, cell in enumerate(cells):
            for quantity in ("norm_ratio", "excess_loss"):
                values = getattr(curve, quantity)[index]
                frames.append(_frame(cell, task_name, quantity, curve.steps, values))
    return pd.concat(frames, ignore_index=True)


def ceiling_sweep(
    problem: ImmunizationProblem, cells: list[Extractor], *, ridges: NDArray[np.float64] | None = None
) -> pd.DataFrame:
    """Measure every cell, and the ceiling, on the ridge covariances `K + εI` for a range of ε.

    Unlike the compact ceiling, which is infinite as soon as the harmful task has a direction of its
    own, this one is finite and every method can be read as a share of it.
    """
    K_P, K_H = problem.pretrain.covariance, problem.harmful.covariance
    if ridges is None:
        largest = float(torch.linalg.eigvalsh(K_P)[-1])
        ridges = np.geomspace(1e-6, max(largest, 1e-3), 25)
    identity = torch.eye(problem.dimension).to(K_P)
    rows: list[dict[str, Any]] = []
    for ridge in ridges:
        ceiling = rir_ceiling(K_P, K_H, ridge=float(ridge)).value
        rows.append({"method": "ceiling", "seed": -1, "ridge": ridge, "rir": ceiling})
        for cell in cells:
            theta = torch.as_tensor(cell.theta).to(K_P)
            measured = relative_immunization_ratio(theta, K_P + ridge * identity, K_H + ridge * identity)
            rows.append({"method": cell.method, "seed": cell.seed, "ridge": ridge, "rir": measured.rir})
    return pd.DataFrame(rows)


def _history_frame(cell: Extractor) -> pd.DataFrame:
    """Return the cell's history in long form."""
    columns = {
        "kappa_pretrain": ("pretrain", "kappa"),
        "kappa_harmful": ("harmful", "kappa"),
        "r_well": ("pretrain", "r_well"),
        "r_ill": ("harmful", "r_ill"),
        "loss": ("pretrain", "loss"),
    }
    frames = [
        _frame(cell, task, quantity, cell.history["step"], cell.history[name])
        for name, (task, quantity) in columns.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _frame(cell: Extractor, task: str, quantity: str, x: Any, value: Any) -> pd.DataFrame:
    """Return one curve in long form."""
    return pd.DataFrame(
        {
            "method": cell.method,
            "seed": cell.seed,
            "task": task,
            "quantity": quantity,
            "x": np.asarray(x, dtype=np.float64),
            "value": value,
        }
    )
