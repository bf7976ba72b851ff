"""The images of a task as a net takes them: transformed, in batches, through its trunk once, as features.

Which images a step sees is a function of the seed and the step alone, so that a run can be resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from condnum.data.images import ImageData, ImageSource, Unreadable, as_images
from condnum.deep.net import Backbone, evaluating
from condnum.errors import DataFormatError, InvalidInputError, check_known, require
from condnum.files import output_folder
from condnum.machine import memory_advice
from condnum.progress import duration, report_event

Rows: TypeAlias = NDArray[np.int64]

#: Images that go through a net at a time where nothing is trained.
CHUNK = 64
#: Kept activations or pixels of a task take at most this many bytes of memory, or half of what a folder's
#: disk has left; larger ones are computed again each time.
_BUDGET = 2 << 30
#: A set with a larger fraction of undecodable images is taken for a broken copy, not for a few bad files.
_UNREADABLE = 0.1
#: Images of a task that are held out: enough to know an accuracy to two points, but a fraction between these.
_HELD_OUT, _HELD_OUT_FRACTIONS = 500, (0.1, 0.2)


def hold_out(
    labels: NDArray[np.integer], stream: Sequence[int], fraction: float | None = None
) -> tuple[Rows, Rows]:
    """Split rows into those to train on and a part of each class to choose by; both ascending.

    Examples:
        >>> rest, held = hold_out(np.array([0] * 20 + [1] * 10), [0])
        >>> len(rest), len(held)
        (24, 6)
    """
    part = np.clip(_HELD_OUT / len(labels), *_HELD_OUT_FRACTIONS) if fraction is None else fraction
    generator, held = np.random.default_rng(stream), []
    for c in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == c))
        held.append(own[: max(1, round(part * len(own))) if len(own) > 1 else 0])
    out = np.sort(np.concatenate(held))
    if not out.size:
        raise InvalidInputError("no class has two examples, so none can be held out; add images.")
    return np.setdiff1d(np.arange(len(labels)), out), out


def minibatches(rows: Rows, size: int, key: Sequence[int], first: int = 0) -> Iterator[list[Rows]]:
    """Yield the batches of each pass, of a new permutation, from step `first` on; a rest is left out.

    Examples:
        >>> [len(batch) for batch in next(minibatches(np.arange(7), 3, key=[0], first=3))]
        [3]
    """
    size = min(size, len(rows))
    epoch, offset = divmod(first, len(rows) // size)
    while True:
        order = np.random.default_rng([*key, epoch]).permutation(rows)
        yield [order[k * size : (k + 1) * size] for k in range(offset, len(rows) // size)]
        epoch, offset = epoch + 1, 0


# Transforms.


@dataclass(frozen=True)
class ImageTransform:
    """A transform and what it is: two transforms with one description give one tensor."""

    #: RGB PIL image -> (3, height, width) float32, normalized; the description says all of it.
    apply: Callable[[Any], Tensor] = field(compare=False)
    description: str  # JSON: input size, interpolation, crop, mean, std, library versions
    input_size: tuple[int, int, int]  # channels, height, width

    def __call__(self, image: Any) -> Tensor:
        """Return the tensor of one RGB image."""
        return self.apply(image)


def evaluation_transform(
    model: Any = None, *, input_size: int | tuple[int, int, int] | None = None, **overrides: Any
) -> ImageTransform:
    """Return the transform that timm prescribes for a model: resize, center crop, normalize.

    Args:
        model: A timm model or a `Backbone`; None: timm's defaults (224×224, ImageNet's mean and deviation).
        input_size: Side, or (3, height, width), where it is not that of the pre-trained weights.
        **overrides: `crop_pct`, `interpolation`, `mean` or `std`, instead of the model's; `crop_pct=1.0`
            keeps the border of small images.

    Returns:
        The transform.

    Raises:
        InvalidInputError: A bad size or an unknown override, or a model that names no size.

    Examples:
        >>> from PIL import Image
        >>> transform = evaluation_transform(input_size=32, crop_pct=1.0)
        >>> transform(Image.new("RGB", (50, 40))).shape
        torch.Size([3, 32, 32])
    """
    for name in overrides:
        check_known("transform option", name, ("crop_pct", "interpolation", "mean", "std"))
    size = (3, input_size, input_size) if isinstance(input_size, int) else input_size
    if size is not None and (len(size) != 3 or size[0] != 3 or min(size) < 1):
        raise InvalidInputError(f"input_size must be a side or (3, height, width), got {input_size!r}.")
    inner = model.model if isinstance(model, Backbone) else model
    cfg = dict(getattr(inner, "pretrained_cfg", None) or {})
    if model is not None and not cfg and size is None:
        raise InvalidInputError(
            f"{type(inner).__name__} has no `pretrained_cfg` with the size of images; give input_size, or a "
            "transform such as evaluation_transform(input_size=224)."
        )
    made_for = getattr(getattr(inner, "patch_embed", None), "img_size", None)  # a ViT's grid is fixed
    if size is None and made_for is not None:
        size = (3, *made_for)
    data = require("timm.data", "deep")
    config = data.resolve_data_config({**overrides, "input_size": size}, pretrained_cfg=cfg)
    if config["input_size"][0] != 3:
        raise InvalidInputError(
            f"images are read as RGB, but the model takes {config['input_size'][0]} channel(s)."
        )
    modules = {"timm": "timm", "torchvision": "torchvision", "pillow": "PIL"}
    versions = {name: require(module, "deep").__version__ for name, module in modules.items()}
    text = json.dumps({**config, **versions}, sort_keys=True)
    return ImageTransform(data.create_transform(is_training=False, **config), text, config["input_size"])


# Samples.


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of a data set, `X̃(θ)` of Eq. 18, with the labels of the same rows."""

    values: NDArray[np.float32]  # (N, D), read-only
    labels: NDArray[np.int64]  # (N,)
    indices: Rows  # (N,) positions in the `ImageData`; gaps where an image does not decode
    name: str = "features"  # of the data, for messages

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.values)


class Batch(NamedTuple):
    """What goes through the net at a time; empty where no image of a batch decodes."""

    inputs: Tensor  # (n, …) images, or activations of the frozen trunk
    labels: Tensor  # (n,) int64
    indices: Tensor  # (n,) int64
    activations: bool = False


class _Decoded(Dataset[Any]):
    """Images through a transform, by index."""

    def __init__(self, data: ImageData, transform: ImageTransform | None) -> None:
        self.data, self.transform = data, transform

    def __getitem__(self, index: int) -> tuple[int, Any]:
        image = self.data.image(index)
        raw = isinstance(image, Unreadable | Tensor) or self.transform is None
        return index, image if raw else self.transform(image)  # type: ignore[misc]


@dataclass(frozen=True)
class _Parts:
    """Batches of rows, without end maybe, as a sampler."""

    rows: Iterable[Rows]

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in self.rows)


class Samples:
    """A task's images, decoded each time, or kept as pixels or as the output of a frozen trunk.

    Args:
        data: The images, or what `as_images` takes.
        transform: From PIL images to tensors, which are taken as they are.
        workers: Processes that decode.

    Raises:
        InvalidInputError: PIL images without a transform.
    """

    def __init__(
        self, data: ImageSource, transform: ImageTransform | None = None, *, workers: int = 0
    ) -> None:
        self.data = as_images(data, "the images")
        if transform is None and not self.data.tensors:
            raise InvalidInputError(
                f"{self.data.title} needs a transform, such as evaluation_transform(input_size=224)."
            )
        self.transform, self.workers = None if self.data.tensors else transform, workers
        self.labels = np.asarray(self.data.labels)  # (N,)
        self.unreadable: dict[Unreadable, None] = {}  # images that were met and do not decode
        self._kept: NDArray[Any] | None = None  # (N, …), of the rows that are done
        self._done = np.zeros(0, dtype=bool)  # (N,)
        self._trunk = ""  # checksum of the trunk whose output is kept

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    def keep(self, backbone: Backbone | None = None, folder: Path | None = None) -> Samples:
        """Run the frozen trunk once on all images, or keep the pixels where a net cannot be run from it.

        In a folder each part is written as it comes, into one file for this trunk and these images, so that
        neither a stopped run nor another net on the same trunk repeats a pass. What has no room is decoded
        and computed again each time.
        """
        ones = self._decoded([np.array([k]) for k in range(len(self))])
        first = next(batch for batch in ones if len(batch.labels))
        trunk = backbone
        if backbone is not None:
            try:
                example = self._run(backbone, first.inputs)[0]
            except InvalidInputError:  # later modules read the trunk too
                trunk = None
        if trunk is None:
            example = first.inputs[0]
        room = _BUDGET if folder is None else shutil.disk_usage(output_folder(folder)).free // 2
        if example.nbytes * len(self) > room:
            return self
        self._trunk = trunk.trunk_checksum if trunk else ""
        made_of = [
            self._trunk,
            self.data.checksum,
            self.transform and self.transform.description,
        ]
        key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
        name = None if folder is None else folder / key
        kept, done = _arrays(name, (len(self), *example.shape), example.numpy().dtype)
        todo = np.flatnonzero(~done)
        count, started, what = 0, time.perf_counter(), "images" if trunk is None else "activations"
        for batch in self._decoded([todo[k : k + CHUNK] for k in range(0, len(todo), CHUNK)]):
            if len(batch.labels):
                rows = batch.inputs if trunk is None else self._run(trunk, batch.inputs)
                kept[batch.indices.numpy()] = rows.numpy()
                done[batch.indices.numpy()] = True
            count += CHUNK
            left = duration((len(todo) - count) * (time.perf_counter() - started) / count)
            stage = f"{what} of {self.data.title}, {left} left"
            report_event(stage=stage, step=min(count, len(todo)), steps=len(todo))
        self._kept, self._done = kept, done
        return self

    def _run(self, backbone: Backbone, images: Tensor) -> Tensor:
        device = next(backbone.parameters()).device
        with memory_advice(CHUNK, device, f"activations of {self.data.title}"):
            return backbone.frozen_activations(images.to(device)).cpu()

    def batches(self, rows: Iterable[Rows]) -> Iterator[Batch]:
        """Yield what of each entry of `rows` decodes."""
        if self._kept is None:
            yield from self._decoded(rows)
            return
        for part in rows:
            known = part[self._done[part]]
            inputs, labels = (
                torch.from_numpy(np.array(self._kept[known])),
                torch.from_numpy(self.labels[known]),
            )
            yield Batch(inputs, labels, torch.from_numpy(known), bool(self._trunk))

    def _decoded(self, rows: Iterable[Rows]) -> Iterator[Batch]:
        """Decode rows, and refuse a set most of which cannot be read, a few broken files being normal."""
        options: dict[str, Any] = {"batch_sampler": _Parts(rows), "collate_fn": list}
        loader = DataLoader(
            _Decoded(self.data, self.transform), num_workers=self.workers, **options,
            generator=torch.Generator(),  # else the global one is drawn from
        )  # fmt: skip
        for items in loader:
            self.unreadable |= {image: None for _, image in items if isinstance(image, Unreadable)}
            failed, total = len(self.unreadable), len(self)
            if failed and (failed == total or failed > max(1, _UNREADABLE * total)):
                raise DataFormatError(
                    f"{self.data.title}: {failed} of {total} images cannot be decoded, the first: "
                    f"{next(iter(self.unreadable))}; download or convert them again."
                )
            good = [(index, image) for index, image in items if isinstance(image, Tensor)]
            indices = torch.tensor([index for index, _ in good], dtype=torch.int64)
            images = torch.stack([image for _, image in good]) if good else torch.empty(0)
            yield Batch(images, torch.from_numpy(self.labels)[indices], indices)

    def features(self, model: Any, rows: Rows | None = None) -> ImageFeatures:
        """Return the features of some rows, or of all, in evaluation mode and without gradients.

        `model` is a module, such as a `Backbone`, from images `(B, 3, h, w)` to features `(B, D)`.
        """
        if self._trunk and self._trunk != getattr(model, "trunk_checksum", ""):
            raise InvalidInputError(
                f"activations of {self.data.title} are kept of another trunk; make new Samples for this net."
            )
        chosen = np.arange(len(self)) if rows is None else rows
        parts = [chosen[k : k + CHUNK] for k in range(0, len(chosen), CHUNK)]
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        found, labels, indices, what = list[Tensor](), [], [], f"features of {self.data.title}"
        with evaluating(model), torch.no_grad(), memory_advice(CHUNK, device, what):
            for count, batch in enumerate(self.batches(parts), 1):
                if len(batch.labels):
                    found.append(_features(model, batch, device).float().cpu())
                    labels.append(batch.labels)
                    indices.append(batch.indices)
                report_event(stage=what, step=min(count * CHUNK, len(chosen)), steps=len(chosen))
        values = torch.cat(found).numpy()
        if wrong := int((~np.isfinite(values).all(axis=1)).sum()):  # which no later step could explain
            raise InvalidInputError(
                f"{what}: the model returns NaN or infinity for {wrong} image(s); check its weights."
            )
        values.setflags(write=False)
        return ImageFeatures(values, torch.cat(labels).numpy(), torch.cat(indices).numpy(), self.data.title)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return all images that decode `(n, 3, h, w)` and their labels `(n,)`, as attackers take them."""
        parts = [np.arange(len(self))[k : k + CHUNK] for k in range(0, len(self), CHUNK)]
        found = [batch for batch in self._decoded(parts) if len(batch.labels)]
        return torch.cat([batch.inputs for batch in found]), torch.cat([batch.labels for batch in found])


def _features(model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
    """Return `(n, D)` of one batch, or say what came instead."""
    inputs = batch.inputs.to(device, non_blocking=True)
    rows = model(inputs, activations=True) if batch.activations else model(inputs)
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(inputs):
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise InvalidInputError(
            f"the model must return pooled features (B, D) for images {tuple(inputs.shape)}, got {got}; wrap "
            "it in a Backbone, which takes what its head is given."
        )
    return rows


@dataclass(frozen=True)
class TaskStream:
    """A task's samples in the order of the run."""

    samples: Samples
    rows: Rows  # (count,) the samples to train on
    size: int  # images in a batch
    key: tuple[int, ...]  # seed and number of the task
    few: int = 0  # classes of a batch, drawn anew for each; 0: all

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a pass."""
        return max(1, len(self.rows) // self.size)

    def steps(self, first: int) -> Iterator[Batch]:
        """Yield the batch of each step from `first` on, without end: the task cycles."""
        if self.few:
            yield from self.samples.batches(map(self._of_few, itertools.count(first)))
        for batches in minibatches(self.rows, self.size, self.key, first):
            yield from self.samples.batches(batches)

    def _of_few(self, step: int) -> Rows:
        """Return rows of a few classes, as many of each as there are or as make a batch."""
        generator, labels = np.random.default_rng([*self.key, step]), self.samples.labels[self.rows]
        chosen = generator.permutation(np.unique(labels))[: self.few]
        own = [generator.permutation(self.rows[labels == c])[: self.size // self.few] for c in chosen]
        return generator.permutation(np.concatenate(own))


def _arrays(name: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    """Return rows, and which of them are done, of two files that are whole; else new ones, all zero."""
    parts = {"rows": (shape, dtype), "done": (shape[:1], np.dtype(bool))}
    if name is None:
        return [np.zeros(*part) for part in parts.values()]
    files = {part: name.with_name(f"{name.name}.{part}.npy") for part in parts}
    with suppress(OSError, ValueError, EOFError):  # not there, or cut off as they were made
        for mode in ("r", "r+"):  # the second alone would fill up with zeros what was cut off
            known = [np.load(file, mode, allow_pickle=False) for file in files.values()]
        if [(of.shape, of.dtype) for of in known] == [*parts.values()]:
            return known
    return [np.lib.format.open_memmap(files[part], "w+", kind, of) for part, (of, kind) in parts.items()]
