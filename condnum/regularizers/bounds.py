r"""Step sizes below which Theorem 4.3 holds: as printed, and as corrected.

The printed bounds fail. (1) D = 2, σ = (4, 1): η = ¼ is below the printed ½, yet it sends σ₁ to 0
and κ to ∞. (2) It is negative where σ_k > k/2, and fails for
σ = (2.15920825, 1.9376387, 1.32386916) at 0.8063 of it.

*Corrected (1).* The values below σ₁ keep their order and grow. The first term keeps
:math:`\sigma_1' > \sigma_k`, the second :math:`\sigma_2' < \sigma_1`: the largest falls, the
smallest rises. *Corrected (2).* The bound says
:math:`|1 - 2\eta(1-\frac1k)\sigma_k/\rho^2| < 1 + 2\eta\sigma_k/(k\rho^2)`: σ_k grows by less than
it would with any other weight, and σ₁ by more. At k = 2 that is so for every η > 0.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from condnum.arrays import ArrayLike, as_tensor, like
from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.regularizers.extremes import largest, resolve_rank, smallest
from condnum.regularizers.ill import ill_value
from condnum.regularizers.well import resolve_dimension
from condnum.spectra import default_rtol

BoundSource = Literal["corrected", "printed"]


def well_step_bound(
    sigma: ArrayLike, *, dimension: int | None = None, source: BoundSource = "corrected"
) -> Any:
    r"""Step size below which `well_step` lowers κ (Theorem 4.3 (1)).

    Corrected:

    .. math:: \min\Big\{\frac{1-\sqrt{\sigma_k/\sigma_1}}{2(1-\frac1D)\sigma_1},\;
        \frac D{2\sigma_2}\Big(\sqrt{\tfrac{\sigma_1}{\sigma_2}}-1\Big)\Big\}

    Printed: :math:`1/((1-\frac1D)\sigma_1)` in the place of the first term.

    Args:
        sigma: `(..., k)` non-zero spectrum of H: positive, descending, σ₁ > σ₂.
        dimension: D of the Hessian; default k.
        source: `corrected`, or `printed` for the paper's.

    Returns:
        A float for one spectrum, an array `(...)` of the kind of `sigma` for a batch.

    Raises:
        InvalidInputError: Not descending and positive, σ₁ repeated, bad `dimension`.
        RankError: Fewer than two values: κ = 1 cannot fall.
        UnknownNameError: Unknown `source`.

    Examples:
        >>> well_step_bound([4.0, 1.0])
        0.125
        >>> well_step_bound([4.0, 1.0], source="printed")
        0.5
    """
    s = as_spectrum(sigma, minimum=2)
    D = resolve_dimension(dimension, s.shape[-1])
    _check_source(source)
    if bool((largest(s, default_rtol(s.shape[-1])).multiplicity > 1).any()):
        raise InvalidInputError(
            f"the largest singular value is repeated (σ₁ = σ₂ in {s.tolist()}): Theorem 4.3 (1) asks for a "
            "unique one, and its bound is 0, no step at all."
        )
    s1, s2, sk = s[..., 0], s[..., 1], s[..., -1]
    room = (1 - (sk / s1).sqrt()) / 2 if source == "corrected" else torch.ones_like(s1)
    first = room / ((1 - 1 / D) * s1)
    second = ((s1 / s2).sqrt() - 1) * D / (2 * s2)
    return _hand_back(torch.minimum(first, second), sigma)


def ill_step_bound(sigma: ArrayLike, *, source: BoundSource = "corrected") -> Any:
    r"""Step size below which `ill_step` raises κ (Theorem 4.3 (2)), with :math:`\rho = 1/R_{ill}`.

    Corrected: :math:`\rho^2/(\sigma_k(1-2/k))`, and `inf` for k = 2, where every step raises κ.
    Printed: :math:`\rho^2/(1-2\sigma_k/k)`, returned as it is: negative where σ_k > k/2, `inf`
    at σ_k = k/2.

    Args:
        sigma: `(..., k)` non-zero spectrum of H: positive, descending, σ_k < σ_{k−1}.
        source: `corrected`, or `printed` for the paper's.

    Returns:
        A float for one spectrum, an array `(...)` of the kind of `sigma` for a batch.

    Raises:
        InvalidInputError: Not descending and positive, or σ_k repeated.
        RankError: Fewer than two values: R_ill is infinite.
        UnknownNameError: Unknown `source`.

    Examples:
        >>> ill_step_bound([3.0, 1.0])
        inf
        >>> ill_step_bound([3.0, 3.0, 1.5], source="corrected")  # ρ = 9/4
        10.125
        >>> ill_step_bound([4.0, 3.0, 2.0], source="printed") < 0
        True
    """
    s = as_spectrum(sigma, minimum=2)
    _check_source(source)
    n = s.shape[-1]
    k = resolve_rank(s, n, 0.0)
    low = smallest(s, k, default_rtol(n))
    if bool((low.multiplicity > 1).any()):
        raise InvalidInputError(
            f"the smallest singular value is repeated (σ_k = σ_(k−1) in {s.tolist()}): Theorem 4.3 (2) asks "
            "for a unique one, and its bound is undefined."
        )
    rho = ill_value(s, k, low).reciprocal()
    denominator = low.sigma * (1 - 2 / n) if source == "corrected" else 1 - 2 * low.sigma / n
    return _hand_back(rho.square() / denominator, sigma)


def as_spectrum(sigma: ArrayLike, *, minimum: int = 1) -> Tensor:
    """Return a detached float64 spectrum `(..., k)`, checked."""
    s = as_tensor(sigma, "sigma", minimum_ndim=1).detach()
    if bool((s <= 0).any()):
        raise InvalidInputError(
            f"sigma must be positive, got {float(s.min())}; pass the non-zero spectrum only."
        )
    if bool((s[..., 1:] > s[..., :-1]).any()):
        raise InvalidInputError(f"sigma must be descending, got {s.tolist()}; sort it.")
    if s.shape[-1] < minimum:
        raise RankError(f"sigma must hold at least {minimum} values, got {s.shape[-1]}: κ = 1 at rank 1.")
    return s


def _check_source(source: str) -> None:
    if source not in ("corrected", "printed"):
        raise UnknownNameError("bound source", source, ["corrected", "printed"])


def _hand_back(bound: Tensor, reference: ArrayLike) -> Any:
    return bound.item() if bound.ndim == 0 else like(reference)(bound)
