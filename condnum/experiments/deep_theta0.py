"""θ₀ of the deep-net experiment: timm's weights, a file's, or drawn and trained on D_P."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from condnum.deep.backbone import Backbone
from condnum.deep.pretraining import Pretraining, pretrain_backbone
from condnum.errors import InvalidInputError
from condnum.experiments.deep_config import DeepConfig
from condnum.experiments.deep_tasks import DeepTasks, task_transform
from condnum.extras import require


def create_backbone(config: DeepConfig, tasks: DeepTasks, name: str, seed: int) -> Backbone:
    """Make the backbone before any training here."""
    recipe = config.backbone(name)
    arguments = {**_image_size(config, name), **recipe.arguments}
    if config.image_size is not None and "img_size" in arguments:
        arguments["img_size"] = config.image_size
    weights, trained = config.chosen_weights, recipe.pretraining is not None
    if weights == "timm" and not trained and not tasks.imagenet_head:
        raise InvalidInputError(
            f"timm's head of {name} knows the classes of ImageNet-1K, and {tasks.pretrain.name} has "
            f"{len(tasks.pretrain.classes)} others ({', '.join(tasks.pretrain.classes[:3])}, …): give "
            "--pretrain-epochs N to fine-tune the weights with a new head on D_P first, or --weights FILE of "
            "a model that was trained on D_P."
        )
    own_head = tasks.imagenet_head and not trained
    return Backbone(
        name,
        pretrained={"none": False, "timm": True}.get(weights, weights),
        num_classes=None if own_head else len(tasks.pretrain.classes),
        classifier="new" if trained and weights != "none" else "loaded",
        seed=seed,
        **arguments,
    )


def make_theta_0(
    config: DeepConfig, tasks: DeepTasks, name: str, seed: int, checkpoint: Path
) -> tuple[Backbone, Pretraining | None]:
    """Make θ₀ of a seed: create the backbone and, if the run says so, train it on D_P."""
    backbone = create_backbone(config, tasks, name, seed)
    options: dict[str, Any] | None = None
    if (pretraining := config.backbone(name).pretraining) is not None:
        options = dict(pretraining)
    if options is None:
        return backbone, None
    transform = task_transform(config, tasks, backbone)
    made = pretrain_backbone(
        backbone,
        tasks.pretrain,
        test=tasks.pretrain_test,
        transform=transform,
        seed=seed,
        device=config.device,
        workers=config.workers,
        checkpoint=checkpoint,
        **options,
    )
    return backbone, made


def pretraining_table(config: DeepConfig) -> pd.DataFrame:
    """Say where each θ₀ comes from."""
    rows = []
    for name in config.chosen_backbones:
        recipe = config.backbone(name)
        source = {"none": "drawn", "timm": "timm's pre-trained weights"}.get(
            config.chosen_weights, config.chosen_weights
        )
        options = ", ".join(f"{key} {value}" for key, value in (recipe.pretraining or {}).items())
        made = (
            f"{source}, then trained on D_P without its held-out images ({options})"
            if recipe.pretraining
            else f"{source}; may have seen the held-out images, which θ_I has not"
        )
        arguments = ", ".join(f"{key}={value}" for key, value in recipe.arguments.items())
        rows.append({"backbone": f"{name}({arguments})" if arguments else name, "θ₀": made})
    return pd.DataFrame(rows)


def _image_size(config: DeepConfig, name: str) -> dict[str, int]:
    """Return timm's `img_size` where the run fixes the side and the model is made for one size."""
    if config.side is None:
        return {}
    timm = require("timm", "deep")
    known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    return {"img_size": config.side} if getattr(known, "fixed_input_size", False) else {}
