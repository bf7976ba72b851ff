"""R_well, R_ill, gradients, steps and bounds: by hand, autograd, as Theorems 4.1, 4.2, 4.3 and A.1."""

import mpmath
import numpy as np
import pytest
import torch
from problems import EPS, ROWS, orthogonal, thetas

from condnum.errors import CondnumError, InvalidInputError, RankError
from condnum.theory.features import feature_r_ill, feature_r_well, precondition_gradient
from condnum.theory.kappa import condition_number, hessian
from condnum.theory.regularizers import (
    ill_spectrum_step,
    ill_step,
    ill_step_bound,
    r_ill,
    r_ill_gradient,
    r_well,
    r_well_gradient,
    well_spectrum_step,
    well_step,
    well_step_bound,
)

# A hand-derived fraction and its float64 evaluation differ by a few units in the last place.
HAND = {"rtol": 1e-14, "atol": 1e-15}
WIDE = np.array([[0, 2.0, 0], [1, 0, 0]])
RNG = np.random.default_rng(0)
#: Spectra with ratios of neighbors of at least 1.01, so that within 1 % of a bound inequalities are strict.
SPECTRA = [
    rng.uniform(0.05, 20) * np.cumprod([1.0, *rng.uniform(1.01, 4, rng.integers(1, 6))])[::-1]
    for rng in map(np.random.default_rng, range(40))
]


@pytest.mark.parametrize(
    ("S", "well", "well_gradient", "ill", "ill_gradient"),
    [
        (
            np.diag([3.0, 2, 1]),
            13 / 6,
            np.diag([2.0, -2 / 3, -1 / 3]),
            6 / 11,
            np.diag([-36.0, -24, 24]) / 121,
        ),
        # k = 2, not 3: ρ = 5/4 − 1/2.
        (np.diag([2.0, 1, 0]), 7 / 6, np.diag([4.0, -1, 0]) / 3, 4 / 3, np.diag([-1.0, 0.5, 0]) * 16 / 9),
        (np.diag([-3.0, 1.0]), 2.0, np.diag([-1.5, -0.5]), 1 / 2, np.diag([3 / 8, 1 / 8])),
        (WIDE, 3 / 4, WIDE * [[0.5], [-0.5]], 4 / 3, WIDE * [[-8 / 9], [8 / 9]]),
        ([[2.0, 1], [1, 2]], 2.0, np.array([[1, 2], [2, 1]]) / 2, 1 / 2, -np.array([[1, 2], [2, 1]]) / 8),
        # Repeated extremes: the centre of the subdifferential.
        (np.diag([2.0, 2, 1]), 1 / 2, np.diag([1.0, 1, -1]) / 3, 1, None),
        (np.diag([2.0, 1, 1]), 1, None, 2, np.diag([-8.0, 2, 2]) / 3),
    ],
    ids=["diagonal", "rank-deficient", "indefinite", "rectangular", "full", "double top", "double bottom"],
)  # fmt: skip
def test_by_hand(S, well, well_gradient, ill, ill_gradient):
    S = np.array(S)
    for value, gradient, number, expected in (
        (r_well, r_well_gradient, well, well_gradient),
        (r_ill, r_ill_gradient, ill, ill_gradient),
    ):
        if expected is not None:
            result = gradient(S)
            np.testing.assert_allclose([value(S), result.value], number, **HAND)
            np.testing.assert_allclose(result.gradient, expected, **HAND)
            assert result.differentiable is (well_gradient is not None and ill_gradient is not None)


def test_dimension_counts_the_zeros_that_a_dual_matrix_leaves_out():
    # 2x2 dual of a 4x4 Hessian with the same non-zero spectrum: ½·9 − 10/8.
    assert r_well(np.diag([3.0, 1.0]), dimension=4) == pytest.approx(13 / 4)
    gradient = r_well_gradient(np.diag([3.0, 1.0]), dimension=4).gradient
    np.testing.assert_allclose(gradient, np.diag([9 / 4, -1 / 4]), **HAND)


@pytest.mark.parametrize("function", [r_well_gradient, r_ill_gradient])
def test_the_choice_at_repeated_extremes_does_not_depend_on_the_basis(function):
    spectrum = np.diag([3.0, 3, 2, 1, 1])
    Q, P = orthogonal(RNG, 5), orthogonal(RNG, 5)
    for right in (Q, P):  # symmetric, general
        found = function(Q @ spectrum @ right.T, rtol=1e-12)
        assert (found.differentiable, found.multiplicity) == (False, 2)
        np.testing.assert_allclose(found.gradient, Q @ function(spectrum).gradient @ right.T, atol=1e-12)


@pytest.mark.parametrize(
    "matrix", [np.diag([3.0, 0, 0]), 2 * np.eye(3), np.array([[7.0]])], ids=["rank-1", "flat", "scalar"]
)
def test_an_infinite_r_ill_has_no_gradient(matrix):
    assert r_ill(matrix) == np.inf
    for call in (
        lambda: r_ill_gradient(matrix),
        lambda: r_ill(torch.from_numpy(matrix).requires_grad_()).backward(),
        lambda: ill_step(np.eye(len(matrix)), matrix, 0.1),
    ):
        with pytest.raises(RankError, match="infinite"):
            call()


@pytest.mark.parametrize(
    ("shape", "rank"),
    [((4, 4), None), ((5, 3), None), ((3, 5), None), ((4, 2), 2)],
    ids=["square", "tall", "wide", "psd-rank-2"],
)
def test_gradients_against_finite_differences(shape, rank):
    # At fixed k: a general perturbation raises the rank, and with it the default k.
    matrix = np.random.default_rng(3).normal(size=shape)
    S = torch.from_numpy(matrix if rank is None else matrix @ matrix.T).requires_grad_()
    assert torch.autograd.gradcheck(r_well, (S,))
    assert torch.autograd.gradcheck(lambda S: r_ill(S, rank=rank), (S,))
    with pytest.raises(CondnumError, match="first derivative only"):
        torch.autograd.grad(r_well(S), S, create_graph=True)


@pytest.mark.parametrize("sigma", SPECTRA, ids=range(40))
@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_theorems_41_43_and_a1(sigma, fraction):
    rng, k, kappa = np.random.default_rng(1), len(sigma), sigma[0] / sigma[-1]
    S = orthogonal(rng, k + 1)[:, :k] @ np.diag(sigma) @ orthogonal(rng, k).T
    well, ill = r_well_gradient(S), r_ill_gradient(S)
    # (2), upper bounds. Two close values make both sides equal to second order: 1e-9 for round-off.
    assert 1 / np.log(kappa) <= sigma[0] ** 2 * ill.value * (1 + 1e-9)
    assert np.log(kappa) <= k * well.value / sigma[-1] ** 2 * (1 + 1e-9)
    # (4), a step along the gradient moves κ.
    for result, eta in (
        (ill, fraction * k / (k - 1) / ill.value**2),
        (well, fraction * (kappa - 1) / ((1 - 1 / k) * kappa + 1 / k)),
    ):
        moved = np.linalg.svd(S - eta * result.gradient, compute_uv=False)
        assert (moved[0] > kappa * moved[-1]) == (result is ill)
    assert r_well(10 * S) == pytest.approx(100 * well.value, rel=1e-9)  # neither is invariant to scale
    assert r_ill(10 * S) == pytest.approx(ill.value / 100, rel=1e-9)
    # Theorem 4.3 with the corrected bounds.
    for extra in (0, 2):
        after = well_spectrum_step(sigma, fraction * well_step_bound(sigma, dimension=k + extra), k + extra)
        assert after.min() > 0
        assert after.max() / after.min() < kappa
    # k = 2: any step does; take up to ten times the step that annihilates σ_k.
    bound = ill_step_bound(sigma)
    scale = bound if np.isfinite(bound) else 10 / (ill.value**2 * sigma[-1])
    after = ill_spectrum_step(sigma, fraction * scale)
    assert after.max() > kappa * after.min()  # without a division, for after.min() may be 0


def test_bounds_by_hand():
    # D = 3, σ = (16, 4, 1): (1 − ¼)/(2·⅔·16) = 9/256; (2 − 1)·3/8.
    assert well_step_bound([16.0, 4.0, 1.0]) == pytest.approx(9 / 256)
    assert well_step_bound([16.0, 4.0, 1.0], bound="published") == pytest.approx(3 / 32)
    # D = 4: ¾/(2·¾·16) = 1/32.
    assert well_step_bound([16.0, 4.0, 1.0], dimension=4) == pytest.approx(1 / 32)
    # The second term rules: (√(1.21) − 1)·3/2.
    assert well_step_bound([1.21, 1.0, 1e-6]) == pytest.approx(0.15)
    for bound in ("corrected", "published"):
        assert ill_step_bound([3.0, 2.0, 1.0], bound=bound) == pytest.approx((11 / 6) ** 2 * 3)
    assert ill_step_bound([5.0, 0.1]) == ill_step_bound([3.0, 1.0], bound="published") == np.inf
    # The other extreme may be repeated.
    assert min(well_step_bound([4.0, 1.0, 1.0]), ill_step_bound([2.0, 2.0, 1.0])) > 0


@pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-14])
@pytest.mark.parametrize("least", [1.0, 0.5])
def test_bounds_near_a_tie_are_right_to_the_last_digits(gap, least):
    sigma = [1 + gap, 1.0, least][: 3 if least < 1 else 2]
    with mpmath.workdps(60):
        top, low, D = mpmath.mpf(sigma[0]), mpmath.mpf(sigma[-1]), len(sigma)
        first = (1 - mpmath.sqrt(low / top)) / (2 * (1 - mpmath.mpf(1) / D) * top)
        true = min(first, (mpmath.sqrt(top) - 1) * mpmath.mpf(D) / 2)
    assert well_step_bound(sigma) == pytest.approx(float(true), rel=1e-14)


def test_steps_by_hand():
    theta, K = np.diag([1.0, 2.0]), np.diag([3.0, 1.0])  # H = diag(3, 4)
    np.testing.assert_allclose(well_step(theta, K, 0.1), np.diag([1.3, 1.2]), rtol=1e-15)
    # ρ = 25/4 − 9/2 = 7/4; G = diag(3/2, −2)/ρ².
    expected = np.diag([1 - 0.2 * 1.5 * 16 / 49, 2 + 0.2 * 2 * 2 * 16 / 49])
    np.testing.assert_allclose(ill_step(theta, K, 0.1), expected, rtol=1e-14)
    # k = 3, σ = (3, 2, 1): ρ = 11/6, η = ρ²/(2·(2/3)·1) annihilates σ₃.
    eta, K = (11 / 6) ** 2 * 3 / 4, np.diag([3.0, 2.0, 1.0])
    assert condition_number(hessian(ill_step(np.eye(3), K, eta), K)).rank == 2


@pytest.mark.parametrize("kind", ["rotation", "more columns", "fewer columns"])
@pytest.mark.parametrize("name", ["Gaussian", "half of the rank", "N < D", "blocks", "half of the columns"])
def test_steps_are_preconditioned_gradients_and_move_the_spectrum_as_predicted(name, kind):
    X, theta = ROWS[name], thetas()[kind]
    K, rank = X.T @ X, min(np.linalg.matrix_rank(X), theta.shape[1])
    spectrum_of = lambda of: np.linalg.eigvalsh(of.T @ K @ of)[::-1][:rank].copy()  # ruff: ignore[lambda-assignment]
    sigma = spectrum_of(theta)
    etas = 0.9 * well_step_bound(sigma, dimension=theta.shape[1]), 0.3 * min(ill_step_bound(sigma), 1e3)
    moved = well_step(theta, K, etas[0]), ill_step(theta, K, etas[1], rank=rank)
    predicted = well_spectrum_step(sigma, etas[0], theta.shape[1]), ill_spectrum_step(sigma, etas[1])
    kappa = sigma[0] / sigma[-1]
    for step, spectrum in zip(moved, predicted, strict=True):
        expected = np.sort(spectrum)[::-1]
        np.testing.assert_allclose(spectrum_of(step), expected, atol=1e3 * EPS * kappa * expected[0])
    for step, eta, regularizer, options in (
        (moved[0], etas[0], r_well, {}),
        (moved[1], etas[1], r_ill, {"rank": rank}),
    ):
        leaf = torch.from_numpy(theta).requires_grad_()
        regularizer(hessian(leaf, K), **options).backward()
        # Where K has no inverse, K times the step: both are exact in its range.
        change = K @ (step - theta)
        atol = 1e3 * EPS * kappa * np.abs(K).max() * np.abs(step).max()
        np.testing.assert_allclose(change, -eta * leaf.grad.numpy(), rtol=1e-9, atol=atol)


def value_and_gradient(function, X):
    leaf = X.clone().requires_grad_()
    value = function(leaf)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("name", [name for name in ROWS if name not in ("repeated eigenvalues", "float32")])
def test_regularizers_of_features_are_those_of_the_full_hessian(name):
    X, k = torch.tensor(ROWS[name]), int(np.linalg.matrix_rank(ROWS[name]))
    for of_features, of_hessian in ((feature_r_well, r_well), (feature_r_ill, lambda H: r_ill(H, rank=k))):
        value, gradient = value_and_gradient(of_features, X)
        expected, reference = value_and_gradient(lambda Z, f=of_hessian: f(Z.T @ Z), X)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(gradient, reference, rtol=1e-8, atol=1e-8 * float(reference.abs().max()))
        half, exact = (
            value_and_gradient(of_features, X.float().to(dtype)) for dtype in (X.dtype, torch.float)
        )
        if k == 6:  # spectra are float64, and the gradient is rounded once
            assert exact[0] == half[0]
            assert torch.equal(exact[1], half[1].float())


@pytest.mark.parametrize("ridge", [1e-4, 1.0])
@pytest.mark.parametrize("name", ["Gaussian", "N < D", "half of the columns", "one-hot and a dead column"])
def test_the_preconditioned_gradient_is_that_of_a_dense_inverse(name, ridge):
    X = torch.tensor(ROWS[name]).requires_grad_()
    G = torch.tensor(np.random.default_rng(3).normal(size=X.shape))
    precondition_gradient(X, ridge=ridge).backward(G)
    K = X.detach().T @ X.detach()
    expected = G @ torch.linalg.inv(K + ridge * torch.linalg.eigvalsh(K)[-1] * torch.eye(6).double())
    # Both lose eps·(σ₁+ε)/ε of the largest entry of G/ε.
    torch.testing.assert_close(X.grad, expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda S: r_well(S, dimension=2), InvalidInputError, "≥ 3, got 2"),
        (lambda S: r_ill(S, rank=4), InvalidInputError, "between 1 and 3, got 4"),
        (lambda S: r_ill(S, rtol=-0.1), InvalidInputError, r"rtol must lie in \[0, 1\)"),
        (lambda S: r_well(1e160 * S), InvalidInputError, r"square overflows float64.*divide"),
        (lambda S: well_step_bound([2.0]), RankError, "at least 2 values, got 1"),
        (lambda S: ill_step_bound([1.0, 2.0]), InvalidInputError, "descending, got"),
        (lambda S: well_step_bound([1.0, 0.0]), InvalidInputError, "must be positive, got 0.0"),
        (lambda S: well_step_bound([2.0, 2.0, 1.0]), InvalidInputError, r"σ₁ = σ₂.*bound is 0"),
        (lambda S: ill_step_bound([2.0, 1.0, 1.0]), InvalidInputError, "smallest singular value is repeated"),
        (lambda S: ill_step(S, S, np.nan), InvalidInputError, "non-negative, got nan"),
        (lambda S: well_spectrum_step([2.0, 1.0], -0.1), InvalidInputError, "non-negative, got -0.1"),
        (lambda S: feature_r_ill(torch.zeros(3, 4)), RankError, "rank 0"),
        (lambda S: value_and_gradient(feature_r_ill, torch.eye(3)), RankError, "infinite"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(np.diag([3.0, 2, 1]))
