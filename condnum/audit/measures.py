"""The numbers of an audit: κ's, ranks, RIR and ceilings in every convention and gauge, and their sweeps."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.data.feature_stream import FeatureStream, array_stream, open_feature_stream
from condnum.errors import InvalidInputError, RankError
from condnum.studies.measure import MEASURES
from condnum.theory.alignment import alignment
from condnum.theory.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.immunization import (
    LOSS_TOLERANCE,
    Gauge,
    HessianSpectra,
    Immunization,
    immunization_from_spectra,
    unit_gauge,
)
from condnum.theory.pareto import front_immunizer
from condnum.theory.spectra import (
    Convention,
    CovarianceRange,
    condition_from_spectrum,
    default_rtol,
    hessian_spectrum,
)

#: The features as they are, θ = I.
RAW = "raw"
#: The closed form θ* = K_P^{-1/2}: not the auditor's, but a yardstick.
OPTIMAL = "optimal"
#: The closed form at (ii) just below 1: the same.
FRONT = "front"

#: How each is called in tables.
LABELS = {
    RAW: "features as they are",
    "theta": "θ",
    "theta_0": "θ₀",
    "theta_i": "θ_I",
    OPTIMAL: "θ* (closed form)",
    FRONT: "front (closed form)",
}

#: A matrix, or where to find one.
ThetaLike = str | os.PathLike[str] | NDArray[Any]


@dataclass(frozen=True)
class Comparison:
    """An extractor and its yardstick: κ after over κ before."""

    extractor: str
    baseline: str

    @property
    def label(self) -> str:
        """Both in words; the raw features go without saying."""
        own = LABELS[self.extractor]
        return own if self.baseline == RAW else f"{own} against {LABELS[self.baseline]}"


def read_theta(value: ThetaLike, dimension: int, *, name: str = "theta") -> NDArray[np.float64]:
    """Read a linear feature extractor and check that it fits."""
    if isinstance(value, str | os.PathLike):
        stream = open_feature_stream(value)
    else:
        stream = array_stream(np.asarray(value), name=name)
    with np.errstate(all="ignore"):  # numbers beyond float64 become infinite, which is refused below
        blocks = [np.asarray(block, dtype=np.float64) for block in stream.raw_blocks()]
    if not blocks:
        raise InvalidInputError(f"{name} ({stream.source}) has no rows; it is cut off, or was never filled.")
    theta = np.concatenate(blocks)
    if not np.isfinite(theta).all():
        raise InvalidInputError(
            f"{name} ({stream.source}) has NaN or infinite entries; it cannot be measured."
        )
    if len(theta) != dimension:
        hint = "; it looks transposed: save θ.T" if theta.shape[1] == dimension else ""
        raise InvalidInputError(
            f"{name} has shape {theta.shape}, but the features have D = {dimension} columns: θ must be "
            f"(D, D_hid), the features of an attacker are Xθ{hint}."
        )
    if not theta.any():
        raise RankError(f"{name} is the zero matrix: it extracts nothing and has no condition number.")
    return theta


def read_extractors(
    theta: ThetaLike | None, theta_0: ThetaLike | None, theta_i: ThetaLike | None, dimension: int
) -> dict[str, NDArray[np.float64]]:
    """Read the extractors that were given."""
    pair = (theta_0 is not None, theta_i is not None)
    if theta is not None and any(pair):
        raise InvalidInputError("theta excludes theta_0 and theta_i; give either one extractor or the pair.")
    if any(pair) and not all(pair):
        missing, given = ("theta_i", "theta_0") if pair[0] else ("theta_0", "theta_i")
        raise InvalidInputError(
            f"{given} was given without {missing}: the pair is compared; a single extractor is called theta."
        )
    given_values = {"theta": theta, "theta_0": theta_0, "theta_i": theta_i}
    return {
        name: read_theta(value, dimension, name=name)
        for name, value in given_values.items()
        if value is not None
    }


def with_yardsticks(
    extractors: Mapping[str, NDArray[np.float64]],
    K_P: NDArray[np.float64],
    K_H: NDArray[np.float64],
    ranges: tuple[CovarianceRange, CovarianceRange],
    *,
    rtol: float,
) -> dict[str, NDArray[np.float64] | None]:
    """Put the features as they are in front, and the two closed forms behind."""
    optimal = np.asarray(optimal_immunizer(K_P, K_H, rtol=rtol))
    return {RAW: None, **extractors, OPTIMAL: optimal, FRONT: np.asarray(front_immunizer(*ranges))}


def comparisons(names: Mapping[str, Any]) -> list[Comparison]:
    """List what is compared with what."""
    pair = [Comparison("theta_i", "theta_0")] if "theta_i" in names else []
    order = [name for name in ("theta_i", "theta_0", "theta", OPTIMAL, FRONT) if name in names]
    return pair + [Comparison(name, RAW) for name in order]


Extractors = Mapping[str, NDArray[np.float64] | None]


def covariance_rtol(dimension: int, stored_eps: float) -> float:
    r"""Return the relative rank tolerance of `K = XᵀX` for features that were stored with a round-off.

    Entries rounded to a relative error of `eps/2` move a singular value of X by at most
    :math:`\|E\|_2 \le \|E\|_F \le \tfrac12 eps\,\|X\|_F \le \tfrac12 eps\sqrt D\,s_1` (Weyl), so that D·eps
    is on the safe side; eigenvalues of K are squares, and so is their tolerance. It is never below the
    round-off of the float64 sum, D·2⁻⁵², the default everywhere else. Compare `feature_rtol` of
    `condnum.deep`.

    Examples:
        >>> f"{covariance_rtol(512, 2.0**-23):.1e}", f"{covariance_rtol(512, 2.0**-52):.1e}"
        ('3.7e-09', '1.1e-13')
    """
    return max(default_rtol(dimension, min(stored_eps, 2.0**-23)) ** 2, default_rtol(dimension))


@dataclass(frozen=True, eq=False)
class TaskSpectra:
    """The two covariances' ranges, and the non-zero spectra of H(θ) for each θ in the unit gauge."""

    range_P: CovarianceRange
    range_H: CovarianceRange
    pretrain: Mapping[str, Tensor]  # extractor -> (k,) descending
    harmful: Mapping[str, Tensor]
    dimensions: Mapping[str, int]  # D, or D_hid
    gains: Mapping[str, float]  # ‖θ‖_F²/D: multiplies a spectrum in the unit gauge to that as trained
    rtol: float

    def of(self, extractor: str, baseline: str, gauge: Gauge = "unit") -> HessianSpectra:
        """Return the four spectra that compare an extractor with its baseline."""
        before, after = (1.0, 1.0) if gauge == "unit" else (self.gains[baseline], self.gains[extractor])
        return HessianSpectra(
            self.pretrain[baseline] * before,
            self.pretrain[extractor] * after,
            self.harmful[baseline] * before,
            self.harmful[extractor] * after,
            self.dimensions[baseline],
            self.dimensions[extractor],
        )


def task_spectra(K_P: Tensor, K_H: Tensor, extractors: Extractors, *, rtol: float) -> TaskSpectra:
    """Decompose both covariances and measure every extractor on them."""
    ranges = CovarianceRange.of(K_P, rtol=rtol, name="K_P"), CovarianceRange.of(K_H, rtol=rtol, name="K_H")
    return spectra_on(*ranges, extractors, rtol=rtol)


def spectra_on(
    range_P: CovarianceRange, range_H: CovarianceRange, extractors: Extractors, *, rtol: float
) -> TaskSpectra:
    """Measure every extractor on ranges that are known."""
    D = range_P.dimension
    pretrain, harmful = {RAW: range_P.values}, {RAW: range_H.values}
    dimensions, gains = {RAW: D}, {RAW: 1.0}
    for name, matrix in extractors.items():
        if matrix is None:
            continue
        theta = torch.from_numpy(matrix)
        gains[name] = float(theta.square().sum()) / D
        unit = unit_gauge(theta)
        pretrain[name] = hessian_spectrum(unit, range_P.factor)
        harmful[name] = hessian_spectrum(unit, range_H.factor)
        dimensions[name] = theta.shape[1]
    return TaskSpectra(range_P, range_H, pretrain, harmful, dimensions, gains, rtol)


def cut(part: CovarianceRange, rtol: float) -> CovarianceRange:
    """Return a range at a coarser rank tolerance."""
    kept = part.values > rtol * part.values[0]
    return CovarianceRange(part.values[kept], part.vectors[:, kept])


def kappa_rows(spectra: TaskSpectra, *, ridge: float) -> list[dict[str, Any]]:
    """List κ of both tasks' Hessians at every extractor, in the unit gauge."""
    rows = []
    for task, values in (("pretrain", spectra.pretrain), ("harmful", spectra.harmful)):
        for extractor, sigma in values.items():
            D = spectra.dimensions[extractor]
            for convention in ("compact", "ridge"):
                kappa, largest, smallest, rank = condition_from_spectrum(
                    sigma, convention=convention, rtol=spectra.rtol, ridge=ridge, dimension=D
                )
                rows.append(
                    {
                        "task": task, "extractor": extractor, "convention": convention,
                        "kappa": float(kappa), "sigma_max": float(largest), "sigma_min": float(smallest),
                        "rank": int(rank), "dimension": D,
                    }
                )  # fmt: skip
    return rows


def measured(
    spectra: TaskSpectra,
    comparison: Comparison,
    convention: Convention,
    gauge: Gauge,
    *,
    ridge: float,
    loss_gap: float | None = None,
) -> Immunization:
    """Measure one extractor against its baseline (Eq. 15, Definition 3.1)."""
    return immunization_from_spectra(
        spectra.of(comparison.extractor, comparison.baseline, gauge),
        convention=convention, gauge=gauge, rtol=spectra.rtol, ridge=ridge, loss_gap=loss_gap,
    )  # fmt: skip


def ceiling_against(spectra: TaskSpectra, comparison: Comparison, ceiling: float, ridge: float) -> float:
    """Turn the ceiling of RIR against raw features into that against another baseline.

    RIR multiplies: against θ₀ it is RIR against the raw features over θ₀'s own, so that the ceiling is
    divided by the latter (compact convention).
    """
    if comparison.baseline == RAW:
        return ceiling
    own = measured(spectra, Comparison(comparison.baseline, RAW), "compact", "unit", ridge=ridge)
    return ceiling / own.rir


def measures_table(
    spectra: TaskSpectra,
    compared: Iterable[Comparison],
    *,
    ridge: float,
    loss_gaps: dict[str, float | None],
) -> pd.DataFrame:
    """Measure every comparison in every convention and gauge, beside its ceiling."""
    compact_ceiling = float(rir_ceiling(spectra.range_P, spectra.range_H, rtol=spectra.rtol))
    rows = []
    for pair in compared:
        for convention, gauge in MEASURES:
            gap = loss_gaps.get(pair.extractor)
            result = measured(spectra, pair, convention, gauge, ridge=ridge, loss_gap=gap)
            ceiling = math.nan
            if convention == "compact":
                ceiling = ceiling_against(spectra, pair, compact_ceiling, ridge)
            elif pair.baseline == RAW and spectra.dimensions[pair.extractor] >= spectra.range_P.dimension:
                D = spectra.range_P.dimension
                norm = D if gauge == "unit" else D * spectra.gains[pair.extractor]
                ceiling = ridge_convention_ceiling(
                    spectra.range_P, spectra.range_H, ridge=ridge, squared_norm=norm, rtol=spectra.rtol
                )
            share = result.rir / ceiling if 0 < ceiling < math.inf else math.nan
            rows.append({"extractor": pair.extractor, "baseline": pair.baseline, **_row(result),
                         "rir_ceiling": ceiling, "share": share})  # fmt: skip
    return pd.DataFrame(rows)


def _row(result: Immunization) -> dict[str, Any]:
    """Return one measurement as columns."""
    return {
        "convention": result.convention,
        "gauge": result.gauge,
        "harmful_ratio": result.harmful_ratio,
        "pretrain_ratio": result.pretrain_ratio,
        "rir": result.rir,
        "rank_pretrain_before": result.pretrain_before.rank,
        "rank_pretrain": result.pretrain_after.rank,
        "rank_harmful_before": result.harmful_before.rank,
        "rank_harmful": result.harmful_after.rank,
        **{f"clause_{name}": kept for name, kept in result.clauses.items()},
        "loss_gap": result.loss_gap,
    }


def rtol_sweep(
    finest: tuple[CovarianceRange, CovarianceRange],
    extractors: Extractors,
    compared: Sequence[Comparison],
    *,
    ridge: float,
    default: float,
) -> pd.DataFrame:
    """Measure compact κ's, ranks, RIR and its ceiling against the rank tolerance, from round-off up."""
    rows, least = [], default_rtol(finest[0].dimension)
    fixed = [10.0**k for k in (-13, -12, -10, -8, -6, -4)]
    for rtol in sorted({least, default, *(value for value in fixed if value > least)}):
        P, H = (cut(part, rtol) for part in finest)
        try:
            ceiling = float(rir_ceiling(P, H, rtol=rtol))
        except RankError:  # the directions that are left have nothing in common
            ceiling = math.nan
        here = spectra_on(P, H, extractors, rtol=rtol)
        facts = {
            "rtol": rtol, "rank_P": P.rank, "rank_H": H.rank,
            "kappa_P": float(P.values[0] / P.values[-1]), "kappa_H": float(H.values[0] / H.values[-1]),
        }  # fmt: skip
        for pair in compared:
            result = measured(here, pair, "compact", "unit", ridge=ridge)
            rows.append({**facts, "extractor": pair.extractor, "baseline": pair.baseline, **_row(result),
                         "rir_ceiling": ceiling_against(here, pair, ceiling, ridge)})  # fmt: skip
    return pd.DataFrame(rows)


def ridge_sweep(
    spectra: TaskSpectra, compared: Sequence[Comparison], *, ridge: float, count: int = 17
) -> pd.DataFrame:
    """Measure ridge κ's and RIR (unit gauge) against ε, in the units of K and relative to σ₁."""
    top = max(float(spectra.range_P.values[0]), float(spectra.range_H.values[0]))
    rows = []
    for epsilon in sorted({ridge, *(top * np.geomspace(1e-16, 1, count)).tolist()}):
        for pair in compared:
            result = measured(spectra, pair, "ridge", "unit", ridge=epsilon)
            rows.append(
                {
                    "ridge": epsilon, "relative": epsilon / top, "extractor": pair.extractor,
                    "baseline": pair.baseline, "kappa_P": result.pretrain_before.value,
                    "kappa_H": result.harmful_before.value, "harmful_ratio": result.harmful_ratio,
                    "pretrain_ratio": result.pretrain_ratio, "rir": result.rir,
                    "clause_a": result.clauses["a"], "clause_b": result.clauses["b"],
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


# How the singular vectors of both tasks and of an extractor lie to each other (Proposition 3.2).


#: Rows and columns of the map of overlaps; more directions are averaged in blocks.
MAP_SIZE = 64


@dataclass(frozen=True, eq=False)
class Directions:
    """Overlaps of the tasks' eigenvectors, and Eq. 10 beside the truth for every extractor."""

    overlaps: NDArray[np.float64]  # (m, m) |q_Piᵀq_Hj|², each row's sum 1; blocks summed if D > MAP_SIZE
    dimension: int  # D
    table: pd.DataFrame  # a row per extractor × task


def directions(
    K_P: NDArray[np.float64], K_H: NDArray[np.float64], extractors: Extractors, *, rtol: float
) -> Directions:
    """Measure the overlaps of both tasks, and how far Eq. 10 is from the spectrum of each extractor."""
    columns = ["extractor", "task", "misalignment", "predicted_kappa", "kappa", "majorised",
               "ostrowski_holds", "u_unique"]  # fmt: skip
    rows = []
    for name, theta in extractors.items():
        if theta is None:
            continue
        for task, K in (("pretrain", K_P), ("harmful", K_H)):
            try:
                found = alignment(theta, K, rtol=rtol)
            except RankError:  # θ leaves this task nothing
                continue
            rows.append((name, task, found.misalignment, found.predicted_condition, found.true_condition,
                         found.majorised, found.ostrowski_holds, found.u_unique))  # fmt: skip
    return Directions(overlap_map(K_P, K_H), len(K_P), pd.DataFrame(rows, columns=columns))


def overlap_map(K_P: NDArray[np.float64], K_H: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the overlaps :math:`|q_{P,i}^\top q_{H,j}|^2` of both tasks' eigenvectors (Proposition 3.2).

    Of more than `MAP_SIZE` directions, rows are averaged and columns summed in as many blocks.

    Examples:
        >>> overlap_map(np.diag([3.0, 1.0]), np.diag([1.0, 3.0])).round(12).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    D = len(K_P)
    # Q_P as the U of an invertible θ: adding to the diagonal keeps eigenvectors and their order.
    overlaps = np.asarray(alignment(K_P + np.trace(K_P) / D * np.eye(D), K_H).overlaps)
    if D <= MAP_SIZE:
        return overlaps
    edges: Sequence[int] = np.linspace(0, D, MAP_SIZE + 1).astype(int).tolist()
    summed = np.add.reduceat(np.add.reduceat(overlaps, edges[:-1], axis=0), edges[:-1], axis=1)
    return np.asarray(summed / np.diff(edges)[:, None], dtype=np.float64)


# Clause (c) of Definition 3.1: is the pre-training task still solved as well after θ?


@dataclass(frozen=True)
class ClauseC:
    """Clause (c) for one extractor: can the pre-training task still be fitted as well?"""

    kept: bool | None  # None: it cannot be said without targets
    gap: float | None  # rise of the best squared loss over the loss of predicting zero
    reason: str


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """What the squared loss knows of targets."""

    moment: NDArray[np.float64]  # (D, m), XᵀY
    squared_norm: float  # ‖Y‖_F²


def target_moments(stream: FeatureStream, targets: NDArray[np.float64]) -> TargetMoments:
    """Read the rows once and sum their products with the targets."""
    moment, done = np.zeros((stream.dimension, targets.shape[1])), 0
    for block in stream.blocks():
        moment += block.astype(np.float64).T @ targets[done : done + len(block)]
        done += len(block)
    return TargetMoments(moment, float((targets**2).sum()))


def keeps_range(part: CovarianceRange, theta: NDArray[np.float64]) -> bool:
    """Tell whether features Xθ can fit whatever X can: whether θ keeps the rank of X."""
    s = torch.linalg.svdvals(part.factor @ torch.from_numpy(theta))
    return int((s > default_rtol(max(theta.shape)) * s[0]).sum()) == part.rank


def loss_gap(part: CovarianceRange, theta: NDArray[np.float64], targets: TargetMoments) -> float:
    """Return clause (c) as a rise of the best squared loss, over the loss of predicting zero."""
    if targets.squared_norm == 0:
        return 0.0
    T = part.values.rsqrt()[:, None] * (part.vectors.mT @ torch.from_numpy(targets.moment))  # (r, m)
    U, s, _ = torch.linalg.svd(part.factor @ torch.from_numpy(theta), full_matrices=False)
    fitted = U[:, s > default_rtol(max(theta.shape)) * s[0]].mT @ T
    return float(T.square().sum() - fitted.square().sum()) / targets.squared_norm


def clause_c(part: CovarianceRange, theta: NDArray[np.float64], targets: TargetMoments | None) -> ClauseC:
    """Decide clause (c) for one extractor."""
    if keeps_range(part, theta):
        return ClauseC(True, 0.0, "θ keeps the rank of the features, so that nothing is lost for any targets")
    if targets is None:
        words = "θ loses rank on the pre-training features; what that costs depends on targets, "
        return ClauseC(None, None, words + "and none were given")
    gap = loss_gap(part, theta, targets)
    words = f"the best squared loss rises by {gap:.3g} of the loss of predicting zero"
    return ClauseC(gap <= LOSS_TOLERANCE, gap, f"{words} (allowed: {LOSS_TOLERANCE:g})")
