"""Lesson 6: the checks of the eleven exercises, and what reads an answer."""

import functools
import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from condnum.errors import CondnumError
from condnum.lessons.condition_number import Floats, kantorovich_bound, norm_bound
from condnum.lessons.regularizers import kappas
from condnum.numbers import num
from condnum.probing import linear_probe
from condnum.theory.alignment import alignment
from condnum.theory.kappa import condition_number, covariance, hessian, relative_immunization_ratio
from condnum.theory.limits import rir_limit
from condnum.theory.regularizers import r_ill, well_spectrum_step, well_step_bound
from condnum.theory.task import Task

#: Exercise 1: ratio of the half-axes of a contour.
AXES_RATIO = 7.0
#: Exercise 2: condition number, and the fraction of the excess loss to reach.
STEPS_KAPPA, STEPS_GOAL = 100.0, 1e-6
#: Exercise 5: the spectrum.
SIGMA = (4.0, 1.0)


#: Color and mark of each status.
LOOKS = {"right": ("#009E73", "✔"), "wrong": ("#D55E00", "✘"), "not answered yet": ("#8A8A8A", "…")}


@dataclass(frozen=True)
class AnswerVerdict:
    """The outcome of a check; a notebook shows it as a colored line."""

    status: str  # of `LOOKS`
    reason: str = ""  # plain text, one or two sentences

    def __repr__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else self.status

    def _repr_html_(self) -> str:
        """Return the line for a notebook."""
        color, mark = LOOKS[self.status]
        style = f"border-left:6px solid {color};padding:4px 12px;font-size:1.1em"
        return f'<div style="{style}"><b>{mark} {self.status}.</b> {html.escape(self.reason)}</div>'


class AnswerError(Exception):
    """A property that the answer should have and has not; the message says which and why."""


class NotAnsweredError(Exception):
    """A function returned None or `...`: its body is still to be written."""


def need(holds: Any, reason: str) -> None:
    """Call an answer wrong, and say why, unless something holds."""
    if not holds:
        raise AnswerError(reason)


def answer_check(examine: Callable[..., str]) -> Callable[..., AnswerVerdict]:
    """Turn a function that raises `AnswerError`, or returns why an answer is right, into a check.

    An answer that is None or `...` is not answered yet. Whatever a learner's own code raises is a
    finding, with the exception's words, and stops no notebook.
    """

    @functools.wraps(examine)
    def checked(*answers: Any) -> AnswerVerdict:
        try:
            if any(answer is None or answer is ... for answer in answers):
                raise NotAnsweredError
            return AnswerVerdict("right", examine(*answers))
        except NotAnsweredError:
            return AnswerVerdict("not answered yet")
        except AnswerError as finding:
            return AnswerVerdict("wrong", str(finding))
        except CondnumError as error:
            return AnswerVerdict("wrong", f"the answer cannot be used: {error}")
        except Exception as error:  # the learner's code may raise anything
            return AnswerVerdict("wrong", f"the answer fails with {type(error).__name__}: {error}")

    return checked


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a learner's function with copies of the arguments, so that it cannot change ours."""
    need(callable(function), f"expected a function, got {type(function).__name__}.")
    result = function(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
    if result is None or result is ...:
        raise NotAnsweredError
    return result


def real(answer: Any, name: str, kind: str = "made of numbers") -> Floats:
    """Return an answer as real numbers; imaginary parts that are round-off, as of `sqrtm`, are dropped."""
    try:
        values = np.array(answer, dtype=np.complex128)
    except (TypeError, ValueError) as error:
        raise AnswerError(f"{name} must be {kind}, got {answer!r}.") from error
    off = np.abs(values.imag).max(initial=0)
    need(
        not off > 1e-9 * np.abs(values).max(initial=0),
        f"{name} must be real, but has imaginary parts up to {num(off, 2)}: a root of a negative number, or "
        "eigenvectors of a matrix that is not symmetric?",
    )
    return np.array(values.real)


def number_answer(answer: Any, name: str) -> float:
    """Return an answer as a finite float."""
    values = real(answer, name, "a number")
    need(values.size == 1, f"{name} must be a number, got {answer!r}.")
    need(np.isfinite(values).all(), f"{name} must be finite, got {values.item()}.")
    return float(values.item())


def matrix_answer(answer: Any, shape: tuple[int, ...], name: str) -> Floats:
    """Return an answer as a finite matrix of a given shape."""
    value = real(answer, name)
    need(value.shape == shape, f"{name} must have shape {shape}, got {value.shape}.")
    need(np.isfinite(value).all(), f"{name} holds entries that are not finite.")
    return value


def covariance_like(answer: Any, size: int, name: str) -> Floats:
    """Return an answer as a symmetric positive semi-definite matrix."""
    K = matrix_answer(answer, (size, size), name)
    symmetric = np.allclose(K, K.T, rtol=1e-9, atol=1e-12 * np.abs(K).max())
    need(symmetric, f"{name} is not symmetric, so it is not a covariance.")
    gamma = np.linalg.eigvalsh(K)
    negative = f"{name} has the negative eigenvalue {num(gamma[0])}, so it is not a covariance XᵀX."
    need(gamma[0] >= -1e-9 * np.abs(gamma).max(), negative)
    return K


@answer_check
def check_kappa(kappa: Any) -> str:
    """Exercise 1: the contours of a quadratic are ellipses with half-axes 7 : 1; what is κ?"""
    value = number_answer(kappa, "κ")
    need(value >= 1, f"κ = σ₁/σ_D is never below 1, got {num(value, 6)}.")
    ratio = float(np.sqrt(value))  # {e : eᵀHe = 1} has the half-axis 1/√σ_i along u_i
    need(
        np.isclose(ratio, AXES_RATIO, rtol=1e-3),
        ("That is the ratio of the axes themselves. " if np.isclose(value, AXES_RATIO) else "")
        + f"With κ = {num(value, 6)} the half-axes are in the ratio {num(ratio, 4)} : 1. "
        "On eᵀHe = 1 the half-axis along u_i is 1/√σ_i.",
    )
    return f"the half-axis along u_i is 1/√σ_i, so the ratio of the axes is √κ = {num(ratio, 6)}."


@answer_check
def check_steps(steps: Any) -> str:
    """Exercise 2: the fewest steps after which Kantorovich guarantees 1e-6 of the excess loss at κ = 100."""
    value = number_answer(steps, "the number of steps")
    need(value == int(value) >= 1, f"expected an integer number of steps, got {num(value, 6)}.")
    t = np.array([int(value) - 1, int(value)])
    bound = kantorovich_bound(STEPS_KAPPA, t)
    before, after = bound
    short = f"after {t[1]} steps the bound is still {num(after, 4)} > {num(STEPS_GOAL, 6)}."
    need(after <= STEPS_GOAL, short)
    slips = {
        "This is the number from Eq. 2 for the squared norm. ": norm_bound(STEPS_KAPPA, t),
        "The bound is squared in every step: its exponent is 2t. ": np.sqrt(bound),
    }
    hint = next((text for text, slip in slips.items() if slip[1] <= STEPS_GOAL < slip[0]), "")
    less = f"{hint}One step less is enough: the bound at {t[0]} is {num(before)}."
    need(before > STEPS_GOAL, less)
    return f"((κ−1)/(κ+1))^(2t) is {num(before, 4)} at t = {t[0]} and {num(after, 4)} at t = {t[1]}."


@answer_check
def check_conventions(H: Any) -> str:
    """Exercise 3: a 3×3 Hessian with compact κ ≤ 2 whose ridge κ, ε = 1e-6, is at least 1e5."""
    H = covariance_like(H, 3, "H")
    compact = condition_number(H)
    ridge = condition_number(H, convention="ridge")
    kappas = f"compact κ is {num(compact.value)}", f"ridge κ is {num(ridge.value)}"
    need(
        compact.value <= 2 * (1 + 1e-9),
        f"{kappas[0]} over the rank {compact.rank}: σ_k/σ₁ = {num(compact.sigma_min / compact.sigma_max, 1)} "
        "counts as non-zero. Only values that are zero up to round-off are ignored.",
    )
    why = "H has full rank, so ε hardly matters" if compact.rank == 3 else "σ₁ is too small against ε"
    need(ridge.value >= 1e5, f"{kappas[0]} as required, but {kappas[1]}: {why}.")
    return (
        f"{kappas[0]} over the rank {compact.rank}, {kappas[1]}: "
        "a null direction counts in one convention and not in the other."
    )


@answer_check
def check_underestimate(theta: Any, K: Any) -> str:
    """Exercise 4: θ and K, 2×2, for which Eq. 10 underestimates κ(H) at least tenfold."""
    T, K = matrix_answer(theta, (2, 2), "θ"), covariance_like(K, 2, "K")
    for M in (T, K):
        full = np.linalg.matrix_rank(M) == 2
        need(full, "θ and K must be invertible: otherwise two different subspaces are compared.")
    result = alignment(T, K)
    need(
        result.u_unique,
        "both singular values of θ are equal, so U is any rotation "
        "and Eq. 10 is not unique; make them differ a little.",
    )
    turned = result.misalignment >= 1e-9
    need(turned, "U diagonalizes K here, so Eq. 10 is exact; rotate K's eigenvectors relative to U.")
    predicted, truth = num(result.predicted_condition), num(result.true_condition)
    factor = 1 / result.condition_ratio
    need(
        factor >= 10,
        f"Eq. 10 predicts {predicted}, the truth is {truth}: "
        f"a factor of {num(factor)} only. A nearly singular K with 45° between U and Q goes further.",
    )
    return (
        f"Eq. 10 predicts κ = {predicted}, the truth is {truth}. "
        "The eigenvalues of ΣUᵀKUΣ majorize its diagonal, so the error always has this sign."
    )


@answer_check
def check_harmful_step(eta: Any) -> str:
    """Exercise 5: a step below the printed bound of Theorem 4.3 (1) at which κ rises, for σ = (4, 1)."""
    value, printed = number_answer(eta, "η"), float(well_step_bound(list(SIGMA), bound="published"))
    wanted = f"η must lie between 0 and the printed bound {num(printed, 6)}, got {num(value, 6)}."
    need(0 < value < printed, wanted)
    moved = np.asarray(well_spectrum_step(list(SIGMA), value))
    before, after = SIGMA[0] / SIGMA[1], float(kappas(moved))
    way = "larger" if value < 1 / SIGMA[0] else "smaller"  # 1/σ₁ annihilates σ₁ for D = 2
    spectrum = f"the spectrum becomes ({num(moved[0])}, {num(moved[1])})"
    need(
        after > before,
        f"with η = {num(value, 6)} {spectrum} and κ falls from {num(before, 6)} to {num(after)}. "
        f"Take a {way} step, one that nearly wipes σ₁ out.",
    )
    return f"{spectrum}: κ rises from {num(before, 6)} to {num(after)}."


@answer_check
def check_ill_spectra(vanishing: Any, exploding: Any) -> str:
    """Exercise 6: two spectra that separate R_ill → 0 from κ → ∞."""
    found = []
    for name, answer in (("the first spectrum", vanishing), ("the second spectrum", exploding)):
        sigma = np.sort(real(answer, name).ravel())[::-1]
        positive = sigma.shape == (3,) and np.isfinite(sigma).all() and (sigma > 0).all()
        need(positive, f"{name} must hold three positive numbers, got {answer!r}.")
        found.append((float(r_ill(np.diag(sigma))), float(sigma[0] / sigma[-1])))
    (value, kappa), (other, steep) = found
    need(kappa <= 2 * (1 + 1e-9), f"the first spectrum has κ = {num(kappa)} > 2.")
    why = "all values are equal, where it is infinite" if np.isinf(value) else "it scales like 1/‖S‖²"
    small = f"the first spectrum has R_ill = {num(value)} > 1e-3: {why}; scale a spread-out spectrum up."
    need(value <= 1e-3, small)
    need(steep >= 1e6, f"the second spectrum has κ = {num(steep)} < 1e6.")
    need(other >= 4, f"the second spectrum has R_ill = {num(other)} < 4: its largest values are too large.")
    return (
        f"R_ill = {num(value, 2)} at κ = {num(kappa)}, and R_ill = {num(other)} at κ = {num(steep, 2)}: "
        "R_ill → 0 means ‖S‖ → ∞, not κ → ∞."
    )


@answer_check
def check_largest_step(eta_max: Any) -> str:
    """Exercise 10: for D = 2, where κ first stops falling as η grows from 0."""
    generator, draws = np.random.default_rng(0), 50
    for _ in range(draws):
        s2 = float(generator.uniform(0.05, 3.0))
        s1 = s2 * float(generator.uniform(1.2, 20.0))
        bound = number_answer(call(eta_max, s1, s2), "η_max")
        where = f"for σ = ({num(s1, 4)}, {num(s2, 4)}) it gives {num(bound, 4)}"
        need(bound > 0, f"{where}, so no step is allowed; κ does fall for small steps.")
        fractions = np.append(np.linspace(0.02, 0.999, 50), 1.001)
        moved = (np.asarray(well_spectrum_step([s1, s2], f * bound)) for f in fractions)
        *falls, beyond = (float(kappas(sigma)) < s1 / s2 for sigma in moved)
        first = num(fractions[int(np.argmin(falls))])
        need(all(falls), f"{where}, but at {first} of that κ is already above {num(s1 / s2, 4)}: too large.")
        cautious = np.isclose(bound, float(well_step_bound([s1, s2])))
        hint = " That is the corrected bound: sufficient, not sharp." if cautious else ""
        need(not beyond, f"{where}, but a step of 1.001 times that still lowers κ: too small.{hint}")
    return f"κ falls all the way below it and rises just above it, on {draws} random spectra."


@answer_check
def check_aligned_pair(K_P: Any, K_H: Any, theta: Any) -> str:
    """Exercise 7: perfectly aligned 3×3 tasks, and a θ that lowers κ(H_P) and raises κ(H_H)."""
    covariances = []
    for name, answer in (("K_P", K_P), ("K_H", K_H)):
        K = covariance_like(answer, 3, name)
        values = np.diag(K)
        aligned = np.array_equal(K, np.diag(values)) and (np.diff(values) < 0).all() and values[-1] > 0
        wanted = f"{name} must be diagonal with positive, strictly descending entries: the aligned case."
        need(aligned, wanted)
        covariances.append(K)
    T = matrix_answer(theta, (3, 3), "θ")
    full = np.linalg.matrix_rank(T) == 3
    need(full, "θ must be invertible; leaving a direction out compares different subspaces.")
    measured = relative_immunization_ratio(T, *covariances)
    numbers = f"(ii) = {num(measured.benign_ratio, 4)}, (i) = {num(measured.harmful_ratio, 4)}"
    falls = f"{numbers}: κ(H_P) must fall, (ii) < 1. θ = K_P^(-1/2) takes it to 1."
    need(measured.benign_ratio < 1, falls)
    rises = f"{numbers}: κ(H_H) must rise, (i) > 1. Let K_H have the flatter spectrum of the two."
    need(measured.clauses.harmful_slower, rises)
    return f"{numbers}: both meet the conditions, although the singular vectors agree in the same order."


@answer_check
def check_whitening(whiten: Any) -> str:
    """Exercise 8: undo an immunization: a matrix W for which the probe on XθW takes one step."""
    for K, theta in _pairs(4):
        H = hessian(theta, K)
        D = len(H)
        W = matrix_answer(call(whiten, H), (D, D), "W")
        left, before = (condition_number(M).value for M in (hessian(W, H), H))
        singular = "W is singular: the attacker throws features away, and may lose the solution."
        need(np.linalg.matrix_rank(W) == D, singular)
        product = W @ H
        unit = np.trace(product) / D
        undone = np.allclose(product, unit * np.eye(D), atol=1e-6 * abs(unit))
        hint = " H⁻¹ goes too far: WᵀHW is then H⁻¹." if undone else ""
        need(left <= 1 + 1e-6, f"κ(WᵀHW) = {num(left, 4)} is left of κ(H) = {num(before, 4)}.{hint}")
        rest = linear_probe(W, Task.of_covariance(H, H @ np.ones(D)), steps=1).norm_ratio[1]
        need(rest <= 1e-9, f"after one step {num(rest, 2)} of the squared distance is left.")
    return "κ(WᵀHW) = 1, so one step suffices. Conditioning does not slow an attacker who whitens."


@answer_check
def check_limit(limit: Any) -> str:
    """Exercise 9: code RIR_max for positive definite covariances."""
    generator, close = np.random.default_rng(1), 1e-6
    for K_P, K_H in _pairs(6, both=True):
        value, truth = number_answer(call(limit, K_P, K_H), "the limit"), rir_limit(K_P, K_H)
        gamma, Q = np.linalg.eigh(K_P)
        tries = [(Q / np.sqrt(gamma)) @ Q.T, *generator.normal(size=(20, *K_P.shape))]
        largest = max(relative_immunization_ratio(T, K_P, K_H).rir for T in tries)
        ratio = condition_number(K_P).value / condition_number(K_H).value
        slips = {
            " κ(K_P)/κ(K_H) is missing: RIR divides by the κ's at θ = I.": truth.value / ratio,
            " κ(K_P)/κ(K_H) is inverted.": truth.value / ratio**2,
            " λ_max alone is not enough: divide by λ_min.": truth.lambda_max * ratio,
        }
        hint = next((text for text, slip in slips.items() if np.isclose(value, slip, rtol=1e-6)), "")
        short = f"it gives {num(value, 4)}, but there is a θ with RIR = {num(largest, 4)}.{hint}"
        need(value >= largest * (1 - close), short)
        need(
            value <= truth.value * (1 + close),
            f"it gives {num(value, 4)}, a bound that no θ attains: the best has {num(truth.value, 4)}.{hint}",
        )
    return "no random θ exceeds it, and θ* = K_P^(-1/2) attains it."


@answer_check
def check_spent_budget(spend: Any) -> str:
    """Exercise 11: a θ with (ii) ≤ 1 and (i) at least 99.9 % of the theoretical limit."""
    for K_P, K_H in _pairs(6, both=True):
        T, limit = matrix_answer(call(spend, K_P, K_H), K_P.shape, "θ"), rir_limit(K_P, K_H).value
        full = np.linalg.matrix_rank(T) == len(T)
        need(full, "θ must be invertible; the limit does not hold for singular ones.")
        measured = relative_immunization_ratio(T, K_P, K_H)
        i, ii = measured.harmful_ratio, measured.benign_ratio
        numbers = f"(ii) = {num(ii, 4)}, (i) = {num(i, 4)} of {num(limit, 4)}"
        rises = f"{numbers}: κ(H_P) rises. With θ = K_P^(-1/2) S it is κ(S)²; keep that ≤ κ(K_P)."
        need(ii <= 1 + 1e-6, rises)
        hint = "S must share its eigenvectors with M, in the same order."
        if measured.rir > 0.999 * limit:
            hint = "This is θ*, which only improves D_P: stretch S along the eigenvectors of M."
        need(i >= 0.999 * limit, f"{numbers}: (i) is below the limit. {hint}")
    return "(ii) = 1 and (i) = RIR_max: the limit is attained on the harmful task."


def _pairs(count: int, *, both: bool = False) -> Iterator[tuple[Floats, Floats]]:
    """Return random covariances with a random extractor, or with another covariance."""
    generator = np.random.default_rng(2)
    for _ in range(count):
        D = int(generator.integers(3, 7))
        X, Z = (generator.normal(size=(4 * D, D)) * generator.uniform(0.2, 2.0, size=D) for _ in range(2))
        yield np.asarray(covariance(X)), np.asarray(covariance(Z)) if both else generator.normal(size=(D, D))
