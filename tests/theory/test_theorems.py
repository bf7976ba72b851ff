"""Theorems 4.1, 4.3 and A.1 as properties of drawn spectra.

Spectra are drawn as a smallest value and ratios of neighbours of at least 1.01, steps as a
fraction of at least 0.01 of the bound: κ then moves by at least 1e-5 of itself, nine orders above
round-off, so the strict inequalities are asserted without a tolerance.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from condnum.theory.regularizers import r_ill, r_ill_gradient, r_well, r_well_gradient
from condnum.theory.steps import (
    ill_spectrum_step,
    ill_step,
    ill_step_bound,
    well_spectrum_step,
    well_step,
    well_step_bound,
)

FEW = settings(max_examples=60, deadline=None, derandomize=True)
MANY = settings(max_examples=200, deadline=None, derandomize=True)
RATIO = st.floats(1.01, 4.0)
FRACTION = st.floats(0.01, 0.99)
SEED = st.integers(0, 2**32 - 1)


@st.composite
def spectra(draw, minimum=2):
    smallest = draw(st.floats(0.05, 20.0))
    ratios = draw(st.lists(RATIO, min_size=minimum - 1, max_size=5))
    return smallest * np.cumprod([1.0, *ratios])[::-1]


def orthogonal(rng, size):
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def matrix_with(sigma, seed, extra=0):
    """A (k + extra, k) matrix with these singular values."""
    rng = np.random.default_rng(seed)
    k = len(sigma)
    return orthogonal(rng, k + extra)[:, :k] @ np.diag(sigma) @ orthogonal(rng, k).T


def extremes(matrix, rank):
    sigma = np.linalg.svd(matrix, compute_uv=False)[:rank]
    return sigma[0], sigma[-1]


@MANY
@given(sigma=spectra(), extra=st.integers(0, 3), fraction=FRACTION)
def test_corrected_well_bound_lowers_kappa(sigma, extra, fraction):
    dimension = len(sigma) + extra
    eta = fraction * well_step_bound(sigma, dimension=dimension)
    after = well_spectrum_step(sigma, eta, dimension)
    assert after.min() > 0
    assert after.max() / after.min() < sigma[0] / sigma[-1]


@MANY
@given(sigma=spectra(), fraction=FRACTION)
def test_corrected_ill_bound_raises_kappa(sigma, fraction):
    bound = ill_step_bound(sigma)
    # k = 2: any step does; take up to ten times the step that annihilates σ_k.
    scale = bound if np.isfinite(bound) else 10 / (r_ill(np.diag(sigma)) ** 2 * sigma[-1])
    after = ill_spectrum_step(sigma, fraction * scale)
    # Written without a division, for after.min() may be 0.
    assert after.max() > sigma[0] / sigma[-1] * after.min()


@MANY
@given(sigma=spectra(minimum=3))
def test_the_corrected_ill_bound_is_where_the_smallest_value_stops_falling_behind(sigma):
    # At the bound itself |factor of σ_k| equals that of any other value of the size of σ_k.
    k, rho = len(sigma), 1 / r_ill(np.diag(sigma))
    eta = ill_step_bound(sigma)
    grown = sigma[-1] * (1 + 2 * eta * sigma[-1] / (k * rho**2)) ** 2
    assert ill_spectrum_step(sigma, eta)[-1] == pytest.approx(grown, rel=1e-9)


def test_the_printed_bounds_fail_and_the_corrected_ones_do_not_on_one_draw():
    rng = np.random.default_rng(0)
    failures = {"printed": 0, "corrected": 0}
    negative = 0
    for _ in range(1000):
        sigma = np.sort(rng.uniform(0.1, 3.0, size=rng.integers(2, 7)))[::-1].copy()
        kappa, fraction = sigma[0] / sigma[-1], rng.uniform(0.01, 1)
        negative += ill_step_bound(sigma, source="printed") < 0
        for source in failures:
            after = well_spectrum_step(sigma, fraction * well_step_bound(sigma, source=source))
            failures[source] += after.max() >= kappa * after.min()
    assert failures["corrected"] == 0
    assert failures["printed"] > 50
    assert negative > 50


@FEW
@given(sigma=spectra(), seed=SEED, fraction=FRACTION, extra=st.integers(0, 2))
def test_theorem_43_on_matrices(sigma, seed, fraction, extra):
    # θ with H = θᵀKθ of this spectrum, K of rank k in dimension k + extra: singular when extra > 0.
    rng = np.random.default_rng(seed)
    k = len(sigma)
    D = k + extra
    root = np.diag(np.r_[rng.uniform(0.5, 2, size=k), np.zeros(extra)])
    W = orthogonal(rng, D)
    K = W @ root**2 @ W.T
    V = orthogonal(rng, D)
    inverse = np.diag(np.r_[1 / np.diag(root)[:k], np.ones(extra)])
    theta = W @ inverse @ np.diag(np.r_[np.sqrt(sigma), np.ones(extra)]) @ V.T

    def kappa(t):
        top, low = extremes(t.T @ K @ t, k)
        return top / low

    before = sigma[0] / sigma[-1]
    assert kappa(theta) == pytest.approx(before, rel=1e-8)
    eta = fraction * well_step_bound(sigma, dimension=D)
    assert kappa(well_step(theta, K, eta)) < before
    bound = ill_step_bound(sigma)
    eta = fraction * (bound if np.isfinite(bound) else 10 / (r_ill(np.diag(sigma)) ** 2 * sigma[-1]))
    top, low = extremes(_symmetric(ill_step(theta, K, eta, rank=k), K), k)
    assert top > before * low


def _symmetric(theta, K):
    H = theta.T @ K @ theta
    return (H + H.T) / 2


@MANY
@given(sigma=spectra(), seed=SEED, extra=st.integers(0, 2))
def test_theorem_41_2_and_a1_2_upper_bounds(sigma, seed, extra):
    S = matrix_with(sigma, seed, extra)
    log_kappa = np.log(sigma[0] / sigma[-1])
    assert r_ill(S) >= 0
    assert r_well(S) >= 0
    # Two spectra of close values make both sides equal to second order: 1e-9 for round-off.
    assert 1 / log_kappa <= sigma[0] ** 2 * r_ill(S) * (1 + 1e-9)
    assert log_kappa <= len(sigma) * r_well(S) / sigma[-1] ** 2 * (1 + 1e-9)


@MANY
@given(sigma=spectra(), seed=SEED, fraction=FRACTION, extra=st.integers(0, 2))
def test_theorem_41_4_monotonic_increase(sigma, seed, fraction, extra):
    S = matrix_with(sigma, seed, extra)
    k = len(sigma)
    result = r_ill_gradient(S)
    eta = fraction * k / (k - 1) / result.value**2
    top, low = extremes(S - eta * result.gradient, k)
    assert top / low > sigma[0] / sigma[-1]


@MANY
@given(sigma=spectra(), seed=SEED, fraction=FRACTION, extra=st.integers(0, 2))
def test_theorem_a1_4_monotonic_decrease(sigma, seed, fraction, extra):
    S = matrix_with(sigma, seed, extra)
    p, kappa = len(sigma), sigma[0] / sigma[-1]
    result = r_well_gradient(S)
    eta = fraction * (kappa - 1) / ((1 - 1 / p) * kappa + 1 / p)
    top, low = extremes(S - eta * result.gradient, p)
    assert top / low < kappa


@FEW
@given(sigma=spectra(), scale=st.floats(0.01, 100))
def test_the_regularizers_are_not_invariant_to_scale(sigma, scale):
    S = np.diag(sigma)
    assume(abs(scale - 1) > 1e-3)
    assert r_well(scale * S) == pytest.approx(scale**2 * r_well(S), rel=1e-10)
    assert r_ill(scale * S) == pytest.approx(r_ill(S) / scale**2, rel=1e-10)


@FEW
@given(sigma=spectra(), seed=SEED)
def test_unitary_invariance(sigma, seed):
    S = matrix_with(sigma, seed)
    # The differences σ₁² − σ_i² carry round-off relative to σ₁².
    assert r_well(S) == pytest.approx(r_well(np.diag(sigma)), rel=1e-9, abs=1e-13 * sigma[0] ** 2)
    assert 1 / r_ill(S) == pytest.approx(1 / r_ill(np.diag(sigma)), rel=1e-9, abs=1e-13 * sigma[0] ** 2)
