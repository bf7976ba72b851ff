r"""Which directions of input space carry the ceiling: the generalised eigenvectors of (K_H, K_P).

:math:`K_H w = λ K_P w` (symmetric-definite pencil; Golub and Van Loan, *Matrix Computations*, 8.7): the
feature `xᵀw` has λ times as much energy in the harmful task as in the pre-training task. RIR_max is
`λ_max/λ_min` times a constant of the two tasks, so the first and the last of these features are what
an optimal extractor tells apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from condnum.arrays import ArrayLike
from condnum.covariance_range import CovarianceRange
from condnum.pencil import pencil_decomposition, task_ranges


@dataclass(frozen=True)
class PencilDirections:
    """Generalised eigenvectors of (K_H, K_P), by descending eigenvalue."""

    values: Tensor  # (r,) λ
    filters: Tensor  # (D, r) w, with wᵀK_Pw = 1: the weights of the feature xᵀw
    patterns: Tensor  # (D, r) K_Pw ∝ K_Hw: how the inputs vary with that feature
    ridge: float | None  # ε added to both covariances, None for none

    @property
    def shares(self) -> Tensor:
        """Contribution of each input to a feature's energy, `w_j (K_Pw)_j`, `(D, r)`; columns sum to 1.

        It does not depend on the units of the inputs, and is the same for both tasks. Correlated inputs
        that work against each other have negative ones.
        """
        return self.filters * self.patterns


def pencil_directions(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    ridge: float | None = None,
    rtol: float | None = None,
) -> PencilDirections:
    r"""Return the generalised eigenvectors of `(K_H, K_P)`, in terms of the inputs.

    The *filter* w says how a feature is computed, and mixes in inputs only to cancel others; the *pattern*
    :math:`K_P w` says what varies with it (Haufe et al., NeuroImage 2014). As `K_H w = λ K_P w`, both tasks
    have the same pattern. Without a ridge the pencil is restricted to range(K_P).

    Examples:
        >>> import numpy as np
        >>> found = pencil_directions(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
        >>> [round(value, 12) for value in found.values.tolist()]
        [1.0, 0.02]
        >>> found.shares.round(decimals=12).abs().tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, ridge, rtol)
    root, sigma, W = pencil_decomposition(P, H)
    filters = root @ W
    patterns = (P.vectors * P.values.sqrt()) @ (P.vectors.mT @ root * P.values.sqrt()[:, None]) @ W
    largest = patterns.gather(0, patterns.abs().argmax(dim=0, keepdim=True))
    sign = torch.where(largest < 0, -1.0, 1.0)
    return PencilDirections(sigma.square(), filters * sign, patterns * sign, ridge)
