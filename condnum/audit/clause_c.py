r"""Clause (c) of Definition 3.1: is the pre-training task still solved as well after θ?

A probe of Xθ can fit what lies in the range of Xθ. If θ keeps the rank of X, that range is the range of X
and the best loss is the same whatever the targets are. If not, targets decide, and only their moments are
needed: with :math:`X = LB`, :math:`K = B^\top B` and orthonormal columns in L, the part of Y in the range
of X has the coordinates :math:`T = L^\top Y = B^{+\top}X^\top Y`, and the loss rises by the part of T
outside the range of Bθ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.covariance_range import CovarianceRange
from condnum.data.feature_stream import FeatureStream
from condnum.spectra import default_rtol


@dataclass(frozen=True, eq=False)
class TargetMoments:
    """What the squared loss knows of targets."""

    moment: NDArray[np.float64]  # (D, m), XᵀY
    squared_norm: float  # ‖Y‖_F²


def target_moments(stream: FeatureStream, targets: NDArray[np.float64]) -> TargetMoments:
    """Read the rows once and sum their products with the targets.

    Examples:
        >>> from condnum.data.feature_stream import array_stream
        >>> target_moments(array_stream(np.eye(2)), np.array([[3.0], [4.0]])).squared_norm
        25.0
    """
    moment, done = np.zeros((stream.dimension, targets.shape[1])), 0
    for block in stream.blocks():
        moment += block.astype(np.float64).T @ targets[done : done + len(block)]
        done += len(block)
    return TargetMoments(moment, float((targets**2).sum()))


def keeps_range(part: CovarianceRange, theta: NDArray[np.float64]) -> bool:
    """Tell whether features Xθ can fit whatever X can: whether θ keeps the rank of X.

    Examples:
        >>> K = CovarianceRange.of(torch.diag(torch.tensor([4.0, 1.0])).double())
        >>> keeps_range(K, np.diag([1.0, 1e-3])), keeps_range(K, np.diag([1.0, 0.0]))
        (True, False)
    """
    s = torch.linalg.svdvals(part.factor @ torch.from_numpy(theta))
    return int((s > default_rtol(max(theta.shape)) * s[0]).sum()) == part.rank


def loss_gap(part: CovarianceRange, theta: NDArray[np.float64], targets: TargetMoments) -> float:
    """Return clause (c) as a rise of the best squared loss, over the loss of predicting zero.

    Examples:
        One of two equally large targets lies on a direction that θ leaves out.

        >>> K = CovarianceRange.of(torch.eye(2).double())
        >>> round(loss_gap(K, np.diag([1.0, 0.0]), TargetMoments(np.ones((2, 1)), 2.0)), 12)
        0.5
    """
    if targets.squared_norm == 0:
        return 0.0
    T = part.values.rsqrt()[:, None] * (part.vectors.mT @ torch.from_numpy(targets.moment))  # (r, m)
    U, s, _ = torch.linalg.svd(part.factor @ torch.from_numpy(theta), full_matrices=False)
    fitted = U[:, s > default_rtol(max(theta.shape)) * s[0]].mT @ T
    return float(T.square().sum() - fitted.square().sum()) / targets.squared_norm
