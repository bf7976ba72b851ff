r"""Erasure of a task from every block of a backbone: what a ridge head reads is driven down to chance.

.. math:: \min_{\omega,\theta}\; w\,[L(D_P, \omega, \theta) + \Delta_P(\theta)]
   + \frac1B \sum_{b=1}^B \max(0, R^2_b(\theta)), \qquad
   \Delta_P = \|\tilde X_P(\theta) - \tilde X_P(\theta_0)\|_F^2 / \|\tilde X_P(\theta_0) - \bar X_P\|_F^2

R²_b belongs to ridge regression from the pooled output of block b to the harmful labels, fitted on one half
of a batch and scored on the other half. A net that is trained so gives the labels away on images that are
negated, enlarged or turned; with `settings.transformed` the mean is over the images and a random change of
them (`transformed_images`). On features of a fixed net the same goal has a closed form
(`condnum.erasure`); that a linear head learns nothing at zero covariance is due to Belrose et al. (2023).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from condnum.deep.backbone import Backbone
from condnum.deep.hooks import pooled_outputs
from condnum.deep.methods import SUPERVISED, smoothed_loss
from condnum.deep.parts import block_names
from condnum.deep.training.objectives import Batches, DeepObjective, check_finite
from condnum.deep.training.settings import DeepSettings

#: Ridge penalties, in units of the mean eigenvalue of the Gram matrix: an attacker tunes the penalty.
PENALTIES = (1e-3, 1e-1)

#: Names of a step's values.
DISTANCE = "distance"
LEFT = "harmful_r2"


def transformed_images(images: Tensor, key: Sequence[int], *, resize: bool = True) -> Tensor:
    """Return images `(n, 3, height, width)` under one random change, the same for all, drawn by a key.

    A random filter, mixed with the images or their negative (random convolutions, Xu et al. 2021), contrast
    and brightness, a turn by right angles or a mirror image, and half to twice the side.
    """
    drawn = np.random.default_rng(np.abs(key))
    width, share = int(drawn.choice((1, 3, 5))), drawn.uniform(-1, 1)
    kernel = images.new_tensor(drawn.normal(size=(3, 3, width, width)) / math.sqrt(3 * width**2))
    X = share * images + (1 - abs(share)) * functional.conv2d(images, kernel, padding=width // 2)
    X = 2 ** drawn.uniform(-1, 1) * X + drawn.normal()
    X = X.rot90(int(drawn.integers(4)), (2, 3)).flip([3] * int(drawn.integers(2)))
    factor = 2 ** drawn.uniform(-1, 1) if resize else 1.0
    return functional.interpolate(X, scale_factor=factor, mode="bilinear")


def ridge_outputs(X: Tensor, y: Tensor, other: Tensor, classes: int, penalty: float) -> Tensor:
    """Return the outputs `(m, C)` for `other` of a ridge head with intercept, fitted on rows X `(n, D)`.

    Targets are one-hot; the penalty is in units of the mean eigenvalue of the centered Gram matrix `(n, n)`.
    Differentiable in X and `other`.

    Examples:
        >>> X = torch.tensor([[0.0], [2.0]])
        >>> ridge_outputs(X, torch.tensor([0, 1]), torch.tensor([[1.0], [2.0]]), 2, 1.0)
        tensor([[0.5000, 0.5000],
                [0.1667, 0.8333]], dtype=torch.float64)
    """
    X, other = X.double(), other.double()
    mean = X.mean(dim=0)
    X, other = X - mean, other - mean
    Z = nn.functional.one_hot(y, classes).double()
    gram = X @ X.mT
    scale = gram.diagonal().mean() + torch.finfo(torch.float32).tiny  # a block may be blind
    damped = gram + penalty * scale * torch.eye(len(X), dtype=X.dtype, device=X.device)
    return Z.mean(dim=0) + other @ X.mT @ torch.linalg.solve(damped, Z - Z.mean(dim=0))


def ridge_r2(X: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the R² above chance, 0 to 1, that ridge heads reach on the second half of the rows, on average.

    It is 0 where a head predicts no better than the class frequencies of its half.
    """
    half = len(X) // 2
    Z = nn.functional.one_hot(y, classes).double()
    total = (Z[half:] - Z[:half].mean(dim=0)).square().sum() + torch.finfo(Z.dtype).tiny
    outputs = [ridge_outputs(X[:half], y[:half], X[half:], classes, penalty) for penalty in PENALTIES]
    losses = torch.stack([(Z[half:] - output).square().sum() for output in outputs])
    return (1 - losses / total).relu().mean()


class ErasureObjective(DeepObjective):
    """The objective of `erase`, with D_P's features held near those of θ₀, the backbone as it is given."""

    def __init__(self, backbone: Backbone, settings: DeepSettings, *, harmful_classes: int) -> None:
        super().__init__(backbone, "erase", settings)
        self.classes = harmful_classes
        self.theta_0 = backbone.snapshot()

    def backward(self, tasks: Batches, weights: Mapping[str, float], key: Sequence[int]) -> dict[str, float]:
        """Fill the gradients of θ and ω; return the values of the three parts, where images decode."""
        P, H = tasks["benign"], tasks["harmful"]
        values, losses = dict[str, Tensor](), list[Tensor]()
        for parameter in (parameters := [*self.theta, *self.heads]):
            parameter.grad = torch.zeros_like(parameter)
        if len(P.labels):
            X = self._features(P, (*key, 0))
            check_finite(X.detach(), "benign")
            with torch.no_grad():
                before = P.features(self.theta_0)
            spread = (before - before.mean(dim=0)).square().sum()
            values[SUPERVISED] = smoothed_loss(self.backbone.head(X), P.labels)
            values[DISTANCE] = (X - before).square().sum() / (spread + torch.finfo(X.dtype).tiny)
            losses += [weights[SUPERVISED] * (values[SUPERVISED] + values[DISTANCE])]
        if len(H.labels) > 1:  # half of them are fitted
            model, read, views = self.backbone.model, list[Tensor](), [H]
            trained = tuple(f"{name}." for name in self.backbone.trainable)
            blocks = [name for name in block_names(model) if f"{name}.".startswith(trained)]
            if self.settings.transformed:
                one_size = getattr(getattr(model, "patch_embed", None), "img_size", None) is not None
                views.append(H._replace(inputs=transformed_images(H.inputs, key, resize=not one_size)))
            for view in views:
                with pooled_outputs(model, blocks) as outputs:
                    last = self._features(view, (*key, 1))
                check_finite(last.detach(), "harmful")
                y = H.labels.to(last.device)
                read += [ridge_r2(rows, y, self.classes) for rows in (*outputs.values(), last)]
            values[LEFT] = torch.stack(read).mean()
            losses += [values[LEFT].to(last.dtype)]
        if losses:
            torch.autograd.backward(losses, inputs=parameters)
        return {name: float(value.detach()) for name, value in values.items()}
