"""Condition numbers, RIR (Eq. 15) and Definition 3.1: by hand, both conventions, scales, stored precision."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import EPS, LABELS, ODD_ARRAYS, PAIRS, ROWS, orthogonal, structures, thetas

from condnum import Task, alignment, linear_probe, probe_steps
from condnum.errors import CondnumError, InvalidInputError, RankError, UnknownNameError
from condnum.theory.kappa import (
    FIT_TOLERANCE,
    Clauses,
    Seen,
    both_conventions,
    condition_number,
    covariance,
    hessian,
    relative_immunization_ratio,
    slowdown,
)
from condnum.theory.limits import null_spaces, ridge_limits, rir_limit

#: The pair of the paper's remark: both diagonal, so "aligned".
K_P, K_H = np.diag([100.0, 1.0]), np.diag([2.0, 1.0])
STORED = {
    "float32": lambda a: a.astype(np.float32),
    "float16": lambda a: a.astype(np.float16),
    "bfloat16": lambda a: torch.tensor(a).bfloat16(),
}


@pytest.mark.parametrize(
    ("matrix", "options", "kappa", "rank"),
    [
        (np.diag([1.0, 4.0, 0.0, 2.0]), {}, 4, 3),
        (np.diag([-6.0, 2.0]), {}, 3, 2),
        ([[1, 1], [0, 1]], {}, ((1 + 5**0.5) / 2) ** 2, 2),  # singular values φ and 1/φ
        ([[0.0, 2.0], [-2.0, 0.0]], {}, 1, 2),  # whose symmetric part is zero
        (np.diag([1.0, 1e-3, 1e-9]), {"rtol": 1e-6}, 1e3, 2),
        (np.diag([1.0, 0.25]), {"rtol": 0.25}, 1, 1),  # strictly above
        (np.diag([4.0, 2.0, 0.0]), {"convention": "ridge", "ridge": 0.5}, 9, 2),
        (np.diag([2.0, 1.0]), {"kind": "features"}, 4, 2),
    ],
    ids=["zero", "sign", "triangular", "skew", "rtol", "at rtol", "ridge", "features"],
)
def test_condition_number_by_hand(matrix, options, kappa, rank):
    found = condition_number(matrix, **options)
    assert (found.value, found.rank) == (pytest.approx(kappa), rank)


@pytest.mark.parametrize("D", [2, 3, 6, 9])
@pytest.mark.parametrize("name", ROWS)
def test_all_functions_agree_with_numpy_on_rank_and_kappa(name, D):
    X = structures(D)[name]
    sigma, rank = np.linalg.svd(X.astype(float), compute_uv=False), np.linalg.matrix_rank(X)
    kappa, task = (sigma[0] / sigma[rank - 1]) ** 2, Task.of(X, LABELS[: len(X)] + 0.5)
    itself, probe = relative_immunization_ratio(np.eye(D), task, task), linear_probe(None, task, steps=1)
    number, limit = condition_number(X, kind="features"), rir_limit(task, task)
    numbers = number, condition_number(task), itself.benign_before, itself.harmful_after
    assert {task.rank, limit.rank_benign, null_spaces(task, task).rank_harmful, probe.rank} == {rank}
    assert {found.rank for found in numbers} == {rank}
    # An SVD keeps σ_k to N·eps·σ₁.
    close = pytest.approx(kappa, rel=20 * len(X) * EPS * kappa**0.5)
    assert [found.value for found in numbers] == [close] * 4
    assert (task.kappa, probe.condition) == (close, close)
    assert limit.value == pytest.approx(1, rel=1e-3)  # a task against itself
    if rank == D and kappa < 1e9:  # these form H
        dense = [alignment(np.eye(D), task).true_condition, condition_number(hessian(np.eye(D), task)).value]
        assert dense == [pytest.approx(kappa, rel=100 * len(X) * EPS * kappa)] * 2


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("kind", ["matrix", "features"])
@pytest.mark.parametrize("shape", [(2000, 5), (5, 2000)])
def test_the_stored_type_changes_kappa_by_its_rounding(stored, kind, shape):
    X = np.random.default_rng(0).normal(size=shape) + 4 * np.eye(*shape)
    found, true = condition_number(STORED[stored](X), kind=kind), condition_number(X, kind=kind)
    # Half an eps of each entry moves σ by less than 2⁻⁸·‖X‖_F = 0.4 in bfloat16, where σ_k > 2.
    assert found.rank == true.rank == 5
    assert found.value == pytest.approx(true.value, rel=0.6 if "b" in stored else 0.1)


@pytest.mark.parametrize("kind", thetas())
@pytest.mark.parametrize("name", ROWS)
def test_features_have_the_spectrum_of_the_dense_hessian(name, kind):
    X, theta = ROWS[name].astype(float), thetas()[kind]
    seen, dense = Task.of(ROWS[name]).through(theta), hessian(theta, covariance(X))
    slack = 500 * EPS * np.linalg.norm(theta, 2) ** 2 * np.linalg.norm(X, 2) ** 2
    np.testing.assert_allclose(dense, theta.T @ X.T @ X @ theta, atol=slack)
    values = np.linalg.eigvalsh(dense)[::-1][: len(seen.sigma)]
    np.testing.assert_allclose(seen.sigma.square(), values, atol=slack)


def test_null_directions_stay_out_where_the_dense_hessian_lets_them_in():
    # θ shrinks K's one large direction by 1e-8: H's values are 1, 1 and round-off of K/1e16.
    Q = orthogonal(np.random.default_rng(9), 4)
    theta = Q @ np.diag([1e-8, 1.0, 1, 1])
    assert condition_number(hessian(theta, Q @ np.diag([1e16, 1.0, 0, 0]) @ Q.T)).rank > 2
    seen = Task.of(np.diag([1e8, 1.0, 0, 0]) @ Q.T).through(theta)
    np.testing.assert_allclose(seen.sigma, [1, 1], rtol=1e-7)


def kappas(result):
    parts = (result.benign_before, result.benign_after, result.harmful_before, result.harmful_after)
    return [kappa.value for kappa in parts]


def test_eq_15_by_hand():
    # θ = diag(1, 3): H_P = diag(100, 9), H_H = diag(2, 9).
    theta = np.diag([1.0, 3.0])
    found = relative_immunization_ratio(theta, K_P, K_H)
    assert kappas(found) == pytest.approx([100, 100 / 9, 2, 9 / 2])
    assert (found.harmful_ratio, found.benign_ratio, found.rir) == pytest.approx((9 / 4, 1 / 9, 81 / 4))
    assert found.success is True
    # In the unit scale ‖θ‖² = 10 becomes 2 and θ² = (1/5, 9/5); ε = 1.
    ridge = {"convention": "ridge", "ridge": 1.0}
    expected = [101 / 2, (20 + 1) / (9 / 5 + 1), 3 / 2, (9 / 5 + 1) / (2 / 5 + 1)]
    assert kappas(relative_immunization_ratio(theta, K_P, K_H, **ridge)) == pytest.approx(expected)
    trained = relative_immunization_ratio(theta, K_P, K_H, theta_scale="as_trained", **ridge)
    assert kappas(trained) == pytest.approx([101 / 2, 101 / 10, 3 / 2, 10 / 3])
    for scale in (1e-200, 1e200):
        assert relative_immunization_ratio(scale * theta, K_P, K_H).rir == pytest.approx(found.rir)


def test_the_ridge_measures_all_features_that_theta_makes():
    found = relative_immunization_ratio(np.diag([1, 2]), np.diag([1, 0]), np.eye(2), convention="ridge")
    assert (found.benign_after.sigma_min, found.benign_after.dimension) == (0, 2)
    assert found.benign_after.value == pytest.approx(0.4e6 + 1)
    # Two features of three inputs, θ² = (3/2, 3/2): H_P = diag(6, 3) has full rank.
    theta = np.array([[1.0, 0], [0, 1], [0, 0]])
    narrow = relative_immunization_ratio(theta, np.diag([4.0, 2, 0]), np.eye(3), convention="ridge")
    assert narrow.benign_after.value == pytest.approx((6 + 1e-6) / (3 + 1e-6))


@pytest.mark.parametrize(
    ("theta", "clauses"),
    [
        # H_P = diag(100a, b), H_H = diag(2a, b) for θ² = (a, b).
        ((1.0, 9.0), (True, True)),
        ((1.0, 3.0), (False, True)),
        ((2.0, 1.0), (True, False)),
        ((1 - 1e-4, 1.0), (False, True)),
        ((1 + 1e-8, 1.0), (False, True)),  # above 1 beyond a millionth
        ((1 + 1e-4, 1.0), (True, False)),
    ],
)
def test_both_clauses_are_needed(theta, clauses):
    result = relative_immunization_ratio(np.diag(np.sqrt(theta)), K_P, K_H)
    assert result.clauses == Clauses(*clauses, True)  # an invertible θ keeps (c)
    assert result.success is all(clauses)
    failed = [letter for letter, kept in zip("ab", clauses, strict=True) if not kept]
    assert result.verdict == (f"NOT met, ({failed[0]}) fails" if failed else "met")


@pytest.mark.parametrize(("lost", "kept"), [(0.0, True), (FIT_TOLERANCE, True), (0.011, False)])
def test_the_lost_fit_decides_clause_c(lost, kept):
    result = replace(relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H), fit_lost=lost)
    assert (result.clauses, result.success) == (Clauses(True, True, kept), kept)


@pytest.mark.parametrize(("D", "benign", "harmful"), [(2 + i % 8, *pair) for i, pair in enumerate(PAIRS)])
def test_a_rotation_is_no_immunizer(D, benign, harmful):
    P, H = (Task.of(structures(D)[name]) for name in (benign, harmful))
    rotation = thetas(D)["rotation"]
    for theta in (0.7 * np.eye(D), 1e9 * rotation, *(to(rotation) for to in STORED.values())):
        assert not any(found.success for found in both_conventions(Seen.of(theta, P, H)))


@pytest.mark.parametrize("kind", ["skewed", "fewer columns"])
@pytest.mark.parametrize(("benign", "harmful"), PAIRS)
def test_units_and_idle_columns_change_no_verdict(benign, harmful, kind):
    X_P, X_H, theta = ROWS[benign].astype(float), ROWS[harmful].astype(float), thetas()[kind]
    columns, tasks = theta.shape[1], (Task.of(X_P), Task.of(X_H))
    close = 1e-6 if max(task.kappa for task in tasks) < 1e8 else 1e-4  # eps·κ(X)·κ(θ), doubled
    plain = relative_immunization_ratio(theta, *tasks)
    wide = np.c_[theta, np.zeros((6, 2))] @ orthogonal(np.random.default_rng(3), columns + 2)
    for scale, other in ((1e100, theta), (1e-100, theta), (1.0, wide)):
        found = relative_immunization_ratio(other, Task.of(scale * X_P), Task.of(scale * X_H))
        assert found.clauses == plain.clauses
        assert found.rir == pytest.approx(plain.rir, rel=close)


@pytest.mark.parametrize("of_theta", [1e70, 1e-70])
@pytest.mark.parametrize("of_K", [1e150, 1e-150])
def test_scales_change_no_step_and_no_alignment(of_theta, of_K):
    found = probe_steps(of_theta * np.eye(2), Task.of_covariance(of_K * np.diag([4.0, 1]), [0, of_K]))
    assert (found.raw, found.fixed, found.exact, found.fit) == (9, 9, 1, pytest.approx(1))
    theta, K = np.diag([2.0, 1]), np.array([[2.0, 1], [1, 2]])
    plain, scaled = alignment(theta, K), alignment(of_theta * theta, of_K * K)
    for name in ("misalignment", "true_condition", "predicted_condition", "rank"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name))


class TestRanksThatThetaLowers:
    """θ = diag(1, ½, 0) drops a direction that D_P uses: κ(H_P) is that of the rest."""

    THETA, P, H = np.diag([1, 0.5, 0]), np.diag([1, 1, 1e-3]), np.diag([1, 0.01, 1])

    def test_a_compact_clause_is_undecided_and_the_ridge_decides(self):
        found = relative_immunization_ratio(self.THETA, self.P, self.H)
        assert (found.rir, found.clauses) == (pytest.approx(1000), Clauses(None, None, None))
        assert (found.rank_changed, found.success, found.benign_lost) == (True, False, 1)
        assert "rank(H_P) falls from 3 to 2 and rank(H_H) falls from 3 to 2" in found.verdict
        # Both smallest values become 0: κ_ε(H_P) = (2.4 + ε)/ε rises, and so does κ_ε(H_H).
        ridge = relative_immunization_ratio(self.THETA, self.P, self.H, convention="ridge")
        assert (ridge.clauses.harmful_slower, ridge.clauses.benign_no_slower) == (True, False)

    def test_what_only_the_harmful_task_uses_may_go_but_decides_nothing(self):
        diagonals = [0.1, 1, 0], [100.0, 1, 0], [2.0, 1, 9]
        assert relative_immunization_ratio(*map(np.diag, diagonals)).clauses == Clauses(None, True, True)

    @pytest.mark.parametrize("dtype", [np.float64, np.longdouble, np.float32])
    def test_a_projection_still_projects(self, dtype):
        rng = np.random.default_rng(0)
        v = orthogonal(rng, 5)[:, :1]
        X_P, X_H = rng.normal(size=(2, 25, 5))
        theta = (np.eye(5) - v @ v.T).astype(dtype)
        found = relative_immunization_ratio(theta, Task.of(X_P, X_P @ v), Task.of(X_H))
        assert (found.benign_lost, found.clauses.fit_kept, found.success) == (1, False, False)

    @pytest.mark.parametrize("g", [1e-6, 1e-9, 1e-12])
    def test_a_value_is_lost_below_round_off_of_singular_values_not_of_their_squares(self, g):
        # H_P = I, and H_H = diag(2, g²): σ(X_Hθ) is known to 1e-16, κ(H_H) up to 1e31.
        found = relative_immunization_ratio(np.diag([1, g]), Task.of(np.diag([1, 1 / g])), np.diag([2.0, 1]))
        assert (found.verdict, found.harmful_ratio) == ("met", pytest.approx(g**-2))
        lost = relative_immunization_ratio(np.diag([1, 1e-17]), np.diag([1, 4.0]), np.diag([2.0, 1]))
        assert (lost.clauses.harmful_slower, lost.harmful_lost, lost.benign_lost) == (None, 1, 1)


MET = relative_immunization_ratio(np.diag([1.0, 3.0]), K_P, K_H)


def test_targets_of_the_tasks_are_their_probes():
    """Condition numbers are worst cases: a verdict that is met never stands without the actual probes."""
    X_P, X_H = ROWS["Gaussian"][:, :3], ROWS["Gaussian"][:, 3:]
    P, H, theta = Task.of(X_P, X_P @ [1.0, 2, 3]), Task.of(X_H, ["cat", "dog"] * 30), np.diag([1.0, 5, 25])
    found = relative_immunization_ratio(theta, P, H)
    for task, factor in ((P, found.benign_slowdown), (H, found.harmful_slowdown)):
        assert factor == probe_steps(theta, task).slowdown == slowdown(task.probe.through(theta))
    bare = relative_immunization_ratio(theta, Task.of(X_P), H)
    assert (bare.benign_slowdown, bare.fit_lost) == (None, None)
    assert bare.rir == pytest.approx(found.rir, rel=1e-12)
    ridge = relative_immunization_ratio(theta, P, H, convention="ridge")
    assert both_conventions(Seen.of(theta, P, H)) == (found, ridge)


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ((None, None), "How many steps the actual probes take is not known without targets"),
        ((2.0, 500.0), "the harmful probe takes 500 times as many steps as on raw inputs."),
        ((798.0, 5.0), "The definition is met, but the benign task is lost"),
        ((1.0, 0.08), "The definition is met, but the harmful task is not slowed."),
        ((math.inf, 5.0), "the benign probe never reaches that loss"),
        ((1.0, math.nan), "never reaches that loss within 2⁵⁰ steps, on raw inputs either"),
    ],
)
def test_what_follows_is_said(factors, words):
    assert words in repr(replace(MET, benign_slowdown=factors[0], harmful_slowdown=factors[1]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: condition_number(K_P, rtol=-1.0), InvalidInputError, r"rtol must lie in \[0, 1\), got -1.0"),
        (lambda: condition_number(0 * K_P), RankError, "rank 0"),
        (lambda: condition_number(K_P, kind="feature"), UnknownNameError, "did you mean 'features'"),
        (
            lambda: relative_immunization_ratio(np.eye(3), K_P, K_H),
            InvalidInputError,
            "the task has 2 inputs",
        ),
        (lambda: relative_immunization_ratio(0 * K_P, K_P, K_H), RankError, "theta is the zero matrix"),
        (
            lambda: relative_immunization_ratio(K_P, K_P, K_H, convention="ridge", ridge=0.0),
            InvalidInputError,
            "ridge must be",
        ),
        (lambda: hessian(1e150 * K_P, 1e150 * K_P), InvalidInputError, "H = θᵀKθ leaves float64"),
        (lambda: hessian(1e-150 * K_P, 1e-150 * K_P), InvalidInputError, "H = θᵀKθ leaves float64"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


K = np.diag([4.0, 2.0, 1.0])


@pytest.mark.parametrize("given", ODD_ARRAYS)
@pytest.mark.parametrize(
    "function",
    [
        condition_number,
        lambda M: relative_immunization_ratio(np.eye(3), M, K).rir,
        lambda M: ridge_limits(M, K).harmful_ratio,
        lambda M: alignment(np.eye(3), M).true_condition,
    ],
    ids=["condition_number", "rir", "limits", "alignment"],
)
def test_an_odd_array_has_a_finite_answer_or_an_error_of_condnum(function, given):
    try:
        found = function(ODD_ARRAYS[given](K))
    except CondnumError:
        return
    assert np.isfinite(getattr(found, "value", found))
