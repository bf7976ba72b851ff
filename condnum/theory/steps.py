r"""The preconditioned step of Theorem 4.3, on θ and on the spectrum it is predicted to give.

The preconditioner cancels, :math:`K^{-1}\nabla_\theta R = 2\theta\nabla_HR(H(\theta))`: K may be singular.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from condnum.arrays import Array, ArrayLike, as_tensor, like, storage_eps
from condnum.errors import InvalidInputError, RankError, check_known
from condnum.theory.regularizers import (
    RegularizerGradient,
    ill_gradient,
    ill_of_spectrum,
    reject_infinite,
    resolve_dimension,
    well_gradient,
    well_of_spectrum,
)
from condnum.theory.spectra import hessian

StepBound = Literal["corrected", "published"]


def well_step_bound(
    sigma: ArrayLike, *, dimension: int | None = None, bound: StepBound = "corrected"
) -> float:
    r"""Return the step size below which `well_step` lowers κ (Theorem 4.3 (1)), of a spectrum `(k,)`.

    The smaller of :math:`(1-\sqrt{\sigma_k/\sigma_1})/(2(1-\frac1D)\sigma_1)`, published as
    :math:`1/((1-\frac1D)\sigma_1)`, and :math:`\frac D{2\sigma_2}(\sqrt{\sigma_1/\sigma_2}-1)`.
    """
    s = _as_spectrum(sigma, bound, minimum=2)
    D = resolve_dimension(dimension, len(s))
    if well_of_spectrum(s, D).multiplicity > 1:
        raise InvalidInputError(
            f"the largest singular value is repeated (σ₁ = σ₂ in {s.tolist()}): Theorem 4.3 (1) requires a "
            "unique one, and its bound is 0."
        )
    s1, s2, sk = s[0], s[1], s[-1]
    # 1 − √(σ_k/σ₁) and √(σ₁/σ₂) − 1 without cancellation.
    room = (s1 - sk) / s1 / (1 + (sk / s1).sqrt()) / 2 if bound == "corrected" else torch.ones_like(s1)
    first = room / ((1 - 1 / D) * s1)
    second = (s1 - s2) / s2 / ((s1 / s2).sqrt() + 1) * D / (2 * s2)
    return float(torch.minimum(first, second))


def ill_step_bound(sigma: ArrayLike, *, bound: StepBound = "corrected") -> float:
    r"""Return the step size below which `ill_step` raises κ (Theorem 4.3 (2)), of a spectrum `(k,)`.

    With ρ = 1/R_ill: :math:`\rho^2/(\sigma_k(1-2/k))`, `inf` for k = 2, where every step raises κ. Published:
    :math:`\rho^2/(1-2\sigma_k/k)` as it is, negative where σ_k > k/2, `inf` at σ_k = k/2.
    """
    s = _as_spectrum(sigma, bound, minimum=2)
    found = ill_of_spectrum(s)
    if found.multiplicity > 1:
        raise InvalidInputError(
            f"the smallest singular value is repeated (σ_k = σ_(k−1) in {s.tolist()}): Theorem 4.3 (2) "
            "requires a unique one, and its bound is undefined."
        )
    k, sigma_k = len(s), s[-1]
    denominator = sigma_k * (1 - 2 / k) if bound == "corrected" else 1 - 2 * sigma_k / k
    return float(found.value.reciprocal().square() / denominator)


def _as_spectrum(sigma: ArrayLike, bound: StepBound = "corrected", *, minimum: int = 1) -> Tensor:
    """Return a detached float64 spectrum `(k,)`, checked."""
    check_known("bound", bound, ("corrected", "published"))
    s = as_tensor(sigma, "sigma", ndim=1).detach()
    if bool((s <= 0).any()):
        raise InvalidInputError(
            f"sigma must be positive, got {float(s.min())}; pass the non-zero spectrum only."
        )
    if bool((s[1:] > s[:-1]).any()):
        raise InvalidInputError(f"sigma must be descending, got {s.tolist()}; sort it.")
    if len(s) < minimum:
        raise RankError(f"sigma must hold at least {minimum} values, got {len(s)}: κ = 1 at rank 1.")
    return s


def _step_size(eta: float) -> float:
    """Return the step size, checked."""
    if not 0 <= float(eta) < math.inf:
        raise InvalidInputError(f"eta must be finite and non-negative, got {eta}.")
    return float(eta)


def _stepped(theta: ArrayLike, K: ArrayLike, eta: float, gradient: Callable[..., RegularizerGradient]) -> Any:
    """Return `θ − 2ηθ∇_HR(H(θ))`, of the kind of θ."""
    step, T = 2 * _step_size(eta), as_tensor(theta, "theta", ndim=2).detach()
    H: Tensor = hessian(T, as_tensor(K, "K", ndim=2).detach().to(T.device))  # type: ignore[assignment]
    found = gradient(H, eps=max(storage_eps(theta), storage_eps(K)))
    reject_infinite(found.value)
    return like(theta)(T - step * (T @ found.gradient))


def well_step(theta: ArrayLike, K: ArrayLike, eta: float, *, rtol: float | None = None) -> Any:
    r"""One step that lowers κ(H(θ)) for η below `well_step_bound` (Theorem 4.3 (1)).

    .. math:: \theta' = \theta - \eta K^{-1}\nabla_\theta R_{well}
        = \theta - 2\eta\,\theta\,\nabla_HR_{well}(H(\theta))

    At a repeated σ₁ it follows the averaged subgradient of `r_well_gradient`.

    Args:
        theta: `(D, D_hid)` linear feature extractor.
        K: `(D, D)` data covariance, singular or not.
        eta: η ≥ 0.
        rtol: Singular values of H within `rtol·σ₁` count as equal.

    Returns:
        θ′ `(D, D_hid)`, float64, of the kind of `theta`; the argument is not changed.

    Raises:
        InvalidInputError: The shapes do not fit, non-finite entries, bad `eta` or `rtol`.
        RankError: The Hessian is zero.

    Examples:
        >>> import numpy as np
        >>> well_step(np.eye(2), np.diag([4.0, 1.0]), 0.1)
        array([[0.6, 0. ],
               [0. , 1.1]])
    """
    return _stepped(theta, K, eta, partial(well_gradient, rtol=rtol))


def ill_step(
    theta: ArrayLike, K: ArrayLike, eta: float, *, rank: int | None = None, rtol: float | None = None
) -> Any:
    r"""One step that raises κ(H(θ)) for η below `ill_step_bound` (Theorem 4.3 (2)).

    .. math:: \theta' = \theta - 2\eta\,\theta\,\nabla_HR_{ill}(H(\theta))

    Near :math:`\eta = \rho^2/(2(1-1/k)\sigma_k)`, :math:`\rho = 1/R_{ill}`, σ_k is annihilated: the numerical
    rank of H falls by one, and compact κ with it. Compare ranks before and after.

    Args:
        theta: `(D, D_hid)` linear feature extractor.
        K: `(D, D)` data covariance, singular or not.
        eta: η ≥ 0.
        rank: k of the Hessian; default its numerical rank.
        rtol: Relative tolerance of rank and equality.

    Returns:
        θ′, as `well_step`.

    Raises:
        InvalidInputError: As `well_step`, or bad `rank`.
        RankError: The Hessian is zero, or R_ill is infinite.

    Examples:
        >>> import numpy as np
        >>> ill_step(np.eye(2), np.diag([3.0, 1.0]), 1.0)
        array([[1.75, 0.  ],
               [0.  , 0.75]])
    """
    return _stepped(theta, K, eta, partial(ill_gradient, rank=rank, rtol=rtol))


def well_spectrum_step(sigma: ArrayLike, eta: float, dimension: int | None = None) -> Array:
    r"""Return where `well_step` takes each σ_i of `(k,)`; the result may be out of order.

    :math:`\sigma_1(1-2\eta(1-\frac1D)\sigma_1)^2` and :math:`\sigma_i(1+\frac{2\eta}D\sigma_i)^2`; of σ₁ that
    is repeated m times, each moves with 1/m in the place of 1.

    Examples:
        >>> well_spectrum_step([4.0, 1.0], 0.25, 2)
        array([0.    , 1.5625])
    """
    s = _as_spectrum(sigma)
    D = resolve_dimension(dimension, len(s))
    return like(sigma)(_moved(s, eta, well_of_spectrum(s, D).slopes))


def ill_spectrum_step(sigma: ArrayLike, eta: float) -> Array:
    r"""Return where `ill_step` takes each σ_i of `(k,)`, with ρ = 1/R_ill; 0 if it is annihilated.

    :math:`\sigma_k(1-\frac{2\eta}{\rho^2}(1-\frac1k)\sigma_k)^2` and
    :math:`\sigma_i(1+\frac{2\eta}{k\rho^2}\sigma_i)^2`.

    Examples:
        >>> ill_spectrum_step([3.0, 1.0], 1.0)  # ρ = 2
        array([9.1875, 0.5625])
    """
    s = _as_spectrum(sigma, minimum=2)
    found = ill_of_spectrum(s)
    reject_infinite(found.value)
    return like(sigma)(_moved(s, eta, found.slopes))


def _moved(sigma: Tensor, eta: float, slopes: Tensor) -> Tensor:
    """Return where a preconditioned step takes the spectrum of H: `σ_i(1 − 2ηg_i)²`."""
    return sigma * (1 - 2 * _step_size(eta) * slopes).square()
