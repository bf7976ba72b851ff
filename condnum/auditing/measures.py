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
from condnum.probing.probe_steps import ProbeSteps, target_probe
from condnum.studies.measure import MEASURES
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling, share_of_ceiling
from condnum.theory.covariances import CovarianceRange, fit_lost
from condnum.theory.immunization import (
    Clauses,
    HessianSpectra,
    Immunization,
    ThetaScale,
    immunization_from_spectra,
)
from condnum.theory.spectra import (
    PUBLISHED_RIDGE,
    Convention,
    as_extractor,
    condition_from_spectrum,
)

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


@dataclass(frozen=True, eq=False)
class TaskSpectra:
    """The two covariances' ranges, and the non-zero spectra of H(θ) for each θ at unit scale."""

    range_P: CovarianceRange
    range_H: CovarianceRange
    compared: Mapping[str, HessianSpectra]  # extractor -> its spectra beside those of the raw features
    gains: Mapping[str, float]  # ‖θ‖_F²/D: multiplies a spectrum at unit scale to that as trained
    rtol: float

    @classmethod
    def of(
        cls, P: CovarianceRange, H: CovarianceRange, extractors: Extractors, *, rtol: float
    ) -> TaskSpectra:
        """Measure every extractor on the ranges of both covariances."""
        spectra = {name: HessianSpectra.of(theta, P, H, rtol=rtol) for name, theta in extractors.items()}
        gains = {name: float((of.astype(float) ** 2).sum()) / P.dimension for name, of in extractors.items()}
        return cls(P, H, spectra, gains, rtol)

    def measured(
        self, extractor: str, convention: Convention, theta_scale: ThetaScale = "unit", *,
        epsilon: float = PUBLISHED_RIDGE, loss_gap: float | None = None,
    ) -> Immunization:  # fmt: skip
        """Measure one extractor against the raw features (Eq. 15, Definition 3.1)."""
        spectra = self.compared[extractor].scaled(1.0 if theta_scale == "unit" else self.gains[extractor])
        return immunization_from_spectra(
            spectra, convention=convention, theta_scale=theta_scale, rtol=self.rtol, ridge=epsilon,
            loss_gap=loss_gap,
        )  # fmt: skip


def kappa_table(spectra: TaskSpectra, *, epsilon: float) -> pd.DataFrame:
    """List κ of both tasks' Hessians at every extractor, at unit scale."""
    rows = []
    for task, part in (("pretrain", spectra.range_P), ("harmful", spectra.range_H)):
        places = {AS_IS: (part.values, part.dimension)} | {
            name: (getattr(found, f"{task}_after"), found.dimension_after)
            for name, found in spectra.compared.items()
        }
        for extractor, (sigma, D) in places.items():
            for convention in ("compact", "ridge"):
                found = condition_from_spectrum(
                    sigma, convention=convention, rtol=spectra.rtol, ridge=epsilon, dimension=D
                )
                rows.append((task, extractor, convention, *(number.item() for number in found), D))
    names = ["task", "extractor", "convention", "kappa", "sigma_max", "sigma_min", "rank", "dimension"]
    return pd.DataFrame(rows, columns=names)


def own_probes(
    extractors: Extractors, ranges: Sequence[CovarianceRange], tasks: Sequence[TaskRows]
) -> dict[str, list[ProbeSteps | None]]:
    """Count the steps of the probes of both tasks' own targets at every extractor."""
    moments = [None if task.moment is None else torch.from_numpy(task.moment) for task in tasks]
    return {
        name: [
            target_probe(theta, part, b, task.energy)
            for part, b, task in zip(ranges, moments, tasks, strict=True)
        ]
        for name, theta in extractors.items()
    }


def loss_gap(theta: NDArray[Any], part: CovarianceRange, task: TaskRows) -> float | None:
    """Return by how much the best squared loss rises, over that of predicting zero; None without targets."""
    if task.moment is None:
        return None
    lost = fit_lost(as_extractor(theta)[0], part, torch.from_numpy(task.moment))
    return lost / task.energy if task.energy else 0.0


def measures_table(
    spectra: TaskSpectra, *, epsilon: float, gaps: Mapping[str, float | None], probes: Mapping[str, OwnProbes]
) -> pd.DataFrame:
    """Measure every extractor in every convention and at every scale of θ, beside its ceiling."""
    P, H = spectra.range_P, spectra.range_H
    compact_ceiling = rir_ceiling(P, H).value
    rows = []
    for extractor in spectra.compared:
        for convention, theta_scale in MEASURES:
            result = spectra.measured(
                extractor, convention, theta_scale, epsilon=epsilon, loss_gap=gaps[extractor]
            )
            ceiling = math.nan
            if convention == "compact":
                ceiling = compact_ceiling
            elif spectra.compared[extractor].dimension_after == P.dimension:
                norm = P.dimension * (1 if theta_scale == "unit" else spectra.gains[extractor])
                ceiling = ridge_convention_ceiling(P, H, ridge=epsilon, squared_norm=norm)
            share = share_of_ceiling(result.rir, ceiling)
            benign, harmful = (math.nan if of is None else of.slowdown for of in probes[extractor])
            slowdowns = {"benign_slowdown": benign, "harmful_slowdown": harmful}
            rows.append(_row(extractor, result) | {"rir_ceiling": ceiling, "share": share} | slowdowns)
    return pd.DataFrame(rows)


def _row(extractor: str, result: Immunization) -> dict[str, Any]:
    """Return one measurement as columns."""
    return {
        "extractor": extractor,
        "convention": result.convention,
        "theta_scale": result.theta_scale,
        "harmful_ratio": result.harmful_ratio,
        "pretrain_ratio": result.pretrain_ratio,
        "rir": result.rir,
        "kappa_P": result.pretrain_before.value,
        "kappa_H": result.harmful_before.value,
        "rank_pretrain": result.pretrain_after.rank,
        "rank_harmful": result.harmful_after.rank,
        **{f"clause_{name}": kept for name, kept in result.clauses.by_letter.items()},
        "verdict": result.verdict,
        "loss_gap": result.loss_gap,
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
    spectrum: Sequence[float]  # (D,) eigenvalues of K, descending; those below 0 by round-off are 0
    rank: int


def task_facts(name: str, task: TaskRows, rtol: float) -> TaskFacts:
    """Read what K says about a task's rank."""
    stream, sigma = task.stream, np.maximum(np.linalg.eigvalsh(task.covariance)[::-1], 0.0)
    about = (stream.source, task.rows, stream.dimension, stream.stored_eps)
    return TaskFacts(name, *about, sigma.tolist(), int((sigma > rtol * sigma[0]).sum()))
