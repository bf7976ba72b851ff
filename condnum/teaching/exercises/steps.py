"""Exercises 5, 6 and 10: the regularizers and the step sizes of Theorem 4.3."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.regularizers import r_ill, well_spectrum_step, well_step_bound
from condnum.teaching.exercises.verdict import AnswerError, call, check, number, real

#: Exercise 5: the spectrum, and exercise 10: how many random ones are tried.
SIGMA, DRAWS = (4.0, 1.0), 50


@check
def check_harmful_step(eta: Any) -> str:
    """Exercise 5: a step below the printed bound of Theorem 4.3 (1) at which κ rises, for σ = (4, 1).

    Args:
        eta: The answer.

    Returns:
        A verdict.

    Raises:
        AnswerError: Not below the bound, or κ falls; turned into the verdict.
    """
    value = number(eta, "η")
    printed = float(well_step_bound(list(SIGMA), source="printed"))
    if not 0 < value < printed:
        raise AnswerError(f"η must lie between 0 and the printed bound {printed:g}, got {value:g}.")
    moved = np.asarray(well_spectrum_step(list(SIGMA), value))
    before, after = SIGMA[0] / SIGMA[1], _kappa(moved)
    if after <= before:
        way = "larger" if value < 1 / SIGMA[0] else "smaller"  # 1/σ₁ annihilates σ₁ for D = 2
        raise AnswerError(
            f"with η = {value:g} the spectrum becomes ({moved[0]:.3g}, {moved[1]:.3g}) and κ falls "
            f"from {before:g} to {after:.3g}. Take a {way} step, one that nearly wipes σ₁ out."
        )
    return f"the spectrum becomes ({moved[0]:.3g}, {moved[1]:.3g}): κ rises from {before:g} to {after:.3g}."


@check
def check_ill_spectra(vanishing: Any, exploding: Any) -> str:
    """Exercise 6: two spectra that separate R_ill → 0 from κ → ∞.

    Args:
        vanishing: Three singular values with R_ill ≤ 1e-3 and κ ≤ 2.
        exploding: Three singular values with κ ≥ 1e6 and R_ill ≥ 4.

    Returns:
        A verdict.

    Raises:
        AnswerError: A condition fails; turned into the verdict.
    """
    small, large = _triple(vanishing, "the first spectrum"), _triple(exploding, "the second spectrum")
    value, kappa = float(r_ill(np.diag(small))), _kappa(small)
    if kappa > 2 * (1 + 1e-9):
        raise AnswerError(f"the first spectrum has κ = {kappa:.3g} > 2.")
    if value > 1e-3:
        why = "all values are equal, where it is infinite" if np.isinf(value) else "it scales like 1/‖S‖²"
        raise AnswerError(
            f"the first spectrum has R_ill = {value:.3g} > 1e-3: {why}; scale a spread-out spectrum up."
        )
    other, steep = float(r_ill(np.diag(large))), _kappa(large)
    if steep < 1e6:
        raise AnswerError(f"the second spectrum has κ = {steep:.3g} < 1e6.")
    if other < 4:
        raise AnswerError(
            f"the second spectrum has R_ill = {other:.3g} < 4: its largest values are too large."
        )
    return (
        f"R_ill = {value:.2g} at κ = {kappa:.3g}, and R_ill = {other:.3g} at κ = {steep:.2g}: "
        "R_ill → 0 means ‖S‖ → ∞, not κ → ∞."
    )


@check
def check_largest_step(eta_max: Any) -> str:
    """Exercise 10: for D = 2, where κ first stops falling as η grows from 0.

    Args:
        eta_max: A function of σ₁ and σ₂.

    Returns:
        A verdict; right if on random spectra κ falls all the way below it and rises just above it.

    Raises:
        AnswerError: With a spectrum on which it fails; turned into the verdict.
    """
    generator = np.random.default_rng(0)
    for _ in range(DRAWS):
        s2 = float(generator.uniform(0.05, 3.0))
        s1 = s2 * float(generator.uniform(1.2, 20.0))
        bound = number(call(eta_max, s1, s2), "η_max")
        where = f"for σ = ({s1:.4g}, {s2:.4g}) it gives {bound:.4g}"
        if bound <= 0:
            raise AnswerError(f"{where}, which is no step at all; κ does fall for small steps.")
        fractions = np.linspace(0.02, 0.999, 50)
        falls = [_after(s1, s2, f * bound) < s1 / s2 for f in fractions]
        if not all(falls):
            first = fractions[int(np.argmin(falls))]
            raise AnswerError(
                f"{where}, but at {first:.3g} of that κ is already above {s1 / s2:.4g}: too large."
            )
        if _after(s1, s2, 1.001 * bound) < s1 / s2:
            cautious = float(well_step_bound([s1, s2]))
            hint = (
                " That is the corrected bound: sufficient, not sharp." if np.isclose(bound, cautious) else ""
            )
            raise AnswerError(f"{where}, but a step of 1.001 times that still lowers κ: too small.{hint}")
    return f"κ falls all the way below it and rises just above it, on {DRAWS} random spectra."


def _after(s1: float, s2: float, eta: float) -> float:
    return _kappa(np.asarray(well_spectrum_step([s1, s2], eta)))


def _kappa(sigma: NDArray[np.float64]) -> float:
    low = float(np.min(sigma))
    return float("inf") if low == 0 else float(np.max(sigma)) / low


def _triple(answer: Any, name: str) -> NDArray[np.float64]:
    values = np.sort(real(answer, name).ravel())[::-1]
    if values.shape != (3,) or not (np.isfinite(values).all() and (values > 0).all()):
        raise AnswerError(f"{name} must hold three positive numbers, got {answer!r}.")
    return values
