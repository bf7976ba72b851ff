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
from condnum.studies.frame import CellResult
from condnum.studies.frame.cells import Arrays
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling, share_of_ceiling
from condnum.theory.immunization import HessianSpectra, Immunization, immunization_from_spectra
from condnum.theory.slowdown import LOST_FACTOR
from condnum.theory.spectra import Convention, default_rtol, hessian_spectrum

#: The three ways in which RIR is measured: compact κ does not see the scale of θ, ridge κ does.
MEASURES: tuple[tuple[Convention, Any], ...] = (
    ("compact", "unit"),
    ("ridge", "unit"),
    ("ridge", "as_trained"),
)


#: Ceilings of the three measures in the row of a cell.
CEILINGS = ("ceiling_compact", "ceiling_ridge", "ceiling_ridge_as_trained")

#: Columns of the results of linear studies.
MEASURE_COLUMNS = (
    "dataset", "method", "seed", "pretrain_task", "harmful_task", "convention", "theta_scale",
    "harmful_ratio", "pretrain_ratio", "rir", "success", "rank_pretrain", "rank_harmful", "rir_ceiling",
    "rir_share", "theta_condition", "loss_gap", "benign_slowdown", "harmful_slowdown", "lost", "steps",
    "seconds", "stop_reason",
)  # fmt: skip


class Published(NamedTuple):
    """One row of a published table: (i), (ii) and RIR, each with its standard deviation."""

    harmful_ratio: float
    harmful_ratio_std: float
    pretrain_ratio: float
    pretrain_ratio_std: float
    rir: float
    rir_std: float
    accuracy: float = math.nan  # on D_P's test images in percent; of Table 3
    accuracy_std: float = math.nan


def _published(table: int) -> dict[tuple[str, str], dict[str, Published]]:
    """Return the rows of a published table by method, for each backbone and harmful data set."""
    rows = pd.read_csv(StringIO(asset("studies/published.csv")))
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


def result_row(measured: Immunization, ceiling: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a results table: what was measured, beside what is known of the cell."""
    return {
        **facts,
        "convention": measured.convention,
        "theta_scale": measured.theta_scale,
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


#: Arrays of a cell that keeps spectra, each descending.
SPECTRA = ("pretrain_before", "pretrain_after", "harmful_before", "harmful_after")


#: What a row of results tells of the run beside what is measured.
_RUN = ("method", "seed", "steps", "seconds", "stop_reason")


def own_slowdowns(problem: ImmunizationProblem, theta: Tensor) -> dict[str, float]:
    """Return how many times as many steps the probes of the actual targets take; NaN where there are none."""
    probes = zip(("benign", "harmful"), problem.probe_steps(theta), strict=True)
    return {f"{name}_slowdown": of.slowdown if of else math.nan for name, of in probes}


def spectral_cell(problem: ImmunizationProblem, result: ImmunizationResult) -> CellResult:
    """Keep the spectra of what a method made of a problem, from which every convention can be read."""
    factors = [problem.pretrain.range.factor, problem.harmful.range.factor]
    theta = torch.as_tensor(result.theta).to(factors[0])
    sigma = torch.linalg.svdvals(theta)
    singular = bool(sigma[-1] <= default_rtol(len(theta)) * sigma[0])
    row = {name: getattr(result, name) for name in _RUN} | {
        "dimension": problem.dimension,
        "features": int(theta.any(dim=0).sum()),  # columns of zeros are none
        "squared_norm": float(theta.square().sum()),
        "theta_condition": math.inf if singular else float(sigma[0] / sigma[-1]),
        "loss_gap": problem.pretrain.loss_gap(theta),
    }
    row |= own_slowdowns(problem, theta)
    arrays: Arrays = {}
    for name, factor in zip(("pretrain", "harmful"), factors, strict=True):
        arrays[f"{name}_before"] = factor.square().sum(dim=1).cpu().numpy()  # its rows are orthogonal
        arrays[f"{name}_after"] = hessian_spectrum(theta[:, theta.any(dim=0)], factor).cpu().numpy()
    return CellResult(row, arrays)


def cell_spectra(row: Mapping[str, Any], arrays: Arrays, *, unit: bool = False) -> HessianSpectra:
    """Return a cell's spectra as tensors, for θ as trained or at unit scale."""
    D = int(row["dimension"])
    found = {name: torch.from_numpy(np.array(arrays[name])) for name in SPECTRA}
    sizes = {"dimension_before": D, "dimension_after": int(row["features"])}
    spectra = HessianSpectra(**found, **sizes)  # type: ignore[arg-type]
    return spectra.scaled(D / row["squared_norm"]) if unit else spectra


def ceilings(problem: ImmunizationProblem, theta: Tensor | None = None) -> dict[str, float]:
    """Return the RIR ceilings in both conventions by their columns of a cell; with θ, also at its scale."""
    P, H = problem.pretrain.range, problem.harmful.range
    found = {"ceiling_compact": rir_ceiling(P, H).value, "ceiling_ridge": ridge_convention_ceiling(P, H)}
    if theta is not None:
        norm = float(theta.square().sum())
        found["ceiling_ridge_as_trained"] = ridge_convention_ceiling(P, H, squared_norm=norm)
    return found


def spectral_rows(row: Mapping[str, Any], arrays: Arrays, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measure a cell in every convention and at every scale of θ, beside the ceilings that it knows."""
    kept = (*_RUN, "theta_condition", "benign_slowdown", "harmful_slowdown")
    facts, rows = {name: row[name] for name in kept} | {**facts}, []
    for (convention, theta_scale), ceiling in zip(MEASURES, map(row.get, CEILINGS), strict=True):
        spectra = cell_spectra(row, arrays, unit=theta_scale == "unit")
        measured = immunization_from_spectra(
            spectra, convention=convention, theta_scale=theta_scale, loss_gap=row["loss_gap"]
        )
        line = result_row(measured, math.nan if ceiling is None else ceiling, facts)
        # The definition is met, but the benign task is lost.
        rows.append(line | {"lost": measured.success and row["benign_slowdown"] > LOST_FACTOR})
    return rows


def averages(group: pd.DataFrame, names: Iterable[str]) -> dict[str, float]:
    """Return mean and sample deviation of columns."""
    return {f"{name}_{of}": getattr(group[name], of)() for name in names for of in ("mean", "std")}


def published_columns(fields: Iterable[str], known: NamedTuple | None) -> dict[str, float]:
    """Return what stands beside a row of a summary; NaN where the paper has nothing."""
    return {f"published_{name}": getattr(known, name, np.nan) for name in fields}


def average_over_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Average results over the pairs of digits, seed by seed."""
    keys = ["dataset", "method", "seed", "convention", "theta_scale"]
    means = ("harmful_ratio", "pretrain_ratio", "rir", "success", "rir_ceiling", "rir_share", "lost")
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
            **averages(group, ("harmful_ratio", "pretrain_ratio", "rir")),
            "success_rate": group["success"].mean(),
            "lost_rate": group["lost"].mean(),
            "benign_slowdown": group["benign_slowdown"].median(),
            "harmful_slowdown": group["harmful_slowdown"].median(),
            "rir_ceiling": group["rir_ceiling"].mean(),
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
