"""Features on disk, keyed by everything that they depend on.

An entry is three files named by the key's SHA-256: `….npy` (features), `….rows.npy` (labels and
indices) and `….json` (the key in words, sums of both arrays, the unreadable images). The JSON is
written last, each file whole or not at all, so an entry without it does not exist. An entry whose
key, shape or sum differs is not used: it is computed anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from condnum.data.checksums import sha256_file
from condnum.deep.features import Extractor, Features, Precision, extract_features
from condnum.deep.image_data import ImageData, Unreadable
from condnum.deep.transforms import ImageTransform
from condnum.deep.weights import state_checksum
from condnum.errors import CondnumError, InvalidInputError
from condnum.files import atomic_write, output_folder, write_json

#: Raised when what is computed or stored changes, so that old entries are not taken for new ones.
VERSION = 1


@dataclass(frozen=True)
class FeatureKey:
    """What features depend on; equal keys, equal features."""

    backbone: str  # the caller's name of the model
    architecture: str  # SHA-256 of the module's printed structure: what is not in the weights
    weights: str  # SHA-256 of all parameters and buffers
    data: str  # checksum of the images in use
    transform: str  # description of the un-augmented transform
    precision: Precision
    version: int = VERSION

    @property
    def digest(self) -> str:
        """SHA-256 of the key, 64 hexadecimal digits: the name of the entry."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def feature_key(
    model: nn.Module,
    data: ImageData,
    transform: ImageTransform,
    *,
    name: str = "",
    precision: Precision = "float32",
) -> FeatureKey:
    """Return the key of a model's features on a data set."""
    return FeatureKey(
        backbone=name or type(model).__name__,
        architecture=hashlib.sha256(repr(model).encode()).hexdigest(),
        weights=state_checksum(model.state_dict()),
        data=data.checksum,
        transform=transform.description,
        precision=precision,
    )


def cached_features(
    model: Extractor,
    data: ImageData,
    transform: ImageTransform,
    *,
    cache: str | os.PathLike[str] | None,
    name: str = "",
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "float32",
    workers: int = 0,
) -> Features:
    """Return a model's features, from the cache when it has them, else computed and stored.

    Args:
        model: As for `extract_features`; a plain function has no weights to know it by, so it needs
            `cache=None`.
        data: The images.
        transform: Un-augmented.
        cache: Folder of the cache, made if need be; None: compute and keep nothing.
        name: What the backbone is called.
        device: As for `extract_features`.
        batch_size: As for `extract_features`.
        precision: As for `extract_features`.
        workers: As for `extract_features`.

    Returns:
        The features; `values` is a read-only memory map when there is a cache.

    Raises:
        InvalidInputError: A plain function with a cache, and all that `extract_features` raises.
        OutputError: The cache cannot be written.
        CondnumError: What was written does not read back.
    """

    def compute() -> Features:
        return extract_features(
            model, data, transform, device=device, batch_size=batch_size, precision=precision, workers=workers
        )

    if cache is None:
        return compute()
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"features are cached by their model's weights, and {type(model).__name__} is no torch module; "
            "pass a module, or cache=None."
        )
    key = feature_key(model, data, transform, name=name, precision=precision)
    folder = output_folder(cache)
    stored = load_features(folder, key, data)
    if stored is None:
        store_features(folder, key, compute())
        stored = load_features(folder, key, data)
    if stored is None:
        raise CondnumError(
            f"features that were just written to {folder} do not read back; the disk or another program "
            "changes them: use another cache folder."
        )
    return stored


def store_features(folder: Path, key: FeatureKey, features: Features) -> None:
    """Write an entry, replacing a broken one."""
    values, rows, meta = _paths(folder, key)
    meta.unlink(missing_ok=True)  # from here to the last line there is no entry
    with atomic_write(values) as temporary:
        np.save(temporary, features.values, allow_pickle=False)
        values_sum = sha256_file(temporary)
    with atomic_write(rows) as temporary:
        np.save(temporary, np.stack([features.labels, features.indices]), allow_pickle=False)
        rows_sum = sha256_file(temporary)
    content = {
        "key": asdict(key),
        "shape": features.values.shape,
        "sha256": {"values": values_sum, "rows": rows_sum},
        "unreadable": [asdict(image) for image in features.unreadable],
        "classes": features.classes,
    }
    write_json(meta, content)


def load_features(folder: Path, key: FeatureKey, data: ImageData) -> Features | None:
    """Read an entry, with every byte checked against its sum."""
    values_path, rows_path, meta_path = _paths(folder, key)
    try:
        meta: dict[str, Any] = json.loads(meta_path.read_text(encoding="utf-8"))
        if meta["key"] != asdict(key):
            return None
        sums = (sha256_file(values_path), sha256_file(rows_path))
        if sums != (meta["sha256"]["values"], meta["sha256"]["rows"]):
            return None
        values: NDArray[np.float32] = np.load(values_path, mmap_mode="r", allow_pickle=False)
        labels, indices = np.load(rows_path, allow_pickle=False)
        unreadable = tuple(Unreadable(**image) for image in meta["unreadable"])
    except (OSError, ValueError, KeyError, TypeError, CondnumError):
        return None  # whatever is wrong with it, it is computed anew
    if values.dtype != np.float32 or list(values.shape) != meta["shape"] or labels.shape != values.shape[:1]:
        return None
    name = f"{data.name} ({data.split})"
    return Features(values, labels, indices, tuple(meta["classes"]), unreadable, key.precision, name)


def _paths(folder: Path, key: FeatureKey) -> tuple[Path, Path, Path]:
    """Return where an entry's features, rows and description lie."""
    stem = key.digest[:32]
    return folder / f"{stem}.npy", folder / f"{stem}.rows.npy", folder / f"{stem}.json"
