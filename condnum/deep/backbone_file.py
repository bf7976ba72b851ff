"""A backbone on disk: one safetensors file that timm can read and that rebuilds the backbone here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from condnum import __version__
from condnum.deep.backbone import Backbone
from condnum.deep.weights import read_metadata, write_weights
from condnum.errors import DataFormatError, OutputError


def save_backbone(
    backbone: Backbone, path: str | os.PathLike[str], *, notes: Mapping[str, str] | None = None
) -> Path:
    """Write a backbone's weights under timm's own keys, with its recipe, condnum's version and a checksum.

    Args:
        backbone: θ₀, θ_I or a snapshot; on any device.
        path: File to write, such as `theta_0.safetensors`.
        notes: Further metadata, strings only.

    Returns:
        `path`.

    Raises:
        OutputError: It cannot be written, or does not end in `.safetensors`.
        MissingExtraError: safetensors is not installed.
    """
    if Path(path).suffix != ".safetensors":
        raise OutputError(f"a backbone is written as safetensors: name the file {path}.safetensors.")
    recipe = {
        **backbone.model_arguments,
        "num_classes": backbone.num_classes,
        "trainable": list(backbone.split.trainable),
        "batch_norm": backbone.batch_norm,
    }
    history = {"condnum": __version__, "backbone": backbone.name, "recipe": json.dumps(recipe)}
    return write_weights(path, backbone.model.state_dict(), {**(notes or {}), **history})


def load_backbone(path: str | os.PathLike[str], **changes: Any) -> Backbone:
    """Rebuild a backbone that `save_backbone` wrote; its checksum is verified.

    Args:
        path: The file.
        **changes: Arguments of `Backbone` in place of the recorded ones.

    Returns:
        The backbone, in evaluation mode on the CPU.

    Raises:
        DataFormatError: The file does not say which backbone it holds, or is damaged.
        DataNotFoundError: No such file.
        MissingExtraError: timm or safetensors is not installed.
    """
    metadata = read_metadata(path)
    if "backbone" not in metadata or "recipe" not in metadata:
        raise DataFormatError(
            f"{path} does not say which backbone it holds; use Backbone(name, pretrained='{path}')."
        )
    recipe = json.loads(metadata["recipe"])
    return Backbone(metadata["backbone"], **{**recipe, "pretrained": path, **changes})
