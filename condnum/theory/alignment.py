r"""Proposition 3.2 measured: how the singular vectors of θ and K shape the probe's Hessian.

For :math:`\theta = U\Sigma V^\top`, Eq. 10 is the *diagonal* of :math:`\Sigma U^\top KU\Sigma`. The singular
values of H are its *eigenvalues*, which majorize it (Schur-Horn), so that κ is underestimated at full rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, door, extractor_matrix, named_columns, storage_eps
from condnum.errors import InvalidInputError, RankError
from condnum.numbers import short_repr
from condnum.theory.kappa import checked_rtol
from condnum.theory.linalg import EPS, as_covariance, singular_triples, symmetric_part
from condnum.theory.task import Task, rank_tolerance


@dataclass(frozen=True)
class Alignment:
    """Eq. 10 and the true spectrum, as arrays of the caller's kind, with zeros up to `D_hid`."""

    overlaps: Any  # (D, D), |u_iᵀq_j|²; rows for null directions of θ complete an orthonormal basis
    predicted: Any  # (D_hid,), Eq. 10 in the order of θ's singular values
    spectrum: Any  # (D_hid,), the singular values of H, descending
    ostrowski_lower: Any  # (D_hid,), σ_min(θ)² γ_i, see `alignment` for rectangular θ
    ostrowski_upper: Any  # (D_hid,), σ_max(θ)² γ_i
    misalignment: float  # ‖offdiag(ΣUᵀKUΣ)‖_F / ‖H‖_F; 0 iff Eq. 10 is exact for this U
    rank: int  # numerical rank of H
    predicted_condition: float  # compact κ of Eq. 10
    u_unique: bool  # False: θ has repeated non-zero singular values, so Eq. 10 is not unique

    __repr__ = short_repr

    @property
    def true_condition(self) -> float:
        """Compact κ of H."""
        return float(self.spectrum[0] / self.spectrum[self.rank - 1])

    @property
    def condition_ratio(self) -> float:
        """κ of Eq. 10 over κ(H); at most 1 if H has full rank."""
        return self.predicted_condition / self.true_condition


@door
def alignment(theta: ArrayLike, covariance: Any, *, rtol: float | None = None) -> Alignment:
    r"""Compare the prediction of Proposition 3.2 with the spectrum of H(θ).

    Eq. 10 says :math:`\sigma_i = \sum_j(\sigma_{\theta,i}\,u_i^\top q_j\sqrt{\gamma_j})^2
    = \sigma_{\theta,i}^2\,u_i^\top Ku_i`; the truth is the spectrum of
    :math:`\Sigma U^\top KU\Sigma`. Ostrowski:
    :math:`\sigma_{\min}(\theta)^2\gamma_i \le \sigma_i(H) \le \sigma_{\max}(\theta)^2\gamma_i`. For
    `D_hid < D` the lower bound has :math:`\gamma_{i+D-D_{hid}}` (Cauchy's interlacing of
    :math:`U^\top KU`); for `D_hid > D` both are 0 beyond D.

    Args:
        theta: `(D, D_hid)` linear feature extractor, of any rank above 0.
        covariance: `(D, D)` K, symmetric positive semi-definite, or a `Task`.
        rtol: Relative tolerance of ranks and of gaps; default `max(D, D_hid)·eps` of the stored dtype.

    Returns:
        Both spectra, Ostrowski's bounds, and the overlaps.

    Raises:
        InvalidInputError: Not one pair of matrices that fit, K not symmetric or not positive
            semi-definite, non-finite entries, bad `rtol`.
        RankError: H is zero.

    Examples:
        >>> import numpy as np
        >>> K = np.array([[2.0, 1.0], [1.0, 2.0]])
        >>> result = alignment(np.diag([2.0, 1.0]), K)
        >>> result.predicted  # Eq. 10: the diagonal of [[8, 2], [2, 2]]
        array([8., 2.])
        >>> result.spectrum.round(3)  # 5 ± √13
        array([8.606, 1.394])
        >>> round(result.condition_ratio, 3)  # (8/2)/((5 + √13)/(5 − √13))
        0.648
        >>> alignment(np.eye(2), K).u_unique
        False
    """
    if isinstance(covariance, Task):
        K, names, eps = covariance.covariance, covariance.columns, EPS  # a task is cut at its rank
    else:
        K, eps = as_covariance(covariance, "covariance").detach(), storage_eps(covariance)
        names = named_columns(covariance)
    theta = extractor_matrix(theta, columns=names)
    T = as_tensor(theta, "theta", ndim=2).detach()
    K = K.to(T.device)
    D, columns = T.shape
    if len(K) != D:
        raise InvalidInputError(
            f"theta {tuple(T.shape)} and covariance {tuple(K.shape)} do not fit: "
            "theta must be (D, D_hid) and covariance (D, D)."
        )
    tolerance = checked_rtol(rtol, rank_tolerance(max(T.shape), max(storage_eps(theta), eps)))
    m = min(D, columns)
    U, s, _ = singular_triples(T, whole=True)
    gamma, Q = (part.flip(-1) for part in torch.linalg.eigh(K))
    gamma = gamma.clamp_min(0)
    A = U[:, :m] * s  # UΣ
    M = symmetric_part(A.mT @ K @ A)
    scale, top = s[0].square() * gamma[0], M.abs().max()  # the first bounds M's entries, and so its round-off
    spectrum = torch.linalg.eigvalsh(M).flip(-1).clamp_min(0)
    if not bool(spectrum[0] > tolerance * scale):
        raise RankError(
            "H(θ) = θᵀKθ has rank 0: theta is zero or lies in the null space of the covariance, so there is "
            "no spectrum to predict."
        )
    diagonal = M.diagonal().clamp_min(0)
    lower, upper = s[-1].square() * gamma[D - m :], s[0].square() * gamma[:m]
    descending = diagonal.sort(descending=True).values
    kept = descending[descending > tolerance * descending[0]]
    nonzero = s[s > tolerance * s[0]]

    def padded(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, columns - m))

    return Alignment(
        overlaps=(U.mT @ Q).square(),
        predicted=padded(diagonal),
        spectrum=padded(spectrum),
        ostrowski_lower=padded(lower),
        ostrowski_upper=padded(upper),
        misalignment=float(
            torch.linalg.norm((M - torch.diag(M.diagonal())) / top) / torch.linalg.norm(M / top)
        ),
        rank=int((spectrum > tolerance * spectrum[0]).sum()),
        predicted_condition=float(kept[0] / kept[-1]),
        u_unique=bool((nonzero[:-1] - nonzero[1:] > tolerance * s[0]).all()),
    )
