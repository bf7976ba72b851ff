"""Lesson 3: by hand, against the step on θ, and Theorem 4.3 on random spectra; its figures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.regularizer_paths import (
    joint_step,
    joint_steps,
    largest_safe_step,
    regularizer_path,
    value_plane,
    value_plane_figure,
)
from condnum.lessons.regularizers import (
    CURVE_POINTS,
    STEP_RANGE,
    bent_spectrum,
    counter_example,
    kappas,
    next_spectrum,
    regularizer_step,
)
from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient
from condnum.theory.spectra import hessian
from condnum.theory.steps import ill_step, ill_step_bound, well_step, well_step_bound

BOTH = pytest.mark.parametrize("regularizer", ["well", "ill"])


def by_name(figure, start):
    (trace,) = [trace for trace in figure.data if trace.name.startswith(start)]
    return trace


def test_steps_by_hand():
    run = regularizer_step(regularizer="well", step=0.4, kappa=4.0, dimension=2, top=4.0)
    assert run.unit == pytest.approx(0.25)  # 1/(2 (1 − 1/2) 4)
    np.testing.assert_allclose(run.gradient, [2.0, -0.5])
    np.testing.assert_allclose(run.next_sigma, [1.44, 1.21])
    assert (run.value, run.kappa, run.keeps_promise) == (3.75, 4.0, True)
    run = regularizer_step(regularizer="ill", step=0.25, kappa=3.0, dimension=2, top=3.0)
    assert run.unit == pytest.approx(4.0)  # ρ²/(2 (1 − 1/2) 1) with ρ = 2
    np.testing.assert_allclose(run.next_sigma, [9.1875, 0.5625])
    assert (run.corrected, run.value) == (np.inf, pytest.approx(0.5))
    assert run.next_value == pytest.approx(r_ill(np.diag([9.1875, 0.5625])))


@BOTH
def test_the_spectrum_is_that_of_a_step_on_theta_and_lies_on_the_curve(regularizer):
    run = regularizer_step(regularizer=regularizer, step=0.3, kappa=7.0, dimension=5, bend=0.7, top=2.0)
    K, move = np.diag(run.sigma), {"well": well_step, "ill": ill_step}[regularizer]
    moved = hessian(move(np.eye(5), K, run.eta), K)
    np.testing.assert_allclose(np.linalg.eigvalsh(moved), np.sort(run.next_sigma), rtol=1e-12)
    for index in range(0, CURVE_POINTS, 37):
        after = next_spectrum(regularizer, run.sigma, run.curve_steps[index] * run.unit)
        assert run.curve[index] == pytest.approx(kappas(after), rel=1e-9)


def test_the_counter_examples_to_both_printed_bounds():
    run = regularizer_step(**counter_example("well"))
    np.testing.assert_array_equal(run.sigma, [4.0, 1.0])
    assert (run.eta, run.printed, run.corrected) == (0.25, 0.5, 0.125)  # exact in binary
    assert (run.next_kappa, run.next_rank, run.keeps_promise) == (np.inf, 1, False)
    run = regularizer_step(**counter_example("ill"))
    sigma = np.array([2.15920825, 1.9376387, 1.32386916])
    np.testing.assert_allclose(run.sigma, sigma, rtol=1e-14)
    assert run.printed == pytest.approx(ill_step_bound(sigma, source="printed"), rel=1e-12)
    assert run.eta == pytest.approx(0.8063 * run.printed, rel=1e-12)
    assert run.eta > run.corrected
    assert (round(run.kappa, 3), round(run.next_kappa, 3), run.keeps_promise) == (1.631, 1.562, False)


SPECTRA = {
    "kappa": st.floats(1.2, 1e3),
    "dimension": st.integers(2, 12),
    "bend": st.floats(0.3, 3.0),
    "top": st.floats(0.05, 20.0),
}


@given(st.sampled_from(["well", "ill"]), st.fixed_dictionaries(SPECTRA), st.floats(0.3, 5))
@settings(deadline=None)
def test_every_step_below_the_corrected_bound_keeps_its_promise_at_any_scale(regularizer, spectrum, factor):
    run = regularizer_step(regularizer=regularizer, **spectrum)
    below = run.curve_steps * run.unit < run.corrected * (1 - 1e-9)
    moved = np.abs(run.curve / run.kappa - 1) > 1e-12  # a step may be lost in round-off
    assert run.promised[below & moved].all()
    scaled = regularizer_step(regularizer=regularizer, **(spectrum | {"top": spectrum["top"] * factor}))
    assert scaled.corrected / scaled.unit == pytest.approx(run.corrected / run.unit, rel=1e-9)
    if regularizer == "well":  # the printed bound of ill depends on the scale, and may turn negative
        assert scaled.printed / scaled.unit == pytest.approx(run.printed / run.unit, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["well", "ill"]), st.floats(0.02, 0.95), st.floats(1.5, 200.0),
    st.integers(2, 8), st.floats(0.4, 2.5),
)  # fmt: skip
def test_no_step_within_the_bound_goes_the_wrong_way(regularizer, share, kappa, dimension, bend):
    path = regularizer_path(
        regularizer=regularizer, share=share, kappa=kappa, dimension=dimension, bend=bend, steps=40
    )
    assert not path.wrong_way.any()


def test_where_paths_end():
    path = regularizer_path(share=0.2, steps=1000)
    assert path.end == "repeated"  # monotone is not convergent
    assert path.kappa[-1] > 6
    assert path.sigma[-1, 0] == pytest.approx(path.sigma[-1, 1], rel=1e-12)
    constant = regularizer_path(share=0.2, sizes="constant", steps=1000)
    assert constant.wrong_way.any()
    assert constant.kappa[-1] < 1.2
    ill = regularizer_path(regularizer="ill", share=0.1)
    assert (ill.end, ill.kappa[-1] < 1e12) == ("round_off", True)
    assert len(ill.eta) == len(ill.kappa) - 1 < 100


@BOTH
def test_a_path_is_made_of_safe_steps(regularizer):
    path = regularizer_path(regularizer=regularizer, sizes="constant", share=0.3, steps=7)
    assert len(set(path.eta.tolist())) == 1
    for before, after, eta in zip(path.sigma, path.sigma[1:], path.eta, strict=False):
        np.testing.assert_array_equal(after, np.sort(next_spectrum(regularizer, before, eta))[::-1])
    function = {"well": r_well, "ill": r_ill}[regularizer]
    np.testing.assert_allclose(path.value, [function(np.diag(s)) for s in path.sigma], rtol=1e-9)
    sigma = bent_spectrum(kappa=9.0, dimension=5)
    safe = largest_safe_step(regularizer, sigma)
    if regularizer == "well":
        assert safe == well_step_bound(sigma)
    else:
        assert safe < ill_step_bound(sigma) / 2
        assert next_spectrum("ill", sigma, safe)[-1] == pytest.approx(0, abs=1e-25)


def test_r_ill_does_not_know_kappa():
    curves = value_plane()
    figure = value_plane_figure(curves)
    for trace, (kappa, value) in zip(figure.data, curves.values(), strict=False):
        np.testing.assert_array_equal(trace.x, kappa)
        np.testing.assert_array_equal(trace.y, value)
    kappa, value = curves["vanishing"]
    assert kappa[-1] > 9e5
    np.testing.assert_allclose(value[-1], 4.8, rtol=1e-9)  # 1/((1 + 1/4)/6)
    kappa, value = curves["scaled"]
    np.testing.assert_allclose(kappa, 10, rtol=1e-12)
    assert value[-1] == pytest.approx(value[0] / 1e6)
    kappa, value = curves["descended"]
    assert (np.diff(kappa) > 0).all()
    assert (np.diff(value) < 0).all()


def test_a_joint_step_is_line_6_of_algorithm_1():
    generator = np.random.default_rng(0)
    A, B, theta = (generator.normal(size=(5, 5)) for _ in range(3))
    K_P, K_H = A @ A.T, B @ B.T
    well, ill = r_well_gradient(hessian(theta, K_P)).gradient, r_ill_gradient(hessian(theta, K_H)).gradient
    wanted = theta - 2 * theta @ (0.01 * well + 0.2 * ill)
    np.testing.assert_allclose(joint_step(theta, K_P, K_H, 0.01, 0.2), wanted, rtol=1e-10, atol=1e-12)


def test_within_both_bounds_both_promises_break_and_alone_they_hold():
    run = joint_steps(angle=15.0)
    assert run.pretrain_rises.any()
    assert run.harmful_falls.any()
    assert not (run.pretrain_rises & ~run.within).any()
    for K, kappa in ((run.K_P, run.kappa_pretrain), (run.K_H, run.kappa_harmful)):
        np.testing.assert_allclose(kappas(np.linalg.eigvalsh(hessian(run.theta, K))), kappa[-1])
    assert (np.diff(run.ill_alone) > 0).all()
    assert run.well_alone[-1] < run.well_alone[0]
    assert run.well_alone[0] == run.kappa_pretrain[0] == pytest.approx(20)
    assert run.ill_alone[0] == run.kappa_harmful[0] == pytest.approx(5)
    first = np.linalg.eigvalsh(run.K_P)[::-1].copy()
    assert run.eta_pretrain == pytest.approx(0.5 * well_step_bound(first))


@given(st.floats(0, 90), st.floats(0.05, 0.9), st.floats(0.01, 0.5))
@settings(max_examples=20, deadline=None)
def test_the_ceiling_holds_along_every_run(angle, share_well, share_ill):
    run = joint_steps(angle=angle, share_well=share_well, share_ill=share_ill, steps=15)
    tame = np.maximum(run.kappa_pretrain, run.kappa_harmful) < 1e6  # beyond, κ itself carries round-off
    assert (run.ratio_harmful / run.ratio_pretrain)[tame].max() <= run.rir_max * (1 + 1e-6)


def test_a_run_that_diverges_ends_before():
    run = joint_steps(angle=0.0, share_well=0.9, share_ill=0.95, steps=200)
    assert len(run.within) < 200
    assert np.isfinite(run.kappa_pretrain).all()
    assert np.isfinite(run.theta).all()


def test_a_step_shows_spectra_gradient_and_curve():
    run = regularizer_step(step=0.3)
    figure = run.figure()
    np.testing.assert_array_equal(by_name(figure, "before").y, run.sigma)
    np.testing.assert_allclose(by_name(figure, "after").y, run.next_sigma)
    np.testing.assert_array_equal(by_name(figure, "g<sub>i</sub>").customdata, run.gradient)
    good, bad = by_name(figure, "κ falls"), by_name(figure, "κ goes the wrong way")
    together = np.where(np.isnan(good.y), bad.y, good.y)
    finite = run.curve < 1e3
    np.testing.assert_allclose(together[finite], run.curve[finite])
    assert np.isnan(good.y[run.curve_steps == 1]).all()  # annihilated
    assert by_name(figure, "printed bound").x[0] == pytest.approx(run.printed / run.unit)
    assert by_name(figure, "corrected bound").x[0] == pytest.approx(run.corrected / run.unit)
    assert list(by_name(figure, "this step").y) == [run.next_kappa]


def test_what_has_no_place_is_not_drawn_or_lies_on_the_edge():
    run = regularizer_step(regularizer="ill", kappa=3.0, dimension=2, top=100.0)
    assert run.printed < 0
    figure = run.figure()
    assert np.isnan(by_name(figure, "printed bound").x).all()
    assert np.isnan(by_name(figure, "corrected bound").x).all()  # infinite: every step is shaded
    assert max(by_name(figure, "below the corrected").x) == STEP_RANGE[1]
    figure = regularizer_step(**counter_example("well")).figure()
    after = by_name(figure, "after")
    assert np.log10(after.y[0]) > figure.layout.yaxis.range[0]
    assert list(after.customdata) == [0.0, 1.5625]
    assert by_name(figure, "this step").marker.symbol == "triangle-up"  # κ = ∞ lies above the panel
    assert figure.layout.title.text.endswith("κ = 4 → ∞")
    for scale in ("decades", "near"):
        run = regularizer_step(**counter_example("ill"), scale=scale)
        low, high = run.figure().layout.yaxis2.range
        assert low < (np.log10(run.next_kappa) if scale == "decades" else run.next_kappa) < high
