"""Lessons 1–4: formulas by hand, theorems on random cases, and figures that hold what was computed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

from condnum.lessons.condition_number import (
    kantorovich_bound,
    norm_bound,
    spectrum_descent,
    zigzag,
)
from condnum.lessons.limit import PATH_STEPS, limit_demo
from condnum.lessons.regularizers import (
    CURVE_POINTS,
    kappas,
    next_spectrum,
    regularizer_step,
)
from condnum.lessons.two_tasks import NULL_LABELS, attacks, two_tasks
from condnum.probing import linear_probe
from condnum.theory.kappa import condition_number, hessian, relative_immunization_ratio
from condnum.theory.limits import rir_limit
from condnum.theory.regularizers import ill_step, r_ill_gradient, r_well_gradient, well_step
from condnum.theory.task import Task

#: Each factor (1 − ασ_i) is rounded; products of orthogonal matrices of size ≤ 16: far above their round-off.
ROUND_OFF = 1e-11
#: κ up to 1e4 · 1e4 from a Cholesky-free SVD in float64: relative error below 1e-9.
CLOSE = 1e-8
BOTH = pytest.mark.parametrize("regularizer", ["well", "ill"])
NULLS = pytest.mark.parametrize("null", NULL_LABELS)


# Lesson 1.


def test_bounds_and_both_rules_by_hand():
    np.testing.assert_allclose(norm_bound(4.0, np.array([0, 1, 3])), [1, 0.75, 0.421875])
    np.testing.assert_allclose(kantorovich_bound(3.0, np.array([0, 1, 3])), [1, 1 / 4, 1 / 64])
    run = zigzag(kappa=3.0, angle=45.0, steps=2)
    start = np.array([1, 3]) / np.sqrt(10)  # He₀ ∝ (1, 1)
    np.testing.assert_allclose(run.path, [start, start * [-0.5, 0.5], start * 0.25], rtol=1e-14)
    run = zigzag(kappa=4.0, angle=45.0, rule="constant", steps=3)
    # α = 1/σ₁ removes the steep part at once; the flat one shrinks by 1 − 1/κ.
    np.testing.assert_allclose(run.path[1:, 0], 0)
    np.testing.assert_allclose(run.path[:, 1], (4 / np.sqrt(17)) * 0.75 ** np.arange(4), rtol=1e-14)


@given(st.floats(1.0, 1000.0), st.floats(0.0, 90.0))
def test_contraction_is_the_closed_form_and_within_both_bounds(kappa, angle):
    run = zigzag(kappa=kappa, angle=angle, steps=40)
    c, s = np.cos(np.deg2rad(angle)) ** 2, np.sin(np.deg2rad(angle)) ** 2
    # (κ−1)²/((κ + tan²φ)(κ + cot²φ)), multiplied out so that 0° and 90° need no limit.
    rate = (kappa - 1) ** 2 * c * s / ((kappa * c + s) * (kappa * s + c))
    np.testing.assert_allclose(run.energy_ratio[:7], rate ** np.arange(7), rtol=1e-6, atol=1e-12)
    assert (run.energy_ratio <= run.energy_bound + ROUND_OFF).all()
    for rule in ("exact", "constant"):
        other = zigzag(kappa=kappa, angle=angle, rule=rule)
        assert (other.norm_ratio <= other.norm_bound + ROUND_OFF).all()


def test_the_plane_is_a_case_of_the_probe_and_the_worst_start_attains_the_bound():
    run, K = zigzag(kappa=7.0, angle=20.0, steps=12), np.diag([1.0, 1 / 7.0])
    curve = linear_probe(None, Task.of_covariance(K, K @ -run.path[0]), steps=12)
    np.testing.assert_allclose(run.norm_ratio, curve.norm_ratio, rtol=1e-9)
    worst = spectrum_descent(dimension=10, kappa=20.0, start="worst", steps=50)
    np.testing.assert_allclose(worst.curve.excess_loss, worst.energy_bound, rtol=1e-9)


# Lesson 3.


@BOTH
def test_the_spectrum_is_that_of_a_step_on_theta_and_lies_on_the_curve(regularizer):
    run = regularizer_step(regularizer=regularizer, step=0.3, kappa=7.0, dimension=5, bend=0.7, top=2.0)
    K, move = np.diag(run.sigma), {"well": well_step, "ill": ill_step}[regularizer]
    assert run.promised[run.curve_steps * run.unit < run.corrected].all()
    moved = hessian(move(np.eye(5), K, run.eta), K)
    np.testing.assert_allclose(np.linalg.eigvalsh(moved), np.sort(run.next_sigma), rtol=1e-12)
    for index in range(0, CURVE_POINTS, 37):
        after = next_spectrum(run.sigma, run.curve_steps[index] * run.unit, regularizer)
        assert run.curve[index] == pytest.approx(kappas(after), rel=1e-9)


# Lesson 4.


def ratios(theta, K_P, K_H):
    result = relative_immunization_ratio(theta, K_P, K_H)
    return np.array([result.benign_ratio, result.harmful_ratio])


@NULLS
@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0])
def test_two_tasks_are_as_asked_for(null, angle):
    K_P, K_H = two_tasks(kappa_benign=50.0, kappa_harmful=7.0, angle=angle, dimension=5, null=null)
    P, H = condition_number(K_P), condition_number(K_H)
    np.testing.assert_allclose([P.value, H.value], [50.0, 7.0], rtol=1e-12)
    assert P.rank == 5 - (null in ("both", "benign"))
    assert H.rank == 5 - (null in ("both", "harmful"))
    first = np.abs(np.linalg.eigh(two_tasks(angle=angle, dimension=5)[1])[1][:, -1])
    assert first[[0, -1]] == pytest.approx([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))], abs=1e-12)


def test_the_path_is_algorithm_1_by_hand():
    """θ ← θ − η(λ_P·2θ∇R_well + λ_H·2θ∇R_ill), λ's balanced at θ = I."""
    K_P, K_H = two_tasks(angle=45.0)
    tasks = [torch.from_numpy(K) for K in (K_P, K_H)]
    theta = torch.eye(4, dtype=torch.float64)
    demo = limit_demo(angle=45.0, ratio=2.0, learning_rate=0.1, step=3)
    lambdas = None
    for t in range(4):
        np.testing.assert_allclose(demo.path[t], ratios(theta, K_P, K_H), rtol=1e-9)
        H_P, H_H = (theta.mT @ K @ theta for K in tasks)
        parts = [2 * theta @ found.gradient for found in (r_well_gradient(H_P), r_ill_gradient(H_H))]
        lambdas = lambdas or [1 / float(parts[0].norm()), 2 / float(parts[1].norm())]
        theta = theta - 0.1 * sum(w * part for w, part in zip(lambdas, parts, strict=True))
    assert demo.path.shape == (PATH_STEPS + 1, 2)
    with pytest.raises(ValueError, match="read-only"):  # it is remembered
        demo.path[0, 0] = 5
    lost = limit_demo(kappa_benign=1.0, learning_rate=1.0)
    assert lost.stop_reason == "diverged"
    assert lost.shown == len(lost.path) - 1 < PATH_STEPS


def test_four_attackers():
    runs = attacks(angle=30.0)
    raw, best, same, whitened = runs
    limit = rir_limit(*two_tasks(angle=30.0, dimension=16))
    kappa = limit.lambda_max / limit.lambda_min
    assert [run.kappa for run in runs] == pytest.approx([10.0, kappa, kappa, 1.0], rel=1e-10)
    np.testing.assert_allclose(same.spectrum[:-1], same.spectrum[0], rtol=1e-10)
    assert whitened.steps_to(1e-12) == 1
    assert same.steps_to(1e-6) < raw.steps_to(1e-6) < best.steps_to(1e-6)
    assert best.steps_to(1e-300) is None
