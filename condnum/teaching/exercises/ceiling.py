"""Exercises 7, 8, 9 and 11: what θ can do for two tasks at once, and what an attacker can undo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.ceiling import rir_ceiling
from condnum.immunization import relative_immunization_ratio
from condnum.probing import linear_probe
from condnum.spectra import condition_number, covariance, hessian
from condnum.teaching.exercises.verdict import AnswerError, call, check, covariance_like, matrix, number

FloatArray = NDArray[np.float64]

#: Exercise 9: relative error allowed in a ceiling; exercise 11: share of it to reach.
CEILING_RTOL, SHARE = 1e-6, 0.999


@check
def check_aligned_pair(K_P: Any, K_H: Any, theta: Any) -> str:
    """Exercise 7: perfectly aligned 3×3 tasks, and a θ that lowers κ(H_P) and raises κ(H_H).

    Args:
        K_P: `(3, 3)` diagonal, descending, positive.
        K_H: `(3, 3)` diagonal, descending, positive.
        theta: `(3, 3)` invertible.

    Returns:
        A verdict.

    Raises:
        AnswerError: Not aligned, not invertible, or a κ moves the wrong way; turned into the verdict.
    """
    covariances = []
    for name, answer in (("K_P", K_P), ("K_H", K_H)):
        K = covariance_like(answer, 3, name)
        values = np.diag(K)
        if not np.array_equal(K, np.diag(values)) or (np.diff(values) >= 0).any() or values[-1] <= 0:
            raise AnswerError(
                f"{name} must be diagonal with positive, strictly descending entries: the aligned case."
            )
        covariances.append(K)
    T = matrix(theta, (3, 3), "θ")
    if np.linalg.matrix_rank(T) < 3:
        raise AnswerError("θ must be invertible; leaving a direction out compares different subspaces.")
    measured = relative_immunization_ratio(T, *covariances)
    numbers = f"(ii) = {measured.pretrain_ratio:.4g}, (i) = {measured.harmful_ratio:.4g}"
    if measured.pretrain_ratio >= 1:
        raise AnswerError(f"{numbers}: κ(H_P) must fall, (ii) < 1. θ = K_P^(-1/2) takes it to 1.")
    if not measured.clauses["a"]:
        raise AnswerError(
            f"{numbers}: κ(H_H) must rise, (i) > 1. Let K_H have the flatter spectrum of the two."
        )
    return f"{numbers}: both go the right way, although the singular vectors agree in the right order."


@check
def check_whitening(whiten: Any) -> str:
    """Exercise 8: undo an immunization: a matrix W for which the probe on XθW takes one step.

    Args:
        whiten: A function of `H = θᵀKθ` that returns `(D, D)`.

    Returns:
        A verdict; right if κ(WᵀHW) = 1 and one step of exact line search suffices, on random H.

    Raises:
        AnswerError: With the κ that is left; turned into the verdict.
    """
    for K, theta in _pairs(4):
        H = hessian(theta, K)
        D = len(H)
        W = matrix(call(whiten, H), (D, D), "W")
        left = condition_number(hessian(W, H)).value
        if np.linalg.matrix_rank(W) < D:
            raise AnswerError("W is singular: the attacker throws features away, and may lose the solution.")
        if left > 1 + 1e-6:
            product = W @ H
            unit = np.trace(product) / D
            undone = np.allclose(product, unit * np.eye(D), atol=1e-6 * abs(unit))
            hint = " H⁻¹ goes too far: WᵀHW is then H⁻¹." if undone else ""
            raise AnswerError(
                f"κ(WᵀHW) = {left:.4g} is left of κ(H) = {condition_number(H).value:.4g}.{hint}"
            )
        curve = linear_probe(W, H, H @ np.ones(D), steps=1)
        if curve.norm_ratio[1] > 1e-9:
            raise AnswerError(f"after one step {curve.norm_ratio[1]:.2g} of the squared distance is left.")
    return "κ(WᵀHW) = 1, one step arrives. Conditioning slows only those who do not standardise."


@check
def check_ceiling(ceiling: Any) -> str:
    """Exercise 9: code RIR_max for positive definite covariances.

    Args:
        ceiling: A function of K_P and K_H.

    Returns:
        A verdict; right if no random θ exceeds it and K_P^(-1/2) attains it.

    Raises:
        AnswerError: With what exceeds it, or what it cannot reach; turned into the verdict.
    """
    generator = np.random.default_rng(1)
    for K_P, K_H in _pairs(6, both=True):
        value = number(call(ceiling, K_P, K_H), "the ceiling")
        truth = rir_ceiling(K_P, K_H).value
        best = relative_immunization_ratio(_power(K_P, -0.5), K_P, K_H).rir
        tries = [generator.normal(size=K_P.shape) for _ in range(20)]
        largest = max(best, *(relative_immunization_ratio(T, K_P, K_H).rir for T in tries))
        if value < largest * (1 - CEILING_RTOL):
            raise AnswerError(
                f"it gives {value:.4g}, but there is a θ with RIR = {largest:.4g}.{_hint(value, K_P, K_H)}"
            )
        if value > truth * (1 + CEILING_RTOL):
            raise AnswerError(f"it gives {value:.4g}, a bound that no θ reaches: the best has {truth:.4g}."
                        f"{_hint(value, K_P, K_H)}")  # fmt: skip
    return "no random θ exceeds it, and θ* = K_P^(-1/2) attains it."


def _hint(value: float, K_P: FloatArray, K_H: FloatArray) -> str:
    """Recognise the usual slips."""
    full = rir_ceiling(K_P, K_H)
    ratio = condition_number(K_P).value / condition_number(K_H).value
    slips = {
        "κ(K_P)/κ(K_H) is missing: RIR divides by the κ's at θ = I.": full.value / ratio,
        "κ(K_P)/κ(K_H) is the wrong way round.": full.value / ratio**2,
        "λ_max alone is not enough: divide by λ_min.": full.lambda_max * ratio,
    }
    return next((f" {text}" for text, slip in slips.items() if np.isclose(value, slip, rtol=1e-6)), "")


@check
def check_spent_budget(spend: Any) -> str:
    """Exercise 11: a θ with (ii) ≤ 1 and (i) at least 99.9 % of the ceiling.

    Args:
        spend: A function of K_P and K_H that returns θ, `(D, D)`.

    Returns:
        A verdict.

    Raises:
        AnswerError: With the two ratios; turned into the verdict.
    """
    for K_P, K_H in _pairs(6, both=True):
        T = matrix(call(spend, K_P, K_H), K_P.shape, "θ")
        if np.linalg.matrix_rank(T) < len(T):
            raise AnswerError("θ must be invertible; the ceiling does not hold for singular ones.")
        measured = relative_immunization_ratio(T, K_P, K_H)
        limit = rir_ceiling(K_P, K_H).value
        numbers = f"(ii) = {measured.pretrain_ratio:.4g}, (i) = {measured.harmful_ratio:.4g} of {limit:.4g}"
        if measured.pretrain_ratio > 1 + 1e-6:
            raise AnswerError(
                f"{numbers}: κ(H_P) rises. With θ = K_P^(-1/2) S it is κ(S)²; keep that ≤ κ(K_P)."
            )
        if measured.harmful_ratio < SHARE * limit:
            hint = (
                " You stop at θ*, which spends it all on D_P: stretch S along the eigenvectors of M."
                if measured.rir > SHARE * limit
                else " S must share its eigenvectors with M, in the same order."
            )
            raise AnswerError(f"{numbers}: part of the ceiling is not spent on D_H.{hint}")
    return "(ii) = 1 and (i) = RIR_max: the same ceiling, spent on the harmful task alone."


def _pairs(count: int, *, both: bool = False) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Return random covariances with a random extractor, or with another covariance."""
    generator = np.random.default_rng(2)
    for _ in range(count):
        D = int(generator.integers(3, 7))
        X, Z = (generator.normal(size=(4 * D, D)) * generator.uniform(0.2, 2.0, size=D) for _ in range(2))
        yield np.asarray(covariance(X)), np.asarray(covariance(Z)) if both else generator.normal(size=(D, D))


def _power(K: FloatArray, exponent: float) -> FloatArray:
    gamma, Q = np.linalg.eigh(K)
    return np.asarray((Q * gamma**exponent) @ Q.T)
