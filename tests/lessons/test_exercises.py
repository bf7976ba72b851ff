"""Lesson 6: right answers, wrong ones with their reason, and numbers typed on a page."""

import re

import numpy as np
import pytest

pytest.importorskip("ipywidgets", reason="the extra notebooks is not installed")

from condnum.lessons import exercises
from condnum.lessons.answers import AnswerBox, AnswerVerdict

I3 = np.eye(3)


def power(K, exponent):
    gamma, Q = np.linalg.eigh(K)
    return (Q * gamma**exponent) @ Q.T


def kappas(K_P, K_H):
    return np.linalg.cond(K_P) / np.linalg.cond(K_H)


def ceiling(K_P, K_H):
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
    "ceiling: no κ's": ("check_ceiling", lambda P, H: ceiling(P, H) / kappas(P, H), "is missing"),
    "ceiling: κ's inverted": ("check_ceiling", lambda P, H: ceiling(P, H) / kappas(P, H) ** 2, "is inverted"),
    "ceiling: twice": ("check_ceiling", lambda P, H: 2 * ceiling(P, H), "no θ attains"),
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
        value = ceiling(P, H)
        P[:] = H[:] = 0
        return value

    assert exercises.check_ceiling(destructive).status == "right"


#: A right answer to each exercise, on a page (as a student types it) or as code.
TYPED = {
    "check_kappa": {"kappa": "49"},
    "check_steps": {"steps": "346"},
    "check_conventions": {"H": "2 0 0; 0 1 0; 0 0 0"},
    "check_underestimate": {"theta_4": "1.1, 0; 0, 1", "K_4": "1 0.99; 0.99 1"},
    "check_harmful_step": {"eta": "6/25"},
    "check_ill_spectra": {"vanishing": "200, 150, 100", "exploding": "1 1/2 10^-7"},
    "check_aligned_pair": {
        "K_P": "100 0 0; 0 10 0; 0 0 1", "K_H": "3 0 0; 0 2 0; 0 0 1", "theta_7": ".1 0 0; 0 .316 0; 0 0 1",
    },
}  # fmt: skip
CODE = {
    "check_whitening": lambda H: power(H, -0.5),
    "check_ceiling": ceiling,
    "check_largest_step": lambda s1, s2: (s1 - s2) / (s1**2 + s2**2),
    "check_spent_budget": spend,
}


@pytest.mark.parametrize("name", TYPED)
def test_numbers_are_answered_on_a_page(name):
    check = getattr(exercises, name)
    box = AnswerBox(check, TYPED[name])
    box.button.click()
    assert "not answered yet" in box.verdict.value
    for answer, text in TYPED[name].items():
        box.fields[answer].value = text  # as at Enter
    assert "✔ right" in box.verdict.value
    box.button.click()
    assert "✔ right" in box.verdict.value


@pytest.mark.parametrize("name", CODE)
def test_code_is_answered_in_the_notebook(name):
    check = getattr(exercises, name)
    assert check(None) == check(lambda *_: ...) == AnswerVerdict("not answered yet")
    assert check(CODE[name]).status == "right"


def test_a_page_shows_the_box_and_a_notebook_the_verdict(monkeypatch):
    shown = AnswerBox.show(exercises.check_kappa, kappa=...)
    assert isinstance(shown, AnswerVerdict)
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    assert isinstance(AnswerBox.show(exercises.check_kappa, kappa=...), AnswerBox)
    assert AnswerBox.show(exercises.check_kappa, kappa=49).status == "right"
    assert "in the notebook" in AnswerBox.show(exercises.check_whitening, whiten=lambda H: ...).reason


@pytest.mark.parametrize("text", ["7**2", "1/0", "1 2; 3", "[1, 2]", "abs(2)"])
def test_nothing_but_numbers_is_read(text):
    box = AnswerBox(exercises.check_kappa, ["kappa"])
    box.fields["kappa"].value = text
    assert "✘ wrong" in box.verdict.value
    assert "does not read as a number" in box.verdict.value
