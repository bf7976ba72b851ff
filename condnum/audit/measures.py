"""The numbers of an audit: κ's, ranks, RIR and ceilings in every convention and gauge, and their sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.audit.extractors import RAW, Comparison
from condnum.audit.hessian_spectra import Extractors, TaskSpectra, cut, spectra_on
from condnum.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.errors import RankError
from condnum.immunization import Gauge, Immunization, immunization_from_spectra
from condnum.spectra import Convention, condition_from_spectrum, default_rtol

#: The ways in which a comparison is measured: compact κ does not see the gauge, ridge κ does.
MEASURES: tuple[tuple[Convention, Gauge], ...] = (
    ("compact", "unit"),
    ("ridge", "unit"),
    ("ridge", "as_trained"),
)


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


def rtol_grid(dimension: int, rtol: float) -> list[float]:
    """Return the rank tolerances of the sweep: from float64's round-off up, the default among them.

    Examples:
        >>> [f"{value:.0e}" for value in rtol_grid(64, 64 * 2.0**-52)]
        ['1e-14', '1e-13', '1e-12', '1e-10', '1e-08', '1e-06', '1e-04']
    """
    least = default_rtol(dimension)
    fixed = [10.0**k for k in (-13, -12, -10, -8, -6, -4)]
    return sorted({least, rtol, *(value for value in fixed if value > least)})


def rtol_sweep(
    spectra: TaskSpectra,
    extractors: Extractors,
    compared: Sequence[Comparison],
    *,
    ridge: float,
    default: float,
) -> pd.DataFrame:
    """Measure compact κ's, ranks, RIR and its ceiling against the rank tolerance."""
    rows = []
    for rtol in rtol_grid(spectra.range_P.dimension, default):
        if rtol < spectra.rtol:
            continue
        P, H = cut(spectra.range_P, rtol), cut(spectra.range_H, rtol)
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
