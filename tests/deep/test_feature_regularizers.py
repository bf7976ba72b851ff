"""R_well and R_ill of features, against condnum.theory.regularizers on the full Hessian XᵀX by autograd."""

import pytest
import torch

from condnum.deep import feature_r_ill, feature_r_well, feature_rtol
from condnum.errors import InvalidInputError, RankError
from condnum.theory.regularizers import r_ill, r_well
from condnum.theory.spectra import condition_number


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def deficient(N, D, rank):
    return randn(N, rank, seed=1) @ randn(rank, D, seed=2)


SHAPES = {
    "wide": randn(5, 12),
    "tall": randn(12, 5),
    "square": randn(7, 7),
    "wide rank-deficient": deficient(6, 11, 3),
    "tall rank-deficient": deficient(11, 6, 3),
}


def value_and_gradient(function, X):
    leaf = X.clone().requires_grad_()
    value = function(leaf)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("X", SHAPES.values(), ids=SHAPES)
def test_r_well_is_that_of_the_full_hessian(X):
    value, gradient = value_and_gradient(feature_r_well, X)
    expected, reference = value_and_gradient(lambda Z: r_well(Z.T @ Z), X)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, reference, rtol=1e-10, atol=1e-11 * float(reference.abs().max()))


@pytest.mark.parametrize("X", SHAPES.values(), ids=SHAPES)
def test_r_ill_is_that_of_the_full_hessian(X):
    k = int(torch.linalg.matrix_rank(X))
    value, gradient = value_and_gradient(feature_r_ill, X)
    expected, reference = value_and_gradient(lambda Z: r_ill(Z.T @ Z, rank=k), X)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(gradient, reference, rtol=1e-8, atol=1e-9 * float(reference.abs().max()))


@pytest.mark.parametrize("X", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", ["well", "ill"])
def test_gradients_are_exact_by_finite_differences(X, kind):
    k = int(torch.linalg.matrix_rank(X))
    function = feature_r_well if kind == "well" else (lambda Z: feature_r_ill(Z, rank=k))
    _, gradient = value_and_gradient(function, X)
    # Along X·A: the rank stays, as at a changed rank R_ill is not continuous.
    direction = X @ randn(X.shape[1], X.shape[1], seed=3)
    step = 1e-5 / float(direction.norm())
    slope = (function(X + step * direction) - function(X - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=0)


def test_by_hand():
    X = torch.diag(torch.tensor([2.0, 1.0])).double().requires_grad_()  # H = diag(4, 1)
    well = feature_r_well(X)
    assert well.item() == pytest.approx(16 / 2 - 17 / 4)
    (gradient,) = torch.autograd.grad(well, X)  # 2X(σ₁u₁u₁ᵀ − H/2)
    torch.testing.assert_close(gradient, torch.diag(torch.tensor([8.0, -1.0])).double())
    ill = feature_r_ill(X)
    assert ill.item() == pytest.approx(1 / (17 / 4 - 1 / 2))
    (gradient,) = torch.autograd.grad(ill, X)  # 2X(σ_k u_k u_kᵀ − H/2)·R²
    torch.testing.assert_close(gradient, torch.diag(torch.tensor([-8.0, 1.0])).double() * ill.detach() ** 2)


def test_dimension_of_r_well():
    X = torch.eye(2, 5).double()
    assert feature_r_well(X, dimension=2).item() == 0  # flat non-zero spectrum
    assert feature_r_well(X).item() == pytest.approx(0.5 - 2 / 10)  # three more values are zero
    with pytest.raises(InvalidInputError, match="at least 2"):
        feature_r_well(X, dimension=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_spectra_are_float64_whatever_the_features_are(dtype):
    X = randn(6, 20).to(dtype)
    for function in (feature_r_well, feature_r_ill):
        exact, reference = value_and_gradient(function, X.double())
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                value, gradient = value_and_gradient(function, X)
            assert value.dtype == torch.float64
            assert gradient.dtype == dtype
            assert value == exact
            assert torch.equal(gradient, reference.to(dtype))  # rounded once, at the end


def test_float32_round_off_is_no_rank_and_a_large_kappa_is_no_lack_of_it():
    exact = deficient(40, 16, 7)
    # What many float32 layers leave: some ten units of round-off in each entry, and so in null directions.
    X = (exact * (1 + 10 * 2.0**-23 * randn(40, 16, seed=5))).float()
    assert feature_r_ill(X).item() == pytest.approx(feature_r_ill(exact, rank=7).item(), rel=1e-4)
    # κ(H) = 1e6, beyond 1/(D·eps) of float32, is seen in full
    Q, _ = torch.linalg.qr(randn(40, 16))
    spread = (Q * torch.logspace(0, -3, 16, dtype=torch.float64)).float()
    kappa = condition_number(spread, kind="features", rtol=feature_rtol(spread))
    assert kappa.rank == 16
    assert kappa.value == pytest.approx(1e6, rel=1e-2)


def test_a_step_along_the_gradients_moves_kappa_the_right_way():
    X = randn(10, 30)
    before = condition_number(X, kind="features").value
    for function, sign in ((lambda Z: feature_r_well(Z, dimension=10), -1), (feature_r_ill, 1)):
        value, gradient = value_and_gradient(function, X)
        step = 1e-3 * X.norm() / gradient.norm()
        after = condition_number(X - step * gradient, kind="features").value
        assert (after - before) * sign > 0
        assert function(X - step * gradient) < value


def test_repeated_extremes_give_the_stated_subgradient_not_nan():
    X = torch.diag(torch.tensor([2.0, 2.0, 1.0, 1.0])).double()
    for function in (feature_r_well, feature_r_ill):
        _, gradient = value_and_gradient(function, X)
        assert torch.isfinite(gradient).all()
        assert gradient[0, 0] == gradient[1, 1]
        assert gradient[2, 2] == gradient[3, 3]


@pytest.mark.parametrize("function", [feature_r_well, feature_r_ill])
@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        (torch.zeros(3, 4), RankError, "rank 0"),
        (torch.full((3, 4), torch.inf), InvalidInputError, "non-finite"),
        (torch.ones(2, 3, 4), InvalidInputError, "2 dimension"),
    ],
    ids=["zero", "infinite", "batched"],
)
def test_bad_features(function, features, error, message):
    with pytest.raises(error, match=message):
        function(features)


def test_bad_rank_and_flat_spectra():
    with pytest.raises(InvalidInputError, match="between 1 and 3"):
        feature_r_ill(randn(3, 9), rank=4)
    flat = torch.eye(3).double().requires_grad_()
    with pytest.raises(RankError, match="infinite"):
        feature_r_ill(flat).backward()
    with pytest.raises(InvalidInputError, match="float dtype"):
        feature_rtol(torch.ones(2, 2, dtype=torch.int64))
