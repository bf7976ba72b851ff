"""Evaluation of θ on the full problem, the same for every method: what the history records."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from condnum.problem import ImmunizationProblem
from condnum.spectra import covariance_factor, hessian_spectrum


class Monitor:
    """Measures loss, both regularizers and both compact κ's of a θ.

    κ is taken over rank(K), the rank that H(θ) has for invertible θ: along a run a fixed rank gives
    a continuous curve, whereas a rank decided anew at every step jumps near the tolerance.
    """

    def __init__(self, problem: ImmunizationProblem) -> None:
        self._problem = problem
        self._pretrain_factor, self._harmful_factor = (
            covariance_factor(task.covariance) if task.known_factor is None else task.known_factor
            for task in (problem.pretrain, problem.harmful)
        )

    def __call__(self, theta: Tensor, omega: Tensor | None) -> dict[str, float]:
        """Return the record of one step, in float: NaN for a loss that does not exist."""
        sigma_P = _spectrum(theta, self._pretrain_factor)
        sigma_H = _spectrum(theta, self._harmful_factor)
        spread = float((sigma_H**2).mean() - sigma_H[-1] ** 2) / 2
        supervised = self._problem.pretrain.supervised
        loss = math.nan if supervised is None or omega is None else float(supervised.value(theta @ omega))
        return {
            "loss": loss,
            "r_well": float(sigma_P[0] ** 2 - (sigma_P**2).sum() / theta.shape[1]) / 2,
            "r_ill": 1 / spread if spread > 0 else math.inf,
            "kappa_pretrain": _kappa(sigma_P),
            "kappa_harmful": _kappa(sigma_H),
        }


def _spectrum(theta: Tensor, factor: Tensor) -> Tensor:
    """Return the spectrum of H(θ), infinite where θ has diverged so far that the features overflow."""
    if bool(torch.isfinite(factor @ theta).all()):
        return hessian_spectrum(theta, factor)
    return torch.full((min(len(factor), theta.shape[1]),), math.inf).to(theta)


def _kappa(sigma: Tensor) -> float:
    """Return σ₁/σ_k of a spectrum, infinite where σ_k is exactly zero."""
    if bool(torch.isfinite(sigma).all()) and float(sigma[-1]) > 0:
        return float(sigma[0] / sigma[-1])
    return math.inf
