"""The region of possible (ii), (i): by hand, its front, and that nothing gets beyond it."""

import numpy as np
import pytest
import scipy.linalg
import torch
from covariances import covariance_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

from condnum.errors import InvalidInputError
from condnum.theory.ceiling import max_rir_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.covariances import CovarianceRange
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.pareto import (
    extractor_ratios,
    feasible_region,
    immunizer_family,
    pareto_extractor,
    pareto_immunizer,
    ridge_limits,
)

#: κ(M) stays below 1e8 here; an SVD in float64 then has a relative error below 1e-8.
ROUND_OFF = 1e-7


def pair(seed, dimension=5):
    """Two random covariances, with columns of uneven scale."""
    generator = np.random.default_rng(seed)
    scales = np.exp(generator.normal(size=(2, 1, dimension)))
    return [X.T @ X for X in generator.normal(size=(2, dimension + 3, dimension)) * scales]


def ranges(seed, dimension=5):
    return [CovarianceRange.of(torch.from_numpy(K)) for K in pair(seed, dimension)]


def test_region_by_hand():
    # M = diag(2/100, 1): κ(M) = 50; θ* has κ(H_P) = 1 and κ(H_H) = 50.
    region = feasible_region(np.diag([100.0, 1.0]), np.diag([2.0, 1.0]))
    assert region.start == pytest.approx((0.01, 25.0), rel=1e-14)
    x = np.array([0.01, 0.5, 10.0])  # κ(H_P) = 1, 50, 1000
    np.testing.assert_allclose(region.highest(x), [25, 1250, 25_000], rtol=1e-14)
    np.testing.assert_allclose(region.lowest(x), [25, 0.5, 10.0], rtol=1e-14)


def overshoot(region, ratios):
    """By which share the worst of some (ii), (i) lies outside; at most round-off for real extractors."""
    x, y = np.array(ratios).T
    return np.max([y / region.highest(x), region.lowest(x) / y, 1 / (x * region.kappa_pretrain)]) - 1


def test_without_a_ceiling_the_region_is_open_above():
    region = feasible_region(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]))
    assert np.isinf(region.ceiling.value)
    assert np.isinf(region.highest(np.array([1.0])))
    bounded = feasible_region(np.diag([4.0, 0.0]), np.diag([2.0, 1.0]), ridge=0.5)
    # K + εI = diag(4.5, 0.5), diag(2.5, 1.5): pencil 5/9 and 3, κ(M) = 27/5.
    assert bounded.ceiling.value == pytest.approx(27 / 5 * 9 / (5 / 3), rel=1e-12)
    assert bounded.ceiling.ridge == pytest.approx(0.5)


def random_extractors(P, H, generator):
    """Yield Gaussian extractors, some around θ*, and some around the front."""
    D, sizes = P.dimension, (1e-3, 0.03, 1.0)
    yield from torch.randn(3, D, D, generator=generator).double()
    for power, size in zip([0, 0, 0, 0.1, 0.5, 0.9], sizes + sizes, strict=True):
        noise = size / D**0.5 * torch.randn(D, D, generator=generator).double()
        yield pareto_extractor(P, H, power) @ (torch.eye(D) + noise)


@given(seed=st.integers(0, 2**32 - 1), dimension=st.integers(2, 6), size=st.floats(-4, 2))
@settings(max_examples=40)
def test_nothing_lies_beyond_the_region(seed, dimension, size):
    P, H = ranges(seed, dimension)
    generator = torch.Generator().manual_seed(seed % 2**31)
    thetas = [*random_extractors(P, H, generator)]
    thetas.append(thetas[0] @ torch.diag(10 ** (size * torch.rand(dimension, generator=generator).double())))
    assert overshoot(feasible_region(P, H), [extractor_ratios(theta, P, H) for theta in thetas]) < ROUND_OFF


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_front_extractors_attain_the_ceiling(power):
    K_P, K_H = pair(3)
    measured = relative_immunization_ratio(pareto_extractor(K_P, K_H, power), K_P, K_H)
    limit = rir_ceiling(K_P, K_H)
    kappa = (limit.lambda_max / limit.lambda_min) ** power
    assert (measured.rir, measured.pretrain_after.value) == pytest.approx((limit.value, kappa), rel=1e-9)


def test_family_leads_from_identity_to_the_optimum():
    K_P, K_H = pair(8)
    P, H = (CovarianceRange.of(torch.from_numpy(K)) for K in (K_P, K_H))
    family = immunizer_family(P, [0.0, 0.5, 1.0])
    np.testing.assert_allclose(family[0], np.eye(5), atol=1e-12)
    star = max_rir_immunizer(K_P, K_H)
    np.testing.assert_allclose(family[2] / family[2].norm(), star / np.linalg.norm(star), atol=1e-12)
    np.testing.assert_allclose(family[1] @ family[1], family[2], atol=1e-10)
    assert extractor_ratios(family[0], P, H) == pytest.approx((1, 1))


def test_ratios_agree_with_the_other_measure_and_refuse_round_off():
    P, H = ranges(1)
    theta = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()
    K_P, K_H = pair(1)
    measured = relative_immunization_ratio(theta, K_P, K_H)
    expected = (measured.pretrain_ratio, measured.harmful_ratio)
    assert extractor_ratios(theta, P, H) == pytest.approx(expected, rel=1e-9)
    singular = torch.diag(torch.tensor([1.0, 1, 1, 1, 0])).double()
    assert np.isnan(extractor_ratios(singular, P, H)).all()


def pair_of(seed, dimension, ranks, kappas=(1e3, 1e2)):
    """Two covariances of given ranks, with log-spaced spectra and random eigenvectors."""
    rng = np.random.default_rng(seed)
    return [covariance_of(rng, dimension, rank, kappa) for rank, kappa in zip(ranks, kappas, strict=True)]


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 20), st.floats(0.2, 5), st.floats(0.2, 5), st.floats(0.05, 1))
def test_front_immunizer_is_on_the_front_at_the_wanted_ratio(seed, dimension, pretrain, harmful, wanted):
    K_P, K_H = pair_of(seed, dimension, (dimension, dimension), (10**pretrain, 10**harmful))
    limit = rir_ceiling(K_P, K_H).value
    theta = pareto_immunizer(K_P, K_H, pretrain_ratio=wanted)
    found = relative_immunization_ratio(theta, K_P, K_H)
    least = max(wanted, 10**-pretrain)  # κ(H_P) ≥ 1
    assert found.rir == pytest.approx(limit, rel=1e-4)
    assert found.pretrain_ratio == pytest.approx(least, rel=1e-6)
    default = relative_immunization_ratio(pareto_immunizer(K_P, K_H), K_P, K_H)
    assert default.success == (limit > 1 + 1e-8)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(2, 8))
def test_front_immunizer_of_singular_pairs(seed, pretrain_rank, harmful_rank):
    K_P, K_H = pair_of(seed, 8, (pretrain_rank, harmful_rank))
    theta = pareto_immunizer(K_P, K_H)
    assert np.linalg.matrix_rank(theta) == 8
    compact, ridge = (
        relative_immunization_ratio(theta, K_P, K_H, convention=convention)
        for convention in ("compact", "ridge")
    )
    if rir_ceiling(K_P, K_H).value > 1.01:
        assert compact.success
        assert not compact.rank_changed
    # No extractor beats the dual bound of the ridge convention, ε → 0; `pareto` meets it where it has room.
    if pretrain_rank < 8 and harmful_rank < 8:
        top = np.linalg.eigvalsh(K_P)[-1]
        dual = min(
            scipy.linalg.eigh(K_H, K_P + rho * np.eye(8), eigvals_only=True)[-1] * (top + rho * 8)
            for rho in np.geomspace(1e-9, 1e3, 200)
        )
        bound = dual / np.linalg.eigvalsh(K_H)[-1]
        if ridge.pretrain_ratio <= 1:
            assert ridge.harmful_ratio <= bound * (1 + 1e-6)
        if bound > 2.2:  # one ρ is within a factor of 2
            assert ridge.success


def test_front_immunizer_where_the_ridge_is_not_small():
    X, y = load_breast_cancer(return_X_y=True)  # unscaled columns: κ of 1e13
    K_P, K_H = (X[y == label].T @ X[y == label] for label in (0, 1))
    assert relative_immunization_ratio(pareto_immunizer(K_P, K_H), K_P, K_H).success


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda K: pareto_extractor(np.diag([4.0, 0.0]), K, 0.0), "ranks 1 and 2 in 2.*add a ridge"),
        (lambda K: pareto_extractor(K, K, np.inf), "power must be finite, got inf"),
        (lambda K: pareto_immunizer(K, K, pretrain_ratio=2), r"pretrain_ratio must lie in \(0, 1\], got 2"),
    ],
)
def test_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call(np.diag([2.0, 1.0]))


@pytest.mark.parametrize("seed", range(3))
def test_ridge_limits_are_bounds_and_nearly_reached(seed):
    """K_P is singular: no extractor, however close to one direction, gets beyond; some come within a half."""
    generator = np.random.default_rng(seed)
    D, scales = 6, np.exp(generator.normal(size=(2, 1, 6)))
    X_P, X_H = generator.normal(size=(2, 9, D)) * scales
    X_P[:, seed % 3 :: 3] = 0
    K_P, K_H = X_P.T @ X_P, X_H.T @ X_H
    K_H[0], K_H[:, 0] = 0, 0  # both tasks leave something out
    limits, reached = ridge_limits(K_P, K_H), [0.0, 0.0]
    spikes = [np.outer(w, v) for w, v in generator.normal(size=(40, 2, D))]
    tried = [a * spike + np.eye(D) * b for spike in spikes for a, b in ((1, 0.0), (1, 1e-3), (1, 1.0))]
    tried += [pareto_immunizer(K_P, K_H, pretrain_ratio=x) for x in (1, 0.5, 1e-5)]
    for theta in tried:
        found = relative_immunization_ratio(theta, K_P, K_H, convention="ridge")
        if found.pretrain_ratio <= 1 + 1e-9:
            reached[0] = max(reached[0], found.harmful_ratio)
            reached[1] = max(reached[1], found.rir * (found.harmful_ratio >= 1))
    assert 0.5 < reached[0] / limits.harmful_ratio < 1 + 1e-6
    assert reached[1] < limits.rir * (1 + 1e-6)


def test_ridge_limits_of_invertible_tasks_are_the_ceiling():
    limits = ridge_limits(*pair(3))
    assert limits.rir == limits.harmful_ratio == ridge_convention_ceiling(*pair(3))
    assert ridge_limits(np.diag([4.0, 0.0]), np.diag([1.0, 0.0])).harmful_ratio == pytest.approx(1)
