"""What a probe is given: checked features and labels, and a held-out part of the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condnum.errors import InvalidInputError, UnknownNameError

Rows: TypeAlias = "NDArray[Any] | Tensor"
Preprocessing = Literal["none", "standardise"]

#: Share of each class of the training rows on which the learning rate is chosen.
HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Training and test rows, float32, on one device."""

    X_train: Tensor  # (N, D)
    y_train: Tensor  # (N,) int64, 0 … C−1
    X_test: Tensor  # (M, D)
    y_test: Tensor  # (M,)
    classes: int  # C

    def split(self, seed: int) -> tuple[Tensor, Tensor]:
        """Return `(fit, held_out)` positions of training rows: a fifth of each class is held out.

        A class of one row stays in `fit`.
        """
        generator = np.random.default_rng([seed, 0])
        labels = self.y_train.cpu().numpy()
        held: list[NDArray[np.int64]] = []
        for c in range(self.classes):
            own = generator.permutation(np.flatnonzero(labels == c))
            held.append(own[: max(1, round(HELD_OUT * len(own))) if len(own) > 1 else 0])
        out = np.sort(np.concatenate(held))
        if not out.size:
            raise InvalidInputError(
                "no class has two training rows, so none can be held out to choose the learning rate; "
                "add rows."
            )
        fit = np.setdiff1d(np.arange(len(labels)), out)
        device = self.y_train.device
        return torch.from_numpy(fit).to(device), torch.from_numpy(out).to(device)


def probe_data(
    features_train: Rows,
    y_train: Rows,
    features_test: Rows,
    y_test: Rows,
    *,
    preprocessing: Preprocessing,
    device: torch.device,
) -> ProbeData:
    """Check features and labels, and standardise if asked for."""
    if preprocessing not in get_args(Preprocessing):
        raise UnknownNameError("preprocessing", preprocessing, get_args(Preprocessing))
    X, Z = _features(features_train, "features_train"), _features(features_test, "features_test")
    y, z = _labels(y_train, len(X), "y_train"), _labels(y_test, len(Z), "y_test")
    if X.shape[1] != Z.shape[1]:
        raise InvalidInputError(
            f"features_train has {X.shape[1]} columns and features_test {Z.shape[1]}; use one model for both."
        )
    known = torch.unique(y)
    if len(known) < 2:
        raise InvalidInputError(f"y_train holds one class only ({int(known[0])}); a probe needs two or more.")
    foreign = z[~torch.isin(z, known)]
    if len(foreign):
        raise InvalidInputError(
            f"y_test holds {len(foreign)} label(s) out of the range of training, the first is "
            f"{int(foreign[0])}; training has {len(known)} classes, "
            f"{int(known[0])} to {int(known[-1])}. "
            "Use the same classes."
        )
    if preprocessing == "standardise":
        mean, std = X.double().mean(dim=0), X.double().std(dim=0, correction=0)
        varies = std > torch.finfo(torch.float32).eps * X.double().abs().amax(dim=0)
        scale = torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)
        X, Z = (((x.double() - mean) * scale).float() for x in (X, Z))
    return ProbeData(X.to(device), y.to(device), Z.to(device), z.to(device), int(known[-1]) + 1)


def _features(rows: Rows, name: str) -> Tensor:
    """Return `(N, D)` float32, finite; a read-only memory map is copied."""
    tensor = rows.detach() if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows, np.float32))
    if tensor.ndim != 2 or not tensor.numel():
        raise InvalidInputError(f"{name} must be (N, D) and not empty, got shape {tuple(tensor.shape)}.")
    tensor = tensor.float()
    if not bool(torch.isfinite(tensor).all()):
        raise InvalidInputError(f"{name} holds NaN or infinity (as float32); check the model, or rescale.")
    return tensor


def _labels(labels: Rows, count: int, name: str) -> Tensor:
    """Return `(N,)` int64 from 0."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise InvalidInputError(
            f"{name} must hold one integer for each of the {count} rows, got shape {array.shape}, "
            f"{array.dtype}."
        )
    if array.min() < 0:
        raise InvalidInputError(
            f"{name} holds {array.min()}, out of range: labels count from 0; drop unlabelled rows."
        )
    return torch.from_numpy(array.astype(np.int64))
