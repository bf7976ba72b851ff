"""Verdicts and ranks depend on the features, not on their units, copies, zeros or stored type."""

import math

import mpmath
import numpy as np
import pytest
import torch
from covariances import STRUCTURES, orthogonal, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from condnum import alignment, immunize
from condnum.errors import InvalidInputError
from condnum.methods.problem import ImmunizationProblem
from condnum.probing.probe_steps import probe_steps
from condnum.theory import well_step_bound
from condnum.theory.covariances import CovarianceRange
from condnum.theory.immunization import relative_immunization_ratio
from condnum.theory.spectra import condition_number, hessian

DRAWS = settings(max_examples=40)
SEEDS, SIZES, KINDS = st.integers(0, 10**6), st.integers(2, 9), st.sampled_from(STRUCTURES)
CONVENTIONS = st.sampled_from(["compact", "ridge"])

#: How θ may be stored.
STORED = {
    "float64": lambda a: a,
    "longdouble": lambda a: a.astype(np.longdouble),
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "bfloat16": lambda a: torch.tensor(a).bfloat16(),
}


def two_covariances(seed, kinds, dimension):
    rng = np.random.default_rng(seed)
    rows = [structured_rows(rng, kind, dimension) for kind in kinds]
    return rng, [X.T @ X for X in rows]


def exact_singular_values(X):
    with mpmath.workdps(60):
        return np.array([float(s) for s in mpmath.svd_r(mpmath.matrix(X.tolist()), compute_uv=False)])


class TestFeaturesThatThetaMakes:
    @DRAWS
    @given(SEEDS, st.tuples(KINDS, KINDS), SIZES, CONVENTIONS, st.integers(1, 9))
    def test_no_column_without_a_new_feature_changes_a_verdict(self, seed, kinds, D, convention, made):
        rng, K = two_covariances(seed, kinds, D)
        theta = rng.normal(size=(D, min(made, D)))
        plain = relative_immunization_ratio(theta, *K, convention=convention)
        assume(min(abs(math.log(x)) for x in (plain.harmful_ratio, plain.pretrain_ratio)) > 1e-6)
        assume(not plain.doubts)
        mixed = theta @ rng.normal(size=(theta.shape[1], 3))
        for columns in (np.zeros((D, 2)), theta, 0 * mixed):
            wide = np.c_[theta, columns] @ orthogonal(rng, theta.shape[1] + columns.shape[1])
            found = relative_immunization_ratio(wide, *K, convention=convention)
            assert (found.clauses, found.verdict) == (plain.clauses, plain.verdict)
            assert found.rir == pytest.approx(plain.rir, rel=1e-5)

    def test_a_square_theta_keeps_the_ridge_of_a_deficient_task(self):
        found = relative_immunization_ratio(np.diag([1, 2]), np.diag([1, 0]), np.eye(2), convention="ridge")
        assert found.pretrain_after.sigma_min == 0
        assert found.pretrain_after.value == pytest.approx(0.4e6 + 1)


class TestStoredPrecision:
    @pytest.mark.parametrize("stored", STORED)
    @DRAWS
    @given(SEEDS, st.tuples(KINDS, KINDS), SIZES, CONVENTIONS, st.sampled_from([1e-9, 1.0, 1e9]))
    def test_a_rotation_is_no_immunizer(self, stored, seed, kinds, D, convention, scale):
        rng, K = two_covariances(seed, kinds, D)
        scale = 1.0 if "16" in stored else scale
        rotation = STORED[stored](scale * orthogonal(rng, D))
        found = relative_immunization_ratio(rotation, *K, convention=convention)
        assert found.clauses.harmful_slower is not True
        assert not found.success

    @pytest.mark.parametrize("stored", STORED)
    @DRAWS
    @given(SEEDS, st.integers(3, 12))
    def test_a_projection_still_projects(self, stored, seed, D):
        rng = np.random.default_rng(seed)
        v = orthogonal(rng, D)[:, :1]
        X_P, X_H = rng.normal(size=(2, 5 * D, D))
        problem = ImmunizationProblem.from_data(X_P, X_P @ v, X_H)
        theta = STORED[stored](np.eye(D) - v @ v.T)
        gap = problem.pretrain.loss_gap(theta)
        assert gap > 0.01
        found = relative_immunization_ratio(theta, X_P.T @ X_P, X_H.T @ X_H)
        assert (found.pretrain_lost, found.success) == (1, False)

    @pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
    def test_covariances_keep_their_directions(self, stored):
        identity = np.eye(128)
        np.testing.assert_array_equal(hessian(identity, STORED[stored](identity)), identity)

    @pytest.mark.parametrize("shape", [(2000, 5), (5, 2000)])
    @pytest.mark.parametrize("kind", ["matrix", "features"])
    @pytest.mark.parametrize("stored", STORED)
    def test_condition_numbers(self, stored, kind, shape):
        X = np.random.default_rng(0).normal(size=shape) + 4 * np.eye(*shape)
        found, true = condition_number(STORED[stored](X), kind=kind), condition_number(X, kind=kind)
        assert float(found.value) == pytest.approx(float(true.value), rel=0.6 if "b" in stored else 0.1)


class TestPastFloat64:
    def found(self, g, **options):
        return relative_immunization_ratio(np.diag([1, g]), np.diag([1, g**-2]), np.diag([2.0, 1]), **options)

    def test_what_is_known(self):
        found = self.found(1e-7)
        assert (found.verdict, found.harmful_ratio) == ("met", pytest.approx(1e14))

    @pytest.mark.parametrize("g", [1e-8, 1e-9, 1e-12])
    def test_what_is_not(self, g):
        found = self.found(g)
        assert (found.clauses.harmful_slower, found.success) == (None, False)
        assert found.verdict.startswith("not known at this precision: (a), as H_H(θ) has lost rank: 1 of 2")
        assert f"σ_2/σ₁ = {g**2 / 2:.2g}" in found.verdict


class TestUnits:
    @DRAWS
    @given(SEEDS, st.integers(2, 6), st.sampled_from([(12, 6), (6, 6)]), st.floats(0, 9))
    def test_singular_values_of_columns_in_any_units(self, seed, D, shape, spread):
        rng = np.random.default_rng(seed)
        X = (rng.normal(size=shape) + 3 * np.eye(*shape))[:, :D] * 10 ** rng.uniform(-spread, spread, D)
        true = exact_singular_values(X) ** 2
        found, own = condition_number(X, kind="features"), CovarianceRange.of_features(X)
        assert found.rank == own.rank == D
        np.testing.assert_allclose([found.sigma_max, found.sigma_min], true[[0, -1]], rtol=1e-10)
        np.testing.assert_allclose(own.values, true, rtol=1e-10)

    @pytest.mark.parametrize("small", ["pretrain", "harmful"])
    def test_a_rank_that_units_hide_in_a_covariance_is_not_known(self, small):
        rng = np.random.default_rng(0)
        tasks = {name: rng.normal(size=(30, 3)) for name in ("pretrain", "harmful")}
        tasks[small] *= [1e6, 1, 1e-6]
        theta = np.diag([1.0, 1.0, 2.0])
        found = relative_immunization_ratio(theta, *(X.T @ X for X in tasks.values()))
        clause = {"pretrain": "pretrain_no_slower", "harmful": "harmful_slower"}[small]
        assert getattr(found.clauses, clause) is None
        (doubt,) = found.doubts.values()
        assert f"rank of K_{small[0].upper()} is not known: rescale them" in doubt

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("unit", [1e9, 1e-9])
    def test_one_column_in_other_units_hides_no_direction(self, unit, dtype):
        X_P, X_H = np.random.default_rng(0).normal(size=(2, 30, 3)) * [unit, 1, 1]
        problem = ImmunizationProblem.from_data(X_P.astype(dtype), None, X_H.astype(dtype))
        assert (problem.pretrain.rank, problem.harmful.rank) == (3, 3)
        assert CovarianceRange.of_features(X_H.astype(dtype)).rank == 3
        assert "rank 1" not in immunize(problem, "pareto").explanation
        ranges = problem.pretrain.range, problem.harmful.range
        for theta in (np.eye(3), orthogonal(np.random.default_rng(1), 3)):
            found = relative_immunization_ratio(theta, *ranges)
            assert found.verdict in {"NOT met, (a) fails", "NOT met, (a) and (b) fail"}
        assert relative_immunization_ratio(np.eye(3), *ranges).rir == pytest.approx(1)

    def test_equal_and_empty_columns_are_no_rank(self):
        X = np.random.default_rng(0).normal(size=(20, 3))
        for wide in (np.c_[X * [1e9, 1, 1], X], np.c_[X * [1e9, 1, 1], 0 * X]):
            assert CovarianceRange.of_features(wide).rank == 3


@pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-12, 1e-14])
@pytest.mark.parametrize("least", [1.0, 0.5])
def test_step_bound_near_a_tie(gap, least):
    sigma = [1 + gap, 1.0, least][: 3 if least < 1 else 2]
    with mpmath.workdps(60):
        top, second, low = mpmath.mpf(sigma[0]), mpmath.mpf(1), mpmath.mpf(sigma[-1])
        D = len(sigma)
        first = (1 - mpmath.sqrt(low / top)) / (2 * (1 - mpmath.mpf(1) / D) * top)
        true = min(first, (mpmath.sqrt(top / second) - 1) * D / (2 * second))
    assert well_step_bound(sigma) == pytest.approx(float(true), rel=1e-14)


@pytest.mark.parametrize("of_theta", [1e70, 1e-70])
@pytest.mark.parametrize("of_K", [1e150, 1e-150])
def test_scales_change_no_step_and_no_alignment(of_theta, of_K):
    found = probe_steps(of_theta * np.eye(2), of_K * np.diag([4.0, 1]), [0, of_K])
    assert (found.raw, found.fixed, found.exact, found.fit) == (9, 9, 1, pytest.approx(1))
    theta, K = np.diag([2.0, 1]), np.array([[2.0, 1], [1, 2]])
    plain = alignment(theta, K)
    scaled = alignment(of_theta * theta, of_K * K)
    for name in ("misalignment", "true_condition", "predicted_condition", "rank"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name))


@pytest.mark.parametrize("size", [1e150, 1e-150])
def test_a_hessian_beyond_float64_is_refused(size):
    with pytest.raises(InvalidInputError, match="H = θᵀKθ leaves float64"):
        hessian(size * np.eye(2), size * np.eye(2))
    assert hessian(np.zeros((2, 2)), np.eye(2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
