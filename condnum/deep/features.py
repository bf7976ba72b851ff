"""Features of images: one pass of a frozen model over un-augmented images, kept as float32, and on disk.

Features on disk are named by everything that they depend on, and read only if every byte has its sum.
"""

import copy
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pickle import PicklingError
from typing import Any, TypeAlias

import numpy as np
import torch
from joblib import hash as content_hash
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import resolve_device
from condnum.deep.backbone import Backbone, evaluating
from condnum.deep.images import ImageBatch, ImageData, Unreadable, check_unreadable, image_loader
from condnum.deep.transforms import ImageTransform
from condnum.deep.weights import state_checksum
from condnum.errors import CondnumError, InvalidInputError
from condnum.files import atomic_write, output_folder, sha256_file, write_json
from condnum.machine import memory_advice
from condnum.progress import report_event
from condnum.stale import code_hash

#: Any map from a batch of images `(B, 3, h, w)` to pooled features `(B, D)`.
FeatureExtractor: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of a data set, `X̃(θ)` of Eq. 18, with the labels of the same rows."""

    values: NDArray[np.float32]  # (N, D), read-only; a memory map when it comes from the cache
    labels: NDArray[np.int64]  # (N,)
    indices: NDArray[np.int64]  # (N,) positions in the `ImageData`; gaps where an image does not decode
    classes: tuple[str, ...]  # C names
    unreadable: tuple[Unreadable, ...] = ()  # images without a row
    name: str = "features"  # data set and split, for messages

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.values)

    @property
    def dimension(self) -> int:
        """Number of features D."""
        return self.values.shape[1]


def extract_features(
    model: FeatureExtractor,
    data: ImageData,
    transform: ImageTransform,
    *,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> ImageFeatures:
    """Run a model over all images that decode, in evaluation mode and without gradients.

    `model` is a module, which stays as it is, or any function of images `(B, 3, h, w)` to features `(B, D)`;
    `device` None is where the module's parameters are, else the CPU; `workers` are processes that decode.
    """
    if transform.random:
        raise InvalidInputError("this transform is random; take features with evaluation_transform.")
    module = model if isinstance(model, nn.Module) else None
    parts = () if module is None else chain(module.parameters(), module.buffers())
    home = next((part.device for part in parts), torch.device("cpu"))
    target = home if device is None else resolve_device(device)
    if module is not None and home != target:
        model = module = copy.deepcopy(module).to(target)
    pin = target.type == "cuda"
    loader = image_loader(data, transform, batch_size=batch_size, workers=workers, pin_memory=pin)
    what = f"features of {data.title} at {'×'.join(map(str, transform.input_size[1:]))}"

    def run(images: Tensor) -> Tensor:
        """Return `(B, D)` of one batch, or say what came instead."""
        rows = model(images.to(target, non_blocking=True))
        if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(images):
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InvalidInputError(
                f"the model must return pooled features (B, D) for images {tuple(images.shape)}, got {got}; "
                "for a timm model use create_model(…, num_classes=0)."
            )
        return rows.float()

    still = nullcontext() if module is None else evaluating(module)
    with still, torch.inference_mode(), memory_advice(batch_size, target, what):
        found = collect(run, loader, f"features of {data.name}", total=len(data))
    check_unreadable(found[3], len(data), data.title)
    values, labels, indices = (part.numpy() for part in found[:3])
    wrong = int((~np.isfinite(values).all(axis=1)).sum())
    if wrong:  # which no later step could explain
        raise InvalidInputError(
            f"{what}: the model returns NaN or infinity for {wrong} image(s); check its weights."
        )
    values.setflags(write=False)
    return ImageFeatures(values, labels, indices, data.classes, tuple(found[3]), data.title)


def collect(
    run: FeatureExtractor,
    loader: Iterable[ImageBatch],
    stage: str,
    out: Tensor | None = None,
    *,
    done: int = 0,
    total: int,
) -> tuple[Tensor, Tensor, Tensor, list[Unreadable]]:
    """Return what a model gives for images that decode (in `out`), their labels and indices, and the rest."""
    labels, indices, unreadable, count = [], [], list[Unreadable](), 0
    for batch in loader:
        unreadable += batch.unreadable
        if len(batch.labels):
            rows = run(batch.images)
            if out is None:
                out = rows.new_empty(total, *rows.shape[1:], device="cpu")
            out[count : count + len(rows)] = rows
            count += len(rows)
            labels.append(batch.labels)
            indices.append(batch.indices)
        report_event(stage=stage, step=done + count + len(unreadable), steps=total)
    if out is None or not count:
        return torch.empty(0, 0), torch.empty(0), torch.empty(0), unreadable
    return out[:count], torch.cat(labels), torch.cat(indices), unreadable


#: In the path of a library, which counts by its version.
_LIBRARY = "site-packages"


def _attributes(model: nn.Module) -> dict[str, str]:
    """Return hashes of what the parts of a net hold beside tensors: a kind of pooling, a scale, hooks."""
    known = ("training", "_parameters", "_buffers", "_modules")
    found = {}
    for place, part in model.named_modules():
        found[place] = f"{type(part).__module__}.{type(part).__qualname__}"
        held = {f"{place}.{name}": value for name, value in vars(part).items() if name not in known}
        found |= {
            name: state_checksum({name: value}) if isinstance(value, Tensor) else str(content_hash(value))
            for name, value in held.items()
        }
    return found


def feature_key(
    model: nn.Module,
    data: ImageData,
    transform: ImageTransform,
    *,
    name: str = "",
) -> dict[str, Any]:
    """Return what a model's features on a data set depend on; equal keys, equal features.

    It is empty for a model that cannot be compared: of a class without a file, or with a lambda in it.
    """
    modules = (sys.modules.get(type(part).__module__) for part in model.modules())
    files = {getattr(module, "__file__", None) or "" for module in modules}
    if "" in files:
        return {}
    try:
        attributes = _attributes(model)
    except (PicklingError, AttributeError, TypeError):
        return {}
    used = copy.deepcopy(model)
    home = next((part.device for part in used.parameters()), torch.device("cpu"))
    with suppress(Exception), evaluating(used), torch.inference_mode():  # on real images a failure is told
        used(torch.zeros(1, *transform.input_size, device=home))
    after = _attributes(used)  # what a pass changes by itself, such as a counter, decides nothing
    tensors = [*model.named_parameters(), *model.named_buffers(), *model.state_dict().items()]
    return {
        "backbone": name or type(model).__name__,
        "code": [code_hash(__name__), *(sha256_file(file) for file in sorted(files) if _LIBRARY not in file)],
        "attributes": [[place, of] for place, of in attributes.items() if after.get(place) == of],
        "weights": state_checksum(dict(tensors)),
        "data": data.checksum,
        "transform": transform.description,
    }


def cached_features(
    model: FeatureExtractor,
    data: ImageData,
    transform: ImageTransform,
    *,
    cache: str | os.PathLike[str] | None,
    name: str = "",
    device: str | torch.device | None = None,
    workers: int = 0,
) -> ImageFeatures:
    """Do `extract_features`, but read what the folder `cache` has, and store what it has not."""
    if cache is None:
        return extract_features(model, data, transform, device=device, workers=workers)
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"{type(model).__name__} is not a torch module, so its features cannot be cached by its "
            "weights; pass cache=None."
        )
    if not (key := feature_key(model, data, transform, name=name)):
        return extract_features(model, data, transform, device=device, workers=workers)
    folder = output_folder(cache)
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    paths = {"values": folder / f"{digest}.npy", "rows": folder / f"{digest}.rows.npy"}
    meta = folder / f"{digest}.json"

    def load() -> ImageFeatures | None:
        """Read the entry; whatever is wrong with it, it is computed anew."""
        try:
            known: dict[str, Any] = json.loads(meta.read_text(encoding="utf-8"))
            if known["key"] != key or known["sha256"] != {name: sha256_file(p) for name, p in paths.items()}:
                return None
            values: NDArray[np.float32] = np.load(paths["values"], mmap_mode="r", allow_pickle=False)
            labels, indices = np.load(paths["rows"], allow_pickle=False)
            bad = tuple(Unreadable(**image) for image in known["unreadable"])
            return ImageFeatures(values, labels, indices, tuple(known["classes"]), bad, data.title)
        except (OSError, ValueError, KeyError, TypeError, CondnumError):
            return None

    stored = load()
    if stored is not None:
        return stored
    features = extract_features(model, data, transform, device=device, workers=workers)
    meta.unlink(missing_ok=True)  # from here to the last line there is no entry
    sums = {}
    for array, of in ((features.values, "values"), (np.stack([features.labels, features.indices]), "rows")):
        with atomic_write(paths[of]) as temporary:
            np.save(temporary, array, allow_pickle=False)
            sums[of] = sha256_file(temporary)
    unreadable = [asdict(image) for image in features.unreadable]
    content = {"key": key, "sha256": sums, "unreadable": unreadable, "classes": features.classes}
    write_json(meta, content)
    return load() or features


def head_accuracy(backbone: Backbone, features: ImageFeatures) -> float:
    """Return the fraction of images that the head g_ω classifies rightly, by features of this backbone."""
    if features.labels.max() >= backbone.num_classes:
        raise InvalidInputError(
            f"{features.name} has labels up to {features.labels.max()}, beyond the {backbone.num_classes} "
            f"outputs of {backbone.name}; use the classes on which the head was trained."
        )
    home, right, count = next(backbone.parameters()).device, 0, 8192  # rows at a time
    with evaluating(backbone), torch.inference_mode():
        for start in range(0, len(features), count):
            rows = torch.from_numpy(np.array(features.values[start : start + count])).to(home)
            chosen = backbone.head(rows).argmax(dim=1).cpu().numpy()
            right += int((chosen == features.labels[start : start + count]).sum())
    return right / len(features)
