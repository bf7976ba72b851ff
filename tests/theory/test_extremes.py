"""Extreme eigenpairs against `eigh`."""

import numpy as np
import pytest
import torch
from condnum.theory.extremes import (
    SMALL,
    largest_bound,
    largest_pair,
    singular_triples,
    smallest_pair,
    triangle_ends,
)
from condnum.theory.spectra import spectrum_ends
from covariances import draw

from condnum.theory import extremes

#: 200 eigenvalues each.
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


@pytest.mark.parametrize("rank", [1, 35, 60])
def test_smallest_pair_is_that_of_the_range(rank):
    F = draw(rank, 80)
    value, vector = smallest_pair(F)
    expected = float(torch.linalg.svdvals(F)[-1] ** 2)
    assert float(value) == pytest.approx(expected, rel=1e-9)
    assert float((F.mT @ (F @ vector) - expected * vector).norm()) <= 1e-9


def test_what_does_not_converge_is_left_to_eigh(monkeypatch):
    monkeypatch.setattr(extremes, "_RESTARTS", 1)
    A = matrix(SPECTRA["crowded"])
    assert float(largest_pair(A)[0]) == pytest.approx(1.01, rel=1e-12)
    assert float(smallest_pair(A)[0]) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e200])
def test_a_matrix_that_is_not_finite_is_refused(bad):
    A = bad * matrix(SPECTRA["steep"])
    for pair in (largest_pair, smallest_pair):
        with pytest.raises(torch.linalg.LinAlgError, match="not finite"):
            pair(A)


@pytest.mark.parametrize("n", [5, SMALL + 20])
def test_the_ends_of_a_triangle(n):
    rng = np.random.default_rng(n)
    R = torch.from_numpy(np.triu(rng.normal(size=(n, n)) * np.geomspace(1, 1e-3, n)) + np.diag([3.0] * n))
    sigma = torch.linalg.svdvals(R)
    assert triangle_ends(R) == pytest.approx((float(sigma[0]), float(sigma[-1])), rel=1e-9)
    assert triangle_ends(torch.diag(torch.tensor([2.0, 0.0]).double())) == (2.0, 0.0)


@pytest.mark.parametrize("shape", [(SMALL + 40, SMALL + 10), (SMALL + 10, SMALL + 40)])
def test_ends_of_a_large_spectrum_or_all_of_it_below_the_tolerance(shape):
    k = min(shape)
    M = torch.from_numpy(np.random.default_rng(0).normal(size=shape))
    M[:, : shape[1] // 2] *= 1e-3
    sigma = torch.linalg.svdvals(M)
    ends = spectrum_ends(M, 0.0)
    assert [len(ends), *ends[[0, 1, -1]].tolist()] == pytest.approx(
        [k, *sigma[[0, -1, -1]].tolist()], rel=1e-9
    )
    np.testing.assert_allclose(spectrum_ends(M, 0.5), sigma, rtol=1e-9)


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
