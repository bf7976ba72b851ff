"""Lesson 6: the checks of the eleven exercises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condnum.figures.style import num
from condnum.lessons.answers import AnswerError, call, check, covariance_like, matrix, number, real
from condnum.lessons.condition_number import kantorovich_bound, norm_bound
from condnum.probing import linear_probe
from condnum.theory.alignment import alignment
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.regularizers import r_ill
from condnum.theory.spectra import condition_number, covariance, hessian
from condnum.theory.steps import well_spectrum_step, well_step_bound

#: Exercise 1: ratio of the half-axes of a contour.
AXES_RATIO = 7.0
#: Exercise 2: condition number, and the share of the excess loss to reach.
STEPS_KAPPA, STEPS_GOAL = 100.0, 1e-6
#: Exercise 4: how far the prediction must be off.
FACTOR = 10.0
#: Exercise 5: the spectrum, and exercise 10: how many random ones are tried.
SIGMA, DRAWS = (4.0, 1.0), 50
#: Exercise 9: relative error allowed in a ceiling; exercise 11: share of it to reach.
CEILING_RTOL, SHARE = 1e-6, 0.999

FloatArray = NDArray[np.float64]


@check
def check_kappa(kappa: Any) -> str:
    """Exercise 1: the contours of a quadratic are ellipses with half-axes 7 : 1; what is κ?"""
    value = number(kappa, "κ")
    if value < 1:
        raise AnswerError(f"κ = σ₁/σ_D is never below 1, got {num(value, 6)}.")
    ratio = float(np.sqrt(value))  # {e : eᵀHe = 1} has the half-axis 1/√σ_i along u_i
    if not np.isclose(ratio, AXES_RATIO, rtol=1e-3):
        hint = "That is the ratio of the axes themselves. " if np.isclose(value, AXES_RATIO) else ""
        raise AnswerError(
            f"{hint}With κ = {num(value, 6)} the half-axes are in the ratio {num(ratio, 4)} : 1. "
            "On eᵀHe = 1 the half-axis along u_i is 1/√σ_i."
        )
    return f"the half-axis along u_i is 1/√σ_i, so the ratio of the axes is √κ = {num(ratio, 6)}."


@check
def check_steps(steps: Any) -> str:
    """Exercise 2: the fewest steps after which Kantorovich guarantees 1e-6 of the excess loss at κ = 100."""
    value = number(steps, "the number of steps")
    if value != int(value) or value < 1:
        raise AnswerError(f"a whole number of steps is asked for, got {num(value, 6)}.")
    t = np.array([int(value) - 1, int(value)])
    before, after = kantorovich_bound(STEPS_KAPPA, t)
    if after > STEPS_GOAL:
        raise AnswerError(f"after {t[1]} steps the bound is still {num(after, 4)} > {num(STEPS_GOAL, 6)}.")
    if before <= STEPS_GOAL:
        slips = {
            "This is what Eq. 2 grants for the squared norm. ": norm_bound(STEPS_KAPPA, t),
            "The bound is squared in every step: its exponent is 2t. ": np.sqrt(
                kantorovich_bound(STEPS_KAPPA, t)
            ),
        }
        hint = next((text for text, slip in slips.items() if slip[1] <= STEPS_GOAL < slip[0]), "")
        raise AnswerError(f"{hint}One step less is enough as well: the bound at {t[0]} is {num(before)}.")
    return f"((κ−1)/(κ+1))^(2t) is {num(before, 4)} at t = {t[0]} and {num(after, 4)} at t = {t[1]}."


@check
def check_conventions(H: Any) -> str:
    """Exercise 3: a 3×3 Hessian with compact κ ≤ 2 whose ridge κ, ε = 1e-6, is at least 1e5."""
    H = covariance_like(H, 3, "H")
    compact = condition_number(H, kind="symmetric")
    ridge = condition_number(H, kind="symmetric", convention="ridge")
    if compact.value > 2 * (1 + 1e-9):
        small = compact.sigma_min / compact.sigma_max
        raise AnswerError(
            f"compact κ is {num(compact.value)} over the rank {compact.rank}: σ_k/σ₁ = "
            f"{num(small, 1)} counts as "
            "non-zero. Only what is zero up to round-off is left out."
        )
    if ridge.value < 1e5:
        why = "H has full rank, so ε hardly matters" if compact.rank == 3 else "σ₁ is too small against ε"
        raise AnswerError(
            f"compact κ is {num(compact.value)} as asked, but ridge κ is {num(ridge.value)}: {why}."
        )
    return (
        f"compact κ = {num(compact.value)} over the rank {compact.rank}, ridge κ = {num(ridge.value)}: "
        "a null direction counts in one convention and not in the other."
    )


@check
def check_underestimate(theta: Any, K: Any) -> str:
    """Exercise 4: θ and K, 2×2, for which Eq. 10 underestimates κ(H) at least tenfold."""
    T, K = matrix(theta, (2, 2), "θ"), covariance_like(K, 2, "K")
    if np.linalg.matrix_rank(T) < 2 or np.linalg.matrix_rank(K) < 2:
        raise AnswerError("θ and K must be invertible: otherwise two different subspaces are compared.")
    result = alignment(T, K)
    if not result.u_unique:
        raise AnswerError(
            "both singular values of θ are equal, so U is any rotation and Eq. 10 has no single value; "
            "make them differ a little."
        )
    if result.misalignment < 1e-9:
        raise AnswerError("U diagonalises K here, so Eq. 10 is exact; turn K's eigenvectors against U.")
    factor = 1 / result.condition_ratio
    if factor < FACTOR:
        raise AnswerError(
            f"Eq. 10 predicts {num(result.predicted_condition)}, the truth is {num(result.true_condition)}: "
            f"a factor of {num(factor)} only. A nearly singular K with 45° between U and Q goes further."
        )
    return (
        f"Eq. 10 predicts κ = {num(result.predicted_condition)}, the truth is {num(result.true_condition)}. "
        "The diagonal of ΣUᵀKUΣ is majorised by its eigenvalues, so the error has this sign always."
    )


@check
def check_harmful_step(eta: Any) -> str:
    """Exercise 5: a step below the printed bound of Theorem 4.3 (1) at which κ rises, for σ = (4, 1)."""
    value = number(eta, "η")
    printed = float(well_step_bound(list(SIGMA), source="printed"))
    if not 0 < value < printed:
        raise AnswerError(
            f"η must lie between 0 and the printed bound {num(printed, 6)}, got {num(value, 6)}."
        )
    moved = np.asarray(well_spectrum_step(list(SIGMA), value))
    before, after = SIGMA[0] / SIGMA[1], _kappa(moved)
    if after <= before:
        way = "larger" if value < 1 / SIGMA[0] else "smaller"  # 1/σ₁ annihilates σ₁ for D = 2
        raise AnswerError(
            f"with η = {num(value, 6)} the spectrum becomes ({num(moved[0])}, {num(moved[1])}) and κ falls "
            f"from {num(before, 6)} to {num(after)}. Take a {way} step, one that nearly wipes σ₁ out."
        )
    return (
        f"the spectrum becomes ({num(moved[0])}, {num(moved[1])}): κ rises from "
        f"{num(before, 6)} to {num(after)}."
    )


@check
def check_ill_spectra(vanishing: Any, exploding: Any) -> str:
    """Exercise 6: two spectra that separate R_ill → 0 from κ → ∞."""
    small, large = _triple(vanishing, "the first spectrum"), _triple(exploding, "the second spectrum")
    value, kappa = float(r_ill(np.diag(small))), _kappa(small)
    if kappa > 2 * (1 + 1e-9):
        raise AnswerError(f"the first spectrum has κ = {num(kappa)} > 2.")
    if value > 1e-3:
        why = "all values are equal, where it is infinite" if np.isinf(value) else "it scales like 1/‖S‖²"
        raise AnswerError(
            f"the first spectrum has R_ill = {num(value)} > 1e-3: {why}; scale a spread-out spectrum up."
        )
    other, steep = float(r_ill(np.diag(large))), _kappa(large)
    if steep < 1e6:
        raise AnswerError(f"the second spectrum has κ = {num(steep)} < 1e6.")
    if other < 4:
        raise AnswerError(
            f"the second spectrum has R_ill = {num(other)} < 4: its largest values are too large."
        )
    return (
        f"R_ill = {num(value, 2)} at κ = {num(kappa)}, and R_ill = {num(other)} at κ = {num(steep, 2)}: "
        "R_ill → 0 means ‖S‖ → ∞, not κ → ∞."
    )


@check
def check_largest_step(eta_max: Any) -> str:
    """Exercise 10: for D = 2, where κ first stops falling as η grows from 0."""
    generator = np.random.default_rng(0)
    for _ in range(DRAWS):
        s2 = float(generator.uniform(0.05, 3.0))
        s1 = s2 * float(generator.uniform(1.2, 20.0))
        bound = number(call(eta_max, s1, s2), "η_max")
        where = f"for σ = ({num(s1, 4)}, {num(s2, 4)}) it gives {num(bound, 4)}"
        if bound <= 0:
            raise AnswerError(f"{where}, which is no step at all; κ does fall for small steps.")
        fractions = np.linspace(0.02, 0.999, 50)
        falls = [_after(s1, s2, f * bound) < s1 / s2 for f in fractions]
        if not all(falls):
            first = fractions[int(np.argmin(falls))]
            raise AnswerError(
                f"{where}, but at {num(first)} of that κ is already above {num(s1 / s2, 4)}: too large."
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


@check
def check_aligned_pair(K_P: Any, K_H: Any, theta: Any) -> str:
    """Exercise 7: perfectly aligned 3×3 tasks, and a θ that lowers κ(H_P) and raises κ(H_H)."""
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
    numbers = f"(ii) = {num(measured.pretrain_ratio, 4)}, (i) = {num(measured.harmful_ratio, 4)}"
    if measured.pretrain_ratio >= 1:
        raise AnswerError(f"{numbers}: κ(H_P) must fall, (ii) < 1. θ = K_P^(-1/2) takes it to 1.")
    if not measured.clauses["a"]:
        raise AnswerError(
            f"{numbers}: κ(H_H) must rise, (i) > 1. Let K_H have the flatter spectrum of the two."
        )
    return f"{numbers}: both go the right way, although the singular vectors agree in the right order."


@check
def check_whitening(whiten: Any) -> str:
    """Exercise 8: undo an immunization: a matrix W for which the probe on XθW takes one step."""
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
                f"κ(WᵀHW) = {num(left, 4)} is left of κ(H) = {num(condition_number(H).value, 4)}.{hint}"
            )
        curve = linear_probe(W, H, H @ np.ones(D), steps=1)
        if curve.norm_ratio[1] > 1e-9:
            raise AnswerError(
                f"after one step {num(curve.norm_ratio[1], 2)} of the squared distance is left."
            )
    return "κ(WᵀHW) = 1, one step arrives. Conditioning slows only those who do not standardise."


@check
def check_ceiling(ceiling: Any) -> str:
    """Exercise 9: code RIR_max for positive definite covariances."""
    generator = np.random.default_rng(1)
    for K_P, K_H in _pairs(6, both=True):
        value = number(call(ceiling, K_P, K_H), "the ceiling")
        truth = rir_ceiling(K_P, K_H).value
        best = relative_immunization_ratio(_power(K_P, -0.5), K_P, K_H).rir
        tries = [generator.normal(size=K_P.shape) for _ in range(20)]
        largest = max(best, *(relative_immunization_ratio(T, K_P, K_H).rir for T in tries))
        if value < largest * (1 - CEILING_RTOL):
            raise AnswerError(
                f"it gives {num(value, 4)}, but there is a θ with RIR = "
                f"{num(largest, 4)}.{_hint(value, K_P, K_H)}"
            )
        if value > truth * (1 + CEILING_RTOL):
            raise AnswerError(
                f"it gives {num(value, 4)}, a bound that no θ reaches: the best has {num(truth, 4)}."
                f"{_hint(value, K_P, K_H)}"
            )
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
    """Exercise 11: a θ with (ii) ≤ 1 and (i) at least 99.9 % of the ceiling."""
    for K_P, K_H in _pairs(6, both=True):
        T = matrix(call(spend, K_P, K_H), K_P.shape, "θ")
        if np.linalg.matrix_rank(T) < len(T):
            raise AnswerError("θ must be invertible; the ceiling does not hold for singular ones.")
        measured = relative_immunization_ratio(T, K_P, K_H)
        limit = rir_ceiling(K_P, K_H).value
        numbers = (
            f"(ii) = {num(measured.pretrain_ratio, 4)}, (i) = "
            f"{num(measured.harmful_ratio, 4)} of {num(limit, 4)}"
        )
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
