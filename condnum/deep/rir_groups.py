"""Groups of feature rows: which images they hold, and the same rows of both models."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.deep.features import Features
from condnum.errors import InvalidInputError

FeatureLike: TypeAlias = "Features | NDArray[Any] | Tensor"


def check_rows(before: FeatureLike, after: FeatureLike, task: str) -> None:
    """Refuse features whose rows are not the same images."""
    for part, name in ((before, "θ₀"), (after, "θ_I")):
        values = part.values if isinstance(part, Features) else part
        if not isinstance(values, np.ndarray | Tensor) or values.ndim != 2:
            raise InvalidInputError(
                f"the features of {name} on {task} must be an array (N, D), got "
                f"{tuple(values.shape) if hasattr(values, 'shape') else type(values).__name__}."
            )
    if len(before) != len(after):
        raise InvalidInputError(
            f"θ₀ has {len(before)} rows on {task} and θ_I {len(after)}; use the same images."
        )
    if (
        isinstance(before, Features)
        and isinstance(after, Features)
        and not np.array_equal(before.indices, after.indices)
    ):
        raise InvalidInputError(f"the features of θ₀ and θ_I on {task} are of different images.")


def check_count(count: int, task: str, group_size: int) -> None:
    """Refuse fewer images than one group."""
    if count < group_size:
        raise InvalidInputError(
            f"{task} has {count} image(s), fewer than one group of {group_size}; add images or lower "
            "group_size."
        )


def draw_groups(
    count: int, task: str, groups: int, group_size: int, stream: list[int]
) -> tuple[NDArray[np.int64], bool]:
    """Draw groups of rows: disjoint ones while there are enough, else each anew."""
    check_count(count, task, group_size)
    generator = np.random.default_rng(stream)
    if count >= groups * group_size:
        return generator.permutation(count)[: groups * group_size].reshape(groups, group_size), False
    return np.stack([generator.permutation(count)[:group_size] for _ in range(groups)]), True


def gather(features: FeatureLike, rows: NDArray[np.int64], task: str) -> Tensor:
    """Return the chosen rows; only they are read from a memory map."""
    values = features.values if isinstance(features, Features) else features
    if isinstance(values, Tensor):
        chosen = values.detach()[torch.from_numpy(rows).to(values.device)].double().cpu()
    else:
        chosen = torch.from_numpy(np.asarray(values[rows.reshape(-1)], np.float64)).reshape(*rows.shape, -1)
    if not bool(torch.isfinite(chosen).all()):
        raise InvalidInputError(f"features of {task} hold NaN or infinity; check the model's weights.")
    return chosen


def stored_eps(features: FeatureLike) -> float:
    """Return the round-off of the stored numbers."""
    values = features.values if isinstance(features, Features) else features
    if isinstance(values, Tensor):
        return float(torch.finfo(values.dtype if values.is_floating_point() else torch.float64).eps)
    return float(np.finfo(values.dtype if values.dtype.kind == "f" else np.float64).eps)


def carried_eps(features: FeatureLike) -> float:
    """Return the round-off that the features carry: that of the model's arithmetic, if known."""
    return max(features.eps, stored_eps(features)) if isinstance(features, Features) else stored_eps(features)
