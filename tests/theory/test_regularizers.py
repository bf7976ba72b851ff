"""R_well, R_ill, gradients, steps and bounds: by hand, autograd, as Theorems 4.1, 4.2, 4.3 and A.1."""

import mpmath
import numpy as np
import pytest
import torch
from covariances import orthogonal, theta_gradient
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import CondnumError, InvalidInputError, RankError
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
FULL = np.array([[2.0, 1], [1, 2]])  # eigenpairs 3: (1,1)/√2 and 1: (1,-1)/√2
WIDE = np.array([[0, 2.0, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("matrix", "well", "well_gradient", "ill", "ill_gradient"),
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
        (
            WIDE,
            3 / 4,
            np.array([[0, 1.0, 0], [-0.5, 0, 0]]),
            4 / 3,
            np.array([[0, -1.0, 0], [0.5, 0, 0]]) * 16 / 9,
        ),
        (FULL, 2.0, np.array([[0.5, 1.0], [1.0, 0.5]]), 1 / 2, np.array([[-1.0, -2], [-2, -1]]) / 8),
    ],
    ids=["diagonal", "rank-deficient", "indefinite", "rectangular", "full"],
)
def test_by_hand(matrix, well, well_gradient, ill, ill_gradient):
    for value, gradient, number, expected in (
        (r_well, r_well_gradient, well, well_gradient),
        (r_ill, r_ill_gradient, ill, ill_gradient),
    ):
        result = gradient(matrix)
        assert type(value(matrix)) is float
        np.testing.assert_allclose([value(matrix), result.value], number, **HAND)
        np.testing.assert_allclose(result.gradient, expected, **HAND)
        assert result.differentiable is True


def test_dimension_counts_the_zeros_that_a_dual_matrix_leaves_out():
    # 2x2 dual of a 4x4 Hessian with the same non-zero spectrum: ½·9 − 10/8.
    assert r_well(np.diag([3.0, 1.0]), dimension=4) == pytest.approx(13 / 4)
    assert r_well(np.diag([3.0, 1, 0, 0])) == pytest.approx(13 / 4)
    gradient = r_well_gradient(np.diag([3.0, 1.0]), dimension=4).gradient
    np.testing.assert_allclose(gradient, np.diag([9 / 4, -1 / 4]), **HAND)


class TestRepeatedExtremes:
    def test_the_centre_of_the_subdifferential(self):
        well, ill = r_well_gradient(np.diag([2.0, 2, 1])), r_ill_gradient(np.diag([2.0, 1, 1]))  # ρ = 1/2
        np.testing.assert_allclose(well.gradient, np.diag([1.0, 1, -1]) / 3, **HAND)
        np.testing.assert_allclose(ill.gradient, np.diag([-8.0, 2, 2]) / 3, **HAND)
        for result in (well, ill):
            assert (result.differentiable, result.multiplicity) == (False, 2)

    @pytest.mark.parametrize("function", [r_well_gradient, r_ill_gradient])
    def test_the_choice_does_not_depend_on_the_basis(self, function):
        rng = np.random.default_rng(0)
        spectrum = np.diag([3.0, 3, 2, 1, 1])
        expected = function(spectrum).gradient
        for _ in range(5):
            Q, P = orthogonal(rng, 5), orthogonal(rng, 5)
            for right in (Q, P):  # symmetric, general
                found = function(Q @ spectrum @ right.T, rtol=1e-12)
                assert not found.differentiable
                np.testing.assert_allclose(found.gradient, Q @ expected @ right.T, atol=1e-12)


@pytest.mark.parametrize(
    "matrix",
    [np.diag([3.0, 0, 0]), 2 * np.eye(3), np.array([[7.0]]), orthogonal(np.random.default_rng(0), 6)],
    ids=["rank-1", "flat", "scalar", "orthogonal"],
)
def test_an_infinite_r_ill_has_no_gradient(matrix):
    assert r_ill(matrix) == np.inf
    with pytest.raises(RankError, match="infinite and has no gradient"):
        r_ill_gradient(matrix)
    with pytest.raises(RankError, match="infinite and has no gradient"):
        r_ill(torch.from_numpy(matrix).requires_grad_()).backward()


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (r_well, {"dimension": 2}, "≥ 3, got 2"),
        (r_ill, {"rank": 4}, "between 1 and 3, got 4"),
        (r_ill, {"rtol": -0.1}, r"rtol must lie in \[0, 1\)"),
    ],
)
def test_options_that_are_refused(function, options, message):
    with pytest.raises(InvalidInputError, match=message):
        function(np.diag([3.0, 2, 1]), **options)


@pytest.mark.parametrize(
    ("shape", "rank"),
    [((4, 4), None), ((5, 3), None), ((3, 5), None), ((4, 6), "psd"), ((4, 2), 2)],
    ids=["square", "tall", "wide", "psd", "psd-rank-2"],
)
def test_gradients_against_finite_differences(shape, rank):
    # At fixed k: a general perturbation raises the rank, and with it the default k.
    matrix = np.random.default_rng(3).normal(size=shape)
    matrix, rank = (matrix, None) if rank is None else (matrix @ matrix.T, rank if rank == 2 else None)
    S = torch.from_numpy(matrix).requires_grad_()
    assert torch.autograd.gradcheck(r_well, (S,))
    assert torch.autograd.gradcheck(lambda S: r_ill(S, rank=rank), (S,))


@pytest.mark.parametrize("regularizer", [r_well, r_ill])
def test_second_derivatives_are_refused_not_wrong(regularizer):
    S = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64)).requires_grad_()
    with pytest.raises(CondnumError, match="first derivative only"):
        torch.autograd.grad(regularizer(S), S, create_graph=True)


@st.composite
def spectra(draw):
    """A spectrum with ratios of neighbours of at least 1.01.

    With steps (below) of at least 0.01 of the bound κ moves by at least 1e-5 of itself, nine orders above
    round-off, so that inequalities are strict.
    """
    ratios = draw(st.lists(st.floats(1.01, 4.0), min_size=1, max_size=5))
    return draw(st.floats(0.05, 20.0)) * np.cumprod([1.0, *ratios])[::-1]


MANY, FRACTION = settings(max_examples=100), st.floats(0.01, 0.99)


@MANY
@given(spectra(), st.integers(0, 2), st.integers(0, 2**32 - 1), FRACTION, st.floats(0.01, 100))
def test_theorems_41_and_a1(sigma, extra, seed, fraction, scale):
    rng, k, kappa = np.random.default_rng(seed), len(sigma), sigma[0] / sigma[-1]
    S = orthogonal(rng, k + extra)[:, :k] @ np.diag(sigma) @ orthogonal(rng, k).T
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
    # Neither is invariant to scale.
    assert r_well(scale * S) == pytest.approx(scale**2 * well.value, rel=1e-9)
    assert r_ill(scale * S) == pytest.approx(ill.value / scale**2, rel=1e-9)


def spectrum_of(theta, K, rank):
    return np.linalg.eigvalsh(theta.T @ K @ theta)[::-1][:rank].copy()


def test_exact_annihilation_lowers_the_rank():
    # k = 3, σ = (3, 2, 1): ρ = 11/6, η = ρ²/(2·(2/3)·1).
    eta, K = (11 / 6) ** 2 * 3 / 4, np.diag([3.0, 2.0, 1.0])
    assert ill_spectrum_step([3.0, 2.0, 1.0], eta)[-1] == pytest.approx(0, abs=1e-30)
    assert condition_number(hessian(ill_step(np.eye(3), K, eta), K)).rank == 2


class TestBounds:
    def test_by_hand(self):
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

    @pytest.mark.parametrize("bound", [well_step_bound, ill_step_bound])
    @pytest.mark.parametrize(
        ("sigma", "error", "message"),
        [
            ([2.0], RankError, "at least 2 values, got 1"),
            ([1.0, 2.0], InvalidInputError, "descending, got"),
            ([1.0, 0.0], InvalidInputError, "must be positive, got 0.0"),
        ],
    )
    def test_bad_spectra(self, bound, sigma, error, message):
        with pytest.raises(error, match=message):
            bound(np.asarray(sigma))

    def test_repeated_extremes(self):
        with pytest.raises(InvalidInputError, match=r"σ₁ = σ₂.*bound is 0"):
            well_step_bound([2.0, 2.0, 1.0])
        with pytest.raises(InvalidInputError, match=r"smallest singular value is repeated.*undefined"):
            ill_step_bound([2.0, 1.0, 1.0])
        # The other extreme may be repeated.
        assert min(well_step_bound([4.0, 1.0, 1.0]), ill_step_bound([2.0, 2.0, 1.0])) > 0

    @pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-12, 1e-14])
    @pytest.mark.parametrize("least", [1.0, 0.5])
    def test_near_a_tie_they_are_right_to_the_last_digits(self, gap, least):
        sigma = [1 + gap, 1.0, least][: 3 if least < 1 else 2]
        with mpmath.workdps(60):
            top, second, low = mpmath.mpf(sigma[0]), mpmath.mpf(1), mpmath.mpf(sigma[-1])
            D = len(sigma)
            first = (1 - mpmath.sqrt(low / top)) / (2 * (1 - mpmath.mpf(1) / D) * top)
            true = min(first, (mpmath.sqrt(top / second) - 1) * D / (2 * second))
        assert well_step_bound(sigma) == pytest.approx(float(true), rel=1e-14)

    @MANY
    @given(sigma=spectra(), extra=st.integers(0, 3), fraction=FRACTION)
    def test_within_the_corrected_ones_kappa_falls_and_rises(self, sigma, extra, fraction):
        kappa, dimension = sigma[0] / sigma[-1], len(sigma) + extra
        after = well_spectrum_step(sigma, fraction * well_step_bound(sigma, dimension=dimension), dimension)
        assert after.min() > 0
        assert after.max() / after.min() < kappa
        bound = ill_step_bound(sigma)
        # k = 2: any step does; take up to ten times the step that annihilates σ_k.
        scale = bound if np.isfinite(bound) else 10 / (r_ill(np.diag(sigma)) ** 2 * sigma[-1])
        after = ill_spectrum_step(sigma, fraction * scale)
        assert after.max() > kappa * after.min()  # without a division, for after.min() may be 0


class TestSteps:
    def test_by_hand(self):
        theta, K = np.diag([1.0, 2.0]), np.diag([3.0, 1.0])  # H = diag(3, 4)
        np.testing.assert_allclose(well_step(theta, K, 0.1), np.diag([1.3, 1.2]), rtol=1e-15)
        # ρ = 25/4 − 9/2 = 7/4; G = diag(3/2, −2)/ρ².
        expected = np.diag([1 - 0.2 * 1.5 * 16 / 49, 2 + 0.2 * 2 * 2 * 16 / 49])
        np.testing.assert_allclose(ill_step(theta, K, 0.1), expected, rtol=1e-14)

    @pytest.mark.parametrize(("rows", "columns", "samples"), [(5, 5, 9), (5, 3, 9), (4, 6, 9), (5, 5, 3)])
    def test_preconditioned_gradients_and_predicted_spectra(self, rows, columns, samples):
        rng, rank = np.random.default_rng(rows + columns), min(rows, columns, samples)
        X, theta = rng.normal(size=(samples, rows)), rng.normal(size=(rows, columns))
        K = X.T @ X
        sigma = spectrum_of(theta, K, rank)
        bound = ill_step_bound(sigma)
        etas = 0.9 * well_step_bound(sigma, dimension=columns), 0.3 * (bound if np.isfinite(bound) else 1.0)
        moved = well_step(theta, K, etas[0]), ill_step(theta, K, etas[1], rank=rank)
        if samples > rows:  # forming the inverse costs κ(K)·eps, here about 1e-13
            gradients = theta_gradient(r_well, theta, K), theta_gradient(r_ill, theta, K, rank=rank)
            for step, eta, gradient in zip(moved, etas, gradients, strict=True):
                by_inverse = theta - eta * np.linalg.inv(K) @ gradient.numpy()
                np.testing.assert_allclose(step, by_inverse, rtol=1e-9, atol=1e-9)
        predicted = well_spectrum_step(sigma, etas[0], columns), ill_spectrum_step(sigma, etas[1])
        for step, spectrum in zip(moved, predicted, strict=True):
            # eigvalsh is accurate to a small multiple of eps·σ₁.
            expected = np.sort(spectrum)[::-1]
            np.testing.assert_allclose(spectrum_of(step, K, rank), expected, atol=1e-11 * expected[0])

    @pytest.mark.parametrize("eta", [-0.1, np.inf, np.nan])
    @pytest.mark.parametrize("step", [well_step, ill_step, well_spectrum_step, ill_spectrum_step])
    def test_bad_eta(self, step, eta):
        given = ([2.0, 1.0],) if "spectrum" in step.__name__ else (np.eye(2), np.diag([2.0, 1.0]))
        with pytest.raises(InvalidInputError, match=f"non-negative, got {eta}"):
            step(*given, eta)

    def test_infinite_r_ill(self):
        for call in (lambda: ill_step(np.eye(2), np.eye(2), 0.1), lambda: ill_spectrum_step([2.0, 2.0], 0.1)):
            with pytest.raises(RankError, match="infinite"):
                call()
