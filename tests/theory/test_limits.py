"""Limits, null spaces, the Pareto front: by hand, against SciPy, as theorems, and what attains them."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from covariances import covariance_of, orthogonal
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from condnum import Task
from condnum.errors import InvalidInputError, RankError
from condnum.theory.kappa import relative_immunization_ratio
from condnum.theory.limits import (
    extractor_ratios,
    feasible_region,
    immunizer_family,
    max_rir_immunizer,
    null_spaces,
    pareto_extractor,
    pareto_immunizer,
    pencil_directions,
    ridge_convention_limit,
    ridge_limits,
    rir_limit,
)

SEEDS = st.integers(0, 2**32 - 1)
# σ(Xθ) keeps eps·κ(Xθ), and of a covariance K its smallest value eps·κ(K): with κ(K) ≤ 1e6 and κ(θ) mostly
# below 1e4 that is 1e-9. ε-regularized κ's: ‖θ‖²σ₁(K) is below 1e5, so round-off is far below every ε.
SLACK = 1 + 1e-6


def extractor(rng, D, kind, columns=None):
    """Random θ: `plain` Gaussian, `skewed` with κ(θ) = 1e3, `thin` almost of rank one."""
    G = rng.normal(size=(D, columns or D))
    if kind == "skewed":
        return np.geomspace(1, 1e-3, D)[:, None] * G @ orthogonal(rng, G.shape[1])
    if kind == "thin":
        return np.outer(rng.normal(size=D), rng.normal(size=G.shape[1])) + 10 ** rng.uniform(-7, -1) * G
    return G


def pair_of(seed, dimension, ranks, kappas=(1e3, 1e2)):
    """Two covariances of given ranks, with log-spaced spectra and random eigenvectors."""
    rng = np.random.default_rng(seed)
    return [covariance_of(rng, dimension, rank, kappa) for rank, kappa in zip(ranks, kappas, strict=True)]


def pair(seed, dimension=5):
    """Two tasks of random rows, with columns of uneven scale."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=(2, 1, dimension)))
    return [Task.of(X) for X in rng.normal(size=(2, dimension + 3, dimension)) * scales]


def rir(theta, K_P, K_H, **options):
    return relative_immunization_ratio(theta, K_P, K_H, **options).rir


class TestLimit:
    @pytest.mark.parametrize(
        ("P", "H", "value", "pencil", "ranks"),
        [
            # Pencil: 2/100 and 1/1, so 50; κ_P = 100, κ_H = 2: 50·100/2.
            ([100.0, 1.0], [2.0, 1.0], 2500, (1, 0.02), (2, 2, 0)),
            # Only λ = 2/100 and 1/1 are non-zero; κ(K_P) over all three directions is 200.
            ([100.0, 1.0, 0.5], [2.0, 1.0, 0.0], 50 * 200 / 2, (1, 0.02), (3, 2, 0)),
            ([4.0, 1.0, 0.0, 0.0], [2.0, 1.0, 3.0, 0.0], math.inf, (1, 0.5), (2, 3, 1)),
            # κ(M) = 1e20.
            ([1e10, 1.0], [1.0, 1e10], 1e20, (1e10, 1e-10), (2, 2, 0)),
            # They share no direction; at rank 1 κ(H_H) = 1 and RIR ≤ κ(K_P).
            ([1, 1, 0, 0.0], [0, 0, 1, 2.0], math.inf, (0, 0), (2, 2, 2)),
            ([4, 1, 0.0], [0, 0, 3.0], 4, (0, 0), (2, 1, 1)),
        ],
        ids=["diagonal", "benign's-own", "harmful's-own", "crossed", "disjoint", "disjoint-rank-1"],
    )
    def test_by_hand_with_its_evidence(self, P, H, value, pencil, ranks):
        limit = rir_limit(np.diag(P), np.diag(H))
        assert limit.value == pytest.approx(value, rel=1e-10)
        assert (limit.lambda_max, limit.lambda_min) == pytest.approx(pencil, rel=1e-10)
        assert (limit.rank_benign, limit.rank_harmful, limit.harmful_only_dimension) == ranks
        rows = rir_limit(*(Task.of(np.diag(np.sqrt(of))) for of in (P, H)))
        assert rows.value == pytest.approx(value, rel=1e-10)
        # One answer: the closed form gives what the limit allows.
        reached = relative_immunization_ratio(
            pareto_immunizer(np.diag(P), np.diag(H)), np.diag(P), np.diag(H)
        )
        assert reached.success is (value > 4)
        assert reached.rir <= value * (1 + 1e-9)

    @pytest.mark.parametrize("ridge", [None, 1e-6, 1e-2, 1.0])
    @pytest.mark.parametrize("kappa", [10.0, 1e4], ids=["well", "ill"])
    def test_limit_and_directions_are_scipy_s(self, kappa, ridge):
        """`K_H w = λK_P w`, with a ridge also for singular covariances."""
        D, rng = 6, np.random.default_rng(2)
        ranks = (D, D) if ridge is None else (4, 3)
        K_P, K_H = (
            covariance_of(rng, D, rank, kappa, scale) for rank, scale in zip(ranks, (1, 7), strict=True)
        )
        R_P, R_H = (K + (ridge or 0) * np.eye(D) for K in (K_P, K_H))
        pencil = scipy.linalg.eigh(R_H, R_P, eigvals_only=True)
        expected = pencil[-1] / pencil[0] * np.linalg.cond(R_P) / np.linalg.cond(R_H)
        # SciPy keeps eps·κ(M) of λ_min, with κ(M) ≤ κ(R_P)κ(R_H).
        tolerance = 1e-12 + 1e-15 * np.linalg.cond(R_P) * np.linalg.cond(R_H)
        limit = rir_limit(K_P, K_H, ridge=ridge)
        assert limit.lambda_max == pytest.approx(pencil[-1], rel=1e-9)
        assert limit.value == pytest.approx(expected, rel=tolerance)
        if kappa < 100 and ridge in (None, 1e-2, 1.0):
            found = pencil_directions(R_P, R_H)
            np.testing.assert_allclose(found.values, pencil[::-1], rtol=1e-9)
            # One pattern for both tasks, up to λ.
            np.testing.assert_allclose(found.patterns, R_P @ found.filters, atol=1e-8)
            np.testing.assert_allclose(found.patterns * found.values, R_H @ found.filters, atol=1e-7)

    def test_shares_sum_to_one_and_do_not_see_units(self):
        X_P, X_H = np.random.default_rng(2).normal(size=(2, 10, 6))
        units = np.array([1.0, 1000.0, 0.01, 3.0, 1.0, 7.0])
        plain = pencil_directions(Task.of(X_P), Task.of(X_H))
        scaled = pencil_directions(Task.of(X_P * units), Task.of(X_H * units))
        shares, others = (found.filters * found.patterns for found in (plain, scaled))
        np.testing.assert_allclose(shares.sum(axis=0), np.ones(6), rtol=1e-9)
        np.testing.assert_allclose(others, shares, atol=1e-9)  # κ of the units is 1e5
        found = pencil_directions(
            np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 9.0])
        )  # the range alone counts
        np.testing.assert_allclose(found.values, [3.0, 0.5])
        np.testing.assert_allclose(found.filters[2], 0, atol=1e-12)

    @settings(max_examples=80)
    @given(
        seed=SEEDS,
        D=st.integers(2, 6),
        drop=st.integers(0, 2),
        logs=st.tuples(st.floats(0, 6), st.floats(0, 6)),
        kind=st.sampled_from(["plain", "skewed"]),
    )
    def test_no_invertible_extractor_exceeds_it(self, seed, D, drop, logs, kind):
        """Also on a null space of `drop` dimensions that both tasks share."""
        rng = np.random.default_rng(seed)
        rank = max(D - drop, 1)
        if rank < D:
            logs = [min(log, 2) for log in logs]
        Q = orthogonal(rng, D)[:, :rank]
        K_P, K_H = (
            Q @ covariance_of(rng, rank, rank, 10**log, 10 ** rng.uniform(-3, 3)) @ Q.T for log in logs
        )
        limit = rir_limit(K_P, K_H)
        assert limit.harmful_only_dimension == 0
        theta = extractor(rng, D, kind)
        assume(np.linalg.cond(theta) < 1e4)
        assert rir(theta, K_P, K_H) <= limit.value * SLACK

    @settings(max_examples=40)
    @given(seed=SEEDS, D=st.integers(2, 6), logs=st.tuples(st.floats(0, 3), st.floats(0, 3)))
    def test_the_closed_form_attains_it(self, seed, D, logs):
        rng = np.random.default_rng(seed)
        K_P, K_H = (covariance_of(rng, D, D, 10**log) for log in logs)
        result = relative_immunization_ratio(max_rir_immunizer(K_P), K_P, K_H)
        # κ(K) ≤ 1e3 and κ(M) ≤ 1e6: eps·1e3 of the spectra, a few hundred times that of the product.
        assert result.rir == pytest.approx(rir_limit(K_P, K_H).value, rel=1e-10)
        assert result.benign_after.value == pytest.approx(1, rel=1e-10)

    def test_null_gain_makes_rir_grow_with_its_square(self):
        # K_P = diag(4, 1, 0), K_H = diag(2, 1, 3): θ* ∝ diag(½, 1, g), so H_H ∝ (½, 1, 3g²) and
        # κ_H = 6g² for g² ≥ 1/3; before, κ_P = 4 and κ_H = 3: RIR = 6g²/3·4 = 8g².
        K_P, K_H = np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 1.0, 3.0])
        for gain in (1.0, 10.0, 1e3):
            theta = max_rir_immunizer(K_P, null_gain=gain)
            assert rir(theta, K_P, K_H) == pytest.approx(8 * gain**2, rel=1e-9)
            assert np.linalg.eigvalsh(theta)[0] > 0
            assert np.linalg.norm(theta) ** 2 == pytest.approx(3, rel=1e-14)  # unit scale

    def test_a_ridge_far_below_round_off_is_exact(self):
        # K + εI itself would lose ε beside 1. diag(1, ε), diag(1, 1): κ(M)·κ(K_P)/κ(K_H) = (1/ε)·(1/ε).
        found = rir_limit(np.diag([1.0, 0.0]), np.eye(2), ridge=1e-18)
        assert found.value == pytest.approx(1e36, rel=1e-12)


class TestRidgeConventionLimit:
    @pytest.mark.parametrize(
        ("P", "value"),
        [
            # s = 2, ε = 2: floor 1. Pencil (3/5, 2/2) and the bound 1/(3/5); κ_ε(K_P) = (4+2)/(1+2) = 2.
            ([4.0, 1.0], (5 / 3) * 2 / (4 / 3)),
            # Pencil ((2+1)/(4+1), (1+1)/1): 2; κ_ε(K_P) = 6/2.
            ([4.0, 0.0], 2 * 3 / (4 / 3)),
        ],
        ids=["full-rank", "singular"],
    )
    def test_by_hand(self, P, value):
        found = ridge_convention_limit(np.diag(P), np.diag([2.0, 1.0]), ridge=2.0)  # κ_ε(K_H) = 4/3
        assert found == pytest.approx(value, rel=1e-14)

    @settings(max_examples=80)
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
    def test_no_extractor_exceeds_it_in_either_scale(self, seed, D, ranks, logs, ridge, kind, wider):
        rng = np.random.default_rng(seed)
        K_P, K_H = (
            covariance_of(rng, D, max(1, D - lost), 10**log, 10 ** rng.uniform(-2, 2))
            for lost, log in zip(ranks, logs, strict=True)
        )
        if kind == "pencil":  # aims at both ends of the pencil at once
            floor = ridge / D * np.eye(D)
            _, Z = scipy.linalg.eigh(K_H + floor, K_P + floor)
            Z /= np.linalg.norm(Z, axis=0)
            low = 10 ** rng.uniform(-5, 0) * np.outer(Z[:, 0], np.eye(D)[1])
            theta = np.outer(Z[:, -1], np.eye(D)[0]) + low
            theta += 10 ** rng.uniform(-9, -2) * np.eye(D)
        elif kind == "whitened":
            theta = max_rir_immunizer(K_P + 10 ** rng.uniform(-6, 0) * np.eye(D))
        else:
            theta = extractor(rng, D, kind, D + wider)
        unit = rir(theta, K_P, K_H, convention="ridge", ridge=ridge)
        assert unit <= ridge_convention_limit(K_P, K_H, ridge=ridge) * SLACK
        theta = theta / np.linalg.norm(theta) * 10 ** rng.uniform(-2, 1.5)
        trained = rir(theta, K_P, K_H, convention="ridge", ridge=ridge, theta_scale="as_trained")
        bound = ridge_convention_limit(K_P, K_H, ridge=ridge, squared_norm=float((theta**2).sum()))
        assert trained <= bound * SLACK


class TestNullSpaces:
    def test_by_hand(self):
        # v at 60° to e₁: a share sin²60° of its energy is in null(K_P), but v is not.
        v = np.array([0.5, np.sqrt(0.75)])
        spaces = null_spaces(np.diag([1.0, 0.0]), np.outer(v, v))
        assert (spaces.harmful_only, spaces.intersection, spaces.intersection_energy) == (1, 0, 0)
        assert spaces.harmful_energy == pytest.approx(0.75)

    @given(seed=SEEDS, shared=st.integers(1, 3), own=st.tuples(st.integers(0, 2), st.integers(0, 2)))
    @settings(max_examples=30)
    def test_dimensions_in_a_random_basis(self, seed, shared, own):
        """`shared` directions of both tasks, some of one's own, one of neither, turned by a rotation."""
        benign, harmful = own
        rng = np.random.default_rng(seed)
        Q = orthogonal(rng, shared + benign + harmful + 1)
        parts = np.split(Q, np.cumsum([shared, benign, harmful]), axis=1)
        bases = np.hstack(parts[:2]), np.hstack([parts[0], parts[2]])
        roots = [np.sqrt(rng.uniform(1, 5, B.shape[1]))[:, None] * B.T for B in bases]
        K_P, K_H = (R.T @ R for R in roots)
        for tasks in ((K_P, K_H), map(Task.of, roots)):
            spaces = null_spaces(*tasks)
            found = (spaces.harmful_only, spaces.intersection, spaces.benign_only, spaces.common)
            assert found == (harmful, harmful, benign, 1)
            energy = np.trace(parts[2].T @ K_H @ parts[2]) / np.trace(K_H)
            assert spaces.harmful_energy == pytest.approx(energy, abs=1e-12)
        assert np.isinf(rir_limit(K_P, K_H).value) == (harmful > 0 and spaces.rank_harmful > 1)

    @pytest.mark.parametrize("seed", range(40))
    def test_round_off_of_a_shared_range_is_no_direction_of_one_s_own(self, seed):
        rng = np.random.default_rng(seed)
        Q = orthogonal(rng, 4)[:, :3]
        X_P, X_H = (rng.normal(size=(2000, 3)) @ Q.T for _ in range(2))
        for P in (Task.of(X_P), X_P.T @ X_P):
            for H in (Task.of(X_H), X_H.T @ X_H):
                spaces = null_spaces(P, H)
                assert (spaces.harmful_only, spaces.benign_only, spaces.common) == (0, 0, 1)


class TestRegion:
    def test_by_hand(self):
        # M = diag(2/100, 1): κ(M) = 50; θ* has κ(H_P) = 1 and κ(H_H) = 50.
        region = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
        assert region.start == pytest.approx((0.01, 25.0), rel=1e-14)
        x = np.array([0.01, 0.5, 10.0])  # κ(H_P) = 1, 50, 1000
        np.testing.assert_allclose(region.highest(x), [25, 1250, 25_000], rtol=1e-14)
        np.testing.assert_allclose(region.lowest(x), [25, 0.5, 10.0], rtol=1e-14)

    def test_without_a_limit_it_is_open_above(self):
        region = feasible_region(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]))
        assert np.isinf(region.highest(np.array([1.0])))
        bounded = feasible_region(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]), ridge=0.5)
        # K + εI = diag(4.5, 0.5), diag(2.5, 1.5): pencil 5/9 and 3, κ(M) = 27/5.
        assert bounded.limit.value == pytest.approx(27 / 5 * 9 / (5 / 3), rel=1e-12)
        assert bounded.limit.ridge == pytest.approx(0.5)

    @given(seed=st.integers(0, 2**32 - 1), dimension=st.integers(2, 6), size=st.floats(-4, 2))
    @settings(max_examples=40)
    def test_nothing_lies_beyond_it(self, seed, dimension, size):
        """Gaussian extractors, some around θ*, some around the front, and skewed ones."""
        P, H = pair(seed, dimension)
        generator = torch.Generator().manual_seed(seed % 2**31)
        thetas = [*torch.randn(3, dimension, dimension, generator=generator).double()]
        for power, spread in zip([0, 0, 0, 0.1, 0.5, 0.9], 2 * (1e-3, 0.03, 1.0), strict=True):
            noise = torch.randn(dimension, dimension, generator=generator).double() * spread / dimension**0.5
            front = torch.from_numpy(pareto_extractor(P, H, power))
            thetas.append(front @ (torch.eye(dimension) + noise))
        gains = 10 ** (size * torch.rand(dimension, generator=generator).double())
        thetas.append(thetas[0] @ torch.diag(gains))
        region = feasible_region(P, H)
        x, y = np.array([extractor_ratios(theta, P, H) for theta in thetas]).T
        beyond = [y / region.highest(x), region.lowest(x) / y, 1 / (x * region.kappa_benign)]
        # κ(M) stays below 1e8; an SVD in float64 then has a relative error below 1e-8.
        assert np.max(beyond) < 1 + 1e-7

    @pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
    def test_front_extractors_attain_the_limit(self, power):
        P, H = pair(3)
        measured = relative_immunization_ratio(pareto_extractor(P, H, power), P, H)
        limit = rir_limit(P, H)
        kappa = (limit.lambda_max / limit.lambda_min) ** power
        assert (measured.rir, measured.benign_after.value) == pytest.approx((limit.value, kappa), rel=1e-9)

    def test_a_family_leads_from_identity_to_the_optimum(self):
        P, H = pair(8)
        family = immunizer_family(P, [0.0, 0.5, 1.0])
        np.testing.assert_allclose(family[0], np.eye(5), atol=1e-12)
        star = max_rir_immunizer(P)
        np.testing.assert_allclose(family[2] / family[2].norm(), star / np.linalg.norm(star), atol=1e-12)
        np.testing.assert_allclose(family[1] @ family[1], family[2], atol=1e-10)
        assert extractor_ratios(family[0], P, H) == pytest.approx((1, 1))

    def test_ratios_agree_with_the_other_measure_and_refuse_round_off(self):
        P, H = pair(1)
        theta = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()
        measured = relative_immunization_ratio(theta, P, H)
        expected = (measured.benign_ratio, measured.harmful_ratio)
        assert extractor_ratios(theta, P, H) == pytest.approx(expected, rel=1e-9)
        singular = torch.diag(torch.tensor([1.0, 1, 1, 1, 0])).double()
        assert np.isnan(extractor_ratios(singular, P, H)).all()


class TestParetoImmunizer:
    @settings(max_examples=30)
    @given(
        st.integers(0, 10**6), st.integers(2, 20), st.floats(0.2, 5), st.floats(0.2, 5), st.floats(0.05, 1)
    )
    def test_it_is_on_the_front_at_the_wanted_ratio(self, seed, dimension, benign, harmful, wanted):
        K_P, K_H = pair_of(seed, dimension, (dimension, dimension), (10**benign, 10**harmful))
        limit = rir_limit(K_P, K_H).value
        found = relative_immunization_ratio(pareto_immunizer(K_P, K_H, benign_ratio=wanted), K_P, K_H)
        least = max(wanted, 10**-benign)  # κ(H_P) ≥ 1
        assert found.rir == pytest.approx(limit, rel=1e-4)
        assert found.benign_ratio == pytest.approx(least, rel=1e-6)
        default = relative_immunization_ratio(pareto_immunizer(K_P, K_H), K_P, K_H)
        assert default.success == (limit > 1 + 1e-5)

    @settings(max_examples=25)
    @given(st.integers(0, 10**6), st.integers(1, 8), st.integers(2, 8))
    def test_of_singular_pairs(self, seed, benign_rank, harmful_rank):
        K_P, K_H = pair_of(seed, 8, (benign_rank, harmful_rank))
        theta = pareto_immunizer(K_P, K_H)
        assert np.linalg.matrix_rank(theta) == 8
        compact, ridge = (
            relative_immunization_ratio(theta, K_P, K_H, convention=convention)
            for convention in ("compact", "ridge")
        )
        if rir_limit(K_P, K_H).value > 1.01:
            assert compact.success
            assert not compact.rank_changed
        # No θ beats the dual bound of the ridge convention, ε → 0; `pareto` meets it where it has room.
        if benign_rank < 8 and harmful_rank < 8:
            top = np.linalg.eigvalsh(K_P)[-1]
            dual = min(
                scipy.linalg.eigh(K_H, K_P + rho * np.eye(8), eigvals_only=True)[-1] * (top + rho * 8)
                for rho in np.geomspace(1e-9, 1e3, 200)
            )
            bound = dual / np.linalg.eigvalsh(K_H)[-1]
            if ridge.benign_ratio <= 1:
                assert ridge.harmful_ratio <= bound * (1 + 1e-6)
            if bound > 2.2:  # one ρ is within a factor of 2
                assert ridge.success

    def test_where_the_ridge_is_not_small(self):
        X, y = load_breast_cancer(return_X_y=True)  # unscaled columns: κ of 1e13
        P, H = (Task.of(X[y == label]) for label in (0, 1))
        assert relative_immunization_ratio(pareto_immunizer(P, H), P, H).success


class TestRidgeLimits:
    @pytest.mark.parametrize("seed", range(3))
    def test_they_are_bounds_and_nearly_reached(self, seed):
        """K_P is singular: no θ, however close to one direction, gets beyond; some come within a half."""
        generator = np.random.default_rng(seed)
        D, scales = 6, np.exp(generator.normal(size=(2, 1, 6)))
        X_P, X_H = generator.normal(size=(2, 9, D)) * scales
        X_P[:, seed % 3 :: 3] = 0
        X_H[:, 0] = 0  # both tasks leave something out
        P, H = Task.of(X_P), Task.of(X_H)
        limits, reached = ridge_limits(P, H), [0.0, 0.0]
        spikes = [np.outer(w, v) for w, v in generator.normal(size=(40, 2, D))]
        tried = [a * spike + np.eye(D) * b for spike in spikes for a, b in ((1, 0.0), (1, 1e-3), (1, 1.0))]
        tried += [pareto_immunizer(P, H, benign_ratio=x) for x in (1, 0.5, 1e-5)]
        for theta in tried:
            found = relative_immunization_ratio(theta, P, H, convention="ridge")
            if found.benign_ratio <= 1 + 1e-9:
                reached[0] = max(reached[0], found.harmful_ratio)
                reached[1] = max(reached[1], found.rir * (found.harmful_ratio >= 1))
        assert 0.5 < reached[0] / limits.harmful_ratio < 1 + 1e-6
        assert reached[1] < limits.rir * (1 + 1e-6)

    def test_of_invertible_tasks_they_are_the_limit(self):
        limits = ridge_limits(*pair(3))
        assert limits.rir == limits.harmful_ratio == ridge_convention_limit(*pair(3))
        assert ridge_limits(np.diag([4.0, 0.0]), np.diag([1.0, 0.0])).harmful_ratio == pytest.approx(1)


FUNCTIONS = [
    rir_limit, ridge_convention_limit, null_spaces, pencil_directions, feasible_region,
    pareto_immunizer, ridge_limits,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("K_P", "K_H", "error", "message"),
    [
        (
            np.eye(2),
            np.eye(3),
            InvalidInputError,
            "2 inputs and the harmful task 3: both tasks must share",
        ),
        (np.ones((2, 3)), np.eye(3), InvalidInputError, r"benign is an array of shape \(2, 3\)"),
        (np.zeros((2, 2)), np.eye(2), RankError, "benign has rank 0"),
        (np.eye(2), np.diag([1.0, -0.5]), InvalidInputError, "harmful is not positive semidefinite"),
    ],
)
def test_tasks_that_are_refused(function, K_P, K_H, error, message):
    with pytest.raises(error, match=message):
        function(K_P, K_H)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda K: rir_limit(K, K, ridge=0.0), "ridge must be positive and finite, got 0.0"),
        (lambda K: rir_limit(K, K, ridge=math.nan), "ridge must .* got nan"),
        (lambda K: ridge_convention_limit(K, K, ridge=0.0), "ridge must be positive and finite, got 0.0"),
        (lambda K: max_rir_immunizer(K, null_gain=0.0), "null_gain must be positive and finite, got 0.0"),
        (lambda K: pareto_extractor(np.diag([4.0, 0.0]), K, 0.0), "ranks 1 and 2 in 2.*add a ridge"),
        (lambda K: pareto_extractor(K, K, np.inf), "power must be finite, got inf"),
        (lambda K: pareto_immunizer(K, K, benign_ratio=2), r"benign_ratio must lie in \(0, 1\], got 2"),
        (lambda K: rir_limit(1e-300 * K, 1e300 * K), "λ_max .* overflows float64"),
    ],
)
def test_options_that_are_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call(np.diag([2.0, 1.0]))
