"""Images of both tasks, what is measured of a net on them, and the tables of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from condnum.data.images import ImageData
from condnum.deep.attacks.attackers import HORIZONS
from condnum.deep.backbone import Backbone
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.probe import convex_probe, descent_path, path_slowdown, probe_accuracy
from condnum.deep.rir import DRAW_STRIDE, ROLES, rir_from_features
from condnum.studies.deep_recipes import INITIAL
from condnum.studies.frame import Cell, FinishedCell
from condnum.studies.frame.cells import Arrays, Row
from condnum.studies.measure import TABLE_3, Published, averages, curve, published_columns
from condnum.theory.kappa import Convention


@dataclass(frozen=True, eq=False)
class DeepTasks:
    """Images of both tasks: to train on, to choose θ by, and to report on."""

    imagenet_head: bool  # D_P's labels are in the order of the 1000 outputs of an ImageNet head
    benign: ImageData  # D_P, training: θ₀, if it is trained here, and θ_I
    benign_held: ImageData  # of the training split, seen by neither
    benign_test: ImageData
    harmful: ImageData  # D_H, likewise
    harmful_held: ImageData
    harmful_test: ImageData

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of each set, by name and split."""
        return {f"{data.name} ({data.split})": data.checksum for data in self.all}

    @property
    def checksum(self) -> str:
        """SHA-256 of all of them together."""
        return hashlib.sha256("\n".join(self.checksums.values()).encode()).hexdigest()

    @property
    def warnings(self) -> list[str]:
        """What is in the folders and was left out."""
        return list(dict.fromkeys(text for data in self.all for text in data.warnings))

    @property
    def all(self) -> tuple[ImageData, ...]:
        """The six sets."""
        return tuple(part for part in vars(self).values() if isinstance(part, ImageData))

    def title(self) -> str:
        """Return both data sets in one line, for figures; of a path the last two parts."""
        words = []
        for symbol, data in (("D<sub>P</sub>", self.benign), ("D<sub>H</sub>", self.harmful)):
            name = "/".join(Path(data.name).parts[-2:]) if is_folder(data.name) else data.name
            words.append(f"{symbol} {name} ({len(data):,} images)")
        return f"{', '.join(words)}, SHA-256 {self.checksum[:8]}"


def is_folder(name: str) -> bool:
    """Tell whether `open_images` takes a name for a folder."""
    return name.partition(":")[0] not in ("mnist", "digits-8x8")


def commonest(labels: NDArray[np.int64]) -> float:
    """Return the fraction of the commonest class: what naming it always gets."""
    return float(np.bincount(labels).max() / len(labels))


def doubts(data: DeepTasks, theta_0: Backbone, test: ImageFeatures) -> list[str]:
    """Say so where θ₀, on features of D_P's test images, does no better than naming the commonest class."""
    accuracy, chance = head_accuracy(theta_0, test), commonest(data.benign_test.labels)
    if accuracy > chance:
        return []
    return [
        f"θ₀ does not solve D_P: its test accuracy is {100 * accuracy:.1f} %, and always predicting the most "
        f"frequent class gives {100 * chance:.1f} %; train it longer (--pretrain-epochs), or name the "
        "folders so that they sort in the order of its head's classes."
    ]


def is_model(cell: Cell) -> bool:
    """Tell a cell that makes a model from an attack."""
    return "attacker" not in cell.at


#: How often the groups of Eq. 17 are drawn: the first draw is reported, the others show how much is luck.
GROUP_DRAWS = 5


class FeatureSets(NamedTuple):
    """Features of one model: each set of images goes through the net once."""

    benign: ImageFeatures  # of D_P's training images, those of the groups of Eq. 17
    benign_test: ImageFeatures
    harmful: ImageFeatures  # of D_H's training images
    harmful_test: ImageFeatures


def measured_features(
    cell: Cell, before: FeatureSets, after: FeatureSets, said: Sequence[str]
) -> tuple[Row, Arrays, list[str]]:
    """Return row, arrays and warnings of a cell, after those of its training: Eq. 17, both probes on D_H."""
    row: Row = {}
    seed: int = cell["seed"]
    warnings = list(said)
    pairs = {
        "": (before.benign, after.benign, before.harmful, after.harmful),
        "test_": (before.benign_test, after.benign_test, before.harmful_test, after.harmful_test),
    }
    for images, features in pairs.items():
        sizes = {"groups": cell["groups"], "group_size": min(cell["group_size"], *map(len, features))}
        seeds = (seed + DRAW_STRIDE * draw for draw in range(GROUP_DRAWS))
        draws = [rir_from_features(*features, seed=one, **sizes) for one in seeds]
        new = [text for text in draws[0].warnings if text not in warnings]
        warnings += [f"{images.replace('_', ' images: ')}{text}" for text in new]
        for convention in get_args(Convention):
            found = [getattr(draw, convention) for draw in draws]
            first = found[0]
            prefix = f"{convention}.{images}"
            for name in ("harmful_ratio", "benign_ratio", "rir"):
                row[f"{prefix}{name}"] = getattr(first, name)
                row[f"{prefix}{name}_group_std"] = getattr(first, f"{name}_std")
            row[f"{prefix}rir_least_draw"] = min(draw.rir for draw in found)
            row[f"{prefix}rir_largest_draw"] = max(draw.rir for draw in found)
            row[f"{prefix}success"] = first.success
            for index, role in enumerate(ROLES if not images else ()):
                row[f"{convention}.kappa_{role}"] = float(np.median(first.kappas[index]))
                row[f"{convention}.rank_{role}"] = int(np.median(first.ranks[index]))
    epochs: int = cell["probe_epochs"]
    probe = probe_accuracy(after.harmful, after.harmful_test, epochs=epochs, seed=seed)
    convex = convex_probe(after.harmful, after.harmful_test, seed=seed)
    curve = probe.test_accuracy
    paths = [descent_path(of.harmful, of.harmful_test) for of in (before, after)]
    if probe.at_edge:
        warnings.append("The best learning rate of the probe is at the edge of its grid.")
    if not convex.converged:
        warnings.append(
            f"The convex probe stopped at {convex.iterations} iterations: its accuracy is a lower bound."
        )
    row |= {
        "dimension": after.benign.dimension,
        "group_size": cell["group_size"],
        "slowdown": path_slowdown(*paths),
        "probe_final": float(curve[-1]),
        "probe_again": float(probe.again[-1]),
        **{f"probe_{epoch}": float(curve[min(epoch, epochs)]) for epoch in HORIZONS},
        "probe_rate": probe.learning_rate,
        "probe_multiple": probe.multiple,
        "convex": convex.test_accuracy,
        "chance": commonest(after.harmful_test.labels),
    }
    return row, {"probe": curve}, warnings


# Tables.

_MEASURED = (
    "harmful_ratio", "harmful_ratio_group_std", "benign_ratio", "benign_ratio_group_std", "rir",
    "rir_group_std", "rir_least_draw", "rir_largest_draw", "success",
)  # fmt: skip

#: Accuracy of the probe after some epochs, and SGRC, by how much of θ₀'s it is less.
_HORIZON = (
    *(f"probe_{epoch}" for epoch in HORIZONS),
    *(f"sgrc_{epoch}" for epoch in HORIZONS),
    "sgrc_convex",
)

_COLUMNS = (
    "benign_data", "harmful_data", "backbone", "method", "seed", "convention", "theta_scale",
    *(f"{images}{name}" for images in ("", "test_") for name in _MEASURED),
    "rank_benign", "rank_harmful", "kappa_benign_before", "kappa_benign_after",
    "kappa_harmful_before", "kappa_harmful_after", "dimension", "group_size", "accuracy",
    "accuracy_theta_0", "slowdown", "probe_final", "probe_again", *_HORIZON,
    "probe_rate", "probe_multiple",
    "convex",
    "chance", "steps", "best_step", "seconds", "stop_reason", "unreadable", "checksum",
)  # fmt: skip

#: Averaged over seeds in the summary, with their deviation.
_AVERAGED = (
    "harmful_ratio", "benign_ratio", "rir", "test_harmful_ratio", "test_benign_ratio", "test_rir",
    "rir_group_std", "test_rir_group_std", "slowdown", "accuracy", "accuracy_theta_0",
    "probe_final", "probe_again", *_HORIZON, "convex",
)  # fmt: skip

#: Published backbones by the name of timm's model without its tag, harmful sets by their classes.
_FAMILIES = {"resnet18": "resnet18", "vit_base_patch16_clip_224": "vit"}
_HARMFUL = {196: "cars", 211: "country211"}
_IMAGENET_CLASSES = 1000


def sgrc(before: float, after: float) -> float:
    """Return by how many percent less an attacker reaches than on θ₀, `(M(θ₀) − M(θ_I))/M(θ₀)` (CLAMP)."""
    return 100 * (before - after) / before if before > 0 else np.nan


def net_results(tasks: DeepTasks, cells: Sequence[FinishedCell]) -> pd.DataFrame:
    """Return a row per backbone × seed × method × convention."""
    made: list[dict[str, Any]] = [dict(row) for _, row, _ in cells]
    start = {(row["backbone"], row["seed"]): row for row in made if row["method"] == INITIAL}
    names = [row["backbone"] for row in made]
    rows = []
    for row in sorted(made, key=lambda row: names.index(row["backbone"])):  # θ₀ stays first
        for convention in get_args(Convention):
            prefix = f"{convention}."
            measured = {key.removeprefix(prefix): row[key] for key in row if key.startswith(prefix)}
            own = {
                "benign_data": tasks.benign.name,
                "harmful_data": tasks.harmful.name,
                "convention": convention,
                "theta_scale": "unit",
                "rank_benign": measured["rank_benign_after"],
                "rank_harmful": measured["rank_harmful_after"],
            }
            theta_0 = start.get((row["backbone"], row["seed"]))
            if theta_0 is not None:
                own["accuracy_theta_0"] = theta_0["accuracy"]
                names_of = {f"sgrc_{epoch}": f"probe_{epoch}" for epoch in HORIZONS} | {
                    "sgrc_convex": "convex"
                }
                own |= {name: sgrc(theta_0[of], row[of]) for name, of in names_of.items()}
            rows.append(row | measured | own)
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def published_column(backbone: str, tasks: DeepTasks) -> tuple[dict[str, Published], bool]:
    """Return a column of Table 3, and whether it is of this experiment, not the nearer one of Cars."""
    family = _FAMILIES.get(backbone.split(".")[0])
    harmful = _HARMFUL.get(len(tasks.harmful.classes))
    if family and harmful and len(tasks.benign.classes) == _IMAGENET_CLASSES:
        return TABLE_3[family, harmful], True
    return TABLE_3["vit" if "vit" in backbone.lower() else "resnet18", "cars"], False


def net_summary(results: pd.DataFrame, tasks: DeepTasks) -> pd.DataFrame:
    """Average the results over seeds, with Table 3 beside them."""
    rows = []
    keys = ["backbone", "method", "convention"]
    for (backbone, method, convention), group in results.groupby(keys, sort=False):
        column, same = published_column(str(backbone), tasks)
        row = {
            "benign_data": tasks.benign.name,
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
