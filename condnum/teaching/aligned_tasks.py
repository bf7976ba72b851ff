r"""Notebook 2: two tasks whose singular vectors align perfectly, and a θ that immunizes all the same.

The remark after Proposition 3.2 says that none exists. With :math:`K_P = \mathrm{diag}(\kappa_P, 1)` and
:math:`K_H = \mathrm{diag}(\kappa_H, 1)`, both sorted in the same order, the path
:math:`\theta_s = K_P^{-s/2}` from I to :math:`K_P^{-1/2}` has

.. math:: \kappa(H_P) = \kappa_P^{1-s}, \qquad
          \kappa(H_H) = \max(\kappa_H\,\kappa_P^{-s},\ \kappa_P^{s}/\kappa_H).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condnum.ceiling import rir_ceiling
from condnum.errors import InvalidInputError
from condnum.immunization import Immunization, relative_immunization_ratio
from condnum.spectra import condition_number, hessian

#: Exponents s at which the path is drawn.
EXPONENTS = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class AlignedTasks:
    """The path `θ_s = K_P^{-s/2}` for two diagonal tasks, and the point on it that the reader looks at."""

    pretrain_kappa: float  # κ(K_P)
    harmful_kappa: float  # κ(K_H)
    exponent: float  # the s that the reader looks at
    exponents: NDArray[np.float64]  # (S,) from 0 to 1
    pretrain_condition: NDArray[np.float64]  # (S,) κ(H_P(θ_s))
    harmful_condition: NDArray[np.float64]  # (S,) κ(H_H(θ_s))
    immunization: Immunization  # (i), (ii) and RIR at `exponent`
    ceiling: float  # the largest RIR of any invertible θ

    @property
    def ratios(self) -> NDArray[np.float64]:
        """RIR (Eq. 15) along the path, `(S,)`."""
        start = self.harmful_kappa / self.pretrain_kappa
        return self.harmful_condition / self.pretrain_condition / start


def aligned_tasks(
    *, pretrain_kappa: float = 100.0, harmful_kappa: float = 2.0, exponent: float = 0.0
) -> AlignedTasks:
    r"""Walk along `θ_s = K_P^{-s/2}` with `K_P = diag(κ_P, 1)` and `K_H = diag(κ_H, 1)`.

    Args:
        pretrain_kappa: :math:`\kappa_P` ≥ 1.
        harmful_kappa: :math:`\kappa_H` ≥ 1.
        exponent: s from 0 (θ = I) to 1 (θ whitens the pre-training task).

    Returns:
        Both condition numbers along the path, Definition 3.1 at s, and the ceiling.

    Raises:
        InvalidInputError: An argument is out of its range.

    Examples:
        >>> run = aligned_tasks(exponent=1.0)  # κ(H_P) falls 100 -> 1, κ(H_H) rises 2 -> 50
        >>> run.pretrain_condition[[0, -1]].round(9).tolist()
        [100.0, 1.0]
        >>> run.harmful_condition[[0, -1]].round(9).tolist()
        [2.0, 50.0]
        >>> round(run.ceiling, 6)
        2500.0
    """
    for name, kappa in (("pretrain_kappa", pretrain_kappa), ("harmful_kappa", harmful_kappa)):
        if not (kappa >= 1 and np.isfinite(kappa)):
            raise InvalidInputError(f"{name} must be at least 1 and finite, got {kappa}: it is σ₁/σ₂.")
    if not 0 <= exponent <= 1:
        raise InvalidInputError(f"exponent must lie between 0 and 1, got {exponent}.")
    K_P, K_H = np.diag([pretrain_kappa, 1.0]), np.diag([harmful_kappa, 1.0])
    conditions = np.array([[_kappa(K, K_P, s) for K in (K_P, K_H)] for s in EXPONENTS])
    return AlignedTasks(
        pretrain_kappa, harmful_kappa, exponent, EXPONENTS, conditions[:, 0], conditions[:, 1],
        immunization=relative_immunization_ratio(_theta(K_P, exponent), K_P, K_H),
        ceiling=rir_ceiling(K_P, K_H).value,
    )  # fmt: skip


def _theta(K_P: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Return `K_P^{-s/2}` of a diagonal matrix."""
    return np.diag(np.diag(K_P) ** (-exponent / 2))


def _kappa(K: NDArray[np.float64], K_P: NDArray[np.float64], exponent: float) -> float:
    """Return κ(θ_sᵀKθ_s)."""
    return float(condition_number(hessian(_theta(K_P, exponent), K)))
