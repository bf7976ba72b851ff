"""R_well and R_ill of features against the full Hessian; the preconditioned gradient against the inverse."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from condnum.errors import RankError
from condnum.theory.features import feature_r_ill, feature_r_well, precondition_gradient
from condnum.theory.regularizers import r_ill, r_well


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def deficient(N, D, rank):
    return randn(N, rank, seed=1) @ randn(rank, D, seed=2)


SHAPES = {
    "wide": randn(5, 12), "tall": randn(12, 5), "square": randn(7, 7),
    "wide rank-deficient": deficient(6, 11, 3), "tall rank-deficient": deficient(11, 6, 3),
    "blocks": torch.block_diag(randn(4, 3), 100 * randn(5, 2)),
    "one-hot": functional.one_hot(torch.tensor([0, 0, 1, 3])).double(),
}  # fmt: skip


def value_and_gradient(function, X):
    leaf = X.clone().requires_grad_()
    value = function(leaf)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("X", SHAPES.values(), ids=SHAPES)
def test_regularizers_of_features_are_those_of_the_full_hessian(X):
    k = int(torch.linalg.matrix_rank(X))
    for of_features, of_hessian in ((feature_r_well, r_well), (feature_r_ill, lambda H: r_ill(H, rank=k))):
        value, gradient = value_and_gradient(of_features, X)
        expected, reference = value_and_gradient(lambda Z, f=of_hessian: f(Z.T @ Z), X)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(gradient, reference, rtol=1e-8, atol=1e-9 * float(reference.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spectra_are_float64_whatever_the_features_are(dtype):
    X = randn(6, 20).to(dtype)
    for function in (feature_r_well, feature_r_ill, lambda Z: precondition_gradient(Z).sum()):
        value, gradient = value_and_gradient(function, X)
        exact, reference = value_and_gradient(function, X.double())
        assert value == exact
        assert torch.equal(gradient, reference.to(dtype))  # rounded once, at the end
    exact = deficient(40, 16, 7)
    # What many float32 layers leave: some ten units of round-off in each entry, and so in null directions.
    rounded = (exact * (1 + 10 * 2.0**-23 * randn(40, 16, seed=5))).float()
    assert feature_r_ill(rounded).item() == pytest.approx(r_ill(exact.T @ exact, rank=7).item(), rel=1e-4)


def test_features_without_a_spectrum_are_refused():
    for function, X, message in (
        (feature_r_ill, torch.zeros(3, 4), "rank 0"), (feature_r_ill, torch.eye(3), "infinite"),
        (precondition_gradient, torch.zeros(2, 3), "all zero"),
    ):  # fmt: skip
        with pytest.raises(RankError, match=message):
            value_and_gradient(function, X)


@pytest.mark.parametrize("ridge", [1e-4, 1.0])
@pytest.mark.parametrize(("N", "D"), [(5, 12), (12, 5), (6, 6), (1, 4), (4, 1)])
def test_the_preconditioned_gradient_is_that_of_a_dense_inverse(N, D, ridge):
    X, G = randn(N, D, seed=1).requires_grad_(), randn(N, D, seed=3)
    precondition_gradient(X, ridge=ridge).backward(G)
    K = X.detach().T @ X.detach()
    damped = K + ridge * torch.linalg.eigvalsh(K)[-1] * torch.eye(D, dtype=K.dtype)
    expected = G @ torch.linalg.inv(damped)
    # Both lose eps·(σ₁+ε)/ε of the largest entry of G/ε.
    torch.testing.assert_close(X.grad, expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max()))
