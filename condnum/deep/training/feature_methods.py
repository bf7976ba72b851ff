"""The methods that act through the features: each part's value and its gradient with respect to X̃.

A part is a function of the spectrum of one task's features, in float64. Its gradient with respect to the
features is a constant that the training step then sends backwards through the net; so one Gram matrix can
span more samples than fit through the net at a time, and those of other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from condnum.deep.feature_regularizers import feature_r_ill, feature_r_well, feature_rtol
from condnum.deep.preconditioned_identity import precondition_gradient, smaller_gram
from condnum.deep.training.settings import DeepSettings
from condnum.errors import RankError

Task = Literal["pretrain", "harmful"]

#: A part's value: of the features (N, D), their rank tolerance and the settings.
Value = Callable[[Tensor, float, DeepSettings], Tensor]


@dataclass(frozen=True)
class FeaturePart:
    """A term of the objective that depends on the features of one task."""

    name: str
    task: Task
    value: Value

    def gradient(self, features: Tensor, settings: DeepSettings) -> tuple[float, Tensor]:
        """Return the value and its gradient with respect to the features."""
        X = features.detach().to(torch.float64).requires_grad_()
        value = self.value(X, feature_rtol(features), settings)
        if not bool(torch.isfinite(value)):
            raise RankError(
                f"{self.name} is infinite on {len(X)} samples: the non-zero spectrum is flat, "
                "so that it has no gradient; use more samples a step."
            )
        (gradient,) = torch.autograd.grad(value, X)
        return float(value.detach()), gradient


def _well(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """R_well (Eq. 3) of H̃, through the dummy layer."""
    dimension = X.shape[1] if settings.well_dimension == "features" else min(X.shape)
    return feature_r_well(_dummy_layer(X, settings), dimension=dimension)


def _ill(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """R_ill (Eq. 12) of H̃, through the dummy layer."""
    return feature_r_ill(_dummy_layer(X, settings), rtol=rtol)


def _kappa(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """Compact κ of H̃ (Eq. 1), or its logarithm, differentiable through the extreme eigenvalues."""
    sigma = torch.linalg.eigvalsh(smaller_gram(X))
    if not bool(sigma[-1] > 0):
        raise RankError("the features are all zero, so that they have no condition number.")
    rank = int((sigma.detach() > rtol * sigma.detach()[-1]).sum())
    kappa = sigma[-1] / sigma[-rank]
    return kappa.log() if settings.objective == "log" else kappa


def _minus_kappa(X: Tensor, rtol: float, settings: DeepSettings) -> Tensor:
    """The same with its sign turned, as it is to grow."""
    return -_kappa(X, rtol, settings)


def _dummy_layer(X: Tensor, settings: DeepSettings) -> Tensor:
    """Return the features, with preconditioned gradients if the settings say so."""
    return precondition_gradient(X) if settings.precondition else X


#: Parts of each method; all of them descend the supervised loss on D_P as well, because the head has to
#: follow the features.
FEATURE_PARTS: Mapping[str, tuple[FeaturePart, ...]] = {
    "ours": (FeaturePart("well", "pretrain", _well), FeaturePart("ill", "harmful", _ill)),
    "r_ill_only": (FeaturePart("ill", "harmful", _ill),),
    "opt_kappa": (
        FeaturePart("kappa_pretrain", "pretrain", _kappa),
        FeaturePart("kappa_harmful", "harmful", _minus_kappa),
    ),
}

#: The methods of `immunize_backbone`; `imma` is no function of the features' spectrum.
DEEP_METHODS = (*FEATURE_PARTS, "imma")
