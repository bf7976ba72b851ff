"""Features of images: one pass of a frozen model over un-augmented images, kept as float32."""

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import resolve_device
from condnum.data.images import ImageData, Unreadable
from condnum.deep.backbone import Backbone, evaluating
from condnum.deep.images import ImageBatch, check_unreadable, image_loader
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError
from condnum.machine import memory_advice
from condnum.progress import report_event

#: Any map from a batch of images `(B, 3, h, w)` to pooled features `(B, D)`.
FeatureExtractor: TypeAlias = Callable[[Tensor], Any]


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of a data set, `X̃(θ)` of Eq. 18, with the labels of the same rows."""

    values: NDArray[np.float32]  # (N, D), read-only
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
    transform: ImageTransform | None = None,
    *,
    device: str | torch.device | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> ImageFeatures:
    """Run a model over all images that decode, in evaluation mode and without gradients.

    `model` is a module, which stays as it is, or any function of images `(B, 3, h, w)` to features `(B, D)`.
    `device` None is where the module's parameters are, else the CPU; `workers` are processes that decode.
    """
    if transform is not None and transform.random:
        raise InvalidInputError("this transform is random; take features with evaluation_transform.")
    module = model if isinstance(model, nn.Module) else None
    parts = () if module is None else chain(module.parameters(), module.buffers())
    home = next((part.device for part in parts), torch.device("cpu"))
    target = home if device is None else resolve_device(device)
    if module is not None and home != target:
        model = module = copy.deepcopy(module).to(target)
    pin = target.type == "cuda"
    loader = image_loader(data, transform, batch_size=batch_size, workers=workers, pin_memory=pin)

    def run(images: Tensor) -> Tensor:
        """Return `(B, D)` of one batch, or say what came instead."""
        rows = model(images.to(target, non_blocking=True))
        if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(images):
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InvalidInputError(
                f"the model must return pooled features (B, D) for images {tuple(images.shape)}, got {got}; "
                "wrap it in a Backbone, which takes what its head is given."
            )
        return rows.float()

    what = f"features of {data.title}"
    still = nullcontext() if module is None else evaluating(module)
    with still, torch.inference_mode(), memory_advice(batch_size, target, what):
        values, labels, indices, unreadable = collect(run, loader, what, total=len(data))
    check_unreadable(unreadable, len(data), data.title)
    if wrong := int((~values.isfinite().all(dim=1)).sum()):  # which no later step could explain
        raise InvalidInputError(
            f"{what}: the model returns NaN or infinity for {wrong} image(s); check its weights."
        )
    rows = values.numpy()
    rows.setflags(write=False)
    return ImageFeatures(rows, labels.numpy(), indices.numpy(), data.classes, tuple(unreadable), data.title)


def collect(
    run: Callable[[Tensor], Tensor], loader: Iterable[ImageBatch], stage: str, *, total: int
) -> tuple[Tensor, Tensor, Tensor, list[Unreadable]]:
    """Return what a model gives for images that decode, their labels and indices, and those that do not."""
    out: Tensor | None = (
        None  # one tensor of all rows: a list of parts would need twice the memory in the end
    )
    labels, indices, unreadable, count = [], [], list[Unreadable](), 0
    for batch in loader:
        unreadable += batch.unreadable
        if len(batch.labels):
            rows = run(batch.images)
            out = rows.new_empty(total, *rows.shape[1:], device="cpu") if out is None else out
            out[count : count + len(rows)] = rows
            count += len(rows)
            labels.append(batch.labels)
            indices.append(batch.indices)
        report_event(stage=stage, step=count + len(unreadable), steps=total)
    if out is None:
        return torch.empty(0, 0), torch.empty(0), torch.empty(0), unreadable
    return out[:count], torch.cat(labels), torch.cat(indices), unreadable


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
