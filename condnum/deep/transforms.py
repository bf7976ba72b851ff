"""From a PIL image to a network's input: timm's own transforms, named for a cache key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from torch import Tensor

from condnum.errors import InvalidInputError, check_known, require

Augmentation = Literal["none", "imagenet"]

_OVERRIDES = ("crop_pct", "interpolation", "mean", "std")


@dataclass(frozen=True)
class ImageTransform:
    """A transform and what it is: two transforms with one description give one tensor."""

    #: RGB PIL image -> (3, height, width) float32, normalized; the description says all of it.
    apply: Callable[[Any], Tensor] = field(compare=False)
    description: str  # JSON: kind, input size, interpolation, crop, mean, std, library versions
    input_size: tuple[int, int, int]  # channels, height, width
    random: bool  # whether two calls on one image differ
    augmented_from: ImageTransform | None = None  # of a random one: the same without augmentation

    @property
    def unaugmented(self) -> ImageTransform | None:
        """The same without augmentation; None for a random one that does not know."""
        return self.augmented_from if self.random else self

    def __call__(self, image: Any) -> Tensor:
        """Return the tensor of one RGB image."""
        return self.apply(image)


def evaluation_transform(
    model: Any = None, *, input_size: int | tuple[int, int, int] | None = None, **overrides: Any
) -> ImageTransform:
    """Return the un-augmented transform that timm prescribes for a model: resize, center crop, normalize.

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
        >>> transform(Image.new("RGB", (50, 40))).shape, transform.random
        (torch.Size([3, 32, 32]), False)
    """
    return _transform("evaluation", model, input_size, overrides)


def training_transform(
    model: Any = None,
    *,
    input_size: int | tuple[int, int, int] | None = None,
    augmentation: Augmentation = "imagenet",
    **overrides: Any,
) -> ImageTransform:
    """Return timm's random transform for training, with the model's size and normalization.

    `none` is the evaluation transform.
    """
    check_known("augmentation", augmentation, get_args(Augmentation))
    still = evaluation_transform(model, input_size=input_size, **overrides)
    if augmentation == "none":
        return still
    made = _transform(augmentation, model, input_size, overrides, training=True)
    return replace(made, random=True, augmented_from=still)


def _transform(
    kind: str,
    model: Any,
    input_size: int | tuple[int, int, int] | None,
    overrides: dict[str, Any],
    *,
    training: bool = False,
) -> ImageTransform:
    """Return timm's transform by a model's data configuration, with the caller's changes."""
    for name in overrides:
        check_known("transform option", name, _OVERRIDES)
    size = (3, input_size, input_size) if isinstance(input_size, int) else input_size
    if size is not None and (len(size) != 3 or size[0] != 3 or min(size) < 1):
        raise InvalidInputError(f"input_size must be a side or (3, height, width), got {input_size!r}.")
    inner = getattr(model, "model", model) if not hasattr(model, "pretrained_cfg") else model
    cfg = dict(getattr(inner, "pretrained_cfg", None) or {})
    if model is not None and not cfg and size is None:
        raise InvalidInputError(
            f"{getattr(model, 'name', type(model).__name__)} has no `pretrained_cfg` with the size of "
            "images; give input_size, or a transform such as evaluation_transform(input_size=224)."
        )
    made_for = getattr(getattr(inner, "patch_embed", None), "img_size", None)  # a ViT's grid is fixed
    if size is None and made_for is not None:
        size = (3, *made_for)
    data = require("timm.data", "deep")
    config = data.resolve_data_config({**overrides, "input_size": size}, pretrained_cfg=cfg)
    channels, height, width = config["input_size"]
    if channels != 3:
        raise InvalidInputError(f"images are read as RGB, but the model takes {channels} channel(s).")
    if training:
        config = {key: value for key, value in config.items() if key not in ("crop_pct", "crop_mode")}
    options = {"is_training": training, **config}
    modules = {"timm": "timm", "torchvision": "torchvision", "pillow": "PIL"}
    versions = {name: require(module, "deep").__version__ for name, module in modules.items()}
    text = json.dumps({"kind": kind, "exif": "upright", **options, **versions}, sort_keys=True)
    return ImageTransform(data.create_transform(**options), text, (channels, height, width), random=False)
