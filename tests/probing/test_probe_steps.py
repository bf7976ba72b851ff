"""Steps of the actual probe: against the curve, by hand, on structured input, and what is out of reach."""

import math

import numpy as np
import pytest
from covariances import STRUCTURES, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from condnum import Task, linear_probe
from condnum.errors import InvalidInputError
from condnum.probing.probe_steps import probe_steps
from condnum.theory.erasure import erasure


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(STRUCTURES), st.integers(2, 8))
def test_exact_steps_are_those_of_the_curve(seed, kind, dimension):
    rng = np.random.default_rng(seed)
    X = structured_rows(rng, kind, dimension)
    y = rng.normal(size=len(X))
    K, b = X.T @ X, X.T @ y
    assume(np.linalg.norm(b) > 1e-8 * np.linalg.norm(X))
    theta = rng.normal(size=(dimension, dimension))
    task = Task.of_covariance(K, b) if seed % 2 else Task.of(X, y)
    found = probe_steps(theta, task, budget=300)
    curve = linear_probe(theta, task, steps=300, record=range(301)).excess_loss
    assume(found.fit > 1 - 1e-9)  # both numerical ranks are those of the raw inputs
    last = 300 if math.isnan(found.exact) else int(found.exact) - 1  # the goal lies behind this step
    assert curve[last] > 0.01 * (1 - 1e-6)
    assert math.isnan(found.exact) or curve[last + 1] <= 0.01 * (1 + 1e-6)


#: Two directions of one length, and the target on the first.
BOTH = Task.of_covariance(np.eye(2), [1.0, 0.0])


def test_fixed_steps_by_hand():
    # σ = (1, 1/4), all of the target on the second: (3/4)^{2t} ≤ 0.01 first at t = 9.
    assert probe_steps(np.eye(2), Task.of_covariance(np.diag([4.0, 1.0]), [0.0, 1.0])).fixed == 9
    # 10⁹ steps are counted without taking them: (1 − 10⁻⁹)^{2t} ≤ 0.01.
    far = probe_steps(None, Task.of_covariance(np.diag([1e9, 1.0]), [0.0, 1.0]), budget=10)
    assert far.fixed == math.ceil(math.log(0.01) / (2 * math.log1p(-1e-9)))
    assert far.exact == 1  # one eigenvector: one step
    nothing = probe_steps(np.zeros((2, 2)), BOTH)
    assert (nothing.fixed, nothing.fit, math.isnan(nothing.condition)) == (math.inf, 0, True)


@pytest.mark.parametrize("strength", [0.9, 0.99, 1.0])
def test_along_the_path_of_erasure(strength):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 5))
    y = X @ np.ones(5) + rng.normal(size=100)
    theta, task = erasure(X, y, strength=strength).theta, Task.of(X, y).centered()  # as the eraser's probes
    found, raw = probe_steps(theta, task), probe_steps(None, task)
    if strength == 1:
        assert (found.fixed, found.exact, round(found.fit, 12)) == (math.inf, math.inf, 0)
    else:  # the target's directions are s times as long: 1/s² times as many steps
        assert found.fit == pytest.approx(1)
        assert found.fixed > raw.fixed / (1 - strength) ** 2 / 4


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((np.eye(3), BOTH), {}, r"theta has shape \(3, 3\), but the task has 2 inputs"),
        ((np.eye(2), Task.of_covariance(np.eye(2), [0.0, 0.0])), {}, r"\(XᵀY is zero\)"),
        ((np.eye(2), np.eye(2)), {}, r"a Task with targets, got ndarray; give Task.of\(X, y\)"),
        ((np.eye(2), BOTH), {"epsilon": 1}, "epsilon must lie between 0 and 1"),
    ],
)
def test_refused(arguments, options, match):
    with pytest.raises(InvalidInputError, match=match):
        probe_steps(*arguments, **options)


def test_more_steps_than_are_counted_are_told_from_a_loss_out_of_reach():
    task = Task.of_covariance(np.eye(2), [1.0, 1.0])
    slow, singular = (probe_steps(np.diag([1.0, small]), task) for small in (1e-10, 0.0))
    assert (slow.fixed, slow.fit) == (np.inf, pytest.approx(1))
    assert str(slow).startswith("takes more than 2⁵⁰ steps")
    assert (singular.fixed, singular.fit) == (np.inf, pytest.approx(0.5))
    assert str(singular).startswith("never gets there")
