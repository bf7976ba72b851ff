"""Ceilings, null spaces, directions, the closed-form immunizer: by hand, against SciPy, as theorems."""

import math

import numpy as np
import pytest
import torch
from covariances import covariance_of, orthogonal
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from condnum.errors import InvalidInputError, RankError
from condnum.theory.ceiling import (
    max_rir_immunizer,
    null_spaces,
    pencil_directions,
    ridge_convention_ceiling,
    rir_ceiling,
)
from condnum.theory.covariances import CovarianceRange
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.pareto import pareto_immunizer

SEEDS = st.integers(0, 2**32 - 1)
# κ(H) of the factor route keeps eps·√κ(H) and K's smallest value eps·κ(K): with κ(K) ≤ 1e6 and κ(θ) mostly
# below 1e4 that is 1e-9. ε-regularised κ's: ‖θ‖²σ₁(K) stays below 1e5, so that the rank tolerance of the
# measured H, 1e-15·1e5, is far below every ε.
SLACK = 1 + 1e-6


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
    ],
    ids=["diagonal", "pretrain's-own", "harmful's-own", "crossed-beyond-double-precision"],
)
def test_by_hand_with_its_evidence(P, H, value, pencil, ranks):
    ceiling = rir_ceiling(np.diag(P), np.diag(H))
    assert ceiling.value == pytest.approx(value, rel=1e-10)
    assert (ceiling.lambda_max, ceiling.lambda_min) == pytest.approx(pencil, rel=1e-10)
    assert (ceiling.rank_pretrain, ceiling.rank_harmful, ceiling.harmful_only_dimension) == ranks


@pytest.mark.parametrize("ridge", [None, 1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("kappa", [10.0, 1e4], ids=["well", "ill"])
def test_ceiling_and_directions_against_scipy(kappa, ridge):
    """`K_H w = λK_P w`, with a ridge also for singular covariances."""
    D, rng = 6, np.random.default_rng(2)
    ranks = (D, D) if ridge is None else (4, 3)
    K_P, K_H = (covariance_of(rng, D, rank, kappa, scale) for rank, scale in zip(ranks, (1, 7), strict=True))
    R_P, R_H = (K + (ridge or 0) * np.eye(D) for K in (K_P, K_H))
    pencil = eigh(R_H, R_P, eigvals_only=True)
    expected = pencil[-1] / pencil[0] * np.linalg.cond(R_P) / np.linalg.cond(R_H)
    # SciPy keeps eps·κ(M) of λ_min, with κ(M) ≤ κ(R_P)κ(R_H).
    tolerance = 1e-12 + 1e-15 * np.linalg.cond(R_P) * np.linalg.cond(R_H)
    ceiling = rir_ceiling(K_P, K_H, ridge=ridge)
    assert ceiling.lambda_max == pytest.approx(pencil[-1], rel=1e-9)
    assert ceiling.value == pytest.approx(expected, rel=tolerance)
    if kappa < 100 and ridge in (None, 1e-2, 1.0):
        found = pencil_directions(R_P, R_H)
        np.testing.assert_allclose(found.values, pencil[::-1], rtol=1e-9)
        # One pattern for both tasks, up to λ.
        np.testing.assert_allclose(found.patterns, R_P @ found.filters.numpy(), atol=1e-8)
        np.testing.assert_allclose(found.patterns * found.values, R_H @ found.filters.numpy(), atol=1e-7)


def test_shares_sum_to_one_and_do_not_see_units():
    K_P, K_H = (X.T @ X for X in np.random.default_rng(2).normal(size=(2, 10, 6)))
    units = np.diag([1.0, 1000.0, 0.01, 3.0, 1.0, 7.0])
    plain = pencil_directions(K_P, K_H)
    scaled = pencil_directions(units @ K_P @ units, units @ K_H @ units)
    shares, others = (found.filters * found.patterns for found in (plain, scaled))
    np.testing.assert_allclose(shares.sum(dim=0), np.ones(6), rtol=1e-9)
    np.testing.assert_allclose(others, shares, atol=1e-6)  # κ of the units is 1e10
    found = pencil_directions(np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 9.0]))  # the range alone counts
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
def test_no_invertible_extractor_exceeds_it(seed, D, drop, logs, kind):
    """Also on a null space of `drop` dimensions that both tasks share."""
    rng = np.random.default_rng(seed)
    rank = max(D - drop, 1)
    if rank < D:
        logs = [min(log, 2) for log in logs]
    Q = orthogonal(rng, D)[:, :rank]
    K_P, K_H = (Q @ covariance_of(rng, rank, rank, 10**log, 10 ** rng.uniform(-3, 3)) @ Q.T for log in logs)
    ceiling = rir_ceiling(K_P, K_H)
    assert ceiling.harmful_only_dimension == 0
    theta = extractor(rng, D, kind)
    assume(np.linalg.cond(theta) < 1e4)  # κ(θ)²·κ(K) beyond 1e15 is lost in round-off, and with it a rank
    assert rir(theta, K_P, K_H) <= ceiling.value * SLACK


@settings(max_examples=40)
@given(seed=SEEDS, D=st.integers(2, 6), logs=st.tuples(st.floats(0, 3), st.floats(0, 3)))
def test_the_closed_form_attains_it(seed, D, logs):
    rng = np.random.default_rng(seed)
    K_P, K_H = (covariance_of(rng, D, D, 10**log) for log in logs)
    result = relative_immunization_ratio(max_rir_immunizer(K_P, K_H), K_P, K_H)
    # κ(K) ≤ 1e3 and κ(M) ≤ 1e6: eps·1e3 of the spectra, a few hundred times that of the product.
    assert result.rir == pytest.approx(rir_ceiling(K_P, K_H).value, rel=1e-10)
    assert result.pretrain_after.value == pytest.approx(1, rel=1e-10)


def test_null_gain_makes_rir_grow_with_its_square():
    # K_P = diag(4, 1, 0), K_H = diag(2, 1, 3): θ* ∝ diag(½, 1, g), so H_H ∝ (½, 1, 3g²) and
    # κ_H = 6g² for g² ≥ 1/3; before, κ_P = 4 and κ_H = 3: RIR = 6g²/3·4 = 8g².
    K_P, K_H = np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 1.0, 3.0])
    for gain in (1.0, 10.0, 1e3):
        theta = max_rir_immunizer(K_P, K_H, null_gain=gain)
        assert rir(theta, K_P, K_H) == pytest.approx(8 * gain**2, rel=1e-9)
        assert np.linalg.eigvalsh(theta)[0] > 0
        assert np.linalg.norm(theta) ** 2 == pytest.approx(3, rel=1e-14)  # unit scale


class TestRidgeConventionCeiling:
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
        found = ridge_convention_ceiling(np.diag(P), np.diag([2.0, 1.0]), ridge=2.0)  # κ_ε(K_H) = 4/3
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
            _, Z = eigh(K_H + floor, K_P + floor)
            Z /= np.linalg.norm(Z, axis=0)
            low = 10 ** rng.uniform(-5, 0) * np.outer(Z[:, 0], np.eye(D)[1])
            theta = np.outer(Z[:, -1], np.eye(D)[0]) + low
            theta += 10 ** rng.uniform(-9, -2) * np.eye(D)
        elif kind == "whitened":
            theta = max_rir_immunizer(K_P + 10 ** rng.uniform(-6, 0) * np.eye(D), K_H)
        else:
            theta = extractor(rng, D, kind, D + wider)
        unit = rir(theta, K_P, K_H, convention="ridge", ridge=ridge)
        assert unit <= ridge_convention_ceiling(K_P, K_H, ridge=ridge) * SLACK
        theta = theta / np.linalg.norm(theta) * 10 ** rng.uniform(-2, 1.5)
        trained = rir(theta, K_P, K_H, convention="ridge", ridge=ridge, theta_scale="as_trained")
        bound = ridge_convention_ceiling(K_P, K_H, ridge=ridge, squared_norm=float((theta**2).sum()))
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
        pretrain, harmful = own
        rng = np.random.default_rng(seed)
        Q = orthogonal(rng, shared + pretrain + harmful + 1)
        parts = np.split(Q, np.cumsum([shared, pretrain, harmful]), axis=1)
        K_P, K_H = (
            B @ np.diag(rng.uniform(1, 5, B.shape[1])) @ B.T
            for B in (np.hstack(parts[:2]), np.hstack([parts[0], parts[2]]))
        )
        spaces = null_spaces(K_P, K_H)
        found = (spaces.harmful_only, spaces.intersection, spaces.pretrain_only)
        assert found == (harmful, harmful, pretrain)
        energy = np.trace(parts[2].T @ K_H @ parts[2]) / np.trace(K_H)
        assert spaces.harmful_energy == pytest.approx(energy, abs=1e-12)
        assert np.isinf(rir_ceiling(K_P, K_H).value) == (harmful > 0 and spaces.rank_harmful > 1)


def test_a_ridge_far_below_round_off_is_exact():
    """K + εI itself would lose ε beside 1: two tasks that share nothing but a direction."""
    ranges = [CovarianceRange.of(torch.diag(torch.tensor(v)).double()) for v in ([1.0, 0.0], [1.0, 1.0])]
    # diag(1, ε) and diag(1, 1): κ(M)·κ(K_P)/κ(K_H) = (1/ε)·(1/ε).
    assert rir_ceiling(*ranges, ridge=1e-18).value == pytest.approx(1e36, rel=1e-12)


FUNCTIONS = [rir_ceiling, ridge_convention_ceiling, max_rir_immunizer, null_spaces]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("K_P", "K_H", "error", "message"),
    [
        (np.eye(2), np.eye(3), InvalidInputError, r"\(2, 2\).*\(3, 3\).*same shape"),
        (np.ones((2, 3)), np.ones((2, 3)), InvalidInputError, "must be square"),
        (np.zeros((2, 2)), np.eye(2), RankError, "pretrain_covariance has rank 0"),
    ],
)
def test_covariances_that_are_refused(function, K_P, K_H, error, message):
    with pytest.raises(error, match=message):
        function(K_P, K_H)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_options_that_are_refused(value):
    for function in FUNCTIONS[:2]:
        with pytest.raises(InvalidInputError, match=f"ridge must be positive and finite, got {value}"):
            function(np.eye(2), np.eye(2), ridge=value)
    with pytest.raises(InvalidInputError, match=f"null_gain must be positive and finite, got {value}"):
        max_rir_immunizer(np.eye(2), np.eye(2), null_gain=value)


@pytest.mark.parametrize(
    ("K_P", "K_H", "ceiling"),
    [([1, 1, 0, 0], [0, 0, 1, 2], math.inf), ([4, 1, 0], [0, 0, 3], 4.0)],  # rank 1: κ(H_H) = 1, RIR ≤ κ(K_P)
    ids=["infinite", "rank-1"],
)
def test_tasks_that_share_no_direction(K_P, K_H, ceiling):
    K_P, K_H = np.diag(np.float64(K_P)), np.diag(np.float64(K_H))
    found = rir_ceiling(K_P, K_H)
    assert (found.value, found.lambda_max, found.lambda_min) == (pytest.approx(ceiling), 0, 0)
    reached = relative_immunization_ratio(pareto_immunizer(K_P, K_H), K_P, K_H)
    assert reached.success is math.isinf(ceiling)  # one answer: the closed form gives what the ceiling allows
    assert reached.rir <= ceiling * (1 + 1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda *K, **X: rir_ceiling(*K, **X).value,
        max_rir_immunizer,
        pareto_immunizer,
        lambda *K, **X: relative_immunization_ratio(np.diag([1.0, 2, 3]), *K, **X).rir,
    ],
    ids=["ceiling", "max_rir", "pareto", "ratio"],
)
def test_features_stand_for_their_covariance(function):
    P, H = (np.random.default_rng(seed).normal(size=(20, 3)) * [1, 2, seed] for seed in (1, 5))
    right = function(P.T @ P, H.T @ H)
    for found in (
        function(pretrain_features=P, harmful_features=H),
        function(P.T @ P, harmful_features=H),
        function(pretrain_features=torch.tensor(P), harmful_covariance=H.T @ H),
    ):
        np.testing.assert_allclose(found, right, rtol=1e-8)
    with pytest.raises(InvalidInputError, match="either harmful_covariance or harmful_features"):
        function(P.T @ P)
    with pytest.raises(InvalidInputError, match="either pretrain_covariance or pretrain_features"):
        function(P.T @ P, H.T @ H, pretrain_features=P)
