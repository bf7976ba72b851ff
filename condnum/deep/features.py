"""Features of images: one pass of a frozen model over un-augmented images, kept as float32."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import resolve_device
from condnum.data.task_pair import sha256_file
from condnum.deep.images import ImageData, Unreadable, check_unreadable, image_loader
from condnum.deep.transforms import ImageTransform
from condnum.deep.weights import state_checksum
from condnum.errors import CondnumError, InvalidInputError, UnknownNameError
from condnum.files import atomic_write, output_folder, write_json
from condnum.machine import memory_advice
from condnum.progress import report_event

#: Any map from a batch of images `(B, 3, h, w)` to pooled features `(B, D)`.
Extractor: TypeAlias = Callable[[Tensor], Tensor]
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a data set, `X̃(θ)` of Eq. 18, with the labels of the same rows."""

    values: NDArray[np.float32]  # (N, D), read-only; a memory map when it comes from the cache
    labels: NDArray[np.int64]  # (N,)
    indices: NDArray[np.int64]  # (N,) positions in the `ImageData`; gaps where an image does not decode
    classes: tuple[str, ...]  # C names
    unreadable: tuple[Unreadable, ...] = ()  # images without a row
    precision: Precision = "float32"  # in which the model ran
    name: str = "features"  # data set and split, for messages

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.values)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self.values.shape[1]

    @property
    def eps(self) -> float:
        """Unit round-off of the precision in which the model ran."""
        return float(torch.finfo(getattr(torch, self.precision)).eps)


def extract_features(
    model: Extractor,
    data: ImageData,
    transform: ImageTransform,
    *,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "float32",
    workers: int = 0,
) -> Features:
    """Run a model over all images of a data set, in evaluation mode and without gradients.

    The model comes back as it was: its training flags are restored module by module, and it is copied
    when it has to move to another device.

    Args:
        model: Returns pooled features `(B, D)` of `(B, 3, h, w)`; a module, or any function.
        data: The images; those that do not decode are left out and listed.
        transform: An un-augmented transform.
        device: `auto`, `cpu`, `cuda[:i]`; None: where the module's parameters are, else the CPU.
        batch_size: Images of a step.
        precision: `bfloat16` or `float16` run the model under autocast; features are stored as float32, but
            carry that round-off (`Features.eps`).
        workers: Processes that decode.

    Returns:
        The features in the order of the images.

    Raises:
        InvalidInputError: A random transform, features that are not `(B, D)`, or not finite.
        DataFormatError: More than a tenth of the images does not decode.
        DeviceError: No such device, or out of memory (the message says which batch size to try).
        UnknownNameError: Unknown precision.
    """
    if transform.random:
        raise InvalidInputError(
            "features are taken of un-augmented images, but this transform is random; "
            "use evaluation_transform."
        )
    if precision not in get_args(Precision):
        raise UnknownNameError("precision", precision, get_args(Precision))
    target = resolve_device(device) if device is not None else _home(model)
    module = model if isinstance(model, nn.Module) else None
    if module is not None and _home(module) != target:
        model = module = copy.deepcopy(module).to(target)
    flags = [(part, part.training) for part in module.modules()] if module is not None else []
    loader = image_loader(
        data, transform, batch_size=batch_size, workers=workers, pin_memory=target.type == "cuda"
    )
    what = f"features of {data.name} ({data.split}) at {'×'.join(map(str, transform.input_size[1:]))}"
    try:
        if module is not None:
            module.eval()
        with torch.inference_mode(), memory_advice(batch_size, target, what):
            values, labels, indices, unreadable = _run(model, loader, len(data), target, precision, data)
    finally:
        for part, training in flags:
            part.training = training
    check_unreadable(unreadable, len(data), f"{data.name} ({data.split})")
    _check_finite(values, what, precision)
    values.setflags(write=False)
    return Features(
        values,
        labels,
        indices,
        data.classes,
        (*data.unreadable, *unreadable),
        precision,
        f"{data.name} ({data.split})",
    )


def _home(model: Extractor) -> torch.device:
    """Return the device of a module's first parameter or buffer, else the CPU."""
    if isinstance(model, nn.Module):
        first = next(chain(model.parameters(), model.buffers()), None)
        if first is not None:
            return first.device
    return torch.device("cpu")


def _run(
    model: Extractor, loader: Any, total: int, device: torch.device, precision: Precision, data: ImageData
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], list[Unreadable]]:
    """Return features, labels, indices and failures of one pass."""
    values: NDArray[np.float32] | None = None
    labels, indices = np.empty(total, np.int64), np.empty(total, np.int64)
    unreadable: list[Unreadable] = []
    done = 0
    for batch in loader:
        unreadable += batch.unreadable
        count = len(batch.labels)
        if count:
            rows = _features(model, batch.images.to(device, non_blocking=True), precision)
            if values is None:
                values = np.empty((total, rows.shape[1]), np.float32)
            values[done : done + count] = rows.float().cpu().numpy()
            labels[done : done + count] = batch.labels.numpy()
            indices[done : done + count] = batch.indices.numpy()
            done += count
        report_event(stage=f"features of {data.name}", done=done + len(unreadable), total=total)
    if values is None:
        values = np.empty((0, 0), np.float32)
    return values[:done], labels[:done], indices[:done], unreadable


def _features(model: Extractor, images: Tensor, precision: Precision) -> Tensor:
    """Return `(B, D)` of one batch, or say what came instead."""
    low = precision != "float32"
    with torch.autocast(images.device.type, getattr(torch, precision)) if low else nullcontext():
        rows = model(images)
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(images):
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise InvalidInputError(
            f"the model must return pooled features (B, D) for images {tuple(images.shape)}, got {got}; "
            "for a timm model use create_model(…, num_classes=0)."
        )
    return rows


def _check_finite(values: NDArray[np.float32], what: str, precision: Precision) -> None:
    """Refuse NaN and infinity, which no later step could explain."""
    wrong = int((~np.isfinite(values).all(axis=1)).sum())
    if wrong:
        fix = "use precision='float32' or 'bfloat16'" if precision == "float16" else "check its weights"
        raise InvalidInputError(f"{what}: the model returns NaN or infinity for {wrong} image(s); {fix}.")


# Features on disk, keyed by everything that they depend on.


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
