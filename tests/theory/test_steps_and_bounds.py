"""Theorem 4.3: steps, predicted spectra, printed and corrected bounds, by hand and in number."""

import numpy as np
import pytest

from condnum.errors import InvalidInputError, RankError
from condnum.theory.regularizers import r_ill_theta_gradient, r_well_theta_gradient
from condnum.theory.spectra import condition_number, hessian
from condnum.theory.steps import (
    ill_spectrum_step,
    ill_step,
    ill_step_bound,
    well_spectrum_step,
    well_step,
    well_step_bound,
)

PRINTED_2 = np.array([2.15920825, 1.9376387, 1.32386916])


def problem(rows=5, columns=5, samples=9, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(samples, rows))
    return rng.normal(size=(rows, columns)), X.T @ X


def spectrum_of(theta, K, rank):
    return np.linalg.eigvalsh(theta.T @ K @ theta)[::-1][:rank].copy()


class TestCounterExamples:
    """The printed bounds fail where the theory notes say so; the corrected ones do not."""

    def test_printed_well_bound(self):
        assert well_step_bound([4.0, 1.0], source="printed") == pytest.approx(0.5, rel=1e-15)
        np.testing.assert_array_equal(well_spectrum_step([4.0, 1.0], 0.25, 2), [0.0, 25 / 16])
        # On matrices: the step below the printed bound annihilates σ₁; another one multiplies κ.
        after = hessian(well_step(np.eye(2), np.diag([4.0, 1.0]), 0.25), np.diag([4.0, 1.0]))
        np.testing.assert_allclose(after, np.diag([0.0, 25 / 16]), atol=1e-15)
        after = hessian(well_step(np.eye(2), np.diag([4.0, 1.0]), 0.24), np.diag([4.0, 1.0]))
        assert condition_number(after).value > 200

    def test_printed_ill_bound(self):
        eta = 0.8063 * ill_step_bound(PRINTED_2, source="printed")
        after = ill_spectrum_step(PRINTED_2, eta)
        assert PRINTED_2[0] / PRINTED_2[-1] == pytest.approx(1.631, abs=5e-4)
        assert after.max() / after.min() == pytest.approx(1.562, abs=5e-4)
        K = np.diag(PRINTED_2)
        assert condition_number(hessian(ill_step(np.eye(3), K, eta), K)).value == pytest.approx(
            1.562, abs=5e-4
        )
        assert eta > ill_step_bound(PRINTED_2)

    def test_exact_annihilation_lowers_the_rank(self):
        # k = 3, σ = (3, 2, 1): ρ = 11/6, η = ρ²/(2·(2/3)·1).
        eta = (11 / 6) ** 2 * 3 / 4
        assert ill_spectrum_step([3.0, 2.0, 1.0], eta)[-1] == pytest.approx(0, abs=1e-30)
        K = np.diag([3.0, 2.0, 1.0])
        after = condition_number(hessian(ill_step(np.eye(3), K, eta), K))
        assert after.rank == 2


class TestBounds:
    def test_well_by_hand(self):
        # D = 3, σ = (16, 4, 1): (1 − ¼)/(2·⅔·16) = 9/256; (2 − 1)·3/8.
        assert well_step_bound([16.0, 4.0, 1.0]) == pytest.approx(9 / 256)
        assert well_step_bound([16.0, 4.0, 1.0], source="printed") == pytest.approx(3 / 32)
        # D = 4: ¾/(2·¾·16) = 1/32.
        assert well_step_bound([16.0, 4.0, 1.0], dimension=4) == pytest.approx(1 / 32)
        # The second term rules: (√(1.21) − 1)·3/2.
        assert well_step_bound([1.21, 1.0, 1e-6]) == pytest.approx(0.15)

    def test_ill_by_hand(self):
        assert ill_step_bound([3.0, 2.0, 1.0]) == pytest.approx((11 / 6) ** 2 * 3)
        assert ill_step_bound([3.0, 2.0, 1.0], source="printed") == pytest.approx((11 / 6) ** 2 * 3)
        assert ill_step_bound([5.0, 0.1]) == np.inf
        assert ill_step_bound([3.0, 1.0], source="printed") == np.inf

    @pytest.mark.parametrize("bound", [well_step_bound, ill_step_bound])
    @pytest.mark.parametrize(
        ("sigma", "error", "message"),
        [
            ([2.0], RankError, "at least 2 values, got 1"),
            ([1.0, 2.0], InvalidInputError, "descending, got"),
            ([1.0, 0.0], InvalidInputError, "must be positive, got 0.0"),
            ([2.0, -1.0], InvalidInputError, "must be positive, got -1.0"),
            ([2.0, np.inf], InvalidInputError, "non-finite"),
            (2.0, InvalidInputError, "at least 1 dimension"),
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
        assert well_step_bound([4.0, 1.0, 1.0]) > 0
        assert ill_step_bound([2.0, 2.0, 1.0]) > 0


class TestSteps:
    def test_by_hand(self):
        theta, K = np.diag([1.0, 2.0]), np.diag([3.0, 1.0])  # H = diag(3, 4)
        np.testing.assert_allclose(well_step(theta, K, 0.1), np.diag([1.3, 1.2]), rtol=1e-15)
        # ρ = 25/4 − 9/2 = 7/4; G = diag(3/2, −2)/ρ².
        expected = np.diag([1 - 0.2 * 1.5 * 16 / 49, 2 + 0.2 * 2 * 2 * 16 / 49])
        np.testing.assert_allclose(ill_step(theta, K, 0.1), expected, rtol=1e-14)

    @pytest.mark.parametrize("columns", [5, 3, 7])
    def test_is_the_preconditioned_gradient_step(self, columns):
        theta, K = problem(columns=columns)
        inverse = np.linalg.inv(K)
        well, ill = r_well_theta_gradient(theta, K), r_ill_theta_gradient(theta, K)
        # Forming the inverse costs κ(K)·eps, here about 1e-13.
        np.testing.assert_allclose(
            well_step(theta, K, 1e-3), theta - 1e-3 * inverse @ well.gradient, rtol=1e-9, atol=1e-9
        )
        np.testing.assert_allclose(
            ill_step(theta, K, 0.5), theta - 0.5 * inverse @ ill.gradient, rtol=1e-9, atol=1e-9
        )

    @pytest.mark.parametrize(
        ("rows", "columns", "samples"), [(5, 5, 9), (5, 3, 9), (4, 6, 9), (5, 5, 3)], ids=str
    )
    def test_spectra_are_those_predicted(self, rows, columns, samples):
        theta, K = problem(rows, columns, samples, seed=rows + columns)
        rank = min(rows, columns, samples)
        sigma = spectrum_of(theta, K, rank)
        eta = 0.9 * well_step_bound(sigma, dimension=columns)
        predicted = np.sort(well_spectrum_step(sigma, eta, columns))[::-1]
        actual = spectrum_of(well_step(theta, K, eta), K, rank)
        # eigvalsh is accurate to a small multiple of eps·σ₁.
        np.testing.assert_allclose(actual, predicted, atol=1e-12 * sigma[0])
        bound = ill_step_bound(sigma)
        eta = 0.3 * (bound if np.isfinite(bound) else 1.0)
        predicted = np.sort(ill_spectrum_step(sigma, eta))[::-1]
        actual = spectrum_of(ill_step(theta, K, eta, rank=rank), K, rank)
        np.testing.assert_allclose(actual, predicted, atol=1e-11 * predicted[0])

    def test_repeated_extremes_move_together(self):
        K = np.diag([3.0, 3.0, 1.0, 1.0])
        after = np.diag(hessian(well_step(np.eye(4), K, 0.05), K))
        np.testing.assert_allclose(after, well_spectrum_step(np.diag(K), 0.05, 4), rtol=1e-14)
        assert after[0] == after[1] < 3
        after = np.diag(hessian(ill_step(np.eye(4), K, 0.5), K))
        np.testing.assert_allclose(after, ill_spectrum_step(np.diag(K), 0.5), rtol=1e-14)
        assert after[2] == after[3] < 1

    @pytest.mark.parametrize("eta", [-0.1, np.inf, np.nan])
    def test_bad_eta(self, eta):
        calls = [
            lambda: well_step(np.eye(2), np.diag([2.0, 1.0]), eta),
            lambda: ill_step(np.eye(2), np.diag([2.0, 1.0]), eta),
            lambda: well_spectrum_step([2.0, 1.0], eta, 2),
            lambda: ill_spectrum_step([2.0, 1.0], eta),
        ]
        for call in calls:
            with pytest.raises(InvalidInputError, match=f"non-negative, got {eta}"):
                call()

    def test_infinite_r_ill(self):
        with pytest.raises(RankError, match="infinite"):
            ill_step(np.eye(2), np.eye(2), 0.1)
        with pytest.raises(RankError, match="infinite"):
            ill_spectrum_step([2.0, 2.0], 0.1)
