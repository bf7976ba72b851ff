"""Two tasks with chosen spectra, a chosen angle between their eigenbases, and a null space if wanted."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.teaching.quadratic import SpectrumShape, spectrum

#: Which task does not use the last feature.
NullKind = Literal["none", "both", "harmful", "pretrain"]
NULL_KINDS: tuple[NullKind, ...] = ("none", "both", "harmful", "pretrain")


def two_tasks(
    *,
    kappa_pretrain: float = 100.0,
    kappa_harmful: float = 10.0,
    angle: float = 45.0,
    dimension: int = 4,
    shape: SpectrumShape = "geometric",
    null: NullKind = "none",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return `K_P = diag(γ_P)` and `K_H = Q diag(γ_H) Qᵀ`.

    Q turns the plane of the i-th and the i-th last eigenvector by `angle`, for every i: at 0° both tasks
    have their large directions in common, at 90° the largest direction of one is the smallest of the other.
    With a null space the last feature is kept out of this. A task that uses it has the geometric mean of its
    extreme eigenvalues there, so that κ stays as chosen.

    Args:
        kappa_pretrain: κ(K_P) ≥ 1.
        kappa_harmful: κ(K_H) ≥ 1.
        angle: Degrees, from 0 to 90.
        dimension: D ≥ 2; ≥ 3 with a null space.
        shape: Of both spectra, see `spectrum`.
        null: The task, or both, whose covariance is zero in the last feature.

    Returns:
        Two `(D, D)` covariances with largest eigenvalue 1.

    Raises:
        InvalidInputError: An argument is out of its range.
        UnknownNameError: No such shape or kind of null space.

    Examples:
        >>> K_P, K_H = two_tasks(kappa_pretrain=4.0, kappa_harmful=2.0, angle=90.0, dimension=2)
        >>> np.diag(K_P).tolist(), np.diag(K_H).round(12).tolist()
        ([1.0, 0.25], [0.5, 1.0])
    """
    if not 0 <= angle <= 90:
        raise InvalidInputError(f"angle must lie between 0 and 90 degrees, got {angle}.")
    if null not in NULL_KINDS:
        raise UnknownNameError("kind of null space", null, NULL_KINDS)
    turned = dimension - (null != "none")
    if turned < 2:
        raise InvalidInputError(
            f"dimension must be at least {2 + dimension - turned} with null space '{null}', got {dimension}."
        )
    gamma_P, gamma_H = (spectrum(shape, turned, kappa) for kappa in (kappa_pretrain, kappa_harmful))
    Q = _rotation(turned, np.deg2rad(angle))
    K_P, K_H = np.diag(gamma_P), (Q * gamma_H) @ Q.T
    if null == "none":
        return K_P, K_H
    return (
        _extended(K_P, 0.0 if null in ("both", "pretrain") else kappa_pretrain**-0.5),
        _extended(K_H, 0.0 if null in ("both", "harmful") else kappa_harmful**-0.5),
    )


def _rotation(dimension: int, angle: float) -> NDArray[np.float64]:
    """Return the rotation by one angle in the planes (i, D + 1 − i), `(D, D)`."""
    Q = np.eye(dimension)
    first = np.arange(dimension // 2)
    last = dimension - 1 - first
    Q[first, first] = Q[last, last] = np.cos(angle)
    Q[last, first], Q[first, last] = np.sin(angle), -np.sin(angle)
    return Q


def _extended(K: NDArray[np.float64], value: float) -> NDArray[np.float64]:
    """Append a feature that is uncorrelated with the others."""
    return np.pad(K, (0, 1)) + np.diag([0.0] * len(K) + [value])
