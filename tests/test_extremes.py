"""Extreme eigenpairs against `eigh`, and the factor-form step against the dense one."""

import numpy as np
import pytest
import torch

from condnum.methods import immunize, opt_kappa
from condnum.methods.algorithm1 import ill_direction, well_direction
from condnum.methods.batched_hessians import ill_gradient, kappa_gradient, well_gradient
from condnum.methods.method import Memory
from condnum.methods.opt_kappa import OptKappaSettings
from condnum.methods.problem import ImmunizationProblem, LinearTask
from condnum.theory.extremes import gram, largest_pair, smallest_pair
from condnum.theory.spectra import covariance_factor


def spectrum_matrix(values, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = len(values)
    Q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return (Q * torch.as_tensor(values)) @ Q.mT, Q


def task(rank, dimension, decay, seed):
    """A rank-deficient covariance with eigenvalues decay^0 … decay^(rank−1)."""
    values = np.zeros(dimension)
    values[:rank] = decay ** np.arange(rank)
    K, _ = spectrum_matrix(values, seed)
    K = (K + K.mT) / 2
    return LinearTask(K, known_factor=covariance_factor(K, rtol=1e-13))


def test_gram_is_exactly_symmetric_and_writes_where_it_is_told():
    F = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = torch.empty(7, 7, dtype=torch.float64)
    assert gram(F, out=out) is out
    torch.testing.assert_close(out, F.mT @ F)
    assert torch.equal(out, out.mT)


@pytest.mark.parametrize(
    "values",
    [[5.0, 3.0, 1.0, 0.0], np.geomspace(1, 1e-12, 200), 1 + np.linspace(0, 1e-3, 150)[::-1]],
    ids=["small", "steep", "crowded top"],
)
def test_largest_pair_agrees_with_eigh(values):
    A, _ = spectrum_matrix(values)
    A = (A + A.mT) / 2
    pair = largest_pair(A)
    assert float(pair.value) == pytest.approx(max(values), rel=1e-12)
    residual = (A @ pair.vector - pair.value * pair.vector).norm()
    assert float(residual) <= 1e-11 * max(values)
    if not pair.fallback:
        assert pair.residual <= 1e-13


def test_a_warm_start_needs_fewer_steps():
    A, _ = spectrum_matrix(np.geomspace(1, 1e-3, 300))
    A = (A + A.mT) / 2
    cold = largest_pair(A)
    warm = largest_pair(A, cold.vector)
    assert warm.iterations < cold.iterations
    assert float(warm.value) == pytest.approx(1.0, rel=1e-12)


def test_a_top_that_lanczos_cannot_separate_falls_back_and_says_so():
    values = 1 - np.linspace(0, 1, 400) * 1e-9
    pair = largest_pair(torch.diag(torch.as_tensor(values)), torch.ones(400, dtype=torch.float64))
    assert float(pair.value) == pytest.approx(1.0, rel=1e-9)
    assert pair.fallback or pair.residual <= 1e-13


@pytest.mark.parametrize(("rank", "decay"), [(80, 0.9), (40, 0.5)], ids=["mild", "steep"])
def test_smallest_pair_is_the_smallest_non_zero_one(rank, decay):
    F = covariance_factor(task(rank, 100, decay, 3).covariance, rtol=1e-13)
    pair = smallest_pair(F)
    H = F.mT @ F
    expected = torch.linalg.svdvals(F)[-1] ** 2
    assert float(pair.value) == pytest.approx(float(expected), rel=1e-6, abs=1e-14)  # formed FFᵀ: eps·σ₁
    assert float((H @ pair.vector - pair.value * pair.vector).norm()) <= 1e-12


def test_factored_gradients_equal_the_dense_ones():
    P, H = task(120, 140, 0.95, 1), task(110, 140, 0.93, 2)
    theta = torch.randn(140, 140, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 12
    for dense, gradient in (
        (well_direction(P, theta), well_gradient(P, theta, Memory())),
        (ill_direction(H, theta), ill_gradient(H, theta, Memory())),
    ):
        G = gradient.add_to(torch.zeros(140, 140, dtype=torch.float64), 1.0)
        assert float((2 * theta @ G - dense).norm()) <= 1e-9 * float(dense.norm())


def test_thirty_steps_agree_with_the_eigh_reference_to_1e_8_in_kappa(monkeypatch):
    """The engine at D = 140 against the same descent with a full eigendecomposition a step."""
    problem = ImmunizationProblem(task(120, 140, 0.95, 1), task(110, 140, 0.93, 2))
    options = {"seed": 0, "steps": 30, "learning_rate": 1e-3}
    fast = immunize(problem, "ours", **options)
    monkeypatch.setattr("condnum.methods.algorithm1.SMALL", 10**6)
    monkeypatch.setattr("condnum.methods.descent.LARGE", 10**6)
    reference = immunize(problem, "ours", **options)
    assert fast.counts["lanczos_steps"] > 0
    assert reference.counts == {}
    for name in ("kappa_pretrain", "kappa_harmful"):
        np.testing.assert_allclose(fast.history[name][-1], reference.history[name][-1], rtol=1e-8)


def test_counts_are_reported():
    problem = ImmunizationProblem(task(120, 140, 0.95, 1), task(110, 140, 0.93, 2))
    result = immunize(problem, "ours", seed=0, steps=3, learning_rate=1e-3)
    assert result.counts["eigh_fallbacks"] >= 0
    assert result.counts["lanczos_steps"] >= 3


@pytest.mark.parametrize("rank", [140, 110])
@pytest.mark.parametrize("convention", ["compact", "ridge"])
def test_the_gradient_of_kappa_in_factor_form_is_the_dense_one(convention, rank):
    settings = OptKappaSettings(convention=convention, ridge=1e-3)
    harmful = task(rank, 140, 0.98, 2)
    theta = torch.eye(140, dtype=torch.float64) + 0.02 * torch.randn(
        140, 140, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    ridge = settings.ridge if convention == "ridge" else None
    kappa, outer = kappa_gradient(harmful, theta, Memory(), "H", ridge=ridge)
    expected_kappa, expected = opt_kappa.kappa_gradient(harmful, theta, settings)
    torch.testing.assert_close(kappa, expected_kappa, rtol=1e-9, atol=0)
    gradient = outer.left @ outer.right.mT
    assert float((gradient - expected).norm()) <= 1e-8 * float(expected.norm())


@pytest.mark.parametrize("objective", ["difference", "log"])
def test_opt_kappa_descends_the_same_way_in_factor_form(monkeypatch, objective):
    problem = ImmunizationProblem(task(140, 140, 0.98, 1), task(110, 140, 0.98, 2))
    options = {"seed": 0, "steps": 5, "learning_rate": 1e-3, "convention": "ridge", "objective": objective}
    fast = immunize(problem, "opt_kappa", **options)
    monkeypatch.setattr("condnum.methods.opt_kappa.SMALL", 10**6)
    dense = immunize(problem, "opt_kappa", **options)
    assert fast.counts["lanczos_steps"] > 0
    assert dense.counts == {}
    torch.testing.assert_close(fast.theta, dense.theta, rtol=0, atol=1e-6)
