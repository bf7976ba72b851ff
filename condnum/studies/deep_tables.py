"""From stored deep-net cells to the tidy tables: results, summary beside Table 3, curves."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pandas as pd

from condnum.studies.deep_cells import INITIAL, DeepTasks
from condnum.studies.frame import FinishedCell
from condnum.studies.measure import TABLE_3, Published, averages, curve, published_columns
from condnum.theory.spectra import Convention

_MEASURED = (
    "harmful_ratio", "harmful_ratio_group_std", "pretrain_ratio", "pretrain_ratio_group_std", "rir",
    "rir_group_std", "rir_least_draw", "rir_largest_draw", "success",
)  # fmt: skip

_COLUMNS = (
    "pretrain_data", "harmful_data", "backbone", "method", "seed", "convention", "theta_scale",
    *(f"{images}{name}" for images in ("", "test_") for name in _MEASURED),
    "rank_pretrain", "rank_harmful", "kappa_pretrain_before", "kappa_pretrain_after",
    "kappa_harmful_before", "kappa_harmful_after", "dimension", "group_size", "accuracy",
    "accuracy_theta_0", "slowdown", "probe_final", "probe_mean", "probe_rate", "probe_multiple", "convex",
    "chance", "steps", "best_step", "seconds", "stop_reason", "unreadable", "checksum",
)  # fmt: skip

#: Averaged over seeds in the summary, with their deviation.
_AVERAGED = (
    "harmful_ratio", "pretrain_ratio", "rir", "test_harmful_ratio", "test_pretrain_ratio", "test_rir",
    "rir_group_std", "test_rir_group_std", "slowdown", "accuracy", "accuracy_theta_0", "probe_final",
    "probe_mean", "convex",
)  # fmt: skip

#: Published backbones by the name of timm's model without its tag, harmful sets by their classes.
_FAMILIES = {"resnet18": "resnet18", "vit_base_patch16_clip_224": "vit"}
_HARMFUL = {196: "cars", 211: "country211"}
_IMAGENET_CLASSES = 1000


def net_results(tasks: DeepTasks, cells: Sequence[FinishedCell]) -> pd.DataFrame:
    """Return a row per backbone × seed × method × convention."""
    made = [row for _, row, _ in cells]
    start = {(row["backbone"], row["seed"]): row["accuracy"] for row in made if row["method"] == INITIAL}
    names = [row["backbone"] for row in made]
    rows = []
    for row in sorted(made, key=lambda row: names.index(row["backbone"])):  # θ₀ stays first
        for convention in get_args(Convention):
            prefix = f"{convention}."
            measured = {key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix)}
            own = {
                "pretrain_data": tasks.pretrain.name,
                "harmful_data": tasks.harmful.name,
                "convention": convention,
                "theta_scale": "unit",
                "rank_pretrain": measured["rank_pretrain_after"],
                "rank_harmful": measured["rank_harmful_after"],
                "accuracy_theta_0": start.get((row["backbone"], row["seed"]), np.nan),
            }
            rows.append(row | measured | own)
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def published_column(backbone: str, tasks: DeepTasks) -> tuple[dict[str, Published], bool]:
    """Return a column of Table 3, and whether it is of this experiment, not the nearer one of Cars."""
    family = _FAMILIES.get(backbone.split(".")[0])
    harmful = _HARMFUL.get(len(tasks.harmful.classes))
    if family and harmful and len(tasks.pretrain.classes) == _IMAGENET_CLASSES:
        return TABLE_3[family, harmful], True
    return TABLE_3["vit" if "vit" in backbone.lower() else "resnet18", "cars"], False


def net_summary(results: pd.DataFrame, tasks: DeepTasks) -> pd.DataFrame:
    """Average the results over seeds, with Table 3 beside them."""
    rows = []
    keys = ["backbone", "method", "convention"]
    for (backbone, method, convention), group in results.groupby(keys, sort=False):
        column, same = published_column(str(backbone), tasks)
        row = {
            "pretrain_data": tasks.pretrain.name,
            "harmful_data": tasks.harmful.name,
            "backbone": backbone,
            "method": method,
            "convention": convention,
            "theta_scale": "unit",
            "seeds": len(group),
            **averages(group, _AVERAGED),
            "success_rate": group["success"].mean(),
            "test_success_rate": group["test_success"].mean(),
            "rir_least_draw": group["rir_least_draw"].min(),
            "rir_largest_draw": group["rir_largest_draw"].max(),
            "test_rir_least_draw": group["test_rir_least_draw"].min(),
            "test_rir_largest_draw": group["test_rir_largest_draw"].max(),
            "chance": group["chance"].mean(),
            "seconds_mean": group["seconds"].mean(),
            **published_columns(Published._fields, column.get(str(method))),
            "published_same": same,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def net_curves(cells: Sequence[FinishedCell]) -> pd.DataFrame:
    """Collect every curve of the report in one long table."""
    frames = []
    for _, row, arrays in cells:
        facts = {name: row[name] for name in ("backbone", "method", "seed")}
        probe = arrays["probe"]
        frames.append(curve(facts, "probe_accuracy", np.arange(len(probe)), probe))
        frames.append(curve(facts, "convex_accuracy", [0], [row["convex"]]))
        for kind in ("", "test_") if row["method"] != INITIAL else ():
            drawn = [row[f"compact.{kind}rir{part}"] for part in ("", "_least_draw", "_largest_draw")]
            frames.append(curve(facts, f"kept_{kind}rir", [row["best_step"]] * 3, drawn))
        for prefix, index, label in (("history.", "step", ""), ("pretraining.", "epoch", "pretraining_")):
            columns = {key.removeprefix(prefix): arrays[key] for key in arrays if key.startswith(prefix)}
            for name, values in columns.items():
                kept = np.isfinite(values)
                if name != index:
                    frames.append(curve(facts, f"{label}{name}", columns[index][kept], values[kept]))
    return pd.concat(frames, ignore_index=True)
