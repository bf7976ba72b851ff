"""Extreme eigenpairs against `eigh`."""

import pytest
import torch
from covariances import draw

from condnum.theory import extremes
from condnum.theory.extremes import largest_bound, largest_pair, smallest_pair

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
