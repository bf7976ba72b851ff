"""From cells of the experiment on limits to its tidy tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.ceiling import share_of_ceiling
from condnum.experiments.digit_tables import cell_spectra
from condnum.experiments.limits_pair import CEILING_COLUMNS
from condnum.experiments.limits_race import CONTESTANTS
from condnum.experiments.measure import MEASURES, result_row
from condnum.immunization import RATIO_TOLERANCE, immunization_from_spectra
from condnum.pareto import FeasibleRegion
from condnum.sweep import CellResult

#: What a table says of the pair that a row belongs to: `dataset`, `pretrain_task`, `harmful_task`.
Names = Mapping[str, str]

#: A finished cell with its pair's names.
Named = tuple[Names, CellResult]

_CEILINGS = {
    ("compact", "unit"): "ceiling_compact",
    ("ridge", "unit"): "ceiling_ridge",
    ("ridge", "as_trained"): "ceiling_ridge_as_trained",
}


def measured_table(cells: Iterable[Named], columns: Sequence[str]) -> pd.DataFrame:
    """Measure the extractors in the conventions and gauges of the other experiments."""
    rows = []
    for names, (row, arrays) in cells:
        spectra = cell_spectra(row, arrays)
        kept = ("method", "seed", "theta_condition", "steps", "seconds", "stop_reason")
        facts = {**names, **{name: row[name] for name in kept}}
        squared_norm, dimension = float(str(row["squared_norm"])), int(str(row["dimension"]))
        for convention, gauge in MEASURES:
            measured = immunization_from_spectra(
                spectra.scaled(dimension / squared_norm if gauge == "unit" else 1.0),
                convention=convention,
                gauge=gauge,
                loss_gap=row["loss_gap"],  # type: ignore[arg-type]
            )
            ceiling = float(str(row[_CEILINGS[convention, gauge]]))
            rows.append(result_row(measured, ceiling, facts))
    return pd.DataFrame(rows, columns=list(columns))


def ridge_table(cells: Iterable[Named], ceilings: pd.DataFrame, shares: Sequence[float]) -> pd.DataFrame:
    """List RIR and its share of the ceiling of every extractor against ε."""
    limits = ceilings.set_index(["pretrain_task", "harmful_task", "ridge_share"])["rir_ceiling"]
    rows = []
    for names, (row, arrays) in cells:
        for share, ridge, (pretrain, harmful) in zip(shares, arrays["ridges"], arrays["ratios"], strict=True):
            ceiling = float(limits.loc[names["pretrain_task"], names["harmful_task"], share])
            rir = float(harmful / pretrain)
            tops = 1 + RATIO_TOLERANCE
            rows.append(
                {
                    **names,
                    "method": row["method"],
                    "seed": row["seed"],
                    "ridge_share": share,
                    "ridge": float(ridge),
                    "harmful_ratio": float(harmful),
                    "pretrain_ratio": float(pretrain),
                    "rir": rir,
                    "rir_ceiling": ceiling,
                    "rir_share": share_of_ceiling(rir, ceiling),
                    "success": bool(harmful > tops and pretrain <= tops),
                }
            )
    return pd.DataFrame(rows)


def summary_of_limits(ridged: pd.DataFrame, share: float) -> pd.DataFrame:
    """Average over seeds at one ridge."""
    chosen = ridged[np.isclose(ridged["ridge_share"], share)]
    keys = ["dataset", "pretrain_task", "harmful_task", "method"]
    return chosen.groupby(keys, sort=False, as_index=False).agg(
        seeds=("seed", "nunique"),
        ridge=("ridge", "first"),
        harmful_ratio=("harmful_ratio", "mean"),
        pretrain_ratio=("pretrain_ratio", "mean"),
        rir=("rir", "mean"),
        rir_ceiling=("rir_ceiling", "first"),
        rir_share=("rir_share", lambda values: float(np.exp(np.log(values).mean()))),
        rir_share_min=("rir_share", "min"),
        rir_share_max=("rir_share", "max"),
        immunized=("success", "sum"),
    )


def ceiling_table(cells: Iterable[Named], shares: Sequence[float]) -> pd.DataFrame:
    """List the ceiling of every pair against ε."""
    frames = [
        pd.DataFrame(cell.arrays["ceilings"], columns=list(CEILING_COLUMNS)).assign(
            ridge_share=list(shares), **names
        )
        for names, cell in cells
    ]
    table = pd.concat(frames, ignore_index=True)
    first = ["dataset", "pretrain_task", "harmful_task", "ridge_share"]
    return table[[*first, *CEILING_COLUMNS]]


def null_space_table(cells: Iterable[Named]) -> pd.DataFrame:
    """List what each task has and the other lacks, a row per pair, as `null_space.NullSpaces`."""
    return pd.DataFrame([{**names, **cell.row} for names, cell in cells])


def point_table(cells: Iterable[Named]) -> pd.DataFrame:
    """List the tried points of the (ii)/(i) plane."""
    kinds = ("family", "front", "random", "climbed")
    frames = [
        pd.DataFrame(cell.arrays[kind], columns=["pretrain_ratio", "harmful_ratio"]).assign(
            kind=kind, **names
        )
        for names, cell in cells
        for kind in kinds
        if kind in cell.arrays
    ]
    table = pd.concat(frames, ignore_index=True)
    first = ["dataset", "pretrain_task", "harmful_task", "kind"]
    return table[[*first, "pretrain_ratio", "harmful_ratio"]]


def direction_table(cells: Iterable[Named], features: Sequence[str]) -> pd.DataFrame:
    """List the generalised eigenvectors at both ends of each pencil, by input feature."""
    frames = []
    for names, (_, arrays) in cells:
        for column, index in enumerate(arrays["eigenvalue_index"].tolist()):
            w, pattern = arrays["filters"][:, column], arrays["patterns"][:, column]
            values: dict[str, Any] = {
                "index": index + 1,
                "eigenvalue": arrays["eigenvalues"][index],
                "feature": list(features),
                "filter": w,
                "pattern": pattern,
                "share": w * pattern,
            }
            frames.append(pd.DataFrame({**names, **values}))
    return pd.concat(frames, ignore_index=True)


def overshoot_table(tried: Mapping[str, pd.DataFrame], region: FeasibleRegion, names: Names) -> pd.DataFrame:
    """Hold extractors against the region that none may leave."""
    rows = []
    for kind, table in tried.items():
        if table.empty:
            continue
        ratios = table[["pretrain_ratio", "harmful_ratio"]].dropna()
        if len(ratios):
            largest = float((ratios["harmful_ratio"] / ratios["pretrain_ratio"]).max())
            rows.append(
                {
                    **names,
                    "kind": kind,
                    "points": len(ratios),
                    "overshoot": region.overshoot(ratios.to_numpy()),
                    "largest_share": share_of_ceiling(largest, region.ceiling.value),
                }
            )
    return pd.DataFrame(rows)


def race_table(cells: Iterable[Named]) -> pd.DataFrame:
    """List the contestants of a race, the closed forms first."""
    rows = []
    for names, (row, arrays) in cells:
        for index, contestant in enumerate(CONTESTANTS):
            pretrain, harmful = arrays["ratios"][index].tolist()
            rir, ceiling = harmful / pretrain, float(str(row["rir_ceiling"]))
            rows.append(
                {
                    **names,
                    "contestant": contestant,
                    "steps": row["steps"] if contestant == CONTESTANTS[-1] else 0,
                    "ridge": row["ridge"],
                    "seconds": arrays["seconds"][index],
                    "times_faster": arrays["seconds"][-1] / arrays["seconds"][index],
                    "rir": rir,
                    "rir_ceiling": ceiling,
                    "rir_share": share_of_ceiling(rir, ceiling),
                    "pretrain_ratio": pretrain,
                    "harmful_ratio": harmful,
                }
            )
    return pd.DataFrame(rows)
