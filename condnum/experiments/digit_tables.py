"""From a stored digit-pair cell (scalars and spectra) to rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from condnum.experiments.digit_cell import RIDGES, ridge_ceiling_column
from condnum.experiments.measure import MEASURES, result_row
from condnum.immunization import HessianSpectra, Immunization, immunization_from_spectra
from condnum.spectra import PUBLISHED_RIDGE, default_rtol
from condnum.sweep import CellResult

#: Relative rank tolerances at which the compact convention is repeated, beside the default D·eps.
RTOLS = (1e-15, 1e-10)

_COORDINATES = ("method", "seed", "pretrain_digit", "harmful_digit")


def cell_spectra(row: Mapping[str, Any], arrays: Mapping[str, Any]) -> HessianSpectra:
    """Return a cell's spectra as tensors, for θ as trained."""
    dimension = int(row["dimension"])
    return HessianSpectra(
        pretrain_before=torch.as_tensor(arrays["pretrain_before"]),
        pretrain_after=torch.as_tensor(arrays["pretrain_after"]),
        harmful_before=torch.as_tensor(arrays["harmful_before"]),
        harmful_after=torch.as_tensor(arrays["harmful_after"]),
        dimension_before=dimension,
        dimension_after=dimension,
    )


def measured_rows(dataset: str, row: Mapping[str, Any], spectra: HessianSpectra) -> list[dict[str, Any]]:
    """Measure one cell in every convention and gauge."""
    kept = (*_COORDINATES, "theta_condition", "steps", "seconds", "stop_reason", "eigh_fallbacks")
    facts = {name: row[name] for name in kept} | {
        "dataset": dataset,
        "pretrain_task": f"digit {row['pretrain_digit']}",
        "harmful_task": f"digit {row['harmful_digit']}",
    }
    rows = []
    for convention, gauge in MEASURES:
        scale = row["dimension"] / row["squared_norm"] if gauge == "unit" else 1.0
        measured = immunization_from_spectra(
            spectra.scaled(scale), convention=convention, gauge=gauge, loss_gap=row["loss_gap"]
        )
        ceiling = row["ceiling_compact" if convention == "compact" else ridge_ceiling_column(PUBLISHED_RIDGE)]
        rows.append(result_row(measured, np.nan if gauge == "as_trained" else ceiling, facts))
    return rows


def current_rir(result: CellResult) -> float:
    """Return the RIR that progress shows: ridge convention, θ at unit scale."""
    row: Mapping[str, Any] = result.row
    spectra = cell_spectra(*result).scaled(row["dimension"] / row["squared_norm"])
    return immunization_from_spectra(spectra, convention="ridge", gauge="unit").rir


def ridge_rows(row: Mapping[str, Any], spectra: HessianSpectra) -> list[dict[str, Any]]:
    """Measure one cell in the ridge convention at several ε, θ at unit scale."""
    unit = spectra.scaled(row["dimension"] / row["squared_norm"])
    rows = []
    for ridge in RIDGES:
        measured = immunization_from_spectra(
            unit, convention="ridge", gauge="unit", ridge=ridge, loss_gap=row["loss_gap"]
        )
        facts = {name: row[name] for name in _COORDINATES} | {"ridge": ridge}
        rows.append(result_row(measured, row[ridge_ceiling_column(ridge)], facts))
    return rows


def sensitivity_rows(row: Mapping[str, Any], spectra: HessianSpectra) -> list[dict[str, Any]]:
    """Measure one cell in the compact convention at several rank tolerances."""
    rows = []
    for rtol in (RTOLS[0], default_rtol(spectra.dimension_after), RTOLS[1]):
        measured: Immunization = immunization_from_spectra(
            spectra, convention="compact", gauge="unit", rtol=rtol, loss_gap=row["loss_gap"]
        )
        facts = {name: row[name] for name in _COORDINATES} | {"rtol": rtol}
        rows.append(result_row(measured, row["ceiling_compact"], facts))
    return rows
