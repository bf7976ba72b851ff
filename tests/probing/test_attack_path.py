"""Gains of gradient descent in closed form against a simulation, and what is proved about bounds on them."""

import numpy as np
import pytest
from covariances import STRUCTURES, covariance_of, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError
from condnum.probing.attack_path import attack_path, path_of_modes
from condnum.probing.quadratic import Modes
from condnum.theory.spectra import condition_number, hessian

KINDS = st.sampled_from(STRUCTURES)


@settings(max_examples=40)
@given(st.integers(0, 10**6), KINDS, st.integers(2, 8), st.integers(1, 30), st.floats(0.05, 1.0))
def test_gains_are_those_of_a_simulated_attacker(seed, kind, dimension, steps, rate):
    rng = np.random.default_rng(seed)
    X = structured_rows(rng, kind, dimension)
    Y, theta = rng.normal(size=(len(X), 2)), rng.normal(size=(dimension, dimension))
    Z = X @ theta
    top, best = np.linalg.norm(Z, 2) ** 2, np.linalg.norm(X @ np.linalg.lstsq(X, Y)[0]) ** 2
    assume(best > 1e-8 * np.linalg.norm(Y) ** 2)
    losses, W, lengths = [], np.zeros((dimension, 2)), []
    for _ in range(steps + 2):
        losses.append(np.linalg.norm(Z @ W - Y) ** 2)
        step = -rate / top * Z.T @ (Z @ W - Y)
        lengths.append(np.linalg.norm(step))
        W += step
    found = attack_path(theta, features=X, targets=Y, steps=[steps], rate=rate)
    assert found.gain[0] == pytest.approx((losses[0] - losses[steps]) / best, rel=1e-6)
    assert found.expected[0] == pytest.approx(2 * steps * lengths[0] ** 2 * top / rate / best, rel=1e-6)
    if lengths[-2] > 1e-6 * lengths[0]:  # else round-off
        ratio = lengths[-1] / lengths[-2]
        assert found.observed_contraction[0] == pytest.approx(ratio, rel=1e-4)


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.05, 1.0))
def test_what_is_proved_of_any_spectrum(seed, count, rate):
    rng = np.random.default_rng(seed)
    sigma = np.sort(np.r_[1.0, 10.0 ** -rng.uniform(0, 12, count)])[::-1]
    energy = rng.dirichlet(np.full(count + 1, 0.3))
    steps = np.array([0.0, 1, 2, 5, 30, 1e4])
    path = path_of_modes(Modes(sigma, energy), steps, rate)
    slack = 1 + 1e-9
    assert (path.gain <= path.expected * slack + 1e-15).all()
    assert (path.bound * slack >= path.limit).all()
    still = (1 - rate * sigma)[:, None] ** (2 * steps)
    ahead = path.bound - path.gain + 1e-15 * path.bound
    assert (ahead * slack >= (2 + path.condition) * (energy @ still) * (1 - 1e-9) - 1e-12).all()
    assert (path.observed_contraction <= path.contraction * slack).all()
    seen = path.observed_contraction[(energy * sigma) @ still > 1e-200]
    assert (seen[:-1] <= seen[1:] * slack).all()


def test_the_contraction_along_a_path_gives_no_bound():
    """The target lies in a direction of curvature 10⁻¹², which ten steps do not show."""
    modes = Modes(np.array([1.0, 0.5, 1e-12]), np.array([0.005, 0.01, 0.985]))
    path = path_of_modes(modes, np.array([0.0, 10.0]))
    assert path.observed_contraction[1] < 0.6
    assert (path.estimate < 0.06).all()
    assert path.limit == pytest.approx(1)
    assert (path.bound > 1).all()


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_a_contractive_path_costs_the_benign_task(seed, dimension):
    """κ(H_P) ≥ κ(K_P⁻¹K_H)(1 − q)/(1 + q), q the contraction of D_H at the best constant step."""
    rng = np.random.default_rng(seed)
    P, H = (covariance_of(rng, dimension, dimension, 10.0 ** rng.uniform(0, 3)) for _ in range(2))
    theta = rng.normal(size=(dimension, dimension))
    benign, harmful = (condition_number(hessian(theta, K), kind="matrix").value for K in (P, H))
    q = (harmful - 1) / (harmful + 1)
    pencil = np.linalg.eigvals(np.linalg.solve(P, H)).real
    assert benign >= pencil.max() / pencil.min() * (1 - q) / (1 + q) * (1 - 1e-6)


def test_an_invertible_extractor_keeps_what_all_steps_gain_and_an_erasing_one_does_not():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 4)), rng.normal(size=50)
    for small in (1e-3, 1e-8, 1e-11):  # the last two are below the square root of float64's precision
        slow = np.diag([1.0, small, 1.0, 1.0])
        assert attack_path(slow, features=X, targets=y, steps=[1]).limit == pytest.approx(1)
        solved = np.linalg.lstsq(X @ slow, y)[0]
        assert np.linalg.norm(X @ slow @ solved) == pytest.approx(
            np.linalg.norm(X @ np.linalg.lstsq(X, y)[0])
        )
    moment = X.T @ y
    lost = np.eye(4) - np.outer(moment, moment) / (moment @ moment)
    kept = [attack_path(lost.astype(t), features=X, targets=y, steps=[1]).limit for t in ("f8", "f4")]
    assert kept == pytest.approx([0, 1], abs=1e-6)  # rounding makes it invertible
    path = attack_path(np.diag([1.0, 1e-3, 1.0, 1.0]), features=X, targets=y, steps=[1, 1e12, np.inf])
    np.testing.assert_allclose(path.gain[1:], 1)
    erased = attack_path(np.zeros((4, 4)), features=X, targets=y, steps=[1])
    assert (erased.gain[0], erased.bound[0], erased.limit, erased.contraction) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": [1], "rate": 1.5}, r"rate must be in \(0, 1\], in units of 1/σ₁, got 1.5"),
        ({"steps": [-1]}, r"steps must be a list of numbers of at least 0, got \[-1\]"),
        ({"steps": []}, r"steps must be a list of numbers of at least 0, got \[\]"),
        ({"steps": [1], "moment": [0.0, 0.0]}, "the moment XᵀY is zero"),
    ],
    ids=["rate", "steps", "no steps", "nothing to learn"],
)
def test_bad_input(options, match):
    with pytest.raises(InvalidInputError, match=match):
        attack_path(None, np.eye(2), **{"moment": [1.0, 0.0], **options})
