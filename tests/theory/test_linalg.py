"""Extreme eigenpairs against `eigh`, and what counts as a covariance."""

import numpy as np
import pytest
import torch
from problems import draw

from condnum.errors import InvalidInputError
from condnum.theory.linalg import (
    as_covariance,
    largest_bound,
    largest_pair,
    singular_triples,
    smallest_pair,
)

#: 200 eigenvalues each: beyond SMALL, where Lanczos begins.
SPECTRA = {
    "steep": torch.logspace(0, -12, 200, dtype=torch.float64),
    "crowded": 1 + torch.linspace(0, 1e-2, 200, dtype=torch.float64),
    "deficient": torch.cat([torch.linspace(2, 1, 20), torch.zeros(180)]).double(),
    "equal": torch.ones(200, dtype=torch.float64),
    "zero": torch.zeros(200, dtype=torch.float64),
}


def matrix(values):
    Q, _ = torch.linalg.qr(draw(len(values), len(values)))
    A = (Q * values) @ Q.mT
    return (A + A.mT) / 2


@pytest.mark.parametrize("turned", [True, False], ids=["dense", "diagonal"])
@pytest.mark.parametrize("name", SPECTRA)
def test_largest_pair(name, turned):
    A = matrix(SPECTRA[name]) if turned else torch.diag(SPECTRA[name])
    value, vector = largest_pair(A)
    assert float(value) * (1 - 1e-10) <= largest_bound(A)[0] <= float(value) * (1 + 1e-9)
    assert float(value) == pytest.approx(float(SPECTRA[name].max()), rel=1e-12)
    assert float((A @ vector - value * vector).norm()) <= 1e-11
    assert float(vector.norm()) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(1, 80), (35, 80), (60, 80), (150, 200)], ids=str)
def test_smallest_pair_is_that_of_the_range(shape):
    F = draw(*shape)
    value, vector = smallest_pair(F)
    expected = float(torch.linalg.svdvals(F)[-1] ** 2)
    # Through FFᵀ, of κ(F)² < 1e4: eps of σ₁², twice.
    assert float(value) == pytest.approx(expected, rel=1e-9)
    assert float((F.mT @ (F @ vector) - expected * vector).norm()) <= 1e-9


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e200])
def test_a_matrix_that_is_not_finite_is_refused(bad):
    A = bad * matrix(SPECTRA["steep"])
    for pair in (largest_pair, smallest_pair):
        with pytest.raises(torch.linalg.LinAlgError, match="not finite"):
            pair(A)


@pytest.mark.parametrize("whole", [False, True], ids=["thin", "whole"])
@pytest.mark.parametrize("shape", [(9, 4), (4, 9)], ids=["tall", "wide"])
def test_where_divide_and_conquer_fails_qr_iteration_finds_the_same(shape, whole, monkeypatch):
    A = draw(*shape)
    expected = torch.linalg.svd(A, full_matrices=whole)

    def fails(*args, **options):
        raise torch.linalg.LinAlgError("The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "svd", fails)
    U, sigma, V = singular_triples(A, whole=whole)
    assert [part.shape for part in (U, sigma, V)] == [part.shape for part in expected]
    torch.testing.assert_close(sigma, expected[1])
    torch.testing.assert_close((U[:, :4] * sigma) @ V[:4], A)
    with pytest.raises(torch.linalg.LinAlgError):
        singular_triples(A * torch.nan)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_round_off_of_products_is_no_asymmetry_and_no_negative_eigenvalue(dtype):
    X = np.random.default_rng(0).normal(size=(50, 8)) @ np.ones(
        (8, 8)
    )  # rank 1: seven eigenvalues are round-off
    K = as_covariance(((X.T @ X) / 50).astype(dtype), "K")
    assert torch.equal(K, K.mT)
    for wrong in (K + torch.triu(K, 1), K - 2 * torch.diag(K.diagonal())):
        with pytest.raises(InvalidInputError, match=r"K must be symmetric|K is not positive semidefinite"):
            as_covariance(wrong, "K")
