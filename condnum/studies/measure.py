"""What is measured of trained extractors, beside the paper's numbers: results, summary, curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from condnum.arrays import ArrayLike
from condnum.methods import DescentSettings, ImmunizationResult, Progress, get_method
from condnum.methods.problem import ImmunizationProblem
from condnum.probing import linear_probe
from condnum.progress import report_event
from condnum.studies.cells import Arrays, CellResult
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling, share_of_ceiling
from condnum.theory.immunization import (
    HessianSpectra,
    Immunization,
    immunization_from_spectra,
    relative_immunization_ratio,
    unit_scale,
)
from condnum.theory.spectra import Convention, hessian_spectrum

#: Steps of the exact line search, as in Fig. 1.
PROBE_STEPS = 20_000

#: The three ways in which RIR is measured: compact κ does not see the scale of θ, ridge κ does.
MEASURES: tuple[tuple[Convention, Any], ...] = (
    ("compact", "unit"),
    ("ridge", "unit"),
    ("ridge", "as_trained"),
)

#: Columns of the results of linear studies.
MEASURE_COLUMNS = [
    "dataset",
    "method",
    "seed",
    "pretrain_task",
    "harmful_task",
    "convention",
    "theta_scale",
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


#: Table 1, house prices, 5 seeds.
TABLE_1 = {
    "r_ill_only": Published(90.02, 3.773, 72.415, 3.545, 1.244, 0.021),
    "imma": Published(7.053, 1.662, 3.545, 0.880, 2.001, 0.187),
    "opt_kappa": Published(1.518, 0.027, 0.016, 0.001, 92.58, 4.492),
    "ours": Published(18.92, 2.056, 0.053, 0.002, 356.20, 5.491),
}

#: Table 2, MNIST, 3 seeds, averaged over the 90 ordered digit pairs.
TABLE_2 = {
    "r_ill_only": Published(14.832, 1.039, 8.654, 0.606, 1.933, 0.046),
    "imma": Published(4.522, 0.139, 2.774, 0.094, 1.774, 0.041),
    "opt_kappa": Published(3.196, 1.225, 0.756, 1.171, 69.73, 54.00),
    "ours": Published(6.345, 0.188, 0.149, 0.009, 70.04, 3.280),
}


_START = {
    "resnet18": Published(1.0, math.nan, 1.0, math.nan, 1.0, math.nan, 68.24),
    "vit": Published(1.0, math.nan, 1.0, math.nan, 1.0, math.nan, 81.78),
}

#: Table 3, by backbone and harmful data set; D_P is ImageNet-1K, 3 seeds.
TABLE_3 = {
    ("resnet18", "cars"): {
        "initial": _START["resnet18"],
        "r_ill_only": Published(1.878, 0.034, 1.786, 0.025, 1.057, 0.026, 63.84, 0.292),
        "imma": Published(0.866, 0.002, 0.889, 0.001, 0.974, 0.002, 63.57, 0.234),
        "opt_kappa": Published(1.217, 0.021, 0.798, 0.005, 1.527, 0.019, 63.65, 0.148),
        "ours": Published(2.386, 0.442, 0.699, 0.062, 3.467, 0.358, 62.36, 0.173),
    },
    ("vit", "cars"): {
        "initial": _START["vit"],
        "r_ill_only": Published(13.121, 0.038, 4.097, 0.098, 3.342, 0.048, 82.21, 0.035),
        "imma": Published(1.422, 0.006, 2.090, 0.043, 0.702, 0.007, 81.89, 0.010),
        "opt_kappa": Published(3.598, 0.510, 0.171, 0.033, 26.369, 2.814, 82.51, 0.085),
        "ours": Published(7.945, 0.247, 0.323, 0.086, 34.517, 0.886, 82.79, 0.200),
    },
    ("resnet18", "country211"): {
        "initial": _START["resnet18"],
        "r_ill_only": Published(20.727, 0.791, 20.675, 1.685, 1.038, 0.05, 62.17, 1.599),
        "imma": Published(0.791, 0.005, 0.814, 0.006, 0.972, 0.007, 67.03, 0.146),
        "opt_kappa": Published(1.538, 0.155, 1.053, 0.091, 1.472, 0.043, 66.81, 0.115),
        "ours": Published(3.287, 0.33, 0.399, 0.034, 8.714, 0.672, 65.01, 0.143),
    },
    ("vit", "country211"): {
        "initial": _START["vit"],
        "r_ill_only": Published(69.291, 1.198, 63.519, 6.62, 1.122, 0.097, 80.73, 0.129),
        "imma": Published(6.242, 0.203, 7.599, 0.717, 0.845, 0.048, 82.47, 0.036),
        "opt_kappa": Published(4.589, 0.079, 0.300, 0.106, 16.498, 5.183, 82.79, 0.023),
        "ours": Published(20.894, 1.425, 0.700, 0.082, 41.341, 0.967, 83.17, 0.075),
    },
}


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


def spectral_cell(
    problem: ImmunizationProblem, result: ImmunizationResult, factors: Sequence[Tensor]
) -> CellResult:
    """Keep the spectra of what a method made of a problem, from which every convention can be read."""
    theta = torch.as_tensor(result.theta).to(factors[0])
    sigma = torch.linalg.svdvals(theta)
    row = {name: getattr(result, name) for name in _RUN} | {
        "dimension": problem.dimension,
        "squared_norm": float(theta.square().sum()),
        "theta_condition": float(sigma[0] / sigma[-1]),
        "loss_gap": problem.pretrain.loss_gap(theta),
    }
    arrays: Arrays = {}
    for name, factor in zip(("pretrain", "harmful"), factors, strict=True):
        arrays[f"{name}_before"] = factor.square().sum(dim=1).cpu().numpy()  # its rows are orthogonal
        arrays[f"{name}_after"] = hessian_spectrum(theta, factor).cpu().numpy()
    return CellResult(row, arrays)


#: Table of the spectra of a run, from which a finished run can be judged anew.
SPECTRA_TABLE = "spectra.npz"


def spectra_table(cells: Iterable[CellResult]) -> pd.DataFrame:
    """Return a row per cell of `spectral_cell`: its scalars, and the four spectra, D values with zeros."""
    rows = []
    for row, arrays in cells:
        D = int(row["dimension"])  # type: ignore[arg-type]
        spectra = {name: np.pad(arrays[name], (0, D - len(arrays[name]))) for name in SPECTRA}
        rows.append(row | spectra)
    return pd.DataFrame(rows).astype({"loss_gap": float})  # None becomes NaN


def cell_spectra(row: Mapping[str, Any], arrays: Arrays, *, unit: bool = False) -> HessianSpectra:
    """Return a cell's spectra as tensors, for θ as trained or at unit scale."""
    found, D = {name: torch.from_numpy(np.array(arrays[name])) for name in SPECTRA}, int(row["dimension"])
    spectra = HessianSpectra(**found, dimension_before=D, dimension_after=D)
    return spectra.scaled(D / row["squared_norm"]) if unit else spectra


def rir_ceilings(P: Any, H: Any, theta: ArrayLike) -> tuple[float, float, float]:
    """Return the ceiling of each of `MEASURES`, from K_P and K_H or their ranges."""
    norm = float(torch.as_tensor(theta).square().sum())
    bounds = (ridge_convention_ceiling(P, H), ridge_convention_ceiling(P, H, squared_norm=norm))
    return rir_ceiling(P, H).value, *bounds


def spectral_rows(
    row: Mapping[str, Any], arrays: Arrays, ceilings: Sequence[float], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Measure a cell in every convention and at every scale of θ, with a ceiling for each of `MEASURES`."""
    facts, rows = {name: row[name] for name in (*_RUN, "theta_condition")} | {**facts}, []
    for (convention, theta_scale), ceiling in zip(MEASURES, ceilings, strict=True):
        spectra = cell_spectra(row, arrays, unit=theta_scale == "unit")
        measured = immunization_from_spectra(
            spectra, convention=convention, theta_scale=theta_scale, loss_gap=row["loss_gap"]
        )
        rows.append(result_row(measured, ceiling, facts))
    return rows


def averages(group: pd.DataFrame, names: Iterable[str]) -> dict[str, float]:
    """Return mean and sample deviation of columns."""
    return {f"{name}_{of}": getattr(group[name], of)() for name in names for of in ("mean", "std")}


def published_columns(fields: Iterable[str], known: NamedTuple | None) -> dict[str, float]:
    """Return what stands beside a row of a summary; NaN where the paper has nothing."""
    return {f"published_{name}": getattr(known, name, np.nan) for name in fields}


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


def settings_table(
    methods: Iterable[str], settings_of: Callable[[str], DescentSettings | None]
) -> pd.DataFrame:
    """List what each method does and how it was set."""
    rows = []
    for name in methods:
        method, settings = get_method(name), settings_of(name)
        chosen = "—" if settings is None else settings.describe(method.parts or ())
        rows.append((method.label, method.summary, chosen))
    return pd.DataFrame(rows, columns=["method", "what it does", "settings"])


def curve(facts: Mapping[str, Any], quantity: str, x: Any, value: Any) -> pd.DataFrame:
    """Return one curve in long form."""
    return pd.DataFrame({**facts, "quantity": quantity, "x": np.asarray(x, dtype=np.float64), "value": value})


def extractor_cell(problem: ImmunizationProblem, result: ImmunizationResult) -> CellResult:
    """Keep θ and its history beside its spectra: all that tables and figures of one pair of tasks need."""
    row, arrays = spectral_cell(
        problem, result, [problem.pretrain.range.factor, problem.harmful.range.factor]
    )
    history = {f"history.{name}": values for name, values in result.history.items()}
    return CellResult(row, arrays | history | {"theta": result.theta.cpu().numpy()})


def extractor_curves(
    problem: ImmunizationProblem, cells: Sequence[CellResult], *, probe_steps: int = PROBE_STEPS
) -> pd.DataFrame:
    """Collect histories, spectra and norm ratios of every `extractor_cell` in one long table."""
    histories = {
        "kappa_pretrain": ("pretrain", "kappa"),
        "kappa_harmful": ("harmful", "kappa"),
        "r_well": ("pretrain", "r_well"),
        "r_ill": ("harmful", "r_ill"),
        "loss": ("pretrain", "loss"),
    }

    def facts(cell: CellResult, task: str) -> dict[str, Any]:
        return {"method": cell.row["method"], "seed": cell.row["seed"], "task": task}

    frames = [
        curve(facts(cell, task), quantity, cell.arrays["history.step"], cell.arrays[f"history.{name}"])
        for cell in cells
        for name, (task, quantity) in histories.items()
    ]
    thetas = torch.stack([torch.as_tensor(cell.arrays["theta"]) for cell in cells]).to(problem.device)
    for name, task in (("pretrain", problem.pretrain), ("harmful", problem.harmful)):
        for cell, theta in zip(cells, thetas, strict=True):
            sigma = hessian_spectrum(unit_scale(theta), task.range.factor).cpu().numpy()
            frames.append(curve(facts(cell, name), "spectrum", np.arange(1, len(sigma) + 1), sigma))
        X = task.supervised_rows
        if task.targets is None or X is None:
            continue
        probe = linear_probe(thetas, X.mT @ X, (X.mT @ task.targets)[None], steps=probe_steps)
        frames += [
            curve(facts(cell, name), quantity, probe.steps, getattr(probe, quantity)[index])
            for index, cell in enumerate(cells)
            for quantity in ("norm_ratio", "excess_loss")
        ]
    return pd.concat(frames, ignore_index=True)


def ceiling_sweep(problem: ImmunizationProblem, cells: Sequence[CellResult]) -> pd.DataFrame:
    """Measure RIR of every `extractor_cell`, and its ceiling, on `K + εI` against ε.

    Unlike the compact ceiling, which is infinite as soon as the harmful task has a direction of its own, this
    one is finite and every method can be read as a fraction of it.
    """
    K_P, K_H = problem.pretrain.covariance, problem.harmful.covariance
    identity = torch.eye(problem.dimension).to(K_P)
    rows: list[tuple[Any, ...]] = []
    for ridge in np.geomspace(1e-6, max(float(torch.linalg.eigvalsh(K_P)[-1]), 1e-3), 25):
        rows.append(("ceiling", -1, ridge, rir_ceiling(K_P, K_H, ridge=float(ridge)).value))
        ridged = (K_P + ridge * identity, K_H + ridge * identity)
        for cell in cells:
            measured = relative_immunization_ratio(torch.as_tensor(cell.arrays["theta"]).to(K_P), *ridged)
            rows.append((cell.row["method"], cell.row["seed"], ridge, measured.rir))
    return pd.DataFrame(rows, columns=["method", "seed", "ridge", "rir"])


def report_step(progress: Progress) -> None:
    """Pass a recorded step on to whoever follows the run; a callback of `immunize`."""
    report_event(stage=progress.method, seed=progress.seed, step=progress.step, steps=progress.steps)
