r"""Notebook 3: Algorithm 1 with both regularizers at once, where the guarantees stop adding up.

Line 6 without the supervised loss is
:math:`\theta' = \theta - \eta_P K_P^{-1}\nabla_\theta R_{well}(H_P) - \eta_H K_H^{-1}\nabla_\theta
R_{ill}(H_H)`. Theorem 4.3 speaks of each term alone. With both step sizes below its corrected bounds κ
may still go the wrong way: each term moves the *other* task's Hessian too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condnum.ceiling import rir_ceiling
from condnum.errors import InvalidInputError
from condnum.regularizers import ill_step, ill_step_bound, well_step, well_step_bound
from condnum.spectra import hessian
from condnum.teaching.regularizer_paths import LARGEST_KAPPA, largest_safe_step, pushed_is_unique
from condnum.teaching.regularizers import RegularizerName, bent_spectrum, kappas, next_spectrum

JOINT_STEPS = 30


@dataclass(frozen=True)
class JointSteps:
    """A run with both terms, beside what each term alone does to its own κ."""

    eta_pretrain: float  # η_P
    eta_harmful: float  # η_H
    K_P: NDArray[np.float64]  # (D, D)
    K_H: NDArray[np.float64]  # (D, D)
    theta: NDArray[np.float64]  # (D, D) after the last step
    kappa_pretrain: NDArray[np.float64]  # (T + 1,) κ(H_P(θ_t)), both terms
    kappa_harmful: NDArray[np.float64]  # (T + 1,) κ(H_H(θ_t)), both terms
    well_alone: NDArray[np.float64]  # (T + 1,) κ(H_P) under R_well alone
    ill_alone: NDArray[np.float64]  # (T + 1,) κ(H_H) under R_ill alone
    within: NDArray[np.bool_]  # (T,) steps where η_P and η_H are below their corrected bounds at θ_t
    rir_max: float  # the ceiling of RIR over all invertible θ

    @property
    def ratio_harmful(self) -> NDArray[np.float64]:
        """(i) of Definition 3.1, κ(H_H(θ_t))/κ(K_H), `(T + 1,)`: above 1 is wanted."""
        return self.kappa_harmful / self.kappa_harmful[0]

    @property
    def ratio_pretrain(self) -> NDArray[np.float64]:
        """(ii) of Definition 3.1, κ(H_P(θ_t))/κ(K_P), `(T + 1,)`: at most 1 is wanted."""
        return self.kappa_pretrain / self.kappa_pretrain[0]

    @property
    def pretrain_rises(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_P) rises all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_pretrain)) > 1e-12)

    @property
    def harmful_falls(self) -> NDArray[np.bool_]:
        """Steps within both bounds in which κ(H_H) falls all the same, `(T,)`."""
        return self.within & (np.diff(np.log(self.kappa_harmful)) < -1e-12)


def turned_covariance(spectrum: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    """Return a covariance whose eigenvector i is turned toward the axis of eigenvalue D + 1 − i.

    Examples:
        >>> turned_covariance(np.array([4.0, 2.0, 1.0]), 90.0).round(12).diagonal().tolist()
        [1.0, 2.0, 4.0]
    """
    if not 0 <= angle <= 90:
        raise InvalidInputError(f"angle must lie between 0 and 90 degrees, got {angle}.")
    D = len(spectrum)
    Q, phi = np.eye(D), np.deg2rad(angle)
    for i in range(D // 2):
        j = D - 1 - i
        Q[[i, j], [i, j]] = np.cos(phi)
        Q[j, i], Q[i, j] = np.sin(phi), -np.sin(phi)
    K = (Q * spectrum) @ Q.T
    return np.asarray((K + K.T) / 2)


def joint_steps(
    *,
    angle: float = 30.0,
    share_well: float = 0.5,
    share_ill: float = 0.1,
    kappa_pretrain: float = 20.0,
    kappa_harmful: float = 5.0,
    dimension: int = 4,
    steps: int = JOINT_STEPS,
) -> JointSteps:
    r"""Run Algorithm 1 by plain gradient descent from θ = I, with both regularizers and no loss.

    Both covariances have geometric spectra with σ₁ = 1.

    Args:
        angle: Degrees between the eigenvectors of both tasks, see `turned_covariance`.
        share_well: η_P as a share of the corrected bound (1) at θ = I.
        share_ill: η_H as a share of `largest_safe_step` of R_ill at θ = I.
        kappa_pretrain: κ(K_P) > 1.
        kappa_harmful: κ(K_H) > 1.
        dimension: D ≥ 2.
        steps: T; fewer are taken where a κ exceeds `LARGEST_KAPPA` or θ diverges.

    Returns:
        Both κ's along the run, and along the runs of one term alone.

    Raises:
        InvalidInputError: An argument is out of its range.

    Examples:
        >>> run = joint_steps(angle=0.0, steps=20)
        >>> bool(run.harmful_falls.any()), bool((np.diff(run.ill_alone) > 0).all())
        (True, True)
    """
    for name, share in (("share_well", share_well), ("share_ill", share_ill)):
        if not 0 < share < 1:
            raise InvalidInputError(f"{name} must lie strictly between 0 and 1, got {share}.")
    sigma_P = bent_spectrum(kappa=kappa_pretrain, dimension=dimension)
    sigma_H = bent_spectrum(kappa=kappa_harmful, dimension=dimension)
    K_P, K_H = np.diag(sigma_P), turned_covariance(sigma_H, angle)
    eta_P = share_well * largest_safe_step("well", sigma_P)
    eta_H = share_ill * largest_safe_step("ill", sigma_H)
    theta, spectra = np.eye(dimension), [(sigma_P, sigma_H)]
    for _ in range(steps):
        moved = joint_step(theta, K_P, K_H, eta_P, eta_H)
        pair = (_spectrum(moved, K_P), _spectrum(moved, K_H))
        if any(values[0] > LARGEST_KAPPA * max(float(values[-1]), 1 / LARGEST_KAPPA) for values in pair):
            break
        theta = moved
        spectra.append(pair)
    P, H = (np.array(side) for side in zip(*spectra, strict=True))
    return JointSteps(
        eta_P, eta_H, K_P, K_H, theta,
        kappa_pretrain=kappas(P),
        kappa_harmful=kappas(H),
        well_alone=_alone("well", sigma_P, eta_P, len(P) - 1),
        ill_alone=_alone("ill", sigma_H, eta_H, len(H) - 1),
        within=_within("well", eta_P, P[:-1]) & _within("ill", eta_H, H[:-1]),
        rir_max=float(rir_ceiling(K_P, K_H)),
    )  # fmt: skip


def joint_step(
    theta: NDArray[np.float64],
    K_P: NDArray[np.float64],
    K_H: NDArray[np.float64],
    eta_pretrain: float,
    eta_harmful: float,
) -> NDArray[np.float64]:
    r"""Return line 6 of Algorithm 1 without the supervised loss.

    .. math:: \theta' = \theta - \eta_P K_P^{-1}\nabla_\theta R_{well}(H_P(\theta))
        - \eta_H K_H^{-1}\nabla_\theta R_{ill}(H_H(\theta))

    Examples:
        >>> joint_step(np.eye(2), np.diag([4.0, 1.0]), np.diag([3.0, 1.0]), 0.1, 1.0)
        array([[1.35, 0.  ],
               [0.  , 0.85]])
    """
    rank = theta.shape[1]
    moved = well_step(theta, K_P, eta_pretrain) + ill_step(theta, K_H, eta_harmful, rank=rank)
    return np.asarray(moved - theta)


def _spectrum(theta: NDArray[np.float64], K: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the spectrum of H(θ), descending."""
    return np.asarray(np.linalg.eigvalsh(hessian(theta, K))[::-1])


def _within(regularizer: RegularizerName, eta: float, spectra: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each spectrum `(T, k)` whether η is below the corrected bound of Theorem 4.3, `(T,)`.

    The theorem is silent where the pushed value is repeated: False there.
    """
    unique = pushed_is_unique(regularizer, spectra)
    bounds = np.zeros(len(spectra))
    if unique.any():
        chosen = spectra[unique]
        bounds[unique] = well_step_bound(chosen) if regularizer == "well" else ill_step_bound(chosen)
    return np.asarray(eta < bounds)


def _alone(
    regularizer: RegularizerName, sigma: NDArray[np.float64], eta: float, steps: int
) -> NDArray[np.float64]:
    """Return κ `(steps + 1,)` under one term alone."""
    found = [sigma]
    for _ in range(steps):
        found.append(np.sort(next_spectrum(regularizer, found[-1], eta))[::-1])
    return kappas(np.array(found))
