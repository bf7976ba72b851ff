"""A backbone with the images of both tasks, in the place of feature files."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from condnum.data.files import FeatureStream, as_stream
from condnum.deep.backbone import Backbone, load_backbone, size_arguments
from condnum.deep.features import extract_features
from condnum.deep.image_sets import open_images
from condnum.deep.images import ImageData, image_loader
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.deep.weights import read_metadata
from condnum.errors import InvalidInputError
from condnum.progress import report_event

#: Images of a step through a net, and between two messages on its progress.
_IMAGE_BATCH = 64


@dataclass(frozen=True, eq=False)
class NetImages:
    """A backbone and the images of both tasks that it is audited on."""

    backbone: Backbone
    transform: ImageTransform
    images: tuple[ImageData, ImageData]  # of D_P and D_H

    @classmethod
    def open(
        cls, name: str, *places: str, weights: str, image_size: int | None, limit: int | None, seed: int
    ) -> "NetImages":
        """Make the backbone, without the head that a file may have, and open the images of both tasks."""
        size, file = size_arguments(name, image_size), weights not in ("none", "timm")
        known = read_metadata(weights) if file else {}
        if known.get("backbone", name) != name:
            raise InvalidInputError(
                f"{weights} holds the weights of {known['backbone']}, not of {name}: give --backbone "
                f"{known['backbone']}."
            )
        if "recipe" in known:
            backbone = load_backbone(weights, **size)
        else:
            pretrained = weights if file else weights == "timm"
            backbone = Backbone(
                name, pretrained=pretrained, classifier="new" if file else "loaded", seed=seed, **size
            )
        whole: dict[str, Any] = {"input_size": image_size, "crop_pct": 1.0} if image_size else {}
        P, H = (open_images(place, limit=limit, seed=seed) for place in places)
        return cls(backbone, evaluation_transform(backbone, **whole), (P, H))

    def features(self) -> tuple[list[FeatureStream], list[Any], list[str]]:
        """Extract pooled features of un-augmented images (Eq. 18); labels; what is left out."""
        streams, labels, notes = [], [], list[str]()
        for images in self.images:
            found = extract_features(self.backbone, images, self.transform, device="auto")
            streams.append(as_stream(found.values, name=Path(images.name).name))
            labels.append(found.labels)
            notes += images.warnings
            if bad := found.unreadable:
                notes.append(f"{images.title}: {len(bad)} images do not decode, the first: {bad[0]}.")
        return streams, labels, list(dict.fromkeys(notes))

    def batches(self, task: int) -> Generator[Tensor]:
        """Yield the images of a task that decode, `(B, 3, h, w)`."""
        data, done = self.images[task], 0
        for batch in image_loader(data, self.transform, batch_size=_IMAGE_BATCH):
            if len(batch.labels):
                yield batch.images
            done += len(batch.labels) + len(batch.unreadable)
            report_event(stage=f"layers, images of D_{'PH'[task]}", step=done, steps=len(data))
