"""Images of both tasks of the deep experiments, nets as arrays, and what is measured of a net."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.data.images import ImageData, imagenet_classes, open_images
from condnum.deep.attacks.attackers import HORIZONS
from condnum.deep.backbone import Backbone
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.probe import convex_probe, descent_path, path_slowdown, probe_accuracy
from condnum.deep.rir import DRAW_STRIDE, ROLES, rir_from_features
from condnum.deep.training.samples import hold_out
from condnum.experiments.frame import Arrays, Row
from condnum.theory.kappa import Convention

#: Seed of the images that a limit per class keeps: the same ones for every seed of the run.
LIMIT_SEED = 0
#: How often the groups of Eq. 17 are drawn: the first draw is reported, the others show how much is luck.
GROUP_DRAWS = 5
#: Names of the weights of a net among the arrays of a cell.
_WEIGHT = "weight."


@dataclass(frozen=True, eq=False)
class DeepTasks:
    """Images of both tasks: to train on, to choose θ by, and to report on."""

    benign: ImageData  # D_P, training: θ₀, if it is trained here, and θ_I
    benign_held: ImageData  # of the training split, seen by neither
    benign_test: ImageData
    harmful: ImageData  # D_H, likewise
    harmful_held: ImageData
    harmful_test: ImageData

    @property
    def checksum(self) -> str:
        """SHA-256 of all sets together."""
        sums = {f"{data.name} ({data.split})": data.checksum for data in self.all}
        return hashlib.sha256("\n".join(sums.values()).encode()).hexdigest()

    @property
    def warnings(self) -> list[str]:
        """What is in the folders and was left out."""
        return list(dict.fromkeys(text for data in self.all for text in data.warnings))

    @property
    def all(self) -> tuple[ImageData, ...]:
        """The six sets."""
        return tuple(vars(self).values())


@cache
def tasks(*, benign: str, harmful: str, limit: int | None, imagenet: bool) -> DeepTasks:
    """Open the images; `imagenet`: D_P's labels are in the order of the 1,000 outputs of an ImageNet head."""
    parts: list[ImageData] = []
    for name, order in ((benign, imagenet_classes() if imagenet else None), (harmful, None)):
        data = open_images(name, limit=limit, seed=LIMIT_SEED, classes=order)
        rest, held = hold_out(data.labels, LIMIT_SEED)
        apart = replace(data.take(held), split=f"{data.split}, held out")
        classes = data.classes if is_folder(name) else None
        test = open_images(name, "test", limit=limit, seed=LIMIT_SEED, classes=classes)
        parts += [data.take(rest), apart, test]
    return DeepTasks(*parts)


def is_folder(name: str) -> bool:
    """Tell whether `open_images` takes a name for a folder."""
    return name.partition(":")[0] not in ("mnist", "digits-8x8")


def short(name: str) -> str:
    """Return the name of a data set for people; of a path the last two parts."""
    return "/".join(Path(name).parts[-2:]) if is_folder(name) else name


def net_arrays(backbone: Backbone) -> Arrays:
    """Return a net of timm as arrays: its weights, and how it is made."""
    recipe = {"net": backbone.name, "trainable": backbone.trainable, **(backbone.model_arguments or {})}
    state = {f"{_WEIGHT}{key}": of.cpu().numpy() for key, of in backbone.model.state_dict().items()}
    return {"recipe": np.array(json.dumps(recipe | {"num_classes": backbone.num_classes})), **state}


def net_of(arrays: Arrays) -> Backbone:
    """Return the net of `net_arrays`, in evaluation mode on the CPU."""
    backbone = Backbone(**json.loads(str(arrays["recipe"])))
    state = {
        name.removeprefix(_WEIGHT): torch.from_numpy(of.copy())
        for name, of in arrays.items()
        if name.startswith(_WEIGHT)
    }
    backbone.model.load_state_dict(state)
    return backbone


class FeatureSets(NamedTuple):
    """Features of one model: each set of images goes through the net once."""

    benign: ImageFeatures  # of D_P's training images, those of the groups of Eq. 17
    benign_test: ImageFeatures
    harmful: ImageFeatures  # of D_H's training images
    harmful_test: ImageFeatures


def commonest(labels: NDArray[np.int64]) -> float:
    """Return the fraction of the commonest class: what naming it always gets."""
    return float(np.bincount(labels).max() / len(labels))


def doubts(theta_0: Backbone, test: ImageFeatures) -> list[str]:
    """Say so where θ₀, on features of D_P's test images, does no better than naming the commonest class."""
    accuracy, chance = head_accuracy(theta_0, test), commonest(test.labels)
    if accuracy > chance:
        return []
    return [
        f"θ₀ does not solve D_P: its test accuracy is {100 * accuracy:.1f} %, and always predicting the most "
        f"frequent class gives {100 * chance:.1f} %; train it longer (--pretrain-epochs), or name the "
        "folders so that they sort in the order of its head's classes."
    ]


def measured_features(
    before: FeatureSets,
    after: FeatureSets,
    said: Sequence[str],
    *,
    seed: int,
    groups: int,
    group_size: int,
    probe_epochs: int,
) -> tuple[Row, Arrays, list[str]]:
    """Return row, arrays and warnings of a net, after those of its training: Eq. 17, both probes on D_H."""
    row: Row = {}
    warnings = list(said)
    pairs = {
        "": (before.benign, after.benign, before.harmful, after.harmful),
        "test_": (before.benign_test, after.benign_test, before.harmful_test, after.harmful_test),
    }
    for images, features in pairs.items():
        sizes: dict[str, Any] = {"groups": groups, "group_size": min(group_size, *map(len, features))}
        seeds = (seed + DRAW_STRIDE * draw for draw in range(GROUP_DRAWS))
        draws = [rir_from_features(*features, seed=one, **sizes) for one in seeds]
        new = [text for text in draws[0].warnings if text not in warnings]
        warnings += [f"{images.replace('_', ' images: ')}{text}" for text in new]
        for convention in get_args(Convention):
            found = [getattr(draw, convention) for draw in draws]
            first = found[0]
            prefix = f"{convention}_{images}"
            for name in ("harmful_ratio", "benign_ratio", "rir"):
                row[f"{prefix}{name}"] = getattr(first, name)
                row[f"{prefix}{name}_group_std"] = getattr(first, f"{name}_std")
            row[f"{prefix}rir_least_draw"] = min(draw.rir for draw in found)
            row[f"{prefix}rir_largest_draw"] = max(draw.rir for draw in found)
            row[f"{prefix}success"] = first.success
            for index, role in enumerate(ROLES if not images else ()):
                row[f"{convention}_kappa_{role}"] = float(np.median(first.kappas[index]))
                row[f"{convention}_rank_{role}"] = int(np.median(first.ranks[index]))
    probe = probe_accuracy(after.harmful, after.harmful_test, epochs=probe_epochs, seed=seed)
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
        "slowdown": path_slowdown(*paths),
        "probe_final": float(curve[-1]),
        "probe_again": float(probe.again[-1]),
        **{f"probe_{epoch}": float(curve[min(epoch, probe_epochs)]) for epoch in HORIZONS},
        "probe_rate": probe.learning_rate,
        "probe_multiple": probe.multiple,
        "convex": convex.test_accuracy,
        "chance": commonest(after.harmful_test.labels),
    }
    return row, {"probe": curve}, warnings


def facts(images: dict[str, Any]) -> Row:
    """Return what a row says of the images."""
    data, P, H = tasks(**images), short(images["benign"]), short(images["harmful"])
    return {
        "pair": f"{P} → {H.removeprefix(P.partition(':')[0] + ':')}",
        "data_checksum": data.checksum,
        "benign_classes": len(data.benign.classes),
        "harmful_classes": len(data.harmful.classes),
    }
