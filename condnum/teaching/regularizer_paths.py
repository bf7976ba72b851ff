r"""Notebook 3: many steps of one regularizer, and what its value says about κ.

Monotone is not convergent: under steps within the bound of Theorem 4.3 (1) κ falls for ever, and may
still come to rest above 1, because the bound goes to 0 where σ₂ has grown up to σ₁.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.regularizers import r_ill, r_ill_from_pair, r_well_from_pair, well_step_bound
from condnum.spectra import default_rtol
from condnum.teaching.regularizers import (
    REGULARIZERS,
    RegularizerName,
    bent_spectrum,
    kappas,
    next_spectrum,
)

StepSizes = Literal["bound", "constant"]
STEP_SIZES: tuple[StepSizes, ...] = ("bound", "constant")
PathEnd = Literal["steps", "repeated", "round_off"]

PATH_STEPS = 100
#: Beyond this κ the smallest value is round-off of the largest.
LARGEST_KAPPA = 1e12


@dataclass(frozen=True)
class RegularizerPath:
    """A spectrum under many steps of one regularizer."""

    regularizer: RegularizerName
    sizes: StepSizes
    share: float
    sigma: NDArray[np.float64]  # (T + 1, k), every row descending
    eta: NDArray[np.float64]  # (T,) step sizes
    kappa: NDArray[np.float64]  # (T + 1,)
    value: NDArray[np.float64]  # (T + 1,) the regularizer
    end: PathEnd  # `repeated`: the pushed value met its neighbour; `round_off`: κ > LARGEST_KAPPA

    @property
    def wrong_way(self) -> NDArray[np.bool_]:
        """Steps in which κ moved against the regularizer's purpose by more than round-off, `(T,)`."""
        change = np.diff(np.log(self.kappa))
        return (change if self.regularizer == "well" else -change) > 1e-12


def regularizer_path(
    *,
    regularizer: RegularizerName = "well",
    sizes: StepSizes = "bound",
    share: float = 0.5,
    kappa: float = 10.0,
    dimension: int = 6,
    bend: float = 1.0,
    top: float = 1.0,
    steps: int = PATH_STEPS,
) -> RegularizerPath:
    r"""Follow a spectrum through many steps.

    Examples:
        >>> path = regularizer_path(kappa=10.0, dimension=6, share=0.05)
        >>> bool((np.diff(path.kappa) < 0).all()), path.end, round(float(path.kappa[-1]), 2)
        (True, 'repeated', 6.64)
    """
    if regularizer not in REGULARIZERS:
        raise UnknownNameError("regularizer", regularizer, REGULARIZERS)
    if sizes not in STEP_SIZES:
        raise UnknownNameError("rule for step sizes", sizes, STEP_SIZES)
    if not (share > 0 and math.isfinite(share)):
        raise InvalidInputError(f"share must be positive and finite, got {share}.")
    sigma = [bent_spectrum(kappa=kappa, dimension=dimension, bend=bend, top=top)]
    first = share * largest_safe_step(regularizer, sigma[0])
    etas: list[float] = []
    end: PathEnd = "steps"
    for _ in range(steps):
        eta = first if sizes == "constant" else share * largest_safe_step(regularizer, sigma[-1])
        if eta == 0:
            end = "repeated"
            break
        moved = np.sort(next_spectrum(regularizer, sigma[-1], eta))[::-1]
        if moved[0] > LARGEST_KAPPA * moved[-1]:
            end = "round_off"
            break
        sigma.append(moved)
        etas.append(eta)
    spectra = np.array(sigma)
    return RegularizerPath(
        regularizer, sizes, share, spectra, np.array(etas), kappas(spectra), values(regularizer, spectra), end
    )


def largest_safe_step(regularizer: RegularizerName, sigma: NDArray[np.float64]) -> float:
    r"""Return the step size below which κ moves as promised and no value is annihilated.

    For R_well it is the corrected bound of Theorem 4.3 (1); for R_ill :math:`\eta_0 =
    \rho^2/(2(1-\frac1k)\sigma_k)`, which is less than half the corrected bound (2).

    Examples:
        >>> largest_safe_step("well", np.array([4.0, 1.0])), largest_safe_step("ill", np.array([3.0, 1.0]))
        (0.125, 4.0)
        >>> largest_safe_step("well", np.array([4.0, 4.0, 1.0]))
        0.0
    """
    k = len(sigma)
    if not pushed_is_unique(regularizer, sigma):
        return 0.0
    if regularizer == "well":
        return float(well_step_bound(sigma))
    rho = 1 / r_ill(np.diag(sigma), rank=k)
    return float(rho**2 / (2 * (1 - 1 / k) * sigma[-1]))


def pushed_is_unique(regularizer: RegularizerName, spectra: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell whether the value that a regularizer pushes is unique, as Theorem 4.3 asks.

    The tolerance is twice that of the bounds in `condnum.regularizers`, so that rounding cannot let a
    spectrum pass here and be refused there.

    Examples:
        >>> pushed_is_unique("well", np.array([[4.0, 1.0, 1.0], [4.0, 4.0, 1.0]])).tolist()
        [True, False]
    """
    first, neighbour = (0, 1) if regularizer == "well" else (-1, -2)
    gap = np.abs(spectra[..., first] - spectra[..., neighbour])
    return np.asarray(gap > 2 * default_rtol(spectra.shape[-1]) * spectra[..., 0])


def values(regularizer: RegularizerName, spectra: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a regularizer of every spectrum.

    Examples:
        >>> values("ill", np.array([[3.0, 1.0], [6.0, 2.0]])).round(12).tolist()
        [0.5, 0.125]
    """
    sigma = torch.tensor(np.ascontiguousarray(spectra))
    H, k = torch.diag_embed(sigma), sigma.shape[-1]
    if regularizer == "well":
        return np.asarray(r_well_from_pair(H, sigma[..., 0], k))
    return np.asarray(r_ill_from_pair(H, sigma[..., -1], k))


@dataclass(frozen=True)
class ValuePlane:
    """Three families of spectra in the plane of κ and R_ill."""

    vanishing: NDArray[np.float64]  # (n, 3) spectra (1, ½, σ) with σ → 0
    scaled: NDArray[np.float64]  # (n, 3) spectra c·(1, ½, 0.1) with growing c
    descended: NDArray[np.float64]  # (n, 3) steps of R_ill of constant size from (1, ½, 0.1)

    @property
    def curves(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """κ and R_ill `(n,)` of each family, by its name."""
        families = {"vanishing": self.vanishing, "scaled": self.scaled, "descended": self.descended}
        return {name: (kappas(sigma), values("ill", sigma)) for name, sigma in families.items()}


def value_plane(points: int = 121, steps: int = 400, share: float = 0.5) -> ValuePlane:
    r"""Return three ways to leave the spectrum (1, ½, 0.1), none of which ties R_ill to κ.

    Theorem 4.1 (1) says :math:`R_{ill}(S) = 0` iff :math:`\kappa(S) = \infty`. But σ → 0 in (1, ½, σ) sends
    κ to ∞ and R_ill to 4.8, and S → cS sends R_ill to 0 at fixed κ.

    Args:
        points: Spectra in the first two families.
        steps: Steps of the third.
        share: Its step size over `largest_safe_step` at the start.

    Returns:
        The spectra of each family.

    Examples:
        >>> kappa, value = value_plane().curves["vanishing"]
        >>> f"{kappa[-1]:.0e}", round(float(value[-1]), 9)
        ('1e+06', 4.8)
        >>> kappa, value = value_plane().curves["scaled"]
        >>> round(float(kappa[-1]), 9), bool(value[-1] < 1e-5)
        (10.0, True)
    """
    start = np.array([1.0, 0.5, 0.1])
    vanishing = np.tile(start, (points, 1))
    vanishing[:, 2] = np.geomspace(0.1, 1e-6, points)
    scaled = np.geomspace(1, 1e3, points)[:, None] * start
    path, eta = [start], share * largest_safe_step("ill", start)
    for _ in range(steps):
        path.append(np.sort(next_spectrum("ill", path[-1], eta))[::-1])
    return ValuePlane(vanishing, scaled, np.array(path))
