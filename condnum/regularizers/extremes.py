r"""Extreme singular values: rank, multiplicity and the weights of a stated subgradient.

Where :math:`\sigma_1` (or :math:`\sigma_k`) is repeated :math:`m` times, its square has no
gradient, but a Clarke subdifferential: the convex hull of
:math:`2\sigma\,U_c z z^\top V_c^\top` over unit vectors :math:`z`, with :math:`U_c, V_c` the
singular vectors of the cluster (for :math:`\sigma_1`, a convex function, it is the ordinary
subdifferential). We take its centre, :math:`2\sigma\,U_cV_c^\top/m`. Unlike a single vector it
does not depend on the basis that the eigensolver happened to return, and a step along it
moves the whole cluster: a single :math:`v_1` would leave the other copies of :math:`\sigma_1`
to grow, and κ with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from condnum.errors import InvalidInputError, RankError
from condnum.spectra import default_rtol, is_symmetric, symmetric_part


@dataclass(frozen=True)
class Extreme:
    """One end of a descending spectrum `(..., n)`."""

    sigma: Tensor  # (...), the extreme value
    weights: Tensor  # (..., n), 1/m on the m values equal to it, 0 elsewhere
    multiplicity: Tensor  # (...), m
    gap: Tensor  # (...), distance to the next value over σ₁; inf without one


def decompose(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return `U, σ, V` with `S = U diag(σ) Vᵀ`, σ descending; `eigh` where S is symmetric."""
    if not is_symmetric(matrix, eps):
        U, sigma, V = torch.linalg.svd(matrix, full_matrices=False)
        return U, sigma, V.mT
    values, vectors = torch.linalg.eigh(symmetric_part(matrix))
    order = values.abs().argsort(dim=-1, descending=True)
    values = torch.gather(values, -1, order)
    V = torch.gather(vectors, -1, order.unsqueeze(-2).expand_as(vectors))
    # A negative eigenvalue is a positive singular value with u = −v.
    signs = torch.where(values < 0, -1.0, 1.0).to(V.dtype).unsqueeze(-2)
    return V * signs, values.abs(), V


def resolve_rtol(rtol: float | None, matrix: Tensor, eps: float) -> float:
    """Return `rtol`, or the default `max(p_r, p_c)·eps`."""
    if rtol is None:
        return default_rtol(max(matrix.shape[-2:]), eps)
    if not 0 <= rtol < 1:
        raise InvalidInputError(f"rtol must lie in [0, 1), got {rtol}.")
    return float(rtol)


def resolve_rank(sigma: Tensor, rank: int | None, rtol: float) -> Tensor:
    """Return the numerical rank of each spectrum of a batch, or the one that was asked for."""
    if bool((sigma[..., 0] == 0).any()):
        raise RankError(
            "a matrix has rank 0 (all singular values are zero): its condition number, which the "
            "regularizers stand for, is undefined; check that theta and the features are not zero."
        )
    if rank is None:
        return (sigma > rtol * sigma[..., :1]).sum(dim=-1)
    n = sigma.shape[-1]
    if int(rank) != rank or not 1 <= rank <= n:
        raise InvalidInputError(f"rank must be a whole number between 1 and {n}, got {rank}.")
    return torch.full(sigma.shape[:-1], int(rank), dtype=torch.int64, device=sigma.device)


def largest(sigma: Tensor, rtol: float) -> Extreme:
    """Return σ₁ of a descending spectrum `(..., n)`, averaged over values within `rtol·σ₁`."""
    first = sigma[..., 0]
    second = sigma[..., 1] if sigma.shape[-1] > 1 else torch.full_like(first, -torch.inf)
    mask = sigma >= ((1 - rtol) * first).unsqueeze(-1)
    return _extreme(first, mask, (first - second) / first)


def smallest(sigma: Tensor, rank: Tensor, rtol: float) -> Extreme:
    """Return σ_k of a descending spectrum `(..., n)` of rank k `(...)`, averaged as `largest`.

    The tolerance is relative to σ₁, not σ_k: that is the size of the round-off in σ_k.
    """
    first = sigma[..., 0]
    last = torch.gather(sigma, -1, (rank - 1).unsqueeze(-1)).squeeze(-1)
    before = torch.gather(sigma, -1, (rank - 2).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    kept = torch.arange(sigma.shape[-1], device=sigma.device) < rank.unsqueeze(-1)
    mask = kept & (sigma - last.unsqueeze(-1) <= rtol * first.unsqueeze(-1))
    gap = torch.where(rank > 1, (before - last) / first, torch.inf)
    return _extreme(last, mask, gap)


def _extreme(sigma: Tensor, mask: Tensor, gap: Tensor) -> Extreme:
    count = mask.sum(dim=-1)
    return Extreme(sigma, mask.to(sigma.dtype) / count.unsqueeze(-1), count, gap)
