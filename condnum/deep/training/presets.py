"""Named settings: those of Table 4, for the backbones and data sets of Sec. 5.2."""

from __future__ import annotations

from typing import Any

from condnum.deep.training.settings import DeepSettings
from condnum.errors import UnknownNameError

#: Table 4 of the paper, with the optimizer of C.2 (SGD, Nesterov 0.9, no decay on θ, 2e-5 on ω) and fixed λ.
_TABLE_4: dict[str, dict[str, Any]] = {
    "resnet18-cars": {"lambda_pretrain": 5e-5, "lambda_harmful": 2e6, "epochs": 3},
    "resnet18-country211": {"lambda_pretrain": 1e-4, "lambda_harmful": 2e6, "epochs": 3},
    "vit-cars": {"lambda_pretrain": 3e-6, "lambda_harmful": 3e8, "epochs": 2},
    "vit-country211": {"lambda_pretrain": 1e-6, "lambda_harmful": 1e8, "epochs": 2},
}


#: What Table 4 leaves to the text, for all of them.
_PAPER: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 1e-5,
    "steps": None,
    "batch_size": 128,
    "weights": "fixed",
    "precondition": True,
    "evaluate_every": None,
    "patience": None,
}


def deep_preset_names() -> tuple[str, ...]:
    """Return the names of the presets.

    Examples:
        >>> deep_preset_names()
        ('resnet18-cars', 'resnet18-country211', 'vit-cars', 'vit-country211')
    """
    return tuple(_TABLE_4)


def deep_preset(name: str) -> DeepSettings:
    """Return published settings (Table 4).

    Their λ belong to the scale of the unnormalised Hessian, and so to the backbone's weights, the image
    size and the batch size, which the paper does not state; balanced λ are the safer choice elsewhere.

    Args:
        name: One of `deep_preset_names`.

    Returns:
        The settings.

    Raises:
        UnknownNameError: No such preset.

    Examples:
        >>> settings = deep_preset("vit-cars")
        >>> settings.learning_rate, settings.lambda_harmful, settings.epochs
        (1e-05, 300000000.0, 2)
    """
    if name not in _TABLE_4:
        raise UnknownNameError("preset", name, deep_preset_names())
    return DeepSettings(**_PAPER, **_TABLE_4[name])
