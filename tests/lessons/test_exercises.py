"""Lesson 6: right answers, wrong ones with their reason, and numbers typed on a page."""

import re

import numpy as np
import pytest

pytest.importorskip("ipywidgets", reason="the extra notebooks is not installed")

from condnum.lessons import exercises
from condnum.lessons.exercises import AnswerVerdict

I3 = np.eye(3)


def power(K, exponent):
    gamma, Q = np.linalg.eigh(K)
    return (Q * gamma**exponent) @ Q.T


def kappas(K_P, K_H):
    return np.linalg.cond(K_P) / np.linalg.cond(K_H)


def limit(K_P, K_H):
    pencil = np.linalg.eigvals(np.linalg.solve(K_P, K_H)).real
    return pencil.max() / pencil.min() * kappas(K_P, K_H)


def spend(K_P, K_H, *, order=1):
    root = power(K_P, -0.5)
    Q = np.linalg.eigh(root @ K_H @ root)[1][:, ::order]
    return root @ (Q * np.geomspace(1, np.sqrt(np.linalg.cond(K_P)), len(K_P))) @ Q.T


def raising(*_):
    raise ZeroDivisionError("by zero")


BENT = np.array([[1.0, 0.99], [0.99, 1.0]])
ALIGNED = (np.diag([100.0, 10.0, 1.0]), np.diag([3.0, 2.0, 1.0]), np.diag([0.1, 10**-0.5, 1.0]))

WRONG = {
    "kappa: the ratio itself": ("check_kappa", 7, "ratio of the axes themselves"),
    "kappa: inverse": ("check_kappa", 1 / 49, "never below 1"),
    "steps: too many": ("check_steps", 347, "One step less"),
    "steps: Eq. 2": ("check_steps", 1375, "the number from Eq. 2"),
    "steps: too few": ("check_steps", 345, "still 1.015·10⁻⁶ > 1·10⁻⁶"),
    "conventions: full rank": ("check_conventions", I3, "full rank"),
    "conventions: tiny, not zero": ("check_conventions", np.diag([2, 1, 1e-9]), "counts as non-zero"),
    "conventions: negative": ("check_conventions", np.diag([2.0, 1.0, -1.0]), "negative eigenvalue"),
    "underestimate: aligned": ("check_underestimate", np.diag([2.0, 1.0]), np.diag([3.0, 1.0]), "exact"),
    "underestimate: no U": ("check_underestimate", np.eye(2), BENT, "not unique"),
    "harmful step: too short": ("check_harmful_step", 0.1, "falls from 4 to 1.19. Take a larger step"),
    "harmful step: too long": ("check_harmful_step", 0.49, "Take a smaller step"),
    "ill: equal values": ("check_ill_spectra", (1, 1, 1), (1, 0.5, 1e-8), "infinite"),
    "ill: not scaled": ("check_ill_spectra", (3, 2, 2), (1, 0.5, 1e-8), "scales like"),
    "aligned: ascending": ("check_aligned_pair", ALIGNED[0][::-1, ::-1], *ALIGNED[1:], "descending"),
    "aligned: K_H too steep": ("check_aligned_pair", ALIGNED[0], ALIGNED[0] ** 2, ALIGNED[2], "must rise"),
    "whitening: H⁻¹": ("check_whitening", np.linalg.inv, "goes too far"),
    "whitening: nothing": ("check_whitening", lambda H: np.eye(len(H)), r"is left of κ\(H\) = [\d.,]+\.$"),
    "whitening: raises": ("check_whitening", raising, "ZeroDivisionError: by zero"),
    "limit: no κ's": ("check_limit", lambda P, H: limit(P, H) / kappas(P, H), "is missing"),
    "limit: κ's inverted": ("check_limit", lambda P, H: limit(P, H) / kappas(P, H) ** 2, "is inverted"),
    "limit: twice": ("check_limit", lambda P, H: 2 * limit(P, H), "no θ attains"),
    "largest step: corrected bound": (
        "check_largest_step",
        lambda a, b: min((1 - (b / a) ** 0.5) / a, ((a / b) ** 0.5 - 1) / b),
        "not sharp",
    ),
    "largest step: printed bound": ("check_largest_step", lambda a, b: 2 / a, "too large"),
    "spend: θ*": ("check_spent_budget", lambda P, H: power(P, -0.5), "This is θ*"),
    "spend: wrong order": ("check_spent_budget", lambda P, H: spend(P, H, order=-1), "same order"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_wrong_answers_are_called_wrong_and_why(case):
    name, *answers, reason = WRONG[case]
    verdict = getattr(exercises, name)(*answers)
    assert verdict.status == "wrong", verdict
    assert re.search(reason, verdict.reason), verdict


def test_a_learner_s_function_cannot_change_our_matrices():
    def destructive(P, H):
        value = limit(P, H)
        P[:] = H[:] = 0
        return value

    assert exercises.check_limit(destructive).status == "right"


#: A right answer to each exercise.
NUMBERS = {
    "check_kappa": [49],
    "check_steps": [346],
    "check_conventions": [np.diag([2, 1, 0])],
    "check_underestimate": [np.diag([1.1, 1]), np.array([[1, 0.99], [0.99, 1]])],
    "check_harmful_step": [6 / 25],
    "check_ill_spectra": [[200, 150, 100], [1, 1 / 2, 1e-7]],
    "check_aligned_pair": [np.diag([100, 10, 1]), np.diag([3, 2, 1]), np.diag([0.1, 0.316, 1])],
}
CODE = {
    "check_whitening": lambda H: power(H, -0.5),
    "check_limit": limit,
    "check_largest_step": lambda s1, s2: (s1 - s2) / (s1**2 + s2**2),
    "check_spent_budget": spend,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_checked(name):
    check, answers = getattr(exercises, name), NUMBERS[name]
    assert check(*answers).status == "right"
    for gap in (None, ...):
        assert check(*answers[:-1], gap) == AnswerVerdict("not answered yet")


@pytest.mark.parametrize("name", CODE)
def test_code_is_checked(name):
    check = getattr(exercises, name)
    assert check(None) == check(lambda *_: ...) == AnswerVerdict("not answered yet")
    assert check(CODE[name]).status == "right"
