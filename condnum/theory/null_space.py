"""What one task has and the other lacks: null(K_P) against range(K_H).

An extractor can scale a direction of null(K_P) without that `κ(H_P)` sees it. If the harmful task has energy
there, `κ(H_H)` follows, and the RIR of the compact convention has no ceiling. How many such directions there
are, and how much of the harmful task's energy they hold, says what an infinite ceiling rests on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from condnum.arrays import ArrayLike
from condnum.theory.spectra import CovarianceRange, default_rtol, task_ranges

#: Sine of a principal angle below which a direction lies in both subspaces.
ANGLE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class NullSpaces:
    """The null spaces of two covariances, and the energy of each task in the other's."""

    dimension: int  # D
    rank_pretrain: int  # rank(K_P)
    rank_harmful: int  # rank(K_H)
    harmful_only: int  # directions of null(K_P) that the harmful task excites; the ceiling's criterion
    harmful_energy: float  # tr(ΠK_H)/tr(K_H), Π the projector on null(K_P)
    intersection: int  # dim(null(K_P) ∩ range(K_H)), at most `harmful_only`
    intersection_energy: float  # share of tr(K_H) on that intersection
    pretrain_only: int  # directions of null(K_H) that the pre-training task excites
    pretrain_energy: float  # share of tr(K_P) on null(K_H)
    energies: Tensor  # (harmful_only,) shares of tr(K_H) on `directions`, descending
    directions: Tensor  # (D, harmful_only) orthonormal, in null(K_P)

    @property
    def common(self) -> int:
        """Dimension of null(K_P) ∩ null(K_H): features that neither task uses."""
        return self.dimension - self.rank_pretrain - self.harmful_only


def null_spaces(
    pretrain_covariance: ArrayLike | CovarianceRange,
    harmful_covariance: ArrayLike | CovarianceRange,
    *,
    rtol: float | None = None,
) -> NullSpaces:
    r"""Compare null(K_P) with range(K_H), and null(K_H) with range(K_P).

    `harmful_only` counts the eigenvalues of :math:`N^\top K_H N` above `rtol·λ_max(K_H)`, N an orthonormal
    basis of null(K_P): null(K_P) less what is null in both. The intersection null(K_P) ∩ range(K_H) can be
    smaller: a direction of range(K_H) that leans into null(K_P) without lying in it is enough for an
    infinite ceiling. It is counted by principal angles (Björck and Golub 1973).

    Examples:
        K_H = vvᵀ with v = (1, 1): half its energy lies in null(K_P), but v does not.

        >>> import numpy as np
        >>> spaces = null_spaces(np.diag([1.0, 0.0]), np.ones((2, 2)))
        >>> spaces.harmful_only, spaces.intersection, round(spaces.harmful_energy, 12)
        (1, 0, 0.5)
    """
    P, H = task_ranges(pretrain_covariance, harmful_covariance, rtol=rtol)
    rtol = default_rtol(P.dimension) if rtol is None else rtol
    N_P, N_H = P.null_basis, H.null_basis
    harmful, own = own_directions(H, N_P, rtol=rtol)
    pretrain, _ = own_directions(P, N_H, rtol=rtol)
    lying = _intersection(N_P, N_H)
    totals = float(H.values.sum()), float(P.values.sum())
    return NullSpaces(
        dimension=P.dimension,
        rank_pretrain=P.rank,
        rank_harmful=H.rank,
        harmful_only=len(harmful),
        harmful_energy=float((H.factor @ N_P).square().sum()) / totals[0],
        intersection=lying.shape[1],
        intersection_energy=float((H.factor @ lying).square().sum()) / totals[0],
        pretrain_only=len(pretrain),
        pretrain_energy=float((P.factor @ N_H).square().sum()) / totals[1],
        energies=harmful / totals[0],
        directions=own,
    )


def own_directions(task: CovarianceRange, null_basis: Tensor, *, rtol: float) -> tuple[Tensor, Tensor]:
    """Return what a task excites in the null space of the other one."""
    _, sigma, rows = torch.linalg.svd(task.factor @ null_basis, full_matrices=False)
    kept = sigma.square() > rtol * task.values[0]
    return sigma[kept].square(), null_basis @ rows[kept].mT


def _intersection(null_pretrain: Tensor, null_harmful: Tensor) -> Tensor:
    """Return an orthonormal basis of null(K_P) ∩ range(K_H), `(D, k)`, range(K_H) = null(K_H)^⊥."""
    _, sines, rows = torch.linalg.svd(null_harmful.mT @ null_pretrain, full_matrices=True)
    aligned = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    aligned[: len(sines)] = sines < ANGLE_TOLERANCE
    return null_pretrain @ rows[aligned].mT
