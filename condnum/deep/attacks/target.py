"""What a deep attack starts from: images as tensors, and a net whose features are computed once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condnum.arrays import resolve_device
from condnum.data.images import ImageSource, as_images, rows_per_class
from condnum.deep.attacks.attackers import CHANGES, Subset
from condnum.deep.backbone import Backbone, evaluating
from condnum.deep.features import collect
from condnum.deep.hooks import REPLAY_TOLERANCE, outputs_before
from condnum.deep.images import check_unreadable, hold_out_rows, image_loader
from condnum.deep.training.samples import ACTIVATION_BUDGET
from condnum.deep.transforms import ImageTransform
from condnum.errors import InvalidInputError

#: Images that go through a net at a time where nothing is trained.
CHUNK = 250
#: Output of frozen trunks by trunk, images and change of them, with the rows that are done: nets that were
#: made of one θ₀ share it.
TrunkOutputs: TypeAlias = dict[tuple[str, "Pixels", str], tuple[Tensor, NDArray[np.bool_]]]
#: Added to the seed of a net from scratch, so that it is not what θ₀ was trained from.
SCRATCH_SEED = 1_000


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images as a net takes them, with their labels."""

    images: Tensor  # (N, 3, height, width)
    labels: Tensor  # (N,) int64
    classes: int

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    def chance(self) -> float:
        """Fraction of the most common class: the accuracy of an attacker who does not look."""
        return float(np.bincount(self.labels.numpy()).max() / len(self))

    def chosen_rows(self, shots: int, seed: int) -> list[NDArray[np.int64]]:
        """Return an attacker's rows: those to train on, and a fifth of each class that is held out."""
        chosen = rows_per_class(self.labels.numpy(), shots or None, seed)
        return [chosen[part] for part in hold_out_rows(self.labels.numpy()[chosen], [seed, 4])]


def load_pixels(
    data: ImageSource, transform: ImageTransform | None = None, *, most: int | None = None, workers: int = 0
) -> Pixels:
    """Load images as tensors, un-augmented, as attacks take them.

    Args:
        data: The images of a task (`as_images`); those that do not decode are left out.
        transform: An un-augmented transform; None for tensors.
        most: Largest number of images, the same number of each class and the same ones each time; None: all.
        workers: Processes that decode.

    Returns:
        Tensors and labels.

    Raises:
        InvalidInputError: The transform is random.
        DataFormatError: More than a tenth does not decode.
    """
    if transform is not None and transform.random:
        raise InvalidInputError("this transform is random; attacks need images without augmentation.")
    known = as_images(data, "the images")
    classes = len(np.unique(known.labels))  # of a head with 1,000 outputs some have no image
    kept = known if most is None else known.limit(max(1, most // classes))
    loader = image_loader(kept, transform, batch_size=CHUNK, workers=workers)
    images, labels, _, unreadable = collect(lambda x: x, loader, f"images of {kept.name}", total=len(kept))
    check_unreadable(unreadable, len(kept), kept.title)
    return Pixels(images, labels, len(kept.classes))


class Target:
    """A net under attack; what its parts give for images is computed once."""

    def __init__(
        self,
        theta: nn.Module,
        train: Pixels,  # of D_H, which its attackers may have
        test: Pixels,
        *,
        fresh: Pixels | None = None,  # of D_H, on which θ_I was not trained
        benign_train: Pixels | None = None,  # of D_P, for attackers who begin with it
        benign_test: Pixels | None = None,  # for what is left of the benign task
        device: str | torch.device = "cpu",
        kept: TrunkOutputs | None = None,  # of other nets, to which what this one needs is added
    ) -> None:
        self.device = resolve_device(device)
        self.kept: TrunkOutputs = {} if kept is None else kept
        self._trunk = theta.trunk_checksum if isinstance(theta, Backbone) else ""
        self.theta = theta.to(self.device)
        self.train, self.test, self.fresh = train, test, fresh
        self.benign_train, self.benign_test = benign_train, benign_test
        self._features: dict[tuple[int, bytes], Tensor] = {}

    def features(self, of: Pixels, rows: NDArray[np.int64] | None = None) -> Tensor:
        """Return the features `(n, D)` of some rows of a set, or of all."""
        chosen = np.arange(len(of)) if rows is None else rows
        key = id(of), chosen.tobytes()
        if key not in self._features:
            self._features[key] = self._changed(of, chosen)
        return self._features[key]

    def _changed(self, of: Pixels, rows: NDArray[np.int64], change: str = "") -> Tensor:
        """Return the features `(n, D)` of some rows of a set whose images were changed, or not."""
        activations = self._activations(of, rows, change)
        if activations is None:
            changed = CHANGES[change] if change else torch.Tensor.clone
            parts = of.images[torch.from_numpy(rows)].split(CHUNK)
            return torch.cat([self.through(self.theta, changed(part)) for part in parts])
        return self.through(lambda part: self.theta(part, activations=True), activations)

    def _activations(self, of: Pixels, rows: NDArray[np.int64], change: str = "") -> Tensor | None:
        """Return the frozen trunk's output for some rows, computed once for all nets that share the trunk.

        None: this net has no such trunk, cannot be run from it (with images of that size), or its output
        takes more than `ACTIVATION_BUDGET`.
        """
        theta, changed = self.theta, CHANGES[change] if change else None
        if not isinstance(theta, Backbone):
            return None

        def run(how: Callable[[Tensor], Tensor], chosen: NDArray[np.int64]) -> Tensor:
            images = of.images[torch.from_numpy(chosen)]
            return self.through(how, changed(images) if changed else images).cpu()

        try:
            first = run(theta.frozen_activations, rows[:2])
        except InvalidInputError:
            return None  # later modules read the trunk too
        if first.nbytes * len(of) > ACTIVATION_BUDGET:
            return None
        key = self._trunk, of, change
        if key not in self.kept:
            whole = run(theta, rows[:2])
            replayed = self.through(lambda part: theta(part, activations=True), first).cpu()
            if (whole - replayed).abs().max() > REPLAY_TOLERANCE * whole.abs().max():
                return None
            self.kept[key] = first.new_empty(len(of), *first.shape[1:]), np.zeros(len(of), dtype=bool)
        output, done = self.kept[key]
        for part in np.split(todo := rows[~done[rows]], range(CHUNK, len(todo), CHUNK)):
            output[torch.from_numpy(part)] = run(theta.frozen_activations, part)
            done[part] = True
        return output[torch.from_numpy(rows)]

    def trunk_outputs(self, of: Pixels, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the pooled output `(n, D)` of every module before the immunized part, by its name."""
        theta = self.theta
        if not isinstance(theta, Backbone):
            raise InvalidInputError(
                "attacker 'trunk' needs a condnum Backbone, which knows where its immunized part begins, "
                f"got a {type(theta).__name__}; leave this attacker out."
            )
        parts = of.images[torch.from_numpy(rows)].split(CHUNK)
        with evaluating(theta):
            found = [outputs_before(theta.model, theta.trainable, part.to(self.device)) for part in parts]
        return {name: torch.cat([part[name] for part in found]) for name in found[0]}

    def transformed(self, of: Pixels, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return the features `(n, D)` of changed images, by the name of the change."""
        found = {}
        for name, change in CHANGES.items():
            try:
                found[name] = self._changed(of, rows, name)
            except (AssertionError, RuntimeError):
                if change(of.images[:1]).shape == of.images[:1].shape:
                    raise  # else this net takes images of one size only
        return found

    def through(self, run: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Return what a net gives for images, in evaluation mode."""
        module = run if isinstance(run, nn.Module) else self.theta
        with evaluating(module), torch.no_grad():
            return torch.cat([run(part.to(self.device)) for part in images.split(CHUNK)])

    def benign_accuracy(self, net: nn.Module | None = None) -> float:
        """Return the accuracy of the released head on D_P's test images, with θ or what became of it."""
        known, net = self.benign_test, self.theta if net is None else net
        if known is None or not isinstance(net, Backbone):
            return math.nan
        rows = self.features(known) if net is self.theta else self.through(net, known.images)
        with torch.no_grad():
            return float((net.head(rows).argmax(dim=1).cpu() == known.labels).double().mean())

    def inputs(self, subset: Subset, of: Pixels, rows: NDArray[np.int64]) -> Tensor:
        """Return what the trained part starts from: images, the frozen trunk's output, or features."""
        if subset == "head":
            return self.features(of, rows)
        found = self._activations(of, rows) if subset == "stage" else None
        return (of.images[torch.from_numpy(rows)] if found is None else found).to(self.device)


def from_scratch(backbone: nn.Module, seed: int, images: Tensor) -> Backbone:
    """Return the same architecture with weights drawn anew, and BatchNorm's statistics of these images.

    As they are drawn, statistics are 0 and 1, with which the features of a deep net are nearly constant.
    Scales of norms that are drawn as 0, as timm does at the end of residual branches, are set to 1: else a
    ResNet18 sees 36 of 1,024 pixels, and is no net that could learn.
    """
    if not isinstance(backbone, Backbone) or backbone.model_arguments is None:
        raise InvalidInputError(
            f"a {getattr(backbone, 'name', type(backbone).__name__)} cannot be re-initialized here; pass the "
            "same architecture with new weights as scratch=."
        )
    made = Backbone(
        backbone.name,
        trainable=backbone.trainable,
        num_classes=backbone.num_classes,
        seed=SCRATCH_SEED + seed,
        **backbone.model_arguments,
    )
    for part in made.modules():
        scale = getattr(part, "weight", None)
        if isinstance(scale, nn.Parameter) and scale.ndim == 1 and not scale.any():
            nn.init.ones_(scale)
    norms = [part for part in made.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [part.momentum for part in norms]
    for part in norms:
        part.reset_running_stats()
        part.train().momentum = None  # a plain mean over all batches
    with torch.no_grad():
        for batch in images.split(CHUNK) if norms else ():
            made(batch)
    for part, momentum in zip(norms, momenta, strict=True):
        part.eval().momentum = momentum
    return made
