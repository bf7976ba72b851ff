r"""Notebook 4: what the ceiling does not bound: attackers who whiten, and the rest of the spectrum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.ceiling import optimal_immunizer
from condnum.probing import ProbeCurve, linear_probe
from condnum.spectra import covariance_factor
from condnum.teaching.quadratic import SpectrumShape
from condnum.teaching.two_tasks import two_tasks

#: Steps of exact line search that are followed.
ATTACK_STEPS = 2000


@dataclass(frozen=True)
class Attack:
    """A linear probe on the harmful task with one set of features."""

    name: str  # of the features
    kappa: float  # κ of the probe's Hessian
    spectrum: NDArray[np.float64]  # (D,) descending
    curve: ProbeCurve  # excess loss of exact line search

    def steps_to(self, share: float) -> int | None:
        """Return the first step with at most this share of the initial excess loss, or None."""
        reached = np.flatnonzero(self.curve.excess_loss <= share)
        return int(self.curve.steps[reached[0]]) if len(reached) else None


def whiten(theta: NDArray[np.float64], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return `θV Σ^{-1/2}` for `θᵀKθ = VΣVᵀ`: features whose covariance is the identity.

    It takes nothing but the features of the attacker's own data.

    Examples:
        >>> theta = whiten(np.diag([0.1, 1.0]), np.diag([2.0, 1.0]))
        >>> np.abs(theta.T @ np.diag([2.0, 1.0]) @ theta).round(12)
        array([[1., 0.],
               [0., 1.]])
    """
    B = covariance_factor(torch.from_numpy(theta.T @ covariance @ theta)).numpy()
    return np.asarray(theta @ (B / (B**2).sum(axis=1, keepdims=True)).T)


def attacks(
    *,
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 16,
    shape: SpectrumShape = "geometric",
    seed: int = 0,
) -> list[Attack]:
    """Probe one harmful task through four feature extractors, from a start at 0.

    The targets are `y = X_Hβ` with Gaussian β, the same for all. θ*, rotated, has one κ and many spectra
    between the extremes: the third extractor keeps κ(H_H) and moves every other eigenvalue to the top.

    Args:
        kappa_pretrain: κ(K_P) ≥ 1, see `two_tasks`.
        kappa_harmful: κ(K_H) ≥ 1.
        angle: Degrees between the eigenbases.
        dimension: D.
        shape: Of both spectra.
        seed: Of β.

    Returns:
        Raw inputs, θ*, the same κ with another spectrum, and θ* whitened by the attacker.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such shape.

    Examples:
        >>> raw, immunized, same_kappa, whitened = attacks()
        >>> whitened.steps_to(1e-6), immunized.steps_to(1e-6) > raw.steps_to(1e-6)
        (1, True)
    """
    K_P, K_H = two_tasks(
        kappa_pretrain=kappa_pretrain,
        kappa_harmful=kappa_harmful,
        angle=angle,
        dimension=dimension,
        shape=shape,
    )
    best = np.asarray(optimal_immunizer(K_P, K_H))
    extractors = {
        "raw inputs, θ = I": np.eye(dimension),
        "θ*": best,
        "same κ, rest of the spectrum at the top": best @ _lift(best.T @ K_H @ best),
        "θ*, whitened by the attacker": whiten(best, K_H),
    }
    moment = K_H @ np.random.default_rng(seed).normal(size=dimension)
    return [_attack(name, theta, K_H, moment) for name, theta in extractors.items()]


def _attack(
    name: str, theta: NDArray[np.float64], K: NDArray[np.float64], moment: NDArray[np.float64]
) -> Attack:
    """Probe with exact line search."""
    sigma = np.linalg.eigvalsh(theta.T @ K @ theta)[::-1].astype(np.float64)
    curve = linear_probe(theta, K, moment, steps=ATTACK_STEPS)
    return Attack(name, float(sigma[0] / sigma[-1]), sigma, curve)


def _lift(H: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return S with `SᵀHS` of H's extremes and every other eigenvalue at the largest."""
    sigma, V = np.linalg.eigh(H)
    gain = np.sqrt(sigma[-1] / sigma)
    gain[0] = 1.0
    return (V * gain) @ V.T
