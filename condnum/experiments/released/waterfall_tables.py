"""From cells to tables: a row per stage × seed × convention, and the waterfalls over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from condnum.experiments.released.audit_config import Stage
from condnum.experiments.released.cell import SPECTRA
from condnum.immunization import HessianSpectra, immunization_from_spectra
from condnum.spectra import Convention
from condnum.sweep import CellResult

#: The floor of the release as a ridge ε = 1e-6, and the non-zero spectrum.
CONVENTIONS: tuple[Convention, ...] = ("ridge", "compact")

RESULT_COLUMNS = [
    "dataset",
    "path",
    "start_epochs",
    "index",
    "switch",
    "seed",
    "convention",
    "harmful_ratio",
    "pretrain_ratio",
    "rir",
    "success",
    "rank_pretrain",
    "rank_harmful",
    "rows_pretrain",
    "rows_harmful",
    "ridge_well",
    "ridge_ill",
    "updates",
    "seconds",
    "stop_reason",
]

#: RIR of the release on house prices as it is reported, by epochs: least and largest.
REPORTED: dict[int, tuple[float, float]] = {10: (1.6, 2.2), 100: (80.0, 115.0), 1000: (2000.0, 2800.0)}


def results_table(dataset: str, cells: Iterable[tuple[Stage, int, CellResult]]) -> pd.DataFrame:
    """Measure every cell in both conventions, θ as trained, on the tasks of its own setting."""
    rows: list[dict[str, Any]] = []
    for stage, seed, (row, arrays) in cells:
        found = {name: torch.from_numpy(np.array(arrays[name])) for name in SPECTRA}
        dimension = int(str(row["dimension"]))
        spectra = HessianSpectra(**found, dimension_before=dimension, dimension_after=dimension)
        for convention in CONVENTIONS:
            measured = immunization_from_spectra(spectra, convention=convention, gauge="as_trained")
            rows.append(
                {
                    "dataset": dataset,
                    "path": stage.path,
                    "start_epochs": stage.start,
                    "index": stage.index,
                    "switch": stage.switch,
                    "seed": seed,
                    "convention": convention,
                    "harmful_ratio": measured.harmful_ratio,
                    "pretrain_ratio": measured.pretrain_ratio,
                    "rir": measured.rir,
                    "success": measured.success,
                    "rank_pretrain": measured.pretrain_after.rank,
                    "rank_harmful": measured.harmful_after.rank,
                }
                | {name: row[name] for name in RESULT_COLUMNS if name in row and name != "seed"}
            )
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


def waterfall_table(results: pd.DataFrame) -> pd.DataFrame:
    r"""Average :math:`\log_{10}` RIR over seeds, with each stage's change.

    The change of a stage on the cumulative path is against the stage before, elsewhere against the
    release at the same epochs, seed by seed: every setting of a seed starts from the same θ₀.
    """
    logs = {
        key: np.log10(part.set_index("seed")["rir"])
        for key, part in results.groupby(["path", "start_epochs", "index", "convention"], sort=False)
    }
    rows = []
    keys = ["path", "start_epochs", "index", "switch", "convention"]
    for (path, start, index, switch, convention), part in results.groupby(keys, sort=False):
        own = logs[path, start, index, convention]
        before = ("cumulative", start, index - 1 if path == "cumulative" else 0, convention)
        change = (own - logs[before]).dropna() if before in logs else pd.Series(dtype=np.float64)
        rows.append(
            {
                "dataset": part["dataset"].iloc[0],
                "path": path,
                "start_epochs": start,
                "index": index,
                "switch": switch,
                "convention": convention,
                "seeds": len(part),
                "rir": 10 ** own.mean(),
                "rir_min": part["rir"].min(),
                "rir_max": part["rir"].max(),
                "log10_rir": own.mean(),
                "log10_rir_std": own.std(ddof=1),
                "change": change.mean(),
                "change_std": change.std(ddof=1),
                "factor": 10 ** change.mean(),
                "immunized": int(part["success"].sum()),
                "updates": int(part["updates"].max()),
            }
        )
    return pd.DataFrame(rows)


def landing_table(
    waterfall: pd.DataFrame, results: pd.DataFrame, reported: Mapping[int, tuple[float, float]]
) -> pd.DataFrame:
    """Hold the release's end against what it is reported to print, in the floor convention."""
    ends = waterfall[
        (waterfall["switch"] == "released")
        & waterfall["path"].isin(["cumulative", "released"])
        & (waterfall["convention"] == "ridge")
    ]
    rows = []
    for end in ends.sort_values("start_epochs").drop_duplicates("start_epochs").to_dict("records"):
        own = results[
            (results["path"] == end["path"])
            & (results["start_epochs"] == end["start_epochs"])
            & (results["index"] == 0)
            & (results["convention"] == "ridge")
        ]["rir"]
        low, high = reported.get(int(end["start_epochs"]), (np.nan, np.nan))
        rows.append(
            {
                "epochs": end["start_epochs"],
                "updates": end["updates"],
                "seeds": len(own),
                "rir_mean": own.mean(),
                "rir_min": own.min(),
                "rir_max": own.max(),
                "reported_min": low,
                "reported_max": high,
                "inside": int(own.between(low, high).sum()),
                "miss": own.mean() / float(np.clip(own.mean(), low, high)),
            }
        )
    return pd.DataFrame(rows)
