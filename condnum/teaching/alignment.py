r"""Notebook 2: turn the singular vectors of θ away from the eigenvectors of K, and test Proposition 3.2.

With :math:`\theta = U\Sigma V^\top` and :math:`K = Q\Gamma Q^\top`. Nothing that is measured depends on
the basis of the features or of the data, so `Q = I` and `V = I` here: :math:`\theta = U\Sigma`,
:math:`K = \Gamma`, and `U` is the rotation itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.stats import ortho_group

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.singular_alignment import Alignment, alignment
from condnum.spectra import default_rtol
from condnum.teaching.quadratic import SpectrumShape, spectrum

Rotation = Literal["ends", "neighbours", "random", "haar"]
Pairing = Literal["same", "opposite"]

ROTATIONS: tuple[Rotation, ...] = ("ends", "neighbours", "random", "haar")
PAIRINGS: tuple[Pairing, ...] = ("same", "opposite")


def rotation_matrix(rotation: Rotation, dimension: int, angle: float, seed: int = 0) -> NDArray[np.float64]:
    r"""Return a rotation of a chosen size.

    Examples:
        >>> rotation_matrix("ends", 3, 90.0).round(12) + 0.0  # the last axis goes to minus the first
        array([[ 0.,  0., -1.],
               [ 0.,  1.,  0.],
               [ 1.,  0.,  0.]])
    """
    if dimension < 2:
        raise InvalidInputError(f"dimension must be at least 2, got {dimension}.")
    if not 0 <= angle <= 90:
        raise InvalidInputError(f"angle must lie between 0 and 90 degrees, got {angle}.")
    if rotation not in ROTATIONS:
        raise UnknownNameError("rotation", rotation, ROTATIONS)
    if rotation == "haar":
        return np.asarray(ortho_group.rvs(dimension, random_state=np.random.default_rng(seed)))
    phi = np.deg2rad(angle)
    if rotation == "random":
        return np.asarray(expm(phi * _unit_antisymmetric(dimension, seed)))
    R, last = np.eye(dimension), dimension - 1 if rotation == "ends" else 1
    R[0, 0] = R[last, last] = np.cos(phi)
    R[last, 0], R[0, last] = np.sin(phi), -np.sin(phi)
    return R


@lru_cache(maxsize=8)
def _unit_antisymmetric(dimension: int, seed: int) -> NDArray[np.float64]:
    """Return a Gaussian antisymmetric matrix of spectral norm 1."""
    G = np.random.default_rng(seed).normal(size=(dimension, dimension))
    A = G - G.T
    return np.asarray(A / np.linalg.norm(A, ord=2))


@dataclass(frozen=True)
class RotatedAlignment:
    """θ and K with chosen spectra and a chosen angle between them, and Proposition 3.2 measured on them."""

    rotation: Rotation
    pairing: Pairing
    angle: float  # φ, degrees
    theta: NDArray[np.float64]  # (D, D) UΣ
    covariance: NDArray[np.float64]  # (D, D) K, diagonal and descending: Q = I
    diagonal_overlap: float  # mean of |u_iᵀq_i|² over the pairs that lie on each other at φ = 0
    alignment: Alignment  # Eq. 10 beside the truth

    @property
    def exact(self) -> bool:
        """Whether Eq. 10 is exact up to the round-off of the products in H."""
        return self.alignment.misalignment <= 4 * default_rtol(len(self.theta))

    @property
    def sorted_prediction(self) -> NDArray[np.float64]:
        """Eq. 10 in descending order, `(D,)`."""
        return np.sort(self.alignment.predicted)[::-1]


def rotated_alignment(
    *,
    angle: float = 0.0,
    rotation: Rotation = "random",
    pairing: Pairing = "same",
    dimension: int = 8,
    data_kappa: float = 100.0,
    data_spectrum: SpectrumShape = "geometric",
    theta_kappa: float = 3.0,
    theta_spectrum: SpectrumShape = "geometric",
    seed: int = 0,
) -> RotatedAlignment:
    r"""Build `θ = UΣ` and `K = Γ`, with `U` a rotation of `Q = I`, and compare Eq. 10 with the truth.

    Args:
        angle: φ in degrees, from 0 (aligned) to 90.
        rotation: Which rotation, see `rotation_matrix`.
        pairing: At φ = 0, `same`: :math:`u_i = q_i`, large with large; `opposite`:
            :math:`u_i = q_{D+1-i}`, large with small.
        dimension: D ≥ 2.
        data_kappa: κ(K) ≥ 1.
        data_spectrum: Shape of the eigenvalues γ of K, from 1 to 1/κ(K).
        theta_kappa: κ(θ) ≥ 1.
        theta_spectrum: Shape of the singular values of θ, from 1 to 1/κ(θ).
        seed: Of a random rotation or a Haar draw.

    Returns:
        The matrices and what `singular_alignment.alignment` says of them.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such rotation, pairing or shape.

    Examples:
        >>> rotated_alignment(angle=0.0).exact
        True
        >>> run = rotated_alignment(angle=45.0, dimension=2, data_kappa=3.0, theta_kappa=2.0)
        >>> (12 * run.alignment.predicted).round(3).tolist()  # the diagonal of [[8, 2], [2, 2]]
        [8.0, 2.0]
        >>> (12 * run.alignment.spectrum).round(3).tolist()  # its eigenvalues, 5 ± √13
        [8.606, 1.394]
    """
    if pairing not in PAIRINGS:
        raise UnknownNameError("pairing", pairing, PAIRINGS)
    U = rotation_matrix(rotation, dimension, angle, seed)
    diagonal = float(np.mean(np.diag(U) ** 2))
    if pairing == "opposite":
        U = U[:, ::-1]
    theta = U * spectrum(theta_spectrum, dimension, theta_kappa)
    K = np.diag(spectrum(data_spectrum, dimension, data_kappa))
    return RotatedAlignment(rotation, pairing, angle, theta, K, diagonal, alignment(theta, K))


@dataclass(frozen=True)
class AlignmentSweep:
    """How Proposition 3.2 fares as U turns away from Q, or over many Haar draws of U."""

    rotation: Rotation
    angles: NDArray[np.float64]  # (A,) degrees; without meaning for `haar`
    diagonal_overlap: NDArray[np.float64]  # (A,) mean of |u_iᵀq_i|²
    misalignment: NDArray[np.float64]  # (A,)
    condition_ratio: NDArray[np.float64]  # (A,) κ of Eq. 10 over the true κ, ≤ 1


def alignment_sweep(angles: Sequence[float], *, rotation: Rotation = "random") -> AlignmentSweep:
    """Measure overlaps, misalignment and the error of κ at each angle, else as `rotated_alignment` does.

    Args:
        angles: `(A,)` degrees, from 0 to 90; for the rotation `haar` only their number counts, a draw each.
        rotation: Which rotation.

    Returns:
        One value of each an angle.

    Raises:
        InvalidInputError: An angle is out of its range.
        UnknownNameError: No such rotation.

    Examples:
        >>> alignment_sweep([0.0, 90.0], rotation="ends").condition_ratio.round(9).tolist()
        [1.0, 1.0]
        >>> bool(abs(alignment_sweep([0.0] * 200, rotation="haar").diagonal_overlap.mean() - 1 / 8) < 0.01)
        True
    """
    runs = [
        rotated_alignment(angle=angle, rotation=rotation, seed=seed if rotation == "haar" else 0)
        for seed, angle in enumerate(angles)
    ]
    return AlignmentSweep(
        rotation,
        np.asarray(angles, dtype=np.float64),
        np.array([run.diagonal_overlap for run in runs]),
        np.array([run.alignment.misalignment for run in runs]),
        np.array([run.alignment.condition_ratio for run in runs]),
    )


@lru_cache(maxsize=64)
def haar_overlap_band(dimension: int, draws: int = 200) -> tuple[float, float]:
    """Return what the middle 90 % of Haar draws have as mean diagonal overlap; its expectation is 1/D.

    Examples:
        >>> low, high = haar_overlap_band(64)
        >>> low < 1 / 64 < high
        True
    """
    U = ortho_group.rvs(dimension, size=draws, random_state=np.random.default_rng(0))
    overlaps = np.mean(np.diagonal(U, axis1=1, axis2=2) ** 2, axis=1)
    low, high = np.quantile(overlaps, [0.05, 0.95])
    return float(low), float(high)
