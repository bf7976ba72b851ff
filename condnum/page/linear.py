"""Tables of the experiment on attackers."""

from typing import Any

import numpy as np
import pandas as pd

from condnum.page.tables import (
    Column,
    number,
    shown,
)


def extractor_table(report: Any, immunization: pd.DataFrame) -> pd.DataFrame:
    """Format spectra, optima and RIR of an attack panel, a row per extractor."""
    table = report.extractors.copy()
    columns: dict[str, Column] = {
        "extractor": "extractor",
        "κ of the attacker's Hessian": "kappa",
        "rank": ("rank features", "{} of {}".format),
        "L₀": "start_loss",
        "L* on its features": "optimum",
        "L* on raw inputs": "raw_optimum",
    }
    for convention, rows in immunization.groupby("convention", sort=False):
        found = {
            row.extractor: f"{number(row.rir)} ({number(row.harmful_ratio)}, {number(row.benign_ratio)})"
            for row in rows.itertuples()
        }
        table[convention] = table["extractor"].map(found).fillna("—")
        columns[f"RIR ((i), (ii)), {convention}"] = (str(convention), str)
    return shown(table, columns)


def _observed(steps: float, last: float) -> str:
    """Format steps, `>N` where they did not suffice."""
    return f"{steps:,.0f}" if np.isfinite(steps) else f">{last:,.0f}"


def prediction_table(report: Any) -> pd.DataFrame:
    """Format the steps that κ predicts against those observed, where there are predictions."""
    table = report.at(report.table, None)
    columns: dict[str, Column] = {
        "attacker": "label", "extractor": "extractor", "observed": ("steps last_step", _observed),
        "from κ alone": "predicted_kappa",
    }  # fmt: skip
    return shown(table[table["predicted_kappa"].notna()], columns)


def choice_table(report: Any) -> pd.DataFrame:
    """Format the best hyper-parameters and steps to the reported target, in the order of the panel."""
    table = report.at(report.table, None)
    order = {name: place for place, name in enumerate(dict.fromkeys(report.table["label"]))}
    columns: dict[str, Column] = {
        "attacker": "label", "extractor": "extractor",
        "choice": "choice", "steps": ("steps last_step", _observed),
    }  # fmt: skip
    return shown(table.sort_values("label", kind="stable", key=lambda labels: labels.map(order)), columns)
