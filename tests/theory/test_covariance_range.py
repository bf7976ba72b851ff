"""The range of a covariance, and the ceilings that take it instead of the covariance."""

import numpy as np
import pytest
import torch

from condnum.errors import InvalidInputError, RankError
from condnum.theory.ceiling import ridge_convention_ceiling, rir_ceiling
from condnum.theory.spectra import CovarianceRange, covariance_factor


def random_covariance(rank, dimension, seed):
    X = np.random.default_rng(seed).normal(size=(rank, dimension)) * np.geomspace(1, 30, rank)[:, None]
    return torch.as_tensor(X.T @ X)


def test_values_vectors_and_projector():
    K = random_covariance(3, 5, 0)
    part = CovarianceRange.of(K)
    assert (part.rank, part.dimension) == (3, 5)
    assert bool((part.values.diff() <= 0).all())
    torch.testing.assert_close((part.vectors * part.values) @ part.vectors.mT, K)
    torch.testing.assert_close(part.factor.mT @ part.factor, K)
    torch.testing.assert_close(K @ part.null_projector, torch.zeros_like(K), atol=1e-9, rtol=0)
    assert float(part.null_projector.trace()) == pytest.approx(2)


@pytest.mark.parametrize("ranks", [(6, 6), (6, 4), (4, 6), (3, 3)])
def test_ceilings_of_ranges_are_those_of_the_covariances(ranks):
    K_P, K_H = random_covariance(ranks[0], 6, 2), random_covariance(ranks[1], 6, 3)
    P, H = (CovarianceRange.of_factor(covariance_factor(K)) for K in (K_P, K_H))
    direct, known = rir_ceiling(K_P, K_H), rir_ceiling(P, H)
    assert known.value == pytest.approx(direct.value, rel=1e-9)
    assert known.harmful_only_dimension == direct.harmful_only_dimension
    assert ridge_convention_ceiling(P, H) == pytest.approx(ridge_convention_ceiling(K_P, K_H), rel=1e-6)


def test_what_cannot_be_decomposed_is_refused():
    with pytest.raises(RankError, match="K_P has rank 0"):
        CovarianceRange.of(torch.zeros(2, 2).double(), name="K_P")
    with pytest.raises(InvalidInputError, match="not positive semidefinite"):
        CovarianceRange.of(torch.diag(torch.tensor([1.0, -1.0])).double())


def test_ranges_and_covariances_do_not_mix():
    K = random_covariance(2, 2, 4)
    part = CovarianceRange.of(K)
    with pytest.raises(InvalidInputError, match="not one of each"):
        rir_ceiling(part, K)
    with pytest.raises(InvalidInputError, match="ridge must be positive and finite, got -1"):
        rir_ceiling(part, part, ridge=-1.0)
    with pytest.raises(InvalidInputError, match="2 and 3 dimensions"):
        rir_ceiling(part, CovarianceRange.of(random_covariance(3, 3, 5)))


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_ridged_is_the_range_of_the_sum(rank):
    K = random_covariance(rank, 4, 5)
    ridged = CovarianceRange.of(K).ridged(0.3)
    B = ridged.factor
    torch.testing.assert_close(B.mT @ B, K + 0.3 * torch.eye(4).double(), rtol=1e-12, atol=1e-12)
    assert ridged.rank == 4
    assert (ridged.values.diff() <= 0).all()
    torch.testing.assert_close(ridged.vectors.mT @ ridged.vectors, torch.eye(4).double(), rtol=0, atol=1e-13)


def test_a_ridge_far_below_round_off_is_exact():
    """K + εI itself would lose ε beside 1: the ceiling of two tasks that share nothing but a direction."""
    ranges = [CovarianceRange.of(torch.diag(torch.tensor(v)).double()) for v in ([1.0, 0.0], [1.0, 1.0])]
    # diag(1, ε) and diag(1, 1): κ(M)·κ(K_P)/κ(K_H) = (1/ε)·(1/ε).
    assert rir_ceiling(*ranges, ridge=1e-18).value == pytest.approx(1e36, rel=1e-12)
