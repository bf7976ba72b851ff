"""Limits, null spaces, the Pareto front: by hand, against SciPy, as theorems, and what attains them."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from problems import EPS, PAIRS, ROWS, covariance_of, orthogonal, structures, thetas
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


def rir(theta, K_P, K_H, **options):
    return relative_immunization_ratio(theta, K_P, K_H, **options).rir


def skew_pair(kappas=(1e3, 1e2), ranks=(6, 6)):
    """Two covariances with log-spaced spectra and random eigenvectors."""
    rng = np.random.default_rng(2)
    return [covariance_of(rng, 6, *of, scale) for *of, scale in zip(ranks, kappas, (1, 7), strict=True)]


def tried(K_P, K_H):
    """Extractors that aim at a limit: around θ*, along the front, at both ends of the pencil."""
    D = len(K_P)
    rng, unit = np.random.default_rng(5), np.eye(D)
    floor = 1e-6 * unit
    ends = scipy.linalg.eigh(K_H + floor, K_P + floor)[1]
    ends = ends / np.linalg.norm(ends, axis=0)
    for size in (1e-6, 1e-3, 1.0):
        yield max_rir_immunizer(K_P + size * unit) @ (unit + 0.1 * size * rng.normal(size=(D, D)))
        low = size**0.5 * np.outer(ends[:, 0], unit[1])
        yield np.outer(ends[:, -1], unit[0]) + low + 1e-3 * size * unit
        yield pareto_immunizer(K_P, K_H, benign_ratio=size) @ orthogonal(rng, D)


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
def test_the_limit_by_hand(P, H, value, pencil, ranks):
    limit = rir_limit(np.diag(P), np.diag(H))
    assert limit.value == pytest.approx(value, rel=1e-10)
    assert (limit.lambda_max, limit.lambda_min) == pytest.approx(pencil, rel=1e-10)
    assert (limit.rank_benign, limit.rank_harmful, limit.harmful_only_dimension) == ranks
    rows = rir_limit(*(Task.of(np.diag(np.sqrt(of))) for of in (P, H)))
    assert rows.value == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("ridge", [None, 1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("kappa", [10.0, 1e4], ids=["well", "ill"])
def test_limit_and_directions_are_scipy_s(kappa, ridge):
    """`K_H w = λK_P w`, with a ridge also for singular covariances."""
    K_P, K_H = skew_pair((kappa, kappa), (6, 6) if ridge is None else (4, 3))
    R_P, R_H = (K + (ridge or 0) * np.eye(6) for K in (K_P, K_H))
    pencil = scipy.linalg.eigh(R_H, R_P, eigvals_only=True)
    expected = pencil[-1] / pencil[0] * np.linalg.cond(R_P) / np.linalg.cond(R_H)
    # SciPy keeps eps·κ(M) of λ_min, with κ(M) ≤ κ(R_P)κ(R_H).
    limit = rir_limit(K_P, K_H, ridge=ridge)
    assert limit.lambda_max == pytest.approx(pencil[-1], rel=1e-9)
    tolerance = 1e-12 + 1e-15 * np.linalg.cond(R_P) * np.linalg.cond(R_H)
    assert limit.value == pytest.approx(expected, rel=tolerance)
    if kappa < 100 and (ridge is None or ridge > 1e-3):
        found = pencil_directions(R_P, R_H)
        np.testing.assert_allclose(found.values, pencil[::-1], rtol=1e-9)
        # One pattern for both tasks, up to λ.
        np.testing.assert_allclose(found.patterns, R_P @ found.filters, atol=1e-8)
        np.testing.assert_allclose(found.patterns * found.values, R_H @ found.filters, atol=1e-7)


def test_shares_of_directions_sum_to_one_and_do_not_see_units():
    X_P, X_H = np.random.default_rng(2).normal(size=(2, 10, 6))
    units = np.array([1.0, 1000.0, 0.01, 3.0, 1.0, 7.0])
    plain = pencil_directions(Task.of(X_P), Task.of(X_H))
    scaled = pencil_directions(Task.of(X_P * units), Task.of(X_H * units))
    shares, others = (found.filters * found.patterns for found in (plain, scaled))
    np.testing.assert_allclose(shares.sum(axis=0), np.ones(6), rtol=1e-9)
    np.testing.assert_allclose(others, shares, atol=1e-9)  # κ of the units is 1e5
    found = pencil_directions(np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 3.0, 9.0]))
    np.testing.assert_allclose(found.values, [3.0, 0.5])  # the range alone counts


@pytest.mark.parametrize(("D", "benign", "harmful"), [(2 + i % 8, *pair) for i, pair in enumerate(PAIRS)])
def test_no_theta_beats_the_limits(D, benign, harmful):
    """Without a ridge the invertible ones; with it each, in both scales."""
    P, H = (Task.of(structures(D)[name]) for name in (benign, harmful))
    K_P, K_H = P.covariance.numpy(), H.covariance.numpy()
    limit = rir_limit(P, H).value
    aimed = {str(i): theta for i, theta in enumerate(tried(K_P, K_H))}
    for name, theta in (thetas(D) | aimed).items():
        kappa = np.linalg.cond(theta)
        # σ(Xθ) keeps eps·κ(X)κ(θ); the pencil eps·κ(X_P)κ(X_H), squared.
        slack = 1 + 1e3 * EPS * (P.kappa * H.kappa) ** 0.5 * kappa
        if "columns" not in name and kappa < 1e5:
            assert rir(theta, P, H) <= limit * slack, name
        theta = theta / np.linalg.norm(theta) * 20
        for ridge in (1e-6, 1e-3, 1.0):
            options = {"convention": "ridge", "ridge": ridge}
            unit = rir(theta, P, H, **options)
            assert unit <= ridge_convention_limit(P, H, ridge=ridge) * (1 + 1e-6), name
            bound = ridge_convention_limit(P, H, ridge=ridge, squared_norm=400.0)
            assert rir(theta, P, H, theta_scale="as_trained", **options) <= bound * (1 + 1e-6), name


@pytest.mark.parametrize(("benign", "harmful"), PAIRS)
def test_the_closed_form_immunizes_wherever_the_limit_allows(benign, harmful):
    P, H = Task.of(ROWS[benign].astype(float)), Task.of(ROWS[harmful].astype(float))
    limit, kappa = rir_limit(P, H).value, (P.kappa * H.kappa) ** 0.5
    theta = pareto_immunizer(P, H)
    found = relative_immunization_ratio(theta, P, H)
    assert np.linalg.matrix_rank(theta) == 6
    assert found.rir <= limit * (1 + 1e-3)
    if limit > 1.01 or limit < 1 + 1e-8:
        assert (found.success, found.rank_changed) == (limit > 1.01, False)
    if P.rank == H.rank == 6:
        for wanted in (1.0, 0.1):
            found = relative_immunization_ratio(pareto_immunizer(P, H, benign_ratio=wanted), P, H)
            assert found.benign_ratio <= max(wanted, 1 / P.kappa) * (1 + 1e-4)
            if limit > 2 and kappa < 1e4:
                assert found.benign_ratio == pytest.approx(max(wanted, 1 / P.kappa), rel=1e-6)
            if kappa < 1e8:  # a κ(M) that float64 holds
                assert found.rir == pytest.approx(limit, rel=1e-4 if kappa < 1e4 else 1e-3)
        star = relative_immunization_ratio(max_rir_immunizer(P), P, H)
        close = 1e-9 + 1e3 * EPS * kappa * P.kappa**0.5
        assert (star.rir, star.benign_after.value) == pytest.approx((limit, 1), rel=close)


SINGULAR = [Task.of(X).covariance.numpy() for X in ROWS.values() if np.linalg.matrix_rank(X) < 6]


def nested(i, j):
    """Covariances of ranks i and j, the second within the range of the first: no direction of its own."""
    rng = np.random.default_rng(0)
    Q = orthogonal(rng, 6)[:, :i]
    return [Q @ covariance_of(rng, i, rank, kappa) @ Q.T for rank, kappa in ((i, 1e3), (j, 1e2))]


@pytest.mark.parametrize(
    ("K_P", "K_H"),
    [*itertools.product(SINGULAR, SINGULAR), *(nested(i, j) for i in range(2, 6) for j in range(1, i + 1))],
)
def test_pareto_on_singular_pairs_by_the_dual_bound_of_the_ridge_convention(K_P, K_H):
    """No θ beats it where ε → 0; the closed form succeeds where it has room."""
    found = relative_immunization_ratio(pareto_immunizer(K_P, K_H), K_P, K_H, convention="ridge")
    top = np.linalg.eigvalsh(K_P)[-1]
    dual = min(
        scipy.linalg.eigh(K_H, K_P + rho * np.eye(6), eigvals_only=True)[-1] * (top + rho * 6)
        for rho in np.geomspace(1e-9, 1e3, 200) * top
    )
    bound = dual / np.linalg.eigvalsh(K_H)[-1]
    if found.benign_ratio <= 1:
        assert found.harmful_ratio <= bound * (1 + 1e-6)
    if bound > 2.2:  # one ρ is within a factor of 2
        assert found.success


def test_unscaled_columns_are_immunized():
    X, y = load_breast_cancer(return_X_y=True)  # κ of 1e13
    P, H = (Task.of(X[y == label]) for label in (0, 1))
    assert relative_immunization_ratio(pareto_immunizer(P, H), P, H).success


def test_null_gain_makes_rir_grow_with_its_square():
    # K_P = diag(4, 1, 0), K_H = diag(2, 1, 3): θ* ∝ diag(½, 1, g), so H_H ∝ (½, 1, 3g²) and
    # κ_H = 6g² for g² ≥ 1/3; before, κ_P = 4 and κ_H = 3: RIR = 6g²/3·4 = 8g².
    K_P, K_H = np.diag([4.0, 1.0, 0.0]), np.diag([2.0, 1.0, 3.0])
    for gain in (1.0, 10.0, 1e3):
        theta = max_rir_immunizer(K_P, null_gain=gain)
        assert rir(theta, K_P, K_H) == pytest.approx(8 * gain**2, rel=1e-9)
        assert np.linalg.norm(theta) ** 2 == pytest.approx(3, rel=1e-14)  # unit scale


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
def test_limits_with_a_ridge_by_hand(P, value):
    found = ridge_convention_limit(np.diag(P), np.diag([2.0, 1.0]), ridge=2.0)  # κ_ε(K_H) = 4/3
    assert found == pytest.approx(value, rel=1e-14)
    # K + εI itself would lose ε beside 1. diag(1, ε), diag(1, 1): κ(M)·κ(K_P)/κ(K_H) = (1/ε)·(1/ε).
    assert rir_limit(np.diag([1.0, 0.0]), np.eye(2), ridge=1e-18).value == pytest.approx(1e36, rel=1e-12)


def test_null_spaces_by_hand():
    # v at 60° to e₁: a share sin²60° of its energy is in null(K_P), but v is not.
    v = np.array([0.5, np.sqrt(0.75)])
    spaces = null_spaces(np.diag([1.0, 0.0]), np.outer(v, v))
    assert (spaces.harmful_only, spaces.intersection, spaces.intersection_energy) == (1, 0, 0)
    assert spaces.harmful_energy == pytest.approx(0.75)


@pytest.mark.parametrize(("shared", "benign", "harmful"), [(1, 0, 0), (2, 1, 0), (1, 0, 2), (3, 2, 1)])
def test_dimensions_of_null_spaces_in_a_random_basis(shared, benign, harmful):
    """`shared` directions of both tasks, some of one's own, one of neither; round-off adds none."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        Q = orthogonal(rng, shared + benign + harmful + 1)
        parts = np.split(Q, np.cumsum([shared, benign, harmful]), axis=1)
        bases = np.hstack(parts[:2]), np.hstack([parts[0], parts[2]])
        X_P, X_H = (rng.normal(size=(2000, B.shape[1])) @ B.T for B in bases)
        for P in (Task.of(X_P), X_P.T @ X_P):
            for H in (Task.of(X_H), X_H.T @ X_H):
                spaces = null_spaces(P, H)
                found = (spaces.harmful_only, spaces.intersection, spaces.benign_only, spaces.common)
                assert found == (harmful, harmful, benign, 1)
                assert np.isinf(rir_limit(P, H).value) == (harmful > 0)
        energy = np.square(X_H @ parts[2]).sum() / np.square(X_H).sum()
        assert spaces.harmful_energy == pytest.approx(energy, abs=1e-12)


def test_the_region_by_hand():
    # M = diag(2/100, 1): κ(M) = 50; θ* has κ(H_P) = 1 and κ(H_H) = 50.
    region = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
    assert region.start == pytest.approx((0.01, 25.0), rel=1e-14)
    x = np.array([0.01, 0.5, 10.0])  # κ(H_P) = 1, 50, 1000
    np.testing.assert_allclose(region.highest(x), [25, 1250, 25_000], rtol=1e-14)
    np.testing.assert_allclose(region.lowest(x), [25, 0.5, 10.0], rtol=1e-14)
    assert np.isinf(feasible_region(np.diag([4.0, 0.0]), np.diag([2.0, 1.0])).highest(np.array([1.0])))
    # K + εI = diag(4.5, 0.5), diag(2.5, 1.5): pencil 5/9 and 3, κ(M) = 27/5.
    bounded = feasible_region(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]), ridge=0.5)
    assert bounded.limit.value == pytest.approx(27 / 5 * 9 / (5 / 3), rel=1e-12)


#: Those of full rank, and of a κ(M) that float64 holds.
FULL = [
    pair
    for pair in PAIRS
    if all(np.linalg.matrix_rank(ROWS[name]) == 6 for name in pair)
    and math.prod(np.linalg.cond(ROWS[name]) for name in pair) < 1e8
]


@pytest.mark.parametrize(("benign", "harmful"), FULL)
def test_nothing_lies_beyond_the_region_and_the_front_is_its_edge(benign, harmful):
    P, H, rng = (
        Task.of(ROWS[benign].astype(float)),
        Task.of(ROWS[harmful].astype(float)),
        np.random.default_rng(0),
    )
    region, limit = feasible_region(P, H), rir_limit(P, H)
    kappa = (P.kappa * H.kappa) ** 0.5
    for power in (0.0, 0.3, 1.0):
        front = pareto_extractor(P, H, power)
        found = relative_immunization_ratio(front, P, H)
        attained = limit.value, (limit.lambda_max / limit.lambda_min) ** power
        close = 1e-9 + 1e4 * EPS * kappa * np.linalg.cond(front)
        assert (found.rir, found.benign_after.value) == pytest.approx(attained, rel=close)
        for theta in (
            torch.as_tensor(front @ (np.eye(6) + size * rng.normal(size=(6, 6))))
            for size in (1e-3, 0.03, 0.3)
        ):
            x, y = extractor_ratios(theta, P, H)
            beyond = [y / region.highest(x), region.lowest(x) / y, 1 / (x * region.kappa_benign)]
            assert max(beyond) < 1 + 1e4 * EPS * kappa * np.linalg.cond(theta)
            measured = relative_immunization_ratio(theta, P, H)
            assert (x, y) == pytest.approx((measured.benign_ratio, measured.harmful_ratio), rel=1e-4)
    assert np.isnan(extractor_ratios(torch.diag(torch.arange(6.0).double()), P, H)).all()


def test_a_family_leads_from_identity_to_the_optimum():
    P = Task.of(ROWS["Gaussian"])
    family, star = immunizer_family(P, [0.0, 0.5, 1.0]), max_rir_immunizer(P)
    np.testing.assert_allclose(family[0], np.eye(6), atol=1e-12)
    np.testing.assert_allclose(family[2] / family[2].norm(), star / np.linalg.norm(star), atol=1e-12)
    np.testing.assert_allclose(family[1] @ family[1], family[2], atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_ridge_limits_are_bounds_and_nearly_reached(seed):
    """K_P is singular: no θ, however close to one direction, gets beyond; some come within a half."""
    generator = np.random.default_rng(seed)
    X_P, X_H = generator.normal(size=(2, 9, 6)) * np.exp(generator.normal(size=(2, 1, 6)))
    X_P[:, seed % 3 :: 3] = 0
    X_H[:, 0] = 0  # both tasks leave something out
    P, H = Task.of(X_P), Task.of(X_H)
    limits, reached = ridge_limits(P, H), [0.0, 0.0]
    spikes = [np.outer(w, v) for w, v in generator.normal(size=(40, 2, 6))]
    aimed = [a * spike + np.eye(6) * b for spike in spikes for a, b in ((1, 0.0), (1, 1e-3), (1, 1.0))]
    for theta in [*aimed, *(pareto_immunizer(P, H, benign_ratio=x) for x in (1, 0.5, 1e-5))]:
        found = relative_immunization_ratio(theta, P, H, convention="ridge")
        if found.benign_ratio <= 1 + 1e-9:
            reached[0] = max(reached[0], found.harmful_ratio)
            reached[1] = max(reached[1], found.rir * (found.harmful_ratio >= 1))
    assert 0.5 < reached[0] / limits.harmful_ratio < 1 + 1e-6
    assert reached[1] < limits.rir * (1 + 1e-6)


def test_ridge_limits_of_invertible_tasks_are_the_limit():
    P, H = Task.of(ROWS["Gaussian"]), Task.of(ROWS["blocks"])
    limits = ridge_limits(P, H)
    assert limits.rir == limits.harmful_ratio == ridge_convention_limit(P, H)
    assert ridge_limits(np.diag([4.0, 0.0]), np.diag([1.0, 0.0])).harmful_ratio == pytest.approx(1)


FUNCTIONS = [rir_limit, ridge_convention_limit, null_spaces, feasible_region, pareto_immunizer, ridge_limits]


@pytest.mark.parametrize(
    ("K_P", "K_H", "error", "message"),
    [
        (np.eye(2), np.eye(3), InvalidInputError, "2 inputs and the harmful task 3: both tasks must share"),
        (np.ones((2, 3)), np.eye(3), InvalidInputError, r"benign is an array of shape \(2, 3\)"),
        (np.zeros((2, 2)), np.eye(2), RankError, "benign has rank 0"),
        (np.eye(2), np.diag([1.0, -0.5]), InvalidInputError, "harmful is not positive semidefinite"),
    ],
)
def test_tasks_that_are_refused(K_P, K_H, error, message):
    for function in FUNCTIONS:
        with pytest.raises(error, match=message):
            function(K_P, K_H)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda K: rir_limit(K, K, ridge=math.nan), "ridge must .* got nan"),
        (lambda K: ridge_convention_limit(K, K, ridge=0.0), "ridge must be positive and finite, got 0.0"),
        (lambda K: max_rir_immunizer(K, null_gain=0.0), "null_gain must be positive and finite, got 0.0"),
        (lambda K: pareto_extractor(np.diag([4.0, 0.0]), K, 0.0), "ranks 1 and 2 in 2.*add a ridge"),
        (lambda K: pareto_immunizer(K, K, benign_ratio=2), r"benign_ratio must lie in \(0, 1\], got 2"),
        (lambda K: rir_limit(1e-300 * K, 1e300 * K), "λ_max .* overflows float64"),
    ],
)
def test_options_that_are_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call(np.diag([2.0, 1.0]))
