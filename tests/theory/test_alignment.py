"""Proposition 3.2: where Eq. 10 is right, where it is wrong, and what holds instead."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError, RankError
from condnum.theory.alignment import alignment

K_2 = np.array([[2.0, 1.0], [1.0, 2.0]])  # eigenpairs 3: (1, 1)/√2 and 1: (1, −1)/√2
ROOT = 13**0.5


def draw(rows, columns, seed, samples=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples or 2 * rows, rows))
    return rng.normal(size=(rows, columns)), X.T @ X


@pytest.mark.parametrize("extra", [0, 1], ids=["square", "more-columns-than-rows"])
def test_by_hand(extra):
    # ΣUᵀKUΣ = [[8, 2], [2, 2]]
    result = alignment(np.pad(np.diag([2.0, 1.0]), ((0, 0), (0, extra))), K_2)
    zero = [0.0] * extra
    for found, expected in (
        (result.predicted, [8, 2, *zero]),
        (result.spectrum, [5 + ROOT, 5 - ROOT, *zero]),
        (result.overlaps, np.full((2, 2), 0.5)),
        (result.ostrowski_lower, [3, 1, *zero]),
        (result.ostrowski_upper, [12, 4, *zero]),
        (result.misalignment, (8 / 76) ** 0.5),
        (result.predicted_condition, 4),
        (result.true_condition, (5 + ROOT) / (5 - ROOT)),
        (result.condition_ratio, 4 * (5 - ROOT) / (5 + ROOT)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert result.rank == 2


def test_eq_10_is_exact_when_u_is_q():
    _, K = draw(6, 6, seed=1)
    gamma, Q = np.linalg.eigh(K)
    V, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))
    sigma = np.array([6.0, 5, 4, 3, 2, 1])
    result = alignment(Q @ np.diag(sigma) @ V.T, K)
    # U's columns go with σ in descending order, hence with γ in ascending order.
    np.testing.assert_allclose(result.predicted, sigma**2 * gamma, rtol=1e-12)
    np.testing.assert_allclose(result.spectrum, np.sort(sigma**2 * gamma)[::-1], rtol=1e-12)
    assert result.misalignment < 1e-14
    assert result.condition_ratio == pytest.approx(1)
    np.testing.assert_allclose(result.overlaps, np.eye(6)[::-1], atol=1e-12)


def test_at_the_identity_eq_10_is_not_single_valued():
    result = alignment(np.eye(2), K_2)
    assert result.u_unique is False
    # Two bases of the same θ = I, two predictions: 2, 2 in the standard one, 3, 1 in K's own.
    Q = np.linalg.eigh(K_2)[1]
    nudged = alignment(Q @ np.diag([1.0, 1 - 1e-9]) @ Q.T, K_2)
    np.testing.assert_allclose(sorted(nudged.predicted), [1, 3], rtol=1e-7)
    np.testing.assert_allclose(alignment(np.diag([1.0, 1 - 1e-9]), K_2).predicted, [2, 2], rtol=1e-7)
    # Repeated eigenvalues of K leave the overlaps open, and Eq. 10 none the worse.
    result = alignment(np.diag([2.0, 1.0]), np.eye(2))
    assert result.misalignment == pytest.approx(0, abs=1e-15)


# d from 1 to 6, D_hid from 1 to 7, ranks from 1: all shapes of the claims above.
@settings(max_examples=60)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 7),
    samples=st.integers(1, 10),
    exponent=st.floats(-3, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_holds_for_every_theta_and_covariance(rows, columns, samples, exponent, seed):
    theta, K = draw(rows, columns, seed, samples)
    theta *= 10**exponent
    result = alignment(theta, K)
    scale = np.linalg.norm(theta, 2) ** 2 * np.linalg.norm(K, 2)  # round-off of H is eps·scale
    truth = np.linalg.eigvalsh(theta.T @ K @ theta)[::-1]
    np.testing.assert_allclose(result.spectrum, truth, atol=1e-13 * scale)
    for axis in (0, 1):
        np.testing.assert_allclose(result.overlaps.sum(axis=axis), 1, rtol=1e-12)
    # Eq. 10 as printed, from the overlaps.
    m = min(rows, columns)
    sigma, gamma = np.linalg.svd(theta, compute_uv=False), np.linalg.eigvalsh(K)[::-1]
    printed = sigma**2 * (result.overlaps[:m] @ gamma)
    np.testing.assert_allclose(result.predicted[:m], printed, atol=1e-13 * scale)
    for low, high in (
        (result.ostrowski_lower, result.spectrum),
        (result.spectrum, result.ostrowski_upper),
    ):
        assert (low <= high + 1e-13 * scale).all()
    excess = np.cumsum(np.sort(result.predicted)[::-1]) - np.cumsum(result.spectrum)
    assert excess.max() <= 1e-13 * scale
    assert abs(excess[-1]) <= 1e-13 * scale
    if result.rank == columns:
        # κ of a nearly singular H is known to κ·eps.
        assert result.condition_ratio <= 1 + 1e-13 * result.true_condition * scale / result.spectrum[0]


@pytest.mark.parametrize(
    ("theta", "covariance", "error", "message"),
    [
        (np.eye(3), np.eye(2), InvalidInputError, r"theta \(3, 3\) and covariance \(2, 2\) do not fit"),
        (np.diag([0.0, 1.0]), np.diag([1.0, 0.0]), RankError, "has rank 0"),
    ],
)
def test_refused(theta, covariance, error, message):
    with pytest.raises(error, match=message):
        alignment(theta, covariance)
