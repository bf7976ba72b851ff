"""Odd input of every public function: finite results, or an error of condnum."""

import numpy as np
import pytest
from covariances import ODD_ARRAYS
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum import Task
from condnum.errors import CondnumError
from condnum.probing import AttackBudget, attack_panel, linear_probe, log_spaced_steps

NUMBERS = [-1, 0, 1, 2, 3.0, 2.5, np.int64(3), np.float32(0.25), True, None, "3", np.nan, np.inf, 1e-300, [1]]

RNG = np.random.default_rng(4)
X = RNG.normal(size=(12, 2))
Y = {"regression": X @ [1.0, 2.0] + RNG.normal(size=12), "classification": 1.0 * (X[:, 0] + X[:, 1] ** 2 > 0)}
K, MOMENT = X.T @ X, X.T @ Y["regression"]
CHEAP = AttackBudget(steps=50, dense_steps=10)
odd = st.sampled_from(sorted(ODD_ARRAYS))


def finite_or_refused(call):
    """Return what a call gives, or None where it is refused with a reason."""
    with np.errstate(all="ignore"):
        try:
            return call()
        except CondnumError:
            return None


@settings(max_examples=100)
@given(kinds=st.tuples(odd, odd, odd))
def test_linear_probe_takes_or_refuses_any_array(kinds):
    theta = ODD_ARRAYS[kinds[0]](np.eye(2))
    covariance = [ODD_ARRAYS[kind](a) for kind, a in zip(kinds[1:], (K, MOMENT), strict=True)]
    rows = [ODD_ARRAYS[kind](a) for kind, a in zip(kinds[1:], (X, Y["regression"]), strict=True)]
    for task in (lambda: Task.of_covariance(*covariance), lambda: Task.of(*rows)):
        curve = finite_or_refused(lambda task=task: linear_probe(theta, task(), steps=4))
        if curve is not None:
            assert all(np.isfinite(value).all() for value in vars(curve).values())


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_budgets_and_steps_are_numbers_or_refused(value):
    for field in ("steps", "dense_steps", "batch_size", "seed", "epsilons", "reported_epsilon"):
        budget = finite_or_refused(lambda field=field: AttackBudget(**{field: value}))
        assert budget is None or type(budget.steps) is type(budget.seed) is int
    for options in ({"steps": value}, {"steps": 5, "count": value}):
        found = finite_or_refused(lambda options=options: log_spaced_steps(**options))
        assert found is None or found[-1] == options["steps"]


@settings(max_examples=40)
@given(
    kind=st.sampled_from(sorted(Y)),
    kinds=st.tuples(odd, odd, odd, odd, odd),
    place=st.integers(0, 5),  # one odd array or, at 5, all of them: the first refusal hides the others
)
def test_the_panel_takes_or_refuses_any_array(kind, kinds, place):
    kinds = [name if i == place or place == 5 else "as it is" for i, name in enumerate(kinds)]
    given_arrays = (np.diag([1.0, 0.1]), X, Y[kind], X[:7], Y[kind][:7])
    theta, inputs, y, *held_out = (ODD_ARRAYS[n](a) for n, a in zip(kinds, given_arrays, strict=True))
    options = {"kind": kind, "held_out": held_out, "budget": CHEAP}
    names = ["gd", "cg", "closed_form"]
    report = finite_or_refused(lambda: attack_panel(inputs, y, theta, attackers=names, **options))
    if report is not None:
        assert not report.steps.empty
        numbers = report.extractors.select_dtypes("number")
        assert np.isfinite(numbers.to_numpy()).all(), numbers
        assert (numbers["start_loss"] > 0).all()
        assert np.isfinite(report.steps[["optimum", "start_loss", "last_step", "passes"]]).all(axis=None)
