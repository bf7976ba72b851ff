"""The RIR ceiling and the closed-form immunizer: by hand, against SciPy, and as theorems."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from condnum.errors import InvalidInputError, RankError
from condnum.theory.ceiling import optimal_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.immunization import relative_immunization_ratio

SEEDS = st.integers(0, 2**32 - 1)


def orthogonal(rng, D):
    return np.linalg.qr(rng.normal(size=(D, D)))[0]


def covariance_of(rng, D, rank, kappa, scale=1.0):
    """A D×D covariance of that rank, its values log-spaced from `scale` down to `scale/kappa`."""
    values = np.zeros(D)
    values[:rank] = scale * np.geomspace(1, 1 / kappa, rank)
    Q = orthogonal(rng, D)
    return (Q * values) @ Q.T


def same_null_space(rng, D, rank, kappa_P, kappa_H):
    """Two covariances of one rank whose null spaces are the same; also a basis of their range."""
    Q = orthogonal(rng, D)[:, :rank]
    K_P, K_H = (Q @ covariance_of(rng, rank, rank, kappa) @ Q.T for kappa in (kappa_P, kappa_H))
    return K_P, K_H, Q


def extractor(rng, D, kind, columns=None):
    """Random θ: `plain` Gaussian, `skewed` with κ(θ) = 1e3, `thin` almost of rank one."""
    G = rng.normal(size=(D, columns or D))
    if kind == "skewed":
        return np.geomspace(1, 1e-3, D)[:, None] * G @ orthogonal(rng, G.shape[1])
    if kind == "thin":
        return np.outer(rng.normal(size=D), rng.normal(size=G.shape[1])) + 10 ** rng.uniform(-7, -1) * G
    return G


def rir(theta, K_P, K_H, **options):
    return relative_immunization_ratio(theta, K_P, K_H, **options).rir


class TestByHand:
    def test_diagonal_pair_with_its_evidence(self):
        # Pencil: 2/100 and 1/1, so 50; κ_P = 100, κ_H = 2: 50·100/2.
        ceiling = rir_ceiling(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
        assert ceiling.value == pytest.approx(2500, rel=1e-14)
        assert float(ceiling) == pytest.approx(2500, rel=1e-14)
        assert (ceiling.lambda_max, ceiling.lambda_min) == pytest.approx((1.0, 0.02), rel=1e-14)
        assert (ceiling.rank_pretrain, ceiling.rank_harmful, ceiling.harmful_only_dimension) == (2, 2, 0)
        assert ceiling.ridge is None

    def test_pretraining_may_have_directions_of_its_own(self):
        # Only λ = 2/100 and 1/1 are non-zero; κ(K_P) over all three directions is 200.
        ceiling = rir_ceiling(np.diag([100.0, 1.0, 0.5]), np.diag([2.0, 1.0, 0.0]))
        assert ceiling.value == pytest.approx(50 * 200 / 2, rel=1e-14)
        assert (ceiling.rank_pretrain, ceiling.rank_harmful) == (3, 2)

    def test_a_harmful_direction_of_its_own_makes_it_infinite(self):
        ceiling = rir_ceiling(np.diag([4.0, 1.0, 0.0, 0.0]), np.diag([2.0, 1.0, 3.0, 0.0]))
        assert ceiling.value == math.inf
        assert ceiling.harmful_only_dimension == 1
        assert (ceiling.lambda_max, ceiling.lambda_min) == pytest.approx((1.0, 0.5), rel=1e-14)

    def test_one_harmful_direction_has_no_condition_number_to_worsen(self):
        # rank(K_H) = 1: κ(H_H) = 1 whatever θ is, so only κ(K_P) = 4 can be gained.
        K_P, K_H = np.diag([4.0, 1.0, 0.0]), np.ones((3, 3))
        assert rir_ceiling(K_P, K_H).value == pytest.approx(4, rel=1e-13)
        assert rir(optimal_immunizer(K_P, K_H, null_gain=100.0), K_P, K_H) == pytest.approx(4, rel=1e-10)

    def test_crossed_spectra_beyond_double_precision(self):
        # κ(M) = 1e20; at θ = diag(10^-2.5, 1) RIR is 1e15/1e5 and must not exceed the ceiling.
        K_P, K_H = np.diag([1e10, 1.0]), np.diag([1.0, 1e10])
        assert rir_ceiling(K_P, K_H).value == pytest.approx(1e20, rel=1e-10)
        assert rir(np.diag([10**-2.5, 1.0]), K_P, K_H) == pytest.approx(1e10, rel=1e-9)


class TestAgainstScipy:
    @pytest.mark.parametrize("D", [2, 5, 20])
    @pytest.mark.parametrize("kappa", [10.0, 1e4], ids=["well", "ill"])
    def test_full_rank(self, D, kappa):
        rng = np.random.default_rng(D)
        K_P, K_H = covariance_of(rng, D, D, kappa), covariance_of(rng, D, D, kappa, scale=7.0)
        ceiling = rir_ceiling(K_P, K_H)
        pencil = eigh(K_H, K_P, eigvals_only=True)
        # The pencil's κ is at most κ², 1e8: SciPy keeps eps·1e8 of λ_min, a few 1e-8.
        tolerance = 1e-12 * kappa**1.5 + 1e-12
        assert ceiling.lambda_max == pytest.approx(pencil[-1], rel=tolerance)
        assert ceiling.lambda_min == pytest.approx(pencil[0], rel=tolerance)
        expected = pencil[-1] / pencil[0] * np.linalg.cond(K_P) / np.linalg.cond(K_H)
        assert ceiling.value == pytest.approx(expected, rel=tolerance)

    @pytest.mark.parametrize("ridge", [1e-6, 1e-2, 1.0])
    def test_ridge(self, ridge):
        rng = np.random.default_rng(2)
        K_P, K_H = covariance_of(rng, 6, 4, 5.0), covariance_of(rng, 6, 3, 5.0)
        R_P, R_H = K_P + ridge * np.eye(6), K_H + ridge * np.eye(6)
        pencil = eigh(R_H, R_P, eigvals_only=True)
        expected = pencil[-1] / pencil[0] * np.linalg.cond(R_P) / np.linalg.cond(R_H)
        assert rir_ceiling(K_P, K_H).value == math.inf
        # κ(M) ≤ 1/ε² = 1e12 at ε = 1e-6, and SciPy's λ_min keeps 1e12·eps.
        tolerance = max(1e-10, 1e-15 / ridge**2)
        assert rir_ceiling(K_P, K_H, ridge=ridge).value == pytest.approx(expected, rel=tolerance)


class TestTheorem:
    # κ(H) of the factor route keeps eps·√κ(H) and K's smallest value eps·κ(K): with κ(K) ≤ 1e6
    # and κ(θ) mostly below 1e4 that is 1e-9.
    SLACK = 1 + 1e-6

    @settings(max_examples=150, deadline=None)
    @given(
        seed=SEEDS,
        D=st.integers(2, 6),
        logs=st.tuples(st.floats(0, 6), st.floats(0, 6)),
        kind=st.sampled_from(["plain", "skewed"]),
    )
    def test_no_invertible_extractor_exceeds_it(self, seed, D, logs, kind):
        rng = np.random.default_rng(seed)
        K_P, K_H = (covariance_of(rng, D, D, 10**log, 10 ** rng.uniform(-3, 3)) for log in logs)
        assert rir(extractor(rng, D, kind), K_P, K_H) <= rir_ceiling(K_P, K_H).value * self.SLACK

    @settings(max_examples=80, deadline=None)
    @given(seed=SEEDS, D=st.integers(3, 6), drop=st.integers(1, 2), kind=st.sampled_from(["plain", "skewed"]))
    def test_nor_on_a_common_null_space(self, seed, D, drop, kind):
        rng = np.random.default_rng(seed)
        K_P, K_H, _ = same_null_space(rng, D, D - drop, 100.0, 30.0)
        ceiling = rir_ceiling(K_P, K_H)
        assert ceiling.harmful_only_dimension == 0
        assert rir(extractor(rng, D, kind), K_P, K_H) <= ceiling.value * self.SLACK

    @settings(max_examples=60, deadline=None)
    @given(seed=SEEDS, D=st.integers(2, 6), logs=st.tuples(st.floats(0, 3), st.floats(0, 3)))
    def test_the_closed_form_attains_it(self, seed, D, logs):
        rng = np.random.default_rng(seed)
        K_P, K_H = (covariance_of(rng, D, D, 10**log) for log in logs)
        result = relative_immunization_ratio(optimal_immunizer(K_P, K_H), K_P, K_H)
        # κ(K) ≤ 1e3 and κ(M) ≤ 1e6: eps·1e3 of the spectra, a few hundred times that of the product.
        assert result.rir == pytest.approx(rir_ceiling(K_P, K_H).value, rel=1e-10)
        assert result.pretrain_after.value == pytest.approx(1, rel=1e-10)


class TestOptimalImmunizer:
    def test_null_gain_makes_rir_grow_with_its_square(self):
        # K_P = diag(4, 1, 0), K_H = diag(2, 1, 3): θ* ∝ diag(½, 1, g), so H_H ∝ (½, 1, 3g²) and
        # κ_H = 6g² for g² ≥ 1/3; before, κ_P = 4 and κ_H = 3: RIR = 6g²/3·4 = 8g².
        K_P, K_H = np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 1.0, 3.0])
        for gain in (1.0, 10.0, 1e3):
            theta = optimal_immunizer(K_P, K_H, null_gain=gain)
            assert rir(theta, K_P, K_H) == pytest.approx(8 * gain**2, rel=1e-9)

    @pytest.mark.parametrize("rank", [5, 3], ids=["full-rank", "singular"])
    def test_symmetric_positive_definite_in_the_unit_gauge(self, rank):
        rng = np.random.default_rng(7)
        theta = optimal_immunizer(covariance_of(rng, 5, rank, 30.0), covariance_of(rng, 5, 5, 3.0))
        np.testing.assert_array_equal(theta, theta.T)
        assert np.linalg.eigvalsh(theta)[0] > 0
        assert np.linalg.norm(theta) ** 2 == pytest.approx(5, rel=1e-14)


class TestRidgeConventionCeiling:
    # ε-regularised κ's are as accurate as the spectra; ‖θ‖²σ₁(K) stays below 1e5 here, so that the
    # rank tolerance of the measured H, 1e-15·1e5, is far below every ε.
    SLACK = 1 + 1e-6

    def test_by_hand_full_rank(self):
        # s = 2, ε = 2: floor 1. Pencil (3/5, 2/2) and the bound 1/(3/5); κ_ε(K_P) = (4+2)/(1+2) = 2,
        # κ_ε(K_H) = (2+2)/(1+2) = 4/3.
        value = ridge_convention_ceiling(np.diag([4.0, 1.0]), np.diag([2.0, 1.0]), ridge=2.0)
        assert value == pytest.approx((5 / 3) * 2 / (4 / 3), rel=1e-14)

    def test_by_hand_singular(self):
        # s = 2, ε = 2: floor 1, pencil ((2+1)/(4+1), (1+1)/1): 2; κ_ε(K_P) = 6/2, κ_ε(K_H) = 4/3.
        value = ridge_convention_ceiling(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]), ridge=2.0)
        assert value == pytest.approx(2 * 3 / (4 / 3), rel=1e-14)

    @settings(max_examples=150, deadline=None)
    @given(
        seed=SEEDS,
        D=st.integers(2, 5),
        ranks=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        logs=st.tuples(st.floats(0, 6), st.floats(0, 6)),
        ridge=st.sampled_from([1e-6, 1e-3, 1.0]),
        kind=st.sampled_from(["plain", "skewed", "thin", "pencil", "whitened"]),
        wider=st.integers(0, 1),
    )
    @example(seed=0, D=2, ranks=(0, 0), logs=(6.0, 6.0), ridge=1e-6, kind="pencil", wider=0)
    @example(seed=0, D=3, ranks=(1, 1), logs=(2.0, 2.0), ridge=1e-6, kind="pencil", wider=0)
    def test_no_extractor_exceeds_it_in_either_gauge(self, seed, D, ranks, logs, ridge, kind, wider):
        rng = np.random.default_rng(seed)
        K_P, K_H = (
            covariance_of(rng, D, max(1, D - lost), 10**log, 10 ** rng.uniform(-2, 2))
            for lost, log in zip(ranks, logs, strict=True)
        )
        if kind == "pencil":  # aims at both ends of the pencil at once
            floor = ridge / D * np.eye(D)
            _, Z = eigh(K_H + floor, K_P + floor)
            Z /= np.linalg.norm(Z, axis=0)
            theta = np.outer(Z[:, -1], np.eye(D)[0]) + 10 ** rng.uniform(-5, 0) * np.outer(
                Z[:, 0], np.eye(D)[1]
            )
            theta += 10 ** rng.uniform(-9, -2) * np.eye(D)
        elif kind == "whitened":
            theta = optimal_immunizer(K_P, K_H, ridge=10 ** rng.uniform(-6, 0))
        else:
            theta = extractor(rng, D, kind, D + wider)
        unit = rir(theta, K_P, K_H, convention="ridge", ridge=ridge)
        assert unit <= ridge_convention_ceiling(K_P, K_H, ridge=ridge) * self.SLACK
        theta = theta / np.linalg.norm(theta) * 10 ** rng.uniform(-2, 1.5)
        trained = rir(theta, K_P, K_H, convention="ridge", ridge=ridge, gauge="as_trained")
        bound = ridge_convention_ceiling(K_P, K_H, ridge=ridge, squared_norm=float((theta**2).sum()))
        assert trained <= bound * self.SLACK

    @pytest.mark.parametrize("ridge", [1e-6, 1e-3])
    @pytest.mark.parametrize("seed", range(5))
    def test_singular_pairs_come_close_with_extractors_near_rank_one(self, seed, ridge):
        D = 6
        rng = np.random.default_rng(seed)
        K_P, K_H = covariance_of(rng, D, 4, 20.0), covariance_of(rng, D, 3, 10.0)
        floor = ridge / D * np.eye(D)
        _, Z = eigh(K_H + floor, K_P + floor)
        z = Z[:, -1] / np.linalg.norm(Z[:, -1])
        theta = math.sqrt(D) * np.outer(z, np.eye(D)[0]) + 1e-9 * np.eye(D)
        bound = ridge_convention_ceiling(K_P, K_H, ridge=ridge)
        # zᵀK_Pz ≈ (ε/D)-sized next to K_P of 1: SciPy's z is good to about 1e-16/(ε/D) < 1e-8.
        assert rir(theta, K_P, K_H, convention="ridge", ridge=ridge) == pytest.approx(bound, rel=1e-4)

    def test_one_null_space_and_equal_tasks(self):
        K = np.diag([3.0, 1.0, 0.0])
        assert ridge_convention_ceiling(K, K) == pytest.approx(1, rel=1e-12)

    def test_wants_at_least_as_many_features_as_inputs(self):
        # Fewer columns can cut null(K_P) away; the bound is not for them: κ_ε(H_P) = 1 here.
        K_P, K_H = np.diag([1.0, 1.0, 0.0]), np.diag([1.0, 1e-4, 0.0])
        narrow = rir(np.eye(3)[:, :2], K_P, K_H, convention="ridge")
        assert narrow > 1000 * ridge_convention_ceiling(K_P, K_H)


class TestErrors:
    FUNCTIONS = pytest.mark.parametrize(
        "function", [rir_ceiling, ridge_convention_ceiling, optimal_immunizer], ids=lambda f: f.__name__
    )

    @FUNCTIONS
    @pytest.mark.parametrize(
        ("K_P", "K_H", "error", "message"),
        [
            (np.eye(2), np.eye(3), InvalidInputError, r"\(2, 2\).*\(3, 3\).*same shape"),
            (np.ones((2, 3)), np.ones((2, 3)), InvalidInputError, "must be square"),
            (np.ones(2), np.eye(2), InvalidInputError, r"pretrain_covariance must have 2 dimension"),
            (np.eye(2), np.diag([1.0, np.nan]), InvalidInputError, "harmful_covariance holds 1 non-finite"),
            (np.zeros((2, 2)), np.eye(2), RankError, "pretrain_covariance has rank 0"),
            (np.eye(2), np.zeros((2, 2)), RankError, "harmful_covariance has rank 0"),
            (np.diag([1.0, -0.5]), np.eye(2), InvalidInputError, "not positive semidefinite.*-0.5"),
        ],
        ids=["shapes", "not-square", "vector", "nan", "zero-P", "zero-H", "indefinite"],
    )
    def test_covariances(self, function, K_P, K_H, error, message):
        with pytest.raises(error, match=message):
            function(K_P, K_H)

    @FUNCTIONS
    @pytest.mark.parametrize("ridge", [0.0, -1.0, math.inf, math.nan])
    def test_ridge(self, function, ridge):
        with pytest.raises(InvalidInputError, match=f"ridge must be positive and finite, got {ridge}"):
            function(np.eye(2), np.eye(2), ridge=ridge)

    @pytest.mark.parametrize("gain", [0.0, -1.0, math.inf, math.nan])
    def test_null_gain(self, gain):
        with pytest.raises(InvalidInputError, match=f"null_gain must be positive and finite, got {gain}"):
            optimal_immunizer(np.eye(2), np.eye(2), null_gain=gain)

    def test_tasks_that_share_no_direction(self):
        with pytest.raises(RankError, match="share no direction"):
            rir_ceiling(np.diag([1.0, 0.0]), np.diag([0.0, 1.0]))
