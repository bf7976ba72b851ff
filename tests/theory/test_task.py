"""A task against 60 digits: ranks, spectra, κ and steps; blocks, classes, covariances, what is refused."""

import mpmath
import numpy as np
import pytest
import torch
from problems import EPS, LABELS, ROWS, rows_of

import condnum
from condnum import ImmunizationProblem, Task, immunize, probe_steps
from condnum.errors import InvalidInputError, RankError
from condnum.theory.kappa import descent_steps, relative_immunization_ratio


def exact(X, *, centered=False, theta=None):
    """All min(N, D) singular values of the stored rows, or of Xθ, descending, with 60 digits."""
    with mpmath.workdps(60):
        M = mpmath.matrix(np.asarray(X, dtype=float).tolist())
        if centered:
            M = M - mpmath.ones(M.rows, 1) * (mpmath.ones(1, M.rows) * M) / M.rows
        if theta is not None:
            M = M * mpmath.matrix(theta.tolist())
        G = M * M.T if M.rows < M.cols else M.T * M  # σ² to 60 digits: σ to 30 below σ₁
        values = mpmath.eigsy(G, eigvals_only=True)
        return np.array(sorted((float(mpmath.sqrt(abs(value))) for value in values), reverse=True))


def slack(X):
    """Relative to σ₁: a shift, two QRs and an SVD, each backward stable to max(N, D)·eps."""
    return 4 * max(X.shape) * EPS


RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(40, 6))
CASES = {  # rows, rank, rank with an intercept
    "one row": (RNG.normal(size=(1, 5)), 1, 0),
    "N ≪ D": (RNG.normal(size=(4, 30)), 4, 3),
    "dead columns": (NORMAL * [1, 0, 1, 1, 0, 1], 4, 4),
    "constant columns": (np.c_[NORMAL, np.full(40, 0.1), np.full(40, 1e6)], 7, 6),
    "equal columns": (np.c_[NORMAL, NORMAL[:, :2]], 6, 6),
    "one-hot columns": (np.eye(5)[np.arange(200) % 5] * 3, 5, 4),
    "graded columns": (NORMAL * np.geomspace(1, 1e-12, 6), 6, 6),
    "κ(X) = 1e12": (rows_of(1e12, 30, 6), 6, 6),
    "κ(X) = 1e12, wide": (rows_of(1e12, 6, 30), 6, 5),
    "far from zero": (NORMAL + 1e6, 6, 6),
    "float32": (rows_of(1e3, 30, 6).astype(np.float32), 6, 6),
    "float32, low rank": ((NORMAL[:, :2] @ NORMAL[:2]).astype(np.float32), 2, 2),
    "float16": (rows_of(10, 30, 6).astype(np.float16), 6, 6),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("centered", [False, True], ids=["as they are", "centered"])
def test_rank_spectrum_and_kappa_against_sixty_digits(name, centered):
    X, *ranks = CASES[name]
    rank = ranks[centered]
    task = Task.of(X, intercept=centered)
    if not rank:
        with pytest.raises(RankError, match="the features are all zero"):
            task.rank  # ruff: ignore[useless-expression]
        return
    true = exact(X, centered=centered)[:rank]
    size = max(1.0, np.abs(X.astype(float)).max() * len(X) ** 0.5 / true[0])  # centering cancels the mean
    relative = slack(X) * size * true[0] / true[-1]
    assert task.rank == rank
    np.testing.assert_allclose(task.sigma, true, rtol=relative, atol=slack(X) * size * true[0])
    assert task.kappa == pytest.approx((true[0] / true[-1]) ** 2, rel=3 * relative)
    K = np.asarray(X, dtype=float) - centered * np.asarray(X, dtype=float).mean(axis=0)
    if "low rank" not in name:  # whose round-off in float32 is cut
        atol = 3 * slack(X) * size * true[0] ** 2
        np.testing.assert_allclose(task.covariance, K.T @ K, rtol=0, atol=atol)
    if name == "graded columns" and not centered:  # columns in any units keep each value to itself
        np.testing.assert_allclose(task.sigma, true, rtol=slack(X) * np.linalg.cond(NORMAL))


def test_a_constant_column_is_exactly_zero_with_an_intercept():
    task = Task.of(np.c_[NORMAL, np.full(40, 1e6)]).centered()
    assert not task.covariance[6].any()
    assert not task.vectors[6].any()


@pytest.mark.parametrize("columns", [2, 6, 9])
@pytest.mark.parametrize("kappa", [10.0, 1e12])
def test_features_of_an_extractor(columns, kappa):
    X, theta = rows_of(kappa, 30, 6), np.random.default_rng(columns).normal(size=(6, columns))
    seen, true = Task.of(X).through(theta), exact(X, theta=theta)[: min(6, columns)]
    # The factor is backward stable, and θ magnifies its error by at most ‖θ‖.
    atol = slack(X) * np.linalg.norm(theta, 2) * float(seen.task.sigma[0])
    np.testing.assert_allclose(seen.sigma, true, rtol=0, atol=atol)
    assert (seen.rank, seen.dimension) == (min(6, columns), columns)
    # Xθ may be orthonormal, although κ(XᵀX) = 1e24 has no inverse in float64.
    seen = Task.of(X).through(np.linalg.svd(X)[2].T * np.geomspace(1, kappa, 6))
    np.testing.assert_allclose(seen.sigma, 1, atol=slack(X) * kappa)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("columns", [2, 6, 9])
def test_steps_are_counted_as_by_running_them_in_sixty_digits(columns, intercept):
    rng = np.random.default_rng(columns)
    X, y, theta = rng.normal(size=(30, 6)) + 1, rng.normal(size=30), rng.normal(size=(6, columns))
    task = Task.of(X, y, intercept=intercept)
    for seen, matrix in ((task.raw, np.eye(6)), (task.through(theta), theta)):
        with mpmath.workdps(60):
            A, b = (mpmath.matrix(of.tolist()) for of in (X, y))
            if intercept:
                one = mpmath.ones(30, 30) / 30
                A, b = A - one * A, b - one * b
            F = A * mpmath.matrix(matrix.tolist())
            best = (b.T * A * mpmath.lu_solve(A.T * A, A.T * b))[0]
            values, vectors = mpmath.eigsy(F.T * F)
            kept = [i for i in range(len(values)) if values[i] > mpmath.mpf(10) ** -40]
            along = vectors.T * (F.T * b)
            energy = [along[i] ** 2 / values[i] / best for i in kept]
            ratio = [values[i] / max(values) for i in kept]
            lost = 1 - mpmath.fsum(energy)

            def excess(steps, energy=energy, ratio=ratio, lost=lost):
                parts = zip(energy, ratio, strict=True)
                return float(lost + mpmath.fsum(e * (1 - r) ** (2 * steps) for e, r in parts))

            assert seen.rank == len(kept)
            for epsilon in (0.5, 0.01):
                steps = descent_steps(seen, epsilon)
                if lost > epsilon:
                    assert steps == np.inf
                    continue
                # The loss after each step is right to about 1e-13: whether it is below ε, to 1e-9.
                assert excess(int(steps)) <= epsilon * (1 + 1e-9)
                assert excess(int(steps) - 1) > epsilon * (1 - 1e-9)


@pytest.mark.parametrize("cuts", [[1], [7, 8, 30], [2, 50]], ids=str)
@pytest.mark.parametrize("labels", [False, True], ids=["numbers", "labels"])
@pytest.mark.parametrize("name", ROWS)
def test_blocks_give_what_all_rows_give(name, labels, cuts):
    X = ROWS[name].astype(float)
    y = np.array(["ant", "bee", "cat"])[LABELS][: len(X)] if labels else np.c_[LABELS[: len(X)], X[:, 0]]
    cuts = [cut for cut in cuts if cut < len(X)]
    (first, *parts), (targets, *others) = np.split(X, cuts), np.split(y, cuts)
    whole, blocks = Task.of(X, y), Task.of(first, targets)
    for block in zip(parts, others, strict=True):
        blocks = blocks.extended(*block)
    order = [blocks.classes.index(of) for of in whole.classes] if labels else [0, 1]
    assert (blocks.rows, blocks.dimension, blocks.outputs) == (len(X), 6, len(order))
    # Up to five QRs of at most N + D rows, each backward stable to (N + D)·eps in its columns' sizes.
    round_off = 5 * (len(X) + 6) * EPS * np.linalg.norm(X)
    for one, other in ((whole, blocks), (whole.centered(), blocks.centered())):
        assert one.rank == other.rank
        np.testing.assert_allclose(other.sigma, one.sigma, rtol=0, atol=round_off)
        atol = 3 * round_off * np.linalg.norm(X)
        np.testing.assert_allclose(other.covariance, one.covariance, rtol=0, atol=atol)
        atol = 3 * round_off * np.linalg.norm(one.products[1])
        np.testing.assert_allclose(other.moment[:, order], one.moment, rtol=0, atol=atol)
        np.testing.assert_allclose(other.mean, X.mean(axis=0), rtol=0, atol=round_off)
        assert other.energy == pytest.approx(one.energy, rel=1e-11)


def test_a_new_class_in_a_later_block_is_a_new_column():
    first = Task.of(NORMAL[:3], ["b", "b", "b"])
    later = first.extended(NORMAL[3:5], ["a", "b"])
    assert (first.classes, later.classes, later.outputs) == (("b",), ("b", "a"), 2)
    Y = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [1, 0.0]])
    np.testing.assert_allclose(later.moment, NORMAL[:5].T @ Y, atol=1e-13)
    np.testing.assert_allclose(first.moment, NORMAL[:3].T @ Y[:3, :1], atol=1e-13)  # as it was


DIGITS = condnum.load_small_digits()
IMAGES, LARGE = DIGITS.images.reshape(-1, 64)[:800] / 16.0, DIGITS.labels[:800] >= 5


def test_classes_have_an_intercept_and_numbers_have_none():
    y = LARGE.astype(int)
    of_classes, of_numbers = Task.of(IMAGES, y).probe, Task.of(IMAGES, y.astype(float) + 0.5).probe
    assert (of_classes.intercept, of_numbers.intercept) == (True, False)
    np.testing.assert_allclose(of_classes.covariance, 800 * np.cov(IMAGES.T, bias=True), atol=1e-9)
    problem = ImmunizationProblem.from_data(IMAGES[:400], y[:400], IMAGES[400:], y[400:])
    erased = immunize(problem, "erase").harmful_probe
    assert (erased.fixed, erased.fit <= 1e-12) == (np.inf, True)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "float32"])
def test_a_covariance_is_the_task_of_its_rows(name):
    X = ROWS[name]
    y = np.random.default_rng(0).normal(size=len(X))
    rows, found = Task.of(X, y), Task.of_covariance(X.T @ X, X.T @ y)
    assert (found.rank, found.rows) == (rows.rank, 0)
    # Eigenvalues of a product of N rows are right to N·eps·γ₁.
    np.testing.assert_allclose(found.values, rows.values, rtol=1e-14 * len(X) * rows.kappa)
    atol = 1e-12 * float(rows.values[0] * rows.energy) ** 0.5
    np.testing.assert_allclose(found.moment, rows.moment, atol=atol)
    assert found.centered() is found
    for task in (rows, found):
        unit = 1e3 * EPS * rows.kappa
        torch.testing.assert_close(task.root.mT @ task.root, task.covariance, rtol=1e-9, atol=1e-9)
        white = task.whitener.mT @ task.covariance @ task.whitener
        torch.testing.assert_close(white, torch.eye(task.rank).double(), rtol=0, atol=1e-12 + unit)
        assert (task.root @ task.null_basis).abs().sum() < 1e-12 * float(task.sigma[0])
        assert task.null_basis.shape == (6, 6 - task.rank)


def test_nearly_equal_values_are_no_immunization():
    # What any closed form can gain is below the tolerance of a ratio, 1e-6.
    task, other = np.diag([1, 1, 1 - 1e-8]), np.diag([1 - 1e-8, 1, 1])
    for P, H in ((task, task), (task, np.eye(3)), (np.eye(3), task), (task, other)):
        for method in ("pareto", "max_rir"):
            assert not immunize(ImmunizationProblem.from_covariances(P, H), method).verdict.success


def test_clause_c_asks_what_raw_features_fit():
    # y = 1000 + x: of its sum of squares θ loses a millionth, but all that a feature explains.
    X = RNG.normal(size=(200, 2))
    P = Task.of(X, 1000 + X[:, 0], intercept=True)
    found = relative_immunization_ratio(np.diag([0.0, 1.0]), P, Task.of(X))
    assert (found.fit_lost, found.clauses.fit_kept) == (pytest.approx(1, abs=0.05), False)
    assert relative_immunization_ratio(np.diag([1e-3, 1.0]), P, Task.of(X)).fit_lost == 0


SMALL = Task.of([[1.0, 2.0], [0.0, 1.0]], [0, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SMALL.extended(np.ones((2, 3)), [0, 1]), InvalidInputError, "but the task has 2"),
        (lambda: SMALL.extended(np.ones((2, 2))), InvalidInputError, "blocks of a task must have"),
        (lambda: SMALL.extended(np.eye(2), ["a", "b"]), InvalidInputError, "but earlier labels are .0, 1."),
        (lambda: Task.of_covariance(np.eye(2)).extended(np.eye(2)), InvalidInputError, "no rows to go on"),
        (lambda: Task.of_covariance(np.diag([1, -0.5])), InvalidInputError, "smallest eigenvalue is -0.5"),
        (lambda: Task.of_covariance([[1, 5], [0, 1.0]]), InvalidInputError, "symmetric, got"),
        (lambda: Task.of_covariance(np.ones((2, 3))), InvalidInputError, r"for rows pass Task.of\(X, y\)"),
        (lambda: Task.of_covariance(np.zeros((2, 2))), RankError, "covariance has rank 0"),
        (lambda: Task.of_covariance(np.eye(2), [1.0, 2, 3]), InvalidInputError, "do not fit"),
        (lambda: Task.of([[1e200, 1.0]]), InvalidInputError, "whose squares overflow float64"),
        (lambda: Task.of([[1.0], [2.0]], [1.0]), InvalidInputError, "one target per row, got y of shape"),
        (lambda: SMALL.through(np.ones((3, 2))), InvalidInputError, r"theta has shape \(3, 2\)"),
        (lambda: Task.of(NORMAL).through(np.ones((2, 6))), InvalidInputError, "transposed: pass theta.T"),
        (lambda: condnum.rir_limit(NORMAL, NORMAL), InvalidInputError, r"for rows pass Task.of\(X, y\)"),
        (lambda: probe_steps(None, Task.of(NORMAL)), InvalidInputError, "has no targets"),
    ],
)  # fmt: skip
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
