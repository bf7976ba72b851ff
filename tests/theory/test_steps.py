"""Theorem 4.3: steps, predicted spectra, printed and corrected bounds, by hand and as properties."""

import numpy as np
import pytest
from condnum.theory.spectra import condition_number, hessian
from condnum.theory.steps import (
    ill_spectrum_step,
    ill_step,
    ill_step_bound,
    well_spectrum_step,
    well_step,
    well_step_bound,
)
from covariances import theta_gradient
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.errors import InvalidInputError, RankError
from condnum.theory.regularizers import r_ill, r_well

MANY = settings(max_examples=100)
FRACTION = st.floats(0.01, 0.99)


@st.composite
def spectra(draw, minimum=2):
    """Ratios of neighbours of at least 1.01: with steps of at least 0.01 of the bound κ moves by 1e-5."""
    ratios = draw(st.lists(st.floats(1.01, 4.0), min_size=minimum - 1, max_size=5))
    return draw(st.floats(0.05, 20.0)) * np.cumprod([1.0, *ratios])[::-1]


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
