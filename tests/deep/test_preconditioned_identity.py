"""The preconditioned backward against the explicit inverse, wide and tall, by hand and under autocast."""

import numpy as np
import pytest
import torch
from torch import nn

from condnum.deep import feature_r_ill, feature_r_well, precondition_gradient
from condnum.deep.regularizers import PreconditionedIdentity, smaller_gram
from condnum.errors import InvalidInputError, RankError
from condnum.theory.regularizers import (
    r_ill_gradient,
    r_ill_theta_gradient,
    r_well_gradient,
    r_well_theta_gradient,
)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def explicit(gradient, samples, ridge):
    """G (XᵀX + εI)⁻¹ by a dense inverse."""
    D = samples.shape[1]
    return gradient @ torch.linalg.inv(samples.T @ samples + ridge * torch.eye(D, dtype=torch.float64))


def backward(values, samples, upstream, ridge):
    leaf = values.clone().requires_grad_()
    precondition_gradient(leaf, samples, ridge=ridge).backward(upstream)
    return leaf.grad


@pytest.mark.parametrize("ridge", [1e-2, 1.0, 30.0])
@pytest.mark.parametrize(
    ("N", "D", "out"),
    [(5, 12, 3), (12, 5, 3), (6, 6, 6), (1, 4, 2), (4, 1, 2)],
    ids=["wide", "tall", "square", "one sample", "one feature"],
)
def test_backward_is_the_explicit_formula(N, D, out, ridge):
    X, W, G = randn(N, D, seed=1), randn(out, D, seed=2), randn(out, D, seed=3)
    expected = explicit(G, X, ridge)
    # Both lose eps·(σ₁+ε)/ε of the largest entry of G/ε.
    torch.testing.assert_close(
        backward(W, X, G, ridge), expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max())
    )


def test_forward_is_the_identity_in_float64():
    Z = randn(4, 9, dtype=torch.float32)
    out = precondition_gradient(Z)
    assert out.dtype == torch.float64
    assert torch.equal(out, Z.double())


@pytest.mark.parametrize("N", [4, 20])
def test_features_precondition_themselves(N):
    Z, G = randn(N, 9, seed=4), randn(N, 9, seed=5)
    torch.testing.assert_close(backward(Z, None, G, 0.3), explicit(G, Z, 0.3), rtol=1e-10, atol=1e-12)


def test_default_ridge_is_relative_to_sigma_1():
    Z, G = randn(6, 9, seed=6), randn(6, 9, seed=7)
    sigma_1 = float(torch.linalg.svdvals(Z)[0] ** 2)
    torch.testing.assert_close(
        backward(Z, None, G, None), explicit(G, Z, 1e-6 * sigma_1), rtol=1e-6, atol=1e-8
    )
    # κ does not see the scale of the features, nor does the direction of the step
    scaled = backward(100 * Z, None, G, None) * 1e4
    torch.testing.assert_close(
        scaled, backward(Z, None, G, None), rtol=1e-8, atol=1e-8 * float(scaled.abs().max())
    )


def test_rank_deficient_samples():
    X = randn(8, 2, seed=8) @ randn(2, 5, seed=9)
    G = randn(3, 5, seed=10)
    torch.testing.assert_close(backward(G, X, G, 0.1), explicit(G, X, 0.1), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["well", "ill"])
def test_on_a_weight_it_is_line_6_of_algorithm_1(kind):
    """`W = θᵀ` of shape (out, in), out ≠ in: the inverse belongs to the input side."""
    X, theta = randn(30, 6, seed=11), randn(6, 4, seed=12)
    K, ridge = X.T @ X, 1e-9
    reference = (r_well_theta_gradient if kind == "well" else r_ill_theta_gradient)(theta, K)
    W = theta.T.clone().requires_grad_()
    features = nn.functional.linear(X, precondition_gradient(W, X, ridge=ridge))
    (feature_r_well if kind == "well" else feature_r_ill)(features).backward()
    expected = torch.linalg.solve(K, reference.gradient)
    torch.testing.assert_close(W.grad.T, expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max()))
    # and there the inverse cancels: K⁻¹∇_θR = 2θ∇_H R (THEORY: no solve is needed for linear extractors)
    H = theta.T @ K @ theta
    inner = (r_well_gradient if kind == "well" else r_ill_gradient)(H).gradient
    torch.testing.assert_close(
        expected, 2 * theta @ inner, rtol=1e-8, atol=1e-9 * float(expected.abs().max())
    )


def test_no_solve_is_larger_than_the_smaller_side(monkeypatch):
    sizes = []
    real_cholesky, real_solve = torch.linalg.cholesky, torch.cholesky_solve
    monkeypatch.setattr(torch.linalg, "cholesky", lambda A: sizes.append(len(A)) or real_cholesky(A))
    monkeypatch.setattr(torch, "cholesky_solve", lambda B, L: sizes.append(len(L)) or real_solve(B, L))
    for N, D in [(3, 50), (50, 3)]:
        backward(randn(2, D), randn(N, D, seed=1), randn(2, D, seed=2), 1.0)
    assert sizes == [3, 3, 3, 3]


def test_gradients_below_it_go_on():
    """In a net: the layer's parameters receive the chain rule of the preconditioned gradient."""
    layer, X = nn.Linear(7, 5).double(), randn(3, 7)
    features = layer(X)
    G = randn(3, 5, seed=1)
    precondition_gradient(features, ridge=0.5).backward(G)
    torch.testing.assert_close(layer.weight.grad, explicit(G, features.detach(), 0.5).T @ X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_under_autocast_the_algebra_stays_float64(dtype):
    """Compared in the gradient of float32 features: only the last rounding is theirs."""
    Z, G = randn(6, 16, dtype=torch.float32), randn(6, 16, seed=1)
    leaf = Z.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        out = precondition_gradient(leaf, ridge=1e-3)
        (out * G).sum().backward()
    assert leaf.grad.dtype == torch.float32
    expected = explicit(G, Z.double(), 1e-3)
    torch.testing.assert_close(
        leaf.grad.double(), expected, rtol=3e-7, atol=3e-7 * float(expected.abs().max())
    )


def test_upstream_of_a_caller_in_float32_is_handed_back_in_float32():
    Z = randn(4, 3).to(torch.float32).requires_grad_()
    X = randn(5, 3, seed=2)
    factor = torch.linalg.cholesky(smaller_gram(X) + torch.eye(3, dtype=torch.float64))
    out = PreconditionedIdentity.apply(Z, X, factor, torch.tensor(1.0, dtype=torch.float64))
    out.sum().backward()
    assert out.dtype == Z.grad.dtype == torch.float32
    torch.testing.assert_close(
        Z.grad.double(), explicit(torch.ones(4, 3).double(), X, 1.0), rtol=1e-6, atol=1e-6
    )


def test_it_is_linear_in_the_gradient_a_second_time_too():
    """The covariance is a constant, so differentiating the backward multiplies once more."""
    X, W = randn(4, 6), randn(2, 6, seed=1).requires_grad_()
    (first,) = torch.autograd.grad(
        (precondition_gradient(W, X, ridge=1.0) ** 2).sum() / 2, W, create_graph=True
    )
    torch.testing.assert_close(first, explicit(W.detach(), X, 1.0))
    (second,) = torch.autograd.grad(first.sum(), W)
    np.testing.assert_allclose(
        second.numpy(), explicit(explicit(torch.ones(2, 6).double(), X, 1.0), X, 1.0), rtol=1e-8
    )


@pytest.mark.parametrize(
    ("values", "samples", "ridge", "error", "message"),
    [
        (randn(2, 3), randn(4, 5), 1.0, InvalidInputError, "same last dimension"),
        (randn(2, 3), randn(3), 1.0, InvalidInputError, "2 dimension"),
        (randn(2, 3), None, 0.0, InvalidInputError, "positive number, got 0.0"),
        (randn(2, 3), None, float("nan"), InvalidInputError, "positive number, got nan"),
        (torch.full((2, 3), torch.nan), None, 1.0, InvalidInputError, "non-finite"),
        (torch.zeros(2, 3), None, None, RankError, "all zero"),
    ],
    ids=["width", "vector", "zero ridge", "nan ridge", "nan", "zero"],
)
def test_bad_input(values, samples, ridge, error, message):
    with pytest.raises(error, match=message):
        precondition_gradient(values, samples, ridge=ridge)
