"""Eigenpairs of batches against `eigh`, matrix by matrix."""

import pytest
import torch
from covariances import draw

from condnum.theory import extremes
from condnum.theory.extremes import largest_pairs, smallest_pairs


def matrix(values, seed):
    Q, _ = torch.linalg.qr(draw(len(values), len(values), seed=seed))
    A = (Q * torch.as_tensor(values)) @ Q.mT
    return (A + A.mT) / 2


@pytest.fixture
def spectra():
    """Steep, crowded at the top, deficient, and equal ones: 200 eigenvalues each."""
    n = 200
    return [
        torch.logspace(0, -12, n, dtype=torch.float64),
        1 + torch.linspace(0, 1e-2, n, dtype=torch.float64),
        torch.cat([torch.linspace(2, 1, 20, dtype=torch.float64), torch.zeros(n - 20, dtype=torch.float64)]),
        torch.ones(n, dtype=torch.float64),
    ]


def test_largest_pairs_with_restarts(spectra):
    A = torch.stack([matrix(values, i) for i, values in enumerate(spectra)])
    pairs = largest_pairs(A, torch.ones(len(A), A.shape[1], dtype=torch.float64))
    torch.testing.assert_close(pairs.values, torch.stack([v.max() for v in spectra]), rtol=1e-12, atol=0)
    images = (A @ pairs.vectors[:, :, None]).squeeze(2)
    assert float((images - pairs.values[:, None] * pairs.vectors).norm(dim=1).max()) <= 1e-11
    found = ~pairs.fallbacks
    assert found[[0, 2, 3]].all()
    assert int(pairs.iterations[1]) > extremes._BASIS  # the crowded one had to restart
    assert (pairs.residuals[found] <= extremes.RESIDUAL).all()


def test_a_warm_start_needs_fewer_steps():
    A = torch.stack([matrix(torch.logspace(0, -3, 300, dtype=torch.float64), i) for i in range(2)])
    cold = largest_pairs(A)
    warm = largest_pairs(A, cold.vectors)
    assert (warm.iterations < cold.iterations).all()
    torch.testing.assert_close(warm.values, cold.values, rtol=1e-12, atol=0)


def test_a_fall_back_gives_the_pair_of_its_own_matrix(monkeypatch, spectra):
    monkeypatch.setattr(extremes, "RESIDUAL", -1.0)
    A = torch.stack([matrix(values, i) for i, values in enumerate(spectra[:2])])
    pairs = largest_pairs(A)
    assert pairs.fallbacks.all()
    torch.testing.assert_close(pairs.values, torch.linalg.eigvalsh(A)[:, -1])
    small = smallest_pairs(A, torch.tensor([200, 200]))
    assert small.fallbacks.all()
    torch.testing.assert_close(small.values, torch.linalg.eigvalsh(A)[:, 0] ** 2, rtol=1e-6, atol=1e-14)


def test_smallest_pairs_are_those_of_the_own_rows():
    """Ranks 60, 1 and 35 padded to 60: the zeros are nobody's smallest eigenvalue."""
    ranks = [60, 1, 35]
    F = draw(3, 60, 80) * (torch.arange(60)[:, None] < torch.tensor(ranks)[:, None, None])
    pairs = smallest_pairs(F, torch.tensor(ranks))
    for i, rank in enumerate(ranks):
        own = F[i, :rank]
        expected = float(torch.linalg.svdvals(own)[-1] ** 2)
        assert float(pairs.values[i]) == pytest.approx(expected, rel=1e-9)
        v = pairs.vectors[i]
        assert float((own.mT @ (own @ v) - expected * v).norm()) <= 1e-9
    assert not pairs.fallbacks.any()
    # All own eigenvalues equal: the padding's must not be taken for one of them.
    F = torch.zeros(2, 3, 4, dtype=torch.float64)
    F[0, :2, :2] = 3 * torch.eye(2)
    F[1] = 3 * torch.eye(3, 4)
    pairs = smallest_pairs(F, torch.tensor([2, 3]))
    assert pairs.values.tolist() == pytest.approx([9, 9])
    assert not pairs.vectors[0, 2:].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e200])
def test_a_matrix_that_is_not_finite_disturbs_no_other(bad):
    good = matrix(torch.logspace(0, -3, 50, dtype=torch.float64), 0)
    A = torch.stack([good, good * bad, good])
    pairs = largest_pairs(A)
    assert pairs.values[[0, 2]].tolist() == pytest.approx([1, 1])
    assert bool(pairs.values[1].isnan())
    small = smallest_pairs(A, torch.tensor([50, 50, 50]))
    assert small.values[[0, 2]].tolist() == pytest.approx([1e-6] * 2, rel=1e-6)
    assert bool(small.values[1].isnan())
