"""From stored deep-net cells to the tidy tables: results, summary beside Table 3, curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from condnum.studies.cells import CellResult
from condnum.studies.deep_cells import CONVENTIONS, INITIAL, DeepTasks
from condnum.studies.measure import TABLE_3, PublishedNet

RESULT_COLUMNS = [
    "pretrain_data",
    "harmful_data",
    "backbone",
    "method",
    "seed",
    "convention",
    "gauge",
    "harmful_ratio",
    "harmful_ratio_group_std",
    "pretrain_ratio",
    "pretrain_ratio_group_std",
    "rir",
    "rir_group_std",
    "rir_least_draw",
    "rir_largest_draw",
    "success",
    "test_harmful_ratio",
    "test_harmful_ratio_group_std",
    "test_pretrain_ratio",
    "test_pretrain_ratio_group_std",
    "test_rir",
    "test_rir_group_std",
    "test_rir_least_draw",
    "test_rir_largest_draw",
    "test_success",
    "rank_pretrain",
    "rank_harmful",
    "kappa_pretrain_before",
    "kappa_pretrain_after",
    "kappa_harmful_before",
    "kappa_harmful_after",
    "dimension",
    "group_size",
    "accuracy",
    "accuracy_theta_0",
    "probe_final",
    "probe_mean",
    "probe_rate",
    "probe_multiple",
    "convex",
    "chance",
    "steps",
    "best_step",
    "seconds",
    "stop_reason",
    "unreadable",
    "checksum",
]

#: Averaged over seeds in the summary, with their deviation.
AVERAGED = (
    "harmful_ratio",
    "pretrain_ratio",
    "rir",
    "test_harmful_ratio",
    "test_pretrain_ratio",
    "test_rir",
    "rir_group_std",
    "test_rir_group_std",
    "accuracy",
    "accuracy_theta_0",
    "probe_final",
    "probe_mean",
    "convex",
)

#: Published backbones by the name of timm's model without its tag.
_FAMILIES = {"resnet18": "resnet18", "vit_base_patch16_clip_224": "vit"}

#: Classes of the published harmful sets.
_HARMFUL = {196: "cars", 211: "country211"}
_IMAGENET_CLASSES = 1000


def results_table(tasks: DeepTasks, cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return a row per backbone × seed × method × convention."""
    start = {
        (c.row["backbone"], c.row["seed"]): c.row["accuracy"] for c in cells if c.row["method"] == INITIAL
    }
    rows = []
    for row, _ in cells:
        for convention in CONVENTIONS:
            measured = {
                key.partition(".")[2]: value for key, value in row.items() if key.startswith(f"{convention}.")
            }
            rows.append(
                {
                    **row,
                    **measured,
                    "pretrain_data": tasks.pretrain.name,
                    "harmful_data": tasks.harmful.name,
                    "convention": convention,
                    "gauge": "unit",
                    "rank_pretrain": measured["rank_pretrain_after"],
                    "rank_harmful": measured["rank_harmful_after"],
                    "accuracy_theta_0": start.get((row["backbone"], row["seed"]), np.nan),
                }
            )
    names = list(dict.fromkeys(row["backbone"] for row, _ in cells))
    rows.sort(key=lambda row: names.index(row["backbone"]))  # stable: θ₀ stays first in each
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


def published_column(backbone: str, tasks: DeepTasks) -> tuple[dict[str, PublishedNet], bool]:
    """Return the column of Table 3 to show beside a backbone, and whether it is of the same experiment.

    The same means: the paper's architecture, D_P with the 1000 classes of ImageNet, D_H with the 196
    classes of Stanford Cars or the 211 of Country211. Elsewhere the Cars column of the nearer
    architecture is shown for orientation only.
    """
    family = _FAMILIES.get(backbone.split(".")[0])
    harmful = _HARMFUL.get(len(tasks.harmful.classes))
    if family and harmful and len(tasks.pretrain.classes) == _IMAGENET_CLASSES:
        return TABLE_3[family, harmful], True
    near = "vit" if "vit" in backbone.lower() else "resnet18"
    return TABLE_3[near, "cars"], False


def summary_table(results: pd.DataFrame, tasks: DeepTasks) -> pd.DataFrame:
    """Average the results over seeds, with Table 3 beside them."""
    rows = []
    for (backbone, method, convention), group in results.groupby(
        ["backbone", "method", "convention"], sort=False
    ):
        row: dict[str, Any] = {
            "pretrain_data": group["pretrain_data"].iloc[0],
            "harmful_data": group["harmful_data"].iloc[0],
            "backbone": backbone,
            "method": method,
            "convention": convention,
            "gauge": "unit",
            "seeds": len(group),
        }
        for name in AVERAGED:
            row[f"{name}_mean"] = group[name].mean()
            row[f"{name}_std"] = group[name].std(ddof=1) if len(group) > 1 else np.nan
        row["success_rate"] = group["success"].mean()
        row["test_success_rate"] = group["test_success"].mean()
        for prefix in ("", "test_"):
            row[f"{prefix}rir_least_draw"] = group[f"{prefix}rir_least_draw"].min()
            row[f"{prefix}rir_largest_draw"] = group[f"{prefix}rir_largest_draw"].max()
        row["chance"] = group["chance"].mean()
        row["seconds_mean"] = group["seconds"].mean()
        column, same = published_column(str(backbone), tasks)
        known = column.get(str(method))
        for name in PublishedNet._fields:
            row[f"published_{name}"] = np.nan if known is None else getattr(known, name)
        row["published_same"] = same
        rows.append(row)
    return pd.DataFrame(rows)


def curves_table(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Collect every curve of the report in one long table."""
    frames = []
    for row, arrays in cells:
        probe = arrays["probe"]
        frames.append(_frame(row, "probe_accuracy", np.arange(len(probe)), probe))
        frames.append(_frame(row, "convex_accuracy", [0], [row["convex"]]))
        for kind in ("", "test_") if row["method"] != INITIAL else ():
            drawn = [row[f"compact.{kind}rir{part}"] for part in ("", "_least_draw", "_largest_draw")]
            frames.append(_frame(row, f"kept_{kind}rir", [row["best_step"]] * 3, drawn))
        for prefix, index, label in (("history.", "step", ""), ("pretraining.", "epoch", "pretraining_")):
            x = arrays.get(f"{prefix}{index}")
            for name, values in arrays.items():
                quantity = name.removeprefix(prefix)
                if x is None or not name.startswith(prefix) or quantity == index:
                    continue
                kept = np.isfinite(values)
                frames.append(_frame(row, f"{label}{quantity}", x[kept], values[kept]))
    return pd.concat(frames, ignore_index=True)


def notes_table(cells: Sequence[CellResult], name: str) -> pd.DataFrame:
    """List what cells said: their warnings, or the images that they could not read."""
    said: dict[str, list[str]] = {}
    for row, arrays in cells:
        for text in arrays[name].tolist():
            said.setdefault(str(text), []).append(f"{row['backbone']}, {row['method']}, seed {row['seed']}")
    rows = [{"text": text, "cells": len(where), "first": where[0]} for text, where in said.items()]
    return pd.DataFrame(rows, columns=["text", "cells", "first"])


def _frame(row: dict[str, Any], quantity: str, x: Any, value: Any) -> pd.DataFrame:
    """Return one curve in long form."""
    return pd.DataFrame(
        {
            "backbone": row["backbone"],
            "method": row["method"],
            "seed": row["seed"],
            "quantity": quantity,
            "x": np.asarray(x, dtype=np.float64),
            "value": np.asarray(value, dtype=np.float64),
        }
    )
