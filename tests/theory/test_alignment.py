"""Proposition 3.2: where Eq. 10 is right, where it is wrong, and what holds instead."""

import numpy as np
import pytest
from problems import EPS, ROWS, thetas

from condnum.errors import InvalidInputError, RankError
from condnum.theory.alignment import alignment

K_2 = np.array([[2.0, 1.0], [1.0, 2.0]])  # eigenpairs 3: (1, 1)/√2 and 1: (1, −1)/√2
ROOT = 13**0.5


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
        (result.condition_ratio, 4 * (5 - ROOT) / (5 + ROOT)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert result.rank == 2


def test_eq_10_is_exact_when_u_is_q():
    gamma, Q = np.linalg.eigh(ROWS["Gaussian"].T @ ROWS["Gaussian"])
    sigma = np.arange(6.0, 0, -1)
    theta = Q @ np.diag(sigma) @ thetas()["rotation"]
    result = alignment(theta, ROWS["Gaussian"].T @ ROWS["Gaussian"])
    # U's columns go with σ in descending order, hence with γ in ascending order.
    np.testing.assert_allclose(result.predicted, sigma**2 * gamma, rtol=1e-12)
    np.testing.assert_allclose(result.spectrum, np.sort(sigma**2 * gamma)[::-1], rtol=1e-12)
    assert result.misalignment < 1e-13
    assert result.condition_ratio == pytest.approx(1)


def test_at_the_identity_eq_10_is_not_single_valued():
    assert alignment(np.eye(2), K_2).u_unique is False
    # Two bases of the same θ = I, two predictions: 2, 2 in the standard one, 3, 1 in K's own.
    Q = np.linalg.eigh(K_2)[1]
    nudged = alignment(Q @ np.diag([1.0, 1 - 1e-9]) @ Q.T, K_2)
    np.testing.assert_allclose(sorted(nudged.predicted), [1, 3], rtol=1e-7)
    np.testing.assert_allclose(alignment(np.diag([1.0, 1 - 1e-9]), K_2).predicted, [2, 2], rtol=1e-7)


@pytest.mark.parametrize("kind", thetas())
@pytest.mark.parametrize("name", ROWS)
def test_what_holds_for_every_theta_and_covariance(name, kind):
    X, theta = ROWS[name].astype(float), 1e3 * thetas()[kind]
    K, (rows, columns) = X.T @ X, theta.shape
    result = alignment(theta, K)
    slack = 500 * EPS * np.linalg.norm(theta, 2) ** 2 * np.linalg.norm(K, 2)  # round-off of H
    np.testing.assert_allclose(result.spectrum, np.linalg.eigvalsh(theta.T @ K @ theta)[::-1], atol=slack)
    for axis in (0, 1):
        np.testing.assert_allclose(result.overlaps.sum(axis=axis), 1, rtol=1e-12)
    m = min(rows, columns)
    printed = np.linalg.svd(theta, compute_uv=False) ** 2 * (
        result.overlaps[:m] @ np.linalg.eigvalsh(K)[::-1]
    )
    np.testing.assert_allclose(result.predicted[:m], printed, atol=slack)  # Eq. 10 as printed
    assert (result.ostrowski_lower <= result.spectrum + slack).all()
    assert (result.spectrum <= result.ostrowski_upper + slack).all()
    excess = np.cumsum(np.sort(result.predicted)[::-1]) - np.cumsum(result.spectrum)
    assert excess.max() <= slack  # the spectrum majorizes the prediction
    assert abs(excess[-1]) <= slack
    if result.rank == columns:
        assert result.condition_ratio <= 1 + result.true_condition * slack / result.spectrum[0]


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
