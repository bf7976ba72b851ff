"""Exercises 1 to 3: κ, what it promises, and what its convention decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from condnum.spectra import condition_number
from condnum.teaching.exercises.verdict import AnswerError, check, covariance_like, number
from condnum.teaching.quadratic import kantorovich_bound, norm_bound

#: Exercise 1: ratio of the half-axes of a contour.
AXES_RATIO = 7.0
#: Exercise 2: condition number, and the share of the excess loss to reach.
STEPS_KAPPA, STEPS_GOAL = 100.0, 1e-6


@check
def check_kappa(kappa: Any) -> str:
    """Exercise 1: the contours of a quadratic are ellipses with half-axes 7 : 1; what is κ?

    Args:
        kappa: The answer.

    Returns:
        A verdict; right if the contour of `diag(κ, 1)` has these axes.

    Raises:
        AnswerError: It has others; turned into the verdict.
    """
    value = number(kappa, "κ")
    if value < 1:
        raise AnswerError(f"κ = σ₁/σ_D is never below 1, got {value:g}.")
    ratio = float(np.sqrt(value))  # {e : eᵀHe = 1} has the half-axis 1/√σ_i along u_i
    if not np.isclose(ratio, AXES_RATIO, rtol=1e-3):
        hint = "That is the ratio of the axes themselves. " if np.isclose(value, AXES_RATIO) else ""
        raise AnswerError(
            f"{hint}With κ = {value:g} the half-axes are in the ratio {ratio:.4g} : 1. "
            "On eᵀHe = 1 the half-axis along u_i is 1/√σ_i."
        )
    return f"the half-axis along u_i is 1/√σ_i, so the ratio of the axes is √κ = {ratio:g}."


@check
def check_steps(steps: Any) -> str:
    """Exercise 2: the fewest steps after which Kantorovich guarantees 1e-6 of the excess loss at κ = 100.

    Args:
        steps: The answer.

    Returns:
        A verdict; right if the bound holds at t and not at t − 1.

    Raises:
        AnswerError: It does not; turned into the verdict.
    """
    value = number(steps, "the number of steps")
    if value != int(value) or value < 1:
        raise AnswerError(f"a whole number of steps is asked for, got {value:g}.")
    t = np.array([int(value) - 1, int(value)])
    before, after = kantorovich_bound(STEPS_KAPPA, t)
    if after > STEPS_GOAL:
        raise AnswerError(f"after {t[1]} steps the bound is still {after:.4g} > {STEPS_GOAL:g}.")
    if before <= STEPS_GOAL:
        slips = {
            "This is what Eq. 2 grants for the squared norm. ": norm_bound(STEPS_KAPPA, t),
            "The bound is squared in every step: its exponent is 2t. ": np.sqrt(
                kantorovich_bound(STEPS_KAPPA, t)
            ),
        }
        hint = next((text for text, slip in slips.items() if slip[1] <= STEPS_GOAL < slip[0]), "")
        raise AnswerError(f"{hint}One step less is enough as well: the bound at {t[0]} is {before:.3g}.")
    return f"((κ−1)/(κ+1))^(2t) is {before:.4g} at t = {t[0]} and {after:.4g} at t = {t[1]}."


@check
def check_conventions(H: Any) -> str:
    """Exercise 3: a 3×3 Hessian with compact κ ≤ 2 whose ridge κ, ε = 1e-6, is at least 1e5.

    Args:
        H: The answer, `(3, 3)`.

    Returns:
        A verdict.

    Raises:
        AnswerError: Not a Hessian, or one of the two conditions fails; turned into the verdict.
    """
    H = covariance_like(H, 3, "H")
    compact = condition_number(H, kind="symmetric")
    ridge = condition_number(H, kind="symmetric", convention="ridge")
    if compact.value > 2 * (1 + 1e-9):
        small = compact.sigma_min / compact.sigma_max
        raise AnswerError(
            f"compact κ is {compact.value:.3g} over the rank {compact.rank}: σ_k/σ₁ = {small:.1g} counts as "
            "non-zero. Only what is zero up to round-off is left out."
        )
    if ridge.value < 1e5:
        why = "H has full rank, so ε hardly matters" if compact.rank == 3 else "σ₁ is too small against ε"
        raise AnswerError(
            f"compact κ is {compact.value:.3g} as asked, but ridge κ is {ridge.value:.3g}: {why}."
        )
    return (
        f"compact κ = {compact.value:.3g} over the rank {compact.rank}, ridge κ = {ridge.value:.3g}: "
        "a null direction counts in one convention and not in the other."
    )
