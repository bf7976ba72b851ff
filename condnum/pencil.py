"""The pencil (K_H, K_P) of two tasks: its inputs checked, its ranges, its diagonal form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor
from condnum.covariance_range import CovarianceRange
from condnum.errors import InvalidInputError
from condnum.spectra import symmetric_part


def task_ranges(
    pretrain: ArrayLike | CovarianceRange,
    harmful: ArrayLike | CovarianceRange,
    ridge: float | None,
    rtol: float | None,
) -> tuple[CovarianceRange, CovarianceRange]:
    """Return the ranges of two covariances of one input space."""
    if isinstance(pretrain, CovarianceRange) and isinstance(harmful, CovarianceRange):
        if pretrain.dimension != harmful.dimension:
            raise InvalidInputError(
                f"the ranges live in {pretrain.dimension} and {harmful.dimension} dimensions: "
                "both tasks share one input space."
            )
        P, H = pretrain, harmful
    elif isinstance(pretrain, CovarianceRange) or isinstance(harmful, CovarianceRange):
        raise InvalidInputError("pass two covariances or two ranges, not one of each.")
    else:
        K_P, K_H = covariance_pair(pretrain, harmful, None)
        P = CovarianceRange.of(K_P, rtol=rtol, name="pretrain_covariance")
        H = CovarianceRange.of(K_H, rtol=rtol, name="harmful_covariance")
    return (P, H) if ridge is None else (P.ridged(ridge), H.ridged(ridge))


def pencil_decomposition(
    pretrain: CovarianceRange, harmful: CovarianceRange
) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonalise the pencil `(K_H, K_P)` on range(K_P), through K_H's factor rather than K_H."""
    root = (pretrain.vectors * pretrain.values.rsqrt()) @ pretrain.vectors.mT
    whitened = harmful.factor @ (pretrain.vectors * pretrain.values.rsqrt())
    _, sigma, rows = torch.linalg.svd(whitened, full_matrices=False)
    return root, sigma, pretrain.vectors @ rows.mT


def covariance_pair(pretrain: ArrayLike, harmful: ArrayLike, ridge: float | None) -> tuple[Tensor, Tensor]:
    """Validate two covariances of one input space and add the ridge."""
    K_P = as_tensor(pretrain, "pretrain_covariance", ndim=2)
    K_H = as_tensor(harmful, "harmful_covariance", ndim=2).to(K_P.device)
    if K_P.shape != K_H.shape or K_P.shape[0] != K_P.shape[1]:
        raise InvalidInputError(
            f"pretrain_covariance {tuple(K_P.shape)} and harmful_covariance {tuple(K_H.shape)} must be "
            "square and of the same shape: both tasks share one input space."
        )
    if ridge is None:
        return symmetric_part(K_P), symmetric_part(K_H)
    if not 0 < ridge < math.inf:
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge}; leave it out for none.")
    identity = ridge * torch.eye(K_P.shape[0], dtype=K_P.dtype, device=K_P.device)
    return symmetric_part(K_P) + identity, symmetric_part(K_H) + identity
