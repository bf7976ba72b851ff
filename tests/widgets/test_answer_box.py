"""Answers typed on a page: formulas are computed, anything else is refused; the box shows the verdict."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipywidgets", reason="the extra notebooks is not installed")

from condnum.errors import InvalidInputError
from condnum.lessons import exercises
from condnum.lessons.answers import LARGEST, AnswerBox, formula

#: A right answer to each exercise, as a student types it.
RIGHT = {
    "check_kappa": {"kappa": "7**2"},
    "check_steps": {"steps": "ceil(log(1e-6) / (2 * log(99 / 101)))"},
    "check_conventions": {"H": "diag([2, 1, 0])"},
    "check_underestimate": {"theta_4": "diag([1.1, 1])", "K_4": "[[1, 0.99], [0.99, 1]]"},
    "check_harmful_step": {"eta": "0.24"},
    "check_ill_spectra": {"vanishing": "[200, 150, 100]", "exploding": "1, 1/2, 1e-7"},
    "check_aligned_pair": {
        "K_P": "diag([100, 10, 1])", "K_H": "diag([3, 2, 1])", "theta_7": "diag([0.1, 10**-0.5, 1])",
    },
    "check_whitening": {"whiten": "inv(sqrtm(H))"},
    "check_ceiling": {"ceiling": "p = eigvals(solve(K_P, K_H))\nmax(p) / min(p) * cond(K_P) / cond(K_H)"},
    "check_largest_step": {"eta_max": "(s1 - s2) / (s1**2 + s2**2)"},
    "check_spent_budget": {
        "spend": "R = inv(sqrtm(K_P))\nmu, Q = eigh(R @ K_H @ R)\n"
        "R @ Q @ diag(geomspace(1, sqrt(cond(K_P)), len(mu))) @ Q.T"
    },
}  # fmt: skip
GAPS = {
    "whiten": lambda H: ...,
    "ceiling": lambda K_P, K_H: ...,
    "spend": lambda K_P, K_H: ...,
    "eta_max": lambda s1, s2: ...,
}


def box_of(name):
    return AnswerBox(getattr(exercises, name), **{answer: GAPS.get(answer, ...) for answer in RIGHT[name]})


@pytest.mark.parametrize("name", RIGHT)
def test_every_exercise_can_be_answered_on_a_page(name):
    box = box_of(name)
    box.button.click()
    assert "not answered yet" in box.verdict.value
    for answer, text in RIGHT[name].items():
        box.fields[answer].value = text
    box.button.click()
    assert "✔ right" in box.verdict.value


def test_the_notebook_asks_for_these_answers():
    path = Path(__file__).parents[2] / "notebooks" / "6_exercises.ipynb"
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    shown = [re.match(r"AnswerBox\.show\(exercises\.(\w+), (.*)\)", cell) for cell in cells]
    asked = {m[1]: [pair.split("=")[0] for pair in m[2].split(", ")] for m in shown if m}
    assert asked == {name: list(answers) for name, answers in RIGHT.items()}


def test_a_page_shows_the_box_and_a_notebook_the_verdict(monkeypatch):
    shown = AnswerBox.show(exercises.check_kappa, kappa=...)
    assert isinstance(shown, exercises.Verdict)
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    assert isinstance(AnswerBox.show(exercises.check_kappa, kappa=...), AnswerBox)
    assert AnswerBox.show(exercises.check_kappa, kappa=49).status == "right"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').getcwd()", "is not part of a formula"),
        ("sqrt.__globals__", "is not part of a formula"),
        ("(lambda: 1)()", "is not part of a formula"),
        ("[x for x in [1]]", "is not part of a formula"),
        ("open('/etc/passwd')", "is not part of a formula"),
        ("'a' * 10**9", "is not part of a formula"),
        ("import os", "the last line is the answer"),
        ("import os\n1", "each line but the last"),
        ("a[0] = 1\na", "on the left of ="),
        ("eye(10**9)", f"a size lies between 1 and {LARGEST}"),
        ("a = [1, 2]\n" + "a = [a, a]\n" * 20 + "a", "rows and columns"),
        ("2 +", "this is no formula"),
        ("1" * 3000, "at most 2000 letters"),
        ("9**9**9**9", None),
    ],
)  # fmt: skip
def test_nothing_but_formulas_is_computed(text, said):
    if said is None:  # float powers: too large is infinite, at once
        assert np.isinf(formula(text))
        return
    with pytest.raises(InvalidInputError, match=re.escape(said)):
        formula(text)
    box = box_of("check_kappa")
    box.fields["kappa"].value = text
    box.button.click()
    assert "✘ wrong" in box.verdict.value
