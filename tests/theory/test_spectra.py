"""Condition numbers in both conventions, against hand-derived values and NumPy."""

import numpy as np
import pytest
import torch

from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.theory.covariances import CovarianceRange
from condnum.theory.spectra import PUBLISHED_RIDGE, condition_number, covariance, hessian, hessian_spectrum


class TestCompact:
    def test_by_hand_with_its_evidence(self):
        result = condition_number(np.diag([1.0, 4.0, 0.0, 2.0]))
        assert (result.value, result.sigma_max, result.sigma_min) == (4.0, 4.0, 1.0)
        assert (result.rank, result.dimension, result.convention) == (3, 4, "compact")
        assert (type(result.value), type(result.rank)) == (float, int)

    @pytest.mark.parametrize(
        ("matrix", "kappa"),
        [
            (np.diag([-6.0, 2.0]), 3),  # by size
            ([[2.0, 1.0], [1.0, 2.0]], 3),
            ([[1, 1], [0, 1]], ((1 + 5**0.5) / 2) ** 2),  # singular values φ and 1/φ
            # Symmetric part 0: eigenvalues of it would say that the matrix is zero.
            (np.array([[0.0, 2.0], [-2.0, 0.0]]), 1),
        ],
        ids=["negative", "full", "triangular", "skew"],
    )
    def test_by_hand(self, matrix, kappa):
        assert condition_number(matrix).value == pytest.approx(kappa)

    @pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7)], ids=str)
    def test_general_equals_numpy(self, shape):
        M = np.random.default_rng(0).normal(size=shape)
        assert condition_number(M).value == pytest.approx(np.linalg.cond(M), rel=1e-11)

    def test_rank_follows_rtol(self):
        M = np.diag([1.0, 1e-3, 1e-9])
        assert condition_number(M).rank == 3
        result = condition_number(M, rtol=1e-6)
        assert (result.rank, result.value) == (2, pytest.approx(1e3))
        # Strictly above: σ = rtol·σ₁ is dropped.
        assert condition_number(np.diag([1.0, 0.25]), rtol=0.25).rank == 1


def test_ridge_takes_zero_for_the_smallest_where_the_rank_is_deficient():
    result = condition_number(np.diag([4.0, 2.0, 0.0]), convention="ridge", ridge=0.5)
    assert result.value == pytest.approx(9)
    assert (result.sigma_min, result.rank) == (0.0, 2)
    # Round-off in null directions is not kept.
    B = np.random.default_rng(0).normal(size=(4, 4))[:, :2] * [1e6, 1]
    result = condition_number(B @ B.T, convention="ridge")
    assert result.sigma_min == 0
    assert result.value == pytest.approx((result.sigma_max + PUBLISHED_RIDGE) / PUBLISHED_RIDGE, rel=1e-9)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5)], ids=["tall", "wide", "square"])
@pytest.mark.parametrize("convention", ["compact", "ridge"])
def test_features_stand_for_their_dense_hessian(shape, convention):
    X = np.random.default_rng(1).normal(size=shape)
    dense = condition_number(X.T @ X, convention=convention, ridge=0.1)
    dual = condition_number(X, kind="features", convention=convention, ridge=0.1)
    assert dual.value == pytest.approx(dense.value, rel=1e-9)
    assert (dual.rank, dual.dimension) == (dense.rank, dense.dimension) == (min(shape), shape[1])
    assert dual.sigma_min == pytest.approx(dense.sigma_min, rel=1e-9)


@pytest.mark.parametrize(
    ("matrix", "options", "error", "message"),
    [
        (np.eye(2), {"rtol": -1.0}, InvalidInputError, r"rtol must lie in \[0, 1\), got -1.0"),
        (np.eye(2), {"convention": "ridge", "ridge": np.nan}, InvalidInputError, "finite, got nan"),
        (np.zeros((2, 2)), {"convention": "ridge"}, RankError, "rank 0"),
        (np.eye(2), {"kind": "feature"}, UnknownNameError, "did you mean 'features'"),
    ],
)
def test_refused(matrix, options, error, message):
    with pytest.raises(error, match=message):
        condition_number(matrix, **options)


@pytest.mark.parametrize("samples", [9, 3], ids=["full", "rank-3"])
@pytest.mark.parametrize("columns", [2, 5, 7])
def test_the_spectrum_from_a_factor_is_that_of_the_dense_hessian(samples, columns):
    rng = np.random.default_rng(8)
    theta, K = rng.normal(size=(5, columns)), covariance(torch.from_numpy(rng.normal(size=(samples, 5))))
    B = CovarianceRange.of(K).factor
    assert B.shape == (min(samples, 5), 5)
    torch.testing.assert_close(B.mT @ B, K, rtol=1e-12, atol=1e-12)
    gram = B @ B.mT
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0, atol=1e-12)
    assert bool((gram.diagonal().diff() < 0).all())
    dense = np.linalg.svd(theta.T @ K.numpy() @ theta, compute_uv=False)[: min(len(B), columns)]
    np.testing.assert_allclose(hessian_spectrum(torch.from_numpy(theta), B), dense, rtol=1e-9)


def test_null_directions_stay_out_where_the_dense_hessian_lets_them_in():
    # θ shrinks K's one large direction by 1e-8: H's values are 1, 1 and round-off of K/1e16.
    Q = torch.from_numpy(np.linalg.qr(np.random.default_rng(9).normal(size=(4, 4)))[0])
    K = Q @ torch.diag(torch.tensor([1e16, 1.0, 0, 0]).double()) @ Q.mT
    theta = Q @ torch.diag(torch.tensor([1e-8, 1.0, 1, 1]).double())
    assert condition_number(hessian(theta, K)).rank > 2
    B = torch.diag(torch.tensor([1e8, 1.0]).double()) @ Q.mT[:2]
    np.testing.assert_allclose(hessian_spectrum(theta, B), [1, 1], rtol=1e-7)
