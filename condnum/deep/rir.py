r"""RIR_θ0 of two models on two sets of images (Eq. 17).

.. math:: \mathrm{RIR}_{\theta_0} = \frac{\kappa(\tilde H_H(\theta_I))/\kappa(\tilde H_H(\theta_0))}
   {\kappa(\tilde H_P(\theta_I))/\kappa(\tilde H_P(\theta_0))}, \qquad
   \tilde H(\theta) = \tilde X(\theta)^\top \tilde X(\theta)

(Eq. 17, 18). The paper draws 20 groups of 100 samples and averages; `rir_from_features` does that on
features, `rir_theta0` takes them from images first.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import nn

from condnum.deep.feature_cache import cached_features
from condnum.deep.features import Extractor, Precision
from condnum.deep.image_data import ImageData
from condnum.deep.rir_features import RirEstimate, RirTheta0, rir_from_features
from condnum.deep.rir_groups import check_count
from condnum.deep.transforms import ImageTransform, evaluation_transform
from condnum.errors import InvalidInputError
from condnum.immunization import Gauge
from condnum.spectra import PUBLISHED_RIDGE

__all__ = ["RirEstimate", "RirTheta0", "rir_from_features", "rir_theta0"]


def rir_theta0(
    theta_0: Extractor,
    theta_I: Extractor,  # ruff: ignore[invalid-argument-name] - the paper's name
    D_P: ImageData,
    D_H: ImageData,
    *,
    groups: int = 20,
    group_size: int = 100,
    seed: int = 0,
    transform: ImageTransform | None = None,
    cache: str | os.PathLike[str] | None = None,
    name: str = "",
    device: str | torch.device | None = None,
    batch_size: int = 64,
    precision: Precision = "float32",
    workers: int = 0,
    ridge: float = PUBLISHED_RIDGE,
    rtol: float | None = None,
    gauge: Gauge = "unit",
) -> RirTheta0:
    """Measure RIR_θ0 (Eq. 17) of two models on two sets of images, un-augmented.

    Only the images of the groups are run: at most `groups·group_size` of each task, drawn from `seed`, plus
    a tenth in reserve for images that do not decode.

    Args:
        theta_0: Model before immunization; not the same object as `theta_I`.
        theta_I: Immunized model.
        D_P: Pre-training images.
        D_H: Harmful images.
        groups: Number of groups.
        group_size: Samples of a group.
        seed: Of the draws.
        transform: Un-augmented; default `evaluation_transform(theta_0)`.
        cache: Folder of the feature cache; None keeps nothing.
        name: What the backbone is called, for the cache.
        device: See `extract_features`.
        batch_size: See `extract_features`.
        precision: See `extract_features`.
        workers: See `extract_features`.
        ridge: See `rir_from_features`.
        rtol: See `rir_from_features`.
        gauge: See `rir_from_features`.

    Returns:
        As `rir_from_features`.

    Raises:
        InvalidInputError: `theta_0` and `theta_I` are one object (RIR would be 1 whatever was trained),
            fewer images than a group, and all that `extract_features` raises.
    """
    if theta_0 is theta_I or _shares_parameters(theta_0, theta_I):
        raise InvalidInputError(
            "theta_0 and theta_I are one model or share trainable parameters, so RIR_θ0 would compare the "
            "immunized model with itself; keep a copy of θ₀ (copy.deepcopy) before immunizing."
        )
    used = evaluation_transform(theta_0) if transform is None else transform
    features = []
    for stream, (task, data) in enumerate((("D_P", D_P), ("D_H", D_H))):
        check_count(len(data), task, group_size)
        count = min(len(data), groups * group_size + groups * group_size // 10)
        order = np.random.default_rng([seed, stream, 1]).permutation(len(data))
        sample = data if count == len(data) else data.take(np.sort(order[:count]))
        for theta in (theta_0, theta_I):
            features.append(
                cached_features(
                    theta,
                    sample,
                    used,
                    cache=cache,
                    name=name,
                    device=device,
                    batch_size=batch_size,
                    precision=precision,
                    workers=workers,
                )
            )
    return rir_from_features(
        *features, groups=groups, group_size=group_size, seed=seed, ridge=ridge, rtol=rtol, gauge=gauge
    )


def _shares_parameters(theta_0: Extractor, theta_I: Extractor) -> bool:  # ruff: ignore[invalid-argument-name]
    """Tell whether training one model would change the other."""
    if not (isinstance(theta_0, nn.Module) and isinstance(theta_I, nn.Module)):
        return False
    return bool(
        {id(p) for p in theta_0.parameters() if p.requires_grad} & {id(p) for p in theta_I.parameters()}
    )
