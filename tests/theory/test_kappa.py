"""Condition numbers, RIR (Eq. 15) and Definition 3.1: by hand, both conventions, scales, stored precision."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from covariances import STRUCTURES, orthogonal, structured_rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from condnum import Task, probe_steps
from condnum.errors import InvalidInputError, RankError, UnknownNameError
from condnum.theory.kappa import (
    FIT_TOLERANCE,
    PUBLISHED_RIDGE,
    RATIO_TOLERANCE,
    Clauses,
    Seen,
    both_conventions,
    condition_number,
    covariance,
    hessian,
    relative_immunization_ratio,
    slowdown,
)

DRAWS = settings(max_examples=40)
SEEDS, SIZES, KINDS = st.integers(0, 10**6), st.integers(2, 9), st.sampled_from(STRUCTURES)
CONVENTIONS = st.sampled_from(["compact", "ridge"])

#: The pair of the paper's remark: both diagonal, so "aligned".
K_P, K_H = np.diag([100.0, 1.0]), np.diag([2.0, 1.0])

#: How θ may be stored.
STORED = {
    "float64": lambda a: a,
    "longdouble": lambda a: a.astype(np.longdouble),
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "bfloat16": lambda a: torch.tensor(a).bfloat16(),
}


class TestConditionNumber:
    def test_by_hand_with_its_evidence(self):
        result = condition_number(np.diag([1.0, 4.0, 0.0, 2.0]))
        assert (result.value, result.sigma_max, result.sigma_min) == (4.0, 4.0, 1.0)
        assert (result.rank, result.dimension, result.convention) == (3, 4, "compact")
        assert (type(result.value), type(result.rank)) == (float, int)

    @pytest.mark.parametrize(
        ("matrix", "kappa"),
        [
            (np.diag([-6.0, 2.0]), 3),  # by size
            ([[2.0, 1.0], [1.0, 2.0]], 3),
            ([[1, 1], [0, 1]], ((1 + 5**0.5) / 2) ** 2),  # singular values φ and 1/φ
            # Symmetric part 0: eigenvalues of it would say that the matrix is zero.
            (np.array([[0.0, 2.0], [-2.0, 0.0]]), 1),
        ],
        ids=["negative", "full", "triangular", "skew"],
    )
    def test_by_hand(self, matrix, kappa):
        assert condition_number(matrix).value == pytest.approx(kappa)

    @pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7)], ids=str)
    def test_of_a_general_matrix_it_is_numpy_s(self, shape):
        M = np.random.default_rng(0).normal(size=shape)
        assert condition_number(M).value == pytest.approx(np.linalg.cond(M), rel=1e-11)
        assert condition_number(M).rank == np.linalg.matrix_rank(M)

    def test_rank_follows_rtol(self):
        M = np.diag([1.0, 1e-3, 1e-9])
        result = condition_number(M, rtol=1e-6)
        assert (condition_number(M).rank, result.rank, result.value) == (3, 2, pytest.approx(1e3))
        # Strictly above: σ = rtol·σ₁ is dropped.
        assert condition_number(np.diag([1.0, 0.25]), rtol=0.25).rank == 1

    def test_a_ridge_takes_zero_for_the_smallest_where_the_rank_is_deficient(self):
        result = condition_number(np.diag([4.0, 2.0, 0.0]), convention="ridge", ridge=0.5)
        assert (result.value, result.sigma_min, result.rank) == (pytest.approx(9), 0.0, 2)
        # Round-off in null directions is not kept.
        B = np.random.default_rng(0).normal(size=(4, 4))[:, :2] * [1e6, 1]
        result = condition_number(B @ B.T, convention="ridge")
        assert result.value == pytest.approx((result.sigma_max + PUBLISHED_RIDGE) / PUBLISHED_RIDGE, rel=1e-9)

    @pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5)], ids=["tall", "wide", "square"])
    @pytest.mark.parametrize("convention", ["compact", "ridge"])
    def test_features_stand_for_their_dense_hessian(self, shape, convention):
        X = np.random.default_rng(1).normal(size=shape)
        options = {"convention": convention, "ridge": 0.1}
        dense, own = condition_number(X.T @ X, **options), condition_number(X, kind="features", **options)
        task = condition_number(Task.of(X), **options)
        assert (own.rank, own.dimension, own.value) == (task.rank, task.dimension, pytest.approx(task.value))
        assert (own.rank, own.dimension) == (dense.rank, dense.dimension) == (min(shape), shape[1])
        assert (own.value, own.sigma_min) == pytest.approx((dense.value, dense.sigma_min), rel=1e-9)

    @pytest.mark.parametrize("shape", [(2000, 5), (5, 2000)])
    @pytest.mark.parametrize("kind", ["matrix", "features"])
    @pytest.mark.parametrize("stored", STORED)
    def test_the_stored_type_changes_it_by_its_rounding(self, stored, kind, shape):
        X = np.random.default_rng(0).normal(size=shape) + 4 * np.eye(*shape)
        found, true = condition_number(STORED[stored](X), kind=kind), condition_number(X, kind=kind)
        # Half an eps of each entry moves σ by less than 2⁻⁸·‖X‖_F = 0.4 in bfloat16, where σ_k > 2.
        assert found.rank == true.rank == 5
        assert found.value == pytest.approx(true.value, rel=0.6 if "b" in stored else 0.1)

    @pytest.mark.parametrize(
        ("matrix", "options", "error", "message"),
        [
            (np.eye(2), {"rtol": -1.0}, InvalidInputError, r"rtol must lie in \[0, 1\), got -1.0"),
            (np.eye(2), {"convention": "ridge", "ridge": np.nan}, InvalidInputError, "finite, got nan"),
            (np.zeros((2, 2)), {"convention": "ridge"}, RankError, "rank 0"),
            (np.eye(2), {"kind": "feature"}, UnknownNameError, "did you mean 'features'"),
        ],
    )
    def test_refused(self, matrix, options, error, message):
        with pytest.raises(error, match=message):
            condition_number(matrix, **options)


class TestHessian:
    @pytest.mark.parametrize("columns", [2, 5, 7])
    @pytest.mark.parametrize("samples", [9, 3], ids=["full", "rank-3"])
    def test_features_have_the_spectrum_of_the_dense_hessian(self, samples, columns):
        rng = np.random.default_rng(8)
        X, theta = rng.normal(size=(samples, 5)), rng.normal(size=(5, columns))
        seen = Task.of(X).through(theta)
        dense = np.linalg.eigvalsh(hessian(theta, covariance(X)))[::-1]
        np.testing.assert_allclose(seen.sigma.square(), dense[: len(seen.sigma)], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(hessian(theta, Task.of(X)), theta.T @ X.T @ X @ theta, atol=1e-12)

    def test_null_directions_stay_out_where_the_dense_hessian_lets_them_in(self):
        # θ shrinks K's one large direction by 1e-8: H's values are 1, 1 and round-off of K/1e16.
        Q = orthogonal(np.random.default_rng(9), 4)
        theta = Q @ np.diag([1e-8, 1.0, 1, 1])
        assert condition_number(hessian(theta, Q @ np.diag([1e16, 1.0, 0, 0]) @ Q.T)).rank > 2
        seen = Task.of(np.diag([1e8, 1.0, 0, 0]) @ Q.T).through(theta)
        np.testing.assert_allclose(seen.sigma, [1, 1], rtol=1e-7)

    @pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
    def test_covariances_keep_their_directions(self, stored):
        identity = np.eye(128)
        np.testing.assert_array_equal(hessian(identity, STORED[stored](identity)), identity)

    @pytest.mark.parametrize("size", [1e150, 1e-150])
    def test_beyond_float64_it_is_refused(self, size):
        with pytest.raises(InvalidInputError, match="H = θᵀKθ leaves float64"):
            hessian(size * np.eye(2), size * np.eye(2))
        assert hessian(np.zeros((2, 2)), np.eye(2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def kappas(result):
    parts = (result.benign_before, result.benign_after, result.harmful_before, result.harmful_after)
    return [kappa.value for kappa in parts]


class TestRatioByHand:
    def test_eq_15_on_diagonal_matrices(self):
        # θ = diag(1, 3): H_P = diag(100, 9), H_H = diag(2, 9).
        result = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H)
        assert kappas(result) == pytest.approx([100, 100 / 9, 2, 9 / 2])
        ratios = (result.harmful_ratio, result.benign_ratio, result.rir)
        assert ratios == pytest.approx((9 / 4, 1 / 9, 81 / 4))
        assert result.success is True
        assert (result.convention, result.theta_scale, result.fit_lost) == ("compact", "unit", None)

    def test_ridge_convention_in_the_unit_scale(self):
        # θ = diag(1, 3) has ‖θ‖² = 10, so θ² becomes (1/5, 9/5); ε = 1.
        options = {"convention": "ridge", "ridge": 1.0}
        result = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H, **options)
        expected = [101 / 2, (20 + 1) / (9 / 5 + 1), 3 / 2, (9 / 5 + 1) / (2 / 5 + 1)]
        assert kappas(result) == pytest.approx(expected)
        trained = relative_immunization_ratio(
            np.diag([1.0, 3.0]), K_P, K_H, theta_scale="as_trained", **options
        )
        assert kappas(trained) == pytest.approx([101 / 2, 101 / 10, 3 / 2, 10 / 3])

    @pytest.mark.parametrize("c", [0.1, 100.0])
    def test_ridge_as_trained_moves_with_the_square_when_rank_deficient(self, c):
        rng = np.random.default_rng(1)
        P, H = (Task.of(rng.normal(size=(rows, 5))) for rows in (3, 4))
        theta = rng.normal(size=(5, 5))
        base, scaled = (
            relative_immunization_ratio(t, P, H, convention="ridge", theta_scale="as_trained")
            for t in (theta, c * theta)
        )
        # κ_ε = σ₁/ε + 1, and σ₁/ε ≥ 1e4: c² is exact up to ε/σ₁.
        assert scaled.harmful_ratio == pytest.approx(c**2 * base.harmful_ratio, rel=1e-4)
        assert scaled.benign_ratio == pytest.approx(c**2 * base.benign_ratio, rel=1e-4)

    def test_the_ridge_measures_all_features_that_theta_makes(self):
        found = relative_immunization_ratio(np.diag([1, 2]), np.diag([1, 0]), np.eye(2), convention="ridge")
        assert (found.benign_after.sigma_min, found.benign_after.dimension) == (0, 2)
        assert found.benign_after.value == pytest.approx(0.4e6 + 1)
        # Two features of three inputs, θ² = (3/2, 3/2): H_P = diag(6, 3) has full rank.
        theta = np.array([[1.0, 0], [0, 1], [0, 0]])
        narrow = relative_immunization_ratio(theta, np.diag([4.0, 2, 0]), np.eye(3), convention="ridge")
        assert (narrow.benign_after.rank, narrow.benign_after.dimension) == (2, 2)
        assert narrow.benign_after.value == pytest.approx((6 + 1e-6) / (3 + 1e-6))

    def test_a_scale_of_theta_beyond_squares_leaves_no_nan(self):
        theta = np.diag([1.0, 3.0])
        plain = relative_immunization_ratio(theta, K_P, K_H)
        for scale in (1e-200, 1e200):
            assert relative_immunization_ratio(scale * theta, K_P, K_H).rir == pytest.approx(plain.rir)

    @pytest.mark.parametrize(
        ("theta", "P", "options", "error", "message"),
        [
            (np.eye(3), K_P, {}, InvalidInputError, r"theta has shape \(3, 3\), but the task has 2 inputs"),
            (np.zeros((2, 2)), K_P, {}, RankError, "theta is the zero matrix"),
            (np.eye(2), K_P, {"theta_scale": "units"}, UnknownNameError, "did you mean 'unit'"),
            (np.eye(2), K_P, {"convention": "ridge", "ridge": 0.0}, InvalidInputError, "ridge must be"),
            (np.diag([0.0, 1.0]), np.diag([1.0, 0.0]), {}, RankError, "rank 0"),
        ],
    )
    def test_refused(self, theta, P, options, error, message):
        with pytest.raises(error, match=message):
            relative_immunization_ratio(theta, P, K_H, **options)


class TestVerdict:
    @pytest.mark.parametrize(
        ("theta", "clauses"),
        [
            # H_P = diag(100a, b), H_H = diag(2a, b) for θ² = (a, b).
            ((1.0, 9.0), (True, True)),
            ((1.0, 3.0), (False, True)),
            ((2.0, 1.0), (True, False)),
        ],
    )
    def test_both_clauses_are_needed(self, theta, clauses):
        result = relative_immunization_ratio(np.diag(np.sqrt(theta)), K_P, K_H)
        assert result.clauses == Clauses(*clauses, True)  # an invertible θ keeps (c)
        assert result.success is all(clauses)
        failed = [letter for letter, kept in zip("ab", clauses, strict=True) if not kept]
        assert result.verdict == (f"NOT met, ({failed[0]}) fails" if failed else "met")

    @pytest.mark.parametrize("gain", [1 - 1e-4, 1 - 1e-8, 1 + 1e-8, 1 + 1e-4])
    def test_a_ratio_is_above_one_beyond_a_millionth(self, gain):
        # H_H = diag(2, 1)·θ², so (i) = θ₁²/θ₂² = gain; and (ii) = gain, too.
        found = relative_immunization_ratio(np.diag([gain**0.5, 1.0]), K_P, K_H)
        above = gain > 1 + RATIO_TOLERANCE
        assert (found.clauses.harmful_slower, found.clauses.benign_no_slower) == (above, not above)

    @pytest.mark.parametrize("c", [1.0, 0.7])
    @pytest.mark.parametrize("rows", [9, 4], ids=["full-rank", "singular"])
    def test_round_off_does_not_make_the_identity_an_immunizer(self, rows, c):
        for seed in range(20):
            X_P, X_H = np.random.default_rng(seed).normal(size=(2, rows, 5))
            for P, H in ((Task.of(X_P), Task.of(X_H)), (X_P.T @ X_P, X_H.T @ X_H)):
                assert relative_immunization_ratio(c * np.eye(5), P, H).clauses == Clauses(False, True, True)

    @pytest.mark.parametrize(("lost", "kept"), [(0.0, True), (FIT_TOLERANCE, True), (0.011, False)])
    def test_the_lost_fit_decides_clause_c(self, lost, kept):
        result = replace(relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H), fit_lost=lost)
        assert result.clauses == Clauses(True, True, kept)
        assert (result.success, result.verdict) == (kept, "met" if kept else "NOT met, (c) fails")

    @pytest.mark.parametrize("stored", STORED)
    @DRAWS
    @given(SEEDS, st.tuples(KINDS, KINDS), SIZES, CONVENTIONS, st.sampled_from([1e-9, 1.0, 1e9]))
    def test_a_rotation_is_no_immunizer(self, stored, seed, kinds, D, convention, scale):
        # Rounded it is one up to ‖E‖_F ≤ √D·eps/2, and a κ up to (1 + ‖E‖)²/(1 − ‖E‖)² < 1 + 4√D·eps.
        rng, scale = np.random.default_rng(seed), 1.0 if "16" in stored else scale
        P, H = (Task.of(structured_rows(rng, kind, D)) for kind in kinds)
        rotation = STORED[stored](scale * orthogonal(rng, D))
        assert not relative_immunization_ratio(rotation, P, H, convention=convention).success

    @DRAWS
    @given(SEEDS, st.tuples(KINDS, KINDS), SIZES, st.integers(1, 9))
    def test_no_column_without_a_new_feature_changes_a_verdict(self, seed, kinds, D, made):
        """In the compact convention; the ridge measures the features, and more of them are more."""
        rng = np.random.default_rng(seed)
        tasks = [Task.of(structured_rows(rng, kind, D)) for kind in kinds]
        theta = rng.normal(size=(D, min(made, D)))
        try:
            plain = relative_immunization_ratio(theta, *tasks)
        except RankError:  # θ sees nothing of a task
            assume(False)
        assume(min(abs(math.log(x)) for x in (plain.harmful_ratio, plain.benign_ratio)) > 1e-5)
        assume(max(kappas(plain)) < 1e12)  # no rank in between
        for columns in (np.zeros((D, 2)), theta):
            wide = np.c_[theta, columns] @ orthogonal(rng, theta.shape[1] + columns.shape[1])
            found = relative_immunization_ratio(wide, *tasks)
            assert (found.clauses, found.verdict) == (plain.clauses, plain.verdict)
            assert found.rir == pytest.approx(plain.rir, rel=1e-2)  # κ·eps


class TestRanksThatThetaLowers:
    """θ = diag(1, ½, 0) drops a direction that D_P uses: κ(H_P) is that of the rest."""

    THETA, P, H = np.diag([1, 0.5, 0]), np.diag([1, 1, 1e-3]), np.diag([1, 0.01, 1])

    def test_a_compact_clause_is_undecided(self):
        found = relative_immunization_ratio(self.THETA, self.P, self.H)
        assert found.rir == pytest.approx(1000)
        assert found.clauses == Clauses(None, None, None)
        assert (found.clauses.met, found.rank_changed, found.success) == (None, True, False)
        assert (found.benign_lost, found.harmful_lost) == (1, 1)
        words = (
            "undecided in (a) and (b) and (c): rank(H_P) falls from 3 to 2 and rank(H_H) falls from 3 to 2"
        )
        assert found.verdict == words

    def test_the_ridge_convention_decides(self):
        # Both smallest values become 0: κ_ε(H_P) = (2.4 + ε)/ε rises, and so does κ_ε(H_H).
        found = relative_immunization_ratio(self.THETA, self.P, self.H, convention="ridge")
        assert (found.clauses.harmful_slower, found.clauses.benign_no_slower) == (True, False)
        assert found.verdict == "NOT met, (b) fails"

    def test_what_only_the_harmful_task_uses_may_go_but_decides_nothing(self):
        diagonals = [0.1, 1, 0], [100.0, 1, 0], [2.0, 1, 9]
        found = relative_immunization_ratio(*map(np.diag, diagonals))
        assert found.clauses == Clauses(None, True, True)
        assert found.verdict == "undecided in (a): rank(H_H) falls from 3 to 2"

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("stored", ["float64", "longdouble", "float32"])
    def test_a_projection_still_projects(self, stored, seed):
        rng = np.random.default_rng(seed)
        D = 3 + seed
        v = orthogonal(rng, D)[:, :1]
        X_P, X_H = rng.normal(size=(2, 5 * D, D))
        theta = STORED[stored](np.eye(D) - v @ v.T)
        found = relative_immunization_ratio(theta, Task.of(X_P, X_P @ v), Task.of(X_H))
        assert (found.benign_lost, found.clauses.fit_kept, found.success) == (1, False, False)
        assert found.fit_lost > 0.1  # of y = Xv, what other columns cannot fit

    @pytest.mark.parametrize("g", [1e-6, 1e-7, 1e-9, 1e-12])
    def test_a_value_is_lost_below_round_off_of_singular_values_not_of_their_squares(self, g):
        # H_P = I, and H_H = diag(2, g²): σ(X_Hθ) is known to 1e-16, κ(H_H) up to 1e31.
        found = relative_immunization_ratio(np.diag([1, g]), Task.of(np.diag([1, 1 / g])), np.diag([2.0, 1]))
        assert (found.verdict, found.harmful_ratio) == ("met", pytest.approx(g**-2))

    def test_below_that_it_is_undecided(self):
        found = relative_immunization_ratio(np.diag([1, 1e-17]), np.diag([1, 4.0]), np.diag([2.0, 1]))
        assert (found.clauses.harmful_slower, found.harmful_lost, found.benign_lost) == (None, 1, 1)


class TestUnits:
    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    @pytest.mark.parametrize("unit", [1e4, 1e-4])
    def test_one_column_in_other_units_hides_no_direction(self, unit, dtype):
        X_P, X_H = (np.random.default_rng(0).normal(size=(2, 30, 3)) * [unit, 1, 1]).astype(dtype)
        P, H = Task.of(X_P), Task.of(X_H)
        assert (P.rank, H.rank) == (3, 3)
        for theta in (np.eye(3), orthogonal(np.random.default_rng(1), 3)):
            found = relative_immunization_ratio(theta, P, H)
            assert found.rir == pytest.approx(1, rel=1e-9)
            assert found.verdict == "NOT met, (a) fails"

    @DRAWS
    @given(SEEDS, KINDS, KINDS, SIZES, st.sampled_from([1e-100, 1e-30, 1e30, 1e100]))
    def test_the_scale_of_the_inputs_changes_no_answer(self, seed, benign, harmful, D, scale):
        rng = np.random.default_rng(seed)
        X_P, X_H = (structured_rows(rng, kind, D) for kind in (benign, harmful))
        theta = rng.normal(size=(D, D))
        plain, scaled = (
            relative_immunization_ratio(theta, Task.of(s * X_P), Task.of(s * X_H)) for s in (1.0, scale)
        )
        assert (plain.clauses, plain.harmful_before.rank) == (scaled.clauses, scaled.harmful_before.rank)
        assert scaled.rir == pytest.approx(plain.rir, rel=1e-6)


class TestActualProbes:
    """Condition numbers are worst cases: a verdict that is met never stands without the actual probes."""

    MET = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H)
    UNKNOWN = "is not known without targets"

    def said(self, benign, harmful, *, verdict=MET):
        verdict = replace(verdict, benign_slowdown=benign, harmful_slowdown=harmful)
        assert str(verdict).splitlines()[0] == repr(verdict)
        return repr(verdict).split(", RIR = ")[1]

    def test_targets_of_the_tasks_are_their_probes(self):
        rng = np.random.default_rng(0)
        X_P, X_H, theta = rng.normal(size=(20, 3)), rng.normal(size=(20, 3)), np.diag([1.0, 5, 25])
        P, H = Task.of(X_P, X_P @ [1.0, 2, 3]), Task.of(X_H, ["cat", "dog"] * 10)
        found = relative_immunization_ratio(theta, P, H)
        for task, factor in ((P, found.benign_slowdown), (H, found.harmful_slowdown)):
            assert factor == probe_steps(theta, task).slowdown == slowdown(task.probe.through(theta))
        bare = relative_immunization_ratio(theta, Task.of(X_P), H)
        assert (bare.benign_slowdown, bare.fit_lost, bare.rir) == (None, None, found.rir)
        compact, ridge = both_conventions(Seen.of(theta, P, H))
        assert (compact, ridge) == (found, relative_immunization_ratio(theta, P, H, convention="ridge"))

    def test_without_targets_they_are_not_known(self):
        assert (self.MET.benign_slowdown, self.MET.harmful_slowdown) == (None, None)
        assert repr(self.MET).startswith("Definition 3.1 is met: (i) = 2.25, (ii) = 0.1111, RIR = 20.25. ")
        assert f"How many steps the actual probes take {self.UNKNOWN}" in repr(self.MET)

    @pytest.mark.parametrize(
        ("factors", "words"),
        [
            ((2.0, 500.0), "the benign probe takes 2 times as many steps as on raw inputs"),
            ((2.0, 500.0), "the harmful probe takes 500 times as many steps as on raw inputs."),
            ((3.0, None), "How many steps the harmful probe takes is not known without targets"),
            ((None, 3.0), "How many steps the benign probe takes is not known without targets"),
            ((798.0, 5.0), "The definition is met, but the benign task is lost"),
            ((798.0, 0.5), "The harmful task is not slowed."),
            ((1.0, 0.08), "The definition is met, but the harmful task is not slowed."),
            ((1.0, 1.0), "The definition is met, but the harmful task is not slowed."),
            ((math.inf, 5.0), "the benign probe never reaches that loss"),
            ((math.inf, 5.0), "the benign task is lost"),
            ((1.0, math.inf), "the harmful probe never reaches that loss within 2⁵⁰ steps."),
            ((1.0, math.nan), "never reaches that loss within 2⁵⁰ steps, on raw inputs either"),
        ],
    )
    def test_what_follows_is_said(self, factors, words):
        said = self.said(*factors)
        assert words in said
        if factors == (2.0, 500.0):
            assert not any(other in said for other in ("lost", "not slowed", self.UNKNOWN))

    def test_a_definition_that_fails_is_not_called_met(self):
        said = self.said(798.0, 0.08, verdict=relative_immunization_ratio(np.eye(2), K_P, K_H))
        assert "The benign task is lost" in said
        assert "met" not in said
