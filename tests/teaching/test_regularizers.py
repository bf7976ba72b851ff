"""One step of a regularizer: by hand, against the step on θ, and the theorem on random spectra."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.regularizers import (
    CURVE_POINTS,
    bent_spectrum,
    counter_example,
    kappas,
    next_spectrum,
    regularizer_step,
)
from condnum.theory.regularizers import r_ill, r_well
from condnum.theory.spectra import hessian
from condnum.theory.steps import ill_step, ill_step_bound, well_step, well_step_bound


def test_a_well_step_by_hand():
    run = regularizer_step(regularizer="well", step=0.4, kappa=4.0, dimension=2, top=4.0)
    assert run.unit == pytest.approx(0.25)  # 1/(2 (1 − 1/2) 4)
    np.testing.assert_allclose(run.gradient, [2.0, -0.5])
    np.testing.assert_allclose(run.next_sigma, [1.44, 1.21])
    assert (run.value, run.kappa) == (3.75, 4.0)
    assert run.next_kappa == pytest.approx(1.44 / 1.21)
    assert run.keeps_promise


def test_an_ill_step_by_hand():
    run = regularizer_step(regularizer="ill", step=0.25, kappa=3.0, dimension=2, top=3.0)
    assert run.unit == pytest.approx(4.0)  # ρ²/(2 (1 − 1/2) 1) with ρ = 2
    np.testing.assert_allclose(run.next_sigma, [9.1875, 0.5625])
    assert run.corrected == np.inf
    assert run.value == pytest.approx(0.5)
    assert run.next_value == pytest.approx(r_ill(np.diag([9.1875, 0.5625])))


@pytest.mark.parametrize(("regularizer", "matrix_step"), [("well", well_step), ("ill", ill_step)])
def test_the_spectrum_is_that_of_a_step_on_theta(regularizer, matrix_step):
    run = regularizer_step(regularizer=regularizer, step=0.3, kappa=7.0, dimension=5, bend=0.7, top=2.0)
    K = np.diag(run.sigma)
    moved = hessian(matrix_step(np.eye(5), K, run.eta), K)
    np.testing.assert_allclose(np.linalg.eigvalsh(moved), np.sort(run.next_sigma), rtol=1e-12)


@pytest.mark.parametrize("regularizer", ["well", "ill"])
def test_the_curve_is_kappa_after_each_step(regularizer):
    run = regularizer_step(regularizer=regularizer, kappa=30.0, dimension=6, bend=2.0, top=0.3)
    for index in range(0, CURVE_POINTS, 37):
        spectrum = next_spectrum(regularizer, run.sigma, run.curve_steps[index] * run.unit)
        assert run.curve[index] == pytest.approx(kappas(spectrum), rel=1e-9)


def test_the_counter_example_to_printed_bound_1():
    run = regularizer_step(**counter_example("well"))
    np.testing.assert_array_equal(run.sigma, [4.0, 1.0])
    assert (run.eta, run.printed, run.corrected) == (0.25, 0.5, 0.125)  # exact in binary
    assert run.next_kappa == np.inf
    assert run.next_rank == 1
    assert not run.keeps_promise


def test_the_counter_example_to_printed_bound_2():
    run = regularizer_step(**counter_example("ill"))
    sigma = np.array([2.15920825, 1.9376387, 1.32386916])
    np.testing.assert_allclose(run.sigma, sigma, rtol=1e-14)
    assert run.printed == pytest.approx(ill_step_bound(sigma, source="printed"), rel=1e-12)
    assert run.eta == pytest.approx(0.8063 * run.printed, rel=1e-12)
    assert run.eta > run.corrected
    assert (round(run.kappa, 3), round(run.next_kappa, 3)) == (1.631, 1.562)
    assert not run.keeps_promise


SPECTRA = {
    "kappa": st.floats(1.2, 1e3),
    "dimension": st.integers(2, 12),
    "bend": st.floats(0.3, 3.0),
    "top": st.floats(0.05, 20.0),
}


@given(st.sampled_from(["well", "ill"]), st.fixed_dictionaries(SPECTRA))
def test_every_step_below_the_corrected_bound_keeps_its_promise(regularizer, spectrum):
    run = regularizer_step(regularizer=regularizer, **spectrum)
    below = run.curve_steps * run.unit < run.corrected * (1 - 1e-9)
    moved = np.abs(run.curve / run.kappa - 1) > 1e-12  # a step may be lost in round-off
    assert run.promised[below & moved].all()


@given(st.sampled_from(["well", "ill"]), st.fixed_dictionaries(SPECTRA), st.floats(0.1, 10))
def test_only_the_printed_bound_of_ill_depends_on_the_scale(regularizer, spectrum, factor):
    run = regularizer_step(regularizer=regularizer, **spectrum)
    scaled = regularizer_step(regularizer=regularizer, **(spectrum | {"top": spectrum["top"] * factor}))
    assert scaled.corrected / scaled.unit == pytest.approx(run.corrected / run.unit, rel=1e-9)
    if regularizer == "well":
        assert scaled.printed / scaled.unit == pytest.approx(run.printed / run.unit, rel=1e-9)


def test_the_printed_bound_of_ill_turns_negative_with_the_scale():
    small, large = (
        regularizer_step(regularizer="ill", kappa=3.0, dimension=3, top=top) for top in (1.0, 10.0)
    )
    assert small.printed > 0 > large.printed
    assert small.corrected / small.unit == pytest.approx(large.corrected / large.unit)


def test_spectra_fall_strictly_between_their_ends():
    for bend in (0.2, 1.0, 5.0):
        sigma = bent_spectrum(kappa=50.0, dimension=64, bend=bend, top=3.0)
        assert (np.diff(sigma) < 0).all()
        assert sigma[0] == 3
        assert sigma[-1] == pytest.approx(0.06)
        assert well_step_bound(sigma) > 0  # σ₁ counts as unique
        assert r_well(np.diag(sigma)) > 0


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"kappa": 1.0}, InvalidInputError, r"kappa must be above 1 and finite, got 1\.0"),
        ({"dimension": 1}, InvalidInputError, "dimension must be at least 2, got 1"),
        ({"bend": 0.0}, InvalidInputError, r"bend must be positive and finite, got 0\.0"),
        ({"top": np.nan}, InvalidInputError, "top must be positive and finite, got nan"),
        ({"step": -1.0}, InvalidInputError, r"step must be finite and non-negative, got -1\.0"),
        ({"regularizer": "wel"}, UnknownNameError, "did you mean 'well'"),
    ],
    ids=["kappa", "dimension", "bend", "top", "step", "regularizer"],
)
def test_bad_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        regularizer_step(**arguments)


def test_no_counter_example_of_that_name():
    with pytest.raises(UnknownNameError, match="did you mean 'ill'"):
        counter_example("il")
