"""The numbers of an audit: κ, ranks, RIR and limits per convention and scale of θ, and their sweeps."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.data.feature_stream import FeatureStream, as_stream
from condnum.errors import InvalidInputError, RankError
from condnum.probing.probe_steps import ProbeSteps
from condnum.studies.alignment_path import in_blocks
from condnum.studies.measure import MEASURES
from condnum.theory.alignment import alignment
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.theory.covariances import CovarianceRange, fit_lost, kept_directions
from condnum.theory.immunization import (
    LOSS_TOLERANCE,
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
    default_rtol,
)

#: The raw features, θ = I.
AS_IS = "raw"
#: Yardsticks in closed form: θ* = K_P^{-1/2}, and that at (ii) just below 1.
CLOSED = MAX_RIR, PARETO = "max_rir", "pareto"

#: Erasure of the harmful targets, made from other rows than those that attack it.
ERASED = "erase"

#: How each is called in tables.
LABEL_OF = {
    AS_IS: "raw features",
    "theta": "θ",
    MAX_RIR: "θ* (closed form)",
    PARETO: "Pareto front (closed form)",
    ERASED: "erasure, from other rows",
}

#: A matrix, or where to find one.
ThetaLike = str | os.PathLike[str] | NDArray[Any]

#: Matrices by name; None stands for the raw features.
Extractors = Mapping[str, NDArray[Any] | None]


def read_theta(value: ThetaLike, dimension: int, *, name: str = "theta") -> NDArray[Any]:
    """Read a linear feature extractor in its stored type and check that it fits."""
    stream = as_stream(value, name=name)
    stored = stream.dtype.newbyteorder("=")
    known = stored in (np.float16, np.float32, np.float64)
    theta = stream.array(gaps="refuse").astype(stored if known else np.float64)
    if len(theta) != dimension:
        hint = "; it looks transposed: save θ.T" if theta.shape[1] == dimension else ""
        raise InvalidInputError(
            f"{name} has shape {theta.shape}, but the features have D = {dimension} columns: θ must be "
            f"(D, D_hid), the features of an attacker are Xθ{hint}.{''.join(f' {n}' for n in stream.notes)}"
        )
    if not theta.any():
        raise RankError(
            f"{name} is the zero matrix: no features are extracted, and its condition number is undefined."
        )
    return theta


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
        given = {name: theta for name, theta in extractors.items() if theta is not None}
        spectra = {name: HessianSpectra.of(theta, P, H) for name, theta in given.items()}
        gains = {name: float((theta.astype(float) ** 2).sum()) / P.dimension for name, theta in given.items()}
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


#: Steps of the probes of the benign and of the harmful targets; None where there are none.
OwnProbes = Sequence[ProbeSteps | None]


def measures_table(
    spectra: TaskSpectra, *, epsilon: float, clauses: Mapping[str, ClauseC], probes: Mapping[str, OwnProbes]
) -> pd.DataFrame:
    """Measure every extractor in every convention and at every scale of θ, beside its ceiling."""
    P, H, rtol = spectra.range_P, spectra.range_H, spectra.rtol
    compact_ceiling = rir_ceiling(P, H, rtol=rtol).value
    rows = []
    for extractor in spectra.compared:
        for convention, theta_scale in MEASURES:
            gap, ceiling = clauses[extractor].gap, math.nan
            result = spectra.measured(extractor, convention, theta_scale, epsilon=epsilon, loss_gap=gap)
            if convention == "compact":
                ceiling = compact_ceiling
            elif spectra.compared[extractor].dimension_after == P.dimension:
                norm = P.dimension * (1 if theta_scale == "unit" else spectra.gains[extractor])
                ceiling = ridge_convention_ceiling(P, H, ridge=epsilon, squared_norm=norm, rtol=rtol)
            share = result.rir / ceiling if 0 < ceiling < math.inf else math.nan
            benign, harmful = (math.nan if of is None else of.slowdown for of in probes[extractor])
            slowdowns = {"benign_slowdown": benign, "harmful_slowdown": harmful}
            row = _row(extractor, result) | {"clause_c": clauses[extractor].kept}
            rows.append(row | {"rir_ceiling": ceiling, "share": share} | slowdowns)
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
        "rank_pretrain_before": result.pretrain_before.rank,
        "rank_pretrain": result.pretrain_after.rank,
        "rank_harmful_before": result.harmful_before.rank,
        "rank_harmful": result.harmful_after.rank,
        **{f"clause_{name}": kept for name, kept in result.clauses.by_letter.items()},
        "doubts": "; ".join(result.doubts.values()),
        "loss_gap": result.loss_gap,
    }


def clauses_of(row: Mapping[Any, Any]) -> Clauses:
    """Return the clauses of a row of `measures_table`."""
    kept = (row[f"clause_{letter}"] for letter in "abc")
    return Clauses(*(None if value is None else bool(value) for value in kept))


def rtol_table(
    finest: tuple[CovarianceRange, CovarianceRange], extractors: Extractors, *, default: float
) -> pd.DataFrame:
    """Measure compact κ's, ranks, RIR and its ceiling against the rank tolerance, from round-off up."""
    rows, least = [], default_rtol(finest[0].dimension)
    fixed = [10.0**k for k in (-13, -12, -10, -8, -6, -4)]
    for rtol in sorted({least, default, *(value for value in fixed if value > least)}):
        P, H = (CovarianceRange.of(part, rtol=rtol) for part in finest)
        ceiling = rir_ceiling(P, H, rtol=rtol).value
        here = TaskSpectra.of(P, H, extractors, rtol=rtol)
        facts = {
            "rtol": rtol, "rank_P": P.rank, "rank_H": H.rank,
            "kappa_P": float(P.values[0] / P.values[-1]), "kappa_H": float(H.values[0] / H.values[-1]),
        }  # fmt: skip
        for extractor in here.compared:
            row = _row(extractor, here.measured(extractor, "compact"))
            rows.append(facts | row | {"rir_ceiling": ceiling})
    return pd.DataFrame(rows)


def epsilon_table(spectra: TaskSpectra, *, epsilon: float) -> pd.DataFrame:
    """Measure ridge κ's and RIR (unit scale) against ε, in the units of K and relative to σ₁."""
    top = max(float(spectra.range_P.values[0]), float(spectra.range_H.values[0]))
    kept, rows = ("harmful_ratio", "pretrain_ratio", "rir", "clause_a", "clause_b"), []
    for tried in sorted({epsilon, *(top * np.geomspace(1e-16, 1, 17)).tolist()}):
        for extractor in spectra.compared:
            result = spectra.measured(extractor, "ridge", epsilon=tried)
            kappas = {"kappa_P": result.pretrain_before.value, "kappa_H": result.harmful_before.value}
            facts = {"epsilon": tried, "relative": tried / top, "extractor": extractor, **kappas}
            row = _row(extractor, result)
            rows.append(facts | {name: row[name] for name in kept})
    return pd.DataFrame(rows)


#: Rows and columns of the map of overlaps; more directions are averaged in blocks.
OVERLAP_BLOCKS = 64


def overlap_blocks(K_P: NDArray[np.float64], K_H: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the overlaps :math:`|q_{P,i}^\top q_{H,j}|^2` of both tasks' eigenvectors (Proposition 3.2).

    Of more than `OVERLAP_BLOCKS` directions, rows are averaged and columns summed in as many blocks.
    """
    # Q_P as the U of an invertible θ: adding to the diagonal keeps eigenvectors and their order.
    theta = K_P + np.trace(K_P) / len(K_P) * np.eye(len(K_P))
    return in_blocks(np.asarray(alignment(theta, K_H).overlaps), OVERLAP_BLOCKS)


@dataclass(frozen=True)
class ClauseC:
    """Clause (c) of Definition 3.1 for one extractor: can the pre-training task still be fitted as well?"""

    kept: bool | None  # None: it cannot be said without targets
    gap: float | None  # rise of the best squared loss over the loss of predicting zero
    reason: str


def target_moments(stream: FeatureStream, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Read the rows once and sum their products with the targets: `XᵀY`, `(D, m)`."""
    moment, done = np.zeros((stream.dimension, targets.shape[1])), 0
    for block in stream.blocks():
        moment += block.astype(np.float64).T @ targets[done : done + len(block)]
        done += len(block)
    return moment


def clause_c(
    part: CovarianceRange,
    theta: NDArray[Any],
    moment: NDArray[np.float64] | None = None,
    squared_norm: float = 0.0,
) -> ClauseC:
    """Decide clause (c) from the range of K_P, and from XᵀY and ‖Y‖² where θ loses rank."""
    T = as_extractor(theta)[0]
    if kept_directions(T, part).shape[1] == part.rank:
        return ClauseC(True, 0.0, "θ keeps the rank of the features, so no targets are fitted worse")
    if moment is None:
        words = "θ loses rank on the pre-training features; the loss in fit depends on the targets, "
        return ClauseC(None, None, words + "which were not given")
    gap = fit_lost(T, part, torch.from_numpy(moment)) / squared_norm if squared_norm else 0.0
    words = f"the smallest squared loss rises by {gap:.3g} times the loss of predicting zero"
    return ClauseC(gap <= LOSS_TOLERANCE, gap, f"{words} (allowed: {LOSS_TOLERANCE:g})")
