"""From a gradient in the Hessian to one in θ (the chain rule of Theorem 4.2)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, storage_eps
from condnum.regularizers.result import RegularizerGradient
from condnum.spectra import hessian, symmetric_part


def theta_hessian(theta: ArrayLike, covariance: ArrayLike) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return θ, K and H(θ) as detached float64 tensors, and the coarser of their storage epsilons."""
    T = as_tensor(theta, "theta", minimum_ndim=2).detach()
    K = as_tensor(covariance, "K", minimum_ndim=2).detach().to(T.device)
    H: Tensor = hessian(T, K)  # type: ignore[assignment]
    return T, symmetric_part(K), H, max(storage_eps(theta), storage_eps(covariance))


def pull_back(theta: Tensor, covariance: Tensor, result: RegularizerGradient) -> RegularizerGradient:
    """Return the result with `2Kθ∇_H R` in the place of `∇_H R`."""
    return replace(result, gradient=2 * (covariance @ (theta @ result.gradient)))
